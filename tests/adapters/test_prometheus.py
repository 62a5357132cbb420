"""Metrics as a scraper gets them over HTTP."""

import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from devicecore import DeviceManager
from devicecore.adapters.file import FileStore
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.adapters.prometheus import MAX_LABEL_LENGTH, MAX_RESOURCES, PrometheusMetrics, devices_by_state
from devicecore.adapters.prometheus import server as server_module
from devicecore.adapters.prometheus.server import MAX_CONNECTIONS, CannotListenError, MetricsServer
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.dra.claims import ClaimCache, ClaimInfo, ClaimPhase
from devicecore.domain.dra.model import ClaimKey, ClaimUid, DriverName
from devicecore.domain.errors import SetUpError, StoreError
from devicecore.domain.inventory import DeviceReport, Inventory, Resource
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import (
    Container,
    ContainerKey,
    Device,
    DeviceId,
    Health,
    Pod,
    PodUid,
    Receipt,
    resource_name,
)
from devicecore.domain.node_state import NodeState
from devicecore.plugins.simulated import SimulatedPlugin
from tests.reliability.scale import scale

Patch = pytest.MonkeyPatch
DRIVER = DriverName("gpu.example.com")
GPU, NIC = resource_name("nvidia.com/gpu"), resource_name("acme.io/nic")

IDLE = scale(100, 900)
PATIENCE = 60.0
"""Seconds after which a test stops waiting for something that should happen at once."""


_ADMISSION, _CALLS = "kubelet_topology_manager_admission", "kubelet_pod_resources_endpoint"
NOTHING_ELSE = [
    f"# TYPE {_ADMISSION}_requests_total counter",
    f"{_ADMISSION}_requests_total 0.0",
    f"# TYPE {_ADMISSION}_errors_total counter",
    f"{_ADMISSION}_errors_total 0.0",
    f"# TYPE {_ADMISSION}_duration_ms histogram",
    *(f'{_ADMISSION}_duration_ms_bucket{{le="{0.05 * 2**power:g}"}} 0.0' for power in range(15)),
    f'{_ADMISSION}_duration_ms_bucket{{le="+Inf"}} 0.0',
    f"{_ADMISSION}_duration_ms_count 0.0",
    f"{_ADMISSION}_duration_ms_sum 0.0",
    f"# TYPE {_CALLS}_requests_total counter",
    *(
        f"# TYPE {_CALLS}_{kind}_{method} untyped"
        for kind in ("requests", "errors")
        for method in ("list", "get", "get_allocatable")
    ),
    "# TYPE devicecore_devices gauge",
]
"""The output of a scrape before anything has been counted, without help lines."""


def scraped(server: MetricsServer, accept: str = "text/plain") -> list[str]:
    request = urllib.request.Request(server.url, headers={"Accept": accept})  # noqa: S310 - http, to ourselves
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 - http, to ourselves
        text: str = answer.read().decode()
        return text.splitlines()


def devices(*healths: Health) -> list[Device]:
    return [Device(DeviceId(f"d{number}"), health) for number, health in enumerate(healths)]


@pytest.fixture
def metrics() -> PrometheusMetrics:
    return PrometheusMetrics()


@pytest.fixture
def server(metrics: PrometheusMetrics) -> Iterator[MetricsServer]:
    with metrics.serve(0) as server:
        yield server


Samples = Callable[[str], dict[str, float]]


@pytest.fixture
def samples(server: MetricsServer) -> Samples:
    """Return a function that scrapes the samples of one series, by their labels."""

    def samples(series: str) -> dict[str, float]:
        parsed = (re.fullmatch(rf"{series}(?:\{{(.*)\}})? (\S+)", line) for line in scraped(server))
        return {sample[1] or "": float(sample[2]) for sample in parsed if sample}

    return samples


