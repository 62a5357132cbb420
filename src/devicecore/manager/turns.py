"""One admission at a time for each pod, and the NUMA affinity chosen for a pod as a whole.

Law: a turn ends with the call that began it. If an interrupt keeps that call from ending its turn, the next call that
needs the turn ends it. The end of a turn releases every reservation that the admission did not commit.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from queue import Empty, SimpleQueue
from weakref import ref

from attrs import define, evolve

from devicecore.domain.errors import AdmissionTimeoutError, CalledFromInsideError
from devicecore.domain.model import NumaNode, PodUid
from devicecore.domain.node_state import NodeState
from devicecore.manager.current_state import CurrentState
from devicecore.manager.open_call import OpenCall

Affinity = Collection[NumaNode] | None
"""The NUMA nodes that devices should come from; None if there is no preference."""

_LOOK_AGAIN = 1.0  # seconds after which a waiting admission checks whether the turn before it was abandoned


class _Witness(set[PodUid]):
    """A set to which each pod is added whose admission begins. Unlike a plain set it can have weak references."""


@define(eq=False)
class Turn:
    """The admission of one pod, from its beginning to its end."""

    pod: PodUid
    call: OpenCall


class Turns:
    """Owns the turns and the affinities. The lock is held while they are looked up or written.

    The end of a turn takes the state lock while this lock is held; this lock is never taken while the state lock is
    held. No plugin, store, sink or pod source is called while it is held.
    """

    def __init__(self, state: CurrentState) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._open: dict[PodUid, Turn] = {}
        self._waiting: set[SimpleQueue[None]] = set()
        self._witnesses: list[ref[_Witness]] = []  # weak, because an interrupted caller does not remove its own
        self._affinities: dict[PodUid, Affinity] = {}

    def begin(self, pod: PodUid, call: OpenCall, patience: float) -> Turn:
        """Begin the turn of `pod` that ends with `call`, as soon as no other turn of the pod is open.

        Raises:
            AdmissionTimeoutError: another one was open for `patience` seconds of real time.
            CalledFromInsideError: this call is made from inside the open turn, so it would wait for itself.
        """
        turn = Turn(pod, call)
        if self._open:
            self._end_abandoned(of_thread=call.thread)
        if self._has_begun(turn):
            return turn
        until = time.monotonic() + patience
        ended = SimpleQueue[None]()
        self._waiting.add(ended)
        try:
            while not self._has_begun(turn):
                left = until - time.monotonic()
                if left <= 0:
                    raise AdmissionTimeoutError(pod, patience)
                try:
                    ended.get(timeout=min(left, _LOOK_AGAIN))
                except Empty:
                    self._end_abandoned()
            return turn
        finally:
            self._waiting.discard(ended)

    def end(self, turn: Turn) -> None:
        """End a turn: release its reservations, and let the next admission begin. A second call does nothing."""
        pod = turn.pod
        with self._lock:
            if self._open.get(pod) is not turn:
                return
            ledger = self._state.value.ledger
            if ledger.reservations:
                self.give_back(pod)
            if pod in self._affinities and pod not in ledger.allocations:
                del self._affinities[pod]
            del self._open[pod]
        turn.call.end()
        if self._waiting:
            for ended in tuple(self._waiting):
                ended.put(None)

    def give_back(self, pod: PodUid) -> None:
        """Give back what was reserved in the turn of `pod`. Only its admission calls this, or what ends its turn."""
        if any(reservation.key.pod == pod for reservation in self._state.value.ledger.reservations):
            self._state.replace(lambda state: _given_back(state, pod))

    def end_abandoned(self) -> None:
        """End every turn whose call was interrupted so early or so late that it could not end it."""
        if self._open:
            self._end_abandoned()

    def admitting(self) -> AbstractSet[PodUid]:
        """The pods in admission now, and every pod whose admission begins while the caller keeps this set."""
        seen = _Witness()
        with self._lock:
            seen.update(self._open)
            self._witnesses = [witness for witness in self._witnesses if witness() is not None]
            self._witnesses.append(ref(seen))
        return seen

    def affinity(self, pod: PodUid, choose: Callable[[], Affinity], *, anew: bool) -> Affinity:
        """The affinity chosen for a pod in its turn. If there is none, or it is to be chosen anew, `choose` is called.

        `choose` asks hint providers, so it is called without the lock.
        """
        with self._lock:
            if pod in self._affinities and not anew:
                return self._affinities[pod]
        affinity = choose()
        with self._lock:
            self._affinities[pod] = affinity
        return affinity

    def forget(self, pods: Iterable[PodUid]) -> None:
        """Forget the affinities of pods that are gone. A pod in admission has one that is in use."""
        with self._lock:
            for pod in self._affinities.keys() & {*pods} - self._open.keys():
                del self._affinities[pod]

    def _has_begun(self, turn: Turn) -> bool:
        with self._lock:
            other = self._open.get(turn.pod)
            if other is None:
                self._open[turn.pod] = turn
                for witness in self._witnesses:
                    if (seen := witness()) is not None:
                        seen.add(turn.pod)
                return True
        if other.call.encloses_caller:
            method = f'admitting pod "{turn.pod}"'
            raise CalledFromInsideError(method, "the admission of the same pod")
        return False

    def _end_abandoned(self, of_thread: int | None = None) -> None:
        for turn in tuple(self._open.values()):
            if of_thread in {None, turn.call.thread} and turn.call.has_ended:
                self.end(turn)


def _given_back(state: NodeState, pod: PodUid) -> NodeState:
    """The state without reservations of `pod`."""
    ledger = state.ledger
    for reservation in ledger.reservations:
        if reservation.key.pod == pod:
            ledger = ledger.release(reservation.key, reservation.resource)
    return evolve(state, ledger=ledger)
