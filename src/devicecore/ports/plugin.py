"""The plugin's side of the device plugin API: what a plugin author writes.

Law: a plugin serves one resource. The plugin's options announce its optional methods, unless the plugin declares its
own options.
"""

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from attrs import frozen

from devicecore.domain.checks import check_callable, checked, expected, tuple_of
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import Device, DeviceId, PluginOptions, ResourceName

__all__ = ["DevicePlugin"]

_DERIVED = {
    (pre_start, preferred): PluginOptions(pre_start, preferred)
    for pre_start in (False, True)
    for preferred in (False, True)
}
"""The options of a class that declares none. The key says which of the optional methods the class has."""


_OPTIONAL = {name.replace("_", ""): name for name in ("get_preferred_allocation", "pre_start_container", "subscribe")}
"""The methods that a plugin need not have, by their names without underscores."""


def _plain(name: str) -> str:
    return name.replace("_", "").casefold()


class DevicePlugin(Protocol):
    """One resource and its devices.

    A plugin must define `resource`, `devices` and `allocate`. The other members have defaults. Subclass `DevicePlugin`
    to get the defaults. A class without `devices` or `allocate` cannot be instantiated. Any adapter can serve a plugin:
    in memory, or over gRPC to a real kubelet. Methods may be called from several threads at once. If a method raises an
    error, the kubelet's call fails with the error's text.

    A subclass that defines `get_preferred_allocation` or `pre_start_container` need not announce that method: the
    default `options` announces every optional method that the subclass defines. A class or object that declares
    `options` itself keeps these options.
    """

    resource: ResourceName
    options: PluginOptions = _DERIVED[False, False]

    def __init_subclass__(cls, **arguments: object) -> None:
        """Announce the optional methods of a subclass.

        Raises TypeError for a method such as `prestart_container`, which no kubelet would ever call.
        """
        super().__init_subclass__(**arguments)
        if any(cls.options is derived for derived in _DERIVED.values()):
            pre_start = cls.pre_start_container is not DevicePlugin.pre_start_container
            preferred = cls.get_preferred_allocation is not DevicePlugin.get_preferred_allocation
            cls.options = _DERIVED[pre_start, preferred]
        for name in vars(cls):
            meant = _OPTIONAL.get(_plain(name), name)
            if meant != name and getattr(cls, meant) is getattr(DevicePlugin, meant):
                problem = f"{cls.__name__}.{name}: a DevicePlugin has no such method; expected {meant}"
                raise TypeError(problem)

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """Return the complete current list of devices."""

    @abstractmethod
    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        """Prepare `devices` for one container. Return what the container needs to use the devices.

        A kubelet requests the same devices again after a failed start, so repeated calls are not an error.
        """

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """From now on, call `changed` whenever `devices` would return a different list.

        Return a function that unsubscribes.

        The default suits a plugin whose list never changes.
        """
        return lambda: None

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> Sequence[DeviceId]:
        """Return the `size` devices from `available` that work together best.

        This method is called only if `options` says that the plugin has it.
        """
        return ()

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        """Prepare for the start of a container that holds `devices`.

        This method is called only if `options` requires it.
        """
        return  # nothing to prepare by default


# --- for adapters: call a plugin, and check its response ------------------------------------------------------------


def check_plugin(plugin: DevicePlugin, function: str) -> None:
    """Raise TypeError if a value is not a plugin: a class, or an object that lacks a required member.

    The error names `function`, which received the value.
    """
    given: object = plugin
    if isinstance(given, type):
        raise TypeError(expected(function, f"a plugin, such as {given.__name__}(...)", given))
    missing = [name for name in ("resource", "devices", "allocate") if not hasattr(given, name)]
    if missing:
        raise TypeError(expected(function, f"a DevicePlugin with `{'`, `'.join(missing)}`", given))
    for name in ("devices", "allocate"):
        if not callable(method := getattr(given, name)):
            raise TypeError(expected(f"{_name(plugin)}.{name}", "a method", method))
    checked(plugin.options, PluginOptions, f"{_name(plugin)}.options")


@frozen
class WrongAnswerError(DeviceCoreError, TypeError):
    """A plugin's method returned a value of the wrong type. The message says it all, so no traceback is needed."""

    problem: str
    _text = "{problem}"


def listed(plugin: DevicePlugin) -> tuple[Device, ...]:
    """Call a plugin's `devices` and return the result. Raises TypeError if the result is not a list of devices."""
    return _several(plugin.devices(), Device, f"{_name(plugin)}.devices")


def allocated(plugin: DevicePlugin, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
    """Call a plugin's `allocate` and return the result.

    Raises TypeError if the result is not a container's response.
    """
    answer, what = plugin.allocate(devices), f"{_name(plugin)}.allocate"
    return _answer(answer, what, lambda: checked(answer, ContainerAllocateResponse, what))


def preferred(
    plugin: DevicePlugin, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
) -> tuple[DeviceId, ...]:
    """Call a plugin's `get_preferred_allocation` and return the result. A kubelet does not check the ids.

    Raises TypeError if the result is not an iterable of device ids.
    """
    answer = plugin.get_preferred_allocation(available, must_include, size)
    return tuple(map(DeviceId, _several(answer, str, f"{_name(plugin)}.get_preferred_allocation")))


def subscribed(plugin: DevicePlugin, changed: Callable[[], None]) -> Callable[[], None]:
    """Call a plugin's `subscribe` and return the result. Raises TypeError if the result is not a function."""
    answer, what = plugin.subscribe(changed), f"{_name(plugin)}.subscribe"
    _answer(answer, what, lambda: check_callable(f"{what}: the function that unsubscribes", answer))
    return answer


T = TypeVar("T")


def _several(answer: Iterable[T], kind: type[T], what: str) -> tuple[T, ...]:
    if isinstance(answer, Iterator):
        answer = tuple(answer)  # a generator of the plugin runs here, outside the check
    return _answer(answer, what, lambda: tuple_of(answer, kind, what))


def _answer(answer: object, what: str, check: Callable[[], T]) -> T:
    """Return the result of `check`, which checks the answer of the method `what`."""
    if isinstance(answer, Coroutine):
        answer.close()  # otherwise, Python warns that nothing awaited it
        raise WrongAnswerError(expected(what, "a method defined with `def`", "async def"))
    try:
        return check()
    except TypeError as error:
        raise WrongAnswerError(str(error)) from None


def _name(plugin: DevicePlugin) -> str:
    return type(plugin).__name__
