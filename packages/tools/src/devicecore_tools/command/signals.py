"""Signals as events: one thread receives them, and the main thread waits for them.

Law: a signal interrupts no call, and SIGTERM is noticed even if the main thread is busy or hangs.

`signal.sigtimedwait` is not used here: after SIGSTOP and SIGCONT it returns a number that was not sent (CPython 3.11 to
3.14), because it does not set the result if the timeout expires at that point.

A kernel timer that sends SIGALRM forces the process to end. The timer is created in advance, so this works even if the
process has run out of threads or memory, or if a thread holds the interpreter lock.
"""

import signal
import threading
from typing import Self

ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
"""The signals that tell the process to exit. Closing a terminal sends SIGHUP."""

THREAD = "devicecore-signals"
"""The name of the thread that receives signals."""

_STOP = signal.SIGURG  # sent to the receiving thread by `__exit__`; ignored by a process that does not wait for it


class Signals:
    """A context manager that receives the signals in `ENDING` (SIGHUP only if it is not ignored) and in `others`.

    A signal in `others` does not end the process, even if it is in `ENDING`.

    Enter the context before other threads start. These threads then inherit the signal mask, so no signal
    interrupts their calls.

    Args:
        others: signals that only wake the main thread.
        grace: the seconds from the first signal in `ENDING` until SIGALRM kills the process; None means never.
    """

    def __init__(self, *others: signal.Signals, grace: float | None = None) -> None:
        self._ending = ENDING - {*others}
        received = {*ENDING, *others, _STOP}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # SIGHUP is ignored under nohup
            received.remove(signal.SIGHUP)
        self._received = frozenset(received)
        self._grace = grace
        self._changed = threading.Condition()
        self._arrived: set[signal.Signals] = set()
        self._woken = self._is_left = False
        self._ended_by: str | None = None
        self._thread = threading.Thread(target=self._receive, name=THREAD, daemon=True)

    def __enter__(self) -> Self:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, self._received)
        if self._grace is not None:  # threads that start from now on do not block SIGALRM
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread.ident is not None, "it was started"  # noqa: S101 - for mypy
        self._is_left = True
        signal.pthread_kill(self._thread.ident, _STOP)
        self._thread.join()
        while late := signal.sigpending() & self._received:
            signal.sigwait(late)  # once unblocked, the signal would end the process
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    @property
    def ended_by(self) -> str | None:
        """What told the process to exit, as logged: the name of the first signal, or the reason passed to `end`."""
        return self._ended_by

    def wake(self) -> None:
        """End the main thread's current `wait`, or its next one. Any thread may call this method."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def end(self, reason: str) -> None:
        """Tell the process to exit, as a signal in `ENDING` does. Any thread may call this method."""
        with self._changed:
            self._ended_by = self._ended_by or reason
            self._changed.notify_all()

    def wait(self, seconds: float | None = None) -> frozenset[signal.Signals]:
        """Wait until a signal arrives, `wake` or `end` is called, or `seconds` have passed.

        Returns:
            The signals in `others` that have arrived since the last call. Callers must also check `ended_by`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._woken or self._ended_by is not None, seconds)
            arrived, self._arrived, self._woken = frozenset(self._arrived), set(), False
            return arrived

    def wait_for_end(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds` until the process is told to exit, and return whether it has been told."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended_by is not None, seconds)

    def _receive(self) -> None:
        while not self._is_left:
            number = signal.sigwait(self._received)
            if number == _STOP:  # sent by `__exit__`; ignored if another process sent it
                continue
            if number not in self._ending:
                with self._changed:
                    self._arrived.add(signal.Signals(number))
                    self._changed.notify_all()
                continue
            if self._ended_by is None and self._grace is not None:
                signal.setitimer(signal.ITIMER_REAL, self._grace)
            self.end(f"ended by {signal.Signals(number).name}")
