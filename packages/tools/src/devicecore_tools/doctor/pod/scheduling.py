"""Reads a pod's requirements other than devices, and finds the nodes that are ineligible for it.

Law: the filters are a scheduler's filters, in its order, and reasons use its words. A scheduler never checks the
devices of a node that a filter refuses, so problems with those devices cannot be the reason.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from attrs import evolve, field, frozen

from devicecore.domain.allocation.model import Taint, TargetNode, Toleration
from devicecore.domain.allocation.node_selectors import node_selector
from devicecore.domain.allocation.search import REPELLING_EFFECTS
from devicecore.domain.documents import Value
from devicecore.domain.model import is_extended_resource
from devicecore.domain.text import foreign_text, listed
from devicecore_tools.doctor.look.taints import CORDONED
from devicecore_tools.doctor.pod.machines import Obstacle, PriorityClass, sizes_of, volume_names, written_selector
from devicecore_tools.doctor.pod.pod_terms import NONE, REQUIRED, Wishes
from devicecore_tools.doctor.pod.volumes import VolumeClaim, claims_made_for
from devicecore_tools.doctor.reading.cluster_nodes import ClusterNode, Labels, Sizes, labels_of, tolerations_of

_MAX_NAMES = 3


@frozen
class PodAsks:
    """A pod's requirements on nodes.

    Attributes:
        name: `namespace/name`.
        uid: its UID, or an empty string if it was not read.
        node: the node named in its spec.
        labels: the labels of `nodeSelector`.
        accepts: a function that returns whether the required node affinity accepts a node, or None if the pod has no
            such affinity.
        affinity: a description of the required node affinity.
        tolerations: the tolerations in its spec.
        sizes: its peak request for each resource.
        gates: its remaining scheduling gates.
        priority: its priority, which decides which pods it may preempt.
        preempts: whether it preempts other pods.
        said: the scheduler's last message, from a PodScheduled condition that is False, or an empty string.
        own_labels: the pod's own labels.
        wishes: its requirements concerning other pods.
        volumes: the names of its PersistentVolumeClaims.
        made: the PersistentVolumeClaims that a controller creates if they do not exist yet.
        unjudged: further rules of a scheduler that are not examined here.
        overhead: the overhead of its RuntimeClass, which `sizes` include.
        features: the features that its node must declare.
    """

    name: str
    uid: str = ""
    node: str = ""
    labels: Mapping[str, str] = field(factory=dict)
    accepts: Callable[[TargetNode], bool] | None = field(default=None, eq=False)
    affinity: str = ""
    tolerations: tuple[Toleration, ...] = ()
    sizes: Sizes = field(factory=dict)
    gates: tuple[str, ...] = ()
    said: str = ""
    priority: int = 0
    preempts: bool = True
    own_labels: Labels = field(factory=dict)
    wishes: Wishes = NONE
    volumes: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    made: Mapping[str, VolumeClaim] = field(factory=dict)
    overhead: Sizes = field(factory=dict)
    features: tuple[str, ...] = ()

    @classmethod
    def of(cls, pod: Value, classes: Mapping[str, PriorityClass]) -> "PodAsks":
        """Return a pod's requirements. Raises DocumentError if a field has the wrong type.

        `classes` maps names to PriorityClasses; the default class has an empty name.
        """
        metadata, spec = pod["metadata"], pod["spec"]
        required = spec["affinity"]["nodeAffinity"][REQUIRED]
        conditions = pod["status"]["conditions"].sequence()
        said = (one["message"].text("") for one in conditions if _is_unscheduled(one))
        return cls(
            f"{metadata['namespace'].text('default')}/{metadata['name'].text('')}",
            metadata["uid"].text(""),
            spec["nodeName"].text(""),
            {name: one.text() for name, one in spec["nodeSelector"].mapping().items()},
            None if required.data is None else node_selector(required),
            written_selector(required),
            tolerations_of(pod),
            sizes_of(spec),
            tuple(one["name"].text("") for one in spec["schedulingGates"].sequence()),
            next(said, ""),
            *_priority(spec, classes),
            labels_of(metadata),
            Wishes.of(pod),
            tuple(volume_names(pod)),
            tuple(_unjudged(pod)),
            claims_made_for(pod),
            {name: one.amount() for name, one in spec["overhead"].mapping().items()},
            tuple(_features(spec)),
        )

    def without_scheduler(self) -> "PodAsks":
        """Return the requirements of a pod whose manifest names its node, so that only a kubelet decides.

        A kubelet checks resources, ports, labels and NoExecute taints (kubelet: `AdmissionCheck`). The pods that it
        evicts for a critical pod are not considered here.
        """
        wishes = evolve(self.wishes, near=(), apart=(), spread=())
        return evolve(self, wishes=wishes, preempts=False, features=(), tolerations=(*self.tolerations, *_KEPT_AWAY))

    def without_plugins(self) -> "PodAsks":
        """Return the pod's requirements, except for plugins' devices."""
        return evolve(self, sizes={name: of for name, of in self.sizes.items() if not is_extended_resource(name)})

    def tolerates(self, node: ClusterNode) -> bool:
        """Return whether the pod tolerates all taints of a node that repel pods."""
        return all(self._tolerates(one) for one in node.taints if one.effect in REPELLING_EFFECTS)

    def selects(self, node: ClusterNode) -> bool:
        """Return whether a node matches the pod's node selector and node affinity."""
        labels = node.target.labels
        is_selected = all(labels.get(name) == value for name, value in self.labels.items())
        return is_selected and (self.accepts is None or self.accepts(node.target))

    def needs_node(self, served: Iterable[str]) -> str:
        """Return the pod's requirements that cannot be checked without a Node, or an empty string."""
        if self.labels or self.accepts is not None:
            return "the labels that the pod selects"
        if self.wishes.near or self.wishes.spread:
            return "the labels that decide where pods are placed"
        wanted = (name for name, size in self.sizes.items() if size.nanos and is_extended_resource(name))
        lacking = [name for name in wanted if name not in served]
        return listed(lacking, _MAX_NAMES)

    def obstacles(self, node: ClusterNode) -> Iterator[Obstacle]:
        """Yield the reasons why the node is ineligible, the scheduler's reason first.

        The order follows the filters in the scheduler's default profile: NodeUnschedulable, NodeName, TaintToleration,
        NodeDeclaredFeatures, NodeAffinity.
        """
        if node.is_cordoned and not self._tolerates(CORDONED):
            cure = f"node {node.target.name} is uncordoned"
            yield Obstacle("node(s) were unschedulable", "the node is cordoned", cure)
        if self.node and self.node != node.target.name:
            because = f"the pod names node {foreign_text(self.node)}"
            yield Obstacle("node(s) didn't match the requested node name", because, "the pod names no node")
        for taint in node.taints:
            if taint.effect in REPELLING_EFFECTS and not self._tolerates(taint):
                shown = foreign_text(str(taint))
                cure = f"the pod tolerates {shown}, or node {node.target.name} does not have this taint"
                if taint == CORDONED:
                    cure = f"node {node.target.name} is uncordoned"
                yield Obstacle("node(s) had untolerated taint(s)", f"the pod does not tolerate {shown}", cure)
        if lacking := [one for one in self.features if one not in node.features]:
            named = listed(lacking, _MAX_NAMES)
            cure = f"node {node.target.name} declares the feature {named}"
            because = f"the pod needs the feature {named}, which the node does not declare"
            yield Obstacle("node(s) didn't match Pod's required features", because, cure)
        says = "node(s) didn't match Pod's node affinity/selector"
        for name, value in self.labels.items():
            has = node.target.labels.get(name)
            if has != value:
                it = "has no such label" if has is None else f"has {foreign_text(f'{name}={has}')}"
                label = foreign_text(f"{name}={value}")
                cure = f"the pod's nodeSelector does not require {label}, or node {node.target.name} has this label"
                yield Obstacle(says, f"the pod selects {label}, but the node {it}", cure)
        if self.accepts is not None and not self.accepts(node.target):
            cure = f"the pod's affinity accepts node {node.target.name}"
            yield Obstacle(says, f"the pod's affinity requires {foreign_text(self.affinity)}", cure)

    def _tolerates(self, taint: Taint) -> bool:
        return any(one.tolerates(taint) for one in self.tolerations)


