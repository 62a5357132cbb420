"""The driver under test: its parts, and what checks have seen of it.

Law: each part has one task, and knows only those before it: the process, the registration, the slices, the claims that
are made for them, and the calls.
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
from devicecore_tools.conformance.dra.steps import Steps, TwoParts
from devicecore_tools.testing.api_server import Fault, LocalApiServer
from devicecore_tools.testing.dra_pools import PublishedPool, bodies_in

_MAX_RENEWALS = 6  # of one run, and more while they are quick
_MAX_RENEWING = 10.0  # seconds


@define
class Ending:
    """What was seen when the driver was ended with SIGTERM.

    Attributes:
        status: the exit status of the process. It is None if it was killed.
        seconds: until that process ended.
        crash: what it printed of a crash meanwhile. The text is empty if it did not crash.
        left: sockets of that process that were there after its end.
        had_slices: whether there were slices before its end.
        kept_slices: whether there were slices after its end.
    """

    status: int | None = None
    seconds: float = 0.0
    crash: str = ""
    left: tuple[str, ...] = ()
    had_slices: bool = False
    kept_slices: bool = False


@define
class DeletionOfSlices:
    """What was seen when a restarted kubelet deleted the slices.

    Attributes:
        at: when that was, in seconds of `time.monotonic`.
        process: the id of the process that was running then.
        calm: seconds from the last write of that process until then.
        republished_after: seconds until all pools were complete again. It is None if they were not.
    """

    at: float = 0.0
    process: int = 0
    calm: float = 0.0
    republished_after: float | None = None


@define
class ChangeOfDevices:
    """What was seen when the user's command changed the devices.

    Attributes:
        pools: those that were published before.
        problem: why the command has failed. The text is empty if it has not.
        was_published: whether other devices were published in time.
        is_undone: whether the command that undoes it was run.
    """

    pools: tuple[PublishedPool, ...] = ()
    problem: str = ""
    was_published: bool = False
    is_undone: bool = False

    @property
    def before(self) -> Mapping[tuple[str, str], Mapping[str, object]]:
        """The devices that were published before."""
        return bodies_in(self.pools)


@define
class DriverObservations:
    """What events have shown. The checks judge it.

    Attributes:
        ending: of the end with SIGTERM.
        wipe: of the kubelet's restart.
        intact: the driver's state files before they were damaged, and the claims that it had prepared then.
        change: of the devices.
        situations: the claims of each event, by its name, which the checks of situations share.
        writes: how many writes of slices there were while claims were prepared. It is None if that is not known.
        growth: what has grown with claims. The text is empty if nothing has, and it is None if that is not known.
    """

    ending: Ending
    wipe: DeletionOfSlices
    intact: tuple[Mapping[Path, bytes], Sequence[Claim]] = ({}, ())
    change: ChangeOfDevices = field(factory=ChangeOfDevices)
    situations: dict[str, Any] = field(factory=dict)
    growth: str | None = None
    writes: int | None = None


class DriverUnderTest:
    """The driver under test.

    Args:
        environment: its surroundings, entered.
        command: starts it; placeholders are replaced.
        settings: how it is tested.
        looks: the checks in two parts of this run.
    """

    def __init__(
        self,
        environment: Environment,
        command: Sequence[str],
        settings: DriverTestSettings,
        looks: tuple[TwoParts, ...] = (),
    ) -> None:
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
        self.steps: Steps = Steps(self, looks)
        self._renewals = 0
        self._renewing = 0.0

    def renew(self) -> bool:
        """Start the driver with fresh directories, because it did not give back a device. Return whether it is back.

        That is done a few times in a run, because each takes some time.
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
        """Let the API server answer so many of these requests with a fault in this block. None means all."""
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