class TestKubeletMetrics:
    def test_a_scrape_looks_like_a_kubelets(self, metrics: PrometheusMetrics, server: MetricsServer) -> None:
        metrics.device_plugin_registration(GPU)
        metrics.device_plugin_alloc_duration(GPU, 0.03)
        metrics.device_plugin_alloc_duration(GPU, 2.5)  # a value equal to a bucket's bound belongs to that bucket
        metrics.device_plugin_alloc_duration(GPU, 60.0)
        by_name = "Broken down by resource name."
        registrations, duration = (
            "kubelet_device_plugin_registration_total",
            "kubelet_device_plugin_alloc_duration_seconds",
        )
        buckets = [("0.005", 0), ("0.01", 0), ("0.025", 0), ("0.05", 1), ("0.1", 1), ("0.25", 1), ("0.5", 1), ("1", 1)]
        buckets += [("2.5", 2), ("5", 2), ("10", 2), ("+Inf", 3)]
        assert [line for line in scraped(server) if "device_plugin" in line] == [
            f"# HELP {registrations} [ALPHA] Cumulative number of device plugin registrations. {by_name}",
            f"# TYPE {registrations} counter",
            f'{registrations}{{resource_name="nvidia.com/gpu"}} 1.0',
            f"# HELP {duration} [ALPHA] Duration in seconds to serve a device plugin Allocation request. {by_name}",
            f"# TYPE {duration} histogram",
            *(f'{duration}_bucket{{le="{bound}",resource_name="nvidia.com/gpu"}} {n}.0' for bound, n in buckets),
            f'{duration}_count{{resource_name="nvidia.com/gpu"}} 3.0',
            f'{duration}_sum{{resource_name="nvidia.com/gpu"}} 62.53',
        ]

    def test_metrics_without_labels_are_there_from_the_beginning(self, server: MetricsServer) -> None:
        lines = [line for line in scraped(server) if not line.startswith("# HELP")]
        assert lines[-len(NOTHING_ELSE) :] == NOTHING_ELSE

    def test_an_admission_is_measured_in_whole_milliseconds(self, metrics: PrometheusMetrics, samples: Samples) -> None:
        for seconds, failed in ((0.0009, False), (0.0128, True), (0.9, False)):
            metrics.topology_manager_admission(seconds, failed=failed)
        series = "kubelet_topology_manager_admission"
        numbers = [samples(f"{series}_{name}")[""] for name in ("requests_total", "errors_total", "duration_ms_sum")]
        assert numbers == [3, 1, 912]
        buckets = samples(f"{series}_duration_ms_bucket")
        bounds = ["0.05", "0.1", "0.2", "0.4", "0.8", "1.6", "3.2", "6.4", "12.8", "25.6", "51.2", "102.4", "204.8"]
        assert list(buckets) == [f'le="{bound}"' for bound in (*bounds, "409.6", "819.2", "+Inf")]
        assert list(buckets.values()) == [1] * 8 + [2] * 7 + [3]

    def test_pod_resources_calls_are_counted_by_method_and_v1alpha1_in_total(
        self, metrics: PrometheusMetrics, samples: Samples
    ) -> None:
        calls = ["List", "Get", "Get", "Get", "GetAllocatableResources"]
        for number, method in enumerate(calls):
            metrics.pod_resources_request(method, "v1", number in {2, 4})
        metrics.pod_resources_request("List", "v1alpha1", failed=False)
        v1, v1alpha1 = 'server_api_version="v1"', 'server_api_version="v1alpha1"'
        series = "kubelet_pod_resources_endpoint"
        assert samples(f"{series}_requests_total") == {v1: 5, v1alpha1: 1}
        assert samples(f"{series}_requests_list") == {v1: 1}
        assert samples(f"{series}_requests_get") == {v1: 3}
        assert samples(f"{series}_requests_get_allocatable") == {v1: 1}
        assert samples(f"{series}_errors_list") == {}
        assert samples(f"{series}_errors_get") == {v1: 1}
        assert samples(f"{series}_errors_get_allocatable") == {v1: 1}

    def test_trouble_of_the_sink_is_shown(self, metrics: PrometheusMetrics, samples: Samples) -> None:
        assert samples("devicecore_node_status_published") == {}
        problem: str | None = None
        metrics.watch(sink_problem=lambda: problem)
        assert samples("devicecore_node_status_published") == {"": 1}
        problem = "no connection"
        assert samples("devicecore_node_status_published") == {"": 0}

    def test_openmetrics_is_spoken_too(self, metrics: PrometheusMetrics, server: MetricsServer) -> None:
        metrics.device_plugin_registration(GPU)
        lines = scraped(server, "application/openmetrics-text; version=1.0.0")
        assert 'kubelet_device_plugin_registration_total{resource_name="nvidia.com/gpu"} 1.0' in lines
        assert lines[-1] == "# EOF"
        assert not any("_created" in line for line in lines)

    def test_labels_are_bounded_and_the_least_recently_used_is_forgotten(
        self, metrics: PrometheusMetrics, server: MetricsServer, samples: Samples
    ) -> None:
        for number in range(2 * MAX_RESOURCES):
            metrics.device_plugin_registration(GPU)
            metrics.device_plugin_registration(f"acme.io/gpu-{number}")
            metrics.device_plugin_alloc_duration("x" * 1000 + str(number), 0.1)
        counted = samples("kubelet_device_plugin_registration_total")
        assert counted['resource_name="nvidia.com/gpu"'] == 2 * MAX_RESOURCES
        assert len(counted) <= MAX_RESOURCES
        assert sum(map(len, scraped(server))) < 1_000_000

    def test_no_count_is_lost_between_threads(self, metrics: PrometheusMetrics, samples: Samples) -> None:
        def count(_: int) -> None:
            metrics.device_plugin_registration(GPU)
            metrics.device_plugin_alloc_duration(GPU, 0.25)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(count, range(2000)))
        assert samples("kubelet_device_plugin_registration_total") == {'resource_name="nvidia.com/gpu"': 2000}
        assert samples("kubelet_device_plugin_alloc_duration_seconds_sum") == {'resource_name="nvidia.com/gpu"': 500}

    def test_two_instances_share_nothing(self, metrics: PrometheusMetrics, samples: Samples) -> None:
        PrometheusMetrics().device_plugin_registration(GPU)
        metrics.device_plugin_registration(NIC)
        assert samples("kubelet_device_plugin_registration_total") == {'resource_name="acme.io/nic"': 1}


