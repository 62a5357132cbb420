"""The plugin under test: its parts, what checks have seen of it, and what they provoke.

Law: each part has one task, and knows only those before it: the process, the registrations, and the listed devices.
"""

import time
from collections.abc import Callable, Mapping

from attrs import define, frozen

from devicecore.domain.text import counted
from devicecore_tools.conformance.device_plugin.devices import ListedDevices, health_changes, health_of
from devicecore_tools.conformance.device_plugin.kubelet import BareKubelet, PluginConnection
from devicecore_tools.conformance.device_plugin.process import ProcessUnderTest
from devicecore_tools.conformance.device_plugin.registration import PluginRegistration
from devicecore_tools.conformance.device_plugin.settings import Settings
from devicecore_tools.conformance.model import Failure, Skip
from devicecore_tools.conformance.processes import ProcessorUse
from devicecore_tools.testing.process import PluginProcess, PluginProcessError


@frozen
class Absence:
    """What the plugin did while the kubelet was away, and afterwards.

    Attributes:
        cpu: the part of one processor that it used. It is None if unknown.
        returned_after: seconds until it registered again. It is None if it did not.
        problem: why it did not. The text is empty if it did.
    """

    cpu: float | None
    returned_after: float | None
    problem: str


@define
class PluginObservations:
    """What checks have seen. The checks after them use it.

    Attributes:
        absence: what the plugin did while the kubelet was away. It is None if that was not tried.
        returned: the connection after the last restart of the kubelet that deleted all sockets.
        health_changes: the change that was seen after a kubelet restart. It is None if none was seen.
        refused: how often the process ended because the kubelet had refused it.
    """

    absence: Absence | None = None
    returned: PluginConnection | None = None
    health_changes: Mapping[str, str] | None = None
    refused: int = 0


class PluginUnderTest:
    """The plugin under test.

    Args:
        kubelet: the kubelet's side.
        start: starts the plugin's process. It is None if the user starts it.
        settings: how it is tested.
        end_rest: ends processes of the plugin that have left its session.
    """

    def __init__(
        self,
        kubelet: BareKubelet,
        start: Callable[[], PluginProcess] | None,
        settings: Settings,
        end_rest: Callable[[], None] = lambda: None,
    ) -> None:
        self.kubelet = kubelet
        self.settings = settings
        self.process: ProcessUnderTest = ProcessUnderTest(kubelet, start, settings, end_rest)
        self.registration: PluginRegistration = PluginRegistration(kubelet, self.process, settings)
        self.lists: ListedDevices = ListedDevices(self.registration, self.process, settings)
        self.seen: PluginObservations = PluginObservations()

    def be_away(self) -> Absence:
        """Stop the kubelet for some seconds, and start it with an empty directory. Only the first call does that."""
        if self.seen.absence is None:
            self.registration.streaming()
            number = len(self.kubelet.registrations)
            self.kubelet.leave()
            process, before = self.process.running, self._processor_use()
            self.process.pause(self.settings.away)
            after = self._processor_use()
            self.kubelet.wipe()
            self.kubelet.serve()
            returned, problem = time.monotonic(), ""
            try:
                self.registration.see_it_return(number)
            except Failure as failure:
                problem = str(failure)
            took = None if problem else time.monotonic() - returned
            share = None
            if process is self.process.running and before is not None and after is not None:
                share = before.share_until(after)
            self.seen.absence = Absence(share, took, problem)
        return self.seen.absence

    def _processor_use(self) -> ProcessorUse | None:
        process = self.process.running
        return ProcessorUse.of(process) if process is not None and process.status is None else None

    def refuse(self) -> int:
        """Restart the kubelet and refuse every registration for some seconds. Return how many there were.

        A plugin may end because of that (api.proto). Such exits are noted, and its return is waited for.
        """
        self.registration.streaming()
        number, exits = len(self.kubelet.registrations), len(self.process.exits)
        self.kubelet.leave()
        self.process.pause(self.settings.restarting)
        self.kubelet.wipe()
        self.kubelet.refusal = "this kubelet refuses every plugin for some seconds"
        self.kubelet.serve()
        try:
            self.process.pause(self.settings.refusing)
            attempts = len(self.kubelet.registrations) - number
        finally:
            self.kubelet.leave()  # some plugins try again only when they see another kubelet
            self.kubelet.refusal = ""
            self.kubelet.serve()
        self.registration.wait_registered(number + attempts, self.settings.noticing)
        self.seen.refused += len(self.process.exits) - exits
        return attempts

    def wait_for_devices(self, connection: PluginConnection) -> bool:
        """Wait until the devices are as in the first list, because a new process may find them late.

        Return whether they are.
        """
        first = health_of(self.lists.first or self.lists.devices)

        def look() -> bool:
            return not health_changes(first, health_of(connection.last_list.devices))

        return bool(self.process.wait(look, self.settings.timeout))

    def change_health(self, connection: PluginConnection) -> Mapping[str, str]:
        """Run the command that changes a device's health. Return the changes that the plugin lists.

        Raises Skip if there is no such command. Raises Failure if the command failed, the plugin listed no change in
        time, or its stream or process ended.
        """
        if not self.settings.provoke_health:
            reason = "no command provokes it (--provoke-health)"
            raise Skip(reason)
        self.wait_for_devices(connection)
        before = health_of(self.lists.devices)
        number, exits = connection.list_count, len(self.process.exits)

        def look() -> Mapping[str, str] | None:
            changes = [health_changes(before, health_of(message.devices)) for message in connection.lists_after(number)]
            return next(filter(None, changes), None)

        try:
            self._run_shell(self.settings.provoke_health)
            self.process.wait(lambda: look() or connection.ended, self.settings.timeout)
            self.process.wait_for_exit()  # a plugin may report the change and then end
        finally:
            if self.settings.undo_health:
                self._run_shell(self.settings.undo_health)
        changes = look()
        if len(self.process.exits) > exits:
            actual = f"the plugin ended: {self.process.exits[exits]}"
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
            process.start()
            status = process.wait(self.settings.timeout)
        except PluginProcessError as error:
            process.stop(grace=0.0)
            raise Failure(str(error)) from None
        if status:
            actual = f"`{command}` exited with status {status}: {process.last_output or 'it printed nothing'}"
            raise Failure(actual)
