"""Reads the pods on nodes and the objects that decide which other pods a node accepts.

Law: a pod's requests equal the amounts that an API server and a scheduler count for it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from attrs import field, frozen

from devicecore.domain.documents import Value
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import listed
from devicecore_tools.doctor.pod.pod_terms import NONE, Wishes
from devicecore_tools.doctor.reading.cluster_nodes import ENDED, Labels, Sizes, labels_of
from devicecore_tools.doctor.reading.label_selectors import object_selector

NOTHING = Quantity(0)


@frozen
class BoundPod:
    """The resources that a pod uses on its node, and its requirements concerning other pods.

    Attributes:
        name: `namespace/name`.
        is_ending: whether the pod is being deleted.
        started: when the kubelet accepted the pod, or an empty string if unknown.
        priority_class: its PriorityClass if the pod has no numeric priority yet, as in a manifest, or None.
        is_nominated: whether the scheduler reserves capacity on the node for it.
        volumes: the names of its PersistentVolumeClaims.
    """

    uid: str
    node: str
    sizes: Sizes
    priority: int
    name: str
    labels: Labels = field(factory=dict)
    wishes: Wishes = NONE
    is_ending: bool = False
    started: str = ""
    priority_class: str | None = None
    is_nominated: bool = False
    volumes: tuple[str, ...] = ()


@frozen
class Obstacle:
    """Why a scheduler does not try a node's devices for a pod.

    Attributes:
        says: the scheduler's message.
        because: the pod's request, and the state of the node that contradicts it.
        cure: the change after which the node is eligible.
        is_far: whether none of the requested resource is left on the node, so that other nodes are closer to a fit.
    """

    says: str
    because: str
    cure: str
    is_far: bool = False

    def __str__(self) -> str:
        return f"{self.says}: {self.because}"


@frozen
class PriorityClass:
    """A PriorityClass: the priority of its pods, and whether they preempt other pods."""

    value: int = 0
    preempts: bool = True
    is_default: bool = False

    @classmethod
    def of(cls, item: Value) -> "PriorityClass":
        """Read a PriorityClass object. Raises DocumentError if a field has the wrong type."""
        policy = item["preemptionPolicy"].text("")
        return cls(item["value"].integer(0), policy != "Never", item["globalDefault"].boolean())


@frozen
class DisruptionBudget:
    """A PodDisruptionBudget: how many of its pods may be disrupted now."""

    namespace: str
    selects: Callable[[Labels], bool] = field(eq=False)
    allowed: int
    counted: frozenset[str]

    @classmethod
    def of(cls, item: Value) -> "DisruptionBudget":
        """Read a PodDisruptionBudget object. Raises DocumentError if a field has the wrong type."""
        selector, status = item["spec"]["selector"], item["status"]
        is_empty = not any(selector[name].data for name in ("matchLabels", "matchExpressions"))
        return cls(
            item["metadata"]["namespace"].text("default"),
            (lambda _: False) if is_empty else object_selector(selector),
            status["disruptionsAllowed"].integer(0),
            frozenset(status["disruptedPods"].mapping()),
        )

    def matches(self, pod: BoundPod) -> bool:
        """Return whether evicting a pod counts as a disruption.

        A pod that is already being evicted was counted before.
        """
        namespace, _, name = pod.name.partition("/")
        is_here = namespace == self.namespace and name not in self.counted and bool(pod.labels)
        return is_here and self.selects(pod.labels)


CRITICAL = {
    "system-cluster-critical": PriorityClass(2_000_000_000),
    "system-node-critical": PriorityClass(2_000_001_000),
}
"""The PriorityClasses that exist in every cluster."""


def bound_pod(pod: Value) -> BoundPod | None:
    """Return a pod's use of its node, or of the node that it is nominated for.

    Return None if there is no such node, or if the pod has ended.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    nominated = pod["status"]["nominatedNodeName"].text("")
    node = spec["nodeName"].text("") or nominated
    if not node or pod["status"]["phase"].text("") in ENDED:
        return None
    given = spec["priority"].data is not None
    return BoundPod(
        metadata["uid"].text(""),
        node,
        sizes_of_bound(pod),
        spec["priority"].integer(0),
        f"{metadata['namespace'].text('default')}/{metadata['name'].text('')}",
        labels_of(metadata),
        Wishes.of(pod),
        metadata["deletionTimestamp"].data is not None,
        pod["status"]["startTime"].text(""),
        None if given else spec["priorityClassName"].text(""),
        not spec["nodeName"].text(""),
        tuple(volume_names(pod)),
    )


def sizes_of(spec: Value, *, with_own: bool = True) -> dict[str, Quantity]:
    """Return a pod's peak request for each resource (Kubernetes: `PodRequests`).

    Pod-level requests replace the sum of the containers' requests, unless `with_own` is False. The pod's overhead is
    added. A limit without a request counts as a request, because the API server adds that request.
    """
    found = _peak(spec, lambda container: _requests(container["resources"]))
    if with_own:
        found |= {name: one.amount() for name, one in _requests(spec["resources"])}
    return _with_overhead(found, spec)


