"""The process of a plugin or driver, and the time budget of its run.

Laws: a process that exits on its own is restarted while a check waits, unless the settings forbid it, and every such
exit is recorded with the output at that time. Once the run is out of time, no check waits any longer.
"""

import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NoReturn, TypeVar

from attrs import evolve

from devicecore_tools.conformance.model import (
    Abort,
    Exit,
    Failure,
    OutOfTime,
    Skip,
    require,
    some,
    time_is_over,
)
from devicecore_tools.conformance.processes import Waits, exit_of, has_ended
from devicecore_tools.testing.process import PluginProcess, StillRunningError

T = TypeVar("T")

LATER_START = 2.0
"""A later start may take this many times as long as the first one."""

_TIMES = re.compile(r"^\W*[A-Z]?[0-9][-0-9/]*[T ]?[0-9:.,]*Z?( +[0-9]+(?= \S+:[0-9]+\]))?|time=\S+ *")
_NAMES = re.compile(r"[0-9a-f-]*[0-9][0-9a-f-]*")  # names and numbers that differ each time
_POLL_INTERVAL = 0.02  # seconds
_EXIT_PAUSE = 0.3  # seconds from a failure to the exit it causes, and from an exit to the next start
_LOST_PAUSE = 5.0  # seconds from a lost connection to the exit of a process that has also closed its socket
_CLOSING = 60.0  # seconds for Linux to close what a process has left open
_MAX_EXITS = 3  # restarts during one wait


def _kinds_of(crashes: Iterable[str]) -> set[str]:
    """Return the sentences about crashes without the names and numbers that differ each time."""
    return {_NAMES.sub("N", crash) for crash in crashes}


