"""What a fleet's file says: groups of nodes that are alike, their devices, and what happens to them.

Law: the values are immutable, and the nodes of a group share theirs, so the descriptions of a thousand nodes need no
more memory than that of one. What a node publishes in ResourceSlices has its name, and is its own.
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
"""Nodes of a fleet: as many as Kubernetes supports in a cluster."""


def filled(pattern: str, number: int, node: str = "") -> str:
    """Return a string in which `{number}`, `{number:03}` and `{node}` are replaced."""

    def value(found: re.Match[str]) -> str:
        return node if found[1] == "node" else str(number).zfill(int(found[2] or 0))

    return _PLACE.sub(value, pattern)


def filled_in(value: object, number: int, node: str) -> object:
    """Return parsed JSON in whose texts, and not in whose keys, the same is replaced.

    Raises ValueError if a string that stands for the number of an attribute is none.
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
    """`count` devices that differ in their number only.

    Attributes:
        name: the pattern of their names.
        first: the number of the first.
        numa: the NUMA nodes to which they are attached, in equal parts, or none if they have no topology.
        fields: of a DRA driver's devices, what a ResourceSlice says about them next to their names.
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
    """A DRA driver: its name, its devices and the counters that they share."""

    name: DriverName
    patterns: tuple[DevicePattern, ...]
    counters: tuple[Json, ...] = field(default=(), hash=False)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the devices."""
        return tuple(filled(pattern.name, number) for pattern in self.patterns for number, _ in pattern.numbers())

    def published(self, node: str) -> tuple[PublishedDevice, ...]:
        """Return the devices as ResourceSlices of a node have them."""
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
    """What the containers of some pods would do on a node.

    Attributes:
        pods: their names, or `NAMESPACE/NAME`, as a pattern.
        labels: labels that they all have.
        says: what the annotation of a pod would say.
    """

    pods: str
    labels: Mapping[str, str] = field(hash=False)
    says: str

    def fits(self, pod: Mapping[str, Any]) -> bool:
        """Whether it is about a pod, which is an object of the API."""
        metadata = pod["metadata"]
        name = f"{metadata.get('namespace') or 'default'}/{metadata['name']}"
        name = name if "/" in self.pods else str(metadata["name"])
        return fnmatch.fnmatchcase(name, self.pods) and self.labels.items() <= (metadata.get("labels") or {}).items()


@frozen
class GroupDescription:
    """Nodes that are alike.

    Attributes:
        pattern: of their names.
        count: how many.
        first: the number of the first.
        capacity: cpu, memory, pods and perhaps others, as quantities.
        directory: where each node's own directory with sockets is; None for nodes without sockets.
        topology_objects: whether a NodeResourceTopology is published of each.
        annotations: of each Node; `{node}` is its name.
        provider_id: of each Node, with `{node}`; empty for none.
        containers: what the containers of pods would do. Of several that fit a pod, the first counts.
        managers: the managers of CPUs and memory, and the machine, or None if the nodes have none.
        allocatable: what pods may have of the capacity, where that is less.
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
        """Return what the containers of a pod would do, as its annotation would say it; empty for nothing."""
        return next((one.says for one in self.containers if one.fits(pod)), "")

    @property
    def title(self) -> str:
        """What commands call the group: its pattern up to the number, such as `dgx` of `dgx-{number:03}`."""
        return self.pattern.partition("{")[0].rstrip("-.")

    @property
    def patterns(self) -> tuple[DevicePattern, ...]:
        """The devices of all plugins and drivers of a node."""
        providers: tuple[PluginDescription | DriverDescription, ...] = (*self.plugins, *self.drivers)
        return tuple(pattern for one in providers for pattern in one.patterns)

    def node_names(self) -> Iterator[str]:
        """Yield the names of the nodes."""
        return (filled(self.pattern, number) for number in range(self.first, self.first + self.count))


@frozen
class PlannedCommand:
    """A command to nodes at a time.

    Attributes:
        at: seconds after the start of the fleet.
        nodes: a name, or a pattern with `*`, `?` and `[...]`.
        command: what happens to each of them, in words.
        lasts: seconds after which it is undone, or None if it stays.
        every: seconds after which it happens again; None for once.
    """

    at: float
    nodes: str
    command: tuple[str, ...]
    lasts: float | None = None
    every: float | None = None


@frozen
class FleetDescription:
    """All that a file says."""

    groups: tuple[GroupDescription, ...]
    commands: tuple[PlannedCommand, ...] = ()

    def nodes(self) -> Iterator[tuple[str, GroupDescription]]:
        """Yield each node's name and its group, in the order of the file."""
        return ((name, group) for group in self.groups for name in group.node_names())
