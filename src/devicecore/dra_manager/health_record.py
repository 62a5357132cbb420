"""The health of drivers' devices, in memory and in the store.

Law: a driver's report counts even if it cannot be saved, because the saved health is needed only after a restart.
"""

import logging
from collections.abc import Callable, Sequence

from devicecore.domain.dra.errors import DraStoppedError
from devicecore.domain.dra.health import HealthCache, HealthUpdate, ReportedHealth
from devicecore.domain.dra.health_file import decode, encode
from devicecore.domain.dra.model import DriverName
from devicecore.domain.errors import CheckpointError, StoreError
from devicecore.domain.text import counted, foreign_text
from devicecore.ports.store import CheckpointStore
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.run import Run
from devicecore.runtime.saved_state import SavedState
from devicecore.runtime.saver_thread import SaverThread

_log = logging.getLogger(__name__)


class HealthRecord:
    """The health of devices, as a cache in memory and in a store. `wall_clock` returns nanoseconds since 1970."""

    def __init__(
        self, store: CheckpointStore | None, wall_clock: Callable[[], int], saver: SaverThread | None = None
    ) -> None:
        self._wall_clock = wall_clock
        self._state = CurrentState(HealthCache(), DraStoppedError)
        self._saved = SavedState(store, self._state, encode, saver=saver) if store else None
        self._too_large: set[DriverName] = set()  # drivers with forgotten devices; each driver is logged once

    @property
    def cache(self) -> HealthCache:
        """The current health: an immutable value, which can be read without a lock."""
        return self._state.value

    @property
    def now(self) -> int:
        """Nanoseconds since 1970."""
        return self._wall_clock()

    def begin(self, run: Run) -> None:
        """Begin a run with the health in the store.

        If the stored health is unusable, the run begins without stored health, as in a kubelet.

        Raises DraStoppedError if the run was stopped in the meantime.
        """
        (self._saved or self._state).begin(run, self._read())

    def end(self) -> None:
        """End the run. Nothing is saved afterwards, because the store may soon belong to another manager."""
        (self._saved or self._state).end()

    def check_call(self, method: str) -> None:
        """Raise CalledFromInsideError if `method` is called from inside the store."""
        if self._saved:
            self._saved.check_call(method)

    def report(self, run: Run, driver: DriverName, devices: Sequence[ReportedHealth]) -> HealthUpdate:
        """Store a report.

        If the report changes the health of a device, the change is saved. Raises DraStoppedError if the run is over.
        """
        now = self.now
        update = self._state.take(lambda cache: _with_cache(cache.report(driver, devices, now)), run=run)
        if update.changed:
            self._save()
        is_new = update.forgotten and driver not in self._too_large
        if update.forgotten:
            self._too_large.add(driver)
        else:
            self._too_large.discard(driver)
        if is_new:
            count = counted(update.forgotten, "device")
            _log.warning(
                "the health of %s of %s is not kept, because the driver's reports are too large",
                count,
                foreign_text(driver),
            )
        return update

    def clear(self, run: Run, driver: DriverName) -> None:
        """Forget the health of a driver's devices. Raises DraStoppedError if the run is over."""
        self._state.replace(lambda cache: cache.cleared(driver), run=run)
        self._too_large.discard(driver)
        self._save()

    def _save(self) -> None:
        if self._saved:
            self._saved.request()

    def _read(self) -> HealthCache:
        if self._saved is None:
            return HealthCache()
        try:
            blob = self._saved.load()
            return HealthCache() if blob is None else decode(blob)
        except (StoreError, CheckpointError) as error:
            _log.error("%s; the health of devices is not restored", error)
            return HealthCache()


def _with_cache(update: HealthUpdate) -> tuple[HealthCache, HealthUpdate]:
    return update.cache, update