class TestDevices:
    def test_a_scrape_shows_the_newest_state_of_the_manager(self, metrics: PrometheusMetrics, samples: Samples) -> None:
        transport = MemoryTransport()
        plugin = SimulatedPlugin(GPU, devices(*[Health.HEALTHY] * 4, Health.UNHEALTHY))
        with DeviceManager(transport, MemoryStore(), MemorySink(), metrics=metrics) as manager:
            metrics.watch(state=lambda: manager.state)
            assert samples("devicecore_devices") == {}
            transport.connect(plugin)
            manager.admit(Pod(PodUid("pod"), containers=(Container("main", {GPU: 2}),)))
            assert samples("devicecore_devices") == by_state(free=2, reserved=0, allocated=2, unhealthy=1)
            plugin.set_health("d0", Health.UNHEALTHY)
            assert samples("devicecore_devices") == by_state(free=2, reserved=0, allocated=2, unhealthy=2)
            manager.evict([PodUid("pod")])
            assert samples("devicecore_devices") == by_state(free=3, reserved=0, allocated=0, unhealthy=2)
        assert samples("kubelet_device_plugin_registration_total") == {'resource_name="nvidia.com/gpu"': 1}
        assert samples("kubelet_device_plugin_alloc_duration_seconds_count") == {'resource_name="nvidia.com/gpu"': 1}

    def test_devices_of_an_admission_in_flight_are_reserved(self, metrics: PrometheusMetrics, samples: Samples) -> None:
        asked, answer = threading.Event(), threading.Event()

        class Slow(SimulatedPlugin):
            def allocate(self, devices: object) -> ContainerAllocateResponse:
                asked.set()
                assert answer.wait(PATIENCE)
                return ContainerAllocateResponse()

        transport = MemoryTransport()
        with DeviceManager(transport, MemoryStore(), MemorySink()) as manager, ThreadPoolExecutor(1) as pool:
            metrics.watch(state=lambda: manager.state)
            transport.connect(Slow(GPU, devices(*[Health.HEALTHY] * 4)))
            admission = pool.submit(manager.admit, Pod(PodUid("pod"), containers=(Container("main", {GPU: 3}),)))
            assert asked.wait(PATIENCE)
            assert samples("devicecore_devices") == by_state(free=1, reserved=3, allocated=0, unhealthy=0)
            answer.set()
            admission.result(PATIENCE)
            assert samples("devicecore_devices") == by_state(free=1, reserved=0, allocated=3, unhealthy=0)

    def test_devices_that_a_pod_reuses_are_counted_once(self) -> None:
        held, more = DeviceSet.of([DeviceId("d0")]), DeviceSet.of([DeviceId("d0"), DeviceId("d1")])
        first, second = (ContainerKey(PodUid("pod"), name) for name in ("init", "main"))
        ledger = Ledger().reserve(first, GPU, held).confirm(first, GPU, Receipt(b""), lambda _: ())
        ledger = ledger.reserve(second, GPU, more, reusable=held)
        inventory = Inventory({GPU: Resource(GPU, report=DeviceReport.of(devices(*[Health.HEALTHY] * 3)))})
        assert list(devices_by_state(NodeState(inventory, ledger))) == [
            (GPU, "free", 1),
            (GPU, "reserved", 1),
            (GPU, "allocated", 1),
            (GPU, "unhealthy", 0),
        ]

    def test_allocated_devices_that_no_plugin_reports_are_counted(self) -> None:
        key = ContainerKey(PodUid("pod"), "main")
        reserved = Ledger().reserve(key, NIC, DeviceSet.of([DeviceId("d0")]))
        ledger = reserved.confirm(key, NIC, Receipt(b""), lambda _: ())
        states = {state: number for _, state, number in devices_by_state(NodeState(ledger=ledger))}
        assert states == {"free": 0, "reserved": 0, "allocated": 1, "unhealthy": 0}


