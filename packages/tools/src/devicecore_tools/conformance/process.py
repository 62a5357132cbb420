"""The process of a plugin or driver, and the time of its run.

Laws: a process that ends by itself is started again while a check waits, unless the settings forbid it, and each such
end is kept with what the process printed in that moment. When the time of the run is over, no check waits any longer.
"""

import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
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
from devicecore_tools.conformance.processes import exit_of
from devicecore_tools.testing.process import PluginProcess, StillRunningError

T = TypeVar("T")

LATER_START = 2.0
"""A later start of a process may take so many times as long as its first one."""

_TIMES = re.compile(r"^\W*[A-Z]?[0-9][-0-9/]*[T ]?[0-9:.,]*Z?( +[0-9]+(?= \S+:[0-9]+\]))?|time=\S+ *")
_NAMES = re.compile(r"[0-9a-f-]*[0-9][0-9a-f-]*")  # and numbers, which differ each time
_POLL_INTERVAL = 0.02  # seconds
_EXIT_PAUSE = 0.3  # seconds from a failure to the exit that it causes, and from an exit to the next start
_LOST_PAUSE = 5.0  # seconds from a lost connection to the exit of a process that has closed its socket, too
_MAX_EXITS = 3  # during one wait


def _kinds_of(crashes: Iterable[str]) -> set[str]:
    """Return the sentences about crashes without names and numbers, which differ each time."""
    return {_NAMES.sub("N", crash) for crash in crashes}


class SubjectProcess(ABC):
    """A process that is started again and again.

    Args:
        budget: seconds of the run. The sentence which says that they are over names them.
        restart: whether a process that ends by itself is started again, as Kubernetes does.
    """

    def __init__(self, budget: float, *, restart: bool = True) -> None:
        self.running: PluginProcess | None = None
        """The process that was started last. It may have ended."""
        self.exits: list[Exit] = []
        """Each time that the process ended by itself."""
        self.reported: set[int] = set()
        """The ids of the processes whose exits a check that has failed has reported."""
        self.deadline: float = math.inf
        """When the time of the run is over, in seconds of `time.monotonic`."""
        self.is_leaving: bool = False
        """Whether a call has lost its connection and nobody listens anymore, so the process is about to end."""
        self._budget = budget
        self._restarts = restart
        self._last_output = ""
        self._told: set[str] = set()  # the kinds of crashes that checks have reported

    @abstractmethod
    def start(self) -> None:
        """Start the process, and end the former one."""

    @property
    def output(self) -> str:
        """The end of what the process printed, after that of the former process if it was started again.

        Of lines that differ only in the time, the last one is there.
        """
        texts = (self._last_output, self.running.last_output if self.running else "")
        lines = [line for text in texts for line in text.splitlines()]
        latest = {_TIMES.sub("", line): number for number, line in enumerate(lines)}  # the same line is printed once
        return "\n".join(line for number, line in enumerate(lines) if latest[_TIMES.sub("", line)] == number)

    @property
    def queued(self) -> Mapping[str, float]:
        """Seconds for which each thread has waited for a processor. It is empty if no process of the run is known."""
        return {} if self.running is None else self.running.queued_seconds

    # --- its exits ----------------------------------------------------------------------------------------------------

    @property
    def has_exited(self) -> bool:
        """Whether the process has ended by itself and was not started again yet."""
        return self.running is not None and self.running.failure is not None

    def exits_since(self, number: int) -> list[str]:
        """Return a sentence for each exit after the first `number` ones, without repetitions."""
        return list(dict.fromkeys(map(str, self.exits[number:])))

    def blame(self, check: str) -> None:
        """Note the name of the check during which the process has ended."""
        self.exits = [one if one.during else evolve(one, during=check) for one in self.exits]

    def require_no_crash(self, check: str, sentence: str, since: int) -> None:
        """Check that the process has not crashed during a check, which has passed otherwise with this sentence.

        `since` is the number of exits before the check.
        """
        crashes = self._crashes_during(check, since)
        self._told |= _kinds_of(crashes)
        require(not crashes, f"{sentence}; but meanwhile it crashed: {some(crashes)}")

    def with_exits(self, check: str, problem: Failure | Skip, since: int) -> Failure | Skip:
        """Return the problem of a check with the exits during it after the first `since`, which may be the reason.

        A crash fails a check that cannot be made, unless an earlier check has reported such a crash.
        """
        crashes = self._crashes_during(check, since)
        is_new = not _kinds_of(crashes) <= self._told
        self._told |= _kinds_of(crashes)
        if isinstance(problem, Abort | OutOfTime):
            return problem
        if isinstance(problem, Skip):
            if not crashes:
                return problem
            text = f"{problem}; it crashed: {some(crashes)}"
            return Failure(text) if is_new else type(problem)(text)
        ended = [text for text in map(str, self._exits_during(check, since)) if text not in str(problem)]
        return Failure(f"{problem}; {ended[-1]}") if ended else problem

    def excuse(self, since: int) -> None:
        """Take the crashes after the first `since` exits for known: they are no reason to fail a check."""
        self._told |= _kinds_of(str(one) for one in self.exits[since:] if one.is_crash)

    def _exits_during(self, check: str, since: int) -> list[Exit]:
        """Return the exits during a check after the first `since` ones."""
        return [one for one in self.exits[since:] if one.during == check]

    def _crashes_during(self, check: str, since: int) -> list[str]:
        """Return a sentence for each crash during a check, without repetitions."""
        return list(dict.fromkeys(str(one) for one in self._exits_during(check, since) if one.is_crash))

    def wait_for_exit(self) -> None:
        """Let a process that is about to end do so, to tell an exit from a lost connection."""
        number, limit = len(self.exits), _LOST_PAUSE if self.is_leaving else _EXIT_PAUSE
        self.is_leaving = False
        with suppress(Skip):  # no time is left, which the next check says
            self.wait(lambda: len(self.exits) > number, limit)

    def notice_exit(self) -> None:
        """If the process has ended by itself, note that and start it again, so that no later check is blamed for it."""
        if self.running is not None and self.running.status is not None:
            self.wait(lambda: self.running is None or self.running.status is None, _EXIT_PAUSE)

    def _note_exit(self) -> None:
        """Note how the process has ended, if it has ended by itself. One that is about to end is waited for."""
        if self.running is None:
            return
        if self.is_leaving or self.running.status is not None:
            with suppress(StillRunningError):
                self.running.wait(_LOST_PAUSE)  # also until its last output was read
        self.is_leaving = False
        seen = exit_of(self.running)
        if seen is not None and not any(one.pid == seen.pid for one in self.exits):
            self.exits.append(seen)

    # --- the time of the run ------------------------------------------------------------------------------------------

    def wait(self, look: Callable[[], T | None], timeout: float) -> T | None:
        """Wait until `look` returns something true and return that. Return None after `timeout` seconds.

        A process that ends meanwhile is started again. The wait ends early if it stays ended, because nothing can
        happen then. Raises OutOfTime if no time is left for the run.
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

    def pause(self, seconds: float) -> None:
        """Let time pass. A process that ends meanwhile is started again."""
        self.wait(lambda: None, seconds)

    @property
    def time_left(self) -> float:
        """Seconds until the end of the run."""
        return max(self.deadline - time.monotonic(), 0.0)

    def require_time(self) -> None:
        """Do nothing if time is left for the run. Raises OutOfTime if none is left."""
        if not self.time_left:
            self.skip_for_time()

    def skip_for_time(self) -> NoReturn:
        """Skip the present check, because no time is left for it. Always raises OutOfTime."""
        raise time_is_over(self._budget)
