"""Advice about claims that get no devices, as rows. Rows named `because` state facts, and rows named `do` give advice.

Law: a row states only what is proved by the objects that were read.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches

from devicecore.domain.allocation import NoAllocation, QuestionGivenUpError, TargetNode, UnallocatedClaim
from devicecore.domain.allocation.faults import KubernetesFault
from devicecore.domain.allocation.model import DeviceRequest
from devicecore.domain.allocation.reasons import CounterExhausted, InUse, NotTolerated
from devicecore.domain.text import foreign_text, listed
from devicecore_tools.doctor.pod.claim_report import Expression, expression_advice
from devicecore_tools.doctor.pod.claim_trial import ClaimAnswer, ClaimTrial
from devicecore_tools.doctor.pod.expression_edits import wanted_drivers

_LOOK = "check the driver's log to see why the device is tainted, and have the device repaired"
_MAX_NAMES = 3
_MAX_CLASS = 253  # the maximum number of characters shown of a class name


def outside_pairs(
    trial: ClaimTrial, claims: Sequence[UnallocatedClaim], best: ClaimAnswer
) -> Iterator[tuple[str, str]]:
    """Name, for each request, a device that matches the request but not its class, unless another class would help."""
    if any(one.device_class for one in best.changes):
        return
    node = trial.refused(best)
    with suppress(QuestionGivenUpError):  # without the CEL library, this advice cannot be given
        for claim in claims:
            for request in claim.alternatives:
                for device in node.outside_class(claim, request)[:1]:
                    todo = f"name a DeviceClass that selects {device.key}, or create one"
                    what = f"the device matches request {request.result_name}, but class {request.device_class}"
                    yield "do", f"{todo}: {what} does not select it"


def expression_pairs(
    trial: ClaimTrial, claims: Sequence[UnallocatedClaim], refused: NoAllocation, *, is_mended: bool, then: str = ""
) -> Iterator[tuple[str, str]]:
    """Say what is wrong with the expression that caused an error, and what to write instead."""
    requests = [request for one in claims for request in one.alternatives]
    named = {one.device_class for one in requests}
    expressions = [
        *(Expression(f"request {one.result_name}", text or "") for one in requests for text in one.selectors),
        *(
            Expression(f"DeviceClass {one.name}", text or "")
            for one in trial.objects.classes
            if one.name in named
            for text in one.selectors
        ),
    ]
    devices, error = trial.objects.devices, refused.expression_error
    device = devices.get(error.device) if error is not None and error.device is not None else None
    all_of = list(devices.values())
    yield from expression_advice(str(refused), expressions, device, all_of, is_mended=is_mended, then=then)


def next_pairs(trial: ClaimTrial, claims: Sequence[UnallocatedClaim], best: ClaimAnswer) -> Iterator[tuple[str, str]]:
    """Say what to check if pools are unusable, a driver is missing, or devices are tainted."""
    refused = best.answer
    if not isinstance(refused, NoAllocation):
        return
    yield from pool_pairs(trial, best)
    if not refused.is_error:
        missing = list(dict.fromkeys(_missing_drivers(trial, claims, best)))
        if not missing and not refused.verdicts and not refused.unusable:
            missing = [_nothing_published(trial, best.node)]
        for text in missing[:_MAX_NAMES]:
            yield "because", text
        if missing:
            look = f"check whether the driver is installed and its pod is running on {best.node.name}, and read its log"
            yield "do", f"{look}; compare the nodeSelector and affinity of its DaemonSet with the labels of the node"
    for claim in claims:
        for request in claim.alternatives:
            yield from _whole_pairs(trial, request, refused)
    yield from _taint_pairs(trial, claims, refused)
    if any(isinstance(one.reason, CounterExhausted) and one.reason.free.nanos < 0 for one in refused.verdicts):
        yield from _over_committed(trial, best)


def _missing_drivers(trial: ClaimTrial, claims: Sequence[UnallocatedClaim], best: ClaimAnswer) -> Iterator[str]:
    """Yield a sentence for each request whose driver publishes nothing for a node."""
    classes = {one.name: one for one in trial.objects.classes}
    here = {pool.key[0] for pool in trial.pools(best.node)}
    for request in (one for claim in claims for one in claim.alternatives):
        known = classes.get(request.device_class)
        expressions = [*(known.selectors if known else ()), *request.selectors]
        wanted = [driver for one in expressions if one for driver in wanted_drivers(one)]
        if wanted and here.isdisjoint(wanted):
            drivers = foreign_text(" or ".join(wanted[:_MAX_NAMES]))
            by = f"class {request.device_class}" if known and wanted[0] in str(known.selectors) else "the claim"
            nodes, others = trial.nodes_of(wanted), _drivers(trial)
            if nodes:
                there = f", but only for {listed(nodes, _MAX_NAMES)}"
            elif any(one.driver in wanted for one in trial.objects.slices):
                there = ", but only for nodes that are not known"
            else:
                there = f"; this driver has no slices at all{others and f'; there are slices from {others}'}"
            yield f"{by} wants devices from driver {drivers}, which has no ResourceSlice for {best.node.name}{there}"


def _nothing_published(trial: ClaimTrial, node: TargetNode) -> str:
    """Return a sentence about a node without devices: no driver has slices for it, or its slices are empty."""
    if pools := trial.pools(node):
        drivers = ", ".join(dict.fromkeys(one.key[0] for one in pools))
        return f"the slices for {node.name}, from {drivers}, list no devices"
    others = _drivers(trial)
    return f"no driver has a ResourceSlice for {node.name}{others and f'; there are slices from {others}'}"


def _drivers(trial: ClaimTrial) -> str:
    """Return the names of the drivers that have published slices, shortened if there are many."""
    drivers = sorted({one.driver for one in trial.objects.slices})
    return ", ".join(drivers[: 2 * _MAX_NAMES]) + ", ..." * (len(drivers) > 2 * _MAX_NAMES)


def _whole_pairs(trial: ClaimTrial, request: DeviceRequest, refused: NoAllocation) -> Iterator[tuple[str, str]]:
    """Yield rows for a request for a part of a device that can only be allocated as a whole."""
    if not request.capacity:
        return
    for one in refused.verdicts:
        device = trial.objects.devices.get(one.device)
        if one.request == request.result_name and isinstance(one.reason, InUse) and device and not device.is_shared:
            asks = f"request {request.result_name} asks for a part of {one.device}"
            yield "because", f"{asks}, which is published without allowMultipleAllocations, so one claim gets all of it"
            # An API server that drops allowMultipleAllocations from slices also drops capacity from claims.
            gate = (
                f"{one.reason.held} still has its capacity, so the API server knew the field when the claim was created"
            )
            if not trial.asks_for_capacity(one.reason.held.claim):
                gate = "before 1.36, an API server drops the field unless the feature gate DRAConsumableCapacity is on"
            todo = f"restart the pod of driver {one.device.driver}, so that it publishes its devices again"
            yield (
                "do",
                f"{todo}; if the field is still missing, the cause is the driver's version or its settings ({gate})",
            )
            return


def _taint_pairs(
    trial: ClaimTrial, claims: Sequence[UnallocatedClaim], refused: NoAllocation
) -> Iterator[tuple[str, str]]:
    """Say who tainted devices. Only pods that can use a tainted device should tolerate its taint."""
    watches = any(one.admin_access for claim in claims for one in claim.alternatives)
    marked: dict[tuple[str | None, str, str], dict[str, None]] = defaultdict(dict)  # count each device once
    for one in refused.verdicts:
        if isinstance(one.reason, NotTolerated):
            taint = one.reason.taint
            marked[trial.rule_of(one.device, taint), one.device.driver, str(taint)][str(one.device)] = None
    for (rule, driver, text), devices in list(marked.items())[:_MAX_NAMES]:
        who = f"driver {driver}" if rule is None else f"DeviceTaintRule {rule}"
        if rule is not None:
            todo = "delete that rule once its cause is fixed"
        elif watches:
            todo = (
                f"adminAccess does not ignore taints; a pod that only watches devices may tolerate this taint; {_LOOK}"
            )
        else:
            todo = f"{_LOOK}, or use a different device, before a claim tolerates this"
        yield (
            "because",
            f"{listed(list(devices), 1)} {'have' if len(devices) > 1 else 'has'} the taint {text} from {who}",
        )
        yield "do", todo


def pool_pairs(trial: ClaimTrial, answer: ClaimAnswer) -> Iterator[tuple[str, str]]:
    """Say what to do about a node's unusable pools."""
    for pool in [one for one in trial.pools(answer.node) if one.problem][:_MAX_NAMES]:
        driver = pool.key[0]
        if pool.has_surplus:
            count = "spec.pool.resourceSliceCount has to be the number of slices"
            todo = f"{count}: fix whatever publishes pool {pool} ({driver} or an autoscaler)"
        elif pool.is_incomplete:
            todo = f"{driver} has to publish all slices of pool {pool}: check its pod and log"
        elif pool.is_obsolete:
            todo = f"{driver} has to publish pool {pool} again for {answer.node.name}: check its pod and log"
        else:
            todo = f"{driver} has to publish pool {pool} without this contradiction: try another version of the driver"
        known = "" if pool.problem in str(answer.answer) else f" ({pool.problem})"
        yield "do", f"{todo}{known}"


