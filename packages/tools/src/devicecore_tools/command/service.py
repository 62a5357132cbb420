"""Tells a service manager, such as systemd, and `/healthz` whether a long-running command is working.

Law: only the main thread's loop reports that the command is alive, so a loop that hangs is noticed.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

from devicecore.domain.text import counted, foreign_text

SILENCE = 120.0
"""After this many seconds without an iteration, the main loop is unhealthy (kubelet: `SyncLoopHealthCheck`)."""

_PATIENCE = 1.0  # seconds to wait for a service manager whose message queue is full
_ROUNDS = 3  # reports per watchdog interval: more than the one that is required, because an iteration may be late

_log = logging.getLogger(__name__)


class Service:
    """Reports a command's state to a service manager and `/healthz` (systemd: sd_notify(3), sd_watchdog_enabled(3)).

    Args:
        environment: contains `NOTIFY_SOCKET` and, if the service manager expects regular reports, `WATCHDOG_USEC`.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket = environment.get("NOTIFY_SOCKET", "")
        self._clock = clock
        self._every = _seconds_of_watchdog(environment) / _ROUNDS
        self._last_round = clock()
        self._next_report = self._last_round if self._every < float("inf") else float("inf")
        self._problem = ""

    def ready(self) -> None:
        """Report that the command is now serving plugins, pods or nodes."""
        self._notify("READY=1")

    def stopping(self) -> None:
        """Report that the command is stopping."""
        self._notify("STOPPING=1")

    def alive(self) -> float:
        """Record an iteration of the main loop, and send a report if one is due. Return when the next report is due."""
        self._last_round = self._clock()
        if self._last_round >= self._next_report:
            self._notify("WATCHDOG=1")
            self._next_report = self._last_round + self._every
        return self._next_report

    def problem(self) -> str:
        """Return why the command is not healthy, or an empty string. Any thread may call this method."""
        silence = self._clock() - self._last_round
        return f"the main loop has been stuck for {counted(int(silence), 'second')}" if silence > SILENCE else ""

    def _notify(self, message: str) -> None:
        if not self._socket:
            return
        problem = ""
        if self._socket[0] not in "/@":
            problem = "expected a path, or '@' followed by the name of an abstract socket"
        else:
            # systemd writes '@' for the null byte at the start of an abstract socket's name.
            address = f"\0{self._socket[1:]}" if self._socket[0] == "@" else self._socket
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                    channel.settimeout(_PATIENCE)
                    channel.sendto(message.encode(), address)
            except (OSError, ValueError) as error:  # ValueError: a path with a null byte
                problem = str(error)
        if problem and problem != self._problem:  # log once, not with each report
            _log.warning("NOTIFY_SOCKET %s cannot be used: %s", foreign_text(self._socket), problem)
        self._problem = problem


def _seconds_of_watchdog(environment: Mapping[str, str]) -> float:
    """Return how many seconds the service manager allows without a report, or infinity if it expects none."""
    text = environment.get("WATCHDOG_USEC", "")
    is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if not text or not is_ours or not environment.get("NOTIFY_SOCKET"):
        return float("inf")
    if not (text.isascii() and text.isdecimal() and int(text[:20]) > 0):
        _log.warning("WATCHDOG_USEC: expected a number of microseconds, got %r", foreign_text(text, 50))
        return float("inf")
    return int(text[:20]) / 1e6
