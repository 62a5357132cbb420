"""The kubelet for tests of DRA drivers, in memory and with a driver in a separate process."""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.testing.api_server import Answer, LocalApiServer
from devicecore_tools.testing.dra_kubelet import BaseDraKubelet, DraKubelet, MemoryDraKubelet, UnresolvedCdiNameError
from devicecore_tools.testing.dra_objects import DevicesTakenError
from devicecore_tools.testing.kubelet import PodRefusedError
from devicecore_tools.testing.process import PluginProcess
from devicecore_tools.testing.waiting import WaitTimeoutError

from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.drivers import DriverConnected, DriverRemoved
from devicecore.domain.dra.errors import PrepareError, UnprepareError
from devicecore.domain.dra.health import DraHealth
from devicecore.domain.dra.model import ClaimRef, ClaimUid, DriverName, PreparedDevice
from devicecore.domain.dra.slices import PublishedDevice
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.ports.dra_driver import DraDriver
from devicecore.testing.faults import Fails, FailsAfterwards
from tests.adapters.peers import PATIENCE

GPU, NIC = "gpu.example.com", "example.com/nic"
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
SIMULATED = (
    *(sys.executable, "-m", "devicecore_tools", "dra-driver", "simulated", "--name", GPU),
    *("--registry", "{registry}", "--plugin-dir", "{plugins}", "--cdi-dir", "{cdi}", "--count", "4"),
)


class Gpus(DraDriver):
    """A driver that looks only at the UIDs of claims."""

    def __init__(self, name: str = GPU) -> None:
        self.name = DriverName(name)
        self.prepared: set[ClaimUid] = set()

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        self.prepared.update(claim.uid for claim in claims)
        name = f"{self.name}/gpu="
        return {c.uid: PrepareResult((PreparedDevice("node-1", "a", None, (), (name + c.uid,)),)) for c in claims}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        self.prepared.difference_update(claim.uid for claim in claims)
        return {claim.uid: UnprepareResult() for claim in claims}


def serve(kubelet: BaseDraKubelet, driver: Gpus) -> None:
    """Serve a driver with one published device, and wait until the driver is connected."""
    kubelet.serve(driver)
    kubelet.publish(GPU, "a")
    kubelet.wait_for_driver(GPU)


@pytest.fixture(params=[MemoryDraKubelet, DraKubelet])
def kubelet(request: pytest.FixtureRequest) -> Iterator[BaseDraKubelet]:
    make: Callable[..., AbstractContextManager[BaseDraKubelet]] = request.param
    with make(timeout=PATIENCE) as kubelet:
        yield kubelet


@pytest.fixture
def processes() -> Iterator[DraKubelet]:
    with DraKubelet(timeout=PATIENCE) as kubelet:
        yield kubelet


def start(kubelet: DraKubelet, *words: str, pod_uid: str = "") -> PluginProcess:
    return kubelet.run_driver(*SIMULATED, *words, *(["--pod-uid", "{pod_uid}"] if pod_uid else []), pod_uid=pod_uid)


# --- with drivers in Python, in memory and over sockets --------------------------------------------------------------


def test_a_pod_gets_its_devices_and_gives_them_back(kubelet: BaseDraKubelet) -> None:
    driver = Gpus()
    kubelet.serve(driver)
    kubelet.publish(GPU, "a", PublishedDevice("b", {"memory": 16}))
    kubelet.wait_for_driver(GPU)
    claim = kubelet.claim(GPU)
    assert claim.allocation is not None
    assert [row.device for row in claim.allocation] == ["a"]
    first, second = kubelet.prepare(claim), kubelet.prepare(claim)
    assert first.cdi_devices() == second.cdi_devices() == (f"{GPU}/gpu={claim.uid}",)
    assert [device.name for device in first.devices] == ["a"]
    first.delete()
    assert driver.prepared == {claim.uid}
    second.delete()
    assert driver.prepared == set()
    assert [call.method for call in kubelet.calls] == [PREPARE, UNPREPARE]
    assert kubelet.claim_info(claim) is None
    body = kubelet.api_server.get("ResourceClaim", claim.key.name)
    assert "reservedFor" not in body["status"]


