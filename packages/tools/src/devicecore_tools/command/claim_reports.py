"""What `why` says of the claims of one pod, or of one claim: on the best node, and on the others by kind.

Law: it fits on one screen, unless each device is asked for.
"""

from collections.abc import Iterable, Iterator, Sequence

import click
from attrs import frozen

from devicecore.domain.allocation import DeviceAllocation, UnallocatedClaim
from devicecore.domain.text import counted, listed
from devicecore_tools.command.claim_advice import expression_pairs, over_committed_pairs, pool_pairs
from devicecore_tools.command.claim_rows import document_of, other_pairs, pairs_of, problem_pairs
from devicecore_tools.command.output import print_json, print_pairs
from devicecore_tools.doctor.pod.claim_report import type_of
from devicecore_tools.doctor.pod.claim_trial import AllocatedClaim, ClaimAnswer, ClaimTrial, Outcome

_MAX_NAMES = 3
_MAX_LINES = 24  # a small terminal has so many


@frozen
class AllocatedReport:
    """What a claim has: its devices, where they can be used, and for which pods they are reserved."""

    claim: AllocatedClaim
    status: int = 0

    @property
    def document(self) -> dict[str, object]:
        """The report as JSON."""
        claim = self.claim
        allocated = {
            "devices": [{"request": request, "device": device} for request, device in claim.devices],
            "nodes": None if claim.nodes is None else list(claim.nodes),
            "reservedFor": list(claim.pods),
        }
        return {"claims": claim.name, "allocated": allocated}

    def show(self, *, all_devices: bool) -> None:  # noqa: ARG002 - as `ClaimReport` has it
        """Print the report."""
        claim = self.claim
        rows = [(f"request {request}", device) for request, device in claim.devices]
        if claim.nodes is None:
            rows.append(("usable on", "all nodes"))
        elif claim.nodes:
            rows.append(("usable on", ", ".join(claim.nodes)))
        rows.append(("reserved for", ", ".join(f"pod {name}" for name in claim.pods) or "no pod"))
        print_pairs(f"claim {claim.name} is allocated", rows)


