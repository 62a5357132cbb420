"""DRA drivers over real sockets: connections, calls that fail, health, and drivers that misbehave.

The misbehaving drivers use grpc's synchronous API and plain bytes, so that both sides cannot share a misunderstanding.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from devicecore.adapters.grpc_unix import GrpcUnixTransport, KubeletUnreachableError, serve_plugin, watcher
from devicecore.adapters.grpc_unix.dra import (
    DriverLimits,
    GrpcDriverTransport,
    ServedDriver,
    calls,
    client,
    serve_driver,
)
from devicecore.domain.dra.answers import PrepareResult
from devicecore.domain.dra.drivers import (
    SERVICES,
    DriverConnected,
    DriverDisconnected,
    DriverEvent,
    DriverRegistered,
    DriverRemoved,
    HealthEnded,
    HealthReported,
    InstanceId,
)
from devicecore.domain.dra.errors import DriverCallError, DriverNotRegisteredError
from devicecore.domain.dra.health import DraHealth, ReportedHealth
from devicecore.domain.dra.model import ClaimKey, ClaimRef, ClaimUid, PreparedDevice
from devicecore.domain.errors import DirectoryError
from devicecore.ports.dra_driver import DraDriver
from devicecore.testing.contracts.dra_drivers import GPU_DRIVER, NIC_DRIVER, AnsweringDriver, DriverEvents
from devicecore.wire import dra_health_v1alpha1, dra_v1, pluginregistration
from tests.adapters.peers import PATIENCE, Answer, Gpus, answering

CLAIM = ClaimRef(ClaimKey("default", "one"), ClaimUid("u1"))
PREPARED = {CLAIM.uid: PrepareResult((PreparedDevice("pool", "gpu-0", None, ("r",), ("example.com/gpu=0",)),))}
HEALTHY = ReportedHealth("pool", "gpu-0", DraHealth.HEALTHY)
PREPARE_PATH = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
WATCH_PATH = "NodeWatchResources"
ENDS_IDLE_CONNECTIONS = [("grpc.max_connection_idle_ms", 200)]
"""Options with which a gRPC server ends connections that have been idle for 200 ms."""

STARTED_TWICE = """
import sys
from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport
from devicecore.domain.dra.drivers import DriverDisconnected, HealthReported
from devicecore.testing.contracts.dra_drivers import DriverEvents
for transport in (first := GrpcDriverTransport(sys.argv[1]), GrpcDriverTransport(sys.argv[1])):
    events = DriverEvents()
    transport.start(events)
    events.wait_for(HealthReported)
    if transport is not first:
        print("connected again", flush=True)
        events.wait_for(DriverDisconnected)
    transport.stop()
"""


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "INTERVAL", 0.02)
    monkeypatch.setattr(watcher, "FIRST_PAUSE", 0.05)


class RecordedEvents(DriverEvents):
    """A listener that records events, and can return all health reports, or the kinds of one instance's events."""

    def reports(self, count: int) -> list[tuple[ReportedHealth, ...]]:
        self.wait_for(HealthReported, count)
        with self._changed:
            return [event.devices for event in self._events if isinstance(event, HealthReported)]

    def kinds(self, instance: InstanceId) -> list[type[DriverEvent]]:
        with self._changed:
            return [type(event) for event in self._events if event.instance == instance]


@contextmanager
def started(
    directory: Path, listener: Callable[[DriverEvent], None], limits: DriverLimits = DriverLimits()
) -> Iterator[GrpcDriverTransport]:
    transport = GrpcDriverTransport(directory, limits=limits)
    transport.start(listener)
    try:
        yield transport
    finally:
        transport.stop()


def served(directory: Path, driver: DraDriver, name: str = "reg.sock", **options: object) -> ServedDriver:
    return serve_driver(driver, directory, socket_name=name, **options)  # type: ignore[arg-type]  # as serve_driver says


def raw_driver(
    directory: Path,
    answers: Mapping[str, Answer],
    services: Sequence[str] = SERVICES[:1],
    options: Sequence[tuple[str, object]] = (),
    /,
    **info: str,
) -> AbstractContextManager[list[str]]:
    """Serve a driver that answers with bytes.

    Yield the requested paths. `options` are passed to the driver's gRPC server.
    """

    def get_info(_: bytes, __: grpc.ServicerContext) -> bytes:
        given = {"type": "DRAPlugin", "name": GPU_DRIVER, **info}
        return pluginregistration.PluginInfo(supported_versions=services, **given).SerializeToString()

    known = {"/GetInfo": get_info, "/NotifyRegistrationStatus": b"", **answers}
    return answering(directory / "raw.sock", known, options)