def limits_of(spec: Value) -> dict[str, Quantity]:
    """Return a pod's peak limits (Kubernetes: `PodLimits`)."""
    found = _peak(spec, lambda container: container["resources"]["limits"].mapping().items())
    return found | {name: one.amount() for name, one in spec["resources"]["limits"].mapping().items()}


def sizes_of_bound(pod: Value) -> dict[str, Quantity]:
    """Return the resources that a pod uses on its node. Until a resize is complete, the larger size counts.

    If the kubelet reports a resize as infeasible, the new size is ignored (Kubernetes: `PodRequests`,
    UseStatusResources).
    """
    spec, status = pod["spec"], pod["status"]
    seen: dict[object, Value] = {
        one["name"].data: one for of in _STATUSES for one in status[of].sequence() if isinstance(one["name"].data, str)
    }

    def allocated(container: Value) -> Iterable[tuple[str, Value]]:
        found = seen[name]["allocatedResources"] if (name := container["name"].data) in seen else None
        return _requests(container["resources"]) if found is None or not found.data else found.mapping().items()

    def actuated(container: Value) -> Iterable[tuple[str, Value]]:
        found = seen[name]["resources"]["requests"] if (name := container["name"].data) in seen else None
        return allocated(container) if found is None or not found.data else found.mapping().items()

    if not any(_is_resized(one, seen) for one in containers_of(spec)):
        return sizes_of(spec)
    pending = (one for one in status["conditions"].sequence() if one["type"].data == "PodResizePending")
    is_infeasible = any(one["reason"].data == "Infeasible" for one in pending)
    found = [_peak(spec, allocated), _peak(spec, actuated)]
    if not is_infeasible:
        found.append(sizes_of(spec, with_own=False))
    names = dict.fromkeys(name for of in found for name in of)
    largest = {name: max((of.get(name, NOTHING) for of in found), key=lambda one: one.nanos) for name in names}
    return _with_overhead(largest | {name: one.amount() for name, one in _requests(spec["resources"])}, spec)


def volume_names(pod: Value) -> Iterator[str]:
    """Yield the names of a pod's PersistentVolumeClaims, including those that are created for it."""
    name = pod["metadata"]["name"].text("")
    for one in volumes_with_claims(pod):
        yield one["persistentVolumeClaim"]["claimName"].text("") or f"{name}-{one['name'].text('')}"


def volumes_with_claims(pod: Value) -> Iterator[Value]:
    """Yield a pod's volumes that refer to PersistentVolumeClaims."""
    for one in pod["spec"]["volumes"].sequence():
        if one["persistentVolumeClaim"]["claimName"].text("") or one["ephemeral"].data is not None:
            yield one


def written_selector(selector: Value) -> str:
    """Return a node selector in readable form: alternatives with `or`, requirements with `and`."""
    terms = []
    for term in selector["nodeSelectorTerms"].sequence():
        parts = [
            f"{one['key'].text('')} {one['operator'].text('')} "
            f"{listed([value.text('') for value in one['values'].sequence()], 3)}".rstrip()
            for name in ("matchExpressions", "matchFields")
            for one in term[name].sequence()
        ]
        terms.append(" and ".join(parts))
    return " or ".join(terms)


_STATUSES = ("containerStatuses", "initContainerStatuses")


def _is_resized(container: Value, seen: Mapping[object, Value]) -> bool:
    """Return whether a container's actual requests differ from the requests in its spec."""
    if (name := container["name"].data) not in seen:
        return False
    wanted = container["resources"]["requests"].data or {}
    has = seen[name]
    return any(of.data and of.data != wanted for of in (has["allocatedResources"], has["resources"]["requests"]))


def containers_of(spec: Value) -> Iterator[Value]:
    """Yield a pod's init containers and then its app containers."""
    yield from spec["initContainers"].sequence()
    yield from spec["containers"].sequence()


def _peak(spec: Value, of: Callable[[Value], Iterable[tuple[str, Value]]]) -> dict[str, Quantity]:
    """Return the containers' peak use: sidecars run alongside later init containers and app containers."""
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    binary: dict[str, bool] = {}

    def together(container: Value) -> dict[str, int]:
        sizes = {name: one.amount() for name, one in of(container)}
        binary.update({name: size.binary for name, size in sizes.items()})
        return {name: running.get(name, 0) + sizes.get(name, NOTHING).nanos for name in {**running, **sizes}}

    for container in spec["initContainers"].sequence():
        beside = together(container)
        peak = _larger(peak, beside)
        if container["restartPolicy"].text("") == "Always":
            running = beside
    for container in spec["containers"].sequence():
        running = together(container)
    return {name: Quantity(nanos, binary[name]) for name, nanos in _larger(peak, running).items()}


def _with_overhead(found: dict[str, Quantity], spec: Value) -> dict[str, Quantity]:
    for name, one in spec["overhead"].mapping().items():
        size = one.amount()
        found[name] = Quantity(found.get(name, NOTHING).nanos + size.nanos, size.binary)
    return found


def _requests(resources: Value) -> Iterable[tuple[str, Value]]:
    return {**resources["limits"].mapping(), **resources["requests"].mapping()}.items()


def _larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
