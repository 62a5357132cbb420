"""The registered drivers, and the deletion of disconnected drivers' slices.

Law: slices are deleted only when their deletion is due. A driver has at most one deletion at a time, and no lock is
held during a deletion. A failed deletion is retried.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from attrs import evolve

from devicecore.domain.dra.drivers import DriverEvent, DriverRegistry, InstanceId, Wipe
from devicecore.domain.dra.errors import DraStoppedError, SliceError
from devicecore.domain.dra.model import DriverName
from devicecore.ports.slices import ResourceSlices
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.run import Run

_log = logging.getLogger(__name__)


class DriverList:
    """Owns the registry of driver instances."""

    def __init__(self, slices: ResourceSlices | None, clock: Callable[[], float]) -> None:
        self._slices = slices
        self._clock = clock
        self._state = CurrentState(DriverRegistry(), DraStoppedError)

    @property
    def registry(self) -> DriverRegistry:
        """The current registry: an immutable value, which can be read without a lock."""
        return self._state.value

    def begin(self, run: Run) -> None:
        """Begin a run without drivers, and schedule the deletion of all drivers' slices (kubelet-dra.md 11).

        Raises DraStoppedError if the run was stopped in the meantime.
        """
        self._state.begin(run, DriverRegistry(wipes={None: Wipe(self._clock())}))

    def end(self) -> None:
        """End the run."""
        self._state.end()

    def apply(self, run: Run, event: DriverEvent) -> tuple[DriverRegistry, DriverRegistry]:
        """Apply an event. Return the registry before the event and the registry after it.

        Raises DraStoppedError if the run is over, and DriverAlreadyRegisteredError if an instance registers at an
        endpoint at which its driver is already registered. After an error, nothing has changed.
        """
        now = self._clock()
        return self._state.replace(lambda registry: registry.apply(event, now), run=run)

    def choose(self, driver: DriverName) -> InstanceId:
        """Return the instance of `driver` to call. Raises DriverNotRegisteredError if the driver has no instance."""
        return self.registry.choose(driver)

    def wipe_slices(self, run: Run) -> dict[DriverName | None, SliceError]:
        """Carry out the deletions that are due. Return the errors by driver, where None means all drivers."""
        failed: dict[DriverName | None, SliceError] = {}
        if self._slices is not None:
            with suppress(DraStoppedError):  # the run was stopped in the meantime, so nothing is due any longer
                self._wipe_slices(run, self._slices, failed)
        return failed

    def _wipe_slices(self, run: Run, slices: ResourceSlices, failed: dict[DriverName | None, SliceError]) -> None:
        for driver in self.registry.due(self._clock()):
            now = self._clock()
            before, after = self._state.replace(partial(_with_wipe_begun, driver, now), run=run)
            if before is after:
                continue
            try:
                slices.delete(driver)
            except SliceError as error:
                _log.error("%s; the deletion will be retried", error)
                failed[driver] = error
                again = before.wipes[driver].after_failure(self._clock())
                self._state.replace(partial(_with_wipe_failed, driver, again), run=run)


def _with_wipe_begun(driver: DriverName | None, now: float, registry: DriverRegistry) -> DriverRegistry:
    """Return the registry without a wipe that is about to start.

    If the wipe is no longer due, return the registry unchanged.
    """
    return registry.wiped(driver) if driver in registry.due(now) else registry


def _with_wipe_failed(driver: DriverName | None, again: Wipe, registry: DriverRegistry) -> DriverRegistry:
    if driver is not None and registry.is_connected(driver):
        return registry
    return evolve(registry, wipes={**registry.wipes, driver: again})
