"""Taints of Nodes with a special meaning, and what tolerates them.

Law: the keys are those of Kubernetes, so that a taint that was read is the same as one of these.
"""

from devicecore.domain.allocation.model import Taint, Toleration

CORDONED = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""The taint of a Node with `spec.unschedulable`."""

CRITICAL = Toleration(operator="Critical")
"""What a critical pod tolerates in addition: a kubelet admits it under any pressure."""

MEMORY_PRESSURE = "node.kubernetes.io/memory-pressure"
"""The taint of a Node whose memory is short."""
