"""What a pod asks of nodes besides devices, and which nodes are out of the question for it.

Law: the filters are those of a scheduler, in its order, and a reason has its words. A node that one of them refuses is
never asked for devices, so nothing that is wrong with its devices can stop the pod.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from attrs import evolve, field, frozen

from devicecore.domain.allocation.model import DeviceToleration, Taint, TargetNode
from devicecore.domain.allocation.node_selectors import node_selector
from devicecore.domain.allocation.search import REPELLING_EFFECTS
from devicecore.domain.documents import Value
from devicecore.domain.model import Pod, PodUid, is_extended_resource
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text, listed

_UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_MAX_NAMES = 3
_NOTHING = Quantity(0)

Sizes = Mapping[str, Quantity]
"""Amounts by resource."""


@frozen
class ClusterNode:
    """What a Node says that decides which pods it takes. `allocatable` and `capacity` have resources of all kinds."""

    target: TargetNode
    taints: tuple[Taint, ...] = ()
    is_cordoned: bool = False
    allocatable: Sizes = field(factory=dict)
    capacity: Sizes = field(factory=dict)

    @classmethod
    def of(cls, node: Value) -> "ClusterNode":
        """Return what a Node says. Raises DocumentError if a field has the wrong type."""
        metadata, spec = node["metadata"], node["spec"]
        labels = {name: one.text("") for name, one in metadata["labels"].mapping().items()}
        taints = tuple(
            Taint(one["key"].text(""), one["value"].text(""), one["effect"].text(""))
            for one in spec["taints"].sequence()
        )
        sizes, capacity = (
            {name: one.amount() for name, one in node["status"][which].mapping().items()}
            for which in ("allocatable", "capacity")
        )
        target = TargetNode(metadata["name"].text(""), labels)
        return cls(target, taints, spec["unschedulable"].boolean(), sizes, capacity)


@frozen
class BoundPod:
    """What a pod that a node has takes from it."""

    uid: str
    node: str
    sizes: Sizes
    priority: int
    name: str


@frozen
class Obstacle:
    """Why a scheduler does not try the devices of a node for a pod.

    Attributes:
        says: the scheduler's words.
        because: what the pod asks for and what the node has.
        cure: after what the node is no longer out of the question.
    """

    says: str
    because: str
    cure: str

    def __str__(self) -> str:
        return f"{self.says}: {self.because}"


@frozen
class PodAsks:
    """What a pod asks of nodes.

    Attributes:
        name: `namespace/name`.
        uid: empty if it was not read.
        node: the node that its spec names.
        labels: the labels of `nodeSelector`.
        accepts: whether the required node affinity accepts a node; None if there is none.
        affinity: the requirements of that affinity, as text.
        tolerations: of taints of nodes.
        sizes: what it requests of each resource at its peak.
        gates: the scheduling gates that it still has.
        priority: decides which pods it may preempt.
        preempts: whether it preempts any.
        said: what the scheduler said last in the condition PodScheduled; empty if the pod has none that is False.
        unjudged: what else a scheduler looks at, and is not looked at here.
    """

    name: str
    uid: str = ""
    node: str = ""
    labels: Mapping[str, str] = field(factory=dict)
    accepts: Callable[[TargetNode], bool] | None = field(default=None, eq=False)
    affinity: str = ""
    tolerations: tuple[DeviceToleration, ...] = ()
    sizes: Sizes = field(factory=dict)
    gates: tuple[str, ...] = ()
    said: str = ""
    priority: int = 0
    preempts: bool = True
    unjudged: tuple[str, ...] = ()

    @classmethod
    def of(cls, pod: Value) -> "PodAsks":
        """Return what a pod asks for. Raises DocumentError if a field has the wrong type."""
        metadata, spec = pod["metadata"], pod["spec"]
        required = spec["affinity"]["nodeAffinity"][_REQUIRED]
        conditions = pod["status"]["conditions"].sequence()
        said = (one["message"].text("") for one in conditions if _is_unscheduled(one))
        return cls(
            f"{metadata['namespace'].text('default')}/{metadata['name'].text('')}",
            metadata["uid"].text(""),
            spec["nodeName"].text(""),
            {name: one.text() for name, one in spec["nodeSelector"].mapping().items()},
            None if required.data is None else node_selector(required),
            _written(required),
            tuple(
                DeviceToleration(
                    one["key"].text(""), one["operator"].text("Equal"), one["value"].text(""), one["effect"].text("")
                )
                for one in spec["tolerations"].sequence()
            ),
            sizes_of(spec),
            tuple(one["name"].text("") for one in spec["schedulingGates"].sequence()),
            next(said, ""),
            priority_of(spec),
            spec["preemptionPolicy"].text("") != "Never",
            tuple(_unjudged(spec)),
        )

    def without_plugins(self) -> "PodAsks":
        """Return what the pod asks for without the devices of plugins."""
        return evolve(self, sizes={name: of for name, of in self.sizes.items() if not is_extended_resource(name)})

    def needs_node(self, served: Iterable[str]) -> str:
        """Return what the pod asks for that only a Node tells. The result is empty if that is nothing."""
        if self.labels or self.accepts is not None:
            return "the labels that the pod selects"
        wanted = (name for name, size in self.sizes.items() if size.nanos and is_extended_resource(name))
        lacking = [name for name in wanted if name not in served]
        return listed(lacking, _MAX_NAMES)

    def obstacle(self, node: ClusterNode) -> Obstacle | None:
        """Return why the node is out of the question. Return None if it is not.

        The order is that of the filters in the scheduler's default profile: NodeUnschedulable, NodeName,
        TaintToleration, NodeAffinity.
        """
        if node.is_cordoned and not self._tolerates(_UNSCHEDULABLE):
            cure = f"node {node.target.name} is uncordoned"
            return Obstacle("node(s) were unschedulable", "the node is cordoned", cure)
        if self.node and self.node != node.target.name:
            because = f"the pod names node {foreign_text(self.node)}"
            return Obstacle("node(s) didn't match the requested node name", because, "the pod names no node")
        for taint in node.taints:
            if taint.effect in REPELLING_EFFECTS and not self._tolerates(taint):
                shown = foreign_text(str(taint))
                cure = f"the pod tolerates {shown}, or node {node.target.name} does not have this taint"
                if taint == _UNSCHEDULABLE:
                    cure = f"node {node.target.name} is uncordoned"
                return Obstacle("node(s) had untolerated taint(s)", f"the pod does not tolerate {shown}", cure)
        says = "node(s) didn't match Pod's node affinity/selector"
        for name, value in self.labels.items():
            has = node.target.labels.get(name)
            if has != value:
                it = "has no such label" if has is None else f"has {foreign_text(f'{name}={has}')}"
                label = foreign_text(f"{name}={value}")
                cure = f"the nodeSelector of the pod does not want {label}, or node {node.target.name} has this label"
                return Obstacle(says, f"the pod selects {label}, and the node {it}", cure)
        if self.accepts is not None and not self.accepts(node.target):
            cure = f"the pod's affinity accepts node {node.target.name}"
            return Obstacle(says, f"the pod's affinity requires {foreign_text(self.affinity)}", cure)
        return None

    def shortage(self, node: ClusterNode, bound: Sequence[BoundPod] | None, served: Iterable[str]) -> Obstacle | None:
        """Return which resource a node has too little of (scheduler: `fitsRequest`). Return None if it has enough.

        Args:
            node: the node.
            bound: the pods that the node has; None if they were not read, so that it is taken as empty.
            served: the resources that a claim serves on this node.
        """
        if not node.allocatable:  # of a node that only slices name nothing is known
            return None
        others = [one for one in bound or () if one.uid != self.uid or not self.uid]
        used = {name: sum(one.sizes.get(name, _NOTHING).nanos for one in others) for name in self.sizes}
        left = node.allocatable.get("pods")
        if left is not None and bound is not None and len(others) + 1 > left.whole:
            return Obstacle("Too many pods", f"the node has {len(others)} of {left}", "a pod of the node ends")
        for name, size in self.sizes.items():
            has = node.allocatable.get(name, _NOTHING)
            if name in set(served) or not size.nanos:
                continue
            if size.nanos > has.nanos - used[name]:
                shown, rest = foreign_text(name), Quantity(max(0, has.nanos - used[name]), has.binary)
                amount = f"has {has}" if not used[name] else f"has {rest} of {has} left"
                cure = f"the pod requests at most {rest} of {shown}" if rest.nanos else f"the pod requests no {shown}"
                if used[name]:
                    cure += f", or pods of node {node.target.name} end"
                return Obstacle(f"Insufficient {shown}", f"the pod requests {size}, and the node {amount}", cure)
        return None

    def victims(self, node: ClusterNode, bound: Sequence[BoundPod], served: Sequence[str]) -> tuple[BoundPod, ...]:
        """Return the pods that a scheduler preempts so that a node has enough. There are none if that does not help.

        It takes all pods of lower priority away, and gives those back for which there is room, the most important ones
        first (scheduler: `SelectVictimsOnNode`).
        """
        lower = sorted((one for one in bound if one.priority < self.priority), key=lambda one: -one.priority)
        kept = [one for one in bound if one.priority >= self.priority]
        if not self.preempts or not lower or self.shortage(node, kept, served) is not None:
            return ()
        chosen = []
        for one in lower:
            if self.shortage(node, [*kept, one], served) is None:
                kept.append(one)
            else:
                chosen.append(one)
        return tuple(chosen)

    def _tolerates(self, taint: Taint) -> bool:
        return any(one.tolerates(taint) for one in self.tolerations)


def _unjudged(spec: Value) -> Iterator[str]:
    """Yield what else a scheduler checks for this pod."""
    affinity = spec["affinity"]
    if affinity["podAffinity"][_REQUIRED].sequence():
        yield "its affinity to other pods"
    if affinity["podAntiAffinity"][_REQUIRED].sequence():
        yield "its anti-affinity to other pods"
    spreads = spec["topologySpreadConstraints"].sequence()
    if any(one["whenUnsatisfiable"].text("DoNotSchedule") == "DoNotSchedule" for one in spreads):
        yield "its topology spread constraints"
    containers = (*spec["containers"].sequence(), *spec["initContainers"].sequence())
    ports = [one["hostPort"].integer(0) for of in containers for one in of["ports"].sequence()]
    if any(ports):
        yield f"whether its host ports are free: {listed([str(one) for one in ports if one], _MAX_NAMES)}"
    volumes = [one["persistentVolumeClaim"]["claimName"].text("") for one in spec["volumes"].sequence()]
    if any(volumes):
        yield f"where the volumes are of PersistentVolumeClaim {foreign_text(listed(list(filter(None, volumes)), 3))}"
    if (name := spec["schedulerName"].text("")) not in {"", "default-scheduler"}:
        yield f"the rules of its own scheduler, {foreign_text(name, 100)}"


def _is_unscheduled(condition: Value) -> bool:
    return condition["type"].data == "PodScheduled" and condition["status"].data == "False"


def _written(selector: Value) -> str:
    """Return a node selector as people read it: alternatives with `or`, requirements with `and`."""
    terms = []
    for term in selector["nodeSelectorTerms"].sequence():
        parts = [
            f"{one['key'].text('')} {one['operator'].text('')} "
            f"{listed([value.text('') for value in one['values'].sequence()], _MAX_NAMES)}".rstrip()
            for name in ("matchExpressions", "matchFields")
            for one in term[name].sequence()
        ]
        terms.append(" and ".join(parts))
    return " or ".join(terms)


def bound_pod(pod: Value) -> BoundPod | None:
    """Return what a pod takes from the node that has it. Return None if no node has it, or if it has ended."""
    node = pod["spec"]["nodeName"].text("")
    if not node or pod["status"]["phase"].text("") in {"Succeeded", "Failed"}:
        return None
    metadata = pod["metadata"]
    name = f"{metadata['namespace'].text('default')}/{metadata['name'].text('')}"
    return BoundPod(PodUid(metadata["uid"].text("")), node, sizes_of(pod["spec"]), priority_of(pod["spec"]), name)


_CRITICAL = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def priority_of(spec: Value) -> int:
    """Return the priority of a pod, which an API server writes. A manifest may have the name of its class alone."""
    given = spec["priority"]
    return given.integer(0) if given.data is not None else _CRITICAL.get(spec["priorityClassName"].text(""), 0)


def sizes_of(spec: Value) -> dict[str, Quantity]:
    """Return what a pod requests of each resource at its peak (Kubernetes: `PodRequests`).

    Sidecars run beside all later init containers and beside the app containers. What the pod as a whole requests
    replaces the sum of its containers, and its overhead is added. A limit without a request is a request, as the API
    server writes it.
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    binary: dict[str, bool] = {}

    def together(container: Value) -> dict[str, int]:
        sizes = {name: one.amount() for name, one in _requests(container["resources"])}
        binary.update({name: size.binary for name, size in sizes.items()})
        return {name: running.get(name, 0) + sizes.get(name, _NOTHING).nanos for name in {**running, **sizes}}

    for container in spec["initContainers"].sequence():
        beside = together(container)
        peak = _larger(peak, beside)
        if container["restartPolicy"].text("") == "Always":
            running = beside
    for container in spec["containers"].sequence():
        running = together(container)
    found = {name: Quantity(nanos, binary[name]) for name, nanos in _larger(peak, running).items()}
    found |= {name: one.amount() for name, one in _requests(spec["resources"])}
    for name, one in spec["overhead"].mapping().items():
        size = one.amount()
        found[name] = Quantity(found.get(name, _NOTHING).nanos + size.nanos, size.binary)
    return found


