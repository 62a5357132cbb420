"""Node taints that have a special meaning, and a toleration for some of them.

Law: the keys are Kubernetes' own, so that these taints equal those read from a Node.
"""

from devicecore.domain.allocation.model import Taint, Toleration

CORDONED = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""The taint of a Node with `spec.unschedulable`."""

CRITICAL = Toleration(operator="Critical")
"""The additional toleration of critical pods, because a kubelet admits them under any pressure."""

MEMORY_PRESSURE = "node.kubernetes.io/memory-pressure"
"""The taint of a Node that is short of memory."""
