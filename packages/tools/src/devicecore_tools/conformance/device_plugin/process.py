"""The process of a plugin, and the time of the run.

Laws: a process that ends by itself is started again while a check waits, unless the settings forbid it. When the time
of the run is over, no check waits any longer.
"""

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from attrs import evolve

from devicecore.system.sockets import socket_identity
from devicecore_tools.conformance.device_plugin.kubelet import BareKubelet
from devicecore_tools.conformance.device_plugin.settings import Settings
from devicecore_tools.conformance.model import Exit, OutOfTime, Skip, time_is_over
from devicecore_tools.conformance.processes import exit_of
from devicecore_tools.testing.process import PluginProcess, StillRunningError

T = TypeVar("T")

_EXIT_PAUSE = 0.3  # seconds from a failure to the exit that it causes, and from an exit to the next start
_MAX_EXITS = 3  # during one wait
_NAME_INTERVAL = 1.1  # seconds between two starts, for plugins with the second of their start in the socket's name
_GRACE = 1.0  # seconds from SIGTERM to SIGKILL, except in the check of SIGTERM
_CLOCK_STEP = 50_000_000  # nanoseconds by which a file's time may be behind the clock


class ProcessUnderTest:
    """The plugin's process, which is started again and again.

    Args:
        kubelet: the kubelet's side.
        start: starts the plugin's process; None if the user starts it.
        settings: how it is tested.
        changed: notified after every event.
        end_rest: ends processes of the plugin that have left its session.
    """

    def __init__(
        self,
        kubelet: BareKubelet,
        start: Callable[[], PluginProcess] | None,
        settings: Settings,
        changed: threading.Condition,
        end_rest: Callable[[], None],
    ) -> None:
        self.running: PluginProcess | None = None
        """The process that was started last; it may have ended."""
        self.exits: list[Exit] = []
        """Each time that the process ended by itself."""
        self.deadline: float = math.inf
        """When the time of the run is over, in seconds of `time.monotonic`."""
        self.kubelet = kubelet
        self.settings = settings
        self._start = start
        self._changed = changed
        self._end_rest = end_rest
        self._last_output = ""
        self._started_ns = 0
        self._started_at = 0.0

    @property
    def is_ours(self) -> bool:
        """Whether the checks start and end the plugin's process."""
        return self._start is not None

    @property
    def output(self) -> str:
        """The end of what the plugin printed, with the end of its former process if it was started again."""
        return "\n".join(text for text in (self._last_output, self.running.last_output if self.running else "") if text)

    def require_process(self) -> PluginProcess:
        """Return the plugin's process.

        Raises:
            Skip: the user has started it.
        """
        if self.running is None:
            reason = "the plugin was started by hand, so its process is not known"
            raise Skip(reason)
        return self.running

    def start(self) -> None:
        """Start the process, if the checks do that.

        Raises:
            CannotRunError: the program does not exist or may not be run.
        """
        if self._start is not None:
            self.stop()
            if self.running is not None:
                self._last_output = self.running.last_output
            self._started_ns, self._started_at = time.time_ns(), time.monotonic()
            self.running = self._start()

    def stop(self) -> None:
        """End the process, if the checks have started it. A second call does nothing."""
        if self.running is not None:
            if self.running.status is not None:
                self.running.wait()
                if self.has_exited():
                    self._note_exit()
            self.running.terminate()
            self.running.resume()
            with suppress(StillRunningError):
                self.running.wait(_GRACE)
            self.running.kill()
            self._end_rest()  # before `stop`, which waits until no daemon has the pipe of its output
            self.running.stop(grace=0.0)

    def kill_and_start(self) -> None:
        """Kill the process, so that its socket stays, and start it again in another second of the clock."""
        last = max([self._started_at, *(registration.at for registration in self.kubelet.registrations[-1:])])
        self.pause(last + _NAME_INTERVAL - time.monotonic())
        self.require_process().kill()
        self.start()

    def own_sockets(self) -> list[str]:
        """Return the names of the sockets that the running process has made, not those of former processes."""
        found = {path.name: socket_identity(str(path)) for path in self.kubelet.plugin_sockets()}
        since = self._started_ns - _CLOCK_STEP
        return sorted(name for name, identity in found.items() if identity and identity.created_ns >= since)

    def wait(self, look: Callable[[], T | None], timeout: float) -> T | None:
        """Wait until `look` returns something true and return that; None after `timeout` seconds.

        If the process ends by itself, it is started again, unless the settings forbid it. The wait ends early if the
        process stays ended, because nothing can happen then.

        Raises:
            OutOfTime: no time is left for the run.
        """
        deadline = time.monotonic() + timeout
        exits = 0
        while True:
            with self._changed:
                if seen := look():
                    return seen
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self.require_time()
                if not self.has_exited():
                    self._changed.wait(min(left, self.deadline - time.monotonic()))
                    continue
            exits += 1
            if not self._note_exit() or exits > _MAX_EXITS:
                return None
            time.sleep(min(_EXIT_PAUSE, left))
            self.start()

    def pause(self, seconds: float) -> None:
        """Let time pass. A process that ends meanwhile is started again."""
        self.wait(lambda: None, seconds)

    def wait_for_exit(self) -> None:
        """Let a process that is about to end do so, to tell an exit from a lost connection."""
        with suppress(OutOfTime):  # the next check says so
            self.pause(_EXIT_PAUSE)

    def require_time(self) -> None:
        """Do nothing if time is left for the run.

        Raises:
            OutOfTime: none is left.
        """
        if time.monotonic() >= self.deadline:
            raise time_is_over(self.settings.budget)

    def has_exited(self) -> bool:
        """Return whether the process has ended by itself."""
        return self.running is not None and self.running.failure is not None

    def blame(self, check: str) -> None:
        """Note the name of the check during which the process has ended."""
        self.exits = [one if one.during else evolve(one, during=check) for one in self.exits]

    def _note_exit(self) -> bool:
        """Record an exit of the process; return whether to start it again."""
        seen = exit_of(self.running) if self.running is not None else None
        if seen is not None and not any(one.pid == seen.pid for one in self.exits):
            self.exits.append(seen)
        return self.settings.restart
