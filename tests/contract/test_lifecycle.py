"""Everything that can be started meets one contract, and objects that break the contract are caught."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import IO, ClassVar

import httpx2
import pytest
from attrs import define
from devicecore_fleet.cluster import object_watch, writer
from devicecore_fleet.cluster.pods import NodePods
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_tools.testing import process
from devicecore_tools.testing.api_server import LocalApiServer, http, server
from devicecore_tools.testing.process import PluginProcess
from devicecore_tools.testing.temporary import short_directory
from hypothesis import settings
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from devicecore import DeviceManager
from devicecore.adapters import prometheus
from devicecore.adapters.grpc_unix import GrpcUnixTransport, listening, loop, plugin_server, served, transport
from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport
from devicecore.adapters.grpc_unix.dra import server as driver_server
from devicecore.adapters.grpc_unix.dra import transport as driver_transport
from devicecore.adapters.kube_api import Access, KubeApiSink, dra, publishing, requests, slices
from devicecore.adapters.memory import MemoryStore, MemoryTransport
from devicecore.adapters.memory_dra import MemoryClaims, MemoryDriverTransport
from devicecore.adapters.pod_resources import PodResourcesClient, PodResourcesServer, Snapshot
from devicecore.adapters.pod_resources import client as pod_resources_client
from devicecore.adapters.pod_resources import server as pod_resources_server
from devicecore.adapters.prometheus.server import MetricsServer
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.dra.model import ClaimKey, DriverName
from devicecore.domain.dra.slices import PublishedDevice
from devicecore.domain.model import ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.dra_manager import DraManager
from devicecore.dra_manager import manager as dra_manager
from devicecore.manager import manager
from devicecore.plugins.directory import DirectoryPlugin
from devicecore.plugins.simulated import SimulatedPlugin
from devicecore.ports.context import Runs
from devicecore.runtime.lifecycle import Lifecycle
from devicecore.testing.contracts import lifecycle as lifecycle_contract
from devicecore.testing.contracts.lifecycle import LIFECYCLE, LifecycleHarness, MakeLifecycle
from tests.memory_manager import ActingSink, nothing
from tests.recorded import share

Check = Callable[[MakeLifecycle], None]

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def _some_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt each start and stop at some points; `make laws` interrupts them at all points."""
    if settings.get_current_profile_name() != "thorough":
        monkeypatch.setattr(lifecycle_contract, "_MOST_PLACES", 3)
        monkeypatch.setattr(lifecycle_contract, "_STEP", 11)


@define
class Harness:
    """Makes objects with `make`. The fields with a default are for features that only some classes have."""

    make: Callable[[], Runs]
    modules: Sequence[ModuleType]
    used: Callable[..., object] | None = None
    failing: Callable[[], AbstractContextManager[object]] | None = None
    called_back: Callable[..., object] | None = None
    directory: Path | None = None

    def new(self) -> Runs:
        return self.make()

    def use(self, subject: Runs) -> bool:
        return self.used is not None and self.used(subject) is not False

    def broken(self) -> AbstractContextManager[object] | None:
        return self.failing() if self.failing is not None else None

    def call_back(self, subject: Runs, action: Callable[[], object]) -> None:
        if self.called_back is not None:
            self.called_back(subject, action)


def answers(url: str, code: int = 200) -> bool:
    """Return whether a server listens. If it does, its answer must have this status code."""
    try:
        answer = httpx2.get(url, timeout=PATIENCE, verify=False)  # no verification: loading certificates takes time
    except httpx2.ConnectError:
        return False
    assert answer.status_code == code
    return True


# --- managers ---------------------------------------------------------------------------------------------------------


@contextmanager
def device_managers() -> Iterator[LifecycleHarness]:
    sink, plugins = ActingSink(), MemoryTransport()

    def call_back(_: DeviceManager, action: Callable[[], object]) -> None:
        sink.action = action
        plugins.connect(SimulatedPlugin("example.com/gpu"))
        sink.action = nothing

    yield Harness(
        lambda: DeviceManager(plugins, MemoryStore(), sink), [manager], DeviceManager.tick, called_back=call_back
    )


def dra_managers() -> AbstractContextManager[LifecycleHarness]:
    def new() -> DraManager:
        return DraManager(MemoryDriverTransport(), MemoryClaims(), MemoryStore())

    return nullcontext(Harness(new, [dra_manager], DraManager.tick))


