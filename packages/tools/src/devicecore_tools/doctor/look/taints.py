"""Taints of Nodes that have a special meaning, and the tolerations for them.

Law: the keys are Kubernetes' own, so that these taints equal those read from a Node.
"""

from devicecore.domain.allocation.model import Taint, Toleration

CORDONED = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""The taint of a Node with `spec.unschedulable`."""

CRITICAL = Toleration(operator="Critical")
"""Additional taints that a critical pod tolerates, because a kubelet admits it under any pressure."""

MEMORY_PRESSURE = "node.kubernetes.io/memory-pressure"
"""The taint of a Node that is short of memory."""
