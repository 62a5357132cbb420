"""The registered drivers, and the deletion of the slices of drivers that are no longer connected.

Law: slices are deleted only when that is due, one deletion of a driver's slices at a time, and no lock is held
meanwhile. A deletion that failed is tried again.
"""

import logging
import threading
from collections.abc import Callable

from attrs import evolve

from devicecore.domain.dra.drivers import DriverEvent, DriverRegistry, InstanceId, Wipe
from devicecore.domain.dra.errors import DraStoppedError, SliceError
from devicecore.domain.dra.model import DriverName
from devicecore.dra_manager.run import DraRun
from devicecore.ports.slices import ResourceSlices

_log = logging.getLogger(__name__)


class DriverList:
    """Owns the registry of driver instances."""

    def __init__(self, slices: ResourceSlices | None, clock: Callable[[], float]) -> None:
        self._slices = slices
        self._clock = clock
        self._lock = threading.Lock()  # held while `registry` is replaced, never while a port is called
        self._run: DraRun | None = None
        self.registry: DriverRegistry = DriverRegistry()
        """The current registry. It is an immutable value, so reading it needs no lock."""

    def start(self, run: DraRun) -> None:
        """Begin a run without drivers; the slices of all drivers are due to be deleted (kubelet-dra.md 11)."""
        with self._lock:
            self._run = run
            self.registry = DriverRegistry(wipes={None: Wipe(self._clock())})

    def stop(self) -> None:
        """End the run."""
        with self._lock:
            self._run = None

    def apply(self, run: DraRun, event: DriverEvent) -> tuple[DriverRegistry, DriverRegistry]:
        """Apply an event; the registry before it and the registry after it.

        Raises:
            DraStoppedError: the run is over; nothing was changed.
            DriverAlreadyRegisteredError: an instance registers at an endpoint where its driver is registered.
        """
        with self._lock:
            if self._run is not run:
                raise DraStoppedError
            before = self.registry
            self.registry = before.apply(event, self._clock())
            return before, self.registry

    def choose(self, driver: DriverName) -> InstanceId:
        """The instance that is called.

        Raises:
            DriverNotRegisteredError: there is none.
        """
        return self.registry.choose(driver)

    def wipe_slices(self, run: DraRun) -> dict[DriverName | None, SliceError]:
        """Delete the slices that are due to be deleted; the errors by driver. None stands for all drivers."""
        if self._slices is None:
            return {}
        failed: dict[DriverName | None, SliceError] = {}
        for driver in self.registry.due(self._clock()):
            wipe = self._begin(run, driver)
            if wipe is None:
                continue
            try:
                self._slices.delete(driver)
            except SliceError as error:
                _log.error("%s; it is tried again", error)
                failed[driver] = error
                self._fail(run, driver, wipe)
        return failed

    def _begin(self, run: DraRun, driver: DriverName | None) -> Wipe | None:
        """Take a wipe that is still due."""
        with self._lock:
            if self._run is not run:
                return None
            wipe = self.registry.wipes.get(driver) if driver in self.registry.due(self._clock()) else None
            self.registry = self.registry.wiped(driver)
            return wipe

    def _fail(self, run: DraRun, driver: DriverName | None, wipe: Wipe) -> None:
        with self._lock:
            registry = self.registry
            if self._run is run and (driver is None or not registry.is_connected(driver)):
                wipes = {**registry.wipes, driver: wipe.after_failure(self._clock())}
                self.registry = evolve(registry, wipes=wipes)
