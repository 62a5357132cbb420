"""Metrics for Prometheus: the kubelet's own, and the number of devices by state. Needs the extra `prometheus`.

Laws: Names, labels and buckets are the kubelet's. Devices are counted at each scrape, from the manager's state.
"""

import socket
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import accumulate
from operator import sub
from types import TracebackType
from typing import Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from attrs import define, field, frozen
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer

from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import SetUpError
from devicecore.domain.model import ResourceName
from devicecore.domain.node_state import NodeState

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds, in seconds, by which a kubelet sorts Allocate calls (Go: `prometheus.DefBuckets`)."""

ADMISSION_BUCKETS = tuple(0.05 * 2**power for power in range(15))
"""The upper bounds, in milliseconds, by which a kubelet sorts admissions."""

_LABELS = ("resource_name",)
_LOOK = 1.0  # seconds between two looks of an idle server whether it is to end
_POD_RESOURCES = {"List": "list", "Get": "get", "GetAllocatableResources": "get_allocatable"}


@frozen
class CannotListenError(SetUpError):
    """The metrics server cannot listen on this address and port."""

    host: str
    port: int
    cause: str

    def __str__(self) -> str:
        return f"cannot serve metrics on {self.host}:{self.port}: {self.cause}"


class PrometheusMetrics:
    """Counts the kubelet's device metrics and exposes them on its own `registry`. Thread-safe.

    To count calls of the pod-resources API, pass `pod_resources_request` to the server as `observe`.

    `devicecore_devices{resource_name, state}` is the number of devices that are `free` (healthy and not in use),
    `reserved` (an admission is under way), `allocated`, and `unhealthy`. A device that is allocated and unhealthy is
    counted in both, so that `unhealthy` is always capacity minus allocatable.

    Args:
        state: returns the state whose devices are counted, such as `lambda: manager.state`. It can also be given
            later, to `count_devices`.
    """

    def __init__(self, state: Callable[[], NodeState] | None = None) -> None:
        self.registry = CollectorRegistry()
        self._state = state
        self._lock = threading.Lock()  # held while the fields below change
        self._registrations: dict[str, int] = {}
        self._durations: dict[str, _Histogram] = {}
        self._admissions = _Histogram(ADMISSION_BUCKETS)
        self._failed_admissions = 0
        self._pod_resources: dict[str, dict[str, int]] = {
            "requests_total": {},
            **{f"{kind}_{method}": {} for kind in ("requests", "errors") for method in _POD_RESOURCES.values()},
        }
        self.registry.register(self)

    def count_devices(self, state: Callable[[], NodeState]) -> None:
        """Count the devices of this state from now on: the manager that has the state is made after its metrics."""
        self._state = state

    def device_plugin_registration(self, resource: str) -> None:
        """Count a Register call."""
        with self._lock:
            self._registrations[resource] = self._registrations.get(resource, 0) + 1

    def device_plugin_alloc_duration(self, resource: str, seconds: float) -> None:
        """Count an Allocate call."""
        with self._lock:
            self._durations.setdefault(resource, _Histogram(BUCKETS)).add(seconds)

    def topology_manager_admission(self, seconds: float, *, failed: bool) -> None:
        """Count an admission."""
        with self._lock:
            self._admissions.add(float(int(seconds * 1000)))  # a kubelet measures whole milliseconds
            self._failed_admissions += failed

    def pod_resources_request(self, method: str, version: str, failed: bool) -> None:  # noqa: FBT001 - as the server calls it
        """Count a call of the pod-resources API; a kubelet counts calls of v1alpha1 only in the total."""
        series = ["requests_total"]
        if version == "v1":
            series.append(f"requests_{_POD_RESOURCES[method]}")
            if failed:
                series.append(f"errors_{_POD_RESOURCES[method]}")
        with self._lock:
            for one in series:
                self._pod_resources[one][version] = self._pod_resources[one].get(version, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """Return all metrics (prometheus_client: `Collector`)."""
        # Not the library's Counter and Histogram: those show a `_created` series with each, which a kubelet does not,
        # and which can be switched off only for a whole process.
        with self._lock:
            registrations = dict(self._registrations)
            durations = {resource: histogram.read() for resource, histogram in self._durations.items()}
            admissions, failed = self._admissions.read(), self._failed_admissions
            pod_resources = {series: dict(counts) for series, counts in self._pod_resources.items()}
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
        for resource, (buckets, total) in sorted(durations.items()):
            histogram.add_metric([resource], buckets, total)
        yield histogram
        yield from _topology_manager(*admissions, failed)
        yield from _pod_resources(pod_resources)
        devices = GaugeMetricFamily(
            "devicecore_devices",
            "Devices by state. A device that is allocated and unhealthy is counted in both.",
            labels=(*_LABELS, "state"),
        )
        for resource, state, number in devices_by_state(self._state()) if self._state else ():
            devices.add_metric([resource, state], number)
        yield devices

    def serve(self, port: int, host: str = "127.0.0.1") -> "MetricsServer":
        """Answer scrapes over HTTP, on any path; port 0 is a free one. Close what is returned.

        Raises:
            CannotListenError: the port is in use, or not ours to use.
        """
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            listener = type("_Listener", (ThreadingWSGIServer,), {"address_family": family})
            server: WSGIServer = make_server(str(address[0]), port, make_wsgi_app(self.registry), listener, _Silent)
        except (OSError, OverflowError) as error:
            raise CannotListenError(host, port, getattr(error, "strerror", None) or str(error)) from error
        return MetricsServer(server)


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the standard library
        """Scrapes are not logged."""


class MetricsServer:
    """Answers scrapes until it is closed. Use it as a context manager, or call `close`."""

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        # Not the library's own thread: that looks twice a second whether it is to end.
        self._thread = threading.Thread(target=server.serve_forever, args=(_LOOK,), daemon=True)
        self._thread.start()

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
            ending = threading.Thread(target=self._server.shutdown)
            ending.start()
            while ending.is_alive():  # it would notice in a while; who connects wakes it
                with suppress(OSError):
                    socket.create_connection((str(self._server.server_address[0]), self.port), _LOOK).close()
                ending.join(0.01)
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def devices_by_state(state: NodeState) -> Iterator[tuple[ResourceName, str, int]]:
    """The number of devices in each state, for each resource that a plugin reports or a container holds."""
    reserved: dict[ResourceName, DeviceSet] = {}
    for reservation in state.ledger.reservations:  # devices that its own pod reuses are allocated already
        of_pod = state.ledger.of_pod(reservation.key.pod)
        lent = (held.devices for held in of_pod if held.resource == reservation.resource)
        devices = reduce(sub, lent, reservation.devices)
        reserved[reservation.resource] = reserved.get(reservation.resource, DeviceSet()) | devices
    for resource in sorted({*state.inventory.resources, *state.ledger.resources}):
        in_use = state.ledger.in_use(resource)
        report = state.inventory.current_report(resource)
        yield resource, "free", len(report.healthy - in_use) if report else 0
        yield resource, "reserved", len(reserved.get(resource, ()))
        yield resource, "allocated", len(in_use) - len(reserved.get(resource, ()))
        yield resource, "unhealthy", len(report.unhealthy) if report else 0


_Buckets = list[tuple[str, int]]  # upper bounds as Go writes them, and how many there were up to each


@define
class _Histogram:
    """Calls by duration, one number for each bucket; the caller holds a lock."""

    bounds: Sequence[float]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, duration: float) -> None:
        self.counts[bisect_left(self.bounds, duration)] += 1
        self.total += duration

    def read(self) -> tuple[_Buckets, float]:
        """The numbers up to each bound, and the sum of all durations."""
        bounds = (*(f"{bound:g}" for bound in self.bounds), "+Inf")
        return list(zip(bounds, accumulate(self.counts), strict=True)), self.total


def _topology_manager(buckets: _Buckets, total: float, failed: int) -> Iterator[Metric]:
    prefix = "kubelet_topology_manager_admission"
    yield CounterMetricFamily(f"{prefix}_requests_total", "[ALPHA] Pods that asked for admission.", buckets[-1][1])
    yield CounterMetricFamily(f"{prefix}_errors_total", "[ALPHA] Pods whose resources could not be aligned.", failed)
    help_text = "[ALPHA] How long admissions took, in milliseconds."
    yield HistogramMetricFamily(f"{prefix}_duration_ms", help_text, buckets, total)


def _pod_resources(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    for series, by_version in counts.items():
        name = f"kubelet_pod_resources_endpoint_{series}"
        what = series.replace("_", " of ", 1).replace("of total", "of all methods")
        # The library would append _total to the name of a counter, which most of a kubelet's do not have.
        kind = "counter" if series.endswith("_total") else "unknown"
        metric = Metric(name.removesuffix("_total"), f"[ALPHA] Pod-resources API: {what}, by its version.", kind)
        for version, count in sorted(by_version.items()):
            metric.add_sample(name, {"server_api_version": version}, count)
        yield metric
