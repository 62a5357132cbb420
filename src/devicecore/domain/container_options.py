"""What a container needs to use its devices.

Law: if two answers disagree about a name or path, the first one counts, and the disagreement is reported. Resources are
visited in the order of their names.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from attrs import evolve, field, frozen

from devicecore.domain.model import ResourceName


@frozen
class Mount:
    """A path of the host that the container sees under another path."""

    container_path: str
    host_path: str
    read_only: bool = False


@frozen
class DeviceSpec:
    """A device node. `permissions` are letters of `r`, `w` and `m`."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@frozen
class ContainerAllocateResponse:
    """A plugin's answer to Allocate for one container. `cdi_devices` are fully qualified CDI names."""

    envs: Mapping[str, str] = field(factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    annotations: Mapping[str, str] = field(factory=dict)
    cdi_devices: tuple[str, ...] = ()


@frozen
class Conflict:
    """Two answers that disagree about one `name`: a variable, an annotation or a container path. The first was kept."""

    kind: str
    name: str
    kept: str
    dropped: str
    resource: ResourceName

    def __str__(self) -> str:
        return f"{self.kind} {self.name} stays {self.kept!r}, because {self.dropped!r} of {self.resource} came later"


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
    """Merge the answers of the plugins of a container's resources (kubelet: `deviceRunContainerOptions`)."""
    answers = sorted(responses.items())
    conflicts: list[Conflict] = []

    def first_wins(kind: str, answered: Iterable[tuple[ResourceName, str, str, Value]]) -> dict[str, Value]:
        """Return the first value under each name. A later one that has another text is a conflict."""
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
    """Add the CDI names that a container gets of its claims (kubelet: `GetResources` of the container manager).

    Args:
        options: what the plugins answered; None if the container has none of their devices.
        cdi_devices: the names of claims, as `DraManager.claim_devices` returns them.

    Returns:
        The options with the names of claims before those of plugins. None is left out, even if it is there twice, as in
        a kubelet (kubelet-dra.md 5).
    """
    options = options or ContainerOptions()
    return evolve(options, cdi_devices=(*cdi_devices, *options.cdi_devices))
