"""Metrics for Prometheus: the kubelet's own, and the number of devices by state.

This package needs the extra `prometheus`. Laws: The kubelet's metrics have the same names, labels and buckets as in a
kubelet. Devices are counted in the manager's state at each scrape. The number of label values is limited.
"""

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import accumulate, islice
from operator import sub
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import Factory, define, field

from devicecore.domain.checks import check_adapter, check_callable, checked
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.model import ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.domain.text import foreign_text
from devicecore.ports.store import CheckpointStore
from devicecore.system.extras import needs_extra

with needs_extra("prometheus"):
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from devicecore.adapters.prometheus.server import CannotListenError, MetricsServer
from devicecore.adapters.prometheus.store import MeasuredStore
from devicecore.system.arguments import checks_arguments

if TYPE_CHECKING:
    from devicecore.domain.dra.claims import ClaimCache

__all__ = ["PrometheusMetrics"]

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds, in seconds, of a kubelet's buckets for Allocate calls (Go: `prometheus.DefBuckets`)."""

ADMISSION_BUCKETS = tuple(0.05 * 2**power for power in range(15))
"""The upper bounds, in milliseconds, of a kubelet's buckets for admissions."""

DRA_BUCKETS = tuple(0.1 * (40 / 0.1) ** (power / 14) for power in range(15))
"""The upper bounds, in seconds, of a kubelet's buckets for DRA operations."""

MAX_RESOURCES = 256
"""The maximum number of resources whose calls are counted. The least recently used resources are forgotten first."""

MAX_LABEL_LENGTH = 320
"""The maximum length of a resource's label. A valid resource name has at most 317 characters."""

_LABELS = ("resource_name",)
_STATES = ("free", "reserved", "allocated", "unhealthy")
_POD_RESOURCES = {"List": "list", "Get": "get", "GetAllocatableResources": "get_allocatable"}


