"""The rows about claims on a node: reasons, changes that help, and the devices by reason.

Law: rows about causes that nobody can change come last.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from devicecore.domain.allocation import DeviceAllocation, NoAllocation, Release, UnallocatedClaim
from devicecore.domain.allocation.faults import Cause, names_of
from devicecore.domain.allocation.reasons import DeviceVerdict, InUse
from devicecore.domain.text import counted, foreign_text, listed
from devicecore_tools.command.claim_advice import expression_pairs, known_classes, next_pairs, outside_pairs
from devicecore_tools.doctor.pod.claim_changes import Rank
from devicecore_tools.doctor.pod.claim_report import ReasonLine, constraint_lines, reason_lines, shape_of, type_of
from devicecore_tools.doctor.pod.claim_trial import MAX_ADVICE_SECONDS, ClaimAnswer, ClaimTrial
from devicecore_tools.doctor.pod.extended_claim import ExtendedResourceClaim

OF_EXTENDED = "for extended resources of pod "
"""The name prefix of a claim that a scheduler creates for a pod."""

_MAX_TEXT = 2_000  # the maximum number of characters of a reason
_MAX_DEVICES = 2_000  # the maximum number of rows with --all-devices
_MAX_REASONS = 5  # the maximum number of rows for one request
_MAX_REQUESTS = 4  # the maximum number of requests whose reasons are shown
_MAX_CHANGES = 4
_MAX_GROUPS = 6  # the maximum number of rows for nodes other than the best one
_MAX_NAMES = 3
_MAX_GIVEN = 12  # the maximum number of rows for the devices that claims get


def pairs_of(answer: ClaimAnswer, about_faults: Iterable[tuple[str, str]] = ()) -> Iterator[tuple[str, str]]:
    """Yield rows for a node: the devices that claims get, or the reasons why devices do not fit, with counts."""
    if isinstance(answer.answer, DeviceAllocation):
        yield from _but(answer)
        yield from about_faults
        yield from _extended_pairs(answer.answer.claims)
        for taken in answer.answer.taken[:_MAX_GIVEN]:
            yield f"request {taken.request.result_name}", str(taken.key)
        if (more := len(answer.answer.taken) - _MAX_GIVEN) > 0:
            yield "...", f"{more:,} more"
        return
    yield "reason", str(answer.answer)
    yield from _but(answer)
    yield from _change_pairs(answer)
    yield from _reason_pairs(answer.answer)


def _extended_pairs(claims: Sequence[UnallocatedClaim]) -> Iterator[tuple[str, str]]:
    """Yield rows that explain the requests that a scheduler creates for a pod's extended resources."""
    for claim in claims:
        if isinstance(claim, ExtendedResourceClaim):
            yield "requests", claim.users


def _but(answer: ClaimAnswer) -> Iterator[tuple[str, str]]:
    """Yield rows for releases whose scheduler decides differently, one row for each set of causes."""
    does = "does not find them" if answer.fits else "allocates devices against the rules"
    alike: dict[tuple[Cause, ...], list[str]] = defaultdict(list)
    for release, causes in answer.causes.items():
        alike[causes].append(release)
    for causes, releases in alike.items():
        why = "; ".join(fault.sentence for cause in causes for fault in cause)
        names = ", ".join(names_of(causes))
        yield (
            "but",
            f"a scheduler of Kubernetes {_releases(releases)} {does}: {why or names} ({names}, see docs/claims.md)",
        )


def _releases(names: Sequence[str]) -> str:
    """Return the common names of releases.

    `Release` has two members for 1.36. The older of these members also stands for all earlier releases.
    """
    is_old = Release.V1_36_2.value in names
    shown = ["1.36" if is_old and name == Release.V1_36_3.value else name for name in names]
    kept = [name for name in shown if not (name == Release.V1_36_2.value and "1.36" in shown)]
    return ", ".join(kept) + " or older" * is_old


