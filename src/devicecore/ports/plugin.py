"""The plugin's side of the device plugin API: what a plugin author writes.

Law: a plugin serves one resource. The plugin's options announce its optional methods, unless the plugin declares its
own options.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from devicecore.domain.checks import checked, expected, tuple_of
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.model import Device, DeviceId, PluginOptions, ResourceName

__all__ = ["DevicePlugin"]

_DERIVED = {
    (pre_start, preferred): PluginOptions(pre_start, preferred)
    for pre_start in (False, True)
    for preferred in (False, True)
}
"""The options of a class that declares none. The key says which of the optional methods the class has."""


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
        super().__init_subclass__(**arguments)
        if any(cls.options is derived for derived in _DERIVED.values()):
            pre_start = cls.pre_start_container is not DevicePlugin.pre_start_container
            preferred = cls.get_preferred_allocation is not DevicePlugin.get_preferred_allocation
            cls.options = _DERIVED[pre_start, preferred]

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
    checked(plugin.options, PluginOptions, f"{_name(plugin)}.options")


def listed(plugin: DevicePlugin) -> tuple[Device, ...]:
    """Call a plugin's `devices` and return the result. Raises TypeError if the result is not a list of devices."""
    return tuple_of(plugin.devices(), Device, f"{_name(plugin)}.devices")


def allocated(plugin: DevicePlugin, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
    """Call a plugin's `allocate` and return the result.

    Raises TypeError if the result is not a container's response.
    """
    return checked(plugin.allocate(devices), ContainerAllocateResponse, f"{_name(plugin)}.allocate")


def preferred(
    plugin: DevicePlugin, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
) -> tuple[DeviceId, ...]:
    """Call a plugin's `get_preferred_allocation` and return the result. A kubelet does not check the ids.

    Raises TypeError if the result is not an iterable of device ids.
    """
    answer = plugin.get_preferred_allocation(available, must_include, size)
    tuple_of(answer, str, f"{_name(plugin)}.get_preferred_allocation")
    return tuple(answer)


def _name(plugin: DevicePlugin) -> str:
    return type(plugin).__name__
