"""The checks that a kubelet makes after it has allocated devices: whether a pod fits on the Node and may run there.

Laws: the checks run in a kubelet's order, and the first failure is the answer. A pod counts from its admission until
its containers have exited, so several pods that are admitted at the same time do not get more than the Node has.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from devicecore_tools.node.outcome import PodRefusal

from devicecore.domain.allocation.model import DeviceToleration, Taint, TargetNode
from devicecore.domain.allocation.node_selectors import node_selector
from devicecore.domain.documents import Value
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import PodUid
from devicecore.domain.quantity import Quantity
from devicecore_fleet.cluster.words.patches import Json
from devicecore_fleet.cluster.words.pods import asked_of
from devicecore_fleet.cluster.words.specs import of_spec

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
"""The field of an affinity that determines whether a pod may run on a node."""

_Port = tuple[str, int, str]  # a host port: its protocol, number and address
_EVERY = "0.0.0.0"  # noqa: S104 - nothing listens there
_LINUX = "linux"
_TOLERATION = ("key", "operator", "value", "effect")
_FIRST = ("pods", "cpu", "memory", "ephemeral-storage")
_NOT_SELECTED = PodRefusal(
    "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
)
_NO_PORTS = PodRefusal(
    "NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
)
_OS = "kubernetes.io/os"
_OTHER_OS_LABEL = PodRefusal(
    "PodOSSelectorNodeLabelDoesNotMatch", f"Failed to admit pod as the `{_OS}` label doesn't match node label"
)
_OTHER_OS = PodRefusal("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
_NOT_TOLERATED = PodRefusal(
    "TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
)


class NodeRoom:
    """Counts the requests of the pods on one node.

    The owner of this object must hold a lock while it calls a method.
    """

    def __init__(self) -> None:
        self._pods: dict[PodUid, Mapping[str, int]] = {}
        self._used: Counter[str] = Counter()
        self._ports: dict[PodUid, frozenset[_Port]] = {}  # the host ports of each pod that uses any

    def take(self, uid: PodUid, pod: Json) -> None:
        """Count a pod, but only once."""
        if uid not in self._pods:
            self._pods[uid] = asked = _asked(pod["spec"])
            self._used.update(asked)
            if ports := _ports(pod["spec"]):
                self._ports[uid] = ports

    def recount(self, uid: PodUid, pod: Json) -> None:
        """Count a pod's new requests after a resize, if the pod is counted."""
        if uid in self._pods:
            self.free(uid)
            self.take(uid, pod)

    def free(self, uid: PodUid) -> None:
        """Stop counting a pod."""
        self._used.subtract(self._pods.pop(uid, {}))
        self._ports.pop(uid, None)

    def refusal(self, uid: PodUid, pod: Json, node: Json, devices: Mapping[str, int]) -> PodRefusal | None:
        """Return why a kubelet would refuse a pod, or None if it would accept the pod or the pod is already counted.

        Args:
            uid: the UID of the pod.
            pod: the pod on the API server.
            node: the Node on the API server.
            devices: how many devices of each resource are healthy or in use, if the pod has any. The Node object may
                not show this number yet.
        """
        if uid in self._pods:
            return None
        system = (pod["metadata"].get("labels") or {}).get(_OS), (pod["spec"].get("os") or {}).get("name")
        for mine, refusal in zip(system, (_OTHER_OS_LABEL, _OTHER_OS), strict=True):
            if mine is not None and mine != _LINUX:
                return refusal
        shown = (node.get("status") or {}).get("allocatable") or {}
        capacity = {name: _whole(name, size) for name, size in shown.items()}
        capacity |= {name: max(capacity.get(name, 0), count) for name, count in devices.items()}
        asked, claimed = _asked(pod["spec"]), set(_claimed(pod))
        for name in (*_FIRST, *sorted(asked.keys() - {*_FIRST})):
            wanted, free = asked.get(name, 0), capacity.get(name, 0) - self._used[name]
            is_unknown = "/" in name and (name not in capacity or name in claimed)  # a kubelet ignores such resources
            if wanted > max(free, 0) and not is_unknown:
                numbers = f"requested: {wanted}, used: {self._used[name]}, capacity: {capacity.get(name, 0)}"
                return PodRefusal(f"OutOf{name}", f"Node didn't have enough resource: {name}, {numbers}")
        if not _is_selected(pod, node):
            return _NOT_SELECTED
        if any(
            _clash(mine, other) for mine in _ports(pod["spec"]) for ports in self._ports.values() for other in ports
        ):
            return _NO_PORTS
        return unsuited(pod, node)


def unsuited(pod: Json, node: Json) -> PodRefusal | None:
    """Return why a kubelet would refuse a pod because of the Node's labels or taints, or None if it would not do so."""
    if not _is_selected(pod, node):
        return _NOT_SELECTED
    for one in (node.get("spec") or {}).get("taints") or ():
        taint = Taint(one["key"], one.get("value") or "", one["effect"])
        if taint.effect == "NoExecute" and not any(one.tolerates(taint) for one in _tolerations(pod["spec"])):
            return _NOT_TOLERATED
    return None


@of_spec
def _tolerations(spec: Json) -> tuple[DeviceToleration, ...]:
    return tuple(
        DeviceToleration(**{name: one[name] for name in _TOLERATION if one.get(name)})
        for one in spec.get("tolerations") or ()
    )


def _is_selected(pod: Json, node: Json) -> bool:
    spec, metadata = pod["spec"], node["metadata"]
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    selector = (spec.get("nodeSelector") or {}).items()
    if affinity is None and not selector:
        return True
    target = TargetNode(metadata["name"], metadata.get("labels") or {})
    return all(target.labels.get(key) == value for key, value in selector) and _accepts(affinity, target)


def _accepts(selector: Json | None, target: TargetNode) -> bool:
    try:
        return selector is None or node_selector(Value.of(selector, "NodeSelector"))(target)
    except DocumentError:
        return False


@of_spec
def _asked(spec: Json) -> Mapping[str, int]:
    """Return a pod's requests as integers, as a kubelet counts them: cpu in thousandths, and the pod itself as one."""
    sizes = {**asked_of(spec, "requests"), "pods": Quantity.of(1, binary=False)}
    return {name: _whole(name, size) for name, size in sizes.items()}


def _whole(name: str, size: Quantity | str) -> int:
    found = size if isinstance(size, Quantity) else Quantity.parse(size)
    return Quantity(found.nanos * 1000).whole if name == "cpu" else found.whole


@of_spec
def _ports(spec: Json) -> frozenset[_Port]:
    """Return the host ports of the pod's app containers and sidecars, which run at the same time."""
    sidecars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    return frozenset(
        (port.get("protocol") or "TCP", port["hostPort"], port.get("hostIP") or _EVERY)
        for one in (*spec["containers"], *sidecars)
        for port in one.get("ports") or ()
        if port.get("hostPort")
    )


def _clash(one: _Port, other: _Port) -> bool:
    return one[:2] == other[:2] and (one[2] == other[2] or _EVERY in (one[2], other[2]))


def _claimed(pod: Json) -> Iterator[str]:
    """Yield the names of the pod's extended resources that a claim provides."""
    claim = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return (str(one.get("resourceName")) for one in claim.get("requestMappings") or ())
