"""The plugin's process: how it is started and stopped.

Law: a restarted process finds the sockets of its predecessor as the killed or stopped process left them.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from devicecore.system.sockets import socket_identity
from devicecore_tools.conformance.device_plugin.kubelet import BareKubelet
from devicecore_tools.conformance.device_plugin.settings import Settings
from devicecore_tools.conformance.model import DoesNotApply
from devicecore_tools.conformance.process import SubjectProcess
from devicecore_tools.testing.process import PluginProcess, StillRunningError

_NAME_INTERVAL = 1.1  # seconds between two starts, for plugins whose socket name contains their start time in seconds
_GRACE = 1.0  # seconds from SIGTERM to SIGKILL, except in the check that tests SIGTERM
_AFTER_A_CUT = 10.0  # seconds in which some plugins crash or exit because their streams have ended
_CLOCK_STEP = 50_000_000  # nanoseconds by which a file's timestamp may lag behind the clock


class ProcessUnderTest(SubjectProcess):
    """The plugin's process.

    Args:
        kubelet: the kubelet's side.
        start: starts the plugin's process, or None if the user starts it.
        settings: how the plugin is tested.
        end_rest: ends any of the plugin's processes that have left its session.
    """

    def __init__(
        self,
        kubelet: BareKubelet,
        start: Callable[[], PluginProcess] | None,
        settings: Settings,
        end_rest: Callable[[], None],
    ) -> None:
        super().__init__(settings.budget, restart=settings.restart)
        self.kubelet = kubelet
        self._start = start
        self._end_rest = end_rest
        self._started_ns = 0
        self.started_at: float = 0.0
        """When the process was last started, as a `time.monotonic()` timestamp."""
        self.unprovoked: set[int] = set()
        """The ids of processes that exited on their own, although the kubelet had given them no reason."""

    @property
    def is_ours(self) -> bool:
        """Whether the checks start and stop the plugin's process."""
        return self._start is not None

    def require_process(self) -> PluginProcess:
        """Return the plugin's process. Raises Skip if the user has started the process."""
        if self.running is None:
            raise DoesNotApply("the plugin was started by hand, so its process is not known")
        return self.running

    def start(self) -> None:
        """Start the process, unless the user starts it.

        Raises CannotRunError if the program does not exist or is not executable.
        """
        if self._start is not None:
            self.stop()
            if self.running is not None:
                self._last_output = self.running.last_output
            self._started_ns, self.started_at = time.time_ns(), time.monotonic()
            self.running = self._start()

    def stop(self) -> None:
        """End the process, unless the user started it. A second call does nothing."""
        if self.running is not None:
            self._note_exit()
            self.running.terminate()
            self.running.resume()
            with suppress(StillRunningError):
                self.running.wait(_GRACE)
            self.running.kill()
            self._end_rest()  # before `stop`, which waits until no daemon holds the output pipe
            self.running.stop(grace=0.0)

    def _note_exit(self) -> None:
        """If the process exited on its own, record how, and whether the kubelet may have been the reason."""
        number = len(self.exits)
        super()._note_exit()
        if not self.kubelet.gave_a_reason(self.started_at, _AFTER_A_CUT):
            self.unprovoked.update(one.pid for one in self.exits[number:])

    def kill_and_start(self) -> None:
        """Kill the process, so that its socket stays, and start it again in a different clock second."""
        last = max([self.started_at, *(registration.at for registration in self.kubelet.registrations[-1:])])
        self.pause(last + _NAME_INTERVAL - time.monotonic())
        self.require_process().kill()
        self.start()

    def own_sockets(self) -> list[str]:
        """Return the names of the sockets that the running process created, excluding those of earlier processes."""
        found = {path.name: socket_identity(str(path)) for path in self.kubelet.plugin_sockets()}
        since = self._started_ns - _CLOCK_STEP
        return sorted(name for name, identity in found.items() if identity and identity.created_ns >= since)