class PrometheusMetrics:
    """Collects the kubelet's device metrics and exposes them in its own `registry`. Thread-safe.

    One instance can measure both managers: `DeviceManager(metrics=...)` and `DraManager(metrics=...)`. To measure calls
    to DRA drivers, pass `driver_call` to `GrpcDriverTransport` as `observe`.

    To count calls to the pod-resources API, pass `pod_resources_request` to the server as `observe`.

    `devicecore_devices{resource_name, state}` is the number of devices that are `free` (healthy and not in use),
    `reserved` (an admission is in progress), `allocated`, and `unhealthy`. A device that is allocated and unhealthy is
    counted in both states, so that `unhealthy` is always capacity minus allocatable.
    """

    def __init__(self) -> None:
        self.registry: CollectorRegistry = CollectorRegistry()
        self._state: Callable[[], NodeState] | None = None
        self._plugins: Callable[[], Mapping[str, bool]] | None = None
        self._sink_problem: Callable[[], object] | None = None
        self._claims: Callable[[], ClaimCache] | None = None
        self._lock = threading.Lock()  # held while the fields below change
        self._calls: OrderedDict[str, _Calls] = (
            OrderedDict()
        )  # by resource, with the least recently used resource first
        self._admissions = _Histogram(ADMISSION_BUCKETS)
        self._failed_admissions = 0
        self._operations: dict[tuple[str, bool], _Histogram] = {}
        self._driver_calls: OrderedDict[tuple[str, str, str], _Histogram] = OrderedDict()  # limited like the resources
        self._saves: OrderedDict[str, _Saves] = OrderedDict()  # by file, limited like the resources
        self._pod_resources: dict[str, dict[str, int]] = {
            "requests_total": {},
            **{f"{kind}_{method}": {} for kind in ("requests", "errors") for method in _POD_RESOURCES.values()},
        }
        self.registry.register(self)

    def watch(
        self,
        *,
        state: Callable[[], NodeState] | None = None,
        claims: "Callable[[], ClaimCache] | None" = None,
        plugins: Callable[[], Mapping[str, bool]] | None = None,
        sink_problem: Callable[[], object] | None = None,
    ) -> None:
        """From now on, show the results of these functions at each scrape.

        `__init__` does not take these functions, because managers are created after their metrics.

        Args:
            state: the state whose devices are counted, such as `lambda: manager.state`.
            claims: the claims that are counted if they are prepared, such as `lambda: dra_manager.claims`.
            plugins: for the socket of each plugin that a plugin watcher has found, whether the plugin is registered.
            sink_problem: why the node's status cannot be published, or None.

        Raises:
            TypeError: an argument is a value, such as `manager.state`, instead of a function.
        """
        given = {"state": state, "claims": claims, "plugins": plugins, "sink_problem": sink_problem}
        for name, function in given.items():
            if function is not None:
                check_callable(f"PrometheusMetrics.watch: {name}", function)
        self._state = state or self._state
        self._claims = claims or self._claims
        self._plugins = plugins or self._plugins
        self._sink_problem = sink_problem or self._sink_problem

    def device_plugin_registration(self, resource: str) -> None:
        """Count a Register call."""
        with self._lock:
            _of(self._calls, foreign_text(resource, MAX_LABEL_LENGTH), _Calls).registrations += 1

    def device_plugin_alloc_duration(self, resource: str, seconds: float) -> None:
        """Count an Allocate call."""
        with self._lock:
            _of(self._calls, foreign_text(resource, MAX_LABEL_LENGTH), _Calls).durations.add(seconds)

    def topology_manager_admission(self, seconds: float, *, failed: bool) -> None:
        """Count an admission."""
        with self._lock:
            self._admissions.add(float(int(seconds * 1000)))  # a kubelet measures whole milliseconds
            self._failed_admissions += failed

    def dra_operation(self, operation: str, seconds: float, *, failed: bool) -> None:
        """Count an operation of a DRA manager."""
        with self._lock:
            self._operations.setdefault((operation, failed), _Histogram(DRA_BUCKETS)).add(seconds)

    def driver_call(self, driver: str, method: str, code: str, seconds: float) -> None:
        """Count a call to a DRA driver.

        `method` is the method's full name, and `code` is the gRPC code as Go spells it.
        """
        with self._lock:
            key = (foreign_text(driver, MAX_LABEL_LENGTH), method, code)
            _of(self._driver_calls, key, partial(_Histogram, DRA_BUCKETS)).add(seconds)

    def pod_resources_request(self, method: str, version: str, failed: bool) -> None:  # noqa: FBT001 - as the server calls it
        """Count a call to the pod-resources API. A kubelet counts calls to v1alpha1 only in the total."""
        series = ["requests_total"]
        if version == "v1":
            series.append(f"requests_{_POD_RESOURCES[method]}")
            if failed:
                series.append(f"errors_{_POD_RESOURCES[method]}")
        with self._lock:
            for one in series:
                self._pod_resources[one][version] = self._pod_resources[one].get(version, 0) + 1

    def measured(self, store: CheckpointStore, file: str) -> CheckpointStore:
        """Return a store that behaves like `store` and whose saves are measured under the name `file`.

        Stores of several managers may have the same name; their saves are counted together.

        Raises TypeError if `store` is not a store or `file` is not a string, for example because they are swapped.
        """
        check_adapter("measured(store, file): store", store, CheckpointStore)
        checked(file, str, "measured(store, file): file")

        def record(seconds: float, failed: bool) -> None:  # noqa: FBT001 - as `measured` calls it
            with self._lock:
                saves = _of(self._saves, foreign_text(file, MAX_LABEL_LENGTH), _Saves)
                saves.durations.add(seconds)
                saves.failed += failed

        return MeasuredStore(store, record)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics (prometheus_client: `Collector`)."""
        # The library's Counter and Histogram are not used, because they add a `_created` series to each metric. A
        # kubelet has no such series, and they can be switched off only for a whole process.
        with self._lock:
            calls = {name: (of.registrations, of.durations.read()) for name, of in sorted(self._calls.items())}
            admissions, failed = self._admissions.read(), self._failed_admissions
            pod_resources = {series: dict(counts) for series, counts in self._pod_resources.items()}
            operations = {key: histogram.read() for key, histogram in self._operations.items()}
            driver_calls = {key: histogram.read() for key, histogram in self._driver_calls.items()}
            saves = {file: (of.failed, of.durations.read()) for file, of in sorted(self._saves.items())}
        yield from _plugins(calls)
        yield from _topology_manager(*admissions, failed)
        yield from _pod_resources(pod_resources)
        yield from _dra(operations, driver_calls)
        yield from _checkpoints(saves)
        if self._claims is not None:
            yield _claims_in_use(self._claims())
        if self._plugins is not None:
            yield _total_plugins(self._plugins())
        yield _devices(devices_by_state(self._state()) if self._state else iter(()))
        if self._sink_problem is not None:
            yield GaugeMetricFamily(
                "devicecore_node_status_published",
                "Whether the newest capacity and allocatable are published: 0 while a problem prevents it.",
                value=float(self._sink_problem() is None),
            )

    @checks_arguments()
    def serve(self, port: int, host: str = "127.0.0.1", problem: Callable[[], str] = str) -> "MetricsServer":
        """Answer scrapes over HTTP, on any path but `/healthz`; port 0 means any free port.

        The caller must stop the returned server. `/healthz` answers 200, or 503 with the sentence that `problem`
        returns if that is not empty.

        Raises:
            CannotListenError: the port is in use, or this process may not use it.
            TypeError: the port is not a number.
        """
        checked(port, int, "PrometheusMetrics.serve: port")
        server = MetricsServer(self.registry, host, port, problem)
        try:
            server.start()
        except (OSError, OverflowError) as error:
            raise CannotListenError(host, port, getattr(error, "strerror", None) or str(error)) from error
        return server


def devices_by_state(state: NodeState) -> Iterator[tuple[ResourceName, str, int]]:
    """Yield the number of devices in each state, for each resource that a plugin reports or a container holds."""
    reserved: dict[ResourceName, DeviceSet] = {}
    for reservation in state.ledger.reservations:  # devices reused inside a pod are already allocated
        allocations = state.ledger.of_pod(reservation.key.pod)
        allocated = (one.devices for one in allocations if one.resource == reservation.resource)
        devices = reduce(sub, allocated, reservation.devices)
        reserved[reservation.resource] = reserved.get(reservation.resource, DeviceSet()) | devices
    for resource in sorted({*state.inventory.resources, *state.ledger.resources}):
        in_use = state.ledger.in_use(resource)
        report = state.inventory.current_report(resource)
        yield resource, "free", len(report.healthy - in_use) if report else 0
        yield resource, "reserved", len(reserved.get(resource, ()))
        yield resource, "allocated", len(in_use) - len(reserved.get(resource, ()))
        yield resource, "unhealthy", len(report.unhealthy) if report else 0


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _of(values: OrderedDict[_Key, _Value], key: _Key, make: Callable[[], _Value]) -> _Value:
    """Return the value for a key. If there are too many keys, forget the least recently used key."""
    value = values.get(key) or values.setdefault(key, make())
    values.move_to_end(key)
    if len(values) > MAX_RESOURCES:
        values.popitem(last=False)
    return value


_Buckets = list[tuple[str, int]]  # the upper bounds as Go writes them, and the number of samples up to each bound
_Read = tuple[_Buckets, float]  # the buckets, and the sum of all durations


@define
class _Histogram:
    """Counts calls by duration, with one number for each bucket. The caller must hold a lock."""

    bounds: Sequence[float]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, duration: float) -> None:
        self.counts[bisect_left(self.bounds, duration)] += 1
        self.total += duration

    def read(self) -> _Read:
        bounds = (*(repr(bound).removesuffix(".0") for bound in self.bounds), "+Inf")
        return list(zip(bounds, accumulate(self.counts), strict=True)), self.total


@define
class _Calls:
    """The calls of one resource's plugin."""

    registrations: int = 0
    durations: _Histogram = Factory(lambda: _Histogram(BUCKETS))