def _priority(spec: Value, classes: Mapping[str, PriorityClass]) -> tuple[int, bool]:
    """Return the priority of a pod, and whether it preempts others, as an API server writes them into the pod."""
    of = classes.get(spec["priorityClassName"].text(""), PriorityClass())
    policy = spec["preemptionPolicy"].text("")
    return spec["priority"].integer(of.value), policy != "Never" if policy else of.preempts


_KEPT_AWAY = (Toleration(operator="Exists", effect="NoSchedule"),)
"""A toleration of all taints with the effect NoSchedule, which a kubelet ignores."""


def _features(spec: Value) -> Iterator[str]:
    """Yield the features that a node must declare to run a pod (Kubernetes: `InferForPodScheduling`)."""
    containers = [one for of in ("initContainers", "containers") for one in spec[of].sequence()]
    rules = (rule for one in containers for rule in one["restartPolicyRules"].sequence())
    if any(one["action"].data == "RestartAllContainers" for one in rules):
        yield "RestartAllContainersOnContainerExits"
    if spec["hostNetwork"].data is True and spec["hostUsers"].data is False:
        yield "UserNamespacesHostNetworkSupport"
    mounts = (mount for one in containers for mount in one["volumeMounts"].sequence())
    if any(one["bindMountOptions"].data for one in mounts):
        yield "VolumeBindMountOptions"


