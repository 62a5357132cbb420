"""The simulated DRA driver: what it prepares, over real sockets and with claims of an API server."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport
from devicecore.adapters.memory_dra import MemoryClaims
from devicecore.domain.dra.answers import UnprepareResult, is_cdi_name
from devicecore.domain.dra.drivers import DriverConnected, HealthReported
from devicecore.domain.dra.model import AllocatedDevice, ClaimKey, ClaimRef, ClaimUid, DriverName, ResourceClaim
from devicecore.plugins.simulated_driver import SimulatedDriver
from devicecore.testing.api_server import LocalApiServer
from devicecore.testing.contracts import dra_drivers
from devicecore.testing.contracts.dra_drivers import GPU_DRIVER, NIC_DRIVER, DriverEvents
from tests.adapters.peers import PATIENCE

KEY, UID = ClaimKey("default", "claim"), ClaimUid("0a1b-2c")
REF = ClaimRef(KEY, UID)
SHARE = "5e9f3a52-0000-4000-8000-000000000000"


def row(device: str, request: str = "r", driver: DriverName = GPU_DRIVER, share: str | None = None) -> AllocatedDevice:
    return AllocatedDevice(driver, "node", device, request, share)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., SimulatedDriver]:
    def made(*rows: AllocatedDevice, uid: str = UID, is_allocated: bool = True) -> SimulatedDriver:
        claims = MemoryClaims()
        claims.put(ResourceClaim(KEY, ClaimUid(uid), "", rows if is_allocated else None))
        return SimulatedDriver(GPU_DRIVER, "node", ["dev-0", "dev-1"], claims, tmp_path / "cdi")

    return made


def test_a_claim_gets_its_allocated_devices_and_a_cdi_file_each_time(
    make: Callable[..., SimulatedDriver], tmp_path: Path
) -> None:
    driver = make(row("dev-1", "r/sub", share=SHARE), row("dev-0", driver=NIC_DRIVER), row("dev-1", "s"))
    answer = driver.prepare([REF])
    first, second = answer[UID].devices
    assert (first.name, first.share_id, first.requests, second.requests) == ("dev-1", SHARE, ("r",), ("s",))
    (name,) = first.cdi_ids or ()
    assert is_cdi_name(name)
    (file,) = (tmp_path / "cdi").iterdir()
    written = json.loads(file.read_text())
    assert [f"{written['kind']}={device['name']}" for device in written["devices"]] == [name]
    assert written["devices"][0]["containerEdits"] == {"env": ["SIMULATED_DEVICE_DEV_1=node/dev-1"]}
    assert driver.prepare([REF]) == answer
    assert driver.unprepare([REF]) == driver.unprepare([REF]) == {UID: UnprepareResult()}
    assert list((tmp_path / "cdi").iterdir()) == []


def test_what_it_cannot_prepare_is_an_error_of_that_claim(make: Callable[..., SimulatedDriver], tmp_path: Path) -> None:
    assert (
        make(row("dev-7")).prepare([REF])[UID].error == "ResourceClaim claim: gpu.example.com has no device node/dev-7"
    )
    assert make(uid="other").prepare([REF])[UID].error == f"ResourceClaim claim: expected UID {UID}, got other"
    assert make(is_allocated=False).prepare([REF])[UID].error == "ResourceClaim claim: not allocated"
    hostile = ClaimRef(KEY, ClaimUid("../../x"))
    assert "expected a UID" in make().prepare([hostile])[hostile.uid].error
    assert "expected a UID" in make().unprepare([hostile])[hostile.uid].error
    missing = ClaimRef(ClaimKey("default", "gone"), ClaimUid("u2"))
    answer = make(row("dev-0")).prepare([missing, REF])
    assert answer[missing.uid].error == 'resourceclaims.resource.k8s.io "gone" not found'
    assert answer[UID].error == ""
    assert [path.name for path in tmp_path.iterdir()] == ["cdi"]


def test_the_command_serves_a_kubelet_until_sigterm(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dra_drivers, "EVENT_TIMEOUT", 60.0)  # a process has to start
    registry, heard = directory / "registry", DriverEvents()
    request = {"name": "r", "exactly": {"deviceClassName": GPU_DRIVER}}
    result = {"request": "r", "driver": GPU_DRIVER, "pool": "worker-1", "device": "dev-1"}
    transport = GrpcDriverTransport(registry)
    with LocalApiServer() as server:
        created = server.create(
            {
                "kind": "ResourceClaim",
                "metadata": {"name": "claim", "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
                "status": {"allocation": {"devices": {"results": [result]}}},
            }
        )
        claim = ClaimRef(KEY, ClaimUid(created["metadata"]["uid"]))
        transport.start(heard)
        words = ["dra-driver", "simulated", "--name", GPU_DRIVER, "--node", "worker-1", "--registry", str(registry)]
        words += ["--kubeconfig", str(server.kubeconfig(directory / "config")), "--cdi-dir", str(directory / "cdi")]
        process = subprocess.Popen([sys.executable, "-m", "devicecore", *words])
        try:
            (instance,) = heard.wait_for(DriverConnected)
            (device,) = transport.prepare(instance, [claim])[claim.uid].devices
            assert device.name == "dev-1"
            heard.wait_for(HealthReported)
            assert transport.unprepare(instance, [claim]) == {claim.uid: UnprepareResult()}
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            assert list(registry.iterdir()) == []
        finally:
            process.kill()
            process.wait(PATIENCE)
            transport.stop()
