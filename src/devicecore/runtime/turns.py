"""Turns by key: one call at a time for each pod or claim.

Law: a turn ends with the call that started it. If an interrupt keeps that call from ending its turn, the next call that
needs the turn ends it.

Why it is built this way:

* An interrupt (Ctrl-C, or an exception that another thread sends) may come between any two steps of a call: after a key
  is taken and before this is recorded, or midway through the release of keys. No `finally` can rule this out, because
  the interrupt may come before the `try` is entered, or inside the `finally`. So a key is not just marked as taken.
  Instead, a taken key refers to its turn, and the turn refers to its call, which is the frame of a function
  (`OpenCall`). Once that function has returned or raised an error, the turn is over, no matter what was left undone.
  The release of keys can be repeated: it removes only the keys that still refer to the turn, so a second attempt
  completes the first.
* A thread gets all keys of a turn or none of them. The thread waits only while it holds no key of this turn. So two
  turns with several keys cannot each hold a key that the other needs. A call may start a turn inside another turn:
  first a pod's turn, then one for the pod's claims. Nested turns cannot deadlock as long as all calls nest the two
  kinds of turns in this order.
* Among calls that need the same keys, turns are granted in the order of the calls. So a call that needs two
  claims is not overtaken forever by calls that need one of them.
* A call made inside a turn of its own thread would wait for itself, so it gets an error instead. Only turns whose call
  is still in progress count: a thread that was interrupted and continues is not inside any turn.
* Waiting is limited, because a turn may be waiting for a driver that never answers. A waiting call also checks again
  every second, because an interrupt may have kept the previous call from waking it.
* The lock is implemented in C, so that an interrupt cannot leave it half acquired. The lock is held only while
  dictionaries are read or written.
"""

import threading
import time
from collections.abc import Iterable
from typing import Generic, TypeVar

from attrs import define

from devicecore.domain.errors import CalledFromInsideError
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.wake_up import LOOK_AGAIN, WakeUp

Key = TypeVar("Key")


@define(eq=False)
class Turn(Generic[Key]):
    """A turn for one or more keys. `ended` wakes the turn's call while the call is waiting."""

    keys: tuple[Key, ...]
    call: OpenCall
    ended: WakeUp | None = None


class Turns(Generic[Key]):
    """Owns the turns. The lock is held while turns are looked up or written, and never while a port is called.

    `call` is what errors call a call that has a turn.
    """

    def __init__(self, call: str) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._taken: dict[Key, Turn[Key]] = {}
        self._waiting: dict[Turn[Key], None] = {}  # the waiting turns, in order of arrival

    def begin(self, keys: tuple[Key, ...], call: OpenCall, patience: float, method: str) -> Turn[Key] | None:
        """Start a turn for `keys` as soon as no other turn holds any of them. The turn ends when `call` ends.

        Return None if this takes longer than `patience` seconds of real time. Errors name `method`.

        Raises:
            CalledFromInsideError: the caller already runs inside a turn for one of these keys, and would wait for
                itself.
        """
        turn = Turn(keys, call)
        if self._taken:
            self._end_abandoned(of_thread=call.thread)
        if self._obstacle(turn) is None:
            return turn
        until = time.monotonic() + patience
        turn.ended = WakeUp()
        self._waiting[turn] = None
        try:
            while (obstacle := self._obstacle(turn)) is not None:
                if obstacle.call.encloses_caller:
                    raise CalledFromInsideError(method, self._call)
                left = until - time.monotonic()
                if left <= 0:
                    return None
                if not turn.ended.wait(min(left, LOOK_AGAIN)):
                    self.end_abandoned()
            return turn
        finally:
            self._waiting.pop(turn, None)

    def begin_now(self, keys: Iterable[Key], call: OpenCall) -> Turn[Key]:
        """Begin a turn, without waiting, for those `keys` that no other turn holds or waits for (possibly none)."""
        self.end_abandoned()
        turn = Turn[Key]((), call)
        with self._lock:
            wanted = {key for other in tuple(self._waiting) for key in other.keys}
            turn.keys = tuple(key for key in keys if key not in self._taken and key not in wanted)
            self._take(turn)
        return turn

    def end(self, turn: Turn[Key]) -> None:
        """End a turn, so that the next turn can start. A second call does nothing."""
        with self._lock:
            for key in turn.keys:
                if self._taken.get(key) is turn:
                    self._before_free(key)
                    del self._taken[key]
        turn.call.end()
        if self._waiting:
            for other in tuple(self._waiting):
                if other.ended is not None:
                    other.ended.wake()

    def end_abandoned(self) -> None:
        """End every turn whose call was interrupted so early or so late that the call could not end it."""
        if self._taken or self._waiting:
            self._end_abandoned()

    def _begun(self, turn: Turn[Key]) -> None:
        """Called when a turn starts. The lock is held."""

    def _before_free(self, key: Key) -> None:
        """Called before a key becomes free. The lock is held. If this call is interrupted, it is repeated."""

    def _obstacle(self, turn: Turn[Key]) -> Turn[Key] | None:
        """Start `turn`, or return another turn that has to end or start first."""
        with self._lock:
            taken = self._taken
            for key in turn.keys:
                if key in taken:
                    return taken[key]
            if self._waiting:
                for other in tuple(self._waiting):  # a copy: calls change `_waiting` without the lock
                    if other is turn:
                        break
                    if not other.call.has_ended and not set(turn.keys).isdisjoint(other.keys):
                        return other
            self._take(turn)
            return None

    def _take(self, turn: Turn[Key]) -> None:
        for key in turn.keys:
            self._taken[key] = turn
        self._begun(turn)

    def _end_abandoned(self, of_thread: int | None = None) -> None:
        for turn in tuple(self._taken.values()):
            if of_thread in {None, turn.call.thread} and turn.call.has_ended:
                self.end(turn)
        for turn in tuple(self._waiting):
            if turn.call.has_ended:
                self._waiting.pop(turn, None)
