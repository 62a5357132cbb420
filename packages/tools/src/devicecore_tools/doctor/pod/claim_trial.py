"""Finds the devices that ResourceClaims get on one node or all nodes of a cluster, or changes that would help.

Laws: an answer contains devices only if a trial with `devicecore.domain.allocation` has allocated them. A change is in
`ClaimAnswer.changes` only if a trial has succeeded with this change. If the trial of the claims cannot be decided, for
example because an expression cannot be evaluated here, the answer is unknown, or lists the claims as undecided.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from itertools import islice
from typing import NamedTuple, cast

from attrs import evolve, field, frozen

from devicecore.domain.allocation import (
    DeviceAllocation,
    DeviceKey,
    Held,
    NoAllocation,
    PoolDevice,
    QuestionGivenUpError,
    Release,
    Slices,
    TargetNode,
    UnallocatedClaim,
    UndecidedError,
    allocate,
    by_device,
    claim_of,
)
from devicecore.domain.allocation.capacity import by_own_names
from devicecore.domain.allocation.faults import Cause
from devicecore.domain.allocation.model import Taint, Use
from devicecore.domain.allocation.node_selectors import node_selector
from devicecore.domain.allocation.pools import Pool
from devicecore.domain.allocation.reasons import (
    CapacityExceeded,
    ConstraintBroken,
    CounterExhausted,
    DeviceVerdict,
    NotSelected,
    OnOtherNode,
    PoolUnusable,
    TakenBefore,
)
from devicecore.domain.allocation.search import Search, Situation
from devicecore.domain.documents import Value
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import ExtendedClaim, Pod
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text, listed
from devicecore_tools.budget import Budget
from devicecore_tools.doctor.pod.claim_changes import Change, Refused
from devicecore_tools.doctor.pod.cluster_objects import ClusterObjects, objects_of
from devicecore_tools.doctor.pod.expression_edits import wanted_drivers
from devicecore_tools.doctor.pod.extended_claim import (
    OF_LIMITS,
    ExtendedResourceClaim,
    extended_claim,
    extended_resources,
)
from devicecore_tools.doctor.pod.filters import Filters, cost_of
from devicecore_tools.doctor.pod.machines import BoundPod, Obstacle
from devicecore_tools.doctor.pod.scheduling import PodAsks
from devicecore_tools.doctor.reading.cluster_nodes import ClusterNode
from devicecore_tools.doctor.reading.taint_rules import added_taints
from devicecore_tools.expressions import Expressions

MAX_TRIALS = 250
"""The maximum number of changes that are tried, to bound the time.