def over_committed_pairs(trial: ClaimTrial, best: ClaimAnswer) -> Iterator[tuple[str, str]]:
    """Say which claims have to be released if an over-committed counter keeps a scheduler from using a pool."""
    if any(KubernetesFault.OVER_COMMITTED in cause for causes in best.causes.values() for cause in causes):
        yield from _over_committed(trial, best)


def _over_committed(trial: ClaimTrial, best: ClaimAnswer) -> Iterator[tuple[str, str]]:
    for one in list(trial.over_committed(best.node))[:_MAX_NAMES]:
        by = listed(one.holders, _MAX_NAMES)
        which = "it" if len(one.holders) == 1 else "some of them"
        yield "do", f"counter {one.counter} has {one.total}, and {one.used} are in use by {by}: release {which}"


def known_classes(trial: ClaimTrial, claims: Sequence[UnallocatedClaim]) -> Iterator[tuple[str, str]]:
    """Name the likely class, or else list the existing classes, if a request names a class that does not exist."""
    known = sorted(one.name for one in trial.objects.classes)
    missing = sorted({one.device_class for claim in claims for one in claim.alternatives} - {*known, ""})
    missing = [foreign_text(one, _MAX_CLASS) for one in missing]
    if missing and known:
        # A driver's classes differ only in their first part: `mig.nvidia.com` is not a misspelled `gpu.nvidia.com`.
        first, _, rest = missing[0].partition(".")
        kin = {name.partition(".")[0]: name for name in known if name.partition(".")[2] == rest}
        near = [kin[one] for one in get_close_matches(first, kin, n=1)]
        shown = ", ".join(known[: 2 * _MAX_NAMES]) + ", ..." * (len(known) > 2 * _MAX_NAMES)
        if near:
            yield "do", f"write deviceClassName: {near[0]}"
            return
        drivers = sorted({one.driver for one in trial.objects.slices})
        there = f"there is no DeviceClass {missing[0]}, only {shown}"
        if missing[0] not in drivers:
            slices = f", only from {', '.join(drivers[: 2 * _MAX_NAMES])}" if drivers else ""
            there += f"; and there are no ResourceSlices from a driver with this name{slices}"
        yield "because", there
        yield (
            "do",
            "check the name; if it is right, install the driver that provides this class, or enable it in the driver",
        )
