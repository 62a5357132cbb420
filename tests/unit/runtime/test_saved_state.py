import threading
import time
from collections.abc import Callable

import pytest
from attrs import evolve

from devicecore import NodeState, ResourceName
from devicecore.domain.checkpoint import CheckpointWriter
from devicecore.domain.errors import CalledFromInsideError, ManagerStoppedError, StoreError
from devicecore.domain.inventory import Inventory
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.run import Run
from devicecore.runtime.saved_state import PATIENCE, SavedState
from devicecore.runtime.saver_thread import SaverThread
from tests.unit.runtime.stores import Store

NAMES = [ResourceName(f"example.com/{name}") for name in ("gpu", "nic")]


class Bench:
    def __init__(self, thread: SaverThread | None = None) -> None:
        self.store = Store()
        self.state = CurrentState(NodeState())
        self.saver = SavedState(self.store, self.state, CheckpointWriter().file, saver=thread)
        self.run = Run()
        self.saver.begin(self.run, NodeState())

    def know(self, number: int = 1) -> None:
        self.state.replace(knowing(number))


def step(number: int) -> Callable[[NodeState], tuple[NodeState, NodeState]]:
    return lambda state: (after := knowing(number)(state), after)


def knowing(number: int) -> Callable[[NodeState], NodeState]:
    return lambda state: evolve(state, inventory=Inventory().expect(NAMES[:number], 0.0))


def test_a_request_returns_when_the_newest_state_is_saved() -> None:
    bench = Bench()
    bench.know()
    bench.saver.request()
    assert bench.store.resources() == {"example.com/gpu"}
    assert not bench.saver.is_behind
    bench.saver.end()


def test_a_store_that_hangs_holds_a_request_for_a_second_and_the_next_ones_not_at_all() -> None:
    bench = Bench()
    works = threading.Event()
    bench.store.before = lambda: works.wait(60)
    bench.know()
    bench.saver.request()
    assert bench.store.blob is None
    began = time.monotonic()
    for _ in range(1000):
        bench.saver.request()
    assert time.monotonic() - began < 1000 * PATIENCE / 10
    assert bench.store.blob is None  # the store still hangs
    bench.know(2)
    bench.saver.request()
    works.set()
    bench.saver.end()
    assert bench.store.resources() == set(NAMES)