def _change_pairs(answer: ClaimAnswer, claims: Sequence[UnallocatedClaim] = ()) -> Iterator[tuple[str, str]]:
    """Yield rows for the changes that help, and instructions for editing `claims` if a change requires editing.

    Claims share a row if it is enough to release any one of them.
    """
    changes = [one for one in answer.changes if one.rank is not Rank.DROP] or answer.changes
    holders = [one for one in changes if one.holder]
    shown = listed([one.holder for one in holders], _MAX_NAMES)
    rows: list[tuple[str, bool]] = []
    for change in changes:
        if not change.holder:
            rows.append((str(change), not change.classes))
        elif len(holders) == 1:
            end = (
                ", for example when its pods end"
                if len(change.pods) > 1
                else ", for example when its pod ends" * len(change.pods)
            )
            rows.append((f"{change}{end}", False))
        elif change is holders[0]:
            end = ", for example when its pod ends" * any(one.pods for one in holders)
            rows.append((f"any one of these {len(holders):,} is released{end}: {shown}", False))
    for row, _ in rows[:_MAX_CHANGES]:
        yield "gets them if", row
    if (rest := len(rows) - _MAX_CHANGES) > 0:
        yield "...", f"{counted(rest, 'other change')} would also help: --json lists all"
    if not answer.are_all_tried:
        yield "...", f"other changes were not tried, because trials had already taken {MAX_ADVICE_SECONDS:g} s"
    if any(is_of_claim for _, is_of_claim in rows[:_MAX_CHANGES]):
        for how in dict.fromkeys(_how_to_edit(one) for one in claims):
            yield "how", how


def _how_to_edit(claim: UnallocatedClaim) -> str:
    """Return how to change a claim. The claim's name shows what it was created from."""
    if claim.name.startswith(OF_EXTENDED):
        return "the limits of a pod cannot be edited: delete the pod, and create it again with the change"
    if "ResourceClaimTemplate" in claim.name:  # an object's name has no capital letters
        both = "delete the template and the waiting pods, and create both again with the change"
        return f"the spec of a template cannot be edited: {both}"
    return "the spec of a claim cannot be edited: delete the claim, and create it again with the change"


def problem_pairs(
    trial: ClaimTrial, claims: Sequence[UnallocatedClaim], best: ClaimAnswer, *, all_devices: bool
) -> Iterator[tuple[str, str]]:
    """Yield rows for a node on which the claims get no devices: the reasons, what helps, and the devices by reason."""
    refused = best.answer
    if not isinstance(refused, NoAllocation):
        return
    yield "reason", foreign_text(str(refused), _MAX_TEXT)
    if refused.is_unknown and not refused.verdicts:
        return  # the search was abandoned, and computing other rows would take just as long
    # An error says nothing about devices, so it is unknown which constraints are not met.
    if refused.verdicts:
        for line in constraint_lines(claims, refused, trial.objects.devices):
            yield "because", line
    yield from _but(best)
    yield from outside_pairs(trial, claims, best)
    if refused.expression_error is not None and not trial.lacks_library:
        is_mended = any(one.rank in (Rank.REPAIR, Rank.VALUE) for one in best.changes)
        then = ", but this alone provides no device"
        yield from expression_pairs(trial, claims, refused, is_mended=is_mended, then=then)
    yield from known_classes(trial, claims)
    yield from next_pairs(trial, claims, best)
    yield from _change_pairs(best, claims)
    yield from _extended_pairs(claims)
    if all_devices:
        yield from _device_pairs(refused)
    else:
        yield from _reason_pairs(refused, trial.holders, claims)


def _reason_pairs(
    refused: NoAllocation,
    holders: Callable[[DeviceVerdict], Sequence[str]] = lambda _: (),
    wanted: Sequence[UnallocatedClaim] = (),
) -> Iterator[tuple[str, str]]:
    """Yield rows that count the devices of each request by reason. Requests with the same rows are combined."""
    of_request: dict[tuple[str, str], list[DeviceVerdict]] = defaultdict(list)
    for one in refused.verdicts:
        of_request[one.claim, one.request].append(one)
    claims = {claim for claim, _ in of_request}
    counts = {(claim.name, one.result_name): one.count for claim in wanted for one in claim.alternatives}
    beside, too_few = "would fit, but not together with the other requests", "would fit, but there are too few of them"
    alike: dict[tuple[ReasonLine, ...], list[str]] = defaultdict(list)
    for (claim, request), verdicts in of_request.items():
        is_enough = sum(one.reason is None for one in verdicts) >= counts.get((claim, request), 1)
        lines = reason_lines(verdicts, beside if is_enough and len(of_request) > 1 else too_few, holders)
        lines = [line for line in lines if not any(line.text in text for text in refused.unusable)]
        alike[tuple(lines)].append(f"{claim}, request {request}" if len(claims) > 1 else f"request {request}")
    shown = list(alike.items())[:_MAX_REQUESTS]
    # Devices of other drivers or classes come last, because nobody can change that.
    for is_of_others in (False, True):
        for lines_of, names in shown:
            name = names[0] + f" and {counted(len(names) - 1, 'other')}" * (len(names) > 1)
            for line in lines_of[:_MAX_REASONS]:
                if line.is_of_others is is_of_others:
                    example = f" ({'such as ' * (line.count > 1)}{line.example})" if line.example else ""
                    yield name, f"{line}{example}"
            if is_of_others and (more := len(lines_of) - _MAX_REASONS) > 0:
                rest = sum(line.count for line in lines_of[_MAX_REASONS:])
                yield "...", f"{counted(rest, 'device')} for {counted(more, 'other reason')}: --all-devices lists each"
    if (more := len(alike) - _MAX_REQUESTS) > 0:
        yield "...", f"{counted(more, 'more request')}: --all-devices lists each device"


