"""Measures dynamic resource allocation as a kubelet does.

Law: each operation for a pod is measured once, whether or not it failed.
"""

from typing import Protocol


class DraMetrics(Protocol):
    """Takes measurements, and never blocks or raises an error."""

    def dra_operation(self, operation: str, seconds: float, *, failed: bool) -> None:
        """Record that one operation for a pod took `seconds` (`dra_operations_duration_seconds`).

        `operation` is `PrepareResources` or `UnprepareResources`.
        """