def by_state(**numbers: int) -> dict[str, float]:
    return {f'resource_name="nvidia.com/gpu",state="{state}"': number for state, number in numbers.items()}


class TestServer:
    def test_a_port_in_use_is_refused_in_one_sentence(self, metrics: PrometheusMetrics, server: MetricsServer) -> None:
        with pytest.raises(CannotListenError) as caught:
            metrics.serve(server.port)
        assert isinstance(caught.value, SetUpError)
        assert str(caught.value) == f"cannot serve metrics on 127.0.0.1:{server.port}: Address already in use"

    @pytest.mark.parametrize(("port", "host"), [(70000, "127.0.0.1"), (0, "host.invalid"), (0, "192.0.2.1")])
    def test_an_address_that_cannot_be_bound_is_refused(self, metrics: PrometheusMetrics, port: int, host: str) -> None:
        with pytest.raises(CannotListenError, match=f"cannot serve metrics on {host}:{port}: "):
            metrics.serve(port, host)

    def test_idle_connections_are_limited_and_closed(self, metrics: PrometheusMetrics, monkeypatch: Patch) -> None:
        monkeypatch.setattr(server_module, "MAX_CONNECTION_SECONDS", 0.5)
        with metrics.serve(0) as server, ExitStack() as idle:
            threads = threading.active_count()
            place = ("127.0.0.1", server.port)
            connections = [idle.enter_context(socket.create_connection(place)) for _ in range(IDLE)]
            for connection in connections[MAX_CONNECTIONS:]:
                connection.settimeout(PATIENCE)
                assert connection.recv(1) == b""  # the connection is closed at once
            assert threading.active_count() <= threads + MAX_CONNECTIONS
            for connection in connections[:MAX_CONNECTIONS]:
                connection.settimeout(PATIENCE)
                assert connection.recv(1) == b""  # the connection is closed at its deadline
            deadline = time.monotonic() + PATIENCE
            while True:  # the threads of the closed connections may not have ended yet
                try:
                    assert scraped(server)
                    break
                except OSError:
                    assert time.monotonic() < deadline

    def test_a_request_that_arrives_byte_by_byte_is_ended(self, metrics: PrometheusMetrics, monkeypatch: Patch) -> None:
        monkeypatch.setattr(server_module, "MAX_CONNECTION_SECONDS", 0.5)
        with metrics.serve(0) as server, socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.settimeout(0.05)
            with pytest.raises(OSError, match=r"reset|Broken pipe"):  # noqa: PT012 - some byte is one too many
                for _ in range(int(PATIENCE / 0.05)):
                    slow.send(b"x")
                    with suppress(TimeoutError):
                        slow.recv(1)
            assert scraped(server)

    @pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
    def test_ipv6_is_served_too(self, metrics: PrometheusMetrics) -> None:
        try:
            server = metrics.serve(0, "::1")
        except CannotListenError as error:
            pytest.skip(f"no IPv6 here: {error}")
        with server:
            assert scraped(server)


