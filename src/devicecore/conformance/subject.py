"""The plugin under test, and everything that a check may do to it.

Law: a check finds the plugin registered, whatever the one before it did; if that cannot be, the check is skipped.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from attrs import frozen

from devicecore.adapters.grpc_unix import rpc
from devicecore.conformance.model import Failure, Skip
from devicecore.conformance.peer import CallFailedError, Peer, PluginConnection, Registration, allocate_request
from devicecore.testing.process import PluginProcess
from devicecore.wire import deviceplugin

T = TypeVar("T")

_SETTLE = 1.0  # seconds for a stream to prove that it stays
_MOST_DEVICES = 64  # that are allocated one by one
_BREATH = 0.3  # seconds from a failure to the exit it leads to, and from an exit to the restart
_PATIENCE_WITH_EXITS = 3  # in a row


@frozen
class Settings:
    """How a plugin is to be tested, in seconds where it is about time.

    Args:
        resource: the resource to test; by default the first that registers.
        first: for the first registration.
        timeout: for every answer, and for the first list.
        returning: for coming back to a kubelet that is there again.
        restarting: how long a restart of the kubelet takes. Plugins that have noticed its end are at work then.
        away: how long the kubelet stays away.
        refusing: how long the kubelet refuses every registration.
        grace: for ending after SIGTERM.
        restart: whether a plugin that exits is started again, as Kubernetes does.
        provoke_health: a shell command that makes a device's health change.
    """

    resource: str = ""
    first: float = 60.0
    timeout: float = 10.0
    returning: float = 40.0
    restarting: float = 1.0
    away: float = 3.0
    refusing: float = 2.0
    grace: float = 30.0
    restart: bool = True
    provoke_health: str = ""


@frozen
class Absence:
    """What the plugin did while the kubelet was away, and then.

    `cpu` is the part of one processor that it used, None if unknown. `returned_after` is in seconds; None if it did
    not, and then there is a `problem`.
    """

    cpu: float | None
    returned_after: float | None
    problem: str


class Subject:
    """The plugin under test.

    Args:
        peer: the kubelet that plays with it.
        start: starts its process; None if somebody else does.
        settings: how it is to be tested.
        changed: notified whenever anything happens.
    """

    def __init__(
        self, peer: Peer, start: Callable[[], PluginProcess] | None, settings: Settings, changed: threading.Condition
    ) -> None:
        self.peer = peer
        self.settings = settings
        self.process: PluginProcess | None = None
        self.exits: list[str] = []
        """Every time that the plugin ended by itself."""
        self._start = start
        self._changed = changed
        self._singles: dict[str, deviceplugin.ContainerAllocateResponse] = {}
        self._absence: Absence | None = None
        self._waited_for: PluginConnection | None = None
        self._known: tuple[deviceplugin.Device, ...] | None = None
        self._output = ""
        self._noted: PluginProcess | None = None

    # --- its life -----------------------------------------------------------------------------------------------------

    @property
    def ours(self) -> bool:
        """Whether the plugin's process is ours to look at and to end."""
        return self._start is not None

    @property
    def output(self) -> str:
        """The end of what the plugin printed, of the instance before too if it was started again."""
        return "\n".join(text for text in (self._output, self.process.last_output if self.process else "") if text)

    def start(self) -> None:
        """Start its process, if that is ours.

        Raises:
            CannotRunError: there is no such program.
        """
        if self._start is not None:
            self.stop()
            if self.process is not None:
                self._output = self.process.last_output
            self.process = self._start()

    def stop(self) -> None:
        """End its process, if it is ours. Twice is no error."""
        if self.process is not None:
            if self.process.status is not None:
                self.process.wait()
                if self._has_exited():
                    self._note_exit()
            self.process.stop(grace=1.0)

    def kill(self) -> None:
        """Kill its process, so that it leaves behind what it has made."""
        if self.process is not None:
            self.process.kill()

    def wait(self, look: Callable[[], T | None], timeout: float) -> T | None:
        """Wait until `look` sees something; None if it did not in time. An exit is followed by a restart, if wanted."""
        deadline = time.monotonic() + timeout
        exits = 0
        while True:
            with self._changed:
                if seen := look():
                    return seen
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                if not self._has_exited():
                    self._changed.wait(left)
                    continue
            exits += 1
            if not self._note_exit() or exits > _PATIENCE_WITH_EXITS:
                return None
            time.sleep(min(_BREATH, left))
            self.start()

    def breathe(self) -> None:
        """Let a plugin that is ending end, to tell an exit from a lost connection."""
        self.wait(lambda: None, _BREATH)

    def _has_exited(self) -> bool:
        return self.process is not None and self.process.failure is not None

    def _note_exit(self) -> bool:
        """Remember that it has ended; whether it is to be started again."""
        assert self.process is not None, "somebody has looked"  # noqa: S101 - for mypy
        if self.process is not self._noted:
            self._noted = self.process
            self.exits.append(str(self.process.failure))
        return self.settings.restart

    # --- registrations ------------------------------------------------------------------------------------------------

    @property
    def first(self) -> Registration:
        """The first call of Register, however it ended.

        Raises:
            Skip: there was none.
        """
        if not self.peer.registrations:
            why = "the plugin has never called Register"
            raise Skip(why)
        return self.peer.registrations[0]

    def wait_registered(self, number: int, timeout: float, *, listed: bool = False) -> PluginConnection | None:
        """Wait until it has registered with success after the first `number` calls of Register; its connection.

        Some register twice in a row, and close what they opened first; it is the one that lives which counts. With
        `listed`, it must have sent a list too.
        """

        def look() -> PluginConnection | None:
            for registration in self.peer.registrations[number:]:
                connection = registration.connection
                alive = registration.answered and connection is not None and not connection.ended
                if alive and connection is not None and (connection.lists or not listed):
                    return connection
            return None

        return self.wait(look, timeout)

    def connected(self) -> PluginConnection:
        """The connection to the plugin, brought about if it has to be.

        Raises:
            Skip: it cannot be.
        """
        connection = self.peer.connection
        if connection is not None and not self._has_exited():  # grpc does not always tell that the other end has died
            return connection
        if not any(registration.answered for registration in self.peer.registrations):
            why = "the plugin has not registered"
            raise Skip(why)
        self.breathe()
        self.stop()  # who did not come back by itself is brought back
        number = len(self.peer.registrations)
        self.peer.leave()
        self.peer.wipe()
        self.peer.serve()
        self.start()
        connection = self.wait_registered(number, self.settings.returning, listed=True)
        if connection is None:
            why = "the plugin is no longer there, and does not come back"
            raise Skip(why)
        return connection

    def streaming(self) -> PluginConnection:
        """The connection to the plugin, once its stream of lists has begun: only that can be seen to end.

        Raises:
            Skip: there is none.
        """
        connection = self.connected()
        if connection is not self._waited_for:  # once: some never send any list
            self._waited_for = connection
            self.wait(lambda: connection.lists or connection.ended, self.settings.timeout)
        return connection

    def restart_kubelet(self, *, wipe: bool) -> str:
        """Restart the kubelet, and see the plugin come back; how it did.

        Raises:
            Failure: it does not.
        """
        self.streaming()
        number = len(self.peer.registrations)
        self.peer.leave()
        self.wait(lambda: None, self.settings.restarting)
        if wipe:
            self.peer.wipe()
        self.peer.serve()
        return self.see_it_return(number)

    def see_it_return(self, number: int) -> str:
        """Wait until it has registered again, after the first `number` calls; how it did.

        Raises:
            Failure: it has not in time, or without its devices.
        """
        began = time.monotonic()
        before = len(self.exits)
        connection = self.wait_registered(number, self.settings.returning, listed=True)
        restarted = f"; it had exited and was started again: {self.exits[-1]}" if len(self.exits) > before else ""
        if connection is None:
            tries = self.peer.registrations[number:]
            refused = [registration.problem for registration in tries if registration.problem]
            tried = "it did not call Register"
            if any(registration.answered for registration in tries):
                tried = "it called Register, but sent no list of its devices"
            elif refused:
                tried = f"its last try was refused: {refused[-1]}"
            came = f"it was not back after {self.settings.returning:g} seconds: {tried}{restarted}"
            raise Failure(came)
        return f"it was back after {time.monotonic() - began:.1f} seconds{restarted}"

    # --- devices ------------------------------------------------------------------------------------------------------

    def first_list(self) -> deviceplugin.ListAndWatchResponse:
        """The first list there is.

        Raises:
            Skip: there is none.
        """
        connection = self.streaming()
        if not connection.lists:
            why = "the plugin has sent no list"
            raise Skip(why)
        return connection.lists[0]

    @property
    def devices(self) -> tuple[deviceplugin.Device, ...]:
        """The devices it listed last. A first list without a healthy one is given time to be followed by another.

        Raises:
            Skip: there is no list.
        """
        self.first_list()
        connection = self.connected()
        if self._known is None:  # once: there are plugins that never have any
            self.wait(lambda: _healthy(connection.lists[-1].devices), self.settings.timeout)
        self._known = tuple(connection.lists[-1].devices)
        return self._known

    @property
    def healthy(self) -> list[str]:
        """The ids of healthy devices, at most 64 of them, from all over the list.

        Raises:
            Skip: there is none.
        """
        ids = _healthy(self.devices)
        if not ids:
            why = "the plugin lists no healthy device"
            raise Skip(why)
        step = -(-len(ids) // _MOST_DEVICES)
        return ids[::step]

    @property
    def counted(self) -> int:
        """How many devices it has ever been seen with, for the report."""
        return len(self._known or ())

    def two_devices(self) -> tuple[str, str]:
        """Two healthy devices.

        Raises:
            Skip: there is only one.
        """
        ids = self.healthy
        if len(ids) == 1:
            why = "the plugin has only one healthy device"
            raise Skip(why)
        return ids[0], ids[-1]

    # --- calls --------------------------------------------------------------------------------------------------------

    def allocate(self, *containers: Sequence[str]) -> list[deviceplugin.ContainerAllocateResponse]:
        """Call Allocate for containers with these devices; its answers.

        Raises:
            CallFailedError: it refuses, or does not answer.
        """
        response = self.connected().call(rpc.ALLOCATE, allocate_request(containers), self.settings.timeout)
        return list(response.container_responses)

    def alone(self, device: str) -> deviceplugin.ContainerAllocateResponse:
        """What a container with only this device is given; asked once.

        Raises:
            Skip: the plugin does not give it away, which is another check's business.
        """
        if device not in self._singles:
            try:
                answers = self.allocate([device])
            except CallFailedError as error:
                raise Skip(str(error)) from None
            if not answers:
                why = "Allocate answers with nothing"
                raise Skip(why)
            self._singles[device] = answers[0]
        return self._singles[device]

    def call(self, method: rpc.Method[rpc.Request, rpc.Response], request: rpc.Request) -> rpc.Response:
        """Call any method.

        Raises:
            CallFailedError: it answers with an error, or not in time.
        """
        return self.connected().call(method, request, self.settings.timeout)

    # --- provocations -------------------------------------------------------------------------------------------------

    def be_away(self) -> Absence:
        """Let the kubelet be away for a while, and come back with an empty directory; done once."""
        if self._absence is None:
            self.streaming()
            number = len(self.peer.registrations)
            self.peer.leave()
            process, before, began = self.process, self._cpu_seconds(), time.monotonic()
            self.wait(lambda: None, self.settings.away)
            after, ended = self._cpu_seconds(), time.monotonic()
            self.peer.wipe()
            self.peer.serve()
            try:
                came, problem = time.monotonic(), ""
                self.see_it_return(number)
                returned = time.monotonic() - came
            except Failure as failure:
                returned, problem = 0.0, str(failure)
            share = None
            if process is self.process and before is not None and after is not None:
                share = (after - before) / (ended - began)
            self._absence = Absence(share, None if problem else returned, problem)
        return self._absence

    def _cpu_seconds(self) -> float | None:
        return self.process.cpu_seconds if self.process is not None and self.process.status is None else None

    def refuse(self) -> int:
        """Refuse every registration for a while; how many there were. Then take it again."""
        self.streaming()
        number = len(self.peer.registrations)
        self.peer.leave()
        self.wait(lambda: None, self.settings.restarting)
        self.peer.wipe()
        self.peer.refusal = "this kubelet refuses every plugin for a while"
        self.peer.serve()
        try:
            self.wait(lambda: None, self.settings.refusing)
            attempts = len(self.peer.registrations) - number
        finally:
            self.peer.leave()  # some are so patient that only the next kubelet sees them again
            self.peer.refusal = ""
            self.peer.serve()
        return attempts

    def provoke_health(self) -> None:
        """Run the command that makes a device's health change.

        Raises:
            Skip: there is none.
            Failure: it does not work.
        """
        command = self.settings.provoke_health
        if not command:
            why = "there is no command to provoke it (--provoke-health)"
            raise Skip(why)
        try:
            ran = subprocess.run(  # noqa: S603 - to run it is what the caller wants
                ["/bin/sh", "-c", command],
                capture_output=True,
                text=True,
                env={**os.environ, "DEVICE_PLUGIN_PATH": str(self.peer.directory)},
                timeout=self.settings.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            came = f"`{command}` did not end within {self.settings.timeout:g} seconds"
            raise Failure(came) from None
        if ran.returncode:
            came = f"`{command}` ended with status {ran.returncode}: {(ran.stderr or ran.stdout).strip()}"
            raise Failure(came)

    def settle(self, connection: PluginConnection) -> None:
        """Give the stream of lists a moment to show that it stays."""
        left = connection.opened + _SETTLE - time.monotonic()
        self.wait(lambda: connection.ended, max(left, 0.0))


def _healthy(devices: Iterable[deviceplugin.Device]) -> list[str]:
    return sorted({device.ID for device in devices if device.health == "Healthy"})


def health_of(devices: Sequence[deviceplugin.Device]) -> Mapping[str, str]:
    """The health of each device."""
    return {device.ID: device.health for device in devices}
