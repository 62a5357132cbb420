"""Ensures that each pod has at most one admission at a time, and keeps the NUMA affinity chosen for a pod as a whole.

Law: the end of an admission's turn releases every reservation that the admission did not commit, even if an interrupt
kept the admission from ending its turn.
"""

from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from weakref import ref

from attrs import evolve

from devicecore.domain.model import NumaNode, PodUid
from devicecore.domain.node_state import NodeState
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.turns import Turn, Turns

Affinity = Collection[NumaNode] | None
"""The NUMA nodes that devices should come from (the kubelet's term). None means that there is no preference."""


class _Witness(set[PodUid]):
    """A set to which each pod is added when its admission starts."""


class AdmissionTurns(Turns[PodUid]):
    """The turns of pods, and their affinities. The lock is held while turns and affinities are looked up or written.

    The end of a turn takes the state lock while this lock is held; the reverse never happens.
    """

    def __init__(self, state: CurrentState[NodeState]) -> None:
        super().__init__("the admission of the same pod")
        self._state = state
        self._witnesses: list[ref[_Witness]] = []  # weak, because an interrupted caller does not remove its set
        self._affinities: dict[PodUid, Affinity] = {}

    def give_back(self, pod: PodUid) -> None:
        """Release everything reserved in `pod`'s turn.

        Only the admission of `pod`, or the code that ends its turn, may call this method.
        """
        if any(reservation.key.pod == pod for reservation in self._state.value.ledger.reservations):
            self._state.replace(lambda state: _given_back(state, pod))

    def admitting(self) -> AbstractSet[PodUid]:
        """Return the pods in admission, including pods whose admission starts while the caller keeps this set."""
        seen = _Witness()
        with self._lock:
            seen.update(self._taken)
            self._witnesses.append(ref(seen, self._witnesses.remove))
        return seen

    def affinity(self, pod: PodUid, choose: Callable[[], Affinity], *, anew: bool) -> Affinity:
        """Return the affinity chosen for a pod in its turn.

        If no affinity has been chosen yet, or the affinity has to be chosen again, this method calls `choose`. The lock
        is not held during that call, because `choose` calls hint providers.
        """
        with self._lock:
            if pod in self._affinities and not anew:
                return self._affinities[pod]
        affinity = choose()
        with self._lock:
            self._affinities[pod] = affinity
        return affinity

    def forget(self, pods: Iterable[PodUid]) -> None:
        """Forget the affinities of vanished pods. An admission in progress still uses its pod's affinity."""
        with self._lock:
            for pod in self._affinities.keys() & {*pods} - self._taken.keys():
                del self._affinities[pod]

    def _begun(self, turn: Turn[PodUid]) -> None:
        for witness in tuple(self._witnesses):  # a caller may drop its set at the same time
            if (seen := witness()) is not None:
                seen.update(turn.keys)

    def _before_free(self, key: PodUid) -> None:
        ledger = self._state.value.ledger
        if ledger.reservations:
            self.give_back(key)
        if key in self._affinities and key not in ledger.allocations:
            del self._affinities[key]


def _given_back(state: NodeState, pod: PodUid) -> NodeState:
    """Return the state without the reservations of `pod`."""
    ledger = state.ledger
    for reservation in ledger.reservations:
        if reservation.key.pod == pod:
            ledger = ledger.release(reservation.key, reservation.resource)
    return evolve(state, ledger=ledger)