class TestCalls:
    def test_each_call_is_observed_with_its_code_and_its_time(self, directory: Path) -> None:
        recorded, observed = RecordedEvents(), list[tuple[str, str, str, float]]()
        transport = GrpcDriverTransport(directory, observe=lambda *call: observed.append(call))
        transport.start(recorded)
        path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node"
        refuse = {"UnprepareResources": lambda _, context: context.abort(grpc.StatusCode.INTERNAL, "broken")}
        with raw_driver(directory, {"NodePrepareResources": lambda _, __: b"", **refuse}):
            (instance,) = recorded.wait_for(DriverConnected)
            transport.prepare(instance, [])
            with pytest.raises(DriverCallError):
                transport.unprepare(instance, [])
        transport.stop()
        assert [call[:3] for call in observed] == [
            (GPU_DRIVER, f"{path}PrepareResources", "OK"),
            (GPU_DRIVER, f"{path}UnprepareResources", "Internal"),
        ]
        assert all(0 <= call[3] < PATIENCE for call in observed)

    def test_a_cut_connection_is_reestablished_and_the_driver_stays_registered(self, directory: Path) -> None:
        recorded = RecordedEvents()
        answers = {"NodePrepareResources": lambda _, __: b""}
        with started(directory, recorded) as transport, raw_driver(directory, answers):
            (instance,) = recorded.wait_for(DriverConnected)
            transport.disconnect(instance)
            recorded.wait_for(DriverConnected, 2)
            assert transport.prepare(instance, []) == {}
            assert DriverRemoved not in recorded.kinds(instance)

    def test_a_call_outlives_the_end_of_another_connection_of_its_driver(self, directory: Path) -> None:
        recorded, release = RecordedEvents(), threading.Event()
        slow = {"/NodePrepareResources": lambda _, __: release.wait(PATIENCE) and b""}
        with (
            started(directory, recorded) as transport,
            raw_driver(directory, slow, SERVICES[:1], ENDS_IDLE_CONNECTIONS),
            ThreadPoolExecutor(1) as caller,
        ):
            (instance,) = recorded.wait_for(DriverConnected)
            prepared = caller.submit(transport.prepare, instance, [])
            recorded.wait_for(DriverDisconnected)
            release.set()
            assert prepared.result(PATIENCE) == {}

    def test_a_silent_driver_fails_in_time_and_delays_no_other(self, directory: Path) -> None:
        recorded, release = DriverEvents(), threading.Event()
        nic = AnsweringDriver(NIC_DRIVER)
        nic.prepared = PREPARED
        silent = {"/NodePrepareResources": lambda _, __: release.wait(PATIENCE) and b""}
        with (
            started(directory, recorded, limits=DriverLimits(call=5.0)) as transport,
            raw_driver(directory, silent),
            served(directory, nic),
            ThreadPoolExecutor(1) as caller,
        ):
            instances = {instance.driver: instance for instance in recorded.wait_for(DriverConnected, 2)}
            late = caller.submit(transport.prepare, instances[GPU_DRIVER], [CLAIM])
            assert transport.prepare(instances[NIC_DRIVER], [CLAIM]) == PREPARED
            with pytest.raises(DriverCallError) as failed:
                late.result()
            release.set()
        assert str(failed.value).endswith("code = DeadlineExceeded desc = context deadline exceeded")
        assert failed.value.unanswered

    def test_a_driver_without_a_service_socket_is_registered_and_calls_fail_at_once(self, directory: Path) -> None:
        recorded = DriverEvents()
        with started(directory, recorded) as transport, raw_driver(directory, {}, endpoint="/nowhere/dra.sock"):
            (instance,) = recorded.wait_for(DriverRegistered)
            with pytest.raises(DriverCallError) as failed:
                transport.prepare(instance, [CLAIM])
            assert recorded.of(DriverConnected) == []
        assert str(failed.value) == (
            "NodePrepareResources: rpc error: code = Unavailable desc = connection error: desc = "
            '"transport: Error while dialing: dial unix /nowhere/dra.sock: connect: no such file or directory"'
        )
        assert not failed.value.unanswered

    @pytest.mark.parametrize("connected_again", [False, True])
    def test_a_call_fails_when_its_driver_is_removed(self, directory: Path, *, connected_again: bool) -> None:
        recorded, asked, release = DriverEvents(), threading.Event(), threading.Event()

        def silent(_: bytes, __: grpc.ServicerContext) -> bytes:
            asked.set()
            release.wait(PATIENCE)
            return b""

        with (
            started(directory, recorded) as transport,
            raw_driver(
                directory,
                {"/NodePrepareResources": silent},
                SERVICES[:1],
                ENDS_IDLE_CONNECTIONS if connected_again else (),
            ),
            ThreadPoolExecutor(1) as caller,
        ):
            (instance,) = recorded.wait_for(DriverConnected)
            call = caller.submit(transport.prepare, instance, [CLAIM])
            assert asked.wait(PATIENCE)
            if connected_again:
                recorded.wait_for(DriverConnected, 2)
            (directory / "raw.sock").unlink()
            with pytest.raises(DriverCallError, match="the client connection is closing") as failed:
                call.result(PATIENCE)
            release.set()
            assert recorded.wait_for(DriverRemoved) == [instance]
        assert failed.value.code == "Canceled"
        assert failed.value.unanswered

    @pytest.mark.parametrize(
        ("answer", "sentence"),
        [
            (b"\xff", "code = Internal desc = grpc: failed to unmarshal the received message"),
            (b"\x0a" + b"\x03\x0a\x01\xff", "code = Internal desc = grpc: failed to unmarshal the received message"),
            (
                bytes(4 * 1024 * 1024 + 1),
                "code = ResourceExhausted desc = grpc: received message larger than max (4194305",
            ),
            (
                dra_v1.NodePrepareResourcesResponse(
                    claims={"u1": dra_v1.NodePrepareResourceResponse(devices=[dra_v1.Device()] * 10_001)}
                ).SerializeToString(),
                "code = ResourceExhausted desc = the driver sent 10001 devices, expected at most 10000",
            ),
        ],
        ids=["no message", "no text", "too long", "too many devices"],
    )
    def test_an_answer_that_cannot_be_used_is_an_error(self, directory: Path, answer: bytes, sentence: str) -> None:
        recorded = DriverEvents()
        answers = {"/NodePrepareResources": answer}
        with started(directory, recorded) as transport, raw_driver(directory, answers) as asked:
            (instance,) = recorded.wait_for(DriverConnected)
            with pytest.raises(DriverCallError) as failed:
                transport.prepare(instance, [CLAIM])
            assert PREPARE_PATH in asked
        assert sentence in str(failed.value)
        assert failed.value.unanswered

    def test_a_name_that_is_not_text_is_not_sent(self, directory: Path) -> None:
        recorded = DriverEvents()
        with started(directory, recorded) as transport, served(directory, AnsweringDriver()):
            (instance,) = recorded.wait_for(DriverConnected)
            with pytest.raises(DriverCallError, match="while marshaling"):
                transport.prepare(instance, [ClaimRef(ClaimKey("default", "\ud800"), ClaimUid("u"))])


