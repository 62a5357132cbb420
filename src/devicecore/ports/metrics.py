"""Counts the events that a kubelet counts.

Law: a measurement never blocks, never raises an error, and changes nothing.
"""

from typing import Protocol


class Metrics(Protocol):
    """Takes measurements. No method ever blocks or raises an error."""

    def device_plugin_registration(self, resource: str) -> None:
        """Count a Register call for `resource`, even an invalid call (`kubelet_device_plugin_registration_total`)."""

    def device_plugin_alloc_duration(self, resource: str, seconds: float) -> None:
        """Record how long an Allocate call took, even if it failed (`kubelet_device_plugin_alloc_duration_seconds`)."""

    def topology_manager_admission(self, seconds: float, *, failed: bool) -> None:
        """Record how long a pod's admission took (`kubelet_topology_manager_admission_duration_ms`).

        `failed` means that there is a topology policy and that the pod was not admitted, for whatever reason.
        """
