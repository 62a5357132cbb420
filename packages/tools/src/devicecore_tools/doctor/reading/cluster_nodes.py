"""Reads the parts of nodes and pods on which a scheduler's decision depends.

Law: only this module reads these fields, so `doctor`, `why` and `fits` see the same node and the same pod.
"""

from collections.abc import Mapping

from attrs import field, frozen

from devicecore.domain.allocation.model import Taint, TargetNode, Toleration
from devicecore.domain.allocation.reading import taint_of, toleration_of
from devicecore.domain.documents import Value
from devicecore.domain.quantity import Quantity
from devicecore_tools.doctor.look.taints import CORDONED, CRITICAL

Sizes = Mapping[str, Quantity]
"""Amounts by resource."""

Labels = Mapping[str, str]

ENDED = frozenset({"Succeeded", "Failed"})
"""The phases in which a pod's containers have terminated for good."""

_CRITICAL_CLASSES = ("system-node-critical", "system-cluster-critical")
_CRITICAL_PRIORITY = 2_000_000_000  # kubelet: `SystemCriticalPriority`


@frozen
class ClusterNode:
    """The parts of a Node that determine which pods it accepts. `allocatable` and `capacity` cover all resources.

    `features` contains the features that its kubelet declares (by default since Kubernetes 1.36).
    """

    target: TargetNode
    taints: tuple[Taint, ...] = ()
    is_cordoned: bool = False
    allocatable: Sizes = field(factory=dict)
    capacity: Sizes = field(factory=dict)
    features: frozenset[str] = frozenset()

    @classmethod
    def of(cls, node: Value, status: Value | None = None) -> "ClusterNode":
        """Return the data of a Node, with its status if the status was read separately.

        Raises DocumentError if a field has the wrong type.
        """
        metadata, spec = node["metadata"], node["spec"]
        sizes, capacity = (
            {name: one.amount() for name, one in (status or node["status"])[which].mapping().items()}
            for which in ("allocatable", "capacity")
        )
        target = TargetNode(metadata["name"].text(""), labels_of(metadata))
        taints = tuple(map(taint_of, spec["taints"].sequence()))
        features = frozenset(one.text("") for one in (status or node["status"])["declaredFeatures"].sequence())
        return cls(target, taints, spec["unschedulable"].boolean(), sizes, capacity, features)

    @property
    def all_taints(self) -> tuple[Taint, ...]:
        """The Node's taints, each once. A cordon's taint is included even before the node controller has added it."""
        return tuple(dict.fromkeys((*self.taints, *((CORDONED,) if self.is_cordoned else ()))))


def labels_of(metadata: Value) -> dict[str, str]:
    """Return the labels of an object."""
    return {name: one.text("") for name, one in metadata["labels"].mapping().items()}


def tolerations_of(pod: Value) -> tuple[Toleration, ...]:
    """Return a pod's tolerations, including `CRITICAL` if the pod is critical."""
    spec = pod["spec"]
    is_critical = (
        spec["priorityClassName"].data in _CRITICAL_CLASSES or spec["priority"].integer(0) >= _CRITICAL_PRIORITY
    )
    found = map(toleration_of, spec["tolerations"].sequence())
    return (*found, CRITICAL) if is_critical else tuple(found)
