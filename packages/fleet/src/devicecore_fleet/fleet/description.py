"""The content of a fleet's file: groups of identical nodes, their devices, and what happens to them.

Law: the values are immutable and shared by the nodes of a group, so the descriptions of a thousand nodes need no more
memory than the description of one node. Only the content of ResourceSlices, which contains the node's name, is separate
for each node.
"""

import fnmatch
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from attrs import field, frozen
from devicecore_tools.node.settings import ManagerSettings

from devicecore.domain.dra.model import DriverName
from devicecore.domain.dra.slices import NUMA_NODE, PublishedDevice
from devicecore.domain.model import Device, DeviceId, Health, NumaNode, ResourceName
from devicecore.domain.topology import Topology

_PLACE = re.compile(r"\{(node|number)(?::0([1-9]))?\}")

Json = Mapping[str, object]

MAX_NODES = 5_000
"""The maximum number of nodes in a fleet: as many as Kubernetes supports in a cluster."""


def filled(pattern: str, number: int, node: str = "") -> str:
    """Return `pattern` with `{number}`, `{number:03}` and `{node}` replaced."""

    def value(found: re.Match[str]) -> str:
        return node if found[1] == "node" else str(number).zfill(int(found[2] or 0))

    return _PLACE.sub(value, pattern)


def filled_in(value: object, number: int, node: str) -> object:
    """Return parsed JSON in which `filled` was applied to all strings except keys.

    Raises ValueError if the string for a numeric attribute is not a number.
    """
    match value:
        case {"int": str(text), **others} if not others:
            return {"int": int(filled(text, number, node))}
        case str():
            return filled(value, number, node)
        case list():
            return [filled_in(item, number, node) for item in value]
        case dict():
            return {key: filled_in(item, number, node) for key, item in value.items()}
        case _:
            return value


