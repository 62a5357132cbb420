import threading

import pytest

from devicecore import NodeState, NumaNode, PodUid
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import AdmissionTimeoutError, CalledFromInsideError
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import ContainerKey, DeviceId, ResourceName
from devicecore.manager.current_state import CurrentState
from devicecore.manager.open_call import OpenCall
from devicecore.manager.run import Run
from devicecore.manager.turns import Affinity, Turn, Turns

A, B = PodUid("a"), PodUid("b")
GPU = ResourceName("example.com/gpu")


def abandon(turns: Turns, pod: PodUid = A) -> Turn:
    """Begin a turn and return without ending it, as a call does that is interrupted at the wrong moment."""
    return turns.begin(pod, OpenCall(), 60)


def with_a_reservation() -> CurrentState:
    state = CurrentState()
    ledger = Ledger().reserve(ContainerKey(A, "main"), GPU, DeviceSet.of([DeviceId("gpu-0")]))
    state.begin(Run(), NodeState(ledger=ledger))
    return state


def test_pods_do_not_wait_for_each_other() -> None:
    turns = Turns(CurrentState())
    turns.begin(A, OpenCall(), 0)
    turns.begin(B, OpenCall(), 0)


def test_a_second_turn_of_a_pod_waits_for_the_end_of_the_first() -> None:
    turns = Turns(CurrentState())
    first = turns.begin(A, OpenCall(), 0)
    begun = threading.Event()

    def second() -> None:
        turns.begin(A, OpenCall(), 60)
        begun.set()

    thread = threading.Thread(target=second, daemon=True)
    thread.start()
    assert not begun.wait(0.05)
    turns.end(first)
    assert begun.wait(60)


def test_a_turn_that_does_not_end_in_time_is_a_timeout() -> None:
    turns = Turns(CurrentState())
    turns.begin(A, OpenCall(), 0)
    errors: list[AdmissionTimeoutError] = []

    def second() -> None:
        try:
            turns.begin(A, OpenCall(), 0.01)
        except AdmissionTimeoutError as error:
            errors.append(error)

    thread = threading.Thread(target=second, daemon=True)
    thread.start()
    thread.join(60)
    assert [(error.pod, error.budget) for error in errors] == [("a", 0.01)]


def test_a_turn_inside_a_turn_of_the_same_pod_is_an_error_of_the_caller() -> None:
    turns = Turns(CurrentState())
    turns.begin(A, OpenCall(), 60)
    with pytest.raises(CalledFromInsideError, match='admitting pod "a" was called from inside the admission of'):
        turns.begin(A, OpenCall(), 60)


def test_the_end_of_a_turn_gives_back_what_was_reserved() -> None:
    state = with_a_reservation()
    turns = Turns(state)
    turn = turns.begin(A, OpenCall(), 0)
    turns.end(turn)
    turns.end(turn)
    assert not state.value.ledger.in_use(GPU)


def test_an_abandoned_turn_is_ended_by_the_next_admission_in_its_thread() -> None:
    state = with_a_reservation()
    turns = Turns(state)
    abandon(turns)
    turns.begin(B, OpenCall(), 0)
    assert not state.value.ledger.reservations


def test_an_abandoned_turn_is_ended_by_an_admission_that_waits_for_it() -> None:
    state = with_a_reservation()
    turns = Turns(state)
    thread = threading.Thread(target=abandon, args=(turns,))
    thread.start()
    thread.join()
    turns.begin(A, OpenCall(), 60)
    assert not state.value.ledger.reservations


def test_an_abandoned_turn_of_any_thread_is_ended_on_request() -> None:
    state = with_a_reservation()
    turns = Turns(state)
    thread = threading.Thread(target=abandon, args=(turns,))
    thread.start()
    thread.join()
    open_turn = turns.begin(B, OpenCall(), 0)
    turns.end_abandoned()
    assert not state.value.ledger.reservations
    assert turns.admitting() == {open_turn.pod}


def test_a_pod_whose_admission_begins_and_ends_meanwhile_is_seen() -> None:
    turns = Turns(CurrentState())
    admitting = turns.admitting()
    turns.end(turns.begin(A, OpenCall(), 0))
    assert admitting == {A}


def test_an_affinity_is_chosen_once_and_forgotten_with_its_pod() -> None:
    """The pod holds no device, so it is gone when its turn ends."""
    turns = Turns(CurrentState())
    first, second = [NumaNode(0)], [NumaNode(1)]
    turn = turns.begin(A, OpenCall(), 0)
    assert turns.affinity(A, lambda: first, anew=False) is first
    assert turns.affinity(A, lambda: second, anew=False) is first
    turns.forget([A])
    assert turns.affinity(A, lambda: second, anew=False) is first
    assert turns.affinity(A, lambda: second, anew=True) is second
    turns.end(turn)
    turns.begin(A, OpenCall(), 0)
    assert turns.affinity(A, lambda: first, anew=False) is first


def test_an_affinity_is_chosen_without_the_lock_and_written_under_it() -> None:
    turns = Turns(CurrentState())
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
