"""What a pod lacks on a node, as the scheduler of the demo counts it.

Law: a resource is lacking if and only if fewer of it are free than the pod needs at its peak.
"""

from collections.abc import Mapping

from attrs import frozen

from devicecore.domain.capacity import pod_request
from devicecore.domain.model import Pod, ResourceName, is_extended_resource


@frozen
class Insufficient:
    """The shortage of one resource for a pod, in the scheduler's words; all numbers are counts."""

    resource: ResourceName
    requested: int
    used: int
    capacity: int

    def __str__(self) -> str:
        return f"Insufficient {self.resource}"


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
