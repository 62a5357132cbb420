"""Which devices claims get on a node, or why they get none: the decision of Kubernetes' scheduler as a pure function.

Law: `allocate` gives claims only what the API's rules allow, and prefers the devices that a scheduler of the given
release would choose. Unless the search is abandoned or an expression fails, `allocate` finds an allocation whenever
there is one. If a bug in that scheduler affects the answer, the answer names the bug (see docs/claims.md).

>>> from devicecore.domain.allocation import TargetNode, allocate, claim_of, slice_of
>>> pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
>>> gpus = slice_of({"metadata": {"name": "s"}, "spec": {"driver": "gpu.example.com", "nodeName": "node-1",
...     "pool": pool, "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}})
>>> claim = claim_of({"metadata": {"name": "two"}, "spec": {"devices": {"requests": [
...     {"name": "gpus", "exactly": {"deviceClassName": "any", "count": 2}}]}}})
>>> found = allocate([claim], TargetNode("node-1"), [gpus], [], [DeviceClass("any")])
>>> [str(one.key) for one in found.devices()]
['gpu.example.com/node-1/gpu-0', 'gpu.example.com/node-1/gpu-1']
>>> print(allocate([claim], TargetNode("node-2"), [gpus], [], [DeviceClass("any")]))
claim two, request gpus: 0 of 2 devices fit; there are none on the node
"""

from collections.abc import Iterable, Mapping, Sequence

from devicecore.domain.allocation.errors import (
    EvaluationsGivenUpError,
    ExpressionError,
    QuestionGivenUpError,
    SearchGivenUpError,
    SelectorError,
    UndecidedError,
)
from devicecore.domain.allocation.faults import Cause, Release
from devicecore.domain.allocation.kubernetes import KubernetesAnswer, answer_of_kubernetes, causes_between, may_differ
from devicecore.domain.allocation.model import (
    DeviceClass,
    DeviceKey,
    Features,
    Held,
    Matches,
    PoolDevice,
    PoolSlice,
    TargetNode,
    UnallocatedClaim,
)
from devicecore.domain.allocation.pools import Slices
from devicecore.domain.allocation.reading import claim_of, class_of, held_by, node_of, slice_of
from devicecore.domain.allocation.reasons import Undecided
from devicecore.domain.allocation.result import DeviceAllocation, NoAllocation
from devicecore.domain.allocation.search import MAX_STEPS, Charge, Search, Situation, Taken, free_of_charge
from devicecore.domain.allocation.verdicts import problem_of, verdicts
from devicecore.domain.checks import checked, tuple_of

__all__ = [
    "MAX_STEPS",
    "Charge",
    "DeviceAllocation",
    "DeviceClass",
    "DeviceKey",
    "EvaluationsGivenUpError",
    "ExpressionError",
    "Features",
    "Held",
    "Matches",
    "NoAllocation",
    "PoolDevice",
    "PoolSlice",
    "QuestionGivenUpError",
    "Release",
    "SelectorError",
    "Slices",
    "TargetNode",
    "UnallocatedClaim",
    "UndecidedError",
    "allocate",
    "claim_of",
    "class_of",
    "held_by",
    "node_of",
    "slice_of",
    "which_nodes",
]


def _without_cel(_expression: str, _device: PoolDevice) -> bool:
    problem = "no library for CEL was given"
    raise SelectorError(problem, at_run_time=False)


def allocate(
    claims: Sequence[UnallocatedClaim],
    node: TargetNode,
    slices: Slices | Iterable[PoolSlice],
    allocated: Iterable[Held] | Mapping[DeviceKey, Sequence[Held]],
    classes: Iterable[DeviceClass] | Mapping[str, DeviceClass],
    *,
    matches: Matches = _without_cel,
    features: Features = Features(),
    release: Release = Release.V1_37,
    max_steps: int = MAX_STEPS,
    charge: Charge = free_of_charge,
) -> DeviceAllocation | NoAllocation:
    """Return the devices that all claims get on a node, or why the claims cannot be allocated.

    Args:
        claims: the claims of one pod that are not allocated yet, in the pod's order.
        node: the node on which the claims are to be used.
        slices: the ResourceSlices of the cluster. If you ask about several nodes, pass a `Slices`, which is faster.
        allocated: the devices that are already allocated.
        classes: the DeviceClasses of the cluster.
        matches: evaluates CEL expressions, such as `devicecore.adapters.cel.CelSelectors()`.
        features: the feature gates of the scheduler.
        release: the scheduler's release.
        max_steps: the search gives up after trying this many devices.
        charge: called often during the search, each time with the number of reasons that were just kept. If `charge` or
            `matches` raises QuestionGivenUpError, the answer is "unknown" and has no reasons.

    Raises:
        TypeError: an argument is a parsed manifest or a name instead of a value.
    """
    checked(node, TargetNode, "allocate: node")
    claims = tuple_of(claims, UnallocatedClaim, "allocate: claims (claim_of reads a manifest)")
    indexed = slices if isinstance(slices, Slices) else Slices(slices)
    held = allocated if isinstance(allocated, Mapping) else by_device(allocated)
    if isinstance(classes, Mapping):
        by_name = classes
    else:
        listed = tuple_of(classes, DeviceClass, "allocate: classes (class_of reads a manifest)")
        by_name = {one.name: one for one in listed}
    situation = Situation(claims, node, indexed, held, by_name, matches, features, max_steps, release, charge)
    search = Search(situation)
    try:
        return _answer(situation, search)
    except QuestionGivenUpError as error:
        return NoAllocation(str(error), is_error=True, is_unknown=True, unusable=_unusable(situation))


