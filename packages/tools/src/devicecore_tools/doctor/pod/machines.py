"""The pods that nodes have, as far as they decide which other pods a node takes.

Law: what a pod requests is what an API server and a scheduler count for it.
"""

from collections.abc import Callable, Iterator, Mapping

from attrs import field, frozen

from devicecore.domain.documents import Value
from devicecore.domain.quantity import Quantity
from devicecore_tools.doctor.pod.pod_terms import NONE, Wishes
from devicecore_tools.doctor.reading.cluster_nodes import ENDED, Labels, Sizes, labels_of
from devicecore_tools.doctor.reading.label_selectors import object_selector

NOTHING = Quantity(0)


@frozen
class BoundPod:
    """What a pod that a node has takes from it, and what it wants of other pods.

    Attributes:
        name: `namespace/name`.
        is_ending: whether it is being deleted.
        started: when its kubelet took it; empty if that is not known.
        priority_class: its PriorityClass if the pod has no number, as in a manifest; None if it has one.
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


@frozen
class Obstacle:
    """Why a scheduler does not try the devices of a node for a pod.

    Attributes:
        says: the scheduler's words.
        because: what the pod asks for and what the node has.
        cure: after what the node is no longer out of the question.
        is_far: whether the node has nothing of what the pod asks for, so that others are nearer.
    """

    says: str
    because: str
    cure: str
    is_far: bool = False

    def __str__(self) -> str:
        return f"{self.says}: {self.because}"


@frozen
class PriorityClass:
    """A PriorityClass: the priority of its pods, and whether they preempt others."""

    value: int = 0
    preempts: bool = True
    is_default: bool = False

    @classmethod
    def of(cls, item: Value) -> "PriorityClass":
        """Read an object. Raises DocumentError if a field has the wrong type."""
        policy = item["preemptionPolicy"].text("")
        return cls(item["value"].integer(0), policy != "Never", item["globalDefault"].boolean())


@frozen
class DisruptionBudget:
    """A PodDisruptionBudget: how many of its pods may end now."""

    namespace: str
    selects: Callable[[Labels], bool] = field(eq=False)
    allowed: int
    counted: frozenset[str]

    @classmethod
    def of(cls, item: Value) -> "DisruptionBudget":
        """Read an object. Raises DocumentError if a field has the wrong type."""
        selector, status = item["spec"]["selector"], item["status"]
        is_empty = not any(selector[name].data for name in ("matchLabels", "matchExpressions"))
        return cls(
            item["metadata"]["namespace"].text("default"),
            (lambda _: False) if is_empty else object_selector(selector),
            status["disruptionsAllowed"].integer(0),
            frozenset(status["disruptedPods"].mapping()),
        )

    def matches(self, pod: BoundPod) -> bool:
        """Return whether the end of a pod counts. One that is ending already has been counted."""
        namespace, _, name = pod.name.partition("/")
        is_here = namespace == self.namespace and name not in self.counted and bool(pod.labels)
        return is_here and self.selects(pod.labels)


CRITICAL = {
    "system-cluster-critical": PriorityClass(2_000_000_000),
    "system-node-critical": PriorityClass(2_000_001_000),
}
"""The classes that each API server has."""


def bound_pod(pod: Value) -> BoundPod | None:
    """Return what a pod takes from the node that has it. Return None if no node has it, or if it has ended."""
    metadata, spec = pod["metadata"], pod["spec"]
    node = spec["nodeName"].text("")
    if not node or pod["status"]["phase"].text("") in ENDED:
        return None
    given = spec["priority"].data is not None
    return BoundPod(
        metadata["uid"].text(""),
        node,
        sizes_of(spec),
        spec["priority"].integer(0),
        f"{metadata['namespace'].text('default')}/{metadata['name'].text('')}",
        labels_of(metadata),
        Wishes.of(pod),
        metadata["deletionTimestamp"].data is not None,
        pod["status"]["startTime"].text(""),
        None if given else spec["priorityClassName"].text(""),
    )


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
        return {name: running.get(name, 0) + sizes.get(name, NOTHING).nanos for name in {**running, **sizes}}

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
        found[name] = Quantity(found.get(name, NOTHING).nanos + size.nanos, size.binary)
    return found


def _requests(resources: Value) -> Iterator[tuple[str, Value]]:
    yield from {**resources["limits"].mapping(), **resources["requests"].mapping()}.items()


def _larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
