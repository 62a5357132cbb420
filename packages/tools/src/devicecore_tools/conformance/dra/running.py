"""A driver as a process that a kubelet has registered.

Laws: a check finds the driver registered, even if the check before it has ended the driver. If the driver cannot be
brought back, the check is skipped. When the time of the run is over, no call and no process of the driver can make a
check wait any longer.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TypeVar

from attrs import frozen

from devicecore.domain.text import counted
from devicecore_tools.conformance.dra.container_runtime import VARIABLE as RUNTIME_VARIABLE
from devicecore_tools.conformance.dra.container_runtime import RuntimeConnection
from devicecore_tools.conformance.dra.environment import Environment
from devicecore_tools.conformance.dra.kubelet import DriverInstance, DriverKubelet, identity_of, no_sockets_in
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from devicecore_tools.conformance.model import Skip, time_is_over
from devicecore_tools.conformance.processes import end_all
from devicecore_tools.testing.api_server import Fault, LocalApiServer
from devicecore_tools.testing.process import POD_UID, PluginProcess, StillRunningError

T = TypeVar("T")

_POLL_INTERVAL = 0.02  # seconds
_MAX_EXITS = 3  # after which an unregistered driver is not started again within one wait
_EXIT_PAUSE = 0.3  # seconds from an exit to the next start
_COMES_BACK = 2.0  # seconds for a driver that is about to register
_SOON = 2.0  # seconds from the registration to the devices, for which no check has to wait again
_DIAL = 5.0  # seconds to reach a service
_LAST_GRACE = 2.0  # seconds from SIGTERM to SIGKILL at the end of the run
CUT_GRACE = 1.0
"""Seconds from SIGTERM to SIGKILL when the time of the run is over, and from the end of all calls to that."""


@frozen
class Return:
    """How the driver came back after an event.

    Attributes:
        seconds: until it was registered again; None if it was not.
        problem: why not; empty if it was.
        status: the exit status of the process that was ended; None if it was killed.
        ended_after: seconds until that process ended.
        left: sockets of that process that were there after its end.
        kept_slices: whether there were slices after its end.
        exits: one sentence for each time that the process ended by itself meanwhile.
    """

    seconds: float | None
    problem: str = ""
    status: int | None = None
    ended_after: float = 0.0
    left: tuple[str, ...] = ()
    kept_slices: bool = True
    exits: tuple[str, ...] = ()


class RunningDriver:
    """A driver as a process, and its registration.

    Args:
        environment: its surroundings, entered.
        command: starts it; placeholders are replaced.
        settings: how it is tested.
    """

    def __init__(self, environment: Environment, command: Sequence[str], settings: DriverTestSettings) -> None:
        self.environment = environment
        self.api: LocalApiServer = environment.api
        self.kubelet: DriverKubelet = DriverKubelet(environment.registry)
        self.settings = settings
        self.process: PluginProcess | None = None
        self.exits: list[str] = []
        """One sentence for each time that the process ended by itself."""
        self.returns: dict[str, Return] = {}
        """How the driver came back after the events of this run: killed, rebooted, corrupted, terminated."""
        self.was_seen: bool = False
        """Whether the driver has made a registration socket or a request."""
        self.started_at: float = 0.0
        """When the process was started last, in seconds of `time.monotonic`."""
        self.asked_before: int = 0
        """How many requests the API server had at that time."""
        self.warm_up: float = 0.0
        """Seconds from its registration until it had published devices, at its first start."""
        self._command = tuple(command)
        self._deadline = time.monotonic() + settings.budget
        self._name = ""
        self._is_lost = False
        self._needs_clean_directories = False
        self._last_output = ""
        self._runtimes: list[RuntimeConnection] = []
        self._finding = threading.RLock()
        self._starting = threading.RLock()
        self._is_over = False
        self._has_ended = threading.Event()

    # --- its process --------------------------------------------------------------------------------------------------

    @property
    def output(self) -> str:
        """The end of what the driver printed, with the end of its former process if it was started again."""
        return "\n".join(text for text in (self._last_output, self.process.last_output if self.process else "") if text)

    @property
    def has_instances(self) -> bool:
        """Whether two processes of it can run at once: its command or environment names `{pod_uid}`."""
        return any("{pod_uid}" in text for text in (*self._command, *self.settings.environment.values()))

    def spawn(self, pod_uid: str = POD_UID) -> PluginProcess:
        """Start a process of the driver. `run` ends it if the caller does not.

        Raises:
            CannotRunError: the program does not exist or may not be run.
            Skip: no time is left for the run.
        """
        command = [self.environment.expand(word, pod_uid) for word in self._command]
        with self._starting:
            if self._is_over:
                self.skip_for_time()
            runtime = RuntimeConnection()
            self._runtimes.append(runtime)
            number = runtime.peer.fileno()
            process = PluginProcess(
                command,
                self.environment.plugins,
                environment={RUNTIME_VARIABLE: str(number), **self.environment.variables(pod_uid)},
                keep_open=[number],
            )
            runtime.serve()
            return process

    def start(self) -> None:
        """Start the process, and end the former one.

        A driver that did not come back beside its former sockets, which a check has reported, no longer finds them.

        Raises:
            Skip: no time is left for the run.
        """
        with self._starting:
            self.kill()
            if self._needs_clean_directories:
                self._delete_sockets()
            if self.process is not None:
                self._last_output = self.process.last_output
            self.started_at, self.asked_before = time.monotonic(), len(self.api.requests)
            self.process = self.spawn()

    def kill(self) -> None:
        """Kill all processes of the driver, so that they clean nothing up."""
        with self._starting:
            if self.process is not None:
                self.process.kill()
            self._end_all()
        self.kubelet.disconnect()

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """End what waits for the driver when the time of the run is over: first all calls, then all processes."""
        watcher = threading.Thread(target=self._cut_in_time, name="conformance-time", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._has_ended.set()
            watcher.join()

    def lengthen(self, seconds: float) -> None:
        """Give the run more time, because the driver needs as much at a start."""
        self._deadline += seconds

    def _cut_in_time(self) -> None:
        while left := self.time_left:  # which may have been lengthened meanwhile
            if self._has_ended.wait(left):
                return
        self._is_over = True
        self.kubelet.hang_up()
        self.api.release()
        if not self._has_ended.wait(CUT_GRACE):
            self.kill()

    def stop(self) -> None:
        """End everything: the driver first, then the kubelet. An interrupt shortens only the wait for the driver."""
        with ExitStack() as stack:
            stack.callback(self.kubelet.stop)
            for runtime in self._runtimes:
                stack.callback(runtime.close)
            if self.process is not None:
                stack.callback(self.process.stop, grace=0.0)
            stack.callback(self.kill)  # before `stop`, which waits until no daemon has the pipe of its output
            if self.process is not None:
                self.process.terminate()
                with suppress(StillRunningError):
                    self.process.wait(CUT_GRACE if self._is_over else _LAST_GRACE)

    def _end_all(self) -> None:
        end_all(self.environment.marker, but_not=self.environment.others)

    def wait(self, look: Callable[[], T | None], timeout: float) -> T | None:
        """Wait until `look` returns something true and return that; None after `timeout` seconds.

        A process that ends by itself is started again, as Kubernetes does.

        Raises:
            Skip: no time is left for the run.
        """
        deadline = time.monotonic() + timeout
        exits = 0
        while True:
            if seen := look():
                return seen
            now = time.monotonic()
            if now >= deadline:
                return None
            if now >= self._deadline:
                self.skip_for_time()
            if self.process is not None and self.process.failure is not None:
                exits += 1
                self.exits.append(str(self.process.failure))
                if exits > _MAX_EXITS:
                    return None
                time.sleep(_EXIT_PAUSE)
                self.start()
            time.sleep(_POLL_INTERVAL)

    def notice_exit(self) -> None:
        """If the process has ended by itself, note that and start it again, so that no later check is blamed for it."""
        if self.process is not None and self.process.status is not None:
            self.wait(lambda: self.process is None or self.process.status is None, _EXIT_PAUSE)

    @property
    def has_exited(self) -> bool:
        """Whether the process has ended by itself and was not started again yet."""
        return self.process is not None and self.process.failure is not None

    @property
    def time_left(self) -> float:
        """Seconds until the end of the run."""
        return max(self._deadline - time.monotonic(), 0.0)

    def require_time(self) -> None:
        """Do nothing if there is time for another check.

        Raises:
            Skip: there is none.
        """
        if self._is_over or not self.time_left:
            self.skip_for_time()

    def skip_for_time(self) -> NoReturn:
        """Skip the present check, because no time is left for it.

        Raises:
            OutOfTime: always.
        """
        raise time_is_over(self.settings.budget)

    # --- its API server -----------------------------------------------------------------------------------------------

    @contextmanager
    def faults(self, fault: Fault, *, verb: str, resource: str, times: int | None) -> Iterator[None]:
        """Let the API server answer so many of these requests with a fault in this block; None means all."""
        self.api.inject(fault, verb=verb, resource=resource, times=times)
        try:
            yield
        finally:
            self.api.clear_faults()

    @contextmanager
    def without_api_server(self) -> Iterator[None]:
        """Stop the API server for this block."""
        self.api.stop()
        try:
            yield
        finally:
            self.api.start()

    # --- registration -------------------------------------------------------------------------------------------------

    def wait_for_first(self) -> DriverInstance | None:
        """Wait until a registration socket was found and the registration has succeeded or failed."""

        def look() -> DriverInstance | None:
            self.was_seen = self.was_seen or bool(self.kubelet.instances or self.api.requests)
            found = self.kubelet.instances
            return next((one for one in found if one.registered_at or (one.problem and one.stage != "dial")), None)

        if not self.kubelet.instances or look() is None:
            left = self.started_at + self.settings.starting - time.monotonic()
            self.wait(look, max(left, 0.0))
        return look() or next(iter(self.kubelet.instances), None)

    @property
    def first(self) -> DriverInstance:
        """The first registration socket, registered or refused.

        Raises:
            Skip: there is none.
        """
        first = self.wait_for_first()
        if first is None:
            reason = "the driver made no registration socket"
            raise Skip(reason)
        return first

    @property
    def instance(self) -> DriverInstance:
        """The instance that a kubelet calls. A driver that is not registered is started again once.

        Raises:
            Skip: there is none.
        """
        with self._finding:  # checks make calls at the same time
            self.wait_for_first()
            found = self.kubelet.newest
            if found is None and not self._is_lost:
                found = self._bring_back()
            if found is None:
                reason = f"the driver is not registered: {self.not_registered_because()}"
                raise Skip(reason)
            self._is_lost = False
            return found

    @property
    def reachable(self) -> DriverInstance:
        """The instance that a kubelet calls, whose service can be reached.

        Raises:
            Skip: there is none.
        """
        found = self.instance
        if problem := self.unreachable_because(found):
            raise Skip(problem)
        return found

    @staticmethod
    def unreachable_because(found: DriverInstance) -> str:
        """Return why the service of an instance cannot be reached; empty if it can."""
        found.is_unreachable = not found.connection.dial(0.1 if found.is_unreachable else _DIAL)
        return f"the driver's service cannot be reached: {found.connection.why_not()}" if found.is_unreachable else ""

    def not_registered_because(self) -> str:
        """Return why the driver is not registered."""
        present = [one for one in self.kubelet.instances if not one.is_gone]
        if present:
            return present[-1].problem or "the registration is under way"
        parts = (f"there is no socket in {self.environment.registry}", no_sockets_in(self.environment.registry))
        return "; ".join(part for part in (*parts, *self.exits[-1:]) if part)

    def _bring_back(self) -> DriverInstance | None:
        """Start a lost driver as in a new container: without its former sockets."""
        self._is_lost = True
        if not any(one.registered_at for one in self.kubelet.history):
            return None  # another start would change nothing
        found = self.wait(lambda: self.kubelet.newest, min(_COMES_BACK, self.settings.returning))
        if found is None:
            self._needs_clean_directories = True
            self.start()
            found = self.wait(lambda: self.kubelet.newest, self.settings.returning)
            self._needs_clean_directories = found is not None
        self._is_lost = found is None
        return found

    def _delete_sockets(self) -> None:
        for instance in self.kubelet.history:
            for path in {instance.path, instance.endpoint}:
                if identity_of(path) is not None and self.environment.contains(path):
                    Path(path).unlink(missing_ok=True)

    @property
    def name(self) -> str:
        """The driver's name.

        Raises:
            Skip: it is not known.
        """
        if not self._name:
            info = self.first.info
            self._name = info.name if info is not None else ""
        if not self._name:
            reason = f"the driver is not registered: {self.not_registered_because()}"
            raise Skip(reason)
        return self._name

    @property
    def known_name(self) -> str:
        """The driver's name; empty if it is not known."""
        return self._name

    # --- restarts -----------------------------------------------------------------------------------------------------

    def wait_registered(self, since: float) -> Return:
        """Wait for an instance that was found after `since`, in seconds of `time.monotonic`."""

        def look() -> DriverInstance | None:
            return next((one for one in reversed(self.kubelet.registered) if one.found_at >= since), None)

        exits, began = len(self.exits), time.monotonic()
        found = self.wait(look, self.settings.returning)
        ended = tuple(dict.fromkeys(self.exits[exits:]))
        if found is None:
            took = counted(round(time.monotonic() - began), "second")
            problem = f"it was not registered again within {took}: {self.not_registered_because()}"
            return Return(None, problem, exits=ended)
        return Return(found.registered_at - since, exits=ended)

    def restart(self, event: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Kill the driver, do something, start it, and note in `returns` how it came back.

        A driver that found its devices late at its first start gets that time again, because a kubelet tries again.
        """
        _ = self.instance
        self.kill()
        meanwhile()
        began = time.monotonic()
        self.start()
        self.returns[event] = self.wait_registered(began)
        if self.warm_up > _SOON and not self.returns[event].problem:
            self.lengthen(self.warm_up)
            self.wait(lambda: None, self.warm_up)
