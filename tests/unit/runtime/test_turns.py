import threading
from collections.abc import Callable

import pytest

from devicecore.domain.errors import CalledFromInsideError
from devicecore.runtime import open_call, turns
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.turns import Turn, Turns
from devicecore.runtime.wake_up import WakeUp
from devicecore.testing.interrupts import Interrupts

LIMIT = 60.0
INSIDE = "a call for the same thing"


def begin(turns: Turns[str], *keys: str, patience: float = LIMIT) -> Turn[str] | None:
    """Start a turn and return without ending it, like a call that is interrupted at a bad moment."""
    return turns.begin(keys, OpenCall(), patience, "a call")


def in_thread(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


class Holder:
    """A thread that keeps a turn until the test ends it, or for `LIMIT` seconds, because some tests never end it."""

    def __init__(self, turns: Turns[str], *keys: str) -> None:
        self._turns, self._keys = turns, keys
        self.has_begun, self._go_on = threading.Event(), threading.Event()
        self._thread = in_thread(self._hold)

    def _hold(self) -> None:
        turn = self._turns.begin(self._keys, OpenCall(), LIMIT, "a call")
        assert turn is not None
        self.has_begun.set()
        self._go_on.wait(LIMIT)
        self._turns.end(turn)

    def let_go(self) -> None:
        self._go_on.set()
        self._thread.join(LIMIT)


def waiting(turns: Turns[str], *keys: str) -> Holder:
    """Return a holder that waits for its turn."""
    before = len(turns._waiting)  # noqa: SLF001 - no event says that a thread waits
    holder = Holder(turns, *keys)
    while len(turns._waiting) == before:  # noqa: SLF001 - as above
        assert not holder.has_begun.wait(0.001)
    return holder


def test_turns_of_other_keys_do_not_wait_and_a_turn_of_the_same_key_does() -> None:
    turns = Turns[str](INSIDE)
    first = Holder(turns, "a", "b")
    assert first.has_begun.wait(LIMIT)
    assert Holder(turns, "c").has_begun.wait(LIMIT)
    second = waiting(turns, "b")
    first.let_go()
    assert second.has_begun.wait(LIMIT)


def test_a_turn_that_is_not_free_in_time_is_none() -> None:
    turns = Turns[str](INSIDE)
    assert Holder(turns, "a").has_begun.wait(LIMIT)
    assert begin(turns, "b", "a", patience=0.01) is None
    assert {*turns._taken} == {"a"}  # noqa: SLF001 - it has taken none of its keys
    assert not turns._waiting  # noqa: SLF001 - else later turns would wait for it


def test_a_call_for_two_keys_is_not_overtaken_by_calls_for_one_of_them() -> None:
    turns = Turns[str](INSIDE)
    first = Holder(turns, "a")
    assert first.has_begun.wait(LIMIT)
    both = waiting(turns, "a", "b")
    one = waiting(turns, "b")
    first.let_go()
    assert both.has_begun.wait(LIMIT)
    assert not one.has_begun.is_set()
    both.let_go()
    assert one.has_begun.wait(LIMIT)


def test_a_turn_inside_a_turn_of_the_same_key_is_an_error_of_the_caller() -> None:
    turns = Turns[str](INSIDE)
    turns.begin(("a", "b"), OpenCall(), LIMIT, "outer")
    turns.begin(("c",), OpenCall(), LIMIT, "inner")
    with pytest.raises(CalledFromInsideError, match=f"inner was called from inside {INSIDE}"):
        turns.begin(("d", "b"), OpenCall(), LIMIT, "inner")


def test_only_free_keys_are_taken_by_a_call_that_does_not_wait() -> None:
    turns = Turns[str](INSIDE)
    first = Holder(turns, "a")
    assert first.has_begun.wait(LIMIT)
    both = waiting(turns, "a", "b")
    turn = turns.begin_now("abc", OpenCall())
    assert turn.keys == ("c",)
    turns.end(turn)
    first.let_go()
    both.let_go()
    assert turns.begin_now("abc", OpenCall()).keys == ("a", "b", "c")


@pytest.mark.parametrize("where", ["in its thread", "in another thread", "on request"])
def test_an_abandoned_turn_is_ended_by_the_next_call(where: str) -> None:
    turns = Turns[str](INSIDE)
    if where == "in its thread":
        begin(turns, "a", "b")
        assert begin(turns, "c") is not None
    else:
        in_thread(lambda: begin(turns, "a", "b")).join(LIMIT)
        if where == "on request":
            turns.end_abandoned()
        else:
            assert begin(turns, "b") is not None
            return
    assert {*turns._taken} <= {"c"}  # noqa: SLF001 - this is what is being tested


def test_a_turn_that_is_ended_twice_ends_no_other() -> None:
    turns = Turns[str](INSIDE)
    turn = begin(turns, "a")
    assert turn is not None
    turns.end(turn)
    other = turns.begin(("a",), OpenCall(), 0, "a call")
    turns.end(turn)
    assert turns._taken == {"a": other}  # noqa: SLF001 - as above


class SlowKey(str):
    """A key that is compared and hashed in Python code, which an interrupt may hit."""

    __slots__ = ()

    def __hash__(self) -> int:
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


def test_a_turn_that_is_interrupted_at_any_place_leaves_no_key_taken() -> None:
    """The next call gets the keys at once, whether in the same thread or in another."""
    at, is_interrupted = 0, True
    keys: tuple[str, ...] = SlowKey("a"), SlowKey("b")
    while is_interrupted:
        at += 1
        owner = Turns[str](INSIDE)

        def one_call(owner: Turns[str] = owner) -> None:
            turn = owner.begin(keys, OpenCall(), LIMIT, "a call")
            try:
                assert turn is not None
            finally:
                if turn is not None:
                    owner.end(turn)

        is_interrupted = Interrupts(at, turns, open_call, __import__(__name__, fromlist=["_"])).interrupt(one_call)
        got: list[Turn[str] | None] = []

        def next_call(owner: Turns[str] = owner, got: list[Turn[str] | None] = got) -> None:
            got.append(begin(owner, *keys, patience=0.5))

        if at % 2:
            next_call()
        else:
            owner.end_abandoned()
            in_thread(next_call).join(LIMIT)
        assert got[0] is not None, at
        assert not owner._waiting, at  # noqa: SLF001 - as above
    assert at > 20


def test_the_end_of_a_turn_wakes_the_calls_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls do not poll."""
    waits = threading.Semaphore(0)

    class AnnouncedWakeUp(WakeUp):
        def wait(self, seconds: float) -> bool:
            waits.release()
            return super().wait(seconds)

    monkeypatch.setattr(turns, "WakeUp", AnnouncedWakeUp)
    monkeypatch.setattr(turns, "LOOK_AGAIN", 1e6)
    owner = Turns[str](INSIDE)
    first = Holder(owner, "a", "b")
    assert first.has_begun.wait(LIMIT)
    others = [Holder(owner, key) for key in "ab"]
    assert all(waits.acquire(timeout=LIMIT) for _ in others)
    first.let_go()
    assert all(other.has_begun.wait(LIMIT / 3) for other in others)
