"""The health of the devices of drivers, in memory and in its store.

Law: what drivers report counts even if it cannot be saved, because the file only bridges a restart.
"""

import logging
import threading
from collections.abc import Callable, Sequence

from devicecore.domain.dra.errors import DraStoppedError
from devicecore.domain.dra.health import HealthCache, HealthUpdate, ReportedHealth
from devicecore.domain.dra.health_file import decode, encode
from devicecore.domain.dra.model import DriverName
from devicecore.domain.errors import CheckpointError, StoreError
from devicecore.domain.text import counted, foreign_text
from devicecore.dra_manager.run import DraRun
from devicecore.ports.store import CheckpointStore

_log = logging.getLogger(__name__)


class HealthRecord:
    """Owns the health cache and its store. `wall_clock` returns nanoseconds since 1970."""

    def __init__(self, store: CheckpointStore | None, wall_clock: Callable[[], int]) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._lock = threading.Lock()  # held while the store is called, so that no older health is saved last
        self._too_large: set[DriverName] = set()  # drivers of which devices are forgotten, which is logged once
        self._run: DraRun | None = None
        self.cache: HealthCache = HealthCache()
        """The current health. It is an immutable value, so reading it needs no lock."""

    @property
    def now(self) -> int:
        """Nanoseconds since 1970."""
        return self._wall_clock()

    def start(self, run: DraRun) -> None:
        """Begin a run with the health that was saved. A file that cannot be used counts as empty, as in a kubelet."""
        with self._lock:
            self._run, self.cache = run, self._read()

    def stop(self) -> None:
        """End the run. After that nothing is saved, because the store may soon belong to another manager."""
        with self._lock:
            self._run = None

    def report(self, run: DraRun, driver: DriverName, devices: Sequence[ReportedHealth]) -> HealthUpdate:
        """Store a report. If it changes the health of a device, it is saved.

        Raises:
            DraStoppedError: the run is over; nothing was changed.
        """
        with self._lock:
            self._check(run)
            update = self.cache.report(driver, devices, self.now)
            self.cache = update.cache
            if update.changed:
                self._save()
            is_new = update.forgotten and driver not in self._too_large
            (self._too_large.add if update.forgotten else self._too_large.discard)(driver)
        if is_new:
            count = counted(update.forgotten, "device")
            _log.warning(
                "the health of %s of %s is not kept, because its reports are too large", count, foreign_text(driver)
            )
        return update

    def clear(self, run: DraRun, driver: DriverName) -> None:
        """Forget the health of a driver's devices.

        Raises:
            DraStoppedError: the run is over; nothing was changed.
        """
        with self._lock:
            self._check(run)
            self.cache = self.cache.cleared(driver)
            self._too_large.discard(driver)
            self._save()

    def _check(self, run: DraRun) -> None:
        if self._run is not run:
            raise DraStoppedError

    def _save(self) -> None:
        if self._store is None:
            return
        try:
            self._store.save(encode(self.cache))
        except (StoreError, CheckpointError) as error:
            _log.error("%s; the health of devices is saved with the next report", error)

    def _read(self) -> HealthCache:
        if self._store is None:
            return HealthCache()
        try:
            blob = self._store.load()
            return HealthCache() if blob is None else decode(blob)
        except (StoreError, CheckpointError) as error:
            _log.error("%s; the health of devices is not restored", error)
            return HealthCache()
