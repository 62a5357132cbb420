"""Situations: claims of several forms, an event, and what is observed of them afterwards.

Law: a check is a cell of a table, an event by an observation, for each form of claim for which the driver has devices.
All cells of an event share their claims. `NO_CELL` has the reason of each cell that is empty.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from devicecore.domain.text import counted
from devicecore_tools.conformance.dra.checks.cdi import neutral, require_edits, require_undone
from devicecore_tools.conformance.dra.checks.events import CORRUPTION, KILL, KUBELET_RESTART, LOSS, REBOOT, TERM
from devicecore_tools.conformance.dra.checks.prepare import Rows, difference, rows
from devicecore_tools.conformance.dra.claims import Claim
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.steps import DriverCheck, Occurrence, Parts, TwoParts
from devicecore_tools.conformance.model import (
    Severity,
    does_not_apply_if,
    in_context,
    require,
    skip_if,
    some,
)

MUST, SHOULD = Severity.MUST, Severity.SHOULD

FORMS: Mapping[str, tuple[int, ...]] = {
    "a claim of two requests": (1, 1),
    "a claim of one device": (1,),
    "a claim of two devices of a request": (2,),
}
"""The forms of claims, and how many devices each request of them is for."""


@frozen
class Known:
    """A claim of a situation, as it was before the event: its form, its answer, and what its containers get."""

    form: str
    claim: Claim
    answer: Rows
    edits: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The CDI names in the answer."""
        return sorted({name for row in self.answer for name in row.cdi})


