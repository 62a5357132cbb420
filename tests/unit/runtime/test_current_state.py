import threading

import pytest
from attrs import evolve

from devicecore import NodeState, ResourceName
from devicecore.domain.errors import ManagerStoppedError
from devicecore.domain.inventory import Inventory
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.run import Run

GPU = ResourceName("example.com/gpu")


def knowing_gpus(state: NodeState) -> NodeState:
    return evolve(state, inventory=Inventory().expect([GPU], 0.0))


def test_a_change_replaces_the_state() -> None:
    state = CurrentState(NodeState())
    before, after = state.replace(knowing_gpus)
    assert not before.knows(GPU)
    assert state.value is after
    assert after.knows(GPU)


def test_a_change_that_raises_changes_nothing_and_frees_the_lock() -> None:
    def failing(_: NodeState) -> NodeState:
        raise ZeroDivisionError

    state = CurrentState(NodeState())
    before = state.value
    with pytest.raises(ZeroDivisionError):
        state.replace(failing)
    assert state.value is before
    assert state.replace(knowing_gpus)[0] is before


def test_a_change_that_belongs_to_a_former_run_is_refused() -> None:
    state, first, second = CurrentState(NodeState()), Run(), Run()
    state.begin(first, NodeState())
    state.end()
    state.begin(second, NodeState())
    with pytest.raises(ManagerStoppedError):
        state.replace(knowing_gpus, run=first)
    assert state.replace(knowing_gpus, run=second)[1].knows(GPU)


def test_a_run_that_was_stopped_before_it_began_does_not_begin() -> None:
    state, run = CurrentState(NodeState()), Run()
    run.is_stopped = True
    state.end()
    with pytest.raises(ManagerStoppedError):
        state.begin(run, NodeState())
    assert state.run is None


def test_a_waiting_thread_notices_a_change_of_another() -> None:
    state = CurrentState(NodeState())
    seen: list[NodeState] = []
    thread = threading.Thread(target=lambda: seen.append(state.wait_for(lambda now: now.knows(GPU), 60)), daemon=True)
    thread.start()
    _, after = state.replace(knowing_gpus)
    thread.join(60)
    assert seen == [after]


def test_a_condition_that_is_not_met_is_a_timeout() -> None:
    with pytest.raises(TimeoutError, match=r"^condition not met within 0\.01 s; the last state was <NodeState: "):
        CurrentState(NodeState()).wait_for(lambda _: False, 0.01)