def _unjudged(pod: Value) -> Iterator[str]:
    """Yield the scheduler's checks of this pod that this program does not perform."""
    spec = pod["spec"]
    if (name := spec["schedulerName"].text("")) not in {"", "default-scheduler"}:
        yield f"the rules of its own scheduler, {foreign_text(name, 100)}"
    if any(spec[group].data is not None for group in ("schedulingGroup", "workloadRef")):
        yield "the other pods of its group, with which it is scheduled"
    is_stored = pod["metadata"]["uid"].data is not None
    # an API server copies the RuntimeClass into each pod that it stores
    if not is_stored and (name := spec["runtimeClassName"].text("")):
        get = (
            "pass the output of kubectl get runtimeclasses -o json as an additional file for --slices, or use "
            "--kubeconfig"
        )
        yield f"the node selector, tolerations and overhead of RuntimeClass {foreign_text(name, 100)}: {get}"


def _is_unscheduled(condition: Value) -> bool:
    return condition["type"].data == "PodScheduled" and condition["status"].data == "False"


def decides_itself(said: str, *, knows_pods: bool, knows_volumes: bool) -> bool:
    """Return whether every reason in the scheduler's message is also checked here.

    A message with only such reasons may be outdated. Other reasons can only be checked by the scheduler, such as a
    port if no pods were read.
    """
    judged = _JUDGED + (_BY_PODS if knows_pods else ()) + (_BY_VOLUMES if knows_volumes else ())
    reasons = said.partition(" nodes are available: ")[2].partition(". preemption:")[0].rstrip(".")
    parts = [one.strip().lstrip("0123456789 ") for one in reasons.split(", ")]
    return bool(reasons) and all(one.startswith(judged) for one in parts)


_JUDGED = (
    "cannot allocate all claims",
    "resourceclaim not available on the node",
    "node(s) didn't match Pod's node affinity/selector",
    "node(s) didn't match Pod's required features",
    "node(s) didn't match the requested node name",
    "node(s) had untolerated taint",
    "node(s) were unschedulable",
)

_BY_PODS = (
    "Insufficient ",
    "Too many pods",
    "node(s) didn't have free ports",
    "node(s) didn't match pod topology spread constraints",
    "node(s) didn't match pod affinity rules",
    "node(s) didn't match pod anti-affinity rules",
    "node(s) didn't satisfy existing pods anti-affinity rules",
)
"""The reasons that depend on the nodes' pods."""

_BY_VOLUMES = (
    "persistentvolumeclaim ",
    "pod has unbound immediate PersistentVolumeClaims",
    "node(s) didn't find available persistent volumes",
    "node(s) didn't match PersistentVolume's node affinity",
    "node(s) had no available volume zone",
)
"""The reasons that depend on PersistentVolumeClaims and their volumes."""
