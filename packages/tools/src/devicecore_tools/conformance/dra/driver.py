"""The driver under test: its parts, and what checks have observed.

Law: each part has one task and knows only the parts before it. The parts are the process, the registration, the slices,
the claims for published devices, and the calls.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field

from devicecore_tools.conformance.dra.calls import Calls
from devicecore_tools.conformance.dra.claims import Claim, Claims
from devicecore_tools.conformance.dra.environment import Environment
from devicecore_tools.conformance.dra.kubelet import DriverKubelet
from devicecore_tools.conformance.dra.process import DriverProcess
from devicecore_tools.conformance.dra.registration import DriverRegistration
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from devicecore_tools.conformance.dra.slices import PublishedSlices
from devicecore_tools.conformance.processes import Waits
from devicecore_tools.testing.api_server import Fault, LocalApiServer
from devicecore_tools.testing.dra_pools import PublishedPool, bodies_in

_MAX_RENEWALS = 6
"""This many renewals are always allowed in a run. More are allowed until the total time exceeds `_MAX_RENEWING`."""

_MAX_RENEWING = 10.0
"""After this many seconds of renewing, no renewal beyond `_MAX_RENEWALS` is started."""


@define
class Ending:
    """What was observed when the driver was stopped with SIGTERM.

    Attributes:
        status: the exit status of the process, or None if the process was killed.
        seconds: how long the process took to exit.
        crash: the crash that the process printed, or an empty string if the process did not crash.
        left: the process's sockets that were left behind after its exit.
        had_slices: whether there were slices before its exit.
        kept_slices: whether there were slices after its exit.
    """

    status: int | None = None
    seconds: float = 0.0
    crash: str = ""
    left: tuple[str, ...] = ()
    had_slices: bool = False
    kept_slices: bool = False


@define
class DeletionOfSlices:
    """What was observed when a restarted kubelet deleted the slices.

    Attributes:
        at: the time of the deletion, as a `time.monotonic()` timestamp.
        process: the id of the process that was running at that time.
        calm: seconds from the last write by that process to the deletion.
        republished_after: seconds until all pools were complete again, or None if they never were.
        waits: how long the process had waited for CPUs and disks before the deletion.
    """

    at: float = 0.0
    process: int = 0
    calm: float = 0.0
    republished_after: float | None = None
    waits: Waits = field(factory=Waits)


@define
class ChangeOfDevices:
    """What was observed when the user's command changed the devices.

    Attributes:
        pools: the pools that were published before the change.
        problem: why the command failed, or an empty string.
        was_published: whether the changed devices were published in time.
        is_undone: whether the command that undoes the change was run.
    """

    pools: tuple[PublishedPool, ...] = ()
    problem: str = ""
    was_published: bool = False
    is_undone: bool = False

    @property
    def before(self) -> Mapping[tuple[str, str], Mapping[str, object]]:
        """The devices that were published before the change."""
        return bodies_in(self.pools)


@define
class DriverObservations:
    """What was observed after events, for checks to judge.

    Attributes:
        ending: what was observed after SIGTERM.
        wipe: what was observed after the kubelet's restart.
        intact: the driver's state files before they were damaged, and the claims that were prepared at that time.
        change: what was observed after the change of devices.
        situations: the claims for each event, by event name, shared by the situation checks.
        edits: the edits of claims for a single device, by process id, pool and name.
        forms: what was found when claims of several forms were prepared, or None if none were prepared.
        writes: how many times slices were written because claims were prepared, or None if unknown.
        idle_writes: how many times per second slices were written while nothing happened.
        requests_when_idle: how many requests the API server had received at the end of the quiet time.
        growth: what grew with the claims; an empty string if nothing did, and None if unknown.
    """

    ending: Ending
    wipe: DeletionOfSlices
    intact: tuple[Mapping[Path, bytes], Sequence[Claim]] = ({}, ())
    change: ChangeOfDevices = field(factory=ChangeOfDevices)
    situations: dict[str, Any] = field(factory=dict)
    edits: dict[tuple[int, str, str], frozenset[str]] = field(factory=dict)
    forms: Any = None
    growth: str | None = None
    writes: int | None = None
    idle_writes: float = 0.0
    requests_when_idle: int = 0


class DriverUnderTest:
    """The driver under test.

    Args:
        environment: the driver's environment, already entered.
        command: the command that starts the driver; placeholders in it are replaced.
        settings: how the driver is tested.
    """

    def __init__(self, environment: Environment, command: Sequence[str], settings: DriverTestSettings) -> None:
        self.environment = environment
        self.api: LocalApiServer = environment.api
        self.settings = settings
        self.kubelet: DriverKubelet = DriverKubelet(environment.registry)
        self.process: DriverProcess = DriverProcess(environment, self.kubelet, command, settings)
        self.registration: DriverRegistration = DriverRegistration(environment, self.kubelet, self.process, settings)
        self.slices: PublishedSlices = PublishedSlices(self.api, self.process, self.registration, settings)
        self.claims: Claims = Claims(environment, self.registration, self.slices, settings)
        self.calls: Calls = Calls(environment, self.registration, self.process, self.claims, settings, self.renew)
        self.seen: DriverObservations = DriverObservations(Ending(), DeletionOfSlices())
        self._renewals = 0
        self._renewing = 0.0

    def renew(self) -> bool:
        """Start the driver with fresh directories, for example because it did not release a device.

        Return whether the driver is registered again with complete pools.

        The time that all renewals of a run may take is limited.
        """
        if self._renewals >= _MAX_RENEWALS and self._renewing > _MAX_RENEWING:
            return False
        self._renewals += 1
        began = time.monotonic()
        back = self.registration.start_again("renewed", self.environment.clear)
        self.calls.drop()
        is_complete = not back.problem and self.slices.wait_complete()
        self._renewing += time.monotonic() - began
        return is_complete

    @contextmanager
    def faults(self, fault: Fault, *, verb: str, resource: str, times: int | None) -> Iterator[None]:
        """In this block, make the API server answer the next `times` of these requests with a fault.

        If `times` is None, the API server answers all of these requests with the fault.
        """
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