class SubjectProcess(ABC):
    """A process that is restarted as often as needed.

    Args:
        budget: seconds for the run, named in the message that says that the time is over.
        restart: whether a process that exits on its own is restarted, as in Kubernetes.
    """

    def __init__(self, budget: float, *, restart: bool = True) -> None:
        self.running: PluginProcess | None = None
        """The process that was started most recently. The process may have ended."""
        self.exits: list[Exit] = []
        """The exits of the process that the run did not cause."""
        self.reported: set[int] = set()
        """The ids of the processes whose exits a failed check has reported."""
        self.deadline: float = math.inf
        """The deadline of the run, as a `time.monotonic()` timestamp."""
        self.is_leaving: bool = False
        """Whether a call has lost its connection and nothing listens any longer. The process is then about to exit."""
        self._budget = budget
        self._restarts = restart
        self._last_output = ""
        self._told: set[str] = set()  # the kinds of crashes that checks have reported

    @abstractmethod
    def start(self) -> None:
        """Start the process, after ending the previous one."""

    @property
    def output(self) -> str:
        """The end of the process's output. If the process was restarted, the previous process's output comes first.

        If lines differ only in their timestamps, only the last one is kept.
        """
        texts = (self._last_output, self.running.last_output if self.running else "")
        lines = [line for text in texts for line in text.splitlines()]
        latest = {_TIMES.sub("", line): number for number, line in enumerate(lines)}  # the same line is printed once
        return "\n".join(line for number, line in enumerate(lines) if latest[_TIMES.sub("", line)] == number)

    @property
    def waits(self) -> Waits:
        """How long the process has waited so far, which is unknown if the run did not start the process."""
        return Waits.of(self.running)

    # --- its exits ----------------------------------------------------------------------------------------------------

    @property
    def has_exited(self) -> bool:
        """Whether the process has exited on its own and has not been restarted yet."""
        return self.running is not None and self.running.failure is not None

    def exits_since(self, number: int) -> list[str]:
        """Return a sentence for each exit after the first `number`, without duplicates."""
        return list(dict.fromkeys(map(str, self.exits[number:])))

    def blame(self, check: str) -> None:
        """Record that the exits that are not yet attributed to a check happened during this check."""
        self.exits = [one if one.during else evolve(one, during=check) for one in self.exits]

    def require_no_crash(self, check: str, sentence: str, since: int) -> None:
        """Require that the process did not crash during a check that otherwise passed.

        `sentence` is what the check found. `since` is the number of exits before the check.
        """
        crashes = self._crashes_during(check, since)
        self._told |= _kinds_of(crashes)
        require(not crashes, f"{sentence}; but the process crashed in the meantime: {some(crashes)}")

    def with_exits(self, check: str, problem: Failure | Skip, since: int) -> Failure | Skip:
        """Add to a check's problem the exits during the check that may have caused the problem.

        `since` is the number of exits before the check. A crash fails a check that could not be run, unless an earlier
        check has reported the same kind of crash.
        """
        crashes = self._crashes_during(check, since)
        is_new = not _kinds_of(crashes) <= self._told
        self._told |= _kinds_of(crashes)
        if isinstance(problem, Abort | OutOfTime):
            return problem
        if isinstance(problem, Skip):
            if not crashes:
                return problem
            text = f"{problem}; the process crashed: {some(crashes)}"
            return Failure(text) if is_new else type(problem)(text)
        ended = [text for text in map(str, self._exits_during(check, since)) if text not in str(problem)]
        return Failure(f"{problem}; {ended[-1]}") if ended else problem

    def excuse(self, since: int) -> None:
        """Treat the crashes after the first `since` exits as known: they do not fail a check."""
        self._told |= _kinds_of(str(one) for one in self.exits[since:] if one.is_crash)

    def _exits_during(self, check: str, since: int) -> list[Exit]:
        """Return the exits that happened during a check, leaving out the first `since` exits of the run."""
        return [one for one in self.exits[since:] if one.during == check]

    def _crashes_during(self, check: str, since: int) -> list[str]:
        """Return a sentence for each crash during a check, without duplicates."""
        return list(dict.fromkeys(str(one) for one in self._exits_during(check, since) if one.is_crash))

    def wait_for_exit(self) -> None:
        """Wait for a process that is about to exit, to distinguish an exit from a lost connection."""
        number, limit = len(self.exits), _LOST_PAUSE if self.is_leaving else _EXIT_PAUSE
        self.is_leaving = False
        with suppress(Skip):  # no time is left, which the next check reports
            self.wait(lambda: len(self.exits) > number, limit)

    def notice_exit(self) -> None:
        """If the process has exited on its own, record that and restart it, so that no later check is blamed."""
        if self.running is not None and self.running.status is not None:
            self.wait(lambda: self.running is None or self.running.status is None, _EXIT_PAUSE)

    def _note_exit(self) -> None:
        """If the process exited on its own, record how. Wait for a process that is about to exit."""
        if self.running is None:
            return
        if self.is_leaving or self.running.status is not None:
            with suppress(StillRunningError):
                self.running.wait(_LOST_PAUSE)  # this also waits until the last output of the process has been read
        self.is_leaving = False
        seen = exit_of(self.running)
        if seen is not None and not any(one.pid == seen.pid for one in self.exits):
            self.exits.append(seen)

    # --- the time budget ------------------------------------------------------------------------------------------

    def wait(self, look: Callable[[], T | None], timeout: float) -> T | None:
        """Wait until `look` returns a truthy value and return it, or return None after `timeout` seconds.

        A process that exits in the meantime is restarted. If the process is not restarted, the wait ends early, because
        nothing more can happen. Raises OutOfTime if the run is out of time.
        """
        deadline = time.monotonic() + timeout
        exits = 0
        while True:
            if seen := look():
                return seen
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self.require_time()
            if not self.has_exited:
                time.sleep(min(_POLL_INTERVAL, left))
                continue
            exits += 1
            self._note_exit()
            if not self._restarts or exits > _MAX_EXITS:
                return None
            time.sleep(min(_EXIT_PAUSE, left))
            self.start()

    def wait_for_end(self, process: PluginProcess, grace: float) -> float:
        """Wait at most `grace` seconds until a process that was told to exit ends, and return how long it took.

        Once it has ended, also wait until Linux has closed what it left open, because it has no exit status before
        that. The result does not include that time.
        """
        began = time.monotonic()
        self.wait(lambda: has_ended(process.pid), grace)
        took = time.monotonic() - began
        if has_ended(process.pid):
            self.wait(lambda: process.status is not None, _CLOSING)
        return took

    def pause(self, seconds: float) -> None:
        """Let time pass. A process that exits in the meantime is restarted."""
        self.wait(lambda: None, seconds)

    @property
    def time_left(self) -> float:
        """Seconds until the deadline of the run."""
        return max(self.deadline - time.monotonic(), 0.0)

    def require_time(self) -> None:
        """Raise OutOfTime if the run is out of time."""
        if not self.time_left:
            self.skip_for_time()

    def skip_for_time(self) -> NoReturn:
        """Skip the current check because the run is out of time. Always raises OutOfTime."""
        raise time_is_over(self._budget)
