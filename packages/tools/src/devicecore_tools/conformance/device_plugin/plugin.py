"""The plugin under test: its parts, and what checks have observed.

Law: each part has one task and knows only the parts before it. The parts are the process, the registrations and the
listed devices.
"""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field, frozen

from devicecore_tools.conformance.device_plugin.devices import ListedDevices
from devicecore_tools.conformance.device_plugin.kubelet import BareKubelet, PluginConnection
from devicecore_tools.conformance.device_plugin.process import ProcessUnderTest
from devicecore_tools.conformance.device_plugin.registration import PluginRegistration
from devicecore_tools.conformance.device_plugin.settings import Settings
from devicecore_tools.conformance.model import Failure, Skip
from devicecore_tools.conformance.processes import ProcessorUse, Usage
from devicecore_tools.testing.process import PluginProcess


@frozen
class Quiet:
    """What the plugin's process did during a period in which nobody called the plugin.

    Attributes:
        before: the processor time that the process had used when the period began.
        after: the processor time that the process had used when the period ended.
        printed: how many bytes it printed.
    """

    before: ProcessorUse
    after: ProcessorUse
    printed: int

    @property
    def seconds(self) -> float:
        """How long the period was."""
        return self.after.at - self.before.at


@frozen
class Absence:
    """What the plugin did while the kubelet was down and afterwards.

    Attributes:
        quiet: what the plugin did while the kubelet was down, or None if unknown.
        returned_after: seconds until the plugin registered again, or until the check gave up.
        problem: why the plugin did not register again, or None if it did.
    """

    quiet: Quiet | None
    returned_after: float
    problem: Failure | None


@frozen
class SickStart:
    """What the plugin did when it was started while a device was unhealthy.

    Attributes:
        hidden: the changed devices that it listed as healthy, or why it did not register.
        calls: by method, how many calls for the other devices were answered, or what went wrong.
    """

    hidden: Failure | tuple[str, ...]
    calls: Mapping[str, Failure | Skip | int]


@define
class PluginObservations:
    """What checks have observed, for use by later checks.

    Attributes:
        absence: what the plugin did while the kubelet was down for a few seconds, or None if that was not observed.
        idle: what the plugin did while it was left alone, or None if unknown.
        returned: the connection after the kubelet restart in returns-after-the-directory-is-emptied, or None.
        provocation: why the command that changes a device's health failed every time; an empty string if the command
            succeeded at least once, and None if it was not run.
        health_changes: the change of health that was observed, or None.
        recovered: devices that had become unhealthy and were listed as healthy again.
        refused: how many times the process exited because the kubelet had refused the plugin.
        reacts_to_refusal: whether the plugin exited or registered again after a refusal, or None if the plugin was not
            refused.
        growth: what grew with the calls; an empty string if nothing did, and None if unknown.
        used_by: the process whose usage is recorded in `usages`.
        usages: what the process used right after many calls, and what it used when last measured.
        while_sick: by method, how many calls were answered while another device was unhealthy, or what went wrong. The
            value is None if no change of health was listed.
        situations: what was observed after each event, by event name.
        spared: how many devices a change of health has left healthy, or None if they share their nodes.
        dropped: devices that exist, but that a list no longer contained when their health had changed.
        sick: what the plugin did while it was left alone and a device was unhealthy, or None if unknown.
        repeats_while_sick: how many lists in this time repeated the previous list.
        copies: healthy devices that are copies of an unhealthy one, with that one, or None if no unhealthy device has
            copies.
        ended: a sentence for each stream that ended although neither side had a reason.
        sick_start: what the plugin did when it was started while a device was unhealthy, or None if it was not.
    """

    absence: Absence | None = None
    idle: Quiet | None = None
    returned: PluginConnection | None = None
    provocation: str | None = None
    health_changes: Mapping[str, str] | None = None
    recovered: tuple[str, ...] = ()
    refused: int = 0
    reacts_to_refusal: bool | None = None
    growth: str | None = None
    usages: tuple[Usage, ...] = ()
    used_by: PluginProcess | None = None
    while_sick: Mapping[str, Failure | Skip | int] | None = None
    situations: dict[str, Any] = field(factory=dict)
    spared: int | None = None
    dropped: list[str] = field(factory=list)
    sick: Quiet | None = None
    repeats_while_sick: int = 0
    copies: Mapping[str, str] | None = None
    ended: list[str] = field(factory=list)
    sick_start: SickStart | None = None


class PluginUnderTest:
    """The plugin under test. The arguments are those of `ProcessUnderTest`."""

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

    def note_ended_streams(self, *, are_reported: bool) -> None:
        """Record the streams that have ended since the last call, although neither side had a reason.

        A process that is exiting has a reason, and so has a process that the checks have signaled. If `are_reported`, a
        check that has failed has reported the ends, and nothing is recorded.
        """
        ended, process = self.kubelet.ended.copy(), self.process.running
        del self.kubelet.ended[: len(ended)]
        if not ended or are_reported:
            return
        self.process.wait_for_exit()
        is_same = process is self.process.running and process is not None and not process.is_ending
        self.seen.ended += [str(one) for one in ended if is_same and one.opened > self.process.started_at]

    def note_usage(self, *, is_first: bool = False) -> None:
        """Record what the plugin's process uses now. If `is_first`, later measurements are compared with this one.

        A later measurement of a different process is not recorded.
        """
        process = self.process.running
        if process is None or process.status is not None:
            return
        if is_first:
            self.seen.used_by, self.seen.usages = process, (Usage.of(process),)
        elif process is self.seen.used_by:
            self.seen.usages = (self.seen.usages[0], Usage.of(process))