@define
class _Saves:
    """The saves of one file."""

    failed: int = 0
    durations: _Histogram = Factory(lambda: _Histogram(BUCKETS))


MetricT = TypeVar("MetricT", CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily)


def _family(
    kind: type[MetricT], name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], Any]]
) -> MetricT:
    """Return a metric with labels.

    Each sample contains the values of the labels, and either a number or what `_Histogram.read` returns.
    """
    metric = kind(name, text, labels=labels)
    for values, sample in samples:
        metric.add_metric(values, *(sample if isinstance(sample, tuple) else (sample,)))
    return metric


def _plugins(calls: Mapping[str, tuple[int, _Read]]) -> Iterator[Metric]:
    """Yield the number of plugin registrations, and the durations of Allocate calls, by resource."""
    yield _family(
        CounterMetricFamily,
        "kubelet_device_plugin_registration_total",
        "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.",
        _LABELS,
        (([resource], count) for resource, (count, _) in calls.items() if count),
    )
    yield _family(
        HistogramMetricFamily,
        "kubelet_device_plugin_alloc_duration_seconds",
        "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
        _LABELS,
        (([resource], read) for resource, (_, read) in calls.items() if read[0][-1][1]),
    )


def _devices(counts: Iterable[tuple[str, str, int]]) -> Metric:
    """Return the number of devices by resource and state."""
    return _family(
        GaugeMetricFamily,
        "devicecore_devices",
        "Devices by state. A device that is allocated and unhealthy is counted in both states.",
        (*_LABELS, "state"),
        (((resource, state), number) for resource, state, number in islice(counts, MAX_RESOURCES * len(_STATES))),
    )


