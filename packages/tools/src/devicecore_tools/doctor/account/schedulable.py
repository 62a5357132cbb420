"""Why a Node accepts no pod although its kubelet is running: a cordon, pressure, a taint, or too many pods.

Laws: `doctor` and `fits` both use this module's decision. A taint that a user has set on purpose is not a fault of the
node: it counts only against pods that do not tolerate it.
"""

from collections.abc import Collection, Iterator

from attrs import frozen

from devicecore.domain.allocation.model import Taint, Toleration
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.doctor.account.precedence import Pods
from devicecore_tools.doctor.look.taints import CORDONED, CRITICAL, MEMORY_PRESSURE
from devicecore_tools.doctor.look.values import NodeSeen

_PRESSURES = {
    "MemoryPressure": (MEMORY_PRESSURE, "no pod that requests neither CPU nor memory"),
    "DiskPressure": ("node.kubernetes.io/disk-pressure", "no pod that is not critical"),
    "PIDPressure": ("node.kubernetes.io/pid-pressure", "no pod that is not critical"),
}
"""For each condition, the taint that Kubernetes adds for it, and the end of the sentence "the kubelet admits ..."."""

_OF_PROGRAMS = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "node.cluster.x-k8s.io/",
    "karpenter.sh/",
    "ToBeDeletedByClusterAutoscaler",
)
_UNTIL_READY = ("/agent-not-ready", "/not-ready", "/uninitialized")  # network and storage agents remove these taints
_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")  # the condition Ready already shows this
_REPELLING = ("NoSchedule", "NoExecute")


@frozen
class Closed:
    """Why a Node accepts no pod, or only pods that tolerate `taint`.

    Attributes:
        why: the reason, as a sentence without its final period.
        evidence: what the Node says.
        cure: when the Node accepts pods again, as the end of a sentence that starts with "it fits if".
        do: what to do, with the command.
        taint: the taint that a pod has to tolerate, or None if no toleration helps.
        admits_only_critical: whether the kubelet refuses pods that are not critical, whatever they tolerate.
    """

    why: str
    evidence: str
    cure: str
    do: str
    taint: Taint | None = None
    admits_only_critical: bool = False

    def lets_in(self, tolerations: Collection[Toleration]) -> bool:
        """Return whether a pod with these tolerations can be scheduled to the Node anyway."""
        if self.taint is None or (self.admits_only_critical and CRITICAL not in tolerations):
            return False
        return any(one.tolerates(self.taint) for one in tolerations)


def closures(node: NodeSeen, pods: Pods) -> Iterator[Closed]:
    """Yield each problem that keeps a Node from accepting pods. Of users' taints, only a cordon counts."""
    for name, message in node.pressures.items():
        if name in _PRESSURES:
            key, which = _PRESSURES[name]
            said = f" ({foreign_text(message, 300)})" if message else ""
            yield Closed(
                f"The Node has {name}{said}: the scheduler sends it only pods that tolerate this condition, and the "
                f"kubelet admits {which}",
                f"condition {name}: True",
                f"the Node no longer has {name}",
                f"Free up whatever is scarce ({name}); kubectl describe node NODE shows when this began, and the "
                "kubelet's log shows what is evicted.",
                Taint(key, "", "NoSchedule"),
                admits_only_critical=key != MEMORY_PRESSURE,
            )
    for taint in node.taints:
        if taint == CORDONED:
            yield Closed(
                "The Node is cordoned: the scheduler sends no pod to it",
                "spec.unschedulable: true",
                "the Node is no longer cordoned",
                "When the work on the node is done: kubectl uncordon NODE.",
                taint,
            )
        elif _is_of_program(taint) and repels(taint) and taint.key not in (*_READY, *_of_pressures()):
            yield _tainted(taint)
    count = sum(1 for one in pods.by_name.values() if one.node == node.name and not one.has_ended)
    if node.name and node.max_pods is not None and count >= node.max_pods:
        yield Closed(
            f"The Node has {counted(count, 'pod')}, and its kubelet admits at most {node.max_pods:,}",
            f"status.allocatable.pods: {node.max_pods:,}",
            "a pod on the Node ends",
            "Delete pods on the node, or raise the kubelet's maxPods.",
        )


def why_closed(node: NodeSeen | None, pods: Pods, tolerations: Collection[Toleration] | None = None) -> Closed | None:
    """Return why a pod with these tolerations cannot run on a Node, or None if it can.

    If no tolerations are given, they are unknown, and only problems that no pod can tolerate count.
    """
    if node is None:
        return None
    of_users = (_tainted(one) for one in node.taints if repels(one) and one.key not in _READY)
    for one in (*closures(node, pods), *of_users):
        if one.taint is None or (tolerations is not None and not one.lets_in(tolerations)):
            return one
    return None


def repels(taint: Taint) -> bool:
    """Return whether a taint keeps pods that do not tolerate it from being scheduled, or evicts them."""
    return taint.effect in _REPELLING


def _is_of_program(taint: Taint) -> bool:
    """Return whether a taint was added by Kubernetes, an autoscaler or an agent, not by an administrator."""
    return taint.key.startswith(_OF_PROGRAMS) or taint.key.endswith(_UNTIL_READY)


def _of_pressures() -> list[str]:
    return [key for key, _ in _PRESSURES.values()]


def _tainted(taint: Taint) -> Closed:
    shown = foreign_text(str(taint), 300)
    return Closed(
        f"The Node has the taint {shown}: only pods that tolerate it are scheduled there",
        f"spec.taints: {shown}",
        f"the pod tolerates the taint {shown}, or the Node does not have it",
        f"Find out who added the taint {shown}, and remove its cause: kubectl describe node NODE.",
        taint,
    )
