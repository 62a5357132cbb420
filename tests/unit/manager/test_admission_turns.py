import threading

from devicecore import NodeState, NumaNode, PodUid
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import ContainerKey, DeviceId, ResourceName
from devicecore.manager.turns import AdmissionTurns, Affinity
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.run import Run
from devicecore.runtime.turns import Turn

A, B = PodUid("a"), PodUid("b")
GPU = ResourceName("example.com/gpu")


def begin(turns: AdmissionTurns, pod: PodUid, call: OpenCall) -> Turn[PodUid]:
    turn = turns.begin((pod,), call, 60, "a test")
    assert turn is not None
    return turn


def abandon(turns: AdmissionTurns, pod: PodUid = A) -> Turn[PodUid]:
    """Begin a turn and return without ending it, as a call does that is interrupted at the wrong moment."""
    return begin(turns, pod, OpenCall())


def with_a_reservation() -> CurrentState[NodeState]:
    state = CurrentState(NodeState())
    ledger = Ledger().reserve(ContainerKey(A, "main"), GPU, DeviceSet.of([DeviceId("gpu-0")]))
    state.begin(Run(), NodeState(ledger=ledger))
    return state


def test_the_end_of_a_turn_gives_back_what_was_reserved() -> None:
    state = with_a_reservation()
    turns = AdmissionTurns(state)
    turn = begin(turns, A, OpenCall())
    turns.end(turn)
    turns.end(turn)
    assert not state.value.ledger.in_use(GPU)


def test_an_abandoned_turn_of_any_thread_is_ended_on_request() -> None:
    state = with_a_reservation()
    turns = AdmissionTurns(state)
    thread = threading.Thread(target=abandon, args=(turns,))
    thread.start()
    thread.join()
    begin(turns, B, OpenCall())
    turns.end_abandoned()
    assert not state.value.ledger.reservations
    assert turns.admitting() == {B}


def test_a_pod_whose_admission_begins_and_ends_meanwhile_is_seen() -> None:
    turns = AdmissionTurns(CurrentState(NodeState()))
    admitting = turns.admitting()
    turns.end(begin(turns, A, OpenCall()))
    assert admitting == {A}


def test_an_affinity_is_chosen_once_and_forgotten_with_its_pod() -> None:
    """The pod holds no device, so it is gone when its turn ends."""
    turns = AdmissionTurns(CurrentState(NodeState()))
    first, second = [NumaNode(0)], [NumaNode(1)]
    turn = begin(turns, A, OpenCall())
    assert turns.affinity(A, lambda: first, anew=False) is first
    assert turns.affinity(A, lambda: second, anew=False) is first
    turns.forget([A])
    assert turns.affinity(A, lambda: second, anew=False) is first
    assert turns.affinity(A, lambda: second, anew=True) is second
    turns.end(turn)
    begin(turns, A, OpenCall())
    assert turns.affinity(A, lambda: first, anew=False) is first


def test_an_affinity_is_chosen_without_the_lock_and_written_under_it() -> None:
    turns = AdmissionTurns(CurrentState(NodeState()))
    lock = turns._lock  # noqa: SLF001 - the test is about this lock

    class Guarded(dict[PodUid, Affinity]):
        def __setitem__(self, pod: PodUid, affinity: Affinity) -> None:
            assert lock.locked()
            super().__setitem__(pod, affinity)

    def choose() -> list[NumaNode]:
        assert not lock.locked()
        return [NumaNode(0)]

    turns._affinities = Guarded()  # noqa: SLF001 - as above
    assert turns.affinity(A, choose, anew=False) == [0]
