"""The metrics of a fleet, in addition to the metrics of its managers.

Law: the metrics are computed, in the nodes' thread, only when they are read, so metrics that no one reads cost nothing.
"""

import logging
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from devicecore_fleet.fleet.views import Totals

_log = logging.getLogger(__name__)


class FleetCollector:
    """Counts nodes, pods and devices for Prometheus. If the fleet does not answer, `totals` returns None."""

    def __init__(self, totals: Callable[[], Totals | None]) -> None:
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, or none if the fleet does not answer, for example while it starts."""
        totals = self._totals()
        if totals is None:
            _log.warning("the fleet's metrics are left out, because the fleet has not answered in time")
            return
        nodes = GaugeMetricFamily("devicecore_fleet_nodes", "Nodes in the fleet, by state.", labels=["state"])
        for state, count in sorted(totals.nodes.items()):
            nodes.add_metric([state], count)
        pods = GaugeMetricFamily("devicecore_fleet_pods", "Pods on the fleet's nodes, by phase.", labels=["phase"])
        for phase, count in sorted(totals.pods.items()):
            pods.add_metric([phase], count)
        devices = GaugeMetricFamily(
            "devicecore_fleet_devices",
            "Devices in the fleet, by plugin or driver and by state.",
            labels=["owner", "state"],
        )
        for (owner, cell), count in totals.devices.items():
            devices.add_metric([owner, cell.value], count)
        yield from (nodes, pods, devices)
