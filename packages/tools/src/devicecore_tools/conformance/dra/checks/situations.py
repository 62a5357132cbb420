"""Situations: claims of several forms, an event, and what is observed afterwards.

Law: each check is a cell in a table of events by observations, for each form of claim for which the driver has devices.
All cells of an event share their claims. `NO_CELL` gives the reason for each empty cell.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from devicecore.domain.names import is_dns_subdomain
from devicecore.domain.text import counted
from devicecore_tools.conformance.dra.calls import devices_in
from devicecore_tools.conformance.dra.checks.cdi import neutral, own_paths, require_edits, require_undone
from devicecore_tools.conformance.dra.checks.events import (
    CORRUPTION,
    CORRUPTION_ALONE,
    KILL,
    KUBELET_RESTART,
    LATE_API_SERVER,
    LOSS,
    OUTAGE,
    QUIET,
    REBOOT,
    REGISTRATION,
    TERM,
)
from devicecore_tools.conformance.dra.checks.prepare import Rows, difference, require_free, rows
from devicecore_tools.conformance.dra.claims import Claim
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.steps import DriverCheck, Occurrence, Parts, TwoParts
from devicecore_tools.conformance.model import (
    DoesNotApply,
    Failure,
    Severity,
    Skip,
    does_not_apply_if,
    in_context,
    needed,
    require,
    skip_if,
    some,
)

MUST, SHOULD = Severity.MUST, Severity.SHOULD


@frozen
class Form:
    """A form that claims can have.

    Attributes:
        name: a description in a few words.
        devices: how many devices the form needs.
        make: creates the claims, which are prepared with one request. Raises DoesNotApply if no device allows the form.
    """

    name: str
    devices: int
    make: Callable[[DriverUnderTest], Sequence[Claim]]


FORMS: Sequence[Form] = (
    Form("a claim with two requests", 2, lambda driver: [driver.claims.new(spec=driver.claims.request(1, 1))]),
    Form("the two claims of a pod", 2, lambda driver: [driver.claims.new(1), driver.claims.new(1)]),
    Form("a claim for one device", 1, lambda driver: [driver.claims.new(1)]),
    Form(
        "a claim with one request for two devices", 2, lambda driver: [driver.claims.new(spec=driver.claims.request(2))]
    ),
    Form("a part of a device", 0, lambda driver: [driver.claims.part_of(driver.claims.free_device(shared=True))]),
)
"""The forms of claims.

The claims use at most half of the free devices, or the only one, so some forms may be left out. For a slow driver,
only the first two forms are tried.
"""

_OTHER = "conformance-other.example.org"
_LONGER = "-net"  # what follows the driver's name in the name of another driver


@frozen
class Known:
    """A situation's claim before the event: its form, the driver's response, and what its containers get and mount.

    Some drivers have CDI devices that do not depend on claims: `standing` contains those that already existed before
    the claim was prepared.
    """

    form: str
    claim: Claim
    answer: Rows
    edits: frozenset[str]
    mounted: Sequence[str]
    standing: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The CDI names in the response."""
        return sorted({name for row in self.answer for name in row.cdi})