class TestConnections:
    def test_a_lost_connection_is_reestablished(self, directory: Path) -> None:
        recorded, driver = RecordedEvents(), AnsweringDriver()
        driver.prepared = PREPARED
        registry, endpoint = directory / "registry", directory / "dra.sock"
        with started(registry, recorded) as transport, raw_driver(registry, {}, endpoint=str(endpoint)):
            (instance,) = recorded.wait_for(DriverRegistered)
            for number in (1, 2):
                with serve_driver(driver, directory, socket_name=endpoint.name):
                    assert recorded.wait_for(DriverConnected, number) == [instance] * number
                    assert transport.prepare(instance, [CLAIM]) == PREPARED
                recorded.wait_for(DriverDisconnected, number)
            assert recorded.of(DriverRemoved) == []

    def test_a_recreated_registration_socket_is_a_new_instance(self, directory: Path) -> None:
        recorded = RecordedEvents()
        with started(directory, recorded):
            with served(directory, AnsweringDriver()):
                recorded.wait_for(DriverConnected)
            with served(directory, AnsweringDriver()):
                old, new = recorded.wait_for(
                    DriverRegistered, 2
                )  # the old instance may first be connected to the new process
                assert recorded.wait_for(DriverRemoved) == [old]
        assert old.endpoint == new.endpoint
        assert old.generation < new.generation
        assert recorded.kinds(old)[-1] is DriverRemoved

    def test_a_driver_whose_sockets_are_cleaned_up_returns(self, directory: Path) -> None:
        recorded = DriverEvents()
        with started(directory, recorded), served(directory, AnsweringDriver(), poll_interval=0.02) as driver:
            recorded.wait_for(DriverConnected)
            Path(driver.registration).unlink()
            recorded.wait_for(DriverConnected, 2)
            assert driver.registered

    def test_a_transport_that_starts_again_finds_its_drivers(self, directory: Path) -> None:
        recorded, again = DriverEvents(), DriverEvents()
        driver = AnsweringDriver()
        driver.prepared = PREPARED
        with served(directory, driver), started(directory, recorded) as transport:
            (old,) = recorded.wait_for(DriverConnected)
            transport.stop()
            transport.start(again)
            (new,) = again.wait_for(DriverConnected)
            assert transport.prepare(new, [CLAIM]) == PREPARED
            with pytest.raises(DriverCallError, match="closing"):
                transport.prepare(old, [CLAIM])

    def test_a_process_that_starts_twice_says_nothing_when_its_driver_ends(self, directory: Path) -> None:
        driver = served(directory, AnsweringDriver(), poll_interval=0.02)
        command = [sys.executable, "-c", STARTED_TWICE, str(directory)]
        with driver, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            driver.report([HEALTHY])
            assert process.stdout is not None
            assert process.stdout.readline() == "connected again\n"
            driver.stop()
            assert process.communicate(timeout=PATIENCE) == ("", "")

    def test_one_watcher_serves_device_plugins_and_drivers(self, directory: Path) -> None:
        recorded = DriverEvents()
        registry = directory / "registry"
        drivers = GrpcDriverTransport()
        plugins = GrpcUnixTransport(directory, plugins_registry=registry, handlers=[drivers.handler])
        plugins.start(lambda _: None)
        drivers.start(recorded)
        with served(registry, AnsweringDriver()), serve_plugin(Gpus("d0"), registry=registry) as plugin:
            recorded.wait_for(DriverConnected)
            plugin.wait_registered(PATIENCE)
            drivers.stop()
            again = DriverEvents()
            drivers.start(again)  # the watcher continues to run, and contacts drivers again
            again.wait_for(DriverConnected)
        drivers.stop()
        plugins.stop()

    def test_a_slow_listener_delays_no_other_driver(self, directory: Path) -> None:
        recorded, release = DriverEvents(), threading.Event()

        def listener(event: DriverEvent) -> None:
            if isinstance(event, DriverConnected) and event.instance.driver == GPU_DRIVER:
                release.wait(PATIENCE)
            recorded(event)

        with started(directory, listener), served(directory, AnsweringDriver(), "a.sock"):
            recorded.wait_for(DriverRegistered)
            with served(directory, AnsweringDriver(NIC_DRIVER), "b.sock"):
                (first,) = recorded.wait_for(DriverConnected)
                release.set()
        assert first.driver == NIC_DRIVER


