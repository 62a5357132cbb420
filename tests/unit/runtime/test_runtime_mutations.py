"""Each mutation removes one guarantee of the runtime, and the test named with it must then fail."""

from collections.abc import Callable
from typing import Any

import pytest

from devicecore.domain.errors import DeviceCoreError
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.lanes import JobLanes
from devicecore.runtime.lifecycle import Lifecycle
from devicecore.runtime.observers import Observers
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.saved_state import SavedState
from devicecore.runtime.turns import Turns
from tests.mutations import Mutations, Patch
from tests.reliability import test_life_cycle as starts
from tests.unit import test_dra_manager as dra
from tests.unit.runtime import test_current_state as states
from tests.unit.runtime import test_group_commit as commits
from tests.unit.runtime import test_lanes as lanes
from tests.unit.runtime import test_saved_state as saved
from tests.unit.runtime import test_turns as turns

Untyped = Any  # arguments that the mutation passes on to the real function

fails = Mutations()


# --- turns ------------------------------------------------------------------------------------------------------------


@fails(turns.test_a_turn_that_is_interrupted_at_any_place_leaves_no_key_taken)
def an_abandoned_turn_is_never_ended(patch: Patch) -> None:
    """In the DRA manager, a turn used to be ended only by its own call."""
    patch.setattr(Turns, "_end_abandoned", lambda *_, **__: None)


@fails(turns.test_a_turn_inside_a_turn_of_the_same_key_is_an_error_of_the_caller)
def a_call_does_not_know_that_it_would_wait_for_itself(patch: Patch) -> None:
    patch.setattr(OpenCall, "encloses_caller", False)


@fails(turns.test_a_turn_that_is_interrupted_at_any_place_leaves_no_key_taken)
def a_thread_that_was_interrupted_counts_as_inside_its_turn(patch: Patch) -> None:
    """An earlier version of the DRA manager compared only threads."""
    patch.setattr(OpenCall, "has_ended", False)


@fails(turns.test_a_call_for_two_keys_is_not_overtaken_by_calls_for_one_of_them)
def waiting_calls_are_served_in_any_order(patch: Patch) -> None:
    obstacle = Turns._obstacle  # noqa: SLF001 - the mutated part is private

    def hasty(self: Untyped, turn: Untyped) -> Untyped:
        waiting, self._waiting = self._waiting, {}
        try:
            return obstacle(self, turn)
        finally:
            self._waiting = waiting

    patch.setattr(Turns, "_obstacle", hasty)


@fails(turns.test_a_turn_that_is_not_free_in_time_is_none)
def keys_are_taken_one_by_one(patch: Patch) -> None:
    def greedy(self: Untyped, turn: Untyped) -> Untyped:
        for key in turn.keys:
            if self._taken.setdefault(key, turn) is not turn:
                return self._taken[key]
        return None

    patch.setattr(Turns, "_obstacle", greedy)


# --- saved states -----------------------------------------------------------------------------------------------------


@fails(saved.test_a_commit_saves_first_and_then_replaces_the_state)
def a_value_is_current_before_it_is_saved(patch: Patch) -> None:
    save = SavedState._write  # noqa: SLF001 - the mutated part is private

    def late(self: Untyped, value: Untyped, call: OpenCall) -> None:
        self._state.value = value
        save(self, value, call)

    patch.setattr(SavedState, "_write", late)


@fails(saved.test_a_commit_keeps_what_changed_during_its_save)
def a_change_is_not_applied_to_a_newer_value(patch: Patch) -> None:
    def overwriting(self: Untyped, _before: object, after: Untyped) -> bool:
        self.value = after
        return True

    patch.setattr(CurrentState, "exchange", overwriting)


@fails(commits.test_commits_that_wait_are_saved_with_one_write_before_they_are_answered)
def commits_are_saved_one_by_one(patch: Patch) -> None:
    def alone(self: Untyped, own: Untyped, _waiting: object) -> None:
        own.error = self._commit_together((own,), own.call)

    patch.setattr(SavedState, "_commit_waiting", alone)


@fails(commits.test_a_change_that_cannot_be_saved_fails_no_commit_but_its_own)
def a_commit_fails_because_of_another_one(patch: Patch) -> None:
    def together(self: Untyped, own: Untyped, waiting: Untyped) -> None:
        error = self._commit_together([own, *(commit for commit in waiting if commit is not own)], own.call)
        for commit in waiting:
            commit.error = error

    patch.setattr(SavedState, "_commit_waiting", together)


