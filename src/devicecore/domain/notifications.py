"""What the manager tells observers.

Law: each of these happens at least once. Whoever hears one twice has heard nothing new.
"""

from attrs import frozen

from devicecore.domain.ledger import Allocation
from devicecore.domain.model import PodUid


@frozen
class Allocated:
    """A container has been given devices. It is in the checkpoint, and its admission is about to be answered."""

    pod: PodUid
    allocation: Allocation


@frozen
class Released:
    """A container has lost its devices, for its pod is gone. They are about to be free."""

    pod: PodUid
    allocation: Allocation


@frozen
class HealthChanged:
    """Of a device that one of these pods holds, a plugin has reported another health, or any health for the first time.

    What it is, `domain.health.allocated_resources_status` tells.
    """

    pods: tuple[PodUid, ...]


Notification = Allocated | Released | HealthChanged
"""What an observer is called with."""