def _device_pairs(refused: NoAllocation) -> Iterator[tuple[str, str]]:
    several = len({(one.claim, one.request) for one in refused.verdicts}) > 1
    fits = "fits, but not together with the other requests" if several else "fits, but there are too few such devices"
    for one in refused.verdicts[:_MAX_DEVICES]:
        name = f"{one.request}: {one.device}" if several else str(one.device)
        yield name, str(one.reason or fits)
    if (more := len(refused.verdicts) - _MAX_DEVICES) > 0:
        yield "...", f"{more:,} more"


def other_pairs(others: Sequence[ClaimAnswer]) -> Iterator[tuple[str, str]]:
    """Yield rows for the nodes other than the best one.

    Nodes of the same shape share a row if their text is the same.
    """
    groups: dict[tuple[bool, str, str], list[str]] = defaultdict(list)
    count = len(others)
    for one in others:
        if isinstance(one.answer, DeviceAllocation):
            fits = "gets its devices" if one.answer.claims else "also fits"
            text = "could get its devices, but a scheduler does not find them" if one.answer.causes else fits
            groups[False, type_of(one.node), text].append(one.node.name)
        else:
            holders = dict.fromkeys(
                str(verdict.reason.held) for verdict in one.answer.verdicts if isinstance(verdict.reason, InUse)
            )
            by = f" by {', '.join(holders)}" * (0 < len(holders) <= _MAX_NAMES and count <= _MAX_GROUPS)
            text = f"{one.answer}{by and f'; in use{by}'}"
            text = text.replace(f"/{one.node.name}/", "/NODE/").replace(f"/{one.node.name}", "/NODE")
            groups[True, shape_of(one.node, one.answer.verdicts), text].append(one.node.name)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], -len(group[1])))
    for (_, shape, text), names in ordered[:_MAX_GROUPS]:
        shown = listed(names, _MAX_NAMES)
        name = names[0] if len(names) == 1 else counted(len(names), "node")
        if len(names) == 1:
            text = text.replace("/NODE", f"/{name}")  # noqa: PLW2901 - the name of the only one
        rest = f" ({': '.join(filter(None, (shape, shown)))})" if len(names) > 1 else ""
        yield name, f"{foreign_text(text)}{rest}"
    if (more := sum(len(names) for _, names in ordered[_MAX_GROUPS:])) > 0:
        yield "...", f"{counted(more, 'more node')}: --json lists each"


def document_of(answer: ClaimAnswer) -> dict[str, object]:
    """Return a node's answer as JSON."""
    faults = (
        {"faultsOfKubernetes": {name: list(names_of(of)) for name, of in answer.causes.items()}}
        if answer.causes
        else {}
    )
    if isinstance(answer.answer, DeviceAllocation):
        return {"node": answer.node.name, "fits": True, "allocations": answer.answer.results(), **faults}
    return {
        "node": answer.node.name,
        "fits": False,
        "reason": str(answer.answer),
        "devices": [
            {
                "claim": one.claim,
                "request": one.request,
                "device": str(one.device),
                "reason": one.reason and str(one.reason),
            }
            for one in answer.answer.verdicts
        ],
        "changes": list(map(str, answer.changes)),
        **faults,
    }