class TestRegistration:
    @pytest.mark.parametrize(
        ("info", "sentence"),
        [
            ({"name": ""}, "expected a driver's name of 1 to 253 printable characters, got ''"),
            ({"name": "x" * 254}, "expected a driver's name of 1 to 253"),
            ({"name": "gpu\n.example.com"}, "expected a driver's name of 1 to 253"),
            ({"endpoint": "dra.sock"}, "it is not an absolute path of at most 107 bytes"),
            ({"endpoint": "/" + "x" * 107}, "it is not an absolute path of at most 107 bytes"),
            ({"type": "Teapot"}, "no handler registered for plugin type: Teapot"),
        ],
    )
    def test_what_cannot_be_a_driver_is_refused(self, directory: Path, info: dict[str, str], sentence: str) -> None:
        recorded, refusals, told = DriverEvents(), [], threading.Event()

        def notify(request: bytes, _: grpc.ServicerContext) -> bytes:
            refusals.append(pluginregistration.RegistrationStatus.FromString(request).error)
            told.set()
            return b""

        with started(directory, recorded), raw_driver(directory, {"/NotifyRegistrationStatus": notify}, **info):
            assert told.wait(PATIENCE)
        assert sentence in refusals[0]
        assert recorded.of(DriverRegistered) == []

    def test_a_driver_is_refused_if_the_listener_breaks(self, directory: Path) -> None:
        def listener(_: DriverEvent) -> None:
            message = "out of memory"
            raise ValueError(message)

        with started(directory, listener), served(directory, AnsweringDriver()) as driver:
            with pytest.raises(KubeletUnreachableError, match="the listener failed: out of memory"):
                driver.wait_registered(PATIENCE)
            assert not driver.registered

    def test_a_refused_driver_gets_the_sentence_of_the_listener_and_no_call(self, directory: Path) -> None:
        recorded = RecordedEvents()
        recorded.refusal = DriverNotRegisteredError(GPU_DRIVER)
        with (
            started(directory, recorded),
            served(directory, AnsweringDriver()) as driver,
            pytest.raises(KubeletUnreachableError) as refused,
        ):
            driver.wait_registered(PATIENCE)
        said = f"plugin registration failed with err: DRA driver {GPU_DRIVER} is not registered"
        assert refused.value.cause == f"RegisterPlugin error -- {said}"
        assert recorded.of(DriverConnected) == []

    def test_what_waits_for_a_registration_follows_it(self, directory: Path) -> None:
        """If a scheduler saw devices before the kubelet knew the driver, the kubelet would refuse the pods."""
        recorded, refusing, done = DriverEvents(), DriverEvents(), threading.Event()
        refusing.refusal = DriverNotRegisteredError(GPU_DRIVER)
        seen: list[object] = []

        def publish() -> None:
            seen.append(recorded.of(DriverRegistered))
            done.set()

        with served(directory, AnsweringDriver()) as driver:
            driver.when_registered(lambda: seen.append("replaced by the next one"))
            driver.when_registered(publish)
            with started(directory, refusing), pytest.raises(KubeletUnreachableError):
                driver.wait_registered(PATIENCE)
            assert seen == []
        with served(directory, AnsweringDriver()) as driver:
            driver.when_registered(publish)
            with started(directory, recorded):
                assert done.wait(PATIENCE)
                driver.when_registered(lambda: seen.append("at once"))
        assert seen == [recorded.of(DriverRegistered), "at once"]
        assert len(recorded.of(DriverRegistered)) == 1

    def test_a_driver_that_no_kubelet_asks_says_so(self, directory: Path) -> None:
        with (
            served(directory, AnsweringDriver()) as driver,
            pytest.raises(KubeletUnreachableError, match="no kubelet has queried this socket yet"),
        ):
            driver.wait_registered(0)
        assert list(directory.iterdir()) == []

    def test_a_driver_without_a_directory_is_refused(self, directory: Path) -> None:
        with pytest.raises(DirectoryError, match="missing"):
            served(directory / "missing", AnsweringDriver())

    def test_a_registry_that_others_may_write_to_is_refused(self, directory: Path) -> None:
        directory.chmod(0o777)
        with pytest.raises(DirectoryError, match="others may put files there"), started(directory, DriverEvents()):
            pass