@fails(commits.test_a_commit_whose_call_was_interrupted_is_not_saved)
def the_commit_of_an_interrupted_call_is_saved(patch: Patch) -> None:
    """An earlier version of the runtime did this, so the change came after the caller's next action."""
    patch.setattr(OpenCall, "has_ended", False)


@fails(saved.test_the_end_of_a_run_waits_for_an_eviction_that_is_being_saved)
def a_stop_does_not_wait_for_a_save(patch: Patch) -> None:
    patch.setattr(SavedState, "end", lambda self: self._state.end())


@fails(saved.test_after_the_end_of_a_run_nothing_is_saved)
def a_run_that_is_over_saves(patch: Patch) -> None:
    def stubborn(self: Untyped, _run: object, change: Untyped) -> Untyped:
        value, result = change(self._state.value)
        self._write(value, OpenCall())
        return result

    patch.setattr(SavedState, "commit", stubborn)


@fails(saved.test_an_eviction_that_is_interrupted_is_saved_by_the_end_of_the_run)
def what_is_behind_is_forgotten_at_the_end(patch: Patch) -> None:
    patch.setattr(SavedState, "_save_logged", lambda _self: None)


# --- current states, runs, observers, lanes ---------------------------------------------------------------------------


@fails(states.test_a_change_that_belongs_to_a_former_run_is_refused)
def runs_are_not_distinguished(patch: Patch) -> None:
    replace = CurrentState.replace
    patch.setattr(CurrentState, "replace", lambda self, change, **_: replace(self, change))


@fails(states.test_a_run_that_was_stopped_before_it_started_does_not_start)
def a_stopped_run_begins(patch: Patch) -> None:
    def begin(self: Untyped, run: Untyped, value: Untyped) -> None:
        self.run, self.value = run, value

    patch.setattr(CurrentState, "begin", begin)


@fails(states.test_a_waiting_thread_notices_a_change_of_another)
def nobody_is_woken(patch: Patch) -> None:
    patch.setattr(CurrentState, "wait_for", lambda self, _condition, _timeout: self.value)


@fails(lambda: dra.test_an_observer_that_fails_changes_nothing(dra.Node()))
def an_observer_may_fail_a_call(patch: Patch) -> None:
    def notify(self: Untyped, notifications: Untyped) -> None:
        for notification in notifications:
            for observer in self._observers:
                observer(notification)

    patch.setattr(Observers, "notify", notify)


@fails(starts.test_a_stop_during_a_start_leaves_nothing_running)
def a_stop_waits_for_a_start(patch: Patch) -> None:
    """An earlier version of the DRA manager did this, so that the start succeeded first."""
    stop = Lifecycle.stop

    def waiting(self: Untyped, end: Untyped) -> None:
        with self._starting:
            stop(self, end)

    patch.setattr(Lifecycle, "stop", waiting)


@fails(lambda: dra.test_a_stop_inside_an_event_of_a_driver_is_an_error(dra.Node()))
def a_start_inside_a_start_waits_for_it(patch: Patch) -> None:
    patch.setattr(Lifecycle, "call", lambda _self, _name, function, *arguments: function(*arguments))


@fails(lanes.test_jobs_that_need_the_same_thing_never_run_at_once)
def jobs_that_need_the_same_thing_run_at_once(patch: Patch) -> None:
    following = JobLanes._next  # noqa: SLF001 - the mutated part is private

    def careless(self: Untyped) -> Untyped:
        self._busy = set()
        return following(self)

    patch.setattr(JobLanes, "_next", careless)


@fails(lanes.test_a_job_that_hangs_delays_only_jobs_that_need_the_same_thing)
def all_jobs_run_in_one_thread(patch: Patch) -> None:
    def none(self: Untyped) -> None:
        self._helping -= 1

    patch.setattr(JobLanes, "_start_helper", none)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("take_away", "test"), fails, ids=fails.names)
def test_removing_a_guarantee_makes_a_test_fail(
    take_away: Callable[[Patch], None], test: Callable[[], None], monkeypatch: Patch
) -> None:
    test()
    take_away(monkeypatch)
    for module in (turns, commits, saved, lanes, starts, dra):
        for limit in ("LIMIT", "SECONDS"):
            if hasattr(module, limit):
                monkeypatch.setattr(module, limit, 2.0)  # seconds until a wait that cannot succeed ends
    with pytest.raises((AssertionError, DeviceCoreError, RuntimeError, TimeoutError, pytest.fail.Exception)):
        test()
