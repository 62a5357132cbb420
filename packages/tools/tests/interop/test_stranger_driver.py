"""The driver transport with a driver that is not ours: it runs in a separate process and uses only generated stubs."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from devicecore_tools.testing.dra_kubelet import DraKubelet

from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport
from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.drivers import (
    DriverConnected,
    DriverDisconnected,
    DriverRegistered,
    DriverRemoved,
    HealthReported,
    InstanceId,
)
from devicecore.domain.dra.errors import DriverCallError, PrepareError
from devicecore.domain.dra.health import DraHealth
from devicecore.domain.dra.model import ClaimKey, ClaimRef, ClaimUid, PreparedDevice
from devicecore.testing.contracts import dra_drivers
from devicecore.testing.contracts.dra_drivers import DriverEvents
from tests.adapters.peers import PATIENCE, environment

DRIVER = Path(__file__).with_name("stranger_driver.py")
FIRST = PrepareResult((PreparedDevice("node", "n0", None, ("r",), ("stranger.org/npu=n0",)),))

Run = Callable[[], subprocess.Popen[bytes]]


def claim(name: str, uid: str) -> ClaimRef:
    return ClaimRef(ClaimKey("default", name), ClaimUid(uid))


@pytest.fixture
def run(stubs: Path, directory: Path) -> Iterator[Run]:
    """Yield a function that starts a stranger driver. All the drivers are killed at the end of the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, DRIVER, directory], env=environment(stubs))
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait(PATIENCE)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> DriverEvents:

    monkeypatch.setattr(dra_drivers, "EVENT_TIMEOUT", 60.0)  # because a process has to start
    return DriverEvents()


@pytest.fixture
def transport(directory: Path, heard: DriverEvents) -> Iterator[GrpcDriverTransport]:
    transport = GrpcDriverTransport(directory)
    transport.start(heard)
    yield transport
    transport.stop()


def connected(heard: DriverEvents, number: int = 1) -> InstanceId:
    return heard.wait_for(DriverConnected, number)[-1]


def test_its_answers_and_its_health_are_read(transport: GrpcDriverTransport, heard: DriverEvents, run: Run) -> None:
    run()
    npu = connected(heard)
    full = claim("full", "u2")
    assert transport.prepare(npu, [claim("one", "u1"), full]) == {"u1": FIRST, "u2": PrepareResult(error="no npu left")}
    assert transport.unprepare(npu, [claim("one", "u1"), full]) == {"u1": UnprepareResult(), "u2": UnprepareResult()}
    assert heard.wait_for(HealthReported) == [npu]


def test_dying_during_a_call_leaves_its_effect_unknown(
    transport: GrpcDriverTransport, heard: DriverEvents, run: Run
) -> None:
    process = run()
    npu = connected(heard)
    with ThreadPoolExecutor(1) as caller:
        call = caller.submit(transport.prepare, npu, [claim("hang", "u1")])
        transport.prepare(npu, [claim("one", "u2")])  # once the second call returns, the first has at least been sent
        process.kill()
        # The call ends with its connection, or earlier if the registrar's connection breaks first.
        ended = "NodePrepareResources: rpc error: code = (Unavailable|Canceled)"
        with pytest.raises(DriverCallError, match=ended) as failed:
            call.result(PATIENCE)
    assert failed.value.unanswered
    heard.wait_for(DriverDisconnected)
    assert heard.of(DriverRemoved) == []  # the driver's socket still exists
    run()
    assert heard.wait_for(DriverRemoved) == [npu]
    again = heard.wait_for(DriverRegistered, 2)[-1]
    assert transport.prepare(again, [claim("one", "u1")]) == {"u1": FIRST}


def test_the_kubelet_for_tests_runs_it(stubs: Path) -> None:
    name = "npu.stranger.org"
    with DraKubelet(timeout=PATIENCE) as kubelet:
        process = kubelet.run_driver(
            sys.executable, DRIVER, "{registry}", environment={"PYTHONPATH": str(stubs), "PYTHONUNBUFFERED": "1"}
        )
        kubelet.publish(name, "n0", "n1", pool="node")
        kubelet.wait_for_driver(name)
        pod = kubelet.prepare(kubelet.claim(name, devices=["n0"]))
        assert pod.cdi_devices() == ("stranger.org/npu=n0",)
        kubelet.wait_for_health(name, "n0", DraHealth.UNHEALTHY, pool="node")
        with pytest.raises(PrepareError, match="no npu left"):
            kubelet.prepare(kubelet.claim(name, devices=["n1"], name="full"))
        kubelet.restart()
        kubelet.wait_for_driver(name)
        pod.prepare()
        pod.delete()
        assert process.output.count("registered") == 2
        process.kill()  # the driver leaves its socket behind
        kubelet.wait_until("no connection", lambda: not kubelet.connected(name))
        kubelet.run_driver(sys.executable, DRIVER, "{registry}", environment={"PYTHONPATH": str(stubs)})
        kubelet.wait_for_driver(name)
