"""Which devices ResourceClaims get on the nodes of a cluster or on one node, and which small changes help if none.

Laws: Every answer and every proposed change is the result of a trial with `devicecore.domain.allocation`. A claim of a
pod about which a needed object was not read, or whose expression cannot be evaluated here, is not decided but named.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cached_property
from itertools import count, islice, repeat
from operator import itemgetter
from typing import NamedTuple

from attrs import evolve, field, frozen

from devicecore.domain.allocation import (
    DeviceAllocation,
    DeviceClass,
    DeviceKey,
    Features,
    Held,
    NoAllocation,
    PoolDevice,
    PoolSlice,
    Release,
    Slices,
    TargetNode,
    UnallocatedClaim,
    UndecidedError,
    allocate,
    by_device,
    claim_of,
    class_of,
    held_by,
    node_of,
    slice_of,
)
from devicecore.domain.allocation.capacity import by_own_names
from devicecore.domain.allocation.faults import Cause
from devicecore.domain.allocation.model import DeviceRequest, Taint, Use
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
from devicecore.domain.capacity import pod_request
from devicecore.domain.documents import Value
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import Pod, is_extended_resource
from devicecore.domain.quantity import Quantity
from devicecore_tools.doctor.pod.claim_changes import Change, Refused
from devicecore_tools.doctor.pod.expression_edits import wanted_drivers
from devicecore_tools.doctor.reading.taint_rules import TaintRule, added_taints, rule_of
from devicecore_tools.expressions import Expressions

MAX_TRIALS = 250
"""Changes that are tried, which bounds the time. They are fewer on a node with more than 4,000 devices."""

MAX_PODS = 256
"""Consumers for which an API server accepts the reservation of a claim."""

_MAX_DEVICES_TRIED = 1_000_000  # by all trials together
_STEPS_OF_TRIAL = 20_000
_STEPS_FOR_DEVICE = 3  # so that the search sees each device of a large node

OF_TEMPLATE = "of ResourceClaimTemplate "
"""How a claim is called that a template makes: by it, because nobody knows its name before there is a pod."""

_IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""How the resource begins that each DeviceClass serves by its own name."""