# --- device plugins and DRA drivers over gRPC -------------------------------------------------------------------------


@define(eq=False)
class Listening(Runs):
    """A transport with a listener that ignores events."""

    transport: GrpcUnixTransport | GrpcDriverTransport

    def start(self) -> None:
        self.transport.start(self._listen)

    def stop(self) -> None:
        self.transport.stop()

    def _listen(self, _event: object) -> None: ...


@contextmanager
def plugin_transports() -> Iterator[LifecycleHarness]:
    with short_directory() as path:
        directory = Path(path)

        yield Harness(
            lambda: Listening(GrpcUnixTransport(directory, plugins_registry=directory / "registry")),
            [transport, listening, loop],
            failing=lambda: Listening(GrpcUnixTransport(directory)),
            directory=directory,
        )


@contextmanager
def unusable(directory: Path) -> Iterator[None]:
    """Put a file in place of the directory while the context lasts."""
    directory.rmdir()
    directory.touch()
    yield
    directory.unlink()
    directory.mkdir(0o700)


@contextmanager
def driver_transports() -> Iterator[LifecycleHarness]:
    with short_directory() as path:
        directory = Path(path)
        registry = directory / "registry"
        registry.mkdir(0o700)
        yield Harness(
            lambda: Listening(GrpcDriverTransport(registry)),
            [driver_transport, listening, loop],
            failing=lambda: unusable(registry),
        )


@contextmanager
def served_plugins() -> Iterator[LifecycleHarness]:
    with short_directory() as path:
        directory = Path(path)
        where = directory / "plugins"
        where.mkdir(0o700)

        def new() -> plugin_server.ServedPlugin:
            plugin = DirectoryPlugin("example.com/gpu", directory)
            return plugin_server.ServedPlugin(plugin, str(where / "a.sock"), str(where / "kubelet.sock"), 0.01)

        yield Harness(new, [plugin_server, served, loop], failing=lambda: unusable(where), directory=where)


@contextmanager
def served_drivers() -> Iterator[LifecycleHarness]:
    class Driver:
        name = "gpu.example.com"

    with short_directory() as path:
        directory = Path(path)
        where = directory / "registry"
        where.mkdir(0o700)

        def new() -> driver_server.ServedDriver:
            return driver_server.ServedDriver(
                Driver(),  # type: ignore[arg-type]  # nothing calls it
                str(where / "a-reg.sock"),
                None,
                services=["v1.DRAPlugin"],
                wait_for_registry=False,
                poll_interval=0.01,
                report_period=10.0,
            )

        yield Harness(new, [driver_server, served, loop], failing=lambda: unusable(where), directory=where)


# --- pod resources and metrics ----------------------------------------------------------------------------------------


@contextmanager
def pod_resources_servers() -> Iterator[LifecycleHarness]:
    with short_directory() as path:
        directory = Path(path)
        where = directory / "pod-resources"
        where.mkdir(0o700)
        actions: list[Callable[[], object]] = []

        def look() -> Snapshot:
            for action in actions:
                action()
            return Snapshot(NodeState(), ())

        def ask(subject: PodResourcesServer) -> None:
            with PodResourcesClient(subject.socket, timeout=PATIENCE) as client:
                client.get_allocatable_resources()

        def call_back(subject: PodResourcesServer, action: Callable[[], object]) -> None:
            actions.append(action)
            ask(subject)
            actions.clear()

        yield Harness(
            lambda: PodResourcesServer(where / "kubelet.sock", look, requests_per_second=1e6),
            [pod_resources_server],
            failing=lambda: unusable(where),
            called_back=call_back,
            directory=where,
        )


@contextmanager
def pod_resources_clients() -> Iterator[LifecycleHarness]:
    with short_directory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod_resources_server, "_THREADS", 1)  # the client would be blamed for a second server thread
        directory = Path(path)
        socket = directory / "kubelet.sock"
        with PodResourcesServer(socket, lambda: Snapshot(NodeState(), ()), requests_per_second=1e6, burst=1000):
            yield Harness(
                lambda: PodResourcesClient(socket, timeout=PATIENCE), [pod_resources_client], PodResourcesClient.list
            )


