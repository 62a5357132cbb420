"""The process of a driver, and the deadline of its run.

Law: once the run is out of time, no call and no process of the driver can keep a check waiting.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from devicecore_tools.conformance.dra.container_runtime import VARIABLE as RUNTIME_VARIABLE
from devicecore_tools.conformance.dra.container_runtime import RuntimeConnection
from devicecore_tools.conformance.dra.environment import Environment
from devicecore_tools.conformance.dra.kubelet import DriverKubelet, identity_of
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from devicecore_tools.conformance.process import SubjectProcess
from devicecore_tools.conformance.processes import Waits, end_all
from devicecore_tools.testing.process import POD_UID, PluginProcess, StillRunningError

_MOST_FOR_CALLS = 900.0  # seconds by which slow calls may extend the run
_SOON = 2.0  # seconds that a normal start takes
_LAST_GRACE = 2.0  # seconds from SIGTERM to SIGKILL at the end of the run
_MOST_HELD_UP = 2.0  # how much waiting for processors and disks is excused at most, as a multiple of the limit
CUT_GRACE = 1.0
"""When a run is out of time: the seconds from canceling calls to killing processes, and from SIGTERM to SIGKILL."""


class DriverProcess(SubjectProcess):
    """A driver as a process that is restarted as often as needed.

    Args:
        environment: the driver's environment, already entered.
        kubelet: the kubelet, whose connections end with the process.
        command: the command that starts the driver; placeholders in it are replaced.
        settings: how the driver is tested.
    """

    def __init__(
        self, environment: Environment, kubelet: DriverKubelet, command: Sequence[str], settings: DriverTestSettings
    ) -> None:
        super().__init__(settings.budget)
        self.deadline = time.monotonic() + settings.budget - settings.elapsed
        self.started_at: float = 0.0
        """When the process was last started, as a `time.monotonic()` timestamp."""
        self.versions: list[int] = []
        """The API server's resource version at each start of the process."""
        self.asked_before: int = 0
        """How many requests the API server had received at the last start."""
        self.needs_clean_directories: bool = False
        """Whether the next start is in a new container, without the previous sockets."""
        self.start_seconds: float = 0.0
        """How many seconds a start of the driver takes, or 0 if a start is quick.

        Each start extends the run by this time.
        """
        self._environment = environment
        self._kubelet = kubelet
        self._command = tuple(command)
        self._settings = settings
        self._runtimes: list[RuntimeConnection] = []
        self._starting = threading.RLock()
        self._left_for_calls = _MOST_FOR_CALLS
        self._is_over = False
        self._has_ended = threading.Event()

    # --- its run ------------------------------------------------------------------------------------------------------

    @property
    def has_instances(self) -> bool:
        """Whether two driver processes can run at once, which needs `{pod_uid}` in the command or environment."""
        return any("{pod_uid}" in text for text in (*self._command, *self._settings.environment.values()))

    def spawn(self, pod_uid: str = POD_UID, texts: Mapping[str, str] | None = None) -> PluginProcess:
        """Start a process of the driver with these placeholders. `run` stops the process if the caller does not.

        Raises CannotRunError if the program does not exist or is not executable. Raises Skip if the run is out
        of time.
        """
        texts = {"{pod_uid}": pod_uid, **(texts or {})}
        command = [self._environment.expand(word, texts) for word in self._command]
        with self._starting:
            if self._is_over:
                self.skip_for_time()
            self._environment.make_data_directory()
            runtime = RuntimeConnection()
            self._runtimes.append(runtime)
            number = runtime.peer.fileno()
            process = PluginProcess(
                command,
                self._environment.plugins,
                environment={RUNTIME_VARIABLE: str(number), **self._environment.variables(texts)},
                keep_open=[number],
            )
            process.start()
            runtime.serve()
            return process

    def start(self) -> None:
        """Start the process, after ending the previous one.

        If a check has reported that the driver did not come back while its old sockets existed, these sockets are
        deleted first. Raises Skip if the run is out of time.
        """
        with self._starting:
            self.kill()
            if self.needs_clean_directories:
                self.delete_sockets()
            if self.running is not None:
                self._last_output = self.running.last_output
            self.deadline += self.start_seconds
            self.versions.append(self._environment.api.store.version)
            self.started_at, self.asked_before = time.monotonic(), len(self._environment.api.requests)
            self.running = self.spawn()

    def kill(self) -> None:
        """Kill all processes of the driver, so that they cannot clean up."""
        with self._starting:
            if self.running is not None:
                self._note_exit()
                self.running.kill()
            end_all(self._environment.marker, but_not=self._environment.others)
        self._kubelet.disconnect()

    def terminate(self) -> tuple[int | None, float]:
        """Send SIGTERM. Return the exit status, and the seconds until the process exited.

        The status is None if the process is still running after its grace period.
        """
        assert self.running is not None, "it was started"  # noqa: S101 - for mypy
        self.running.terminate()
        took = self.wait_for_end(self.running, self._settings.grace)
        return self.running.status, took

    def stop(self) -> None:
        """End everything: the driver first, then the kubelet. An interrupt only shortens the wait for the driver."""
        with ExitStack() as stack:
            stack.callback(self._kubelet.stop)
            for runtime in self._runtimes:
                stack.callback(runtime.close)
            if self.running is not None:
                stack.callback(self.running.stop, grace=0.0)
            stack.callback(self.kill)  # called before `stop`, which waits until no daemon holds the output pipe
            if self.running is not None:
                self.running.terminate()
                with suppress(StillRunningError):
                    self.running.wait(CUT_GRACE if self._is_over else _LAST_GRACE)

    def delete_sockets(self) -> None:
        """Delete the sockets that the driver has created in the run's directories."""
        for instance in self._kubelet.history:
            for path in {instance.path, instance.endpoint}:
                if identity_of(path) is not None and self._environment.contains(path):
                    Path(path).unlink(missing_ok=True)

    # --- the time budget ------------------------------------------------------------------------------------------

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """When the run is out of time, end whatever waits for the driver: first all calls, then all processes."""
        watcher = threading.Thread(target=self._cut_in_time, name="conformance-time", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._has_ended.set()
            watcher.join()

    def wait_fairly(self, look: Callable[[], object], limit: float, waits: Waits | None = None) -> bool:
        """Wait until `look` returns a truthy value, and return whether it did.

        The wait lasts at most `limit` seconds, not counting those in which the process had to wait for processors and
        disks since `waits` was measured. That time extends the run.
        """
        waits, began = waits or self.waits, time.monotonic()
        end = began + limit
        while not self.wait(look, max(end - time.monotonic(), 0.0)):
            later = began + limit + min(waits.until(self.waits), _MOST_HELD_UP * limit)
            if later <= max(end, time.monotonic()):
                return False
            self.deadline += later - end  # the time must not be lost to the other checks
            end = later
        return True

    def allow_for(self, seconds: float) -> None:
        """Extend the run for a slow first start, which took this many seconds, and for each later start."""
        if seconds > _SOON:
            self.start_seconds += seconds
            self.deadline += seconds

    def allow_for_call(self, seconds: float) -> None:
        """Extend the run by the duration of a slow successful call, up to a total of 15 minutes."""
        more = min(seconds, self._left_for_calls)
        self._left_for_calls -= more
        self.deadline += more

    @property
    def time_left(self) -> float:
        """Seconds until the deadline of the run, or 0 once its calls were canceled."""
        return 0.0 if self._is_over else super().time_left

    def _cut_in_time(self) -> None:
        while left := self.time_left:  # the deadline may have been extended in the meantime
            if self._has_ended.wait(left):
                return
        self._is_over = True
        self._kubelet.hang_up()
        self._environment.api.release()
        if not self._has_ended.wait(CUT_GRACE):
            self.kill()
