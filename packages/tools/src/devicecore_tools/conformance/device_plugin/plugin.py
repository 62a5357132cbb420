"""The plugin under test, and everything that a check may do to it.

Laws: a check finds the plugin registered, even if the check before it has ended the plugin. If the plugin cannot be
brought back, the check is skipped. When the time of the run is over, no check waits any longer.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from attrs import frozen

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.text import counted
from devicecore.system.sockets import socket_identity
from devicecore.wire import deviceplugin
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.device_plugin.kubelet import (
    BareKubelet,
    PluginConnection,
    Registration,
    allocate_request,
)
from devicecore_tools.conformance.model import Failure, OutOfTime, Skip, time_is_over
from devicecore_tools.testing.process import PluginProcess, PluginProcessError, StillRunningError

T = TypeVar("T")

_STREAM_STAYS = 1.0  # seconds after which an open stream of lists is believed to stay open
_MAX_SINGLE_DEVICES = 64  # that are allocated one by one
_EXIT_PAUSE = 0.3  # seconds from a failure to the exit that it causes, and from an exit to the next start
_MAX_EXITS = 3  # during one wait
_AFTER_NO_RETURN = 5.0  # seconds to return, for a plugin that has failed to return before
_RETURN_FACTOR = 1.3  # times the plugin's slowest return so far
_NAME_INTERVAL = 1.1  # seconds between two starts, for plugins with the second of their start in the socket's name
_MAX_ANSWERS = 16 * 1024 * 1024  # bytes of all answers for single devices, which are compared
_GRACE = 1.0  # seconds from SIGTERM to SIGKILL, except in the check of SIGTERM
_SHORTEST_CALL = 0.1  # seconds
_CLOCK_STEP = 50_000_000  # nanoseconds by which a file's time may be behind the clock


@frozen
class Settings:
    """How a plugin is tested. Times are in seconds.

    Args:
        resource: the resource to test; by default the first that registers.
        first: for the first registration.
        timeout: for every answer, for the first list, and for a provoked change of health.
        returning: for registering again after a restart of the kubelet that deletes all sockets.
        noticing: for registering again after less: a cut stream, or a new kubelet.sock alone. A plugin that needed
            longer after a restart gets 1.3 times that.
        restarting: how long a restart of the kubelet takes.
        away: how long the kubelet is away in the checks of a longer absence.
        refusing: how long the kubelet refuses every registration.
        grace: for ending after SIGTERM.
        restart: whether a plugin that exits is started again, as Kubernetes does.
        provoke_health: a shell command that changes the health of a device.
        undo_health: a shell command that undoes it.
        owns_children: whether all processes that become children of this one belong to the plugin, because the program
            starts no others. Then daemons that have dropped the plugin's environment are ended, too.
        budget: for everything after the first registration. Checks for which no time is left are skipped.
    """

    resource: str = ""
    first: float = 60.0
    timeout: float = 10.0
    returning: float = 20.0
    noticing: float = 8.0
    restarting: float = 1.0
    away: float = 3.0
    refusing: float = 2.0
    grace: float = 10.0
    restart: bool = True
    provoke_health: str = ""
    undo_health: str = ""
    owns_children: bool = False
    budget: float = 300.0


@frozen
class Absence:
    """What the plugin did while the kubelet was away, and afterwards.

    Attributes:
        cpu: the part of one processor that it used; None if unknown.
        returned_after: seconds until it registered again; None if it did not.
        problem: why it did not; empty if it did.
    """

    cpu: float | None
    returned_after: float | None
    problem: str


class PluginUnderTest:
    """The plugin under test.

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
        end_rest: Callable[[], None] = lambda: None,
    ) -> None:
        self.kubelet = kubelet
        self.settings = settings
        self.process: PluginProcess | None = None
        self.exits: list[str] = []
        """One sentence for each time that the process ended by itself."""
        self.returned: PluginConnection | None = None
        """The connection after the last restart of the kubelet that deleted all sockets, if a check has made one."""
        self.health_changes: Mapping[str, str] | None = None
        """The change that was seen after a kubelet restart; None if the check of it was not made or failed."""
        self.first_devices: tuple[deviceplugin.Device, ...] | None = None
        """The devices before any change of health was provoked; None if there was no list."""
        self._start = start
        self._changed = changed
        self._end_rest = end_rest
        self._deadline = math.inf
        self._is_lost = False
        self._singles: dict[str, bytes] = {}
        self._single_bytes = 0  # of all of them
        self._looked_into: deviceplugin.ListAndWatchResponse | None = None
        self._healthy: list[str] = []
        self._absence: Absence | None = None
        self._waited_for: PluginConnection | None = None
        self._waited_for_first = False
        self._waited_for_healthy = False
        self._last_output = ""
        self._noted: PluginProcess | None = None
        self._started_ns = 0
        self._started_at = 0.0
        self._slowest_return = 0.0
        self._returns = True

    # --- its process --------------------------------------------------------------------------------------------------

    @property
    def is_ours(self) -> bool:
        """Whether the checks start and end the plugin's process."""
        return self._start is not None

    @property
    def output(self) -> str:
        """The end of what the plugin printed, with the end of its former process if it was started again."""
        return "\n".join(text for text in (self._last_output, self.process.last_output if self.process else "") if text)

    def require_process(self) -> PluginProcess:
        """Return the plugin's process.

        Raises:
            Skip: the user has started it.
        """
        if self.process is None:
            reason = "the plugin was started by hand, so its process is not known"
            raise Skip(reason)
        return self.process

    def start(self) -> None:
        """Start the process, if the checks do that.

        Raises:
            CannotRunError: the program does not exist or may not be run.
        """
        if self._start is not None:
            self.stop()
            if self.process is not None:
                self._last_output = self.process.last_output
            self._started_ns, self._started_at = time.time_ns(), time.monotonic()
            self.process = self._start()

    def stop(self) -> None:
        """End the process, if the checks have started it. A second call does nothing."""
        if self.process is not None:
            if self.process.status is not None:
                self.process.wait()
                if self._has_exited():
                    self._note_exit()
            self.process.terminate()
            self.process.resume()
            with suppress(StillRunningError):
                self.process.wait(_GRACE)
            self.process.kill()
            self._end_rest()  # before `stop`, which waits until no daemon has the pipe of its output
            self.process.stop(grace=0.0)

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
                if not self._has_exited():
                    self._changed.wait(min(left, self._deadline - time.monotonic()))
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
        if time.monotonic() >= self._deadline:
            raise time_is_over(self.settings.budget)

    def _has_exited(self) -> bool:
        return self.process is not None and self.process.failure is not None

    def _note_exit(self) -> bool:
        """Record an exit of the process; return whether to start it again."""
        if self.process is not None and self.process is not self._noted:
            self._noted = self.process
            self.exits.append(str(self.process.failure))
        return self.settings.restart

    # --- registrations ------------------------------------------------------------------------------------------------

    @property
    def first(self) -> Registration:
        """The first registration, successful or not. The first use waits for it.

        Raises:
            Skip: there is none.
        """
        self.wait_for_first()
        if not self.kubelet.registrations:
            reason = "the plugin did not register"
            raise Skip(reason)
        return self.kubelet.registrations[0]

    def wait_for_first(self) -> None:
        """Wait once until the plugin has registered and the kubelet has answered."""
        if not self._waited_for_first:
            self._waited_for_first = True
            registrations = self.kubelet.registrations
            self.wait(lambda: registrations, self.settings.first)
            if registrations:
                first = registrations[0]
                self.wait(lambda: first.problem or first.answered, 4 * self.settings.timeout)
            self._deadline = time.monotonic() + self.settings.budget

    def wait_registered(self, number: int, timeout: float) -> PluginConnection | None:
        """Wait for a successful registration with a list of devices after the first `number` registrations.

        Some plugins register twice in a row and close their first socket, so only an open connection counts.
        """

        def look() -> PluginConnection | None:
            for registration in self.kubelet.registrations[number:]:
                connection = registration.connection
                if registration.answered and connection is not None and not connection.ended and connection.list_count:
                    return connection
            return None

        return self.wait(look, timeout)

    def connected(self) -> PluginConnection:
        """Return the connection to the plugin. If it has none, restart the kubelet and the plugin first.

        Raises:
            Skip: the plugin did not register.
        """
        self.wait_for_first()
        connection = self.kubelet.connection
        if connection is not None and not self._has_exited():  # gRPC does not always notice the end of the process
            self._is_lost = False
            return connection
        if not any(registration.answered for registration in self.kubelet.registrations):
            reason = "the plugin did not register successfully"
            raise Skip(reason)
        self.wait_for_exit()
        return self.restarted()

    def restarted(self) -> PluginConnection:
        """Restart the kubelet with an empty directory, and the plugin's process; return the new connection.

        Raises:
            Skip: the plugin did not register again, or has not done so after the last such restart.
        """
        reason = "the plugin is not registered any more and did not register again"
        if self._is_lost:
            raise Skip(reason)
        self.stop()
        number = len(self.kubelet.registrations)
        self.kubelet.leave()
        self.kubelet.wipe()
        self.kubelet.serve()
        self.start()
        connection = self.wait_registered(number, self.settings.returning)
        self._is_lost = connection is None
        if connection is None:
            raise Skip(reason)
        return connection

    def streaming(self) -> PluginConnection:
        """Return the connection after its first list. A plugin can notice the end of a stream only after that.

        Raises:
            Skip: the plugin did not register.
        """
        connection = self.connected()
        if connection is not self._waited_for:  # once, because some plugins never send a list
            self._waited_for = connection
            self.wait(lambda: connection.list_count or connection.ended, self.settings.timeout)
        return connection

    def restart_kubelet(self, *, wipe: bool) -> int:
        """Restart the kubelet; return the number of registrations before."""
        self.streaming()
        number = len(self.kubelet.registrations)
        self.kubelet.leave()
        self.pause(self.settings.restarting)
        if wipe:
            self.kubelet.wipe()
        self.kubelet.serve()
        return number

    def see_it_return(self, number: int, *, noticing: bool = False) -> str:
        """Wait for a registration with a list after the first `number` ones; return a sentence about it.

        Args:
            number: of registrations before.
            noticing: whether the plugin has less to notice than deleted sockets, so that the wait is shorter.

        Raises:
            Failure: the plugin did not register in time, or did not send a list.
        """
        limit = self.settings.returning
        if noticing:
            limit = min(limit, max(self.settings.noticing, self._slowest_return * _RETURN_FACTOR))
        if not self._returns:
            limit = min(limit, _AFTER_NO_RETURN)
        began = time.monotonic()
        before = len(self.exits)
        connection = self.wait_registered(number, limit)
        restarted = f"; it had exited and was started again: {self.exits[-1]}" if len(self.exits) > before else ""
        if connection is None:
            self._returns = self._returns and noticing
            waited = min(limit, time.monotonic() - began)
            after = counted(round(waited, 1), "second")
            actual = f"it was not back after {after}: {self._last_try(number)}{restarted}"
            raise Failure(actual)
        took = time.monotonic() - began
        self._slowest_return = max(self._slowest_return, took)
        return f"it was back after {took:.1f} seconds{restarted}"

    def _last_try(self, number: int) -> str:
        tries = self.kubelet.registrations[number:]
        refused = [registration.problem for registration in tries if registration.problem]
        if any(registration.answered for registration in tries):
            return "it registered, but sent no list of its devices or closed its stream"
        if refused:
            return f"its last registration was refused: {refused[-1]}"
        return f"it made no {self.kubelet.attempt}"

    # --- devices ------------------------------------------------------------------------------------------------------

    def require_list(self) -> PluginConnection:
        """Return the connection after its first list.

        Raises:
            Skip: there is no list.
        """
        connection = self.streaming()
        if not connection.list_count:
            reason = "the plugin has sent no list"
            raise Skip(reason)
        return connection

    @property
    def devices(self) -> tuple[deviceplugin.Device, ...]:
        """The last list. If a first list has no healthy device, the first use waits for one that has.

        Raises:
            Skip: there is no list.
        """
        connection = self.require_list()
        if not self._waited_for_healthy:  # once, because some plugins never have a healthy device
            self._waited_for_healthy = True
            self.wait(lambda: self._healthy_ids(connection), self.settings.timeout)
        devices = tuple(connection.last_list.devices)
        self.first_devices = self.first_devices or devices
        return devices

    @property
    def healthy(self) -> list[str]:
        """The ids of healthy devices. Of more than 64, 64 from the whole list.

        Raises:
            Skip: there is none.
        """
        ids = self._healthy_ids(self.require_list()) if self.devices else []
        if not ids:
            reason = "the plugin lists no healthy device"
            raise Skip(reason)
        step = -(-len(ids) // _MAX_SINGLE_DEVICES)
        return ids[::step]

    def _healthy_ids(self, connection: PluginConnection) -> list[str]:
        """Return the ids of the healthy devices in the last list, in which it looks once."""
        last = connection.last_list
        if last is not self._looked_into:
            self._looked_into = last
            self._healthy = sorted({device.ID for device in last.devices if device.health == "Healthy"})
        return self._healthy

    def two_devices(self) -> tuple[str, str]:
        """Return two healthy devices.

        Raises:
            Skip: there is only one.
        """
        ids = self.healthy
        if len(ids) == 1:
            reason = "the plugin has only one healthy device"
            raise Skip(reason)
        return ids[0], ids[-1]

    # --- calls --------------------------------------------------------------------------------------------------------

    def allocate(self, *containers: Sequence[str]) -> list[deviceplugin.ContainerAllocateResponse]:
        """Call Allocate for containers with these devices; return the answers.

        Raises:
            CallFailedError: the plugin answered with an error or not in time.
        """
        return list(self.call(rpc.ALLOCATE, allocate_request(containers)).container_responses)

    def alone(self, device: str) -> deviceplugin.ContainerAllocateResponse:
        """Return the answer for a container with only this device; the plugin is asked once.

        Raises:
            Skip: the plugin did not allocate it, which is the subject of another check, or all answers are too large.
        """
        if device not in self._singles:
            try:
                answers = self.allocate([device])
            except CallFailedError as error:
                raise Skip(str(error)) from None
            if not answers:
                reason = f"Allocate of {device} was answered for no container"
                raise Skip(reason)
            self._singles[device] = answers[0].SerializeToString()  # as a message it may take much more memory
            self._single_bytes += len(self._singles[device])
            if self._single_bytes > _MAX_ANSWERS:
                self._singles.clear()
                self._single_bytes = 0
                reason = f"the answers to Allocate for single devices have more than {_MAX_ANSWERS} bytes together"
                raise Skip(reason)
        return deviceplugin.ContainerAllocateResponse.FromString(self._singles[device])

    def call(self, method: rpc.Method[rpc.Request, rpc.Response], request: rpc.Request) -> rpc.Response:
        """Call any method.

        Raises:
            CallFailedError: the plugin answered with an error or not in time.
        """
        connection = self.connected()
        self.require_time()
        limit = min(self.settings.timeout, max(self._deadline - time.monotonic(), _SHORTEST_CALL))
        try:
            return connection.call(method, request, limit)
        except CallFailedError as error:
            if error.code == "DEADLINE_EXCEEDED" and limit < self.settings.timeout:
                raise time_is_over(self.settings.budget) from None
            raise

    # --- provocations -------------------------------------------------------------------------------------------------

    def be_away(self) -> Absence:
        """Stop the kubelet for some seconds, and start it with an empty directory. Only the first call does that."""
        if self._absence is None:
            self.streaming()
            number = len(self.kubelet.registrations)
            self.kubelet.leave()
            process, before, began = self.process, self._cpu_seconds(), time.monotonic()
            self.pause(self.settings.away)
            after, ended = self._cpu_seconds(), time.monotonic()
            self.kubelet.wipe()
            self.kubelet.serve()
            returned, problem = time.monotonic(), ""
            try:
                self.see_it_return(number)
            except Failure as failure:
                problem = str(failure)
            took = None if problem else time.monotonic() - returned
            share = None
            if process is self.process and before is not None and after is not None:
                share = (after - before) / (ended - began)
            self._absence = Absence(share, took, problem)
        return self._absence

    def _cpu_seconds(self) -> float | None:
        return self.process.cpu_seconds if self.process is not None and self.process.status is None else None

    def refuse(self) -> int:
        """Restart the kubelet and refuse every registration for some seconds; return how many there were."""
        self.streaming()
        number = len(self.kubelet.registrations)
        self.kubelet.leave()
        self.pause(self.settings.restarting)
        self.kubelet.wipe()
        self.kubelet.refusal = "this kubelet refuses every plugin for some seconds"
        self.kubelet.serve()
        try:
            self.pause(self.settings.refusing)
            attempts = len(self.kubelet.registrations) - number
        finally:
            self.kubelet.leave()  # some plugins try again only when they see another kubelet
            self.kubelet.refusal = ""
            self.kubelet.serve()
        return attempts

    def change_health(self, connection: PluginConnection) -> Mapping[str, str]:
        """Run the command that changes a device's health; return the changes that the plugin lists.

        Raises:
            Skip: there is no such command.
            Failure: the command failed, the plugin listed no change in time, or its stream or process ended.
        """
        if not self.settings.provoke_health:
            reason = "no command provokes it (--provoke-health)"
            raise Skip(reason)
        before = health_of(self.devices)
        number, exits = connection.list_count, len(self.exits)

        def look() -> Mapping[str, str] | None:
            changes = [health_changes(before, health_of(message.devices)) for message in connection.lists_after(number)]
            return next(filter(None, changes), None)

        try:
            self._run_shell(self.settings.provoke_health)
            self.wait(lambda: look() or connection.ended, self.settings.timeout)
            self.wait_for_exit()  # a plugin may report the change and then end
        finally:
            if self.settings.undo_health:
                self._run_shell(self.settings.undo_health)
        changes = look()
        if len(self.exits) > exits:
            actual = f"the plugin ended: {self.exits[exits]}"
        elif connection.ended:
            actual = f"the stream of lists ended ({connection.ended})"
        elif changes:
            return changes
        else:
            lists = connection.list_count - number
            new = f"{counted(lists, 'new list')}, but no change" if lists else "no new list"
            actual = f"{new} within {counted(self.settings.timeout, 'second')}"
        raise Failure(actual)

    def _run_shell(self, command: str) -> None:
        process = PluginProcess(["/bin/sh", "-c", command], self.kubelet.directory)
        try:
            status = process.wait(self.settings.timeout)
        except PluginProcessError as error:
            process.kill()
            raise Failure(str(error)) from None
        if status:
            actual = f"`{command}` exited with status {status}: {process.last_output or 'it printed nothing'}"
            raise Failure(actual)

    def wait_for_stream(self, connection: PluginConnection) -> None:
        """Wait until the stream of lists has been open long enough to be believed to stay open."""
        left = connection.opened + _STREAM_STAYS - time.monotonic()
        self.wait(lambda: connection.ended, max(left, 0.0))


def health_of(devices: Sequence[deviceplugin.Device]) -> Mapping[str, str]:
    """Return the health of each device."""
    return {device.ID: device.health for device in devices}


def health_changes(before: Mapping[str, str], now: Mapping[str, str]) -> Mapping[str, str]:
    """Return the devices with another health, or that have gone. A new device is no change of health."""
    return {id_: now.get(id_, "gone") for id_ in sorted(before) if now.get(id_) != before[id_]}