@define(eq=False)
class Situation:
    """The claims of one event. They belong to no check, so that all cells of the event observe the same ones."""

    claims: list[Claim] = field(factory=list)
    known: list[Known] = field(factory=list)
    left: int = 0  # cells that were not finished yet

    def begin(self, driver: DriverUnderTest) -> None:
        """Prepare a claim of each form, of at most half of the devices that are free, or a single one."""
        if self.left == 0:
            self.known.clear()
            with driver.claims.owning(self.claims):
                self._prepare(driver)
        self.left += 1

    def _prepare(self, driver: DriverUnderTest) -> None:
        free, used = len(driver.claims.free_devices), 0
        driver.calls.require_preparing()
        for form, counts in FORMS.items():
            if used + sum(counts) > max(free // 2, 1):
                continue
            claim = driver.claims.new(spec=driver.claims.request(*counts))
            answer = rows(driver.calls.ready_devices(claim))
            names = {name for row in answer for name in row.cdi}
            self.known.append(
                Known(form, claim, answer, require_edits(driver, names, f"before the event, of {form}, "))
            )
            used += sum(counts)

    def end(self, driver: DriverUnderTest) -> None:
        """Note that a cell is over. After the last one, unprepare and delete the claims."""
        self.left -= 1
        if self.left == 0:
            with driver.claims.owning(self.claims):
                driver.calls.clean_up()

    def require(self) -> list[Known]:
        """Return the claims that the driver has prepared. Raises Skip if there are none any more."""
        found = [one for one in self.known if one.claim.is_prepared]
        skip_if(not found, "the claims of this event are gone, because the driver got fresh directories meanwhile")
        return found


@frozen
class Observation:
    """What is observed of the claims of a situation after an event.

    Attributes:
        name: that of a check, with the words for the event in place of `{}`.
        done: what the check does, likewise.
        expected: what should be.
        clause: why.
        look: observes; returns a sentence, or raises Failure.
    """

    name: str
    done: str
    expected: str
    clause: str
    look: Callable[[DriverUnderTest, Sequence[Known]], str]


def _still_resolve(driver: DriverUnderTest, known: Sequence[Known]) -> str:
    with_names = [one for one in known if one.names]
    does_not_apply_if(not with_names, "the driver answers no CDI devices")
    for one in with_names:
        edits = require_edits(driver, one.names, f"of {one.form}, ")
        require(edits == one.edits, f"of {one.form}, {some(sorted(edits ^ one.edits))} is not as before")
    return f"the CDI devices of {counted(len(with_names), 'claim')} are as before"


def _prepare_again(driver: DriverUnderTest, known: Sequence[Known]) -> str:
    for one in known:
        with in_context(f"for {one.form}"):
            answer = rows(driver.calls.prepared(one.claim))
            require(answer == one.answer, f"the answer differs: {difference(one.answer, answer)}")
            edits = require_edits(driver, one.names, "")
            same = neutral(edits, one.claim) == neutral(one.edits, one.claim)
            require(same, f"{some(sorted(edits ^ one.edits))} is not as before")
    return f"{counted(len(known), 'claim')} prepared as before"


def _free(driver: DriverUnderTest, known: Sequence[Known]) -> str:
    devices = []
    for one in known:
        with in_context(f"of {one.form}"):
            driver.calls.unprepared(one.claim)
            require_undone(driver, one.names)
            for device in one.claim.devices:
                with driver.claims.owning([]), in_context(f"afterwards, {device} for another claim"):
                    driver.calls.prepared(driver.claims.on(device))
                    driver.calls.clean_up()
                devices.append(str(device))
    return f"{some(devices)} was prepared for another claim"


RUNNING = "A container that runs may be restarted at any time, and its runtime then resolves the CDI devices again"
KEEPS = Observation(
    "keeps-cdi-devices-{}",
    "Claims of several forms are prepared, {}, and before any further call their CDI devices are resolved.",
    "the same changes of a container as before",
    f"{RUNNING}; no kubelet asks the driver before. (kubelet, DRA manager; CDI specification)",
    _still_resolve,
)
PREPARES = Observation(
    "prepares-claims-{}",
    "Claims of several forms are prepared, {}, and they are prepared again.",
    "the same answers, with CDI devices that change a container as before",
    "NodePrepareResources is called again for a claim that is prepared. It must be idempotent. (kubeletplugin, "
    "DRAPlugin.PrepareResourceClaims)",
    _prepare_again,
)
FREES = Observation(
    "frees-devices-{}",
    "Claims of several forms are prepared, {}, and they are unprepared; other claims get their devices.",
    "success, no CDI device that stays, and success for the other claims",
    "NodeUnprepareResources is the opposite of NodePrepareResources, also across restarts of the driver and the node. "
    "A device that is not given back is lost to the node. (dra, api.proto; kubeletplugin, DRAPlugin)",
    _free,
)

CELLS: Mapping[tuple[Occurrence, str], tuple[Severity, Sequence[Observation]]] = {
    (KILL, "after-a-kill"): (MUST, (KEEPS, FREES)),
    (REBOOT, "after-a-reboot"): (MUST, (FREES,)),
    (CORRUPTION, "after-a-corruption"): (SHOULD, (FREES,)),
    (LOSS, "after-its-state-was-lost"): (SHOULD, (FREES,)),
    (TERM, "after-sigterm"): (MUST, (KEEPS, PREPARES)),
}
"""Of each event: how the names of its checks end, how severe they are, and what is observed, in this order."""

NO_CELL: Mapping[tuple[Occurrence, str], str] = {
    (KILL, "prepares-claims-{}"): "prepares-the-same-after-a-restart",
    (REBOOT, "keeps-cdi-devices-{}"): "the directory of CDI files is empty after a reboot, and no container runs",
    (REBOOT, "prepares-claims-{}"): "restores-cdi-devices-after-a-reboot",
    (CORRUPTION, "keeps-cdi-devices-{}"): "a driver that has lost its state may remove what it does not know",
    (CORRUPTION, "prepares-claims-{}"): "survives-a-corrupt-checkpoint",
    (LOSS, "keeps-cdi-devices-{}"): "a driver that has lost its state may remove what it does not know",
    (LOSS, "prepares-claims-{}"): "a driver that has lost its state may make other CDI devices",
    (KUBELET_RESTART, "keeps-cdi-devices-{}"): "nothing happens to the driver or its files",
    (KUBELET_RESTART, "prepares-claims-{}"): "prepare-is-idempotent: the driver sees a call like any other",
    (KUBELET_RESTART, "frees-devices-{}"): "frees-the-device: the driver sees a call like any other",
    (TERM, "frees-devices-{}"): "frees-devices-after-a-kill: a process that is killed saves less",
}
"""Why there is no such check: the name of one that does it, or a sentence."""


def _cell(event: Occurrence, ending: str, severity: Severity, seen: Observation) -> DriverCheck:
    def parts(driver: DriverUnderTest) -> Parts:
        situation = driver.seen.situations.setdefault(event.name, Situation())
        situation.begin(driver)
        try:
            yield
            return seen.look(driver, situation.require())
        finally:
            situation.end(driver)

    name = seen.name.format(ending)
    parts.__name__ = name.replace("-", "_")
    look: Any = TwoParts(event, parts)
    done = seen.done.format(event.name)
    return DriverCheck(
        name, severity, done, seen.expected, seen.clause, look, group="situations", is_core=True, when=event
    )


CHECKS: tuple[DriverCheck, ...] = tuple(
    _cell(event, ending, severity, seen) for (event, ending), (severity, cells) in CELLS.items() for seen in cells
)
"""The cells."""