@frozen
class ClaimReport:
    """What nodes say of the claims of one pod, or of one claim.

    Attributes:
        title: the pod or the claim.
        trial: what is known.
        claims: those that are not allocated.
        answers: of each node.
        allocated: the other claims of the pod.
        plugins: nodes that were not tried, because a device plugin serves an extended resource there.
    """

    title: str
    trial: ClaimTrial
    claims: Sequence[UnallocatedClaim]
    answers: Sequence[ClaimAnswer] = ()
    allocated: Sequence[AllocatedClaim] = ()
    plugins: Sequence[str] = ()

    @property
    def outcome(self) -> Outcome:
        """What a scheduler does with them, by the node that says most."""
        if self._is_allocated:
            return Outcome.FITS
        if self.plugins and not (self.answers and self.answers[0].fits):
            return Outcome.UNKNOWN
        if not self.answers:
            return Outcome.FITS_NOT
        if self.trial.lacks_library and not self.answers[0].fits:
            return Outcome.UNKNOWN
        outcome = self.answers[0].outcome
        return Outcome.MISSED if outcome is Outcome.FITS and self._stopping is not None else outcome

    @property
    def _is_allocated(self) -> bool:
        """Whether all claims are allocated, and the pod may use them on a node."""
        return not self.claims and (not self.answers or self.answers[0].fits)

    @property
    def _stopping(self) -> ClaimAnswer | None:
        """The first node, after the best one, whose error makes a scheduler try no other node."""
        return next((one for one in self.answers[1:] if one.refusal is not None and one.refusal.stops_pod), None)

    @property
    def status(self) -> int:
        """The exit status."""
        return int(self.outcome.value)

    @property
    def document(self) -> dict[str, object]:
        """The report as JSON."""
        names = ", ".join(one.name for one in self.claims)
        nodes = [] if self._is_allocated else [document_of(one) for one in self.answers]
        return {"claims": names, "outcome": self.outcome.name.lower().replace("_", "-"), "nodes": nodes}

    def show(self, *, all_devices: bool) -> None:
        """Print the report: what is said of the best node, and the others by what they have in common."""
        if self._is_allocated:
            click.echo(f"{self.title}: each claim is allocated already")
            for one in self.allocated:
                AllocatedReport(one).show(all_devices=all_devices)
        elif not self.answers:
            click.echo(f"{self.title}: there is no node{f', but {self._with_plugins}' * bool(self.plugins)}")
        else:
            best, *others = self.answers
            pairs = list(_with_hint(self._pairs(best, all_devices=all_devices), self._bare_sibling(best, others)))
            of_others = list(other_pairs(others))
            room = _MAX_LINES - 1 - len(of_others) - bool(others)
            if len(pairs) > room and not all_devices:
                more = counted(len(pairs) - room + 1, "more row")
                pairs[room - 1 :] = [("...", f"{more}: --all-devices has the reason against each device")]
            print_pairs(self._headline(best), pairs)
            if others:
                print_pairs("The other nodes", of_others)

    @property
    def _with_plugins(self) -> str:
        names = listed(self.plugins, _MAX_NAMES)
        return f"device plugins serve the pod's extended resources on {names}: devicecore fits tries the pod there"

    def _bare_sibling(self, best: ClaimAnswer, others: Sequence[ClaimAnswer]) -> str:
        """Return what to look at if a node of the best one's type has no slice of a driver that is wanted."""
        drivers = {one.device.driver for one in best.verdicts}
        wanted = [one for one in drivers if self.trial.wants_driver(self.claims, one)]
        kind = type_of(best.node)
        if not wanted or not kind:
            return ""
        bare = [one.node.name for one in others if type_of(one.node) == kind and not self.trial.pools(one.node)]
        if not bare:
            return ""
        verb = "have" if len(bare) > 1 else "has"
        what = f"{listed(bare, 1)} of the same {kind} {verb} no ResourceSlice of {min(wanted)}"
        return f"look whether the driver's pod runs on {bare[0]}, and at its log: {what}"

    def _headline(self, best: ClaimAnswer) -> str:
        says = {
            Outcome.FITS: "gets its devices",
            Outcome.FITS_NOT: "gets no devices",
            Outcome.UNKNOWN: "nobody can say whether it gets devices",
            Outcome.MISSED: "could get its devices, but not every scheduler finds them",
        }[self.outcome]
        if best.fits and self._stopping is not None:
            says = f"gets no devices from kube-scheduler, although {best.node.name} has them"
            return f"{self.title}: {says}"
        count, alike = len(self.answers), sum(one.outcome is Outcome.FITS for one in self.answers)
        which = ""
        if count > 1 and not best.fits:
            which = f", the nearest of {count:,} nodes"
        elif alike > 1:
            which = f", one of {alike:,} such nodes of {count:,}"
        return f"{self.title} on {best.node.name}{which}: {says}"

    def _pairs(self, best: ClaimAnswer, *, all_devices: bool) -> Iterator[tuple[str, str]]:
        if self.plugins:
            yield "not tried", self._with_plugins
        is_stopped_here = best.refusal is not None and best.refusal.stops_pod
        if (stopping := self._stopping) is not None and not is_stopped_here:
            yield "reason", f"an error on {stopping.node.name} stops the pod on every node: {stopping.answer}"
            yield from pool_pairs(self.trial, stopping)
            if stopping.refusal is not None:
                yield from expression_pairs(self.trial, self.claims, stopping.refusal, is_mended=False)
            away = "nodeSelector, nodeAffinity, or a taint of the node"
            if not best.causes:  # with which a scheduler may look at slices of other nodes, whatever it tries
                yield "do", f"until that is mended, keep the pod away from {stopping.node.name}: {away}"
        if isinstance(best.answer, DeviceAllocation):
            yield from pairs_of(best, over_committed_pairs(self.trial, best))
            for one in self.trial.unpublished(best.answer)[:_MAX_NAMES]:
                text = f"{one.device} is allocated to {one} and published no more: which counters it uses is not known"
                yield "caution", text
            return
        helps = "gets them if" if stopping is None or is_stopped_here else "also needs"
        for name, text in problem_pairs(self.trial, self.claims, best, all_devices=all_devices):
            # What helps on one node does not end the error of another.
            yield (helps if name == "gets them if" else name), text


def _with_hint(pairs: Iterable[tuple[str, str]], hint: str) -> Iterator[tuple[str, str]]:
    """Return rows with a hint after those that say what is in the way."""
    is_given = not hint
    for name, text in pairs:
        if not is_given and name not in ("reason", "because", "but", "do"):
            yield "do", hint
            is_given = True
        yield name, text
    if not is_given:
        yield "do", hint


def print_reports(reports: Sequence[AllocatedReport | ClaimReport], *, as_json: bool, all_devices: bool) -> int:
    """Print reports, as JSON those of several pods and claims as one list. Return the exit status."""
    if as_json:
        documents = [one.document for one in reports]
        print_json(documents[0] if len(documents) == 1 else {"claims": documents})
    else:
        for report in reports:
            report.show(all_devices=all_devices)
    return max((one.status for one in reports), key=_SEVERITY.index, default=0)


_SEVERITY = (0, 4, 3, 1)
"""Exit statuses, the worst one last."""