@define(eq=False)
class Situation:
    """The claims for one event.

    The claims belong to no check, so that all cells of the event observe the same claims.
    """

    claims: list[Claim] = field(factory=list)
    known: list[Known] = field(factory=list)
    has_neighbors: bool = False  # whether files of other drivers are observed, too
    left: int = 0  # cells that are not finished yet
    planted: Mapping[Path, str] = field(factory=dict)
    listeners: list[socket.socket] = field(factory=list)

    def begin(self, driver: DriverUnderTest) -> None:
        """For the first cell, prepare claims, using at most half of the free devices, or the only one."""
        if self.left == 0:
            self.known.clear()
            if self.has_neighbors:
                self.plant(driver)
            try:
                with driver.claims.owning(self.claims):
                    self._prepare(driver)
            except (Failure, Skip):  # otherwise, claims would hold their devices until the end of the run
                self._finish(driver)
                raise
        self.left += 1

    def _prepare(self, driver: DriverUnderTest) -> None:
        _ = driver.registration.reachable  # a driver that was just started may still have to write its standing devices
        free, used = len(driver.claims.free_devices), 0
        standing = frozenset(driver.environment.cdi_names())
        driver.calls.require_preparing()
        for form in FORMS[:2] if driver.calls.are_slow else FORMS:
            if used + form.devices > max(free // 2, 1):
                continue
            try:
                claims = form.make(driver)
            except DoesNotApply:
                continue
            used += form.devices
            for claim, answer in zip(claims, self._answers(driver, claims), strict=True):
                names = {name for row in answer for name in row.cdi}
                with needed("CDI devices that can be resolved before the event"):
                    edits = require_edits(driver, names, f"with {form.name}, ")
                mounted = [path for path in own_paths(driver, names) if Path(path).exists()]
                self.known.append(Known(form.name, claim, answer, edits, mounted, standing))
        skip_if(not self.known, "no claim was prepared before the event")

    @staticmethod
    def _answers(driver: DriverUnderTest, claims: Sequence[Claim]) -> list[Rows]:
        """Prepare claims with one request. Raises Skip if the claims were not prepared; other checks report that."""
        if len(claims) == 1:
            return [rows(driver.calls.ready_devices(claims[0]))]
        with needed("prepared claims"):
            answer = driver.calls.prepare(*claims)
            return [rows(devices_in(answer, claim)) for claim in claims]

    def plant(self, driver: DriverUnderTest) -> None:
        """Put the CDI file, registration socket and directory of two other drivers next to the driver's.

        The name of one of them begins with the name of the driver under test, if that is valid. Raises Skip if the
        driver is not registered.
        """
        found: dict[Path, str] = {}
        for name in filter(is_dns_subdomain, (_OTHER, f"{driver.registration.name}{_LONGER}")):
            text = f'{{"cdiVersion": "0.3.0", "kind": "conformance.example.org/{name.partition(".")[0]}", '
            text += '"devices": [{"name": "x", "containerEdits": {"env": ["X=1"]}}]}\n'
            found[driver.environment.plant_cdi(f"{name}_x.json", text)] = f"a CDI file of {name}"
            found[driver.environment.plant_state(name, "{}")] = f"the state of {name}"
            path = driver.environment.registry / f"{name}-reg.sock"
            driver.kubelet.others.add(str(path))
            listener = socket.socket(socket.AF_UNIX)
            self.listeners.append(listener)
            with suppress(OSError):  # the path is too long
                listener.bind(str(path))
                listener.listen()
            found[path] = f"a registration socket of {name}"
        self.planted = {one: what for one, what in found.items() if one.exists()}

    def take_away(self) -> None:
        """Remove what was planted."""
        while self.listeners:
            self.listeners.pop().close()
        for path in self.planted:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # the directory contains other files, too
                if path.name == "state.json":
                    path.parent.rmdir()

    def end(self, driver: DriverUnderTest) -> None:
        """Mark a cell as finished. After the last cell, unprepare and delete the claims."""
        self.left -= 1
        if self.left == 0:
            self._finish(driver)

    def _finish(self, driver: DriverUnderTest) -> None:
        self.take_away()
        with driver.claims.owning(self.claims):
            driver.calls.clean_up()

    def require(self) -> list[Known]:
        """Return the claims that the driver has prepared. Raises Skip if the claims are gone."""
        found = [one for one in self.known if one.claim.is_prepared]
        skip_if(not found, "the claims of this event are gone, because the driver was given fresh directories")
        return found


@frozen
class Observation:
    """An observation of a situation's claims after an event.

    Attributes:
        name: the name of a check, with `{}` for the event.
        done: what the check does, with `{}` for the event.
        expected: the expected result.
        clause: why.
        look: makes the observation; returns a sentence, or raises Failure. `look` is None for observations of other
            drivers' files.
    """

    name: str
    done: str
    expected: str
    clause: str
    look: Callable[[DriverUnderTest, Sequence[Known]], str] | None


def _still_resolve(driver: DriverUnderTest, known: Sequence[Known]) -> str:
    with_names = [one for one in known if one.names]
    does_not_apply_if(not with_names, "the driver returns no CDI devices")
    for one in with_names:
        edits = require_edits(driver, one.names, f"for {one.form}, ")
        require(edits == one.edits, f"for {one.form}, the edits differ in {some(sorted(edits ^ one.edits))}")
        gone = [path for path in one.mounted if not Path(path).exists()]
        require(not gone, f"for {one.form}, its containers use {some(gone)}, which does not exist")
    return f"the CDI devices of {counted(len(with_names), 'claim')} are unchanged"


def _prepare_again(driver: DriverUnderTest, known: Sequence[Known]) -> str:
    for one in known:
        with in_context(f"for {one.form}"):
            answer = rows(driver.calls.prepared(one.claim))
            require(answer == one.answer, f"the answer differs: {difference(one.answer, answer)}")
            edits = require_edits(driver, one.names, "")
            same = neutral(edits, one.claim) == neutral(one.edits, one.claim)
            require(same, f"the edits differ in {some(sorted(edits ^ one.edits))}")
    return f"{counted(len(known), 'claim')} prepared as before"


def _free(driver: DriverUnderTest, known: Sequence[Known]) -> str:
    for one in known:
        with in_context(f"for {one.form}"):
            driver.calls.unprepared(one.claim)
            require_undone(driver, set(one.names) - one.standing)
    # All claims are unprepared first, because a driver may prepare nothing while it cannot read which devices a claim
    # holds.
    with suppress(Skip):  # a driver may give its devices new names at each start, or publish them late
        driver.claims.require_published([one.claim for one in known])
    devices = {
        device.key: device for one in known for device in one.claim.devices if device.key in driver.slices.by_key
    }
    with in_context("afterwards"):
        return require_free(driver, list(devices.values()), *(one.claim for one in known))


def _others_are_there(situation: Situation) -> str:
    gone = [what for path, what in situation.planted.items() if not path.exists()]
    require(not gone, f"the driver removed {some(gone)}")
    return f"{counted(len(situation.planted), 'file')} of other drivers left alone"


RUNNING = "A running container may be restarted at any time, and its runtime then resolves the CDI devices again"
KEEPS = Observation(
    "keeps-cdi-devices-{}",
    "Claims of several forms are prepared, {}, and the claims' CDI devices are resolved before any further call.",
    "the same edits to a container as before, and the files that the edits mount",
    f"{RUNNING}, without a call to the driver. (kubelet, DRA manager; CDI specification)",
    _still_resolve,
)
PREPARES = Observation(
    "prepares-claims-{}",
    "Claims of several forms are prepared, {}, and the claims are prepared again.",
    "the same answers, with CDI devices that edit a container as before",
    "NodePrepareResources is called again for prepared claims. The call must be idempotent. (kubeletplugin, "
    "DRAPlugin.PrepareResourceClaims)",
    _prepare_again,
)
FREES = Observation(
    "frees-devices-{}",
    "Claims of several forms are prepared, {}, and the claims are unprepared; other claims get their devices.",
    "success, no CDI devices left, and success for the other claims",
    "NodeUnprepareResources undoes what NodePrepareResources did, even across restarts of the driver and the node. A "
    "device that is not released is lost to the node. (dra, api.proto; kubeletplugin, DRAPlugin)",
    _free,
)

LEAVES = Observation(
    "leaves-files-of-others-alone-{}",
    "Other drivers, one with a name that begins like the driver's, have CDI files, sockets and state, and {}.",
    "the other drivers' files still exist",
    "The directories for CDI files, registration sockets and plugins belong to all drivers on a node. (pluginwatcher, "
    "README; CDI specification)",
    None,
)

CELLS: Mapping[tuple[Occurrence, str], tuple[Severity, Sequence[Observation]]] = {
    (KILL, "after-a-kill"): (MUST, (KEEPS, LEAVES, FREES)),
    (REBOOT, "after-a-reboot"): (MUST, (FREES,)),
    (CORRUPTION, "after-a-corruption"): (SHOULD, (KEEPS,)),
    (CORRUPTION_ALONE, "after-a-corruption"): (SHOULD, (FREES,)),
    (LOSS, "after-its-state-was-lost"): (SHOULD, (FREES,)),
    (REGISTRATION, "after-a-new-registration"): (MUST, (KEEPS, PREPARES, FREES)),
    (QUIET, "while-nothing-happens"): (MUST, (KEEPS,)),
    (OUTAGE, "without-the-api-server"): (MUST, (KEEPS,)),
    (LATE_API_SERVER, "at-a-start-without-the-api-server"): (MUST, (KEEPS,)),
    (TERM, "after-sigterm"): (MUST, (KEEPS, LEAVES, PREPARES, FREES)),
}
"""For each event: the ending of its checks' names, their severity, and the observations, in this order."""

_ONLY_IN_FULL = {CORRUPTION, CORRUPTION_ALONE}
"""Events whose cells a default run leaves out.

A driver that appends to a log loses its last records if the file is cut in half, which no crash does to synced records.
"""

NO_CELL: Mapping[tuple[Occurrence, str], str] = {
    (KILL, "prepares-claims-{}"): "prepares-the-same-after-a-restart",
    (REBOOT, "keeps-cdi-devices-{}"): "the CDI directory is empty after a reboot, and no container runs",
    (REBOOT, "prepares-claims-{}"): "restores-cdi-devices-after-a-reboot",
    (CORRUPTION, "prepares-claims-{}"): "survives-a-corrupt-checkpoint",
    (CORRUPTION, "frees-devices-{}"): "survives-a-corrupt-checkpoint",
    (CORRUPTION, "leaves-files-of-others-alone-{}"): "leaves-files-of-others-alone-after-a-kill",
    (CORRUPTION_ALONE, "keeps-cdi-devices-{}"): "keeps-cdi-devices-after-a-corruption, which shares its event",
    (CORRUPTION_ALONE, "prepares-claims-{}"): "survives-a-corrupt-checkpoint",
    (LOSS, "keeps-cdi-devices-{}"): "a driver that has lost its state may remove what it does not know",
    (LOSS, "prepares-claims-{}"): "a driver that has lost its state may create different CDI devices",
    (REBOOT, "leaves-files-of-others-alone-{}"): "leaves-files-of-others-alone-after-a-kill",
    (CORRUPTION_ALONE, "leaves-files-of-others-alone-{}"): "leaves-files-of-others-alone-after-a-kill",
    (LOSS, "leaves-files-of-others-alone-{}"): "leaves-files-of-others-alone-after-a-kill",
    (REGISTRATION, "leaves-files-of-others-alone-{}"): "leaves-files-of-others-alone-after-a-kill",
    (QUIET, "prepares-claims-{}"): "prepare-is-idempotent: nothing has happened",
    (QUIET, "frees-devices-{}"): "frees-the-device: nothing has happened",
    (QUIET, "leaves-files-of-others-alone-{}"): "leaves-files-of-others-alone-after-a-kill",
    (OUTAGE, "prepares-claims-{}"): "prepares-after-the-api-server-was-away",
    (OUTAGE, "frees-devices-{}"): "unprepares-without-the-api-server",
    (OUTAGE, "leaves-files-of-others-alone-{}"): "leaves-files-of-others-alone-after-a-kill",
    (LATE_API_SERVER, "prepares-claims-{}"): "prepares-the-same-after-a-restart",
    (LATE_API_SERVER, "frees-devices-{}"): "frees-devices-after-a-kill",
    (LATE_API_SERVER, "leaves-files-of-others-alone-{}"): "leaves-files-of-others-alone-after-a-kill",
    (KUBELET_RESTART, "keeps-cdi-devices-{}"): "keeps-cdi-devices-after-a-new-registration",
    (KUBELET_RESTART, "prepares-claims-{}"): "prepares-claims-after-a-new-registration",
    (KUBELET_RESTART, "frees-devices-{}"): "frees-devices-after-a-new-registration",
    (KUBELET_RESTART, "leaves-files-of-others-alone-{}"): "leaves-files-of-others-alone-after-a-kill",
}
"""Why there is no check for a cell: the name of a check that covers it, or a sentence."""


def _cell(event: Occurrence, ending: str, severity: Severity, seen: Observation) -> DriverCheck:
    def parts(driver: DriverUnderTest) -> Parts:
        has_neighbors = LEAVES in CELLS[event, ending][1]
        situation = driver.seen.situations.setdefault(event.name, Situation(has_neighbors=has_neighbors))
        situation.begin(driver)
        try:
            yield
            if seen.look is None:
                _ = driver.registration.instance
                return _others_are_there(situation)
            return seen.look(driver, situation.require())
        finally:
            situation.end(driver)

    name = seen.name.format(ending)
    parts.__name__ = name.replace("-", "_")
    look: Any = TwoParts(event, parts)
    done = seen.done.format(event.name)
    return DriverCheck(
        name,
        severity,
        done,
        seen.expected,
        seen.clause,
        look,
        group="situations",
        is_core=event not in _ONLY_IN_FULL,
        when=event,
    )


CHECKS: tuple[DriverCheck, ...] = tuple(
    _cell(event, ending, severity, seen) for (event, ending), (severity, cells) in CELLS.items() for seen in cells
)
"""The checks in the cells."""