@frozen
class ClusterObjects:
    """What decides about claims, as far as it is known."""

    slices: tuple[PoolSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    nodes: tuple[TargetNode, ...] = ()
    held: tuple[Held, ...] = ()
    extended: Mapping[str, str] = {}  # the DeviceClass of each extended resource that a class serves
    claims: Mapping[str, Value] = {}  # by `namespace/name`, as the templates
    templates: Mapping[str, UnallocatedClaim] = {}
    versions: tuple[str, ...] = ()  # of the kubelets
    rules: Mapping[str, TaintRule] = {}  # by name
    plugins: Mapping[str, frozenset[str]] = {}  # the extended resources of which a node has some, by its name

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases that the scheduler may be of: none that is older than a kubelet. The newest comes first."""
        known = [release for one in self.versions if (release := Release.of(one)) is not None]
        order = list(Release)
        oldest = max(map(order.index, known), default=0)
        return tuple(reversed(order[oldest:]))

    @cached_property
    def devices(self) -> Mapping[DeviceKey, PoolDevice]:
        """All devices that are published."""
        return {device.key: device for one in self.slices for device in one.devices}

    def target_nodes(self, only: str | None = None) -> list[TargetNode]:
        """Return the nodes to try: those that are known, or else those that slices name. A name picks one."""
        known = {one.name: one for one in self.nodes}
        named = {one.place.node for one in self.slices if one.place and one.place.node}
        named |= {device.place.node for one in self.slices for device in one.devices if device.place}
        for name in [only] if only else sorted(named - {""}) or ["the node"]:
            if only or not self.nodes:
                known.setdefault(name, TargetNode(name))
        return [one for name, one in sorted(known.items()) if only in (None, name)]


def objects_of(documents: Iterable[Value], kinds: Iterable[str] = repeat("")) -> ClusterObjects:
    """Return the objects in documents: lists of `kubectl get -o json`, or single objects. Other kinds are ignored.

    Of objects of one kind and name, such as those of a file that is given twice, the first counts.

    Args:
        documents: lists or objects.
        kinds: the kind of the objects of each document that do not say it themselves, as those in a list of an API
            server do not.

    Raises:
        DocumentError: an object has a field of the wrong type.
    """
    slices: dict[str, PoolSlice] = {}
    classes: dict[str, tuple[str, str, DeviceClass]] = {}  # with the time of its creation, and the resource it serves
    nodes: dict[str, tuple[TargetNode, str]] = {}  # with the version of its kubelet
    claims: dict[str, Value] = {}
    templates: dict[str, UnallocatedClaim] = {}
    rules: dict[str, TaintRule] = {}
    plugins: dict[str, frozenset[str]] = {}
    given, numbers = iter(kinds), count()
    for document in documents:
        kind = next(given, "")
        for item in document["items"].sequence() if document["items"].data is not None else [document]:
            metadata = item["metadata"]
            own = metadata["name"].text("")
            name = f"{metadata['namespace'].text('default')}/{own}" if own else str(next(numbers))
            match item["kind"].text(kind):
                case "ResourceSlice" if name not in slices:
                    slices[name] = slice_of(item)
                case "DeviceClass" if name not in classes:
                    created = item["metadata"]["creationTimestamp"].text("")
                    classes[name] = created, item["spec"]["extendedResourceName"].text(""), class_of(item)
                case "Node" if name not in nodes:
                    nodes[name] = node_of(item), item["status"]["nodeInfo"]["kubeletVersion"].text("")
                    if there := _plugin_resources(item):
                        plugins[nodes[name][0].name] = there
                case "ResourceClaim" if name not in claims:
                    claims[name] = item
                case "ResourceClaimTemplate" if name not in templates:
                    templates[name] = template_of(item)
                case "DeviceTaintRule" if name not in rules:
                    rules[name] = rule_of(item)
        # Each file of a large cluster is forgotten before the next one is read.
        document = item = metadata = Value(None, "")  # noqa: PLW2901 - see above
    served = {resource: one.name for _, resource, one in sorted(classes.values(), key=itemgetter(0))}
    served |= {_IMPLICIT + one.name: one.name for _, _, one in classes.values()}
    return ClusterObjects(
        tuple(_tainted(one, tuple(rules.values())) for one in slices.values()),
        tuple(one for _, _, one in classes.values()),
        tuple(node for node, _ in nodes.values()),
        tuple(held for one in claims.values() for held in held_by(one)),
        served,
        claims,
        templates,
        tuple(version for _, version in nodes.values()),
        {name.partition("/")[2]: rule for name, rule in rules.items()},
        plugins,
    )


def _plugin_resources(node: Value) -> frozenset[str]:
    """Return the extended resources of which a Node has some."""
    amounts = node["status"]["allocatable"].mapping().items()
    return frozenset(name for name, amount in amounts if is_extended_resource(name) and amount.quantity())


def template_of(template: Value) -> UnallocatedClaim:
    """Return what the claims of a ResourceClaimTemplate ask for. Raises DocumentError as `claim_of` does."""
    fields = {name: template[name].data for name in ("apiVersion", "metadata")}
    return claim_of(Value({**fields, "spec": template["spec"]["spec"].data}, template, "spec"))


def _tainted(one: PoolSlice, rules: Sequence[TaintRule]) -> PoolSlice:
    """Return a slice with the taints that rules add to its devices."""

    def with_taints(device: PoolDevice) -> PoolDevice:
        added = added_taints(device.key, rules)
        return evolve(device, taints=(*device.taints, *added)) if added else device

    return evolve(one, devices=tuple(map(with_taints, one.devices))) if rules else one


@frozen
class ClaimsDecision:
    """What is known of a pod's claims.

    Attributes:
        problem: why they get no devices; empty if they do.
        undecided: the claims that could not be decided.
        drivers: the drivers of the devices that claims would get, by `namespace/name` of the claim.
    """

    problem: str = ""
    undecided: tuple[str, ...] = ()
    drivers: Mapping[str, Sequence[str]] = field(factory=dict)


def _name(one: Value) -> str:
    return f"{one['metadata']['namespace'].text('default')}/{one['metadata']['name'].text('')}"


@frozen
class AllocatedClaim:
    """What a claim has.

    Attributes:
        name: `namespace/name`.
        devices: each device with the name of its request.
        nodes: the nodes on which the devices can be used, as far as they are known; None if on all.
        pods: for which the claim is reserved.
    """

    name: str
    devices: tuple[tuple[str, str], ...]
    nodes: tuple[str, ...] | None
    pods: tuple[str, ...]


def allocated_claim(claim: Value, nodes: Iterable[TargetNode]) -> AllocatedClaim | None:
    """Return what a claim has, as its status says. The result is None if it has nothing.

    Raises DocumentError if a field has the wrong type.
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
        usable = tuple(name for name, node in sorted(known.items()) if accepts(node))
    pods = tuple(consumer["name"].text("") for consumer in claim["status"]["reservedFor"].sequence())
    return AllocatedClaim(_name(claim), devices, usable, pods)


class Outcome(Enum):
    """What a scheduler does with claims. The value is the exit status of commands."""

    FITS = 0
    FITS_NOT = 1
    UNKNOWN = 3
    MISSED = 4  # the rules allow it, but a scheduler of a release in question does not find it


class ClaimAnswer(NamedTuple):
    """What a node says of claims, and the changes after which it says yes, if it says no.

    Attributes:
        causes: why a scheduler answers otherwise, by the release in question.
    """

    node: TargetNode
    answer: DeviceAllocation | NoAllocation
    changes: tuple[Change, ...] = ()
    causes: Mapping[str, tuple[Cause, ...]] = {}

    @property
    def fits(self) -> bool:
        """Whether the claims may have devices by the rules."""
        return isinstance(self.answer, DeviceAllocation)

    @property
    def outcome(self) -> Outcome:
        """What a scheduler does."""
        if isinstance(self.answer, DeviceAllocation):
            return Outcome.MISSED if self.causes or self.answer.causes else Outcome.FITS
        if self.answer.is_unknown:
            return Outcome.UNKNOWN
        return Outcome.FITS if self.answer.causes else Outcome.FITS_NOT

    @property
    def fitting(self) -> int:
        """How many devices fit a request each, if they are not beside others."""
        return sum(
            one.reason is None or isinstance(one.reason, ConstraintBroken | TakenBefore) for one in self.verdicts
        )

    @property
    def refusal(self) -> NoAllocation | None:
        """Why there are no devices. It is None if there are some."""
        return self.answer if isinstance(self.answer, NoAllocation) else None

    @property
    def verdicts(self) -> Sequence[DeviceVerdict]:
        """The reasons against devices. There are none if the claims get some."""
        return () if self.refusal is None else self.refusal.verdicts


class OverCommitted(NamedTuple):
    """A counter of which more is in use than there is, and who uses it."""

    pool: Pool
    counter: str
    total: Quantity
    used: Quantity
    holders: tuple[str, ...]


class ClaimTrial:
    """Tries claims on the nodes of a cluster.

    Args:
        objects: what decides.
        releases: those that the scheduler of the cluster may be of, the most probable one first. Without them, those
            that the kubelets allow.
        sources: where the objects are from, such as `in slices.json`.
    """

    def __init__(self, objects: ClusterObjects, releases: Sequence[Release] = (), sources: Sequence[str] = ()) -> None:
        self.releases: Sequence[Release] = releases or objects.releases
        self._sources = tuple(sources)
        self._objects = objects
        self._slices = Slices(objects.slices)
        self._held = by_device(objects.held)
        self._classes = {one.name: one for one in objects.classes}
        self._matches = Expressions()

    @classmethod
    def of_record(cls, documents: Mapping[str, object]) -> "ClaimTrial | None":
        """Return a trial on the node of a record, by the names of its files. It is None if one was not read."""
        from devicecore_tools.doctor.reading.record import CLAIMS, CLASSES, NODE, RULES, SLICES

        kinds = {NODE: "Node", SLICES: "ResourceSlice", CLAIMS: "ResourceClaim", CLASSES: "DeviceClass"}
        if any(documents.get(name) is None for name in kinds):
            return None
        if RULES in documents:
            kinds[RULES] = "DeviceTaintRule"
        try:
            return cls(objects_of([Value(documents[name], name) for name in kinds], kinds.values()))
        except DocumentError:
            return None

    @property
    def objects(self) -> ClusterObjects:
        """What decides."""
        return self._objects

    @property
    def lacks_library(self) -> bool:
        """Whether an expression could not be evaluated because the library for CEL is not installed."""
        return self._matches.lacks_library

    def unpublished(self, answer: DeviceAllocation) -> list[Held]:
        """Return devices that are allocated and published no more, of pools with counters that an answer uses."""
        pools = {(one.key.driver, one.key.pool) for one in answer.taken if one.candidate.device.counters}
        held = (one for device, of in self._held.items() if device[:2] in pools for one in of)
        return [one for one in held if one.device not in self._objects.devices]

    def class_for(self, resource: str) -> str | None:
        """Return the DeviceClass that serves an extended resource if no plugin does. Of several it is the newest."""
        return self._objects.extended.get(resource)

    def extended_claim(self, pod: Pod, resources: Iterable[str]) -> UnallocatedClaim | None:
        """Return the claim that a scheduler makes for those resources that DeviceClasses serve. It is None for none."""
        sizes = pod_request(pod)
        found = [(name, served) for name in resources if sizes.get(name) and (served := self.class_for(name))]
        requests = tuple((DeviceRequest(name, "", served, count=sizes[name]),) for name, served in found)
        return UnallocatedClaim(f"{pod.namespace}/{pod.name}-extended-resources", requests) if requests else None

    def nodes_with_plugins(self, resources: Iterable[str]) -> list[str]:
        """Return the nodes that have some of the resources by a device plugin, which comes first there."""
        return sorted(name for name, of in self._objects.plugins.items() if not of.isdisjoint(resources))

    def decide(self, pod: str, names: Iterable[str], extended: UnallocatedClaim | None = None) -> ClaimsDecision:
        """Return what the node of a record says of the claims of one pod.

        Args:
            pod: its name.
            names: of its ResourceClaims, `namespace/name`.
            extended: the claim that a scheduler makes for the extended resources that DeviceClasses serve.
        """
        asked, node = tuple(names), self.node("")
        missing = tuple(name for name in asked if name not in self._objects.claims)
        try:
            found = [(name, self._unallocated(name)) for name in asked if name not in missing]
        except DocumentError:
            return ClaimsDecision(undecided=asked)
        wanted = {name: claim for name, claim in found if claim is not None}
        if extended is not None:
            wanted[extended.name] = extended
            asked = (*asked, extended.name)
        if node is None:
            return ClaimsDecision(undecided=asked)
        if problem := self.unusable((name for name, _ in found), node, pod):
            return ClaimsDecision(problem)
        if not wanted:
            return ClaimsDecision(undecided=missing)
        answer = self._allocate([*wanted.values()], node)
        if isinstance(answer, NoAllocation):
            problem = "" if answer.is_error else f"cannot allocate all claims: {answer}"
            return ClaimsDecision(problem, missing if problem else asked)
        given = ([taken.key.driver for taken in answer.devices(number)] for number in range(len(wanted)))
        drivers = {name: tuple(dict.fromkeys(of)) for name, of in zip(wanted, given, strict=True)}
        return ClaimsDecision(undecided=missing, drivers=drivers)

    def _unallocated(self, name: str) -> UnallocatedClaim | None:
        """Return the claim called so. The result is None if it is allocated already."""
        claim = self._objects.claims[name]
        return claim_of(claim) if claim["status"]["allocation"].data is None else None

    def asks_for_capacity(self, claim: str) -> bool:
        """Return whether a stored claim asks for capacity."""
        known = self._objects.claims.get(claim)
        return known is not None and any(one.capacity for one in claim_of(known).alternatives)

    @property
    def has_classes(self) -> bool:
        """Whether a DeviceClass is known, without which no claim can be decided."""
        return bool(self._objects.classes)

    def unusable(self, names: Iterable[str], node: TargetNode, pod: str) -> str:
        """Return why the pod called so cannot run on a node with these claims. Empty means that no reason is known."""
        for name, claim in ((name, self._objects.claims.get(name)) for name in names):
            if claim is None:
                continue
            allocated = allocated_claim(claim, [node])
            if claim["metadata"]["deletionTimestamp"].data is not None and (not allocated or pod not in allocated.pods):
                return f"ResourceClaim {name} is being deleted"
            is_here = not allocated or allocated.nodes is None or node.name in allocated.nodes
            if allocated and len(allocated.pods) >= MAX_PODS and pod not in allocated.pods:
                return (
                    f"ResourceClaim {name} is reserved for {len(allocated.pods)} pods already, and no more may use it"
                )
            if node in self._objects.nodes and not is_here:
                return f"ResourceClaim {name} is allocated, and its devices cannot be used on this node"
        return ""

    def allocated(self, claim: Value) -> AllocatedClaim | None:
        """Return what the cluster's claim of the same name has. Without one, or if it has nothing, it is None."""
        known, uid = self._objects.claims.get(_name(claim)), claim["metadata"]["uid"].data
        if known is None or uid not in (None, known["metadata"]["uid"].data):
            return None
        return allocated_claim(known, self._objects.target_nodes())

    def unallocated_claims(self, pod: Pod) -> list[UnallocatedClaim]:
        """Return the claims of a pod that are not allocated yet, in the pod's order.

        Raises ValueError if a claim is not known, or cannot be read.
        """
        found: list[UnallocatedClaim] = []
        for entry in pod.claims:
            name = entry.claim or pod.generated_claims.get(entry.name)
            key = f"{pod.namespace}/{name}"
            if name is not None and key in self._objects.claims:
                made = f"{key} {OF_TEMPLATE}{pod.namespace}/{entry.template}" if entry.template else key
                found += [evolve(one, name=made) for one in [self._unallocated(key)] if one is not None]
            elif (template := self._objects.templates.get(f"{pod.namespace}/{entry.template}")) is not None:
                name = f"{entry.name} {OF_TEMPLATE}{pod.namespace}/{entry.template}"
                found.append(evolve(template, name=name))
            else:
                kind, wanted = ("ResourceClaim", name) if name else ("ResourceClaimTemplate", entry.template)
                places = ", and not ".join(self._sources) or "known"
                message = f"the pod names the {kind} {pod.namespace}/{wanted}, which is not {places}"
                raise ValueError(message)
        return found

    def claims_named_by(self, pod: Pod) -> list[str]:
        """Return the known claims that a pod needs, `namespace/name`."""
        keys = [f"{pod.namespace}/{one.claim or pod.generated_claims.get(one.name)}" for one in pod.claims]
        return [key for key in keys if key in self._objects.claims]

    def allocated_claims(self, pod: Pod) -> list[AllocatedClaim]:
        """Return what the claims of a pod have that are allocated."""
        known = [self._objects.claims[key] for key in self.claims_named_by(pod)]
        nodes = self._objects.target_nodes()
        return [found for one in known if (found := allocated_claim(one, nodes)) is not None]

    def node(self, name: str) -> TargetNode | None:
        """Return the node called so, or the only one that is known. The result is None if it is neither."""
        nodes = self._objects.target_nodes()
        named = [one for one in nodes if one.name == name] or nodes
        return named[0] if len(named) == 1 else None

    def answers(
        self,
        claims: Sequence[UnallocatedClaim],
        only: str | None = None,
        without: Container[str] = (),
        *,
        names: Sequence[str] = (),
        pod: str = "",
    ) -> list[ClaimAnswer]:
        """Return what each node says, the best answer first. If all say no, the first names what has to change.

        Args:
            claims: what to try.
            only: the name of the node to try, if not all.
            without: nodes that are not tried.
            names: all claims that the pod needs, `namespace/name`; one may keep it from a node whatever is tried.
            pod: the pod's name.
        """
        nodes = [one for one in self._objects.target_nodes(only) if one.name not in without]
        problems = {one.name: problem for one in nodes if (problem := self.unusable(names, one, pod))}
        found = [
            ClaimAnswer(one, NoAllocation(problems[one.name], is_error=True))
            if one.name in problems
            else ClaimAnswer(one, self._allocate(claims, one))
            for one in nodes
        ]
        found.sort(
            key=lambda one: (one.outcome is not Outcome.FITS, not one.fits, one.node.name in problems, -one.fitting)
        )
        if found and found[0].node.name not in problems:
            best = found[0]._replace(causes=self._causes(claims, found[0]))
            found[0] = best if best.fits else best._replace(changes=self._changes(claims, best, found))
        return found

    def _is_found(self, situation: Situation) -> bool:
        """Return whether schedulers of all releases in question find devices, if the rules allow them."""
        answers = (
            allocate(
                situation.claims,
                situation.node,
                self._slices,
                situation.held,
                situation.classes,
                matches=self._matches,
                release=release,
                max_steps=situation.max_steps,
            )
            for release in self.releases
        )
        return all(isinstance(one, DeviceAllocation) and not one.causes for one in answers)

    def _causes(self, claims: Sequence[UnallocatedClaim], answer: ClaimAnswer) -> Mapping[str, tuple[Cause, ...]]:
        """Return why schedulers of the releases in question answer otherwise."""
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
            release=release or self.releases[0],
        )

    def wants_driver(self, claims: Iterable[UnallocatedClaim], driver: str) -> bool:
        """Return whether an expression of claims or of their classes names a driver."""
        requests = [one for claim in claims for one in claim.alternatives]
        classes = [self._classes[one.device_class] for one in requests if one.device_class in self._classes]
        selectors = [*(one.selectors for one in requests), *(one.selectors for one in classes)]
        return any(driver in wanted_drivers(text) for texts in selectors for text in texts if text)

    def nodes_of(self, drivers: Iterable[str]) -> list[str]:
        """Return the nodes for which drivers publish something."""
        slices = [one for one in self._objects.slices if one.driver in drivers]
        named = {one.place.node for one in slices if one.place and one.place.node}
        known = {one.name for one in self._objects.nodes if any(each.targets(one) for each in slices)}
        return sorted(named | known)

    def pools(self, node: TargetNode) -> Sequence[Pool]:
        """Return the pools of which a node sees slices."""
        return self._slices.pools(node, Features())

    def holders(self, verdict: DeviceVerdict) -> list[str]:
        """Return who holds what a device lacks: shares of it, or devices of its pool that use the same counter."""
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
        """Return the DeviceTaintRule that gives a device a taint. The result is None if its driver does."""
        rules = (name for name, rule in self._objects.rules.items() if taint in added_taints(device, [rule]))
        return next(rules, None)

    def over_committed(self, node: TargetNode) -> Iterator[OverCommitted]:
        """Return the counters of the pools of a node of which more is in use than there is."""
        for pool in self.pools(node):
            used: dict[Use, int] = defaultdict(int)
            holders: dict[Use, list[str]] = defaultdict(list)
            for device in _all_of(pool):
                for use, amount in device.uses.items() if self._held.get(device.key) else ():
                    used[use] += amount.nanos
                    holders[use] += map(str, self._held[device.key])
            for use, nanos in used.items():
                total = pool.counters.get(use[0], {}).get(use[1])
                if total is not None and nanos > total.nanos:
                    names = tuple(dict.fromkeys(holders[use]))
                    yield OverCommitted(pool, "/".join(use), total, Quantity(nanos, total.binary), names)

    def refused(self, answer: ClaimAnswer, others: Iterable[ClaimAnswer] = ()) -> Refused:
        """Return what is known of a node that refuses claims. `others` are the answers of all nodes."""
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
        return Refused(answer.verdicts, devices, held_by, holders, self._classes, self._matches, frozenset(described))

    def _changes(
        self, claims: Sequence[UnallocatedClaim], refused: ClaimAnswer, others: Sequence[ClaimAnswer]
    ) -> tuple[Change, ...]:
        """Return the single changes after which the node gives the devices, a mistake that is mended first."""
        node, pools = self.refused(refused, others), self.pools(refused.node)
        trials = min(MAX_TRIALS, _MAX_DEVICES_TRIED // max(len(node.devices), 1))
        steps = max(_STEPS_OF_TRIAL, _STEPS_FOR_DEVICE * len(node.devices))
        held = {key: self._held[key] for key in node.devices if key in self._held}
        found: list[Change] = []
        for change in islice(node.candidates(claims), trials):
            if change.kind and any(one.kind == change.kind for one in found):
                continue  # such as a count that is smaller still
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
                max_steps=steps,
                release=self.releases[0],
            )
            with suppress(UndecidedError):
                if Search(situation, pools).run() and self._is_found(situation):
                    found.append(change)
        return tuple(sorted(found, key=lambda one: one.rank))


def _all_of(pool: Pool) -> Iterator[PoolDevice]:
    """Return the devices of a pool, also those that a node cannot use."""
    yield from (device for _, device in pool.devices)
    yield from pool.elsewhere
