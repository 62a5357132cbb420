"""The notifications that the manager sends to observers.

Law: an observer receives each notification at least once. The second of two equal notifications contains no new
information.
"""

from attrs import frozen

from devicecore.domain.ledger import Allocation
from devicecore.domain.model import DeviceId, Health, PodUid, ResourceName


@frozen
class Allocated:
    """Devices were allocated to a container.

    The checkpoint already contains this allocation. The admission is answered after the notification.
    """

    pod: PodUid
    allocation: Allocation


@frozen
class Released:
    """A container loses its devices because its pod is gone. The devices are not free yet."""

    pod: PodUid
    allocation: Allocation


@frozen
class HealthChanged:
    """A plugin reported changed health, or health for the first time, for a device that a pod holds.

    `pods` are the holders: one pod, unless a restored checkpoint gave the device to several pods.
    """

    resource: ResourceName
    device: DeviceId
    health: Health
    pods: tuple[PodUid, ...]


Notification = Allocated | Released | HealthChanged
"""The argument of an observer."""
