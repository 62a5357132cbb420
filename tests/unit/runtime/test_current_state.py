import threading
from collections.abc import Callable

import pytest
from attrs import evolve

from devicecore import NodeState, ResourceName
from devicecore.domain.errors import ManagerStoppedError
from devicecore.domain.inventory import Inventory
from devicecore.runtime import current_state
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.run import Run
from devicecore.runtime.wake_up import WakeUp
from devicecore.testing.interrupts import Interrupts

LIMIT = 20.0  # seconds within which something that should happen at once must happen
FOR_EVER = 1e6
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


def test_a_run_that_was_stopped_before_it_started_does_not_start() -> None:
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


def added(value: int) -> int:
    return value + 1


def taken(value: int) -> tuple[int, None]:
    return value + 1, None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda state: state.begin(Run(), 1), id="begin"),
        pytest.param(lambda state: state.replace(added), id="replace"),
        pytest.param(lambda state: state.take(taken), id="take"),
        pytest.param(lambda state: state.exchange(0, 1), id="exchange"),
    ],
)
def test_each_change_wakes_a_thread_that_waits(
    change: Callable[[CurrentState[int]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread does not poll."""
    waits, found = threading.Event(), threading.Event()

    class AnnouncedWakeUp(WakeUp):
        def wait(self, seconds: float) -> bool:
            waits.set()
            return super().wait(seconds)

    def wait() -> None:
        state.wait_for(lambda value: value == 1, FOR_EVER)
        found.set()

    monkeypatch.setattr(current_state, "WakeUp", AnnouncedWakeUp)
    monkeypatch.setattr(current_state, "LOOK_AGAIN", FOR_EVER)
    state = CurrentState(0)
    threading.Thread(target=wait, daemon=True).start()
    assert waits.wait(LIMIT)
    change(state)
    assert found.wait(LIMIT)


def test_an_exchange_for_a_value_that_is_not_current_changes_nothing() -> None:
    state = CurrentState("a")
    assert not state.exchange("b", "c")
    assert state.value == "a"


def test_a_wait_that_is_over_is_no_longer_woken() -> None:
    state = CurrentState(1)
    state.wait_for(lambda value: value == 1, FOR_EVER)
    with pytest.raises(TimeoutError):
        state.wait_for(lambda value: value == 2, 0.001)
    with pytest.raises(ZeroDivisionError):
        state.wait_for(lambda value: value // 0, FOR_EVER)
    assert not state._waiting  # noqa: SLF001 - else each wait would make all later changes slower


def test_a_wait_interrupted_anywhere_leaves_no_thread_waiting() -> None:
    """A waiter left behind would be woken at each change, forever."""
    at, is_interrupted = 0, True
    while is_interrupted:
        at += 1
        state = CurrentState(NodeState())

        def wait(state: CurrentState[NodeState] = state) -> None:
            state.wait_for(lambda _: True, LIMIT)

        is_interrupted = Interrupts(at, current_state).interrupt(wait)
        assert not state._waiting, at  # noqa: SLF001 - no public name shows it
