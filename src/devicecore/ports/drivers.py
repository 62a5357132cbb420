"""Talk to DRA drivers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.drivers import DriverEvent, InstanceId
from devicecore.domain.dra.model import ClaimRef, ClaimUid

DriverListener = Callable[[DriverEvent], None]
"""Is called with events, from any thread; for one instance never from two threads at once.

If it raises a `DeviceCoreError` on `DriverRegistered`, the registration is refused with that sentence.
"""


class DriverTransport(Protocol):
    """The way to the drivers: they register and report health through it, and are called through it.

    An instance has a generation: a driver that registers again at the same endpoint is another instance. Its events
    begin with `DriverRegistered` and end with `DriverRemoved`. Every call ends within a finite time that the adapter is
    given at construction (a kubelet allows 45 seconds). An answer that comes later is lost.
    """

    def start(self, listener: DriverListener) -> None:
        """Begin to take registrations. Events may arrive before this returns.

        Raises:
            SetUpError: the adapter's sockets or directories cannot be used; nothing was left behind.
        """

    def stop(self) -> None:
        """Disconnect every driver, without events. Stopping twice, or before the start, is no error."""

    def prepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Ask a driver to prepare claims; its answer as it came, unchecked but for its size.

        Raises:
            DriverCallError: the call failed as a whole. `unanswered` is true unless the driver itself said so.
        """

    def unprepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Ask a driver to release claims; its answer as it came, unchecked but for its size.

        Raises:
            DriverCallError: the call failed as a whole. `unanswered` is true unless the driver itself said so.
        """