Fewer changes are tried on a node with over 4,000 devices.
"""

MAX_PODS = 256
"""The maximum number of consumers of a claim."""

MAX_ADVICE_SECONDS = 2.0
"""The maximum CPU time for trying changes, in seconds."""

_MIN_TRIALS = 10
_PATIENCE = 0.5  # seconds of trials before the user is informed
_MAX_DEVICES_TRIED = 1_000_000  # the maximum number of devices in all trials together
_STEPS_OF_TRIAL = 20_000
_STEPS_FOR_DEVICE = 3  # enough for the search to reach every device of a large node

OF_TEMPLATE = "of ResourceClaimTemplate "
"""Part of the name shown for a claim that is created from a template."""

_MAX_OUT_OF_QUESTION = 20
"""The maximum number of ineligible nodes that are tried anyway if no eligible node has the devices."""

_ADMIN_LABEL = "resource.kubernetes.io/admin-access"
"""The namespace label without which an API server refuses claims with admin access."""

_GET_NODES = "pass the output of kubectl get nodes -o json as an additional file for --slices, or use --kubeconfig"

_MAX_ALTERNATIVES = 8
"""The maximum number of alternatives in a request. The first alternative scores highest (scheduler: `computeScore`)."""


@frozen
class ClaimsDecision:
    """A node's answer about a pod's claims.

    Attributes:
        problem: why the claims get no devices, or an empty string if they get some or are undecided.
        undecided: the claims that cannot be decided from the sources.
        drivers: the drivers of the devices that claims would get, by the claim's `namespace/name`.
    """

    problem: str = ""
    undecided: tuple[str, ...] = ()
    drivers: Mapping[str, Sequence[str]] = field(factory=dict)


def _name(one: Value) -> str:
    return f"{one['metadata']['namespace'].text('default')}/{one['metadata']['name'].text('')}"


@frozen
class AllocatedClaim:
    """A claim's allocation.

    Attributes:
        name: `namespace/name`.
        devices: each device with the name of its request.
        nodes: the known nodes on which the devices can be used, or None for all nodes.
        pods: the pods for which the claim is reserved.
        waits_for: the binding conditions of its devices that are not true yet.
        failed: the condition that reports a binding failure, or an empty string.
        since: when the claim was allocated, or an empty string if unknown.
        uids: the UIDs of `pods`, each empty if it is not recorded.
    """

    name: str
    devices: tuple[tuple[str, str], ...]
    nodes: tuple[str, ...] | None
    pods: tuple[str, ...]
    waits_for: tuple[str, ...] = ()
    failed: str = ""
    since: str = ""
    uids: tuple[str, ...] = ()

    def others(self, pod: str, uid: str = "") -> list[str]:
        """Return the other pods for which the claim is reserved.

        A former pod with the same name counts as a different pod. Without a UID, pods are compared by name.
        """
        uids = self.uids or ("",) * len(self.pods)
        return [name for name, own in zip(self.pods, uids, strict=True) if (own != uid if own and uid else name != pod)]


def allocated_claim(claim: Value, nodes: Iterable[TargetNode], budget: Budget | None = None) -> AllocatedClaim | None:
    """Return a claim's allocation from its status, or None if the claim is not allocated.

    Raises DocumentError if a field has the wrong type, and QuestionGivenUpError if the budget is spent.
    """
    allocation = claim["status"]["allocation"]
    if allocation.data is None:
        return None
    devices = tuple(
        (one["request"].text(""), str(DeviceKey(one["driver"].text(), one["pool"].text(), one["device"].text())))
        for one in allocation["devices"]["results"].sequence()
    )
    usable = None
    if allocation["nodeSelector"].data is not None:
        accepts, terms = node_selector(allocation["nodeSelector"]), allocation["nodeSelector"]["nodeSelectorTerms"]
        named = (
            name
            for term in terms.sequence()
            for one in term["matchFields"].sequence()
            for name in one["values"].sequence()
        )
        known = {node.name: node for node in (*(TargetNode(name.text()) for name in named), *nodes)}
        ask = budget.ask if budget else lambda: None
        usable = tuple(name for name, node in sorted(known.items()) if ask() is None and accepts(node))
    consumers = claim["status"]["reservedFor"].sequence()
    pods, uids = (tuple(one[key].text("") for one in consumers) for key in ("name", "uid"))
    waits_for, failed = _binding(claim)
    since = allocation["allocationTimestamp"].text("")
    return AllocatedClaim(_name(claim), devices, usable, pods, waits_for, failed, since, uids)


def _binding(claim: Value) -> tuple[tuple[str, ...], str]:
    """Return the binding conditions that are not true yet, and the failure condition that is true, or "".

    Scheduler: `isClaimReadyForBinding`.
    """
    waits_for: dict[str, None] = {}
    keys = ("driver", "pool", "device", "shareID")
    stated = {tuple(one[key].text("") for key in keys): one for one in claim["status"]["devices"].sequence()}
    for result in claim["status"]["allocation"]["devices"]["results"].sequence():
        wanted = [one.text("") for one in result["bindingConditions"].sequence()]
        of_device = stated.get(tuple(result[key].text("") for key in keys))
        conditions = of_device["conditions"].sequence() if wanted and of_device is not None else []
        true = {one["type"].text(""): one for one in conditions if one["status"].data == "True"}
        for one in result["bindingFailureConditions"].sequence():
            if (found := true.get(one.text(""))) is not None:
                said = ": ".join(filter(None, (found["reason"].text(""), found["message"].text(""))))
                device = "/".join(result[key].text("") for key in keys[:3])
                return (), foreign_text(f"{one.text('')} of {device} is True{f' ({said})' if said else ''}", 300)
        waits_for |= dict.fromkeys(one for one in wanted if one not in true)
    return tuple(waits_for), ""


class Outcome(Enum):
    """A scheduler's decision about claims. Each value is the exit status with which commands report the decision."""

    FITS = 0
    FITS_NOT = 1
    UNKNOWN = 3
    MISSED = 4  # the rules allow devices, but the scheduler of a possible release does not find them


_CERTAINTY = (Outcome.FITS, Outcome.MISSED, Outcome.UNKNOWN, Outcome.FITS_NOT)
"""The order in which nodes' outcomes decide for the whole cluster. "No" is certain only if no node is unknown."""


class ClaimAnswer(NamedTuple):
    """A node's verdict on claims, and the changes that would turn a no into a yes.

    Attributes:
        causes: the faults that may make a scheduler's decision differ from the rules, by release.
        obstacles: why the node is ineligible regardless of its devices, with the scheduler's reason first.
        has_devices: whether the node has the devices although it is ineligible.
        victims: the pods that a scheduler preempts first to make room.
        broken: how many of the victims a PodDisruptionBudget protects.
        are_all_tried: whether no change was left out for lack of time.
    """

    node: TargetNode
    answer: DeviceAllocation | NoAllocation
    changes: tuple[Change, ...] = ()
    causes: Mapping[str, tuple[Cause, ...]] = {}
    obstacles: tuple[Obstacle, ...] = ()
    has_devices: bool = False
    victims: tuple[BoundPod, ...] = ()
    broken: int = 0
    are_all_tried: bool = True

    @property
    def cure(self) -> str:
        """The change after which the node is eligible."""
        return ", and ".join(dict.fromkeys(one.cure for one in self.obstacles))

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The binding conditions that a scheduler waits for before it binds the pod."""
        taken = self.answer.taken if isinstance(self.answer, DeviceAllocation) else ()
        return tuple(dict.fromkeys(one for of in taken for one in of.candidate.device.conditions))

    @property
    def score(self) -> int:
        """The score of the alternatives that the claims get (scheduler: `computeScore`)."""
        if not isinstance(self.answer, DeviceAllocation):
            return 0
        chosen = {one.request for one in self.answer.taken if one.request.parent}
        return sum(
            _MAX_ALTERNATIVES - number
            for claim in self.answer.claims
            for ways in claim.requests
            for number, one in enumerate(ways)
            if one in chosen
        )

    @property
    def fits(self) -> bool:
        """Whether the rules allow devices for the claims."""
        return isinstance(self.answer, DeviceAllocation)

    @property
    def outcome(self) -> Outcome:
        """The scheduler's decision."""
        if isinstance(self.answer, DeviceAllocation):
            return Outcome.MISSED if self.causes or self.answer.causes else Outcome.FITS
        if self.answer.is_unknown:
            return Outcome.UNKNOWN
        return Outcome.FITS if self.answer.causes else Outcome.FITS_NOT

    @property
    def fitting(self) -> int:
        """The number of devices that fit each request on its own, summed over all requests."""
        return sum(
            one.reason is None or isinstance(one.reason, ConstraintBroken | TakenBefore) for one in self.verdicts
        )

    @property
    def refusal(self) -> NoAllocation | None:
        """Why the claims get no devices, or None if they get devices."""
        return self.answer if isinstance(self.answer, NoAllocation) else None

    @property
    def verdicts(self) -> Sequence[DeviceVerdict]:
        """The verdict on each device, or nothing if the claims get devices."""
        return () if self.refusal is None else self.refusal.verdicts