def test_a_pod_has_devices_of_plugins_and_of_claims(kubelet: BaseDraKubelet) -> None:
    serve(kubelet, Gpus())
    kubelet.devices.serve(SimulatedPlugin(NIC, simulated_devices("nic", 2)))
    kubelet.devices.wait_for_resource(NIC)
    claim = kubelet.claim(GPU)
    pod = kubelet.prepare(claim, limits={NIC: 1})
    expected = {"EXAMPLE_COM_NIC_DEVICES": "nic-0"}, (f"{GPU}/gpu={claim.uid}",)
    assert (pod.options().envs, pod.options().cdi_devices) == expected
    with pytest.raises(PodRefusedError):
        kubelet.prepare(claim, limits={NIC: 2})
    kubelet.restart()
    kubelet.wait_for_driver(GPU)
    kubelet.devices.wait_for_resource(NIC)
    pod.prepare()
    assert (pod.options().envs, pod.options().cdi_devices) == expected
    pod.delete()
    assert kubelet.prepare(claim, limits={NIC: 2}).admitted is not None


def test_devices_are_chosen_that_no_claim_has(kubelet: BaseDraKubelet) -> None:
    kubelet.publish(GPU, "a", "b", "c")
    assert [row.device for row in kubelet.claim(GPU, devices=["b"]).allocation or ()] == ["b"]
    kept = kubelet.claim(GPU, 2)
    with pytest.raises(DevicesTakenError, match=r"gpu\.example\.com for a claim, but only these are available: none"):
        kubelet.claim(GPU)
    kubelet.delete_claim(kept)
    with pytest.raises(DevicesTakenError, match=r"expected devices b of .*: a, c"):
        kubelet.claim(GPU, devices=["b"])


def test_a_tainted_device_is_chosen_only_by_its_name(kubelet: BaseDraKubelet) -> None:
    effects = {"a": "NoSchedule", "b": "NoExecute", "c": "None"}
    tainted = [PublishedDevice(name, fields={"taints": [{"key": "k", "effect": to}]}) for name, to in effects.items()]
    kubelet.publish(GPU, *tainted)
    assert [row.device for row in kubelet.claim(GPU).allocation or ()] == ["c"]
    with pytest.raises(DevicesTakenError, match="but only these are available: none"):
        kubelet.claim(GPU)
    named = kubelet.claim(GPU, devices=["a"])
    (request,) = kubelet.api_server.get("ResourceClaim", named.key.name)["spec"]["devices"]["requests"]
    assert request["exactly"]["tolerations"] == [{"operator": "Exists"}]


def test_a_restart_asks_again_with_the_state_and_not_at_all_without_pods(kubelet: BaseDraKubelet) -> None:
    serve(kubelet, Gpus())
    claim = kubelet.claim(GPU)
    pod = kubelet.prepare(claim)
    kubelet.restart()
    kubelet.wait_for_driver(GPU)
    assert kubelet.published(GPU) == ()  # a kubelet deletes a driver's slices when it starts
    pod.prepare()
    pod.prepare()
    assert [call.claims for call in kubelet.calls] == [(claim.ref,)] * 2
    kubelet.restart(state=False)
    assert kubelet.claim_info(claim) is None


def test_faults_of_calls_are_played_on_cue(kubelet: BaseDraKubelet) -> None:
    driver = Gpus()
    serve(kubelet, driver)
    claim = kubelet.claim(GPU)
    kubelet.script.on(PREPARE, Fails("wire cut"))
    pod = kubelet.pod(claim)
    with pytest.raises(PrepareError, match="wire cut"):
        pod.prepare()
    assert driver.prepared == set()
    kubelet.script.on(PREPARE, FailsAfterwards("answer lost"))
    with pytest.raises(PrepareError, match="answer lost"):
        pod.prepare()
    assert driver.prepared == {claim.uid}
    pod.prepare()
    kubelet.script.on(UNPREPARE, Fails())
    with pytest.raises(UnprepareError):
        pod.delete()
    pod.delete()
    assert [call.error is None for call in kubelet.calls] == [False, False, True, False, True]


def test_the_newest_connected_instance_is_called(kubelet: BaseDraKubelet) -> None:
    old, new = Gpus(), Gpus()
    kubelet.serve(old, instance="old")
    kubelet.wait_for_driver(GPU)
    served = kubelet.serve(new, instance="new")
    kubelet.wait_for_driver(GPU, 2)
    kubelet.publish(GPU, "a")
    pod = kubelet.prepare(kubelet.claim(GPU))
    assert (len(old.prepared), len(new.prepared)) == (0, 1)
    served.stop()
    kubelet.wait_until_gone(GPU, 1)
    pod.delete()
    assert kubelet.calls_of(UNPREPARE)[0].instance == kubelet.instances(GPU)[0]