def test_an_eviction_waits_for_no_thread_that_is_about_to_call_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several evictions at the same time, only the first one waits for a store that hangs."""
    monkeypatch.setattr("devicecore.runtime.saved_state.PATIENCE", 0.01)
    bench = Bench()
    begun, go_on = threading.Event(), threading.Event()

    def slow(state: NodeState) -> tuple[NodeState, None]:
        begun.set()
        assert go_on.wait(60)
        return state, None

    commit = threading.Thread(target=bench.saver.commit, args=(bench.run, slow), daemon=True)
    commit.start()
    assert begun.wait(60)
    bench.know()
    save = threading.Thread(target=bench.saver.save, daemon=True)
    save.start()
    save.join(60)
    assert not save.is_alive()
    go_on.set()
    commit.join(60)
    bench.saver.end()
    assert bench.store.resources() == {"example.com/gpu"}


def test_an_eviction_that_could_not_be_saved_is_saved_with_the_next_one() -> None:
    bench = Bench()
    with bench.store.failing(ZeroDivisionError()):
        bench.know()
        bench.saver.save()
        assert bench.saver.is_behind
    bench.saver.save()
    assert bench.store.resources() == {"example.com/gpu"}
    bench.saver.end()
    assert bench.store.saves == 2


def test_an_eviction_that_is_interrupted_is_saved_by_the_end_of_the_run() -> None:
    bench = Bench()
    bench.know()
    with bench.store.failing(KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        bench.saver.save()
    bench.saver.end()
    assert bench.store.resources() == {"example.com/gpu"}


def test_the_end_of_a_run_waits_for_an_eviction_that_is_being_saved() -> None:
    bench = Bench()
    begun, works = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        assert works.wait(60)

    bench.store.before = hang
    bench.know()
    save = threading.Thread(target=bench.saver.save, daemon=True)
    save.start()
    assert begun.wait(60)
    bench.know(2)
    end = threading.Thread(target=bench.saver.end, daemon=True)
    end.start()
    assert bench.store.blob is None
    works.set()
    end.join(60)
    save.join(60)
    assert bench.store.resources() == set(NAMES)


def test_a_request_that_does_not_wait_is_saved_by_the_end_of_the_run() -> None:
    bench = Bench()
    bench.know()
    others = set(threading.enumerate())
    bench.saver.request(wait=False)
    bench.saver.end()
    assert bench.store.resources() == {"example.com/gpu"}
    assert set(threading.enumerate()) <= others


def test_what_could_not_be_saved_is_saved_by_the_end_of_the_run() -> None:
    bench = Bench()
    with bench.store.failing(StoreError("checkpoint", "write", "No space left on device")):
        bench.know()
        bench.saver.request()
        assert bench.saver.is_behind
    bench.saver.end()
    assert bench.store.resources() == {"example.com/gpu"}


def test_a_store_with_a_bug_is_logged_and_called_again(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with bench.store.failing(ZeroDivisionError()):
        bench.know()
        bench.saver.request()
        assert "ZeroDivisionError" in caplog.text
    bench.saver.request()
    assert bench.store.resources() == {"example.com/gpu"}
    bench.saver.end()


def test_after_the_end_of_a_run_nothing_is_saved() -> None:
    bench = Bench()
    bench.run.is_stopped = True
    bench.saver.end()
    bench.know()
    bench.saver.request()
    with pytest.raises(ManagerStoppedError):
        bench.saver.commit(bench.run, lambda state: (state, state))
    with pytest.raises(ManagerStoppedError):
        bench.saver.set_aside(bench.run)
    assert bench.store.saves == 0


def test_a_commit_saves_first_and_then_replaces_the_state() -> None:
    bench = Bench()
    seen: list[bool] = []
    bench.store.before = lambda: seen.append(bench.state.value.knows(NAMES[0]))
    after = bench.saver.commit(bench.run, step(1))
    assert seen == [False]
    assert bench.state.value is after
    assert bench.store.resources() == {"example.com/gpu"}
    assert not bench.saver.is_behind
    bench.saver.end()
    assert bench.store.saves == 1


def test_a_commit_keeps_what_changed_during_its_save() -> None:
    bench = Bench()
    bench.store.before = lambda: bench.know(2)

    def unchanged(state: NodeState) -> tuple[NodeState, NodeState]:
        return (after := evolve(state)), after

    assert bench.saver.commit(bench.run, unchanged).knows(NAMES[1])
    assert bench.saver.is_behind
    bench.store.before = lambda: None
    bench.saver.end()
    assert bench.store.resources() == set(NAMES)


@pytest.mark.parametrize("call", ["end", "commit", "request", "save"])
def test_a_store_that_calls_back_while_it_saves_does_not_wait_for_itself(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devicecore.runtime.saved_state.PATIENCE", 300.0)
    bench = Bench()
    errors: list[str] = []

    def call_back() -> None:
        bench.store.before = lambda: None
        calls: dict[str, Callable[[], object]] = {
            "end": bench.saver.end,
            "commit": lambda: bench.saver.commit(bench.run, lambda state: (state, state)),
            "request": bench.saver.request,
            "save": bench.saver.save,
        }
        try:
            calls[call]()
        except CalledFromInsideError as error:
            errors.append(str(error))

    bench.store.before = call_back
    thread = threading.Thread(target=bench.saver.commit, args=(bench.run, step(1)), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert bench.store.resources() == {"example.com/gpu"}
    assert len(errors) == (call in {"end", "commit"})
    assert all("called from inside CheckpointStore.save" in error for error in errors)
    bench.saver.end()


def test_states_that_share_a_thread_are_saved_by_it_and_end_alone() -> None:
    thread = SaverThread()
    one, other = Bench(thread), Bench(thread)
    before = threading.active_count()
    for bench in (one, other):
        bench.know()
        bench.saver.request()
        assert bench.store.resources() == {"example.com/gpu"}
    assert threading.active_count() == before
    one.saver.end()
    other.know(2)
    other.saver.request()
    assert other.store.resources() == set(NAMES)
    other.saver.end()
    thread.end()
