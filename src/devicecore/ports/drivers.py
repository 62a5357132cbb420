"""Talks to DRA drivers.

Law: a driver instance's events arrive one at a time and start with `DriverRegistered`. Unless the transport is stopped,
they end with `DriverRemoved`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.drivers import DriverEvent, InstanceId
from devicecore.domain.dra.model import ClaimRef, ClaimUid

DriverListener = Callable[[DriverEvent], None]
"""Receives events. Calls may come from any thread, but only one at a time for each driver instance.

If the listener raises a `DeviceCoreError` for `DriverRegistered`, the transport refuses the registration with the
error's text.
"""


class DriverTransport(Protocol):
    """Connects the DRA manager to drivers: accepts registrations and health reports, and makes calls.

    A driver that registers again at the same endpoint is a new instance, with a larger generation. Each call ends
    within the limit that the adapter was given at construction (a kubelet allows 45 seconds). A later answer is
    ignored.
    """

    def start(self, listener: DriverListener) -> None:
        """Begin to accept registrations. Events may arrive before this method returns.

        Raises:
            SetUpError: the adapter's sockets or directories cannot be used; nothing was left behind.
        """

    def stop(self) -> None:
        """Disconnect every driver without reporting events.

        Stopping a second time, or before the start, is not an error.
        """

    def prepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        """Ask a driver to prepare claims. Return the driver's answer, of which only the size is checked.

        Raises:
            DriverCallError: the call as a whole failed. `unanswered` is false only if the driver itself reported the
                failure, or if the call did not reach the driver.
        """

    def unprepare(self, instance: InstanceId, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        """Ask a driver to release claims. Return the driver's answer, of which only the size is checked.

        Raises:
            DriverCallError: the call as a whole failed. `unanswered` is false only if the driver itself reported the
                failure, or if the call did not reach the driver.
        """
