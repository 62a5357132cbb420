"""What a kubelet counts, and the devices by state, for Prometheus. Needs the extra `prometheus`.

Law: names, labels and buckets are the kubelet's. What is known elsewhere is not kept here: the devices are counted when
somebody asks.
"""

import socket
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import accumulate
from operator import sub
from types import TracebackType
from typing import Self
from wsgiref.simple_server import WSGIServer

from attrs import field, frozen
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import SetUpError
from devicecore.domain.model import ResourceName
from devicecore.domain.node import Node

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds, in seconds, by which a kubelet sorts Allocate calls (Go: `prometheus.DefBuckets`)."""

_BOUNDS = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")  # as Go writes them
_LABELS = ("resource_name",)


@frozen
class CannotListenError(SetUpError):
    """The metrics cannot be served where they should."""

    host: str
    port: int
    cause: str

    def __str__(self) -> str:
        return f"cannot serve metrics on {self.host}:{self.port}: {self.cause}"


class PrometheusMetrics:
    """Counts registrations and Allocate calls, and shows them on `registry`, which is its own. Thread-safe.

    `devicecore_devices{resource_name, state}` says how many devices are `free` (healthy, and nobody's), `reserved` (an
    admission is about to have them), `allocated`, and `unhealthy`. A device that is held and unhealthy is both: so
    `unhealthy` is capacity without allocatable, whoever holds what.

    Args:
        node: where the devices are known, such as `lambda: manager.node`. It can be given later, to `count_devices`.
    """

    def __init__(self, node: Callable[[], Node] | None = None) -> None:
        self.registry = CollectorRegistry()
        self._node = node
        self._lock = threading.Lock()  # held while the fields below change
        self._registrations: dict[str, int] = {}
        self._durations: dict[str, _Histogram] = {}
        self.registry.register(self)

    def count_devices(self, node: Callable[[], Node]) -> None:
        """Count the devices of this node from now on: a manager is made with its metrics, and has a node only then."""
        self._node = node

    def device_plugin_registration(self, resource: str) -> None:
        """Count a Register call."""
        with self._lock:
            self._registrations[resource] = self._registrations.get(resource, 0) + 1

    def device_plugin_alloc_duration(self, resource: str, seconds: float) -> None:
        """Count an Allocate call."""
        with self._lock:
            self._durations.setdefault(resource, _Histogram()).add(seconds)

    def collect(self) -> Iterator[Metric]:
        """All there is to know now (prometheus_client: `Collector`)."""
        # Not the library's Counter and Histogram: those show a `_created` series with each, which a kubelet does not,
        # and which can be switched off only for a whole process.
        with self._lock:
            registrations = dict(self._registrations)
            durations = {resource: histogram.read() for resource, histogram in self._durations.items()}
        counter = CounterMetricFamily(
            "kubelet_device_plugin_registration_total",
            "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.",
            labels=_LABELS,
        )
        for resource, count in sorted(registrations.items()):
            counter.add_metric([resource], count)
        yield counter
        histogram = HistogramMetricFamily(
            "kubelet_device_plugin_alloc_duration_seconds",
            "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
            labels=_LABELS,
        )
        for resource, (counts, total) in sorted(durations.items()):
            histogram.add_metric([resource], list(zip(_BOUNDS, counts, strict=True)), total)
        yield histogram
        devices = GaugeMetricFamily(
            "devicecore_devices",
            "Devices by state. One that is held and unhealthy is counted in both.",
            labels=(*_LABELS, "state"),
        )
        for resource, state, number in devices_by_state(self._node()) if self._node else ():
            devices.add_metric([resource, state], number)
        yield devices

    def serve(self, port: int, host: str = "127.0.0.1") -> "MetricsServer":
        """Answer scrapes over HTTP, on any path; port 0 is a free one. Close what is returned.

        Raises:
            CannotListenError: the port is in use, or not ours to use.
        """
        try:
            server, thread = start_http_server(port, host, self.registry)
        except (OSError, OverflowError) as error:
            raise CannotListenError(host, port, getattr(error, "strerror", None) or str(error)) from error
        return MetricsServer(server, thread)


class MetricsServer:
    """Answers scrapes until it is closed. Use it as a context manager, or call `close`."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    @property
    def url(self) -> str:
        """Where it answers."""
        host = self._server.server_address[0]
        is_v6 = self._server.address_family == socket.AF_INET6
        return f"http://[{host!s}]:{self.port}/metrics" if is_v6 else f"http://{host!s}:{self.port}/metrics"

    def close(self) -> None:
        """Stop. Closing twice is no error."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def devices_by_state(node: Node) -> Iterator[tuple[ResourceName, str, int]]:
    """How many devices of each resource are in each state; of resources that plugins report, or somebody holds."""
    reserved: dict[ResourceName, DeviceSet] = {}
    for reservation in node.ledger.reservations:  # what its own pod lends to it is allocated already
        of_pod = node.ledger.allocations.get(reservation.key.pod, ())
        lent = (held.devices for held in of_pod if held.resource == reservation.resource)
        devices = reduce(sub, lent, reservation.devices)
        reserved[reservation.resource] = reserved.get(reservation.resource, DeviceSet()) | devices
    for resource in sorted({*node.inventory.resources, *node.ledger.resources}):
        in_use = node.ledger.in_use(resource)
        report = node.inventory.registered(resource)
        yield resource, "free", len(report.healthy - in_use) if report else 0
        yield resource, "reserved", len(reserved.get(resource, ()))
        yield resource, "allocated", len(in_use) - len(reserved.get(resource, ()))
        yield resource, "unhealthy", len(report.unhealthy) if report else 0


@frozen
class _Histogram:
    """Calls by duration, one number for each bucket; the caller holds a lock."""

    counts: list[int] = field(factory=lambda: [0] * len(_BOUNDS))
    sums: list[float] = field(factory=lambda: [0.0])

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sums[0] += seconds

    def read(self) -> tuple[Sequence[int], float]:
        """The numbers up to each bound, and the sum of all durations."""
        return tuple(accumulate(self.counts)), self.sums[0]