@contextmanager
def metrics_servers() -> Iterator[LifecycleHarness]:
    class Scraped(Collector):
        """Calls a given function while a scrape reads this collector."""

        action: Callable[[], object] = staticmethod(lambda: None)

        def collect(self) -> Iterator[Metric]:
            self.action()
            return iter(())

    collector, registry = Scraped(), CollectorRegistry()
    registry.register(collector)
    with MetricsServer(registry, "127.0.0.1", 0) as first:
        port = first.port

    def scrape(subject: MetricsServer) -> None:
        assert answers(subject.url)

    def call_back(subject: MetricsServer, action: Callable[[], object]) -> None:
        collector.action = action
        scrape(subject)
        collector.action = staticmethod(lambda: None)

    def new() -> MetricsServer:
        return MetricsServer(registry, "127.0.0.1", port)

    yield Harness(new, [prometheus], scrape, failing=new, called_back=call_back)


# --- processes --------------------------------------------------------------------------------------------------------


@contextmanager
def processes() -> Iterator[LifecycleHarness]:
    actions: list[Callable[[], object]] = []

    def changed() -> None:
        while actions:
            actions.pop()()

    def call_back(subject: PluginProcess, action: Callable[[], object]) -> None:
        actions.append(action)
        subject.terminate()
        subject.wait(PATIENCE)

    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "plugin")

        @contextmanager
        def not_executable() -> Iterator[None]:
            program.chmod(0o600)
            yield
            program.chmod(0o700)

        program.write_text("#!/bin/sh\nexec sleep 600\n")
        program.chmod(0o700)
        yield Harness(
            lambda: PluginProcess([program], directory, changed=changed),
            [process],
            failing=not_executable,
            called_back=call_back,
        )


# --- an API server, and what talks to one -----------------------------------------------------------------------------


def api_servers() -> AbstractContextManager[LifecycleHarness]:
    return nullcontext(Harness(LocalApiServer, [server, http], lambda subject: answers(f"{subject.url}/readyz")))


SERVE = """
import os
import sys
from pathlib import Path
from devicecore_tools.testing.api_server import LocalApiServer
if os.fork():
    os._exit(0)
with LocalApiServer() as server:
    server.create({"kind": "Node", "metadata": {"name": "worker-1"}})
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
    server.create({"kind": "ResourceClaim", "metadata": {"name": "gpu", "namespace": "default"}, "spec": claim})
    server.kubeconfig(Path(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    """Start an API server in another process, so that the server's resources are not counted.

    The server is not a child of this process, so the check does not have to search for children that were left behind.
    """
    with tempfile.TemporaryDirectory() as directory:
        path, pipe = Path(directory, "kubeconfig"), subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", SERVE, str(path)], stdin=pipe, stdout=pipe, text=True) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            yield path  # leaving this block closes the server's standard input, which ends the process


def publish_status(subject: KubeApiSink) -> None:
    subject.publish(NodeStatus({ResourceName("example.com/gpu"): 1}))
    subject.wait_until_published(PATIENCE)


def publish_slices(subject: slices.KubeApiSlicePublisher) -> None:
    subject.publish([PublishedDevice("gpu-0")])
    subject.wait_until_published(PATIENCE)


def read_in_a_job(subject: writer.ApiWriter) -> bool:
    """Read a Node in several jobs, and return False: a writer accepts jobs even before it is started."""

    def job(client: KubeApiRequests) -> None:
        client.get(requests.NODES, "worker-1")

    for key in range(3):
        subject.put(key, job)
    return False


RUNNING: dict[str, MakeLifecycle] = {
    "device manager": device_managers,
    "DRA manager": dra_managers,
    "plugin transport": plugin_transports,
    "driver transport": driver_transports,
    "served plugin": served_plugins,
    "served driver": served_drivers,
    "pod resources server": pod_resources_servers,
    "pod resources client": pod_resources_clients,
    "metrics server": metrics_servers,
    "plugin process": processes,
    "API server": api_servers,
}

CLIENTS: dict[str, tuple[Callable[[Path], Runs], Callable[..., object], ModuleType]] = {
    "sink": (lambda config: KubeApiSink("worker-1", Access(config)), publish_status, publishing),
    "publisher of slices": (
        lambda config: slices.KubeApiSlicePublisher("gpu.example.com", "worker-1", Access(config)),
        publish_slices,
        publishing,
    ),
    "client of claims": (
        lambda config: dra.KubeApiClaims(Access(config)),
        lambda subject: subject.get(ClaimKey("default", "gpu")),
        dra,
    ),
    "client of objects": (
        lambda config: KubeApiRequests(Access(config)),
        lambda subject: subject.get(requests.NODES, "worker-1"),
        requests,
    ),
    "watch of pods": (
        lambda config: object_watch.KubeApiPods(NodePods({}), Access(config)),
        lambda _: False,
        object_watch,
    ),
    "writer": (lambda config: writer.ApiWriter(KubeApiRequests(Access(config)), threads=2), read_in_a_job, writer),
    "client of slices": (
        lambda config: dra.KubeApiSlices("worker-1", Access(config)),
        lambda subject: subject.delete(DriverName("gpu.example.com")),
        dra,
    ),
}


def some(names: Iterable[str]) -> list[tuple[Check, str]]:
    """Return every second pair of a sentence and an object's name, or all in `make laws`. Each of them occurs."""
    checks = [*LIFECYCLE], [*LIFECYCLE][1:] + [*LIFECYCLE][:1]
    return [(check, name) for row, name in enumerate(names) for check in share(checks[row % 2], of=2)]