class OverCommitted(NamedTuple):
    """An over-committed counter and its users."""

    pool: Pool
    counter: str
    total: Quantity
    used: Quantity
    holders: tuple[str, ...]


class ClaimTrial:
    """Tries to allocate claims on the nodes of a cluster.

    Args:
        objects: the objects on which the decision depends.
        releases: the possible releases of the cluster's scheduler, most probable first; by default, all releases that
            the kubelets' versions allow.
        sources: where the objects were found, such as `in slices.json`.
        budget: the budget of the question that this trial is part of; by default a new one.
        lists_claims: whether the objects include all claims and templates of the cluster.
    """

    def __init__(
        self,
        objects: ClusterObjects,
        releases: Sequence[Release] = (),
        sources: Sequence[str] = (),
        budget: Budget | None = None,
        *,
        lists_claims: bool = False,
    ) -> None:
        self.releases: Sequence[Release] = releases or objects.releases
        self._sources = tuple(sources)
        self._lists_claims = lists_claims
        self._objects = objects
        self._slices = Slices(objects.slices)
        self._held = by_device(objects.held)
        self._classes = {one.name: one for one in objects.classes}
        self._known_nodes = {one.name for one in objects.nodes}
        self._budget = budget or Budget()
        self.unread: Sequence[str] = ()  # kinds that matter for pods but were not read, and why
        self.on_trials: Callable[[], None] = lambda: None  # called once if trials of changes take long
        self._matches = Expressions(objects.features, max_seconds=self._budget.expression_seconds)

    @classmethod
    def of_record(cls, documents: Mapping[str, object], budget: Budget | None = None) -> "ClaimTrial | None":
        """Return a trial on a record's node, or None if a needed file was not read or is invalid.

        `documents` maps the names of the record's files to their contents.
        """
        from devicecore_tools.doctor.reading.record import CLAIMS, CLASSES, NODE, RULES, SLICES

        kinds = {NODE: "Node", SLICES: "ResourceSlice", CLAIMS: "ResourceClaim", CLASSES: "DeviceClass"}
        if any(documents.get(name) is None for name in kinds):
            return None
        if RULES in documents:
            kinds[RULES] = "DeviceTaintRule"
        try:
            return cls(
                objects_of([Value(documents[name], name) for name in kinds], kinds.values(), budget), budget=budget
            )
        except DocumentError:
            return None

    def filters(self, asks: PodAsks) -> Filters:
        """Return the results of a scheduler's filters for a pod in this cluster."""
        return Filters(asks, self._objects, self._budget)

    @property
    def objects(self) -> ClusterObjects:
        """The cluster's objects, on which the decision depends."""
        return self._objects

    @property
    def lacks_library(self) -> bool:
        """Whether an expression could not be evaluated because the library for CEL is not installed."""
        return self._matches.lacks_library

    def unpublished(self, answer: DeviceAllocation) -> list[Held]:
        """Return allocated devices that are no longer published, in the pools whose counters an answer uses."""
        pools = {(one.key.driver, one.key.pool) for one in answer.taken if one.candidate.device.counters}
        held = (one for device, of in self._held.items() if device[:2] in pools for one in of)
        return [one for one in held if one.device not in self._objects.devices]

    def class_for(self, resource: str) -> str | None:
        """Return the newest DeviceClass that serves an extended resource, or None if no class serves it."""
        return self._objects.extended.get(resource)

    def served_resources(self, pod: Pod) -> list[str]:
        """Return the pod's extended resources that a DeviceClass serves and no claim covers yet."""
        return [name for name in extended_resources(pod) if self.class_for(name)]

    def unjudged(self, resources: Iterable[str]) -> list[str]:
        """Return what was not read, and sentences about the pod's extended resources that a scheduler may not know."""
        other = self._objects.uncertain
        return [
            *self.unread,
            *(
                f"whether the scheduler knows {foreign_text(name)}: it does not if it first saw DeviceClass "
                f"{other[name]}, which has the same extendedResourceName"
                for name in resources
                if name in other
            ),
        ]

    def extended_claim(self, pod: Pod, resources: Iterable[str]) -> ExtendedResourceClaim | None:
        """Return the claim that a scheduler creates for the resources that DeviceClasses serve.

        The result is None if DeviceClasses serve none of the resources.
        """
        return extended_claim(pod, {name: served for name in resources if (served := self.class_for(name))})

    def admitted(self, pod: Pod, node: str, plugins: Mapping[str, int]) -> Pod:
        """Return the pod as a node's kubelet receives it: claims cover the resources that DeviceClasses serve there.

        `plugins` maps each resource to its number of plugin devices, according to the kubelet.
        """
        if pod.extended_claim is not None:
            return pod
        claim = extended_claim(pod, self.delegated(pod, node, plugins))
        name = f"{pod.name}{OF_LIMITS}"
        return pod if claim is None else evolve(pod, extended_claim=ExtendedClaim(name, claim.mappings))

    def delegated(self, pod: Pod, node: str, plugins: Mapping[str, int] | None = None) -> dict[str, str]:
        """Return the pod's resources that no plugin serves on a node, with the classes that serve them instead."""
        here = [name for name in self.served_resources(pod) if not (plugins or {}).get(name)]
        by_plugins = self._of_plugins(node, here)
        return {name: self._objects.extended[name] for name in here if name not in by_plugins}

    def _of_plugins(self, node: str, resources: Iterable[str]) -> list[str]:
        """Return the resources that a device plugin serves on a node. A plugin takes precedence over a class.

        The scheduler checks the Node's allocatable (`shouldDelegateResourceToDRA`).
        """
        machine = self._objects.machines.get(node)
        return [name for name in resources if machine and (size := machine.allocatable.get(name)) and size.nanos]

    def without(self, names: Collection[str]) -> "ClaimTrial":
        """Return a trial on the same cluster without the allocations of the claims with these names."""
        claims = {
            name: Value({**cast("dict[str, object]", one.data), "status": {}}, one.place, one.step)
            if name in names
            else one
            for name, one in self._objects.claims.items()
        }
        held = tuple(one for one in self._objects.held if one.claim not in names)
        objects = evolve(self._objects, claims=claims, held=held)
        after = ClaimTrial(objects, self.releases, self._sources, self._budget, lists_claims=self._lists_claims)
        after.on_trials = self.on_trials
        return after

    def idle_claims(self, pod: Pod, uid: str = "") -> list[str]:
        """Return the pod's allocated claims that only some nodes can use and that no other pod uses.

        A scheduler deallocates such claims if it finds no node for the pod (`deallocateOrDeletePodClaims`).
        """
        return self._idle(self.claims_named_by(pod), pod.name, uid)

    def _idle(self, names: Iterable[str], pod: str, uid: str = "") -> list[str]:
        """Return the allocated claims that only some nodes can use and that only the pod with this name uses."""
        idle = []
        for name in names:
            allocated = allocated_claim(self._objects.claims[name], ())
            if allocated is not None and allocated.nodes is not None and not allocated.others(pod, uid):
                idle.append(name)
        return idle

    def decide(self, pod: str, names: Iterable[str], extended: UnallocatedClaim | None = None) -> ClaimsDecision:
        """Return the answer about the claims of one pod on a record's node.

        Args:
            pod: the pod's name.
            names: the names of the pod's ResourceClaims, `namespace/name`.
            extended: the claim that a scheduler creates for extended resources from DeviceClasses.
        """
        asked, node = tuple(names), self.node("")
        missing = tuple(name for name in asked if name not in self._objects.claims)
        problem = ""
        try:
            found = [(name, self._unallocated(name)) for name in asked if name not in missing]
            if node is not None:
                problem = self.unusable((name for name, _ in found), node, pod)
        except (DocumentError, QuestionGivenUpError):
            return ClaimsDecision(undecided=asked)
        wanted = {name: claim for name, claim in found if claim is not None}
        if extended is not None:
            wanted[extended.name] = extended
            asked = (*asked, extended.name)
        if node is None:
            return ClaimsDecision(undecided=asked)
        if problem:
            known = [name for name, _ in found]
            # Before the scheduler tries again, it deallocates claims that no other pod uses.
            idle = self._idle(known, pod)
            return self.without(idle).decide(pod, [*known, *missing], extended) if idle else ClaimsDecision(problem)
        if not wanted:
            return ClaimsDecision(undecided=missing)
        answer = self._allocate([*wanted.values()], node)
        if isinstance(answer, NoAllocation):
            of_pod = f" ({extended.users})" if isinstance(extended, ExtendedResourceClaim) else ""
            problem = "" if answer.is_error else f"cannot allocate all claims: {answer}{of_pod}"
            return ClaimsDecision(problem, missing if problem else asked)
        given = ([taken.key.driver for taken in answer.devices(number)] for number in range(len(wanted)))
        drivers = {name: tuple(dict.fromkeys(of)) for name, of in zip(wanted, given, strict=True)}
        return ClaimsDecision(undecided=missing, drivers=drivers)

    def _unallocated(self, name: str) -> UnallocatedClaim | None:
        """Return the claim with this name, or None if the claim is already allocated."""
        claim = self._objects.claims[name]
        return claim_of(claim) if claim["status"]["allocation"].data is None else None

    def asks_for_capacity(self, claim: str) -> bool:
        """Return whether a stored claim requests capacity."""
        known = self._objects.claims.get(claim)
        return known is not None and any(one.capacity for one in claim_of(known).alternatives)

    @property
    def has_classes(self) -> bool:
        """Whether any DeviceClass is known. Without DeviceClasses, no claim can be decided."""
        return bool(self._objects.classes)

    def unusable(self, names: Iterable[str], node: TargetNode, pod: str, uid: str = "") -> str:
        """Return a known reason why the pod with this name cannot use these claims on a node, or an empty string.

        If `uid` is empty, a claim that is reserved for a pod with this name is assumed to belong to this pod.

        Raises QuestionGivenUpError if the budget is spent.
        """
        for name, claim in ((name, self._objects.claims.get(name)) for name in names):
            if claim is None:
                continue
            allocated = allocated_claim(claim, [node], self._budget)
            others = allocated.others(pod, uid) if allocated else []
            is_own = allocated is not None and len(others) < len(allocated.pods)
            if claim["metadata"]["deletionTimestamp"].data is not None and not is_own:
                return f"ResourceClaim {name} is being deleted"
            if allocated and allocated.failed:
                return f"the devices of ResourceClaim {name} cannot be bound: {allocated.failed}"
            is_here = not allocated or allocated.nodes is None or node.name in allocated.nodes
            if allocated and len(allocated.pods) >= MAX_PODS and not is_own:
                return (
                    f"ResourceClaim {name} is already reserved for {len(allocated.pods)} pods, "
                    "and no other pod may use it"
                )
            if allocated and not is_here and node.name in self._known_nodes:
                by = f" for pod {listed(others, 3)}" if others else ""
                where = f" on {listed(allocated.nodes or (), 3)}" if allocated.nodes else ""
                return f"ResourceClaim {name} is allocated{where}{by}, and its devices cannot be used on this node"
        return ""

    def allocated(self, claim: Value) -> AllocatedClaim | None:
        """Return the claim's allocation in the cluster, or None."""
        known, uid = self._objects.claims.get(_name(claim)), claim["metadata"]["uid"].data
        if known is None or uid not in (None, known["metadata"]["uid"].data):
            return None
        return allocated_claim(known, self._objects.target_nodes())

    def unallocated_claims(self, pod: Pod) -> list[UnallocatedClaim]:
        """Return the claims of a pod that are not allocated yet, in the order in which the pod lists them.

        Raises ValueError if a claim is unknown or cannot be read.
        """
        found: list[UnallocatedClaim] = []
        if missing := self._missing_claim(pod):
            raise ValueError(missing)
        for entry in pod.claims:
            name = entry.claim or pod.generated_claims.get(entry.name)
            key = f"{pod.namespace}/{name}"
            if name is not None and key in self._objects.claims:
                made = f"{key} {OF_TEMPLATE}{pod.namespace}/{entry.template}" if entry.template else key
                found += [evolve(one, name=made) for one in [self._unallocated(key)] if one is not None]
            else:
                template = self._objects.templates[f"{pod.namespace}/{entry.template}"]
                made = f"{entry.name} {OF_TEMPLATE}{pod.namespace}/{entry.template}"
                found.append(evolve(template, name=made))
        return found

    def _missing_claim(self, pod: Pod) -> str:
        """Return a sentence about the first unknown claim or template of a pod, or an empty string."""
        places = ", and not ".join(self._sources) or "known"
        for entry in pod.claims:
            name = entry.claim or pod.generated_claims.get(entry.name)
            is_known = name is not None and f"{pod.namespace}/{name}" in self._objects.claims
            if not is_known and f"{pod.namespace}/{entry.template}" not in self._objects.templates:
                kind, wanted = ("ResourceClaim", name) if name else ("ResourceClaimTemplate", entry.template)
                known = self._objects.claims if name else self._objects.templates
                spaces = sorted(space for space, _, own in (key.partition("/") for key in known) if own == wanted)
                other = f" (there is one in the namespace {foreign_text(spaces[0])})" if spaces else ""
                return f"the pod names {kind} {pod.namespace}/{wanted}{other}, which is not {places}"
        return ""

    def _foreign_claim(self, pod: Pod, uid: str) -> str:
        """Return an error if a claim of the pod was created for a different pod, or "" (Kubernetes: `IsForPod`)."""
        for name in pod.generated_claims.values():
            claim = self._objects.claims.get(f"{pod.namespace}/{name}")
            owners = claim["metadata"]["ownerReferences"].sequence() if claim is not None else []
            controllers = [one["uid"].text("") for one in owners if one["controller"].boolean()]
            if uid and controllers and uid not in controllers:
                identity = f"{pod.namespace}/{pod.name}"
                return f"ResourceClaim {pod.namespace}/{name} was not created for pod {identity} (pod is not owner)"
        return ""

    def lacking_claim(self, pod: Pod, uid: str) -> str:
        """Return why a scheduler waits for a claim of a pod (`foreachPodResourceClaim`), or an empty string.

        The reason is that the claim belongs to a different pod, or that it is missing. A claim counts as missing only
        if all of the cluster's claims were read.
        """
        if foreign := self._foreign_claim(pod, uid):
            return foreign
        if not self._lists_claims or not (missing := self._missing_claim(pod)):
            return ""
        words = 'the scheduler waits for it (resourceclaim.resource.k8s.io "..." not found, or not created yet)'
        return f"{missing}: {words}"

    @property
    def assumed(self) -> tuple[str, ...]:
        """The assumptions about claims' devices made because the cluster's claims were not read."""
        if self._lists_claims or "ResourceClaim" in self._objects.admission.kinds:
            return ()
        return ("no other claim has devices: no ResourceClaims were read (add --claims or --kubeconfig)",)

    def why_refused(self, pod: Pod) -> str:
        """Return why an API server refuses a pod's claim, or an empty string if it accepts every claim.

        Claims with admin access are accepted only in a namespace with a certain label (KEP-5018).
        """
        for name in self.claims_named_by(pod):
            claim = self._objects.claims[name]
            is_stored = claim["metadata"]["uid"].data is not None
            if is_stored or not any(one.admin_access for one in claim_of(claim).alternatives):
                continue
            labels = (self._objects.namespaces or {}).get(pod.namespace)
            if labels is None or labels.get(_ADMIN_LABEL) != "true":
                lacks = " does not have" if labels is not None else ", which was not read, must have"
                label = f'{_ADMIN_LABEL}: "true"'
                return (
                    f"an API server refuses the claim {name}: it requests admin access, for which the namespace "
                    f"{pod.namespace}{lacks} the label {label}"
                )
        for entry in pod.claims:
            made = self._objects.templates.get(f"{pod.namespace}/{entry.template}") if entry.template else None
            of_entry = f"{pod.namespace}/{pod.generated_claims.get(entry.name)}"
            if made is not None and of_entry not in self._objects.claims:
                labels = (self._objects.namespaces or {}).get(pod.namespace)
                wants_admin = any(one.admin_access for one in made.alternatives)
                if wants_admin and labels is not None and labels.get(_ADMIN_LABEL) != "true":
                    lacks = f'does not have the label {_ADMIN_LABEL}: "true"'
                    return f"an API server refuses the claim that is created for {entry.name}: namespace {lacks}"
                problem = self._objects.admission.why_claim_refused(made, pod.namespace)
                if problem:
                    return f"an API server refuses the claim that is created for {entry.name}: {problem}"
        return ""

    @property
    def is_given_up(self) -> bool:
        """Whether the budget of the question is spent, so that no further node is tried."""
        return bool(self._budget.spent())

    def claims_named_by(self, pod: Pod) -> list[str]:
        """Return the known claims that a pod needs, as `namespace/name`."""
        keys = [f"{pod.namespace}/{one.claim or pod.generated_claims.get(one.name)}" for one in pod.claims]
        return [key for key in keys if key in self._objects.claims]

    def allocated_claims(self, pod: Pod) -> list[AllocatedClaim]:
        """Return the allocations of a pod's claims."""
        known = [self._objects.claims[key] for key in self.claims_named_by(pod)]
        nodes = self._objects.target_nodes()
        found = []
        with suppress(QuestionGivenUpError):  # each untried node's answer says that the budget is spent
            for one in known:
                self._budget.ask()
                found.append(allocated_claim(one, nodes, self._budget))
        return [one for one in found if one is not None]

    def name_of(self, name: str, *, is_named: bool) -> str | None:
        """Return the name of the node whose objects are known, or None.

        If no name is passed, the only node in the objects is used.
        """
        known = [one.name for one in self._objects.target_nodes()]
        everywhere = any(one.place is None or not one.place.node for one in self._objects.slices)
        if name in known or (is_named and everywhere):
            return name
        return known[0] if not is_named and len(known) == 1 else None

    def node(self, name: str) -> TargetNode | None:
        """Return the node with this name, or the only known node, or None."""
        nodes = self._objects.target_nodes()
        named = [one for one in nodes if one.name == name] or nodes
        return named[0] if len(named) == 1 else None

    def answers(
        self,
        claims: Sequence[UnallocatedClaim],
        only: str | None = None,
        *,
        names: Sequence[str] = (),
        pod: Pod | None = None,
        uid: str = "",
        filters: Filters | None = None,
        resources: Sequence[str] = (),
    ) -> list[ClaimAnswer]:
        """Return each node's answer, best first.

        If no node provides the devices, the first answer may name changes that would help.

        Args:
            claims: the claims to try.
            only: the only node to try, or None for all nodes.
            names: all claims that the pod needs, as `namespace/name`. A claim that is not tried may also exclude a
                node.
            pod: the pod, or None if the question is only about claims.
            uid: the pod's UID, or an empty string if unknown.
            filters: the results of a scheduler's other filters for the pod.
            resources: the pod's extended resources that DeviceClasses serve on nodes without a plugin for them.
        """
        nodes = self._objects.target_nodes(only)
        problems: dict[str, str] = {}
        with suppress(QuestionGivenUpError):  # once the budget is spent, no node is tried
            for one in nodes:
                if problem := self.unusable(names, one, pod.name if pod else "", uid):
                    problems[one.name] = problem
        wanted = {one.name: self._wanted_on(one.name, claims, pod, resources) for one in nodes}
        found = [
            self._not_tried(one) or self._answer(one, wanted[one.name], problems.get(one.name, ""), filters, resources)
            for one in nodes
        ]
        found.sort(
            key=lambda one: (
                _CERTAINTY.index(one.outcome),
                (len(one.obstacles), sum(of.is_far for of in one.obstacles)),
                not one.fits,
                one.node.name in problems,
                -one.score,
                -one.fitting,
            )
        )
        if found and found[0].outcome is not Outcome.FITS:
            found = self._by_preemption(found, wanted, problems) or self._with_devices(found, wanted, problems)
        if found and found[0].node.name not in problems and not found[0].obstacles:
            of_best = wanted[found[0].node.name]
            best = found[0]._replace(causes=self._causes(of_best, found[0]))
            if not best.fits:
                changes, are_all_tried = self._changes(of_best, best, found)
                best = best._replace(changes=changes, are_all_tried=are_all_tried)
            found[0] = best
        return found

    def _by_preemption(
        self,
        found: Sequence[ClaimAnswer],
        wanted: Mapping[str, Sequence[UnallocatedClaim]],
        problems: Container[str],
    ) -> list[ClaimAnswer]:
        """Return the answers, starting with the node where a scheduler preempts pods, or nothing if it preempts none.

        Preemption does not release claims, so the devices must already be free.
        """
        if any(one.refusal is not None and one.refusal.stops_pod for one in found):
            return []
        possible = []
        for one in found:
            if one.victims and one.node.name not in problems:
                answer = self._allocate(wanted[one.node.name], one.node)
                if isinstance(answer, DeviceAllocation):
                    possible.append(one._replace(answer=answer, obstacles=()))
        if not possible:
            return []
        best = min(possible, key=lambda one: cost_of(one.victims, one.broken))
        return [best, *(one for one in found if one.node.name != best.node.name)]

    def _with_devices(
        self,
        found: Sequence[ClaimAnswer],
        wanted: Mapping[str, Sequence[UnallocatedClaim]],
        problems: Container[str],
    ) -> list[ClaimAnswer]:
        """Return the answers, with `has_devices` set.

        At most `_MAX_OUT_OF_QUESTION` ineligible nodes are tried for this.
        """
        left = _MAX_OUT_OF_QUESTION
        tried = []
        for one in found:
            is_asked = bool(wanted[one.node.name]) and one.node.name not in problems
            if one.obstacles and left and is_asked:
                left -= 1
                answer = self._allocate(wanted[one.node.name], one.node)
                one = one._replace(has_devices=isinstance(answer, DeviceAllocation))  # noqa: PLW2901 - the same node
            tried.append(one)
        return tried

    def _wanted_on(
        self, node: str, claims: Sequence[UnallocatedClaim], pod: Pod | None, resources: Sequence[str]
    ) -> Sequence[UnallocatedClaim]:
        """Return a pod's claims, including the one that a scheduler creates for resources without a plugin."""
        plugins = self._of_plugins(node, resources)
        extended = self.extended_claim(pod, [name for name in resources if name not in plugins]) if pod else None
        return claims if extended is None else [*claims, extended]

    def _answer(
        self,
        node: TargetNode,
        claims: Sequence[UnallocatedClaim],
        problem: str,
        filters: Filters | None,
        resources: Sequence[str],
    ) -> ClaimAnswer:
        """Return a node's answer, in the order of a scheduler's filters: nodes, resources, then claims."""
        machine = self._objects.machines.get(node.name, ClusterNode(node))
        plugins, bound = self._of_plugins(node.name, resources), self._objects.bound
        if filters is not None:
            served = [name for name in resources if name not in plugins]
            if node.name not in self._objects.machines and (lacking := filters.needs_node(served, claims)):
                known = listed(sorted(self._objects.machines), 3)
                unread = f"Node {node.name} was not read, only {known}" if known else "no Node was read"
                why = f"{unread}, so it is unknown whether the node has {lacking}: {_GET_NODES}"
                return ClaimAnswer(node, NoAllocation(why, is_unknown=True))
            try:
                out = tuple(filters.obstacles(machine, served))
                victims, broken = filters.victims(machine, served) if out else ((), 0)
            except QuestionGivenUpError as error:
                return ClaimAnswer(node, NoAllocation(str(error), is_error=True, is_unknown=True))
            if out:
                return ClaimAnswer(node, NoAllocation(str(out[0])), obstacles=out, victims=victims, broken=broken)
        if problem:
            return ClaimAnswer(node, NoAllocation(problem, is_error=True))
        answer = self._allocate(claims, node)
        if plugins and bound is None and isinstance(answer, DeviceAllocation):
            why = (
                f"a device plugin serves {listed(plugins, 3)} there, but the pods that may hold its devices were not "
                "read"
            )
            return ClaimAnswer(node, NoAllocation(why, is_unknown=True))
        return ClaimAnswer(node, answer)

    def _not_tried(self, node: TargetNode) -> ClaimAnswer | None:
        """Return the answer for a node if the budget is spent, or None otherwise."""
        if why := self._budget.spent():
            return ClaimAnswer(node, NoAllocation(f"the node was not tried: {why}", is_error=True, is_unknown=True))
        return None

    def _is_found(self, situation: Situation) -> bool:
        """Return whether the schedulers of all possible releases find devices that the rules allow."""
        answers = (
            allocate(
                situation.claims,
                situation.node,
                self._slices,
                situation.held,
                situation.classes,
                matches=self._matches,
                features=self._objects.features,
                release=release,
                max_steps=situation.max_steps,
                charge=self._budget.charge,
            )
            for release in self.releases
        )
        return all(isinstance(one, DeviceAllocation) and not one.causes for one in answers)

    def _causes(self, claims: Sequence[UnallocatedClaim], answer: ClaimAnswer) -> Mapping[str, tuple[Cause, ...]]:
        """Return the faults that may make each possible release of the scheduler decide differently from the rules."""
        found = {self.releases[0].value: answer.answer.causes}
        for release in self.releases[1:]:
            found[release.value] = self._allocate(claims, answer.node, release).causes
        return {release: causes for release, causes in found.items() if causes}

    def _allocate(
        self, claims: Sequence[UnallocatedClaim], node: TargetNode, release: Release | None = None
    ) -> DeviceAllocation | NoAllocation:
        return allocate(
            claims,
            node,
            self._slices,
            self._held,
            self._classes,
            matches=self._matches,
            features=self._objects.features,
            release=release or self.releases[0],
            charge=self._budget.charge,
        )

    def wants_driver(self, claims: Iterable[UnallocatedClaim], driver: str) -> bool:
        """Return whether an expression in the claims or their classes requires this driver."""
        requests = [one for claim in claims for one in claim.alternatives]
        classes = [self._classes[one.device_class] for one in requests if one.device_class in self._classes]
        selectors = [*(one.selectors for one in requests), *(one.selectors for one in classes)]
        return any(driver in wanted_drivers(text) for texts in selectors for text in texts if text)

    def nodes_of(self, drivers: Iterable[str]) -> list[str]:
        """Return the nodes for which drivers publish devices."""
        slices = [one for one in self._objects.slices if one.driver in drivers]
        named = {one.place.node for one in slices if one.place and one.place.node}
        known = {one.name for one in self._objects.nodes if any(each.targets(one) for each in slices)}
        return sorted(named | known)

    def pools(self, node: TargetNode) -> Sequence[Pool]:
        """Return the pools whose slices apply to a node."""
        return self._slices.pools(node, self._objects.features)

    def holders(self, verdict: DeviceVerdict) -> list[str]:
        """Return the claims that hold what a device lacks: its other shares, or devices that use the same counter."""
        device, reason = verdict.device, verdict.reason
        known = self._objects.devices.get(device)
        if isinstance(reason, CapacityExceeded) and known is not None:
            shares = [(one, by_own_names(one.consumed, known)) for one in self._held.get(device, ())]
            return [f"{one} has {consumed[reason.name]}" for one, consumed in shares if reason.name in consumed]
        if isinstance(reason, CounterExhausted):
            pool = [one for one in self._objects.devices.values() if one.key[:2] == device[:2]]
            using = (one.key for one in pool if any("/".join(use) == reason.counter for use in one.uses))
            return list(dict.fromkeys(str(one) for key in using for one in self._held.get(key, ())))
        return []

    def rule_of(self, device: DeviceKey, taint: Taint) -> str | None:
        """Return the DeviceTaintRule that taints a device, or None if the driver itself taints it."""
        rules = (name for name, rule in self._objects.rules.items() if taint in added_taints(device, [rule]))
        return next(rules, None)

    def over_committed(self, node: TargetNode) -> Iterator[OverCommitted]:
        """Yield the over-committed counters in a node's pools."""
        for pool in self.pools(node):
            used: dict[Use, int] = defaultdict(int)
            holders: dict[Use, list[str]] = defaultdict(list)
            for device in _all_of(pool):
                if self._held.get(device.key):
                    for use, amount in device.uses.items():
                        used[use] += amount.nanos
                        holders[use] += map(str, self._held[device.key])
            for use, nanos in used.items():
                total = pool.counters.get(use[0], {}).get(use[1])
                if total is not None and nanos > total.nanos:
                    names = tuple(dict.fromkeys(holders[use]))
                    yield OverCommitted(pool, "/".join(use), total, Quantity(nanos, total.binary), names)

    def refused(self, answer: ClaimAnswer, others: Iterable[ClaimAnswer] = ()) -> Refused:
        """Return the facts about a node that refuses claims. `others` are the answers of all nodes, if known."""
        devices = {device.key: device for pool in self.pools(answer.node) for device in _all_of(pool)}
        held_by: dict[str, list[DeviceKey]] = defaultdict(list)
        holders: dict[str, Held] = {}
        for key in devices:
            for one in self._held.get(key, ()):
                held_by[str(one)].append(key)
                holders[str(one)] = one
        described = {
            (one.claim, one.request)
            for other in others
            for one in other.verdicts
            if not isinstance(one.reason, NotSelected | PoolUnusable | OnOtherNode)
        }
        return Refused(
            answer.verdicts, devices, held_by, holders, self._classes, self._matches, self._budget, frozenset(described)
        )

    def _changes(
        self, claims: Sequence[UnallocatedClaim], refused: ClaimAnswer, others: Sequence[ClaimAnswer]
    ) -> tuple[tuple[Change, ...], bool]:
        """Return changes that make the node provide the devices, and whether there was time to try all changes.

        Changes that fix mistakes come first.
        """
        node, pools = self.refused(refused, others), self.pools(refused.node)
        trials = min(MAX_TRIALS, _MAX_DEVICES_TRIED // max(len(node.devices), 1))
        steps = max(_STEPS_OF_TRIAL, _STEPS_FOR_DEVICE * len(node.devices))
        held = {key: self._held[key] for key in node.devices if key in self._held}
        found: list[Change] = []
        began, are_all_tried, is_told = self._budget.now(), True, False
        for number, change in enumerate(_until_given_up(islice(node.candidates(claims), trials))):
            took = self._budget.now() - began
            if took > MAX_ADVICE_SECONDS and number >= _MIN_TRIALS:
                are_all_tried = False
                break
            if took > _PATIENCE and not is_told:
                is_told = True
                self.on_trials()
            if change.is_pair and found:
                break
            if change.kind and any(one.kind == change.kind for one in found):
                continue  # for example, a smaller count than the one that helps
            freed = {
                key: [one for one in held[key] if str(one) != change.holder]
                for key in node.held_by.get(change.holder, ())
            }
            situation = Situation(
                change.claims,
                refused.node,
                self._slices,
                {**held, **freed},
                {**self._classes, **change.classes} if change.classes else self._classes,
                self._matches,
                self._objects.features,
                max_steps=steps,
                release=self.releases[0],
                charge=self._budget.charge,
            )
            with suppress(UndecidedError):
                if Search(situation, pools).run() and self._is_found(situation):
                    found.append(change)
        return tuple(sorted(found, key=lambda one: one.rank)), are_all_tried


def _until_given_up(changes: Iterator[Change]) -> Iterator[Change]:
    with suppress(QuestionGivenUpError):
        yield from changes


def _all_of(pool: Pool) -> Iterator[PoolDevice]:
    """Yield the devices of a pool, including devices that a node cannot use."""
    yield from (device for _, device in pool.devices)
    yield from pool.elsewhere