def test_a_cut_connection_is_reestablished(kubelet: BaseDraKubelet) -> None:
    serve(kubelet, Gpus())
    kubelet.drop_connection(GPU)
    kubelet.wait_until("a second connection", lambda: len(kubelet.events_of(DriverConnected)) == 2)
    kubelet.prepare(kubelet.claim(GPU)).delete()
    assert kubelet.events_of(DriverRemoved) == ()


def test_a_claim_of_a_pod_that_vanished_is_released_in_time(kubelet: BaseDraKubelet) -> None:
    driver = Gpus()
    serve(kubelet, driver)
    pod = kubelet.prepare(kubelet.claim(GPU))
    kubelet.advance(60)
    assert len(driver.prepared) == 1
    pod.forget()
    kubelet.advance(60)
    assert driver.prepared == set()


def test_slices_of_a_driver_that_is_gone_are_wiped_after_30_seconds(kubelet: BaseDraKubelet) -> None:
    served = kubelet.serve(Gpus())
    kubelet.wait_for_driver(GPU)
    kubelet.publish(GPU, "a")
    kubelet.publish("nic.example.com", "n")
    served.stop()
    kubelet.wait_until_gone(GPU)
    kubelet.advance(15)
    assert kubelet.published(GPU) == ("a",)
    kubelet.advance(16)
    assert kubelet.published(GPU) == ()
    assert kubelet.published("nic.example.com") == ("n",)


def test_a_wait_that_fails_says_what_the_kubelet_saw(kubelet: BaseDraKubelet) -> None:
    with pytest.raises(WaitTimeoutError) as nothing:
        kubelet.wait_for_driver(GPU, timeout=0.01)
    assert "expected 1 connected instance of gpu.example.com within 0.01 s; the kubelet saw: 0" in str(nothing.value)
    assert "no driver is registered" in str(nothing.value)
    kubelet.serve(Gpus())
    kubelet.wait_for_driver(GPU)
    with pytest.raises(WaitTimeoutError, match="has 1 instance, 1 of them connected, and 0 published devices"):
        kubelet.wait_for_devices(GPU, timeout=0.01)


# --- with a driver in a process --------------------------------------------------------------------------------------


def test_a_driver_process_is_registered_and_its_cdi_names_resolve(processes: DraKubelet) -> None:
    start(processes, "--numa-nodes", "0,1", "--unhealthy", "3")
    processes.wait_for_driver(GPU)
    assert processes.wait_for_devices(GPU, 4) == ("dev-0", "dev-1", "dev-2", "dev-3")
    parameters = {"apiVersion": "simulated.devicecore/v1", "kind": "DeviceConfig", "env": {"MODE": "fast"}}
    pod = processes.prepare(processes.claim(GPU, 2, parameters=parameters))
    first, second = pod.cdi_devices()
    assert processes.cdi_edits(first) == {"env": ["SIMULATED_DEVICE_DEV_0=node-1/dev-0", "MODE=fast"]}
    processes.wait_for_health(GPU, "dev-3", DraHealth.UNHEALTHY)
    processes.wait_for_health(GPU, "dev-0", DraHealth.HEALTHY)
    broken = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "message": "etcd is gone"}
    processes.api_server.inject(Answer(500, broken), verb="get", resource="resourceclaims")
    failing = processes.pod(processes.claim(GPU))
    with pytest.raises(PrepareError, match="etcd is gone"):
        failing.prepare()
    failing.prepare()
    failing.delete()
    pod.delete()
    with pytest.raises(UnresolvedCdiNameError, match="got no file without it"):
        processes.cdi_edits(second)
    assert json.loads(json.loads(processes.state_file.read_text())["Data"])["ClaimInfoStateList"] == []


def test_a_killed_driver_answers_the_same_after_its_start(processes: DraKubelet) -> None:
    driver = start(processes)
    processes.wait_for_devices(GPU, 4)
    processes.wait_for_driver(GPU)
    pod = processes.prepare(processes.claim(GPU))
    before = pod.cdi_devices(), processes.cdi_edits(pod.cdi_devices()[0])
    driver.kill()
    start(processes)
    processes.wait_until("a new connection", lambda: len(processes.events_of(DriverConnected)) == 2)
    processes.restart()
    processes.wait_for_driver(GPU)
    pod.prepare()
    assert (pod.cdi_devices(), processes.cdi_edits(pod.cdi_devices()[0])) == before
    assert processes.wait_for_devices(GPU, 4)  # the slices were deleted when the kubelet started
    other = processes.claim(GPU, 3)
    processes.prepare(other)
    pod.delete()


