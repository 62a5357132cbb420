"""The claims of the node, in memory and in the store.

Law: a change of the claims is in the store before a reader can see it; if it cannot be saved, it is not made. Only the
phases of claims change without a save, because a kubelet does not save them either.
"""

import logging
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from attrs import frozen

from devicecore.domain.dra.claims import ClaimCache
from devicecore.domain.dra.errors import DraStoppedError, SaveClaimsError
from devicecore.domain.dra.state_file import StateWriter, decode
from devicecore.domain.errors import CheckpointError, DeviceCoreError, StoreError
from devicecore.dra_manager.run import DraRun
from devicecore.ports.store import CheckpointStore

_log = logging.getLogger(__name__)


@frozen
class RestoredClaims:
    """What a DRA manager found in its store when it started.

    If the file could not be used, `problem` says why and `set_aside` where it was put.
    """

    claims: int = 0
    problem: DeviceCoreError | None = None
    set_aside: str | None = None


class _Step(Protocol):
    @property
    def cache(self) -> ClaimCache: ...


Step = TypeVar("Step", bound=_Step)


class SavedClaims:
    """Owns the claim cache and its store."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._lock = threading.Lock()  # held while the store is called, so that no older cache is saved last
        self._writer = StateWriter()
        self._stored: bytes | None = None  # None if the content of the store is not known
        self._run: DraRun | None = None
        self.cache: ClaimCache = ClaimCache()
        """The current claims. It is an immutable value, so reading it needs no lock."""

    def start(self, run: DraRun) -> RestoredClaims:
        """Begin a run with the claims of the store.

        Raises:
            StoreError: the file cannot be used, and it cannot be set aside.
        """
        with self._lock:
            cache, restored = self._read()
            self._run, self._stored, self.cache = run, None, cache
        return restored

    def stop(self) -> None:
        """End the run. After that nothing is saved, because the store may soon belong to another manager."""
        with self._lock:
            self._run = None

    def run(self) -> DraRun:
        """The run that is under way.

        Raises:
            DraStoppedError: there is none.
        """
        run = self._run
        if run is None:
            raise DraStoppedError
        return run

    def save(self, run: DraRun, what: str, change: Callable[[ClaimCache], Step]) -> Step:
        """Make a change durable, and then visible. If the file would stay the same, it is not written.

        Raises:
            DraStoppedError: the run is over; nothing was changed.
            SaveClaimsError: it cannot be saved; nothing was changed. Its text contains `what`.
        """
        with self._lock:
            step = self._next(run, change)
            blob = self._writer.encode(step.cache)
            if blob != self._stored:
                self._stored = None
                try:
                    self._store.save(blob)
                except StoreError as error:
                    raise SaveClaimsError(what, error.cause) from error
                self._stored = blob
            self.cache = step.cache
        return step

    def note(self, run: DraRun, change: Callable[[ClaimCache], Step]) -> Step:
        """Make a change of phases visible.

        Raises:
            DraStoppedError: the run is over; nothing was changed.
        """
        with self._lock:
            step = self._next(run, change)
            self.cache = step.cache
        return step

    def _next(self, run: DraRun, change: Callable[[ClaimCache], Step]) -> Step:
        if self._run is not run:
            raise DraStoppedError
        return change(self.cache)

    def _read(self) -> tuple[ClaimCache, RestoredClaims]:
        try:
            blob = self._store.load()
            cache = ClaimCache() if blob is None else decode(blob).cache
        except (StoreError, CheckpointError) as error:
            set_aside = self._store.set_aside()
            _log.error("%s; it is kept as %s, and no claims are restored", error, set_aside)
            return ClaimCache(), RestoredClaims(problem=error, set_aside=set_aside)
        return cache, RestoredClaims(len(cache.claims))