def _answer(situation: Situation, search: Search) -> DeviceAllocation | NoAllocation:
    """Return what `allocate` returns. Raises QuestionGivenUpError if the question has exceeded its budget."""
    undecided: UndecidedError | None = None
    try:
        if search.run():
            return _allocation(situation, tuple(search.taken))
    except SearchGivenUpError as error:
        reasons = verdicts(search, alone=True)
        # A device whose expressions took too long may be the one that fits.
        is_open = any(isinstance(one.reason, Undecided) for one in reasons)
        problem = "" if is_open else problem_of(search, reasons)
        return NoAllocation(
            problem or str(error),
            reasons,
            is_error=not problem,
            is_unknown=not problem,
            unusable=_unusable(situation),
        )
    except UndecidedError as error:
        undecided = error
    return _no_allocation(situation, search, undecided)


def _allocation(situation: Situation, taken: tuple[Taken, ...]) -> DeviceAllocation:
    """Return the devices that Kubernetes finds if they are correct, or else `taken` with the faults that mislead it."""
    causes: tuple[Cause, ...] = ()
    if taken and may_differ(situation):
        answer = answer_of_kubernetes(situation)
        if answer.taken is not None and answer.is_right:
            taken = answer.taken
        elif answer.is_known:
            causes = causes_between(situation, is_possible=True)
    return _given(situation, taken, causes)


def _given(situation: Situation, taken: tuple[Taken, ...], causes: tuple[Cause, ...] = ()) -> DeviceAllocation:
    node, classes = situation.node, situation.classes
    return DeviceAllocation(
        tuple(situation.claims), node, classes, situation.features, taken, causes, situation.release
    )


def _no_allocation(
    situation: Situation, search: Search, undecided: UndecidedError | None
) -> DeviceAllocation | NoAllocation:
    """Return why there are no devices, and the faults with which Kubernetes would find devices.

    If an expression cannot be evaluated for a device, a fault may keep Kubernetes from trying that device, so that
    Kubernetes finds correct devices.
    """
    answer = answer_of_kubernetes(situation) if may_differ(situation) else KubernetesAnswer(is_undecided=True)
    if undecided and answer.taken is not None and answer.is_right:
        return _given(situation, answer.taken)
    if undecided and (answer.taken or answer.error or answer.is_undecided or not answer.is_known):
        return NoAllocation(
            str(undecided),
            is_error=True,
            stops_pod=True,
            unusable=_unusable(situation),
            expression_error=undecided if isinstance(undecided, ExpressionError) else None,
        )
    causes = causes_between(situation, is_possible=False) if answer.taken is not None else ()
    reasons, problem = verdicts(search), answer.error
    for pool in situation.pools:
        if pool.problem and not pool.is_incomplete and not pool.is_obsolete and not problem:
            problem = f"invalid resource pools were encountered: {pool}: {pool.problem}"
    text = problem or problem_of(search, reasons) or _NOT_TOGETHER
    return NoAllocation(
        text,
        reasons,
        is_error=bool(problem),
        stops_pod=bool(answer.error),
        causes=causes,
        unusable=_unusable(situation),
    )


def _unusable(situation: Situation) -> tuple[str, ...]:
    return tuple(f"pool {pool}: {pool.problem}" for pool in situation.pools if pool.problem)


_NOT_TOGETHER = "each request alone can be fulfilled, but not all of them together"


def by_device(allocated: Iterable[Held]) -> dict[DeviceKey, list[Held]]:
    """Return the allocations by device."""
    held: dict[DeviceKey, list[Held]] = {}
    for one in allocated:
        held.setdefault(one.device, []).append(one)
    return held


def which_nodes(
    claims: Sequence[UnallocatedClaim],
    nodes: Iterable[TargetNode],
    slices: Iterable[PoolSlice],
    allocated: Iterable[Held],
    classes: Iterable[DeviceClass],
    *,
    matches: Matches = _without_cel,
    release: Release = Release.V1_37,
) -> dict[str, DeviceAllocation | NoAllocation]:
    """Return what `allocate` returns, by node name."""
    indexed, held, by_name = Slices(slices), by_device(allocated), {one.name: one for one in classes}
    return {
        node.name: allocate(claims, node, indexed, held, by_name, matches=matches, release=release) for node in nodes
    }
