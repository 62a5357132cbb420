"""How much of each resource a node has, offers, and lacks.

Law: allocatable never exceeds capacity, and `sanitize_allocatable` never lowers a number.
"""

from collections.abc import Mapping

from attrs import field, frozen

from devicecore.domain.model import Container, Pod, ResourceName, is_extended_resource


@frozen
class NodeStatus:
    """Counts of a node's device resources, and the resources it no longer has (kubelet.md 3.6).

    `removed` is sorted. It names a resource once: in the status in which the resource disappears.
    """

    capacity: Mapping[ResourceName, int] = field(factory=dict)
    allocatable: Mapping[ResourceName, int] = field(factory=dict)
    removed: tuple[ResourceName, ...] = ()


@frozen
class Insufficient:
    """The shortage of one resource for a pod, in the scheduler's words; all numbers are counts."""

    resource: ResourceName
    requested: int
    used: int
    capacity: int

    def __str__(self) -> str:
        return f"Insufficient {self.resource}"


def sanitize_allocatable(
    allocatable: Mapping[ResourceName, int], in_use: Mapping[ResourceName, int]
) -> dict[ResourceName, int]:
    """Raise `allocatable` to the devices in use if it is lower (kubelet: `UpdatePluginResources`, kubelet.md 8.1).

    So a pod that already holds devices passes the general resource check while their plugin is away.
    """
    raised = {resource: max(count, allocatable.get(resource, 0)) for resource, count in in_use.items()}
    return {**allocatable, **raised}


def pod_request(pod: Pod) -> dict[str, int]:
    """Return how many of each resource the pod needs at its peak (kubelet: `PodLimits`, kubelet.md 6.4).

    Sidecars continue to run beside all later init containers and beside the app containers.
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.init_containers:
        together = _sum(running, container)
        peak = _larger(peak, together)
        if container.restartable:
            running = together
    for container in pod.containers:
        running = _sum(running, container)
    return _larger(peak, running)


def insufficient(
    pod: Pod, allocatable: Mapping[ResourceName, int], used: Mapping[ResourceName, int]
) -> tuple[Insufficient, ...]:
    """Return the extended resources of which too few are free for `pod`, by name, as the scheduler counts them."""
    return tuple(
        Insufficient(name, count, used.get(name, 0), allocatable.get(name, 0))
        for resource, count in sorted(pod_request(pod).items())
        if is_extended_resource(resource)
        and (name := ResourceName(resource))
        and count > allocatable.get(name, 0) - used.get(name, 0)
        and count > 0
    )


def _sum(counts: Mapping[str, int], container: Container) -> dict[str, int]:
    added = {name: counts.get(name, 0) + count for name, count in container.limits.items()}
    return {**counts, **added}


def _larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