@frozen
class DevicePattern:
    """`count` devices that differ only in their numbers.

    Attributes:
        name: the pattern of the devices' names.
        first: the number of the first device.
        numa: the NUMA nodes to which the devices are attached, in equal parts, or none if they have no topology.
        fields: for a DRA driver's devices, the fields in a ResourceSlice other than the name.
    """

    name: str
    count: int
    first: int = 0
    numa: tuple[int, ...] = ()
    fields: Json = field(factory=dict, repr=False, hash=False)

    def numbers(self) -> Iterator[tuple[int, int | None]]:
        """Yield the number and the NUMA node of each device."""
        for at in range(self.count):
            yield self.first + at, self.numa[at * len(self.numa) // self.count] if self.numa else None


@frozen
class PluginDescription:
    """A device plugin: its resource and its devices."""

    resource: ResourceName
    patterns: tuple[DevicePattern, ...]

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices, all healthy."""
        return tuple(
            Device(DeviceId(filled(pattern.name, number)), Health.HEALTHY, None if numa is None else (NumaNode(numa),))
            for pattern in self.patterns
            for number, numa in pattern.numbers()
        )


@frozen
class DriverDescription:
    """A DRA driver: its name, its devices and the counters that the devices share."""

    name: DriverName
    patterns: tuple[DevicePattern, ...]
    counters: tuple[Json, ...] = field(default=(), hash=False)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the devices."""
        return tuple(filled(pattern.name, number) for pattern in self.patterns for number, _ in pattern.numbers())

    def published(self, node: str) -> tuple[PublishedDevice, ...]:
        """Return the devices in the form of a node's ResourceSlices."""
        return tuple(
            PublishedDevice(filled(pattern.name, number), fields=_fields(pattern, number, numa, node))
            for pattern in self.patterns
            for number, numa in pattern.numbers()
        )


def _fields(pattern: DevicePattern, number: int, numa: int | None, node: str) -> Json:
    fields = {name: filled_in(value, number, node) for name, value in pattern.fields.items()}
    if numa is not None:
        attributes = fields.get("attributes")
        fields["attributes"] = {NUMA_NODE: {"int": numa}, **(attributes if isinstance(attributes, dict) else {})}
    return fields


@frozen
class BehaviorDescription:
    """The behavior of some pods' containers on a node.

    Attributes:
        pods: a pattern for the pods' names, or for `NAMESPACE/NAME`.
        labels: labels that a pod must have for the behavior to apply.
        says: the behavior, in the format of the annotation `devicecore.io/containers`.
    """

    pods: str
    labels: Mapping[str, str] = field(hash=False)
    says: str

    def fits(self, pod: Mapping[str, Any]) -> bool:
        """Return whether this behavior applies to a pod, which is an API object."""
        metadata = pod["metadata"]
        name = f"{metadata.get('namespace') or 'default'}/{metadata['name']}"
        name = name if "/" in self.pods else str(metadata["name"])
        return fnmatch.fnmatchcase(name, self.pods) and self.labels.items() <= (metadata.get("labels") or {}).items()


@frozen
class GroupDescription:
    """A group of identical nodes.

    Attributes:
        pattern: the pattern of the nodes' names.
        count: the number of nodes.
        first: the number of the first node.
        capacity: cpu, memory, pods and perhaps others, as quantities.
        directory: the pattern of each node's directory with sockets, or None for nodes without sockets.
        topology_objects: whether to publish a NodeResourceTopology for each node.
        annotations: annotations of each Node, where `{node}` stands for the node's name.
        provider_id: the provider id of each Node, where `{node}` stands for the node's name, or an empty string.
        containers: the behaviors of pods' containers. If several apply to a pod, the first one counts.
        managers: the CPU and memory managers and the machine, or None if the nodes have none.
        allocatable: how much of a resource pods may use, for resources where that is less than the capacity.
    """

    pattern: str
    count: int
    first: int
    capacity: Mapping[str, str] = field(hash=False)
    topology: Topology
    labels: Mapping[str, str] = field(factory=dict, hash=False)
    taints: tuple[Mapping[str, str], ...] = field(default=(), hash=False)
    plugins: tuple[PluginDescription, ...] = ()
    drivers: tuple[DriverDescription, ...] = ()
    directory: Path | None = None
    topology_objects: bool = False
    annotations: Mapping[str, str] = field(factory=dict, hash=False)
    provider_id: str = ""
    containers: tuple[BehaviorDescription, ...] = ()
    managers: ManagerSettings | None = field(default=None, hash=False)
    allocatable: Mapping[str, str] = field(factory=dict, hash=False)

    def said_of(self, pod: Mapping[str, Any]) -> str:
        """Return the behavior of a pod's containers in the form of an annotation, or an empty string."""
        return next((one.says for one in self.containers if one.fits(pod)), "")

    @property
    def title(self) -> str:
        """The group's name in commands: its pattern up to the number, such as `dgx` for `dgx-{number:03}`."""
        return self.pattern.partition("{")[0].rstrip("-.")

    @property
    def patterns(self) -> tuple[DevicePattern, ...]:
        """The devices of all of a node's plugins and drivers."""
        providers: tuple[PluginDescription | DriverDescription, ...] = (*self.plugins, *self.drivers)
        return tuple(pattern for one in providers for pattern in one.patterns)

    def node_names(self) -> Iterator[str]:
        """Yield the nodes' names."""
        return (filled(self.pattern, number) for number in range(self.first, self.first + self.count))


@frozen
class PlannedCommand:
    """A command that is sent to nodes at a certain time.

    Attributes:
        at: seconds after the start of the fleet.
        nodes: a name, or a pattern with `*`, `?` and `[...]`.
        command: the words of the command.
        lasts: seconds after which the command is undone, or None if it is not undone.
        every: seconds after which the command is repeated, or None.
    """

    at: float
    nodes: str
    command: tuple[str, ...]
    lasts: float | None = None
    every: float | None = None


@frozen
class FleetDescription:
    """The complete content of a fleet's file."""

    groups: tuple[GroupDescription, ...]
    commands: tuple[PlannedCommand, ...] = ()

    def nodes(self) -> Iterator[tuple[str, GroupDescription]]:
        """Yield each node's name and its group, in the order of the file."""
        return ((name, group) for group in self.groups for name in group.node_names())
