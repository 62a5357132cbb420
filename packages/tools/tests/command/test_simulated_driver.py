"""The simulated DRA driver prepares claims from an API server, over real sockets."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import evolve, frozen
from devicecore_tools.command.main import main
from devicecore_tools.testing.api_server import LocalApiServer

from devicecore.adapters.grpc_unix.dra import GrpcDriverTransport
from devicecore.adapters.memory_dra import MemoryClaims
from devicecore.domain.dra.answers import UnprepareResult, is_cdi_name
from devicecore.domain.dra.drivers import DriverConnected, DriverEvent, DriverRegistered, HealthReported
from devicecore.domain.dra.model import (
    AllocatedDevice,
    ClaimKey,
    ClaimRef,
    ClaimUid,
    DriverConfig,
    DriverName,
    ResourceClaim,
)
from devicecore.plugins.cdi_driver import AlreadyRunningError, CdiKindError
from devicecore.plugins.simulated_driver import PARAMETERS, SimulatedDriver
from devicecore.system.cdi import problem_of
from devicecore.testing.contracts import dra_drivers
from devicecore.testing.contracts.dra_drivers import GPU_DRIVER, NIC_DRIVER, DriverEvents
from tests.adapters.peers import PATIENCE

KEY, UID = ClaimKey("default", "claim"), ClaimUid("0a1b-2c")
REF = ClaimRef(KEY, UID)
SHARE = "5e9f3a52-0000-4000-8000-000000000000"


def row(device: str, request: str = "r", driver: DriverName = GPU_DRIVER, share: str | None = None) -> AllocatedDevice:
    return AllocatedDevice(driver, "node", device, request, share)


@frozen
class Place:
    """The directories in which a driver keeps its files, and the claims that it reads."""

    directory: Path
    claims: MemoryClaims

    def driver(self) -> SimulatedDriver:
        """Return a driver that has just started in these directories."""
        return SimulatedDriver(
            GPU_DRIVER,
            "node",
            ["dev-0", "dev-1"],
            self.claims,
            state_directory=self.directory / "state" / "claims",
            cdi_directory=self.cdi,
        )

    def put(self, *rows: AllocatedDevice, uid: str = UID, name: str = "claim", config: object = None) -> ClaimRef:
        """Create an allocated claim."""
        configs = () if config is None else (DriverConfig(GPU_DRIVER, (), config),)
        claim = ResourceClaim(ClaimKey("default", name), ClaimUid(uid), "", rows, config=configs)
        self.claims.put(claim)
        return claim.ref

    @property
    def cdi(self) -> Path:
        """The directory with the CDI files."""
        return self.directory / "cdi"

    def cdi_files(self) -> dict[str, bytes]:
        """Return all CDI files."""
        return {path.name: path.read_bytes() for path in self.cdi.iterdir()} if self.cdi.exists() else {}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, MemoryClaims())


def error_of(driver: SimulatedDriver, claim: ClaimRef) -> str:
    return driver.prepare([claim])[claim.uid].error


def test_a_claim_gets_its_allocated_devices_and_a_cdi_file(place: Place) -> None:
    place.put(row("dev-1", "r/sub", share=SHARE), row("dev-0", driver=NIC_DRIVER), row("dev-1", "s"))
    driver = place.driver()
    answer = driver.prepare([REF])
    first, second = answer[UID].devices
    assert (first.name, first.share_id, first.requests, second.requests) == ("dev-1", SHARE, ("r",), ("s",))
    (file,) = place.cdi.iterdir()
    written = json.loads(file.read_text())
    names = [f"{written['kind']}={device['name']}" for device in written["devices"]]
    assert names == [*(first.cdi_ids or ()), *(second.cdi_ids or ())]
    assert all(map(is_cdi_name, names))
    assert problem_of(file) == ""
    assert written["cdiVersion"] == "0.5.0"  # the first version in which a name may start with a digit, as UIDs do
    assert written["devices"][0]["containerEdits"] == {"env": ["SIMULATED_DEVICE_DEV_1=node/dev-1"]}
    assert driver.unprepare([REF]) == driver.unprepare([REF]) == {UID: UnprepareResult()}
    assert place.cdi_files() == {}


def test_preparing_again_changes_nothing_even_in_another_process(place: Place) -> None:
    place.put(row("dev-1"))
    answer, files = place.driver().prepare([REF]), place.cdi_files()
    inode = next(place.cdi.iterdir()).stat().st_ino
    assert place.driver().prepare([REF]) == answer
    assert (place.cdi_files(), next(place.cdi.iterdir()).stat().st_ino) == (files, inode)


def test_cdi_files_are_there_again_after_a_reboot(place: Place) -> None:
    place.put(row("dev-1"))
    answer, files = place.driver().prepare([REF]), place.cdi_files()
    shutil.rmtree(place.cdi)
    with place.driver().running():
        assert place.cdi_files() == files
    shutil.rmtree(place.cdi)
    assert place.driver().prepare([REF]) == answer
    assert place.cdi_files() == files
    shutil.rmtree(place.cdi)
    assert place.driver().unprepare([REF]) == {UID: UnprepareResult()}


def test_a_claim_that_was_reallocated_gets_its_new_devices(place: Place) -> None:
    place.put(row("dev-1"))
    driver = place.driver()
    driver.prepare([REF])
    place.put(row("dev-0"))
    (device,) = driver.prepare([REF])[UID].devices
    assert device.name == "dev-0"
    other = place.put(row("dev-1"), uid="other", name="other")
    assert error_of(driver, other) == ""


def test_a_device_belongs_to_one_claim_unless_it_is_shared(place: Place) -> None:
    driver = place.driver()
    place.put(row("dev-1"))
    driver.prepare([REF])
    other = place.put(row("dev-1"), uid="other", name="other")
    held = f"ResourceClaim other: device node/dev-1 is prepared for ResourceClaim default/claim ({UID})"
    assert error_of(driver, other) == held
    assert error_of(place.driver(), other) == held
    admin = place.put(evolve(row("dev-1"), admin_access=True), uid="admin", name="admin")
    assert error_of(driver, admin) == ""
    driver.unprepare([admin])
    assert error_of(driver, other) == held
    driver.unprepare([REF])
    assert error_of(driver, other) == ""


def test_shares_of_a_device_may_belong_to_two_claims(place: Place) -> None:
    driver = place.driver()
    place.put(row("dev-1", share=SHARE))
    other = place.put(row("dev-1", share="other"), uid="other", name="other")
    (first,), (second,) = (result.devices for result in driver.prepare([REF, other]).values())
    assert (first.share_id, second.share_id) == (SHARE, "other")
    assert first.cdi_ids != second.cdi_ids


def test_a_note_that_cannot_be_read_keeps_its_devices(place: Place) -> None:
    driver = place.driver()
    place.put(row("dev-1"))
    driver.prepare([REF])
    (note,) = (place.directory / "state" / "claims").glob("*.json")
    other = place.put(row("dev-1"), uid="other", name="other")
    text = note.read_bytes()
    half_a_pair, of_another = text.replace(b'"cdi": "', b'"cdi": "\\ud800'), text.replace(UID.encode(), b"x")
    for damaged in (b"", b"{", b"[]", b'{"claim": {}}', text[:-9], b"[" * 100_000, half_a_pair, of_another):
        note.write_bytes(damaged)
        assert f"the devices of claim {UID} are not known" in error_of(driver, other)
    note.write_bytes(half_a_pair)
    with driver.running():  # the driver starts anyway
        assert error_of(driver, REF) == ""  # preparing that claim again repairs its record
    assert "is prepared for" in error_of(driver, other)
    note.write_bytes(b"")
    driver.unprepare([REF])
    assert error_of(driver, other) == ""


def test_anything_in_place_of_a_cdi_file_is_replaced_and_not_written_through(place: Place) -> None:
    driver = place.driver()
    place.put(row("dev-1"))
    driver.prepare([REF])
    (file,) = (place.directory / "cdi").iterdir()
    expected, other = file.read_bytes(), place.directory / "other"
    other.write_bytes(b"foreign")
    for target in (other, file, None):
        file.unlink()
        if target is None:
            os.mkfifo(file)
        else:
            file.symlink_to(target)
        with driver.running():
            assert not file.is_symlink()
            assert file.read_bytes() == expected
    assert other.read_bytes() == b"foreign"


def test_a_release_removes_a_cdi_file_without_a_record(place: Place) -> None:
    place.put(row("dev-1"))
    place.driver().prepare([REF])
    shutil.rmtree(place.directory / "state")
    (place.cdi / f".{next(place.cdi.iterdir()).name}.1-1.new").touch()  # a file that a killed driver leaves behind
    assert place.driver().unprepare([REF]) == {UID: UnprepareResult()}
    assert place.cdi_files() == {}


def test_parameters_of_the_claim_reach_the_container(place: Place) -> None:
    place.put(row("dev-1"), config={**PARAMETERS, "env": {"MODE": "fast"}})
    driver = place.driver()
    driver.prepare([REF])
    (file,) = place.cdi.iterdir()
    (device,) = json.loads(file.read_text())["devices"]
    assert device["containerEdits"]["env"] == ["SIMULATED_DEVICE_DEV_1=node/dev-1", "MODE=fast"]
    bad_environments: tuple[object, ...] = ([], {"A=": "b"}, {"A": 1})
    bad: list[object] = [{**PARAMETERS, "env": environment} for environment in bad_environments]
    for config in (*bad, 1, {}, {**PARAMETERS, "kind": "Other"}, {**PARAMETERS, "other": 1}):
        place.put(row("dev-1"), config=config)
        assert "expected" in error_of(driver, REF)


def test_a_release_waits_for_the_preparation_that_it_follows(place: Place) -> None:
    reading, answer = threading.Event(), threading.Event()

    class SlowClaims(MemoryClaims):
        def get(self, key: ClaimKey) -> ResourceClaim:
            reading.set()
            answer.wait(PATIENCE)
            return super().get(key)

    slow = Place(place.directory, SlowClaims())
    slow.put(row("dev-1"))
    driver = slow.driver()
    with ThreadPoolExecutor(2) as workers:
        prepared = workers.submit(driver.prepare, [REF])
        assert reading.wait(PATIENCE)
        released = workers.submit(place.driver().unprepare, [REF])  # another instance releases the claim
        assert not released.done()
        answer.set()
        assert prepared.result(PATIENCE)[UID].error == ""
        assert released.result(PATIENCE) == {UID: UnprepareResult()}
    assert place.cdi_files() == {}


def test_one_instance_of_a_name_runs_at_a_time(place: Place) -> None:
    with place.driver().running("pod-1"):
        with place.driver().running("pod-2"):
            pass
        with pytest.raises(AlreadyRunningError, match="is already running"), place.driver().running("pod-1"):
            pass
    with place.driver().running("pod-1"):
        pass


def test_a_claim_it_cannot_prepare_gets_its_own_error(place: Place) -> None:
    driver = place.driver()
    place.put(row("dev-7"))
    assert error_of(driver, REF) == "ResourceClaim claim: gpu.example.com has no device node/dev-7"
    place.put(AllocatedDevice(GPU_DRIVER, "node-1", "dev-0", "r"))
    assert error_of(driver, REF).endswith("gpu.example.com has no device node-1/dev-0; its pool is node")
    place.put(uid="other")
    assert error_of(driver, REF) == f"ResourceClaim claim: expected UID {UID}, got other"
    place.claims.put(ResourceClaim(KEY, UID))
    assert error_of(driver, REF) == "ResourceClaim claim: not allocated"
    hostile = ClaimRef(KEY, ClaimUid("../../x"))
    assert "expected a UID" in error_of(driver, hostile)
    assert "expected a UID" in driver.unprepare([hostile])[hostile.uid].error
    missing = ClaimRef(ClaimKey("default", "gone"), ClaimUid("u2"))
    place.put(row("dev-0"))
    answer = driver.prepare([missing, REF])
    assert answer[missing.uid].error == 'resourceclaims.resource.k8s.io "gone" not found'
    assert answer[UID].error == ""
    assert sorted(path.name for path in place.directory.iterdir()) == ["cdi", "state"]


def test_a_driver_whose_cdi_names_no_runtime_accepts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CdiKindError, match=r"3d\.example\.com/device"):
        SimulatedDriver("3d.example.com", "node", [], MemoryClaims(), state_directory=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--node Worker_1", "--node: expected a name that consists of a-z, 0-9, '-' and '.', got 'Worker_1'."),
        ("--node a --pool b/C", "--pool: expected a name that consists of a-z, 0-9, '-' and '.', got 'b/C'."),
        ("--node a --manifests /tmp --kubeconfig b", "--manifests and --kubeconfig cannot be used together."),
    ],
)
def test_names_that_no_api_server_accepts_are_refused(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dra-driver", "simulated", "--name", "gpu.example.com", *arguments.split()]) == 2
    assert capsys.readouterr().err == f"devicecore dra-driver simulated: {sentence}\n"


def test_the_command_serves_a_kubelet_until_sigterm(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dra_drivers, "EVENT_TIMEOUT", 60.0)  # a process takes a while to start
    registry, heard = directory / "registry", DriverEvents()
    transport = GrpcDriverTransport(registry)
    published_too_early: list[object] = []

    def listen(event: DriverEvent) -> None:
        if isinstance(event, DriverRegistered):
            published_too_early.extend(server.objects("ResourceSlice"))
        heard(event)

    with LocalApiServer() as server:
        server.create({"kind": "Node", "metadata": {"name": "worker-1"}})
        config = server.kubeconfig(directory / "config")
        words = ["dra-driver", "simulated", "--name", GPU_DRIVER, "--node", "worker-1", "--registry", str(registry)]
        words += ["--kubeconfig", str(config), "--cdi-dir", str(directory / "cdi"), "--plugin-dir", str(directory)]
        words += ["--numa-nodes", "1,0+1"]
        command = [sys.executable, "-m", "devicecore_tools", *words, "--commands"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        assert process.stdin is not None
        try:
            transport.start(listen)  # the kubelet makes the directory for which the driver waits
            (instance,) = heard.wait_for(DriverConnected)
            server.wait_for(lambda: server.objects("ResourceSlice"))
            assert published_too_early == []
            (slice_,) = server.objects("ResourceSlice")
            numa_nodes = [one["attributes"]["resource.kubernetes.io/numaNode"] for one in slice_["spec"]["devices"]]
            assert numa_nodes[:2] == [{"int": 1}, {"ints": [0, 1]}]
            pool, device = slice_["spec"]["pool"]["name"], slice_["spec"]["devices"][1]["name"]
            result = {"request": "r", "driver": GPU_DRIVER, "pool": pool, "device": device}
            created = server.create(
                {
                    "kind": "ResourceClaim",
                    "metadata": {"name": "claim", "namespace": "default"},
                    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": GPU_DRIVER}}]}},
                    "status": {"allocation": {"devices": {"results": [result]}}},
                }
            )
            claim = ClaimRef(KEY, ClaimUid(created["metadata"]["uid"]))
            (prepared,) = transport.prepare(instance, [claim])[claim.uid].devices
            assert prepared.name == "dev-1"
            heard.wait_for(HealthReported)
            assert transport.unprepare(instance, [claim]) == {claim.uid: UnprepareResult()}
            process.stdin.write("unhealthy 1\nhealthy 99\ncount 2\nfoo\n")
            process.stdin.flush()
            server.wait_for(lambda: server.objects("ResourceSlice") != [slice_])
            (slice_,) = server.objects("ResourceSlice")
            assert (slice_["spec"]["pool"]["generation"], len(slice_["spec"]["devices"])) == (2, 2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            assert list(registry.iterdir()) == []
            assert not list(directory.glob("**/*.sock"))
            assert server.objects("ResourceSlice") == [slice_]
        finally:
            process.stdin.close()
            process.kill()
            process.wait(PATIENCE)
            transport.stop()


def test_without_an_api_server_the_option_for_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["dra-driver", "simulated", "--name", "gpu.example.com", "--node", "n", "--count", "1"]) == 2
    assert "--manifests DIR" in capsys.readouterr().err
