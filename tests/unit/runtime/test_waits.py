"""Every wait ends at its deadline or when woken, no matter what signal handlers and other threads do."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakMethod

import pytest

from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.in_time import in_time
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.run import Latch
from devicecore.runtime.saver_thread import SaverThread
from devicecore.runtime.turns import Turns
from devicecore.runtime.wake_up import WakeUp
from tests.reliability.scale import scale

OVERDUE = 30.0  # seconds after its deadline by which a wait must have ended
SIGNALS = 50.0  # per second
TIMEOUT = 0.01


class Waits:
    """Waits for something that does not happen within `timeout` seconds: one for each class that can wait."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._state = CurrentState(0)
        self._turns = Turns[str]("a call")
        self._has_begun = threading.Event()
        self._saver: SaverThread | None = None

    def for_a_wake_up(self, timeout: float) -> None:
        assert not WakeUp().wait(timeout)

    def for_a_state(self, timeout: float) -> None:
        with pytest.raises(TimeoutError):
            self._state.wait_for(lambda _: False, timeout)

    def for_a_turn(self, timeout: float) -> None:
        if not self._has_begun.is_set():
            threading.Thread(target=self._hold, daemon=True).start()
            self._has_begun.wait()
        assert self._turns.begin(("key",), OpenCall(), timeout, "a call") is None

    def for_a_save(self, timeout: float) -> None:
        self._saver = self._saver or SaverThread()
        assert not self._saver.request(WeakMethod(self._hang), timeout)

    def for_work(self, timeout: float) -> None:
        with pytest.raises(TimeoutError):
            in_time(self._hang, timeout)

    def _hold(self) -> None:
        self._turns.begin(("key",), OpenCall(), 0.0, "a call")
        self._has_begun.set()
        self._end.wait()

    def _hang(self) -> None:
        self._end.wait()

    def close(self) -> None:
        """End the threads."""
        self._end.set()
        if self._saver is not None:
            self._saver.end()


Wait = Callable[[Waits, float], None]
KINDS: list[Wait] = [Waits.for_a_wake_up, Waits.for_a_state, Waits.for_a_turn, Waits.for_a_save, Waits.for_work]


@pytest.fixture
def waits() -> Iterator[Waits]:
    waits = Waits()
    yield waits
    waits.close()


@contextmanager
def handling(action: Callable[[], object], first: float, then: float) -> Iterator[None]:
    """Call `action` in a signal handler after `first` seconds, and again every `then` seconds."""
    before = signal.signal(signal.SIGALRM, lambda *_: action())
    signal.setitimer(signal.ITIMER_REAL, first, then)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def busy_thread() -> Iterator[None]:
    """Run a thread that computes, so that a handler may run long after its signal."""
    is_over = False

    def compute() -> None:
        while not is_over:
            sum(range(2000))

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over = True
        thread.join()


@pytest.mark.parametrize("wait", KINDS)
def test_a_wait_ends_whose_deadline_passes_in_a_signal_handler(
    wait: Callable[[Waits, float], None], waits: Waits
) -> None:
    """If the deadline passes in a handler, `SimpleQueue.get` in CPython 3.11 and 3.12 continues without a deadline."""
    wait(waits, 0.0)  # starts the threads that the wait needs
    until = time.monotonic() + TIMEOUT

    def quiet() -> None:
        time.sleep(max(0.0, until + 0.001 - time.monotonic()))
        assert time.monotonic() < until + OVERDUE, "the wait has not ended"

    with handling(quiet, TIMEOUT / 2, 0.5):
        wait(waits, TIMEOUT)


@pytest.mark.parametrize("wait", KINDS)
def test_waits_end_despite_many_quiet_signals_and_a_busy_thread(
    wait: Callable[[Waits, float], None], waits: Waits
) -> None:
    until = time.monotonic()

    def quiet() -> None:
        assert time.monotonic() < until + OVERDUE, "the wait has not ended"

    with busy_thread(), handling(quiet, 1 / SIGNALS, 1 / SIGNALS):
        for _ in range(scale(5, 20_000)):
            until = time.monotonic() + TIMEOUT
            wait(waits, TIMEOUT)


class HandlerError(Exception):
    """Raised by a signal handler."""


@pytest.mark.parametrize("wait", KINDS)
def test_a_handler_that_raises_ends_a_wait_and_no_later_one(wait: Wait, waits: Waits) -> None:
    def raising() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise HandlerError

    wait(waits, 0.0)
    with pytest.raises(HandlerError), handling(raising, TIMEOUT, 0.1):
        wait(waits, OVERDUE)
    wait(waits, TIMEOUT)


def test_a_signal_handler_wakes_the_thread_that_it_interrupts() -> None:
    wake_up = WakeUp()
    with handling(wake_up.wake, TIMEOUT, 0.1):  # a signal just before the wait is handled when the next one arrives
        assert wake_up.wait(OVERDUE)


def test_wake_ups_before_a_wait_count_as_one() -> None:
    wake_up = WakeUp()
    wake_up.wake()
    wake_up.wake()
    assert wake_up.wait(float("inf"))
    assert not wake_up.wait(-1.0)


def test_a_latch_lets_all_threads_go_on() -> None:
    latch, gone = Latch(), threading.Semaphore(0)

    def wait() -> None:
        latch.wait()
        gone.release()

    for _ in range(3):
        threading.Thread(target=wait, daemon=True).start()
    latch.set()
    latch.wait()
    assert all(gone.acquire(timeout=OVERDUE) for _ in range(3))