@pytest.mark.parametrize(("check", "name"), some(RUNNING))
def test_what_starts_keeps_the_contract(check: Check, name: str) -> None:
    check(RUNNING[name])


@pytest.mark.parametrize(("check", "name"), some(CLIENTS))
def test_what_talks_to_an_api_server_keeps_the_contract(check: Check, name: str, kubeconfig: Path) -> None:
    new, use, module = CLIENTS[name]
    check(lambda: nullcontext(Harness(lambda: new(kubeconfig), [module], use)))


# --- the contract can fail --------------------------------------------------------------------------------------------


class Careful(Runs):
    """Meets the contract: keeps a file open while running, and calls `callback` in each use."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._lifecycle = Lifecycle("this")
        self.file: IO[str] | None = None

    def start(self) -> None:
        self._lifecycle.start(self.begin, self.end)

    def stop(self) -> None:
        self._lifecycle.stop(self.end)

    def begin(self) -> None:
        if Careless.fails:
            raise OSError
        self.file = Path(os.devnull).open()  # noqa: SIM115 - `end` closes it

    def end(self) -> None:
        if self.file is not None:
            self.file.close()

    def use(self) -> None:
        self._lifecycle.check_running()
        self._lifecycle.call("the callback", self._callback)

    def end_what_hangs(self) -> None: ...


class Careless(Careful):
    """Breaks every sentence of the contract: even its constructor and a failed start leave files open."""

    fails: ClassVar[bool] = False

    def __init__(self, callback: Callable[[], object]) -> None:
        super().__init__(callback)
        self._lock = threading.Lock()
        self._descriptors = [os.open(os.devnull, os.O_RDONLY)]

    def start(self) -> None:
        with self._lock:
            self._descriptors.append(os.open(os.devnull, os.O_RDONLY))
            if Careless.fails:
                raise OSError

    def stop(self) -> None:
        if len(self._descriptors) == 1:
            raise ValueError
        with self._lock:
            os.close(self._descriptors.pop())
            os.open(os.devnull, os.O_RDONLY)

    def use(self) -> None:
        with self._lock:
            self._callback()

    def end_what_hangs(self) -> None:
        if self._lock.locked():
            self._lock.release()

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("check", LIFECYCLE)
@pytest.mark.parametrize("kind", [Careful, Careless])
def test_each_check_catches_an_object_that_breaks_its_sentence(
    check: Check, kind: type[Careful], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that never fails, or that always fails, tests nothing."""
    monkeypatch.setattr(lifecycle_contract, "EVENT_TIMEOUT", 5.0 if kind is Careful else 0.2)
    monkeypatch.setattr(lifecycle_contract, "_SOON", 0.01)
    actions: list[Callable[[], object]] = []
    made: list[Careful] = []
    before = {*threading.enumerate()}

    def callback() -> None:
        for action in actions:
            action()

    def call_back(subject: Careful, action: Callable[[], object]) -> None:
        actions.append(action)
        subject.use()
        actions.clear()

    @contextmanager
    def failing() -> Iterator[None]:
        Careless.fails = True
        yield
        Careless.fails = False

    def new() -> Careful:
        made.append(kind(callback))
        return made[-1]

    harness = Harness(new, [sys.modules[__name__]], kind.use, failing, call_back)
    with pytest.raises(AssertionError) if kind is Careless else nullcontext():
        check(lambda: nullcontext(harness))
    for one in made:
        one.end_what_hangs()
    for thread in {*threading.enumerate()} - before:
        thread.join()  # Python 3.12.1 crashes if the next check traces a function in which a thread hangs