def _topology_manager(buckets: _Buckets, total: float, failed: int) -> Iterator[Metric]:
    prefix = "kubelet_topology_manager_admission"
    yield CounterMetricFamily(f"{prefix}_requests_total", "[ALPHA] Pods that asked for admission.", buckets[-1][1])
    yield CounterMetricFamily(f"{prefix}_errors_total", "[ALPHA] Pods whose resources could not be aligned.", failed)
    help_text = "[ALPHA] How long admissions took, in milliseconds."
    yield HistogramMetricFamily(f"{prefix}_duration_ms", help_text, buckets, total)


def _dra(
    operations: Mapping[tuple[str, bool], _Read], driver_calls: Mapping[tuple[str, str, str], _Read]
) -> Iterator[Metric]:
    """Yield metrics of operations and driver calls, or nothing without dynamic resource allocation."""
    if operations:
        yield _family(
            HistogramMetricFamily,
            "dra_operations_duration_seconds",
            "[ALPHA] Duration in seconds to prepare or release the ResourceClaims of a pod.",
            ("operation_name", "is_error"),
            (((operation, str(failed).lower()), read) for (operation, failed), read in sorted(operations.items())),
        )
    if driver_calls:
        yield _family(
            HistogramMetricFamily,
            "dra_grpc_operations_duration_seconds",
            "[ALPHA] Duration in seconds of calls to DRA drivers.",
            ("driver_name", "method_name", "grpc_status_code"),
            sorted(driver_calls.items()),
        )


def _checkpoints(saves: Mapping[str, tuple[int, _Read]]) -> Iterator[Metric]:
    """Yield the metrics of saves by file, or nothing if no store is measured."""
    if saves:
        yield _family(
            HistogramMetricFamily,
            "devicecore_checkpoint_save_duration_seconds",
            "Duration in seconds of saves, including failed ones, by file.",
            ("file",),
            (([file], read) for file, (_, read) in saves.items()),
        )
        yield _family(
            CounterMetricFamily,
            "devicecore_checkpoint_save_failures_total",
            "Saves that failed, by file. The state is saved again with the next change.",
            ("file",),
            (([file], failed) for file, (failed, _) in saves.items()),
        )


def _claims_in_use(cache: "ClaimCache") -> Metric:
    counts = islice(cache.in_use().items(), MAX_RESOURCES)  # the first count is the total for all drivers
    return _family(
        GaugeMetricFamily,
        "dra_resource_claims_in_use",
        "[ALPHA] ResourceClaims that are prepared, by driver; <any> is the total.",
        ("driver_name",),
        (([foreign_text(driver, MAX_LABEL_LENGTH)], count) for driver, count in counts),
    )


def _total_plugins(sockets: Mapping[str, bool]) -> Metric:
    metric = GaugeMetricFamily(
        "plugin_manager_total_plugins", "[ALPHA] Number of plugins in Plugin Manager", labels=("socket_path", "state")
    )
    for path, is_registered in islice(sorted(sockets.items()), MAX_RESOURCES):
        socket = foreign_text(path, MAX_LABEL_LENGTH)
        metric.add_metric([socket, "desired_state_of_world"], 1)
        if is_registered:
            metric.add_metric([socket, "actual_state_of_world"], 1)
    return metric


def _pod_resources(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    for series, by_version in counts.items():
        name = f"kubelet_pod_resources_endpoint_{series}"
        what = series.replace("_", " for ", 1).replace("for total", "for all methods")
        # The library would append _total to a counter's name, but most of a kubelet's counters do not end with it.
        kind = "counter" if series.endswith("_total") else "unknown"
        metric = Metric(name.removesuffix("_total"), f"[ALPHA] Pod-resources API: {what}, by API version.", kind)
        for version, count in sorted(by_version.items()):
            metric.add_sample(name, {"server_api_version": version}, count)
        yield metric