def test_the_edits_of_a_cdi_device_are_read_from_yaml_too(processes: DraKubelet) -> None:
    device = "kind: example.com/x\ndevices:\n- name: a\n  containerEdits: {env: [X=1]}\n"
    (processes.cdi / "x.yaml").write_text(f"cdiVersion: 0.5.0\n{device}", encoding="utf-8")
    assert processes.cdi_edits("example.com/x=a") == {"env": ["X=1"]}


def test_a_reboot_takes_cdi_files_and_the_driver_brings_them_back(processes: DraKubelet) -> None:
    start(processes)
    processes.wait_for_devices(GPU, 4)
    processes.wait_for_driver(GPU)
    pod = processes.prepare(processes.claim(GPU))
    (name,) = pod.cdi_devices()
    edits = processes.cdi_edits(name)
    processes.reboot()
    with pytest.raises(UnresolvedCdiNameError):
        processes.cdi_edits(name)
    start(processes)
    processes.wait_for_driver(GPU)
    pod.prepare()
    assert processes.cdi_edits(name) == edits


def test_a_rolling_update_hands_claims_and_slices_over(processes: DraKubelet) -> None:
    old = start(processes, pod_uid="pod-old")
    processes.wait_for_devices(GPU, 4)
    processes.wait_for_driver(GPU)
    first = processes.prepare(processes.claim(GPU))
    slices = processes.api_server.objects("ResourceSlice")
    start(processes, pod_uid="pod-new")
    processes.wait_for_driver(GPU, 2)
    second = processes.prepare(processes.claim(GPU))
    first.delete()  # the new instance, which has not prepared this claim, unprepares it
    assert [call.instance.endpoint.rpartition("/")[2] for call in processes.calls] == [
        "dra-pod-old.sock",
        "dra-pod-new.sock",
        "dra-pod-new.sock",
    ]
    old.terminate()
    assert old.wait(PATIENCE) == 0
    processes.wait_until_gone(GPU, 1)
    second.delete()
    assert list(processes.cdi.iterdir()) == []
    assert processes.api_server.objects("ResourceSlice") == slices


def test_a_driver_outlives_a_second_process_a_freeze_and_a_cut_connection(processes: DraKubelet) -> None:
    driver = start(processes)
    processes.wait_for_driver(GPU)
    processes.wait_for_devices(GPU, 4)
    second = start(processes)
    assert second.wait(PATIENCE) == 2
    assert "an instance of gpu.example.com with this name is already running" in second.output
    driver.pause()
    processes.drop_connection(GPU)
    processes.wait_until("no connection", lambda: not processes.connected(GPU), allow_exits=True)
    driver.resume()
    processes.wait_until("a connection", lambda: processes.connected(GPU), allow_exits=True)
    processes.prepare(processes.claim(GPU)).delete()
    driver.signal(signal.SIGINT)
    assert driver.wait(PATIENCE) == 0
    assert list(processes.registry.iterdir()) == []


def test_an_api_server_of_the_test_is_used(directory: Path, api_server: LocalApiServer) -> None:
    with DraKubelet(directory, api_server=api_server, node="worker-7", timeout=PATIENCE) as kubelet:
        assert [node["metadata"]["name"] for node in api_server.objects("Node")] == ["worker-7"]
        kubelet.serve(Gpus())
        kubelet.publish(GPU, "a")
        (slice_,) = api_server.objects("ResourceSlice")
        assert slice_["spec"]["nodeName"] == "worker-7"
    assert api_server.objects("ResourceSlice") == [slice_]
    assert not list(directory.glob("**/*.sock"))


def test_a_claim_before_its_driver_has_published_says_what_to_wait_for() -> None:
    kubelet: Any
    with MemoryDraKubelet() as kubelet:
        with pytest.raises(
            DevicesTakenError, match=r"has published no device: wait for its ResourceSlices with wait_for"
        ):
            kubelet.claim("gpu.example.com")
        with pytest.raises(TypeError, match=r"as returned by claim\(\): expected ResourceClaim, got .x."):
            kubelet.prepare("x")
        with pytest.raises(TypeError, match="expected ResourceClaim, got 'x'"):
            kubelet.delete_claim("x")