def _requests(resources: Value) -> Iterator[tuple[str, Value]]:
    yield from {**resources["limits"].mapping(), **resources["requests"].mapping()}.items()


def _larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def cost_of(victims: Sequence[BoundPod]) -> tuple[int, int, int]:
    """Return by what a scheduler compares the victims of nodes, the least first (`pickOneNodeForPreemption`)."""
    return max(one.priority for one in victims), sum(one.priority + 2**31 for one in victims), len(victims)


_REFUSES = "an API server refuses the pod"


def why_refused(pod: Pod) -> str:
    """Return why an API server would refuse a pod because of its devices. The result is empty if it takes the pod."""
    for one in pod.in_start_order:
        for resource, size in one.requests.items():
            if is_extended_resource(resource):
                limit = f"a limit of {one.limits[resource]}" if resource in one.limits else "no limit of it"
                return (
                    f"{_REFUSES}: container {one.name} requests {size} of {resource} and has "
                    f"{limit}. Write the resource under limits, with the same number"
                )
    return _refused_claims(pod)


def _refused_claims(pod: Pod) -> str:
    entries = [claim.name for claim in pod.claims]
    for claim in pod.claims:
        if claim.claim is None and claim.template is None:
            return (
                f"{_REFUSES}: its claim {claim.name} names neither resourceClaimName nor "
                "resourceClaimTemplateName. Write one of them beside its name; Kubernetes before 1.31 had them below "
                "the field source"
            )
        if claim.claim is not None and claim.template is not None:
            return f"{_REFUSES}: its claim {claim.name} names a claim and a template. Write one of them only"
        if entries.count(claim.name) > 1:
            return f"{_REFUSES}: spec.resourceClaims has {foreign_text(claim.name, 100)} twice"
    for container in pod.in_start_order:
        for used in container.claims:
            if used.name not in entries:
                near = get_close_matches(used.name, entries, 1)
                hint = f"Did you mean {near[0]}?" if near else f"It has {listed(entries, _MAX_NAMES) or 'none'}."
                wrong = f"container {container.name} uses the claim {foreign_text(used.name, 100)}"
                return f"{_REFUSES}: {wrong}, which is not in spec.resourceClaims. {hint}"
    return ""


def decides_itself(said: str) -> bool:
    """Return whether each reason in the scheduler's sentence is one that is judged here, so that it may be outdated.

    Of any other reason, such as a volume or a port, only the scheduler knows.
    """
    reasons = said.partition(" nodes are available: ")[2].partition(". preemption:")[0].rstrip(".")
    parts = [one.strip().lstrip("0123456789 ") for one in reasons.split(", ")]
    return bool(reasons) and all(one.startswith(_JUDGED) for one in parts)


_JUDGED = (
    "cannot allocate all claims",
    "resourceclaim not available on the node",
    "node(s) didn't match Pod's node affinity/selector",
    "node(s) didn't match the requested node name",
    "node(s) had untolerated taint",
    "node(s) were unschedulable",
)
