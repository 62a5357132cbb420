"""The amount of each resource that a node has and offers, and the amount that a pod needs.

Law: in a `NodeStatus`, allocatable never exceeds capacity, and `sanitize_allocatable` never lowers a number.
"""

from collections.abc import Mapping

from attrs import field, frozen

from devicecore.domain.model import Container, Pod, ResourceName


@frozen
class NodeStatus:
    """The counts of a node's device resources, and the resources that the node no longer has (kubelet.md 3.6).

    `removed` is sorted, and names a resource only in the status in which the resource disappears.
    """

    capacity: Mapping[ResourceName, int] = field(factory=dict)
    allocatable: Mapping[ResourceName, int] = field(factory=dict)
    removed: tuple[ResourceName, ...] = ()


def sanitize_allocatable(
    allocatable: Mapping[ResourceName, int], in_use: Mapping[ResourceName, int]
) -> dict[ResourceName, int]:
    """Return `allocatable`, raised to the number of devices in use (kubelet: `UpdatePluginResources`, kubelet.md 8.1).

    A pod that already holds devices then passes the general resource check even while the plugin is gone.
    """
    raised = {resource: max(count, allocatable.get(resource, 0)) for resource, count in in_use.items()}
    return {**allocatable, **raised}


def pod_request(pod: Pod) -> dict[str, int]:
    """Return how many devices of each resource the pod needs at its peak (kubelet: `PodLimits`, kubelet.md 6.4).

    Sidecars keep running alongside all later init containers and the app containers.
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


def _sum(counts: Mapping[str, int], container: Container) -> dict[str, int]:
    added = {name: counts.get(name, 0) + count for name, count in container.limits.items()}
    return {**counts, **added}


def _larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