@pytest.mark.parametrize(
    ("code", "details", "said", "unanswered"),
    [
        (grpc.StatusCode.UNAVAILABLE, "recvmsg: Connection reset by peer", "code = Unavailable desc = recvmsg", True),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; x", "connect: connection refused", False),
        (grpc.StatusCode.UNKNOWN, "Stream removed", "code = Unknown desc = Stream removed", True),
        (grpc.StatusCode.UNKNOWN, "busy", "code = Unknown desc = busy", False),
        (grpc.StatusCode.CANCELLED, "x", "code = Canceled desc = x", True),
        (grpc.StatusCode.INTERNAL, "RST_STREAM", "code = Internal desc = RST_STREAM", True),
        (grpc.StatusCode.NOT_FOUND, "y" * 20_000, "code = NotFound desc = yyy", False),
    ],
)
def test_only_a_status_of_the_driver_itself_is_its_answer(
    code: grpc.StatusCode, details: str, said: str, *, unanswered: bool
) -> None:
    error = calls.call_error("NodePrepareResources", "/dra.sock", AioRpcError(code, Metadata(), Metadata(), details))
    assert said in str(error)
    assert error.unanswered is unanswered
    assert len(str(error)) < 17_000


class TestHealth:
    def test_reports_arrive_at_once_and_after_changes_and_are_repeated(self, directory: Path) -> None:
        recorded = RecordedEvents()
        ill = ReportedHealth("pool", "gpu-0", DraHealth.UNHEALTHY, 7, "too hot")
        with started(directory, recorded), served(directory, AnsweringDriver(), report_period=0.1) as driver:
            driver.report([HEALTHY])
            assert recorded.reports(1)[0] == (HEALTHY,)
            driver.report([ill])
            recorded.wait_for(HealthReported, len(recorded.of(HealthReported)) + 3)
            assert recorded.reports(1)[-1] == (ill,)

    def test_the_stream_is_opened_again_after_its_end(self, directory: Path) -> None:
        def twice(_: bytes, __: grpc.ServicerContext) -> Iterator[bytes]:
            yield dra_health_v1alpha1.NodeWatchResourcesResponse(
                devices=[{"device": {"pool_name": "pool", "device_name": "gpu-0"}, "health": 1}]
            ).SerializeToString()

        recorded = RecordedEvents()
        with (
            started(directory, recorded, limits=DriverLimits(health_pause=0.01)),
            raw_driver(directory, {WATCH_PATH: twice}) as asked,
        ):
            recorded.wait_for(HealthEnded, 2)
            assert recorded.reports(2)[:2] == [(HEALTHY,), (HEALTHY,)]
        assert "/v1alpha1.DRAResourceHealth/NodeWatchResources" in asked

    def test_a_driver_that_lists_the_stable_service_is_called_through_it(self, directory: Path) -> None:
        recorded = RecordedEvents()
        services = (*SERVICES, "v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth")
        with started(directory, recorded), raw_driver(directory, {}, services) as asked:
            recorded.wait_for(HealthEnded)
        assert "/v1.DRAResourceHealth/NodeWatchResources" in asked

    def test_a_driver_without_health_is_called_once(self, directory: Path) -> None:
        recorded = RecordedEvents()
        limits = DriverLimits(health_pause=0.0)
        with started(directory, recorded, limits) as transport, raw_driver(directory, {}) as asked:
            (instance,) = recorded.wait_for(HealthEnded)
            for _ in range(20):  # during these calls, a second stream would be opened
                with pytest.raises(DriverCallError, match="Unimplemented"):
                    transport.prepare(instance, [CLAIM])
            assert [path for path in asked if path.endswith(WATCH_PATH)] == [
                f"/v1alpha1.DRAResourceHealth/{WATCH_PATH}"
            ]

    @pytest.mark.parametrize(
        "report",
        [
            b"\xff",
            dra_health_v1alpha1.NodeWatchResourcesResponse(
                devices=[dra_health_v1alpha1.DeviceHealth()] * 10_001
            ).SerializeToString(),
        ],
        ids=["no message", "too many devices"],
    )
    def test_a_report_that_cannot_be_used_ends_the_stream(
        self, directory: Path, report: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        def watch(_: bytes, __: grpc.ServicerContext) -> Iterator[bytes]:
            yield report
            threading.Event().wait(0.1)

        recorded = RecordedEvents()
        with started(directory, recorded), raw_driver(directory, {WATCH_PATH: watch}):
            recorded.wait_for(HealthEnded)
            assert recorded.of(HealthReported) == []
        assert f"the health of {GPU_DRIVER} is not known" in caplog.text

    def test_no_event_follows_the_removal_of_an_instance(self, directory: Path) -> None:
        """Reports that wait for a slow listener are dropped when the instance is removed."""
        recorded, reported, release = RecordedEvents(), threading.Event(), threading.Event()

        def listener(event: DriverEvent) -> None:
            if isinstance(event, HealthReported) and not reported.is_set():
                reported.set()
                release.wait(PATIENCE)
            recorded(event)

        with started(directory, listener), served(directory, AnsweringDriver()) as driver:
            driver.report([HEALTHY])
            assert reported.wait(PATIENCE)
            (instance,) = recorded.of(DriverConnected)
            driver.stop()  # ends the connection and the registration
            threading.Event().wait(0.2)
            release.set()
            recorded.wait_for(DriverRemoved)
            threading.Event().wait(0.2)
        assert recorded.kinds(instance)[-1] is DriverRemoved

    def test_a_flood_of_reports_is_slowed_down(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client, "REPORTS_PER_SECOND", 0.001)
        monkeypatch.setattr(client, "REPORTS_AT_ONCE", 3)
        sent: list[int] = []
        enough = threading.Event()

        def flood(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            while context.is_active() and len(sent) < 100:
                sent.append(1)
                yield b""
            enough.set()

        recorded = RecordedEvents()
        with started(directory, recorded), raw_driver(directory, {WATCH_PATH: flood}):
            assert enough.wait(PATIENCE)
            assert len(recorded.reports(3)) == 3
