"""Count what a kubelet counts."""

from typing import Protocol


class Metrics(Protocol):
    """Takes measurements. It never blocks and never raises."""

    def device_plugin_registration(self, resource: str) -> None:
        """One Register call came in for `resource`, valid or not (`kubelet_device_plugin_registration_total`)."""

    def device_plugin_alloc_duration(self, resource: str, seconds: float) -> None:
        """One Allocate call took `seconds`, failed or not (`kubelet_device_plugin_alloc_duration_seconds`)."""