def test_dra_is_measured_as_a_kubelet_measures_it() -> None:
    metrics = PrometheusMetrics()
    # this registry has only the metrics of device plugins
    assert not [one for one in metrics.registry.collect() if one.name.startswith("dra_")]
    key = ClaimKey("default", "one")
    claims = (
        ClaimInfo(key, ClaimUid("c-1"), drivers={DRIVER: None}, phase=ClaimPhase.PREPARED),
        ClaimInfo(ClaimKey("default", "two"), ClaimUid("c-2"), drivers={DRIVER: None}),
    )
    metrics.watch(claims=lambda: ClaimCache.of(claims))
    metrics.watch(plugins=lambda: {"/reg/a.sock": True, "/reg/b.sock": False})
    metrics.dra_operation("PrepareResources", 0.25, failed=True)
    path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
    metrics.driver_call(DRIVER, path, "Unavailable", 45.0)
    read = metrics.registry.get_sample_value
    plugins = [
        (path, read("plugin_manager_total_plugins", {"socket_path": path, "state": f"{state}_state_of_world"}))
        for path in ("/reg/a.sock", "/reg/b.sock")
        for state in ("desired", "actual")
    ]
    assert plugins == [("/reg/a.sock", 1), ("/reg/a.sock", 1), ("/reg/b.sock", 1), ("/reg/b.sock", None)]
    operation = {"operation_name": "PrepareResources", "is_error": "true"}
    assert read("dra_operations_duration_seconds_bucket", {**operation, "le": "0.1"}) == 0
    assert read("dra_operations_duration_seconds_bucket", {**operation, "le": "40"}) == 1
    labels = {"driver_name": DRIVER, "method_name": path, "grpc_status_code": "Unavailable"}
    assert read("dra_grpc_operations_duration_seconds_bucket", {**labels, "le": "40"}) == 0
    assert read("dra_grpc_operations_duration_seconds_sum", labels) == 45.0
    assert read("dra_resource_claims_in_use", {"driver_name": "<any>"}) == 1
    assert read("dra_resource_claims_in_use", {"driver_name": DRIVER}) == 1


def test_names_of_many_drivers_need_bounded_memory() -> None:
    metrics = PrometheusMetrics()
    for number in range(MAX_RESOURCES + 10):
        metrics.driver_call(f"{number}" * 1000, "m", "OK", 0.1)
    (family,) = (one for one in metrics.registry.collect() if one.name == "dra_grpc_operations_duration_seconds")
    names = {sample.labels["driver_name"] for sample in family.samples}
    assert len(names) == MAX_RESOURCES
    assert max(map(len, names)) <= MAX_LABEL_LENGTH


def test_saves_are_measured_and_failed_ones_are_counted_by_file(
    metrics: PrometheusMetrics, samples: Samples, tmp_path: Path
) -> None:
    store = metrics.measured(FileStore(tmp_path / "file"), "good")
    store.save(b"first")
    store.save(b"second")
    assert store.load() == b"second"
    with pytest.raises(StoreError):
        metrics.measured(FileStore(tmp_path / "no" / "file"), "bad").save(b"first")
    count = "devicecore_checkpoint_save_duration_seconds_count"
    assert samples(count) == {'file="good"': 2.0, 'file="bad"': 1.0}
    assert samples("devicecore_checkpoint_save_failures_total") == {'file="good"': 0.0, 'file="bad"': 1.0}
