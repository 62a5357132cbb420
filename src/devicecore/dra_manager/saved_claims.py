"""The claims of the node, in memory and in the store.

Law: a change to the claims is in the store before a reader can see it. A change that cannot be saved has no effect.
Only the phases of claims change without a save, because a kubelet does not save phases either.
"""

import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from attrs import frozen

from devicecore.domain.dra.claims import ClaimCache
from devicecore.domain.dra.errors import DraStoppedError, SaveClaimsError
from devicecore.domain.dra.state_file import StateWriter, decode
from devicecore.domain.errors import CheckpointError, DeviceCoreError, StoreError
from devicecore.ports.store import CheckpointStore
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.run import Run
from devicecore.runtime.saved_state import SavedState, drop_frames

_log = logging.getLogger(__name__)


@frozen
class RestoredClaims:
    """What a DRA manager found in its store when it started.

    If the file could not be used, `problem` says why, and `set_aside` says where the file was put.
    """

    claims: int = 0
    problem: DeviceCoreError | None = None
    set_aside: str | None = None


class _Step(Protocol):
    @property
    def cache(self) -> ClaimCache: ...


Step = TypeVar("Step", bound=_Step)


class SavedClaims:
    """The claim cache and its store.

    A change is a function that takes a cache and returns a step; the step contains the next cache.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._state = CurrentState(ClaimCache(), DraStoppedError)
        self._saved = SavedState(store, self._state, StateWriter().encode, _have_same_entries, uses_thread=False)

    @property
    def cache(self) -> ClaimCache:
        """The current claims: an immutable value, which can be read without a lock."""
        return self._state.value

    def begin(self, run: Run) -> RestoredClaims:
        """Begin a run with the claims in the store.

        Raises StoreError if the file can be neither used nor set aside, and DraStoppedError if the run was stopped.
        """
        cache, restored = self._read(run)
        self._saved.begin(run, cache)
        return restored

    def end(self) -> None:
        """End the run. Nothing is saved afterwards, because the store may soon belong to another manager."""
        self._saved.end()

    def run(self) -> Run:
        """Return the current run. Raises DraStoppedError if no run is in progress."""
        return self._state.current_run()

    def check_call(self, method: str) -> None:
        """Raise CalledFromInsideError if `method` is called from inside the store."""
        self._saved.check_call(method)

    def save(self, run: Run, what: str, change: Callable[[ClaimCache], Step]) -> Step:
        """Save a change, and then make it visible.

        If the stored claims would not change, nothing is written.

        Raises DraStoppedError if the run is over, and SaveClaimsError with `what` if the change cannot be saved. After
        an error, nothing has changed.
        """
        try:
            return self._saved.commit(run, lambda cache: _with_cache(change(cache)))
        except StoreError as error:
            raise SaveClaimsError(what, error.cause) from error

    def note(self, run: Run, change: Callable[[ClaimCache], Step]) -> Step:
        """Make a change to the phases of claims visible, without saving it.

        Raises DraStoppedError if the run is over.
        """
        return self._state.take(lambda cache: _with_cache(change(cache)), run=run)

    def _read(self, run: Run) -> tuple[ClaimCache, RestoredClaims]:
        try:
            blob = self._saved.load()
            cache = ClaimCache() if blob is None else decode(blob).cache
        except (StoreError, CheckpointError) as error:
            set_aside = self._saved.set_aside(run)
            _log.error("%s; it is kept as %s, and no claims are restored", error, set_aside)
            drop_frames(error)
            return ClaimCache(), RestoredClaims(problem=error, set_aside=set_aside)
        return cache, RestoredClaims(len(cache.claims))


def _have_same_entries(one: ClaimCache, other: ClaimCache) -> bool:
    return one.entries is other.entries


def _with_cache(step: Step) -> tuple[ClaimCache, Step]:
    return step.cache, step
