"""Commits that wait for the store at the same time are saved with one write."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from attrs import evolve

from devicecore import NodeState, ResourceName
from devicecore.domain.checkpoint import CheckpointWriter
from devicecore.domain.errors import ManagerStoppedError, StoreError, UnencodableCheckpointError
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.run import Run
from devicecore.runtime.saved_state import SavedState, _Commit
from tests.unit.runtime.stores import Store

NAMES = [ResourceName(f"example.com/r{number}") for number in range(8)]
UNENCODABLE = ResourceName("example.com/\ud800")


class Interrupted(CurrentState[NodeState]):
    """A state that raises KeyboardInterrupt just after the `interrupts`-th replacement from now (0: after none)."""

    interrupts = 0

    def exchange(self, before: NodeState, after: NodeState) -> bool:
        is_done = super().exchange(before, after)
        if self.interrupts:
            self.interrupts -= 1
            if not self.interrupts:
                raise KeyboardInterrupt
        return is_done


def adding(name: ResourceName) -> Callable[[NodeState], tuple[NodeState, ResourceName]]:
    return lambda state: (evolve(state, inventory=state.inventory.expect([name], 0.0)), name)


class Bench:
    def __init__(self) -> None:
        self.store = Store()
        self.state = Interrupted(NodeState())
        self.saver = SavedState(self.store, self.state, CheckpointWriter().file)
        self.run = Run()
        self.saver.begin(self.run, NodeState())

    def commit(self, name: ResourceName) -> bool:
        """Commit a change, and return whether it is in the store when the commit has been acknowledged."""
        return self.saver.commit(self.run, adding(name)) in self.store.resources()

    def wait_together(self, names: Sequence[ResourceName], then: Callable[[], object]) -> list[Future[bool]]:
        """Commit each name in a thread that waits for a save in progress, and call `then` before that save ends."""
        saving, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            saving.set()
            go_on.wait(60)

        self.store.before = hold
        with ThreadPoolExecutor(len(names) + 1) as threads:
            first = threads.submit(self.commit, ResourceName("example.com/first"))
            assert saving.wait(60)
            self.store.before = lambda: None
            answers = [threads.submit(self.commit, name) for name in names]
            while len(self.saver._waiting) < len(names):  # noqa: SLF001 - no event says that a thread waits for a lock
                time.sleep(0.001)
            then()
            go_on.set()
        assert first.result()
        return answers


def test_commits_that_wait_are_saved_with_one_write_before_they_are_answered() -> None:
    bench = Bench()
    answers = bench.wait_together(NAMES, then=lambda: None)
    assert all(answer.result() for answer in answers)
    assert bench.store.saves == 2
    assert not bench.saver.is_behind
    bench.saver.end()
    assert bench.store.saves == 2


def test_if_the_store_fails_every_commit_that_waits_fails() -> None:
    def fail() -> None:
        raise StoreError("checkpoint", "write", "No space left on device")

    bench = Bench()
    answers = bench.wait_together(NAMES, then=lambda: setattr(bench.store, "before", fail))
    assert all(isinstance(answer.exception(), StoreError) for answer in answers)
    assert not any(bench.state.value.knows(name) for name in NAMES)
    bench.store.before = lambda: None
    bench.saver.end()


def test_a_change_that_cannot_be_saved_fails_no_commit_but_its_own() -> None:
    bench = Bench()
    answers = bench.wait_together([*NAMES, UNENCODABLE], then=lambda: None)
    assert all(answer.result() for answer in answers[:-1])
    assert isinstance(answers[-1].exception(), UnencodableCheckpointError)
    assert not bench.state.value.knows(UNENCODABLE)
    bench.saver.end()


def test_a_stop_fails_waiting_commits_or_comes_after_them() -> None:
    bench = Bench()
    stop = threading.Thread(target=bench.saver.end)
    answers = bench.wait_together(NAMES, then=stop.start)
    stop.join(60)
    assert not stop.is_alive()
    for name, answer in zip(NAMES, answers, strict=True):
        assert answer.exception() is None or isinstance(answer.exception(), ManagerStoppedError)
        assert (answer.exception() is None) == (name in bench.store.resources()) == bench.state.value.knows(name)


@pytest.mark.parametrize("moment", ["before the write", "after the replacement"])
def test_an_interrupted_call_leaves_other_commits_to_their_callers(moment: str) -> None:
    def interrupt() -> None:
        bench.store.before = lambda: None
        raise KeyboardInterrupt

    def prepare() -> None:
        if moment == "before the write":
            bench.store.before = interrupt
        else:
            bench.state.interrupts = 2  # the first replacement belongs to the commit in progress

    bench = Bench()
    answers = bench.wait_together(NAMES, then=prepare)
    interrupted = [answer for answer in answers if isinstance(answer.exception(), KeyboardInterrupt)]
    assert len(interrupted) == 1
    assert all(answer.result() for answer in answers if answer not in interrupted)
    bench.saver.end()
    assert {name for name in NAMES if bench.state.value.knows(name)} == bench.store.resources() & {*NAMES}


def test_a_commit_whose_call_was_interrupted_is_not_saved() -> None:
    """The caller may have tried again since, and the old change would then follow the newer one."""
    bench = Bench()

    def interrupted() -> None:
        call = OpenCall()
        bench.saver._waiting.append(_Commit(bench.run, adding(NAMES[1]), call))  # noqa: SLF001 - an interrupt leaves it so

    interrupted()
    assert bench.commit(NAMES[0])
    assert bench.store.resources() & {*NAMES} == {NAMES[0]}
    bench.saver.end()
