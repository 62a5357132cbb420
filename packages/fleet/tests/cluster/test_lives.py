"""The simulated behavior of containers that an annotation defines."""

from datetime import UTC, datetime, timedelta

import pytest
from devicecore_fleet.cluster.lives import Behavior, BehaviorError, Life, Place, life, parse
from hypothesis import given
from hypothesis import strategies as st

BEGAN = datetime(2026, 11, 22, 5, 0, tzinfo=UTC)
ALWAYS = Place("train_default(u)", "main", "img")


def at(behavior: Behavior, seconds: float, place: Place = ALWAYS) -> Life:
    return life(behavior, place, BEGAN, BEGAN + timedelta(seconds=seconds))


def test_an_annotation_says_what_each_container_would_do() -> None:
    assert parse("main: exit 3 after 1m30s; side: not-ready; start after 2s; side: oom") == {
        "main": Behavior(3, 90.0),
        "side": Behavior(137, 0.0, is_oom=True, is_unready=True),
        "": Behavior(starts_after=2.0),
    }
    assert parse("a: not-live after 5s; b: not-started after 1m; b: exit 1") == {
        "a": Behavior(143, 5.0, probe="liveness"),
        "b": Behavior(1, 0.0),
    }
    assert parse(" ") == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("exit", "expected `exit CODE .*got 'exit'"),
        ("exit 256", "at most 255, got 256"),
        ("exit 1 after soon", "a time such as `after 5s`.*got 'exit 1 after soon'"),
        ("start", "a time such as `after 5s`"),
        ("not-ready after 5s", "those behaviors that take one"),
        ("not-live", "a time such as `after 5s`"),
        ("Main: oom", "optionally after `CONTAINER:`"),
        ("oom;" * 65, "at most 64 parts"),
    ],
)
def test_other_words_are_refused_with_a_sentence(text: str, problem: str) -> None:
    with pytest.raises(BehaviorError, match=problem):
        parse(text)


def test_a_container_crashes_with_the_back_off_of_a_kubelet() -> None:
    """A container restarts at once, then after 10 s, 20 s and so on.

    Before each later restart, the container waits, and shows its last termination.
    """
    crash = Behavior(1, 2.0)
    assert at(crash, 1).is_ready
    assert at(crash, 2.5).ended is not None
    again = at(crash, 3)  # a second after the exit, because a kubelet needs that long to notice it
    assert (again.restarts, again.started) == (1, BEGAN + timedelta(seconds=3))
    waiting = at(crash, 7)
    assert waiting.waiting == (
        "CrashLoopBackOff",
        "back-off 10s restarting failed container=main pod=train_default(u)",
    )
    assert (waiting.restarts, waiting.last_shown and waiting.last_shown.code) == (1, 1)
    assert at(crash, 15).restarts == 2
    assert "back-off 20s" in str(at(crash, 18.5).waiting)
    assert "back-off 5m0s" in str(at(crash, 3600.0).waiting)


def test_the_back_off_after_a_failed_probe_counts_from_the_previous_exit() -> None:
    """The first two restarts are immediate, and so is a later one if the previous exit is at least a back-off ago."""
    stopped = parse("not-live after 2s")[""]
    assert (at(stopped, 1).is_ready, at(stopped, 2).restarts, at(stopped, 4).restarts) == (True, 1, 2)
    waiting = at(stopped, 6)
    assert "back-off 10s" in str(waiting.waiting)
    assert (waiting.restarts, waiting.last_shown and waiting.last_shown.code) == (2, 143)
    assert at(stopped, 16).restarts == 3
    slow = parse("not-live after 30s")[""]
    assert [at(slow, 30 * number + 1).restarts for number in range(5)] == [0, 1, 2, 3, 4]
    assert "back-off 40s" in str(at(slow, 151).waiting)


def test_a_container_whose_startup_probe_fails_is_neither_started_nor_ready() -> None:
    starting = at(parse("not-started after 30s")[""], 10)
    assert (starting.is_starting, starting.is_ready, starting.waiting) == (True, False, None)
    assert at(parse("not-started after 30s")[""], 31).restarts == 1


@pytest.mark.parametrize(
    ("behavior", "seconds", "restarts"),
    [
        (Behavior(1, 2.0), 302.0, 1),
        (Behavior(0, 900.0), 910.0, 1),
        (Behavior(143, 2.0, probe="liveness"), 304.0, 2),
        (Behavior(143, 400.0, probe="liveness"), 400.0, 1),
    ],
)
def test_a_container_that_keeps_exiting_for_a_year_costs_no_more_than_one_for_an_hour(
    behavior: Behavior, seconds: float, restarts: int
) -> None:
    assert at(behavior, 365 * 86_400.0).restarts == pytest.approx(365 * 86_400 / seconds * restarts, rel=0.01)
    day = [at(behavior, 86_400.0 + second) for second in range(0, 4000, 7)]
    assert [one.restarts for one in day] == sorted(one.restarts for one in day)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_container_that_is_not_started_again_has_one_end(*, restarts: bool) -> None:
    found = at(Behavior(1, 1.0), 30, Place("p", "main", restarts=restarts))
    assert (found.ended is not None and found.waiting is None) is not restarts


def test_images_probes_and_slow_starts() -> None:
    assert at(Behavior(has_no_image=True), 0).waiting == (
        "ErrImagePull",
        "no image: the annotation devicecore.io/containers says so",
    )
    reason, message = at(Behavior(has_no_image=True), 60).waiting or ("", "")
    assert reason == "ImagePullBackOff"
    assert message.startswith('Back-off pulling image "img": ErrImagePull: ')
    assert at(Behavior(starts_after=5.0), 4).waiting == ("ContainerCreating", "")
    unready = at(Behavior(is_unready=True), 60)
    assert (unready.started, unready.is_ready) == (BEGAN, False)
    killed = at(Behavior(137, 1.0, is_oom=True), 1.5).ended
    assert killed is not None
    assert (killed.code, killed.reason) == (137, "OOMKilled")


@given(
    st.builds(
        Behavior,
        st.integers(0, 255) | st.none(),
        st.floats(0, 400),
        probe=st.sampled_from(["", "liveness", "startup"]),
        starts_after=st.floats(0, 50),
    ),
    st.floats(0, 5_000),
    st.floats(0, 5_000),
)
def test_a_life_goes_on_in_order(behavior: Behavior, first: float, more: float) -> None:
    """The number of restarts never decreases, and a container's state does not change before the time that it names."""
    before, after = at(behavior, first), at(behavior, first + more)
    assert after.restarts >= before.restarts
    now = BEGAN + timedelta(seconds=first)
    assert before.until is None or before.until > now
    if before.until is None or now + timedelta(seconds=more) < before.until:
        assert after == before
