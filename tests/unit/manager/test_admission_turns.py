import threading
from collections.abc import Callable

import pytest

from devicecore import Container, DeviceManager, NodeState, NumaNode, Pod, PodUid
from devicecore.adapters.memory import MemoryPods
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import ContainerKey, DeviceId, ResourceName
from devicecore.manager.active_pods import ActivePods
from devicecore.manager.turns import AdmissionTurns, Affinity
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.observers import Observers
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.run import Run
from devicecore.runtime.turns import Turn
from tests.memory_manager import MemoryManager

A, B = PodUid("a"), PodUid("b")
GPU = ResourceName("example.com/gpu")


def begin(turns: AdmissionTurns, pod: PodUid, call: OpenCall) -> Turn[PodUid]:
    turn = turns.begin((pod,), call, 60, "a test")
    assert turn is not None
    return turn


def abandon(turns: AdmissionTurns, pod: PodUid = A) -> Turn[PodUid]:
    """Start a turn and return without ending it, like a call that is interrupted at a bad moment."""
    return begin(turns, pod, OpenCall())


def with_a_reservation() -> CurrentState[NodeState]:
    state = CurrentState(NodeState())
    ledger = Ledger().reserve(ContainerKey(A, "main"), GPU, DeviceSet.of([DeviceId("gpu-0")]))
    state.begin(Run(), NodeState(ledger=ledger))
    return state


def test_the_end_of_a_turn_releases_reservations() -> None:
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


def test_a_pod_whose_admission_starts_and_ends_meanwhile_is_seen() -> None:
    turns = AdmissionTurns(CurrentState(NodeState()))
    admitting = turns.admitting()
    turns.end(begin(turns, A, OpenCall()))
    assert admitting == {A}


def test_an_affinity_is_chosen_once_and_forgotten_with_its_pod() -> None:
    """The pod holds no device, so its affinity is forgotten when its turn ends."""
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


@pytest.mark.parametrize(
    "call", [DeviceManager.tick, DeviceManager.update_allocated_devices, lambda one: one.evict([])]
)
def test_a_call_that_frees_devices_ends_abandoned_admissions(call: Callable[[DeviceManager], object]) -> None:
    with MemoryManager() as manager:
        turns = manager._turns  # noqa: SLF001 - only an interrupt abandons an admission
        thread = threading.Thread(target=abandon, args=(turns,))
        thread.start()
        thread.join()
        call(manager)
        assert turns.admitting() == set()


def test_a_container_has_run_if_it_or_a_later_one_runs() -> None:
    """A running container says nothing about later ones, because it may be a sidecar."""
    first, second, main = (Container(name) for name in ("first", "second", "main"))
    pod = Pod(A, init_containers=(first, second), containers=(main,))
    found = {}
    for running in (first, second, main):
        source = MemoryPods(ready=False, running={pod.key(running)})
        state = CurrentState(NodeState())
        pods = ActivePods(source, state, AdmissionTurns(state), Observers(()))
        pods.begin()
        found[running.name] = [one.name for one in pod.in_start_order if pods.is_already_running(pod, one)]
    assert found == {"first": ["first"], "second": ["first", "second"], "main": ["first", "second", "main"]}
