"""What a container needs to use its devices.

Law: if two answers give different values for a name, or different host paths for a container path, the first answer
wins, and the conflict is reported. Resources are visited in order of their names.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from attrs import evolve, field, frozen

from devicecore.domain.checks import checked, expected, is_absolute_path, is_flag, tuple_of
from devicecore.domain.model import ResourceName
from devicecore.domain.text import foreign_text


@frozen
class Mount:
    """A host path that is mounted into the container.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a path is not absolute.
    """

    container_path: str = field(validator=is_absolute_path)
    host_path: str = field(validator=is_absolute_path)
    read_only: bool = field(default=False, validator=is_flag)


def _are_permissions(_: object, __: object, value: str) -> None:
    if not checked(value, str, "DeviceSpec.permissions") or set(value) - set("rwm"):
        raise ValueError(expected("DeviceSpec.permissions", "letters from r, w and m", value))


@frozen
class DeviceSpec:
    """A device node. `permissions` consists of the letters `r`, `w` and `m` (mknod).

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a path is not absolute, or the permissions contain other letters.
    """

    container_path: str = field(validator=is_absolute_path)
    host_path: str = field(validator=is_absolute_path)
    permissions: str = field(default="rw", validator=_are_permissions)


def _texts_by_name(value: Mapping[str, str], what: str) -> dict[str, str]:
    # Typed as object because a type checker would call the check unreachable; a caller may pass anything.
    given: object = value
    if type(given) is not dict and not isinstance(given, Mapping):  # checking for a Mapping takes longer
        raise TypeError(expected(what, "a mapping of names to strings", value))
    texts = dict(value)
    pairs: Iterable[tuple[object, object]] = texts.items()
    for name, text in pairs:
        if not isinstance(name, str):
            raise TypeError(expected(what, "names that are str", name))
        if not isinstance(text, str):
            raise TypeError(expected(f"{what}[{foreign_text(repr(name), 100)}]", "str", text))
    return texts


def _envs(value: Mapping[str, str]) -> dict[str, str]:
    return _texts_by_name(value, "ContainerAllocateResponse.envs")


def _annotations(value: Mapping[str, str]) -> dict[str, str]:
    return _texts_by_name(value, "ContainerAllocateResponse.annotations")


def _mounts(value: Iterable[Mount]) -> tuple[Mount, ...]:
    return tuple_of(value, Mount, "ContainerAllocateResponse.mounts")


def _devices(value: Iterable[DeviceSpec]) -> tuple[DeviceSpec, ...]:
    return tuple_of(value, DeviceSpec, "ContainerAllocateResponse.devices")


def _cdi_devices(value: Iterable[str]) -> tuple[str, ...]:
    return tuple_of(value, str, "ContainerAllocateResponse.cdi_devices")


@frozen
class ContainerAllocateResponse:
    """A plugin's answer to Allocate for one container. `cdi_devices` are fully qualified CDI names.

    Lists become tuples, and mappings are copied.

    Raises:
        TypeError: a value has the wrong type, such as a number for the value of a variable.
    """

    envs: Mapping[str, str] = field(factory=dict, converter=_envs)
    mounts: tuple[Mount, ...] = field(default=(), converter=_mounts)
    devices: tuple[DeviceSpec, ...] = field(default=(), converter=_devices)
    annotations: Mapping[str, str] = field(factory=dict, converter=_annotations)
    cdi_devices: tuple[str, ...] = field(default=(), converter=_cdi_devices)


@frozen
class Conflict:
    """Two answers that disagree about a `name`, which is a variable, an annotation or a container path.

    The first answer is kept.
    """

    kind: str
    name: str
    kept: str
    dropped: str
    resource: ResourceName

    def __str__(self) -> str:
        return f"{self.kind} {self.name} stays {self.kept!r}, because {self.dropped!r} from {self.resource} came later"


@frozen
class ContainerOptions:
    """The merged answers of all plugins for one container (kubelet: `DeviceRunContainerOptions`, kubelet.md 7.3)."""

    envs: Mapping[str, str] = field(factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    annotations: Mapping[str, str] = field(factory=dict)
    cdi_devices: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


Value = TypeVar("Value")


def merge(responses: Mapping[ResourceName, ContainerAllocateResponse]) -> ContainerOptions:
    """Merge the responses of the plugins for a container's resources (kubelet: `deviceRunContainerOptions`)."""
    answers = sorted(responses.items())
    conflicts: list[Conflict] = []

    def first_wins(kind: str, answered: Iterable[tuple[ResourceName, str, str, Value]]) -> dict[str, Value]:
        """Return the first value for each name. A later value with a different text is a conflict."""
        first: dict[str, tuple[str, Value]] = {}
        for resource, name, text, value in answered:
            kept, _ = first.setdefault(name, (text, value))
            if kept != text:
                conflicts.append(Conflict(kind, name, kept, text, resource))
        return {name: value for name, (_, value) in first.items()}

    envs = first_wins(
        "environment variable",
        ((resource, name, text, text) for resource, answer in answers for name, text in answer.envs.items()),
    )
    mounts = first_wins(
        "mount",
        ((resource, it.container_path, it.host_path, it) for resource, answer in answers for it in answer.mounts),
    )
    devices = first_wins(
        "device",
        ((resource, it.container_path, it.host_path, it) for resource, answer in answers for it in answer.devices),
    )
    annotations = first_wins(
        "annotation",
        ((resource, name, text, text) for resource, answer in answers for name, text in answer.annotations.items()),
    )
    cdi_devices = dict.fromkeys(name for _, answer in answers for name in answer.cdi_devices)
    return ContainerOptions(
        envs, tuple(mounts.values()), tuple(devices.values()), annotations, tuple(cdi_devices), tuple(conflicts)
    )


def with_claims(options: ContainerOptions | None, cdi_devices: Iterable[str]) -> ContainerOptions:
    """Add the CDI names that a container gets from its claims (kubelet: `GetResources` of the container manager).

    `cdi_devices` comes from `DraManager.claim_devices` and goes before the names from plugins. Duplicates are kept, as
    in a kubelet (kubelet-dra.md 5). `options` is None if the container has no devices from plugins.
    """
    options = options or ContainerOptions()
    return evolve(options, cdi_devices=(*cdi_devices, *options.cdi_devices))
