"""What `why` says about a pod's claims or about one claim: the best node in detail, and the other nodes in groups.

Law: a report about nodes has at most `_MAX_LINES` rows, unless the user asks for all devices.
"""

from collections.abc import Iterable, Iterator, Sequence

import click
from attrs import frozen

from devicecore.domain.allocation import DeviceAllocation, NoAllocation, UnallocatedClaim
from devicecore.domain.allocation.search import Taken
from devicecore.domain.model import is_extended_resource
from devicecore.domain.text import counted, foreign_text, listed
from devicecore_tools.command.claim_advice import expression_pairs, over_committed_pairs, pool_pairs
from devicecore_tools.command.claim_rows import document_of, other_pairs, pairs_of, problem_pairs
from devicecore_tools.command.output import print_json, print_pairs
from devicecore_tools.doctor.look.topology_settings import POLICY_NOT_KNOWN
from devicecore_tools.doctor.pod.claim_report import type_of
from devicecore_tools.doctor.pod.claim_trial import AllocatedClaim, ClaimAnswer, ClaimTrial, Outcome
from devicecore_tools.doctor.pod.extended_claim import ExtendedResourceClaim
from devicecore_tools.doctor.pod.machines import BoundPod
from devicecore_tools.doctor.pod.scheduling import PodAsks, decides_itself

_MAX_NAMES = 3
_MAX_SAID = 2_000  # the maximum length of a scheduler's message
_MAX_LINES = 24  # the number of lines on a small terminal

_GET_POLICY = "to take it into account, run on the node: devicecore fits POD --node /var/lib/kubelet"


def _has_expression_error(one: ClaimAnswer) -> bool:
    return isinstance(one.answer, NoAllocation) and one.answer.expression_error is not None


