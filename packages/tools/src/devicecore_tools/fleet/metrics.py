"""The metrics of a fleet beside those of its managers.

Law: they are counted when they are read, so nobody pays for metrics that nobody reads.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from devicecore_tools.fleet.views import NodeView, Totals


class FleetCollector:
    """Counts nodes, pods and devices for Prometheus. `views` returns the nodes now."""

    def __init__(self, views: Callable[[], Iterable[NodeView]]) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        totals = Totals.of(self._views())
        nodes = GaugeMetricFamily("devicecore_fleet_nodes", "Nodes of the fleet, by state.", labels=["state"])
        for state, count in sorted(totals.nodes.items()):
            nodes.add_metric([state], count)
        pods = GaugeMetricFamily("devicecore_fleet_pods", "Pods on nodes of the fleet, by phase.", labels=["phase"])
        for phase, count in sorted(totals.pods.items()):
            pods.add_metric([phase], count)
        devices = GaugeMetricFamily(
            "devicecore_fleet_devices",
            "Devices of the fleet, by plugin or driver and state.",
            labels=["owner", "state"],
        )
        for (owner, cell), count in totals.devices.items():
            devices.add_metric([owner, cell.value], count)
        yield from (nodes, pods, devices)