@frozen
class AllocatedReport:
    """A claim's allocation: its devices, where they can be used, and the pods that the claim is reserved for."""

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
    """The nodes' answers for the claims of one pod, or for one claim.

    Attributes:
        title: the pod or the claim.
        trial: the trial that produced the answers.
        claims: the unallocated claims.
        answers: each node's answer.
        allocated: the pod's claims that are already allocated.
        asks: the pod's other requirements, or None if the question is only about a claim.
        taken_away: the pod's claims that no other pod uses. A scheduler first takes their devices away.
        refused: why the API server would refuse the pod or one of its claims, or an empty string.
        unjudged: a scheduler's other checks, which may still refuse the pod.
        assumed: what is assumed because the deciding objects were not read.
        lacking: why no scheduler looks for a node, such as a claim that does not exist, or an empty string.
        is_kubelet_asked: whether the pod is also tried with the kubelet's own sources.
    """

    title: str
    trial: ClaimTrial
    claims: Sequence[UnallocatedClaim]
    answers: Sequence[ClaimAnswer] = ()
    allocated: Sequence[AllocatedClaim] = ()
    asks: PodAsks | None = None
    taken_away: Sequence[AllocatedClaim] = ()
    refused: str = ""
    unjudged: Sequence[str] = ()
    assumed: Sequence[str] = ()
    lacking: str = ""
    is_kubelet_asked: bool = False

    @property
    def is_placed(self) -> bool:
        """Whether a scheduler would currently find a node."""
        return self._of_devices is Outcome.FITS and self._overruled is None

    @property
    def is_given_up(self) -> bool:
        """Whether a node was not tried because the budget of the question is spent."""
        return self.outcome is Outcome.UNKNOWN and self.trial.is_given_up

    @property
    def outcome(self) -> Outcome:
        """What a scheduler does with the claims: the result for the best node, unless the pod is ruled out."""
        if self.refused or self._overruled is not None:
            return Outcome.FITS_NOT
        is_open = self._of_devices is Outcome.FITS and (self._waits_for or self.unjudged)
        return Outcome.UNKNOWN if is_open else self._of_devices

    @property
    def _overruled(self) -> str | None:
        """Why the pod cannot be placed even if a node has its devices, or None if nothing prevents that."""
        if self.asks is None:
            return None
        if self.lacking:
            return self.lacking
        if self.asks.gates:
            return (
                f"the pod has the scheduling gate {listed(self.asks.gates, _MAX_NAMES)}: no scheduler considers the pod"
            )
        objects = self.trial.objects
        knows = {"knows_pods": objects.bound is not None, "knows_volumes": objects.volumes.are_read}
        is_known = not self.asks.said or decides_itself(self.asks.said, **knows)
        return None if is_known else f"the scheduler says: {foreign_text(self.asks.said, _MAX_SAID)}"

    @property
    def _waits_for(self) -> Sequence[str]:
        """The binding conditions of the devices that the pod gets."""
        if self._of_devices is not Outcome.FITS:
            return ()
        of_allocated = [condition for one in self.allocated for condition in one.waits_for]
        return [*of_allocated, *(self.answers[0].waits_for if self.answers and self.answers[0].fits else ())]

    @property
    def _of_devices(self) -> Outcome:
        if self.refused:
            return Outcome.FITS_NOT
        if self._is_allocated:
            return Outcome.FITS
        if not self.answers:
            return Outcome.FITS_NOT
        outcome = self.answers[0].outcome
        if outcome is not Outcome.FITS and self.trial.lacks_library and any(map(_has_expression_error, self.answers)):
            return Outcome.UNKNOWN
        return Outcome.MISSED if outcome is Outcome.FITS and self._stopping is not None else outcome

    @property
    def _is_allocated(self) -> bool:
        """Whether all claims are allocated, and the best node, if any was tried, accepts the pod without preemption."""
        is_usable = not self.answers or self.answers[0].fits
        return not self.claims and bool(self.allocated) and not self.victims and is_usable

    @property
    def _stopping(self) -> ClaimAnswer | None:
        """The first answer, apart from the best node's, with an error that makes a scheduler stop trying nodes."""
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
        document: dict[str, object] = {"claims": names, "outcome": self.outcome.name.lower().replace("_", "-")}
        document["assumed"] = list(self._all_assumed)
        if self.asks is not None:
            document |= {
                "node": best.node.name if (best := self._placed_on) else None,
                "reason": self.refused or self._overruled or None,
                "scheduler": self.asks.said or None,
                "waits_for": list(self._waits_for),
                "not_looked_at": list(self.unjudged),
                "topology_not_looked_at": self._needs_topology,
                "deallocated": [one.name for one in self.taken_away],
                "preempted": [one.name for one in self.victims],
                "request_mappings": list(self._mappings),
            }
        return {**document, "nodes": nodes}

    @property
    def _all_assumed(self) -> tuple[str, ...]:
        """What is assumed, including what is assumed about other claims."""
        return (*self.assumed, *(self.trial.assumed if self.claims else ()))

    @property
    def _mappings(self) -> Iterator[dict[str, str]]:
        """For each container and extended resource, the request in the scheduler's claim that provides the devices."""
        placed = self._placed_on.answer if self._placed_on is not None else None
        for claim in placed.claims if isinstance(placed, DeviceAllocation) else ():
            for one in claim.mappings if isinstance(claim, ExtendedResourceClaim) else ():
                yield {"container": one.container, "resource": one.resource, "request": one.request}

    @property
    def _needs_topology(self) -> bool:
        """Whether the topology manager of the best node may refuse the pod.

        A cluster's objects do not contain the policy of a topology manager.
        """
        if self.asks is None or self.is_kubelet_asked or not (self.answers and self.answers[0].fits):
            return False
        served = {one["resource"] for one in self._mappings}
        return any(
            size.nanos and is_extended_resource(name) for name, size in self.asks.sizes.items() if name not in served
        )

    @property
    def victims(self) -> Sequence[BoundPod]:
        """The pods that a scheduler preempts so that this pod can run."""
        return self.answers[0].victims if self.answers and self.answers[0].fits else ()

    @property
    def chosen(self) -> Sequence[Taken]:
        """The devices that the pod gets on the best node, or none if pods or claims must release devices first."""
        answer = self.answers[0].answer if self.answers and not (self.victims or self.taken_away) else None
        return answer.taken if isinstance(answer, DeviceAllocation) else ()

    @property
    def _placed_on(self) -> ClaimAnswer | None:
        return self.answers[0] if self.answers and self.outcome in {Outcome.FITS, Outcome.UNKNOWN} else None

    def show(self, *, all_devices: bool) -> None:
        """Print the report: the best node in detail, and the others grouped by what they have in common."""
        if self.refused:
            print_pairs(f"{self.title}: refused by the API server", [("reason", self.refused)])
        elif self._is_allocated and self._overruled is None and not (self._waits_for and self.answers):
            click.echo(f"{self.title}: every claim is already allocated")
            for one in self.allocated:
                AllocatedReport(one).show(all_devices=all_devices)
        elif self.lacking:
            print_pairs(f"{self.title}: cannot be placed now", [("reason", self.lacking)])
        elif not self.answers:
            click.echo(f"{self.title}: there is no node")
        else:
            best, *others = self.answers
            pairs = list(_with_hint(self._pairs(best, all_devices=all_devices), self._bare_sibling(best, others)))
            of_others = list(other_pairs(others))
            room = _MAX_LINES - 1 - len(of_others) - bool(others)
            if len(pairs) > room and not all_devices:
                more = counted(len(pairs) - room + 1, "more row")
                pairs[room - 1 :] = [("...", f"{more}: --all-devices shows why each device was rejected")]
            print_pairs(self._headline(best), pairs)
            if others:
                print_pairs("The other nodes", of_others)

    def _bare_sibling(self, best: ClaimAnswer, others: Sequence[ClaimAnswer]) -> str:
        """Return what to check if a node of the same type as the best one has no slice from a needed driver."""
        drivers = {one.device.driver for one in best.verdicts}
        wanted = [one for one in drivers if self.trial.wants_driver(self.claims, one)]
        kind = type_of(best.node)
        if not wanted or not kind:
            return ""
        bare = [one.node.name for one in others if type_of(one.node) == kind and not self.trial.pools(one.node)]
        if not bare:
            return ""
        verb = "have" if len(bare) > 1 else "has"
        what = f"{listed(bare, 1)} of the same {kind} {verb} no ResourceSlice from {min(wanted)}"
        return f"check whether the driver's pod is running on {bare[0]}, and read its log: {what}"

    def _headline(self, best: ClaimAnswer) -> str:
        return f"{self.title}{self._before_devices(best) or self._about_devices(best)}"

    def _before_devices(self, best: ClaimAnswer) -> str:
        """Return the end of the headline if something other than devices is decisive, or an empty string."""
        if self._overruled is not None:
            return f": cannot be placed now{f', although {best.node.name} has everything else it needs' * best.fits}"
        if best.obstacles:
            count = len(self.answers)
            return f": cannot be placed{f': each of {count:,} nodes is ruled out' if count > 1 else ''}"
        if self._waits_for:
            return f" on {best.node.name}: waits for {listed(self._waits_for, _MAX_NAMES)}"
        if self._of_devices is Outcome.FITS and self.unjudged:
            has = "its devices" if self.claims else "room"
            return f": {best.node.name} has {has}, but not everything that the pod requests was checked"
        return ""

    def _about_devices(self, best: ClaimAnswer) -> str:
        count = len(self.answers)
        says = {
            Outcome.FITS: "gets its devices" if self.claims else "fits",
            Outcome.FITS_NOT: "gets no devices",
            Outcome.UNKNOWN: f"unknown whether it {'gets devices' if self.claims else 'fits'}",
            Outcome.MISSED: "could get its devices, but not every scheduler finds them",
        }[self.outcome]
        if self.victims:
            names = foreign_text(listed([one.name for one in self.victims], _MAX_NAMES))
            ended = f"pod {names} is" if len(self.victims) == 1 else f"pods {names} are"
            return f" on {best.node.name}: fits after {ended} preempted"
        if best.fits and self._stopping is not None:
            return f": gets no devices from kube-scheduler, although {best.node.name} has them"
        alike = sum(one.outcome is Outcome.FITS for one in self.answers)
        which = ""
        if count > 1 and not best.fits:
            which = f", the closest match of {count:,} nodes"
        elif alike > 1:
            which = f", one of {alike:,} such nodes among {count:,}"
        return f" on {best.node.name}{which}: {says}"

    def _first_pairs(self, best: ClaimAnswer) -> Iterator[tuple[str, str]]:
        """Yield rows for a scheduler's or an API server's reasons that apply before devices are considered."""
        if self._overruled is not None:
            yield "reason", self._overruled
        elif self.asks is not None and self.asks.said:
            agrees = (
                ""
                if not best.fits
                else ". According to what was just read, the pod fits on a node, so the scheduler will try again"
            )
            yield "scheduler", f"it last said: {foreign_text(self.asks.said, _MAX_SAID)}{agrees}"
        yield from self._waiting_pairs()
        if not best.fits:
            for out in [one for one in self.answers if one.has_devices and one.obstacles][:_MAX_NAMES]:
                yield "but", f"{out.node.name} has the devices, but is ruled out: {out.obstacles[0]}"
                yield from (("but", f"also: {more}") for more in out.obstacles[1:])
                yield "gets them if", out.cure
        for victim in self.victims[:_MAX_NAMES]:
            lower = f"whose priority {victim.priority:,} is lower"
            yield "first", f"the scheduler preempts pod {foreign_text(victim.name)}, {lower}"
        for lost in self.taken_away:
            why = f"the devices cannot be bound: {lost.failed}" if lost.failed else "no pod uses this allocated claim"
            yield "first", f"the scheduler takes the devices away from claim {lost.name}: {why}"
        if not best.fits:
            is_elsewhere = any(best.node.name not in (one.nodes or ()) for one in self.allocated)
            # Otherwise, the nodes of allocated claims do not restrict the pod.
            if best.obstacles or is_elsewhere or self.claims:
                yield from self._holder_pairs()

    def _holder_pairs(self) -> Iterator[tuple[str, str]]:
        """Yield rows for the other pods that use the same claims, and so restrict this pod to certain nodes."""
        for one in self.allocated:
            name, uid = (self.asks.name.rpartition("/")[2], self.asks.uid) if self.asks is not None else ("", "")
            pods = one.others(name, uid)
            if pods and one.nodes:
                holders = f"pod {listed(pods, _MAX_NAMES)}" if len(pods) == 1 else f"pods {listed(pods, _MAX_NAMES)}"
                tie = "ties" if len(pods) == 1 else "tie"
                only = listed(one.nodes, _MAX_NAMES)
                yield (
                    "because",
                    f"{holders} {tie} claim {one.name} to {only}: as long as that is so, the pod can run only there",
                )
                yield "do", f"delete {holders}, or give this pod a claim of its own, so that it can run on other nodes"

    def _waiting_pairs(self) -> Iterator[tuple[str, str]]:
        """Yield rows for the device conditions that a scheduler waits for, and how long it waits."""
        if self._waits_for:
            yield "because", "a scheduler binds the pod when the driver has set these conditions of the devices to True"
            for one in self.allocated:
                if one.waits_for and one.since:
                    yield "since", f"{foreign_text(one.since, 100)}, when claim {one.name} got its devices"
            yield "next", "after 10 minutes (bindingTimeout), the scheduler releases the devices and tries again"

    def _open_pairs(self, best: ClaimAnswer) -> Iterator[tuple[str, str]]:
        """Yield rows for what was not checked, and for what was assumed because it was not read."""
        yield from (("not checked", what) for what in self.unjudged)
        if self._needs_topology:
            yield "not checked", f"{POLICY_NOT_KNOWN}: {_GET_POLICY}"
        yield from (("assumed", what) for what in (self._all_assumed if best.fits else ()))

    def _pairs(self, best: ClaimAnswer, *, all_devices: bool) -> Iterator[tuple[str, str]]:
        yield from self._first_pairs(best)
        yield from self._open_pairs(best)
        is_stopped_here = best.refusal is not None and best.refusal.stops_pod
        if (stopping := self._stopping) is not None and not is_stopped_here:
            yield "reason", f"an error on {stopping.node.name} stops the pod on every node: {stopping.answer}"
            yield from pool_pairs(self.trial, stopping)
            if stopping.refusal is not None:
                yield from expression_pairs(self.trial, self.claims, stopping.refusal, is_mended=False)
            away = "nodeSelector, nodeAffinity, or a taint of the node"
            if not best.causes:  # such causes make a scheduler read the slices of that node anyway
                yield "do", f"until that is fixed, keep the pod away from {stopping.node.name}: {away}"
        if isinstance(best.answer, DeviceAllocation):
            yield from pairs_of(best, over_committed_pairs(self.trial, best))
            for one in self.trial.unpublished(best.answer)[:_MAX_NAMES]:
                text = (
                    f"{one.device} is allocated to {one} but no longer published, so the counters that it uses are not "
                    "known"
                )
                yield "caution", text
            return
        helps = "gets them if" if stopping is None or is_stopped_here else "also needs"
        # A change that helps on this node does not fix the error on another node.
        for name, text in self._refusal_pairs(best, all_devices=all_devices):
            yield (helps if name == "gets them if" else name), text

    def _refusal_pairs(self, best: ClaimAnswer, *, all_devices: bool) -> Iterator[tuple[str, str]]:
        """Yield rows for a node that does not accept the pod."""
        if best.obstacles:
            if not best.has_devices:
                yield "reason", str(best.answer)
                yield from (("because", f"also: {more}") for more in best.obstacles[1:])
                yield "needs", best.cure
        elif not self.claims or any(one.has_devices for one in self.answers):
            # What this node lacks does not matter if another node has the devices.
            yield "reason", str(best.answer)
        else:
            is_held = any(True for _ in self._holder_pairs())
            rows = problem_pairs(self.trial, self.claims, best, all_devices=all_devices)
            # A driver that this node lacks may be on another node, which an allocated claim excludes for the pod.
            yield from ((name, text) for name, text in rows if not (is_held and name == "do"))


def _with_hint(pairs: Iterable[tuple[str, str]], hint: str) -> Iterator[tuple[str, str]]:
    """Yield the rows with a hint inserted after the rows that name obstacles."""
    is_given = not hint
    for name, text in pairs:
        if not is_given and name not in ("reason", "because", "but", "do"):
            yield "do", hint
            is_given = True
        yield name, text
    if not is_given:
        yield "do", hint


def print_reports(reports: Sequence[AllocatedReport | ClaimReport], *, as_json: bool, all_devices: bool) -> int:
    """Print the reports as text or as a single JSON document, and return the exit status of the worst report."""
    if as_json:
        documents = [one.document for one in reports]
        print_json(documents[0] if len(documents) == 1 else {"claims": documents})
    else:
        for report in reports:
            report.show(all_devices=all_devices)
    return max((one.status for one in reports), key=_SEVERITY.index, default=0)


_SEVERITY = (0, 4, 3, 1)
"""Exit statuses, worst last."""
