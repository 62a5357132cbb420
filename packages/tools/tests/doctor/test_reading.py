"""Reading a node: files, sockets, the pod-resources API and plugins, both sound and hostile ones."""

import base64
import io
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest
from attrs import evolve
from devicecore_tools.budget import Budget
from devicecore_tools.command.main import main
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.look import values as look
from devicecore_tools.doctor.look.values import (
    ALLOCATABLE_NAME,
    LIST_NAME,
    NO_DIRECTORY,
    CdiSeen,
    CdiSpec,
    ClaimedDeviceSeen,
    ClaimsSeen,
    PluginSeen,
    PodResourcesSeen,
    PreparedDeviceSeen,
    PublishedDeviceSeen,
    Reading,
    StateFileSeen,
)
from devicecore_tools.doctor.reading import cdi, kubelet_directory, plugin_sockets
from devicecore_tools.doctor.reading import node as node_reading
from devicecore_tools.doctor.reading.answers import read_saved_pod_resources
from devicecore_tools.doctor.reading.api_server import read_objects, read_version
from devicecore_tools.doctor.reading.cdi import read_cdi
from devicecore_tools.doctor.reading.claims import published_by, read_claims, slices_in
from devicecore_tools.doctor.reading.cluster import looks_at_all_nodes
from devicecore_tools.doctor.reading.kubelet_directory import KubeletDirectory, read_checkpoint, read_sockets
from devicecore_tools.doctor.reading.kubelet_settings import configuration_of
from devicecore_tools.doctor.reading.large_documents import parse_document, read_document_file
from devicecore_tools.doctor.reading.machine import numa_nodes_of
from devicecore_tools.doctor.reading.managers import read_managers
from devicecore_tools.doctor.reading.node import NodeSources
from devicecore_tools.doctor.reading.objects import events_in, node_in, pods_in, read_pods
from devicecore_tools.doctor.reading.objects import reading as reading_of
from devicecore_tools.doctor.reading.plugin_sockets import Listener, Listeners, lists_of, read_plugins, who_listens
from devicecore_tools.doctor.reading.pod_resources import read_pod_resources
from devicecore_tools.doctor.reading.record import is_record
from devicecore_tools.doctor.reading.state_files import read_state_files
from devicecore_tools.node.assembly import PODS_NAME
from devicecore_tools.numa import CPU_FILE, MACHINE_FILE, MEMORY_FILE, Holding
from devicecore_tools.testing.api_server import LocalApiServer

from devicecore.adapters import manifests
from devicecore.adapters.grpc_unix import serve_plugin
from devicecore.adapters.kube_api import http as kube_http
from devicecore.adapters.memory import MemoryStore, MemoryTransport
from devicecore.adapters.pod_resources import PodResourcesServer, Snapshot
from devicecore.domain.checkpoint import CheckpointData, FileVerdict, PodDevicesEntry, encode
from devicecore.domain.checkpoint.fnv import fnv1a_32
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.documents import Value
from devicecore.domain.dra.model import PreparedDevice
from devicecore.domain.dra.state_file import ClaimEntry
from devicecore.domain.dra.state_file import encode as encode_claims
from devicecore.domain.errors import DocumentError
from devicecore.domain.json_size import OBJECTS
from devicecore.domain.model import Container, ContainerClaim, Pod, PodUid
from devicecore.domain.objects import pod_of
from devicecore.manager import DeviceManager
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.system.cdi import MAX_BYTES, names_in
from devicecore.wire import podresources
from devicecore.wire.conversion import write_receipt
from devicecore.wire.pluginregistration import PluginInfo
from tests.adapters.peers import answering, flood_of_pings, listening
from tests.hostile_documents import HOSTILE

PCI = "resource.kubernetes.io/pciBusID"

GPU = "example.com/gpu"
VECTORS = Path(__file__).parents[4] / "tests" / "data" / "checkpoint" / "decode.jsonl"


def _read(read: Callable[[Value], Any], path: Path) -> Reading[Any]:
    return reading_of(str(path), lambda: read(read_document_file(str(path))))


# --- the checkpoint and the sockets -----------------------------------------------------------------------------------


def test_a_checkpoint_is_read_with_its_receipts(tmp_path: Path) -> None:
    answer = ContainerAllocateResponse(
        cdi_devices=("example.com/gpu=0",), annotations={"cdi.k8s.io/x": "example.com/nic=1,example.com/nic=2"}
    )
    entries = (
        PodDevicesEntry("u", "main", GPU, {0: ("gpu-0",)}, write_receipt(answer)),
        PodDevicesEntry("u", "main", "example.com/nic", {-1: ("nic-0",)}, b"\xff"),
        PodDevicesEntry("u", "other", GPU, {0: ("gpu-1",)}, b""),
    )
    path = tmp_path / "file"
    path.write_bytes(encode(CheckpointData(entries, {GPU: ("gpu-0", "gpu-1")})))
    reading = read_checkpoint(str(path))
    assert reading.value is not None
    assert reading.value.verdict.verdict is FileVerdict.OK
    first, second = reading.value.receipts
    assert first.cdi_devices == ("example.com/gpu=0", "example.com/nic=1", "example.com/nic=2")
    assert (second.resource, bool(second.problem)) == ("example.com/nic", True)
    assert read_checkpoint(str(path), reading) is reading


def test_every_recorded_file_can_be_read(tmp_path: Path) -> None:
    """No recorded file, sound or not, raises an error, and each has the recorded verdict unless it is malformed."""
    path = tmp_path / "file"
    for line in VECTORS.read_text().splitlines():
        record = json.loads(line)
        path.write_bytes(base64.b64decode(record["file_b64"]))
        seen = read_checkpoint(str(path)).value
        assert seen is not None
        assert (seen.data is None) == (seen.verdict.verdict is FileVerdict.MALFORMED)
        if record["verdict"] != "malformed":
            assert seen.verdict.verdict.value == record["verdict"]


@pytest.mark.parametrize(
    "element",
    [
        {"device_ids": ["a", "b"], "topology": {"nodes": [{"ID": "1"}]}},
        {"device_ids": ["a"], "topology": {"nodes": [{"ID": 1}]}},
        {"device_ids": ["a"], "topology": {"nodes": [{"ID": "1"}]}},
        {"device_ids": ["a"], "topology": None},
        {"device_ids": ["a"]},
    ],
)
def test_a_response_means_the_same_however_json_encodes_it(tmp_path: Path, element: dict[str, Any]) -> None:
    topology = element.get("topology")
    numa_nodes = (1,) if topology else ()
    (tmp_path / ALLOCATABLE_NAME).write_text(json.dumps({"devices": [{"resource_name": "r", **element}]}))
    (tmp_path / LIST_NAME).write_text("{}")
    seen = read_saved_pod_resources(tmp_path).value
    assert seen is not None
    assert seen.allocatable == {"r": dict.fromkeys(element["device_ids"], numa_nodes)}
    (tmp_path / ALLOCATABLE_NAME).write_text(json.dumps({"devices": [{**element, "device_ids": [""]}]}))
    assert "devices[0].device_ids[0]" in read_saved_pod_resources(tmp_path).problem


def state_files(root: Path) -> tuple[StateFileSeen, ...]:
    """Return what was read from the managers' state files in a directory."""
    return read_state_files(str(root), read_managers(str(root))).value or ()


FOUR_CPUS = {"sockets": 1, "coresPerNumaNode": 4, "threadsPerCore": 1, "memoryPerNumaNode": "1Mi"}
MEMORY = '{"policyName": "Static", "machineState": {"%s": {"memoryMap": {"memory": {"total": %d}}}}, "entries": {}}'


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (CPU_FILE, {"policyName": "static", "defaultCpuSet": "0-1,8", "entries": {"u": {"c": "9"}}}, "not have: 8-9"),
        (CPU_FILE, {"policyName": "static", "defaultCpuSet": "0-1", "entries": {"u": {"c": "2-3"}}}, ""),
        (CPU_FILE, {"policyName": "none", "defaultCpuSet": "0-9"}, ""),
        (MEMORY_FILE, json.loads(MEMORY % (0, 1024 * 1024)), ""),
        (MEMORY_FILE, json.loads(MEMORY % (0, 2048 * 1024)), "the machine has 1,048,576"),
        (MEMORY_FILE, json.loads(MEMORY % (7, 1024 * 1024)), "it names NUMA node 7, which this machine does not have"),
    ],
)
def test_a_state_file_that_does_not_fit_the_machine_is_named(
    tmp_path: Path, name: str, content: dict[str, object], problem: str
) -> None:
    """A kubelet with a static policy refuses to start (kubernetes#131253); with other policies, it compares nothing."""
    (tmp_path / name).write_text(json.dumps(content))
    assert [one.problem for one in state_files(tmp_path)] == [""]
    (tmp_path / MACHINE_FILE).write_text(json.dumps(FOUR_CPUS))
    (seen,) = state_files(tmp_path)
    assert (seen.name, bool(seen.problem)) == (name, bool(problem))
    assert problem in seen.problem


def test_with_the_configuration_a_state_file_is_judged_as_by_a_kubelet(tmp_path: Path) -> None:
    configuration = {"kind": "KubeletConfiguration", "cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
    file = {"policyName": "static", "defaultCpuSet": "0-1", "entries": {"u": {"c": "2-3"}}}
    (tmp_path / MACHINE_FILE).write_text(json.dumps({**FOUR_CPUS, "memoryPerNumaNode": "1Gi"}))
    (tmp_path / "config.yaml").write_text(json.dumps(configuration))
    (tmp_path / CPU_FILE).write_text(json.dumps(file))
    assert state_files(tmp_path) == (StateFileSeen(CPU_FILE, held=(Holding("u", "c", "cpu", "2-3"),)),)
    (tmp_path / "config.yaml").write_text(json.dumps({**configuration, "reservedSystemCPUs": "3"}))
    (seen,) = state_files(tmp_path)
    assert seen.problem == 'not all reserved cpus: "3" are present in defaultCpuSet: "0-1"'
    (tmp_path / "config.yaml").write_text(json.dumps(configuration))
    (tmp_path / CPU_FILE).write_text(json.dumps({**file, "entries": {"u": {"c": "2"}}}))
    (seen,) = state_files(tmp_path)
    assert seen.problem == 'current set of available CPUs "0-3" doesn\'t match with CPUs in state "0-2"'


def test_the_numa_nodes_of_a_machine_that_is_described_are_those_of_the_description(tmp_path: Path) -> None:
    (tmp_path / MACHINE_FILE).write_text(json.dumps({"topology": [{"node_id": 1}, {"node_id": 0}]}))
    assert numa_nodes_of(str(tmp_path)) == (0, 1)
    (tmp_path / MACHINE_FILE).write_text("[")
    assert numa_nodes_of(str(tmp_path)) == ()


def test_without_devicecore_numa_a_state_file_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "devicecore_numa"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "devicecore_numa", None)
    (tmp_path / CPU_FILE).write_text("no JSON")
    read = read_state_files(str(tmp_path), read_managers(str(tmp_path)))
    assert read.value is None
    assert "the distribution devicecore-numa is not installed" in read.problem


OF_1_37 = '{"policyName":"static","defaultCpuSet":"0-1","entries":{"u":{"c":"%s"}}}'


@pytest.mark.parametrize(
    ("data", "checksum", "problem"),
    [
        (OF_1_37 % "2-3", None, ""),
        (OF_1_37 % "2-3", 7, "could not load the checkpoint: checkpoint is corrupted: dataChecksum does not match"),
        (OF_1_37 % "1-2", None, 'pod: u, container: c cpuset: "1-2" overlaps with default cpuset'),
        ('{"policyName":"static","entries":{"u":{"c":"1"}}}', None, "default cpuset cannot be empty"),
        ('{"policyName":"static","entries":7}', None, "expected an object in entries, got 7"),
        ("{", None, "expected JSON in data, got {"),
        (7, 7, "expected a string in data"),
    ],
)
def test_the_embedded_text_of_a_1_37_state_file_counts(
    tmp_path: Path, data: object, checksum: int | None, problem: str
) -> None:
    """Kubelets from 1.37 on read only `data` in a state file; the other fields are for older kubelets."""
    computed = fnv1a_32(f"(string){data}".encode()) if checksum is None else checksum
    file = {"policyName": "none", "defaultCpuSet": "", "checksum": 5, "data": data, "dataChecksum": computed}
    (tmp_path / CPU_FILE).write_text(json.dumps(file))
    (seen,) = state_files(tmp_path)
    assert seen.problem.startswith(problem)
    assert bool(seen.problem) is bool(problem)


@pytest.mark.parametrize(
    ("reserved", "problem"),
    [
        ([{"numaNode": 0, "limits": {"memory": "100Mi"}}], ""),
        ([{"numaNode": 0, "limits": {"memory": "200Mi"}}], "reservedMemory in the configuration is 209715200"),
        ([{"numaNode": 1, "limits": {"memory": "100Mi"}}], "reservedMemory in the configuration is 0"),
        ([], ""),
        ([{"numaNode": 0, "limits": {"memory": "much"}}], ""),
    ],
)
def test_a_memory_manager_refuses_another_reservation(tmp_path: Path, reserved: list[object], problem: str) -> None:
    """A reservation counts as different only if a configuration was read. A record keeps the configuration."""
    numa_node = {"memoryMap": {"memory": {"total": 2**30, "systemReserved": 100 * 2**20}}}
    data = json.dumps({"policyName": "Static", "machineState": {"0": numa_node}})
    file = {"policyName": "Static", "data": data, "dataChecksum": fnv1a_32(f"(string){data}".encode())}
    (tmp_path / MEMORY_FILE).write_text(json.dumps(file))
    configuration = {"kind": "KubeletConfiguration", "memoryManagerPolicy": "Static", "reservedMemory": reserved}
    for written in (configuration, configuration_of):
        content = written if isinstance(written, dict) else written(str(tmp_path))
        (tmp_path / "config.yaml").write_text(json.dumps(content))
        (seen,) = state_files(tmp_path)
        assert problem in seen.problem
        assert bool(seen.problem) is bool(problem)


def test_a_state_file_without_a_policy_stops_a_kubelet(tmp_path: Path) -> None:
    (tmp_path / CPU_FILE).write_text("{}")
    (seen,) = state_files(tmp_path)
    assert seen.problem == 'configured policy differs from state checkpoint policy ""'


def test_a_missing_file_is_absent_and_a_missing_directory_is_not_read(tmp_path: Path) -> None:
    absent = read_checkpoint(str(tmp_path / "file")).value
    assert absent is not None
    assert absent.verdict.verdict is FileVerdict.ABSENT
    nowhere = read_checkpoint(str(tmp_path / "no" / "file"))
    assert (nowhere.value, nowhere.problem) == (None, f"there is no directory {tmp_path / 'no'}")


def test_a_state_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / CPU_FILE).write_text('{"policyName": "none", "defaultCpuSet": ""}')
    (tmp_path / MEMORY_FILE).mkdir()
    found = read_state_files(str(tmp_path), read_managers(str(tmp_path)))
    assert [one.name for one in found.value or ()] == [CPU_FILE]
    assert found.notes == (f"{tmp_path / MEMORY_FILE}: Is a directory",)


def test_a_directory_in_place_of_the_checkpoint_cannot_be_written(directory: Path, tmp_path: Path) -> None:
    """A record shows the problem, too. A real kubelet 1.37.2 with such a directory refused each pod with devices."""
    (directory / "device-plugins" / "kubelet_internal_checkpoint").mkdir(parents=True)
    sources = NodeSources(root=str(directory))
    look = sources.look()
    sources.save(str(tmp_path / "record"), look)
    for seen in (look.checkpoint.value, NodeSources(root=str(tmp_path / "record")).look().checkpoint.value):
        assert seen is not None
        assert (seen.unwritable, seen.verdict.verdict) == ("it is a directory", FileVerdict.MALFORMED)


def test_a_path_that_no_system_call_takes_is_not_a_record() -> None:
    assert not is_record("x" * 5000)


def test_a_record_without_a_listing_does_not_say_that_there_was_no_directory(directory: Path, tmp_path: Path) -> None:
    (directory / "device-plugins").mkdir()
    sources, saved = NodeSources(root=str(directory)), tmp_path / "record"
    sources.save(str(saved), sources.look())
    (saved / "listing.txt").unlink()
    (saved / "look.json").unlink()
    seen = NodeSources(root=str(saved)).look().checkpoint.value
    assert seen is not None
    assert seen.verdict.verdict is FileVerdict.ABSENT


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "expected a regular file" in read_checkpoint(str(tmp_path / "pipe")).problem
    assert "expected a regular file" in read_pods(str(tmp_path / "pipe")).problem


@pytest.mark.parametrize("below", ["", "device-plugins"])
def test_the_root_and_the_plugin_directory_are_both_accepted(directory: Path, below: str) -> None:
    (directory / "device-plugins").mkdir()
    found = KubeletDirectory.at(str(directory / below))
    assert found.plugins == str(directory / "device-plugins")
    assert found.pod_resources == str(directory / "pod-resources" / "kubelet.sock")


def test_sockets_are_listed_and_nothing_else_is(directory: Path) -> None:
    for name in ("device-plugins", "plugins_registry/vendor", "device-plugins/x.sock.d"):
        (directory / name).mkdir(parents=True)
    (directory / "device-plugins" / "DEPRECATION").touch()
    names = ("device-plugins/kubelet.sock", "device-plugins/gpu.sock", "plugins_registry/vendor/nic.sock")
    sockets = [socket.socket(socket.AF_UNIX) for _ in (*names, "hidden")]
    for one, name in zip(sockets, (*names, "device-plugins/.hidden.sock"), strict=True):
        one.bind(str(directory / name))
        one.close()
    seen = read_sockets(KubeletDirectory.at(str(directory))).value
    assert seen is not None
    assert (seen.kubelet, seen.plugins, seen.registry) == (True, ("gpu.sock",), ("vendor/nic.sock",))


# --- pods and the Node ------------------------------------------------------------------------------------------------


POD: dict[str, Any] = {
    "metadata": {"uid": "u-1", "name": "train", "namespace": "ml", "annotations": {"kubernetes.io/config.hash": "h"}},
    "spec": {
        "initContainers": [{"name": "load", "restartPolicy": "Always"}],
        "containers": [{"name": "main", "resources": {"limits": {GPU: "2", "cpu": "500m", "memory": "1Gi"}}}],
    },
    "status": {
        "phase": "Running",
        "extendedResourceClaimStatus": {
            "resourceClaimName": "train-extended-resources-x",
            "requestMappings": [{"containerName": "main", "resourceName": GPU, "requestName": "container-0-request-0"}],
        },
    },
}


@pytest.mark.parametrize("kind", ["List", "PodList"])
def test_pods_are_read_from_what_kubelets_and_kubectl_print(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "pods.json"
    path.write_text(json.dumps({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": [POD]}))
    (seen,) = read_pods(str(path)).value or ()
    assert (seen.pod.uid, seen.pod.name, seen.pod.namespace, seen.phase) == ("u-1", "train", "ml", "Running")
    assert (seen.pod.containers, seen.pod.init_containers) == (
        (Container("main", {GPU: 2, "cpu": 1, "memory": 2**30}),),
        (Container("load", {}, restartable=True),),
    )
    assert seen.other_uids == ("h",)
    assert seen.pod.claimed == {("main", GPU)}


def test_the_pods_of_the_stand_in_kubelet_are_read_from_the_file_that_it_keeps(tmp_path: Path) -> None:
    (directory := tmp_path / "manifests").mkdir()
    (file := tmp_path / PODS_NAME).write_text("{}")
    assert "expected an object with boot" in NodeSources(str(tmp_path)).look().pods.problem
    manifests.ManifestPods(directory, file).poll()
    empty = NodeSources(str(tmp_path)).look()
    both_list_none = evolve(empty, pod_resources=Reading.of("socket", PodResourcesSeen("v1")))
    assert [Facts(one).pods.is_complete for one in (empty, both_list_none)] == [False, True]
    for name in ("a", "b"):
        pod = {**POD, "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": name}}
        (directory / f"{name}.json").write_text(json.dumps(pod))
    pods = manifests.ManifestPods(directory, file)
    pods.poll()
    pods.mark_running(PodUid("a"))
    seen = NodeSources(str(tmp_path)).look().pods
    assert [(one.pod.name, one.phase) for one in seen.value or ()] == [("a", "Running"), ("b", "Pending")], seen.problem


def test_an_object_is_the_same_pod_and_the_same_mistake_wherever_it_is_read() -> None:
    containers = POD["spec"]["containers"]
    claims = {"resourceClaims": [{"name": "mine", "resourceClaimTemplateName": "gpus"}]}
    used = {"name": "side", "resources": {"claims": [{"name": "mine", "request": "gpu"}], "requests": {GPU: "1"}}}
    made = {"resourceClaimStatuses": [{"name": "mine", "resourceClaimName": "train-mine-x"}]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": POD["metadata"],
        "status": {**POD["status"], **made},
        "spec": {**POD["spec"], **claims, "containers": [*containers, used]},
    }
    (listed,) = pods_in(Value({"kind": "PodList", "items": [pod]}, "f"))
    assert pod_of(pod) == listed.pod == manifests.read_pods(json.dumps(pod), "f")[0]
    assert listed.pod.container("side").claims == (ContainerClaim("mine", "gpu"),)

    pod["spec"] = {"containers": [{"name": "main", "resources": {"limits": []}}]}
    read_by: tuple[Callable[[], object], ...] = (
        lambda: pod_of(pod),
        lambda: pods_in(Value({"kind": "PodList", "items": [pod]}, "f")),
        lambda: manifests.read_pods(json.dumps(pod), "f"),
    )
    for read in read_by:
        with pytest.raises(DocumentError) as refused:
            read()
        assert str(refused.value).endswith("spec.containers[0].resources.limits: expected an object, got a list")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1970-01-02T00:00:00Z", 86_400.0), ("1970-01-02T00:00:00", None), ("soon", None), ("", None)],
)
def test_the_time_by_which_a_pod_ends_is_read(text: str, seconds: float | None) -> None:
    pod = {"metadata": {"name": "p", "uid": "u", "deletionTimestamp": text}, "spec": {"containers": []}}
    (seen,) = pods_in(Value({"kind": "PodList", "items": [pod]}, "pods.json"))
    assert seen.ends_by == seconds


def test_a_kubelet_without_pods_prints_null() -> None:
    assert pods_in(parse_document(b'{"kind":"PodList","items":null}', "f")) == ()


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("", "f: expected one document, got nothing"),
        ("[]", "f: expected an object, got a list"),
        ("{", "f: it is not JSON: "),
        ("{{- if .Values.on }}\nkind: Pod\n", "f:1: did not find expected node content; {{ begins"),
        ('{"kind": "List"}\n{"kind": "List"}', "f: it is not JSON: "),
        ("NAME     STATUS\nnode-1   Ready\n", "f: expected JSON or YAML, got a kubectl table: add -o json"),
        ("Name:    node-1\nRoles:   <none>\n", "f: expected JSON or YAML, got the output of kubectl describe: use"),
        ('{"kind": "Status", "message": "pods is forbidden"}', "f: it contains only an error: pods is forbidden"),
        (
            "Error from server (Forbidden): never\n",
            "f: it contains only an error: Error from server (Forbidden): never",
        ),
        ('{"kind": "Pod"}', "f: kind: expected a list of pods (PodList or List), got 'Pod'"),
        ('{"kind": "PodList", "metadata": {"continue": "x"}}', "f: metadata.continue: the list is not complete"),
        ('{"kind": "List", "metadata": {"remainingItemCount": 5}}', "f: metadata.remainingItemCount: the list is not"),
        ('{"kind": "PodList", "items": {}}', "f: items: expected a list, got an object"),
        ('{"kind": "PodList", "items": [7]}', "f: items[0]: expected an object, got 7"),
        ('{"kind": "PodList", "items": [{"kind": "Node"}]}', "f: items[0].kind: expected a Pod, got 'Node'"),
        ('{"kind": "PodList", "items": [{"metadata": {}}]}', "f: items[0].metadata.uid: it is missing"),
        (
            '{"kind": "PodList", "items": [{"metadata": {"uid": 7}}]}',
            "f: items[0].metadata.uid: expected a string, got",
        ),
    ],
)
def test_a_document_that_is_not_a_list_is_refused_with_its_location(document: str, problem: str) -> None:
    with pytest.raises(DocumentError) as refused:
        pods_in(parse_document(document.encode(), "f"))
    assert str(refused.value).startswith(problem)


def test_several_json_documents_in_a_file_are_recognized() -> None:
    with pytest.raises(DocumentError, match="it contains several JSON documents: put each into a separate file"):
        parse_document(b'{"kind": "List"}\n{"kind": "List"}', "f")


def test_a_list_of_pods_is_not_mistaken_for_a_list_of_events() -> None:
    with pytest.raises(DocumentError, match=r"items\[0\].kind: expected an Event, got 'Pod'"):
        events_in(Value({"kind": "List", "items": [{"kind": "Pod"}]}, "f"))


@pytest.mark.parametrize("limit", ["x", -1, True, "1.5x", [], "1" * 300])
def test_a_limit_that_is_not_a_count_is_refused(limit: object) -> None:
    pod = {**POD, "spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: limit}}}]}}
    with pytest.raises(DocumentError, match=r"items\[0\].spec.containers\[0\].resources.limits\[example.com/gpu\]"):
        pods_in(Value({"kind": "List", "items": [pod]}, "f"))


def test_a_node_is_read_with_its_extended_resources() -> None:
    sizes = {"capacity": {"cpu": "8", GPU: "4"}, "allocatable": {"cpu": "7500m", GPU: 3}}
    status = {**sizes, "nodeInfo": {"kubeletVersion": "v1.36.2"}}
    seen = node_in(Value({"kind": "Node", "metadata": {"name": "n1"}, "status": status}, "f"))
    assert (seen.name, seen.kubelet_version, seen.capacity, seen.allocatable) == ("n1", "v1.36.2", {GPU: 4}, {GPU: 3})


def test_the_node_file_of_the_stand_in_is_read(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(json.dumps({"capacity": {GPU: 4}, "allocatable": {GPU: 3}}))
    node = _read(node_in, tmp_path / "node.json").value
    assert node is not None
    assert (node.capacity, node.allocatable) == ({GPU: 4}, {GPU: 3})


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_document_is_refused(tmp_path: Path, hostile: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(HOSTILE[hostile].encode("utf-8", "surrogatepass"))
    assert read_pods(str(path)).problem
    assert _read(node_in, path).problem


def test_the_number_of_values_is_bounded_before_they_are_read() -> None:
    with pytest.raises(DocumentError, match="expected at most 3,500,000 values"):
        parse_document(b'{"a":[' + b"0," * OBJECTS.max_values + b"0]}", "f")


@pytest.mark.parametrize(
    "large",
    [
        b"{%s}" % b",".join(b'"k%d":0' % number for number in range(700_000)),
        b"[%s0]" % (b"{}," * 300_000),
        '"{}\U0001f600"'.format("a" * 26_000_000).encode(),
    ],
    ids=["fields", "elements", "text"],
)
def test_an_object_that_no_api_server_stores_is_refused_before_it_is_read(large: bytes) -> None:
    """If the objects were read, the first would take 150 MB, and the third 100 MB."""
    with pytest.raises(DocumentError, match="expected objects of at most 8,388,608 bytes and 400,000 values"):
        parse_document(b'{"items":[{"kind":"ResourceSlice"},{"kind":"ResourceSlice","spec":%s}]}' % large, "it")


def test_a_list_of_many_objects_is_read_whatever_their_strings_contain() -> None:
    """Brackets and escapes in strings are not part of the structure, wherever the text is divided."""
    one = b'{"spec":{"devices":[{"name":"a\\\\\\"[{,%s"},{"b":[1,2,3,4]}]}}' % (b"x" * 11)
    document = parse_document(b'{"items":[%s]}' % b",".join([one] * 45_000), "it")
    assert len(document["items"].sequence()) == 45_000


def test_truncated_json_is_refused_wherever_it_ends() -> None:
    text = json.dumps({"kind": "PodList", "items": [POD]}).encode()
    for end in range(len(text)):
        with pytest.raises(DocumentError):
            pods_in(parse_document(text[:end], "f"))


def test_the_file_of_claims_is_read_whole_or_named_as_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "dra_manager_state"
    assert read_claims(str(path), may_be_absent=True) == Reading.of(
        str(path), ClaimsSeen(), ("there is no such file, so no claim is prepared",)
    )
    assert read_claims(str(path), may_be_absent=False) == Reading(str(path), problem="there is no such file")
    device = PreparedDevice("n1", "gpu-0", None, ("r",), ("d.org/gpu=0",))
    listed = {"d.org": (device,), "e.org": None, "never-called.org": None}
    skips = {"e.org": frozenset({"NodePrepareResources"}), "never-called.org": frozenset({"*"})}
    blob = encode_claims([ClaimEntry("c-1", "one", "default", ("p",), listed, skips)])
    path.write_bytes(blob)
    seen = PreparedDeviceSeen("default/one", "d.org", "n1", "gpu-0", ("d.org/gpu=0",))
    assert read_claims(str(path), may_be_absent=True).value == ClaimsSeen(
        (seen,), {"default/one": ("d.org", "e.org")}, {"default/one": ("p",)}, uids={"default/one": "c-1"}
    )
    path.write_bytes(blob.replace(b"gpu-0", b"gpu-1"))
    assert "checkpoint is corrupted" in read_claims(str(path), may_be_absent=True).notes[0]
    path.write_bytes(b"{")
    assert read_claims(str(path), may_be_absent=True).value == ClaimsSeen(
        problem="not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )
    nowhere = read_claims(str(tmp_path / "none" / "dra_manager_state"), may_be_absent=True)
    assert "there is no directory" in nowhere.problem


def test_sockets_that_are_deleted_meanwhile_do_not_hide_the_others(tmp_path: Path) -> None:
    directory = KubeletDirectory.at(str(tmp_path))
    (tmp_path / "device-plugins").mkdir()
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            for parent in ("device-plugins", "plugins_registry/a/b"):
                (tmp_path / parent).mkdir(parents=True, exist_ok=True)
                files = [tmp_path / parent / f"{number}.sock" for number in range(50)]
                for file in files:
                    file.touch()
                for file in files:
                    file.unlink()
            (tmp_path / "plugins_registry/a/b").rmdir()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        seen = [read_sockets(directory) for _ in range(1_000)]
    finally:
        ended.set()
        thread.join()
    assert {(one.problem, one.notes) for one in seen} == {("", ())}


def test_a_registrys_files_are_examined_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet_directory, "MAX_ENTRIES", 10)
    (tmp_path / "device-plugins").mkdir()
    for name in range(6):
        (tmp_path / "plugins_registry" / str(name) / "x").mkdir(parents=True)
    (note,) = read_sockets(KubeletDirectory.at(str(tmp_path))).notes
    assert note.endswith("plugins_registry: only the first 10 files are examined")


@pytest.mark.parametrize(
    "document", [{"kind": "PodList"}, {"kind": "List", "metadata": {"continue": "x"}}, {"kind": "List", "items": [{}]}]
)
def test_a_document_that_is_not_a_list_of_slices_is_refused(tmp_path: Path, document: object) -> None:
    path = tmp_path / "slices.json"
    path.write_text(json.dumps(document))
    assert _read(slices_in, path).problem


@pytest.mark.parametrize("attributes", [1, True, "text", ["text"], [{}], {"uuid": 1}, {"uuid": {"string": 1}}])
def test_attributes_of_a_wrong_type_are_refused_with_their_location(tmp_path: Path, attributes: object) -> None:
    device = {"name": "gpu-0", "attributes": attributes}
    item = {"spec": {"driver": "d.org", "pool": {"name": "p"}, "devices": [device]}}
    (tmp_path / "slices.json").write_text(json.dumps({"kind": "List", "items": [item]}))
    assert ".devices[0].attributes" in _read(slices_in, tmp_path / "slices.json").problem


@pytest.mark.parametrize(
    ("attributes", "numa_nodes"),
    [
        ({"numaNode": {"int": 1}}, (1,)),
        ({"d.org/numaNode": {"int": 0}, "numaNode": {"int": 1}}, (0,)),
        ({"resource.kubernetes.io/numaNode": {"ints": [1, 0]}, "numaNode": {"int": 2}}, (0, 1)),
        ({"numaNode": {"string": "1"}, "other.org/numaNode": {"int": 1}}, None),
    ],
)
def test_the_numa_node_of_a_published_device_is_read(
    attributes: object, numa_nodes: tuple[int, ...] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"driver": "d.org", "pool": {"name": "p"}, "devices": [{"name": "gpu-0", "attributes": attributes}]}
    (tmp_path / "s.json").write_text(json.dumps({"kind": "ResourceSliceList", "items": [{"spec": spec}]}))
    (tmp_path / "checkpoint").write_text("{}")
    main(["doctor", "--checkpoint", str(tmp_path / "checkpoint"), "--slices", str(tmp_path / "s.json"), "--json"])
    (row,) = json.loads(capsys.readouterr().out)["devices"]
    assert row["numa_nodes"] == (None if numa_nodes is None else list(numa_nodes))


def test_only_the_devices_that_a_node_may_use_are_read() -> None:
    slices = [
        {"spec": {"driver": "d.io", "nodeName": name, "pool": {"name": name}, "devices": [{"name": f"of-{name}"}]}}
        for name in ("n1", "n2")
    ]
    found = slices_in(Value({"kind": "ResourceSliceList", "items": slices}, "server"))
    assert [one.device for one in published_by(found, "n1")] == ["of-n1"]
    assert [one.device for one in published_by(found)] == ["of-n1", "of-n2"]


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"kind": "List", "items": []}')))
    look = NodeSources(pods="-", events="-").look()
    assert (look.pods.value, look.pods.place, look.events.value) == ((), "standard input", ())


def test_slices_of_older_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "slices.json"
    basic = {"attributes": {"uuid": {"string": "u"}}}
    spec = {"driver": "d.org", "pool": {"name": "p"}, "devices": [{"name": "gpu-0", "basic": basic}]}
    path.write_text(json.dumps({"kind": "List", "items": [{"spec": spec}]}))
    seen = _read(lambda document: published_by(slices_in(document), "n1"), path).value
    assert seen == (PublishedDeviceSeen("d.org", "p", "gpu-0", {"uuid": "u"}),)


def test_pods_and_node_are_read_from_an_api_server(tmp_path: Path) -> None:
    with LocalApiServer() as server:
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        for name, node_name in (("train", "n1"), ("other", "n2")):
            spec = {"nodeName": node_name, "containers": [{"name": "main", "image": "none"}]}
            server.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        for name in ("n1", "n2"):
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            devices = [{"name": "gpu-0", "attributes": {PCI: {"string": "0000:3b:00.0"}, "index": {"int": 0}}}]
            published = {"driver": "d.org", "nodeName": name, "pool": pool, "devices": devices}
            server.create({"kind": "ResourceSlice", "metadata": {"name": f"slice-{name}"}, "spec": published})
        pool = {"name": "all", "generation": 1, "resourceSliceCount": 1}
        everywhere = {"driver": "d.org", "allNodes": True, "pool": pool, "devices": [{"name": "net"}]}
        server.create({"kind": "ResourceSlice", "metadata": {"name": "slice-all"}, "spec": everywhere})
        node, pods, _, slices, *_ = read_objects("n1", server.kubeconfig(tmp_path / "config"), budget=Budget()).values()
        missing, *none = read_objects("n3", server.kubeconfig(tmp_path / "config"), budget=Budget()).values()
        server.users = {"token": "system:node:n1"}
        kubelets = server.kubeconfig(tmp_path / "config", {"token": "token"})
        assert read_objects("n1", kubelets, ["ResourceSlice"], budget=Budget()) == {"ResourceSlice": slices[:1]}
    assert (missing, none) == ("there is no node 'n3' (nodes \"n3\" not found)", [[], [], slices[1:], [], []])
    found = published_by(slices_in(Value({"kind": "ResourceSliceList", "items": slices}, "server")), "n1")
    assert [(one.pool, one.device) for one in found] == [("n1", "gpu-0"), ("all", "net")]
    assert found[0].attributes == {PCI: "0000:3b:00.0"}
    assert not isinstance(node, str)
    assert not isinstance(pods, str)
    assert node["metadata"]["name"] == "n1"
    assert [one["metadata"]["name"] for one in pods] == ["train"]


def test_the_version_of_an_api_server_is_read(tmp_path: Path) -> None:
    with LocalApiServer() as server:
        assert read_version(server.kubeconfig(tmp_path / "config"), Budget()).startswith("v1.")


def test_nothing_of_another_node_comes_into_a_record(tmp_path: Path) -> None:
    (root := tmp_path / "root").mkdir()
    (root / "device-plugins").mkdir()
    with LocalApiServer() as server:
        ready = [{"type": "Ready", "status": "True"}]
        status = {"nodeInfo": {"machineID": "another", "bootID": "another"}, "conditions": ready}
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": status})
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "d.org", "nodeName": "n1", "pool": pool, "devices": [{"name": "gpu-0"}]}
        server.create({"kind": "ResourceSlice", "metadata": {"name": "slice"}, "spec": spec})
        sources = NodeSources(root=str(root), kubeconfig=str(server.kubeconfig(tmp_path / "config")), node_name="n1")
        look = sources.look()
        sources.save(str(tmp_path / "record"), look)
    assert (look.node.value, look.pods.value, look.slices.value, look.events.value) == (None, None, None, None)
    written = {path.name for path in (tmp_path / "record").iterdir()}
    assert written.isdisjoint({"node.json", "pods.json", "resourceslices.json", "events.json"})
    assert (
        "is a different machine from this one"
        in json.loads((tmp_path / "record" / "sources.json").read_text())["node.json"]
    )


@pytest.mark.parametrize("has_kubelet", [False, True])
def test_a_node_that_is_elsewhere_is_read_at_the_api_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_kubelet: bool
) -> None:
    """This machine may or may not run a kubelet; either way, the user named a different node."""
    root = tmp_path / "kubelet"
    monkeypatch.setattr(node_reading, "DEFAULT_ROOT", str(root))
    if has_kubelet:
        (root / "device-plugins").mkdir(parents=True)
    with LocalApiServer() as server:
        ready = [{"type": "Ready", "status": "True"}]
        status = {"nodeInfo": {"machineID": "another", "bootID": "another"}, "conditions": ready}
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": status})
        look = NodeSources(kubeconfig=str(server.kubeconfig(tmp_path / "config")), node_name="n1").look()
    assert look.is_of_server
    assert look.node.value is not None
    assert look.pods.value == ()


class _Answers(BaseHTTPRequestHandler):
    """The base class of the API servers below: it sends answers, and logs nothing."""

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def api_server_of(answers: type[_Answers]) -> Iterator[str]:
    """Run an API server that handles requests with this class, and yield the server's URL."""
    with HTTPServer(("127.0.0.1", 0), answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _EndlessPages(_Answers):
    """Answers each list request with a page that is not the last one. DeviceTaintRules exist only as v1alpha3."""

    def do_GET(self) -> None:
        pod = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "main"}]}}
        body = json.dumps({"items": [pod] * 50, "metadata": {"name": "n1", "continue": "more"}}).encode()
        if is_missing := self.path.startswith(_NEWER_RULES):
            body = b"404 page not found\n"
        self.answer(404 if is_missing else 200, body)


_NEWER_RULES = tuple(f"/apis/resource.k8s.io/{version}/devicetaintrules" for version in ("v1", "v1beta2"))


def kubeconfig_of(server: str, path: Path, user: object) -> Path:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(config))
    return path


class _Rules(_Answers):
    """A Kubernetes 1.36 API server, which serves DeviceTaintRules as v1beta2 if `status_of_rules` is 200."""

    status_of_rules = 200

    def do_GET(self) -> None:
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "d.org", "nodeName": "n1", "pool": pool, "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}
        rule = {"deviceSelector": {"device": "gpu-1"}, "taint": {"key": "k", "effect": "NoExecute"}}
        status, items = 200, [{"metadata": {"name": "one"}, "spec": spec}] if "nodeName%3Dn1" in self.path else []
        if "devicetaintrules" in self.path:
            status = self.status_of_rules if "v1beta2" in self.path else 404
            items = [{"metadata": {"name": "off"}, "spec": rule}]
        body = json.dumps({"items": items, "metadata": {"name": "n1"}} if status == 200 else {"message": "no"}).encode()
        self.answer(status, body)


@pytest.mark.parametrize(
    ("status", "tainted", "note"), [(200, "gpu-1", ""), (404, "", ""), (403, "", "may count as free")]
)
def test_the_device_taint_rules_of_a_server_taint_what_they_select(
    status: int, tainted: str, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Rules, "status_of_rules", status)
    with api_server_of(_Rules) as url:
        config = kubeconfig_of(url, tmp_path / "config", {})
        slices = NodeSources(str(tmp_path), kubeconfig=str(config), node_name="n1").look().slices
    assert {one.device: bool(one.taint) for one in slices.value or ()} == {
        name: name == tainted for name in ("gpu-0", "gpu-1")
    }
    assert [note in text for text in slices.notes] == [True] * bool(note)


class _Broken(_Answers):
    """An API server that has the Node n1, a malformed Pod and a malformed ResourceSlice."""

    specs: ClassVar[dict[str, object]] = {
        "nodes": {},
        "pods": {"nodeName": 1},
        "resourceslices": {"perDeviceNodeSelection": True, "devices": ["gpu-0"]},
    }

    def do_GET(self) -> None:
        spec = self.specs.get(self.path.partition("?")[0].rpartition("/")[2])
        items = [] if spec is None else [{"metadata": {"name": "n1"}, "spec": spec}]
        self.answer(200, json.dumps({"metadata": {}, "items": items}).encode())


def test_a_list_with_a_malformed_object_is_unknown_for_all_nodes(tmp_path: Path) -> None:
    with api_server_of(_Broken) as url:
        look = looks_at_all_nodes(kubeconfig_of(url, tmp_path / "config", {}), budget=Budget())["n1"]
    assert (look.pods.problem, look.slices.problem) == (
        "API server: items[0].spec.nodeName: expected a string, got 1: put the value in quotes",
        "API server: items[0].spec.devices[0]: expected an object, got 'gpu-0'",
    )


def test_a_name_of_a_pod_changes_nothing_else_of_the_selector(tmp_path: Path) -> None:
    """The name is escaped as Kubernetes' fields.EscapeValue escapes it."""
    with LocalApiServer() as server:
        config = server.kubeconfig(tmp_path / "config")
        assert read_objects("", config, ["Event"], ("a,b", "c=d\\e"), budget=Budget()) == {"Event": []}
        asked = server.requests[-1].query["fieldSelector"]
    assert asked == r"involvedObject.namespace=a\,b,involvedObject.name=c\=d\\e"


def test_a_list_that_the_server_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_http, "MAX_VALUES", 10_000)
    with api_server_of(_EndlessPages) as url:
        kinds = ("Node", "Pod", "ResourceSlice", "DeviceTaintRule")
        config = kubeconfig_of(url, tmp_path / "config", {})
        node, pods, slices, rules = read_objects("n1", config, kinds, budget=Budget()).values()
    assert not isinstance(node, str)
    assert pods == slices == rules == "the answer has more than 10,000 values, or its pages are too long in total"


def test_without_credentials_the_api_server_is_asked_once(tmp_path: Path) -> None:
    """If the program or the server hangs, `doctor` must not wait for it once for each list."""
    arguments = ["-c", f"echo called >> {tmp_path}/calls; exit 3"]
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": arguments}
    config = kubeconfig_of("http://127.0.0.1:1", tmp_path / "config", {"exec": program})
    answers = read_objects("n1", config, budget=Budget())
    assert set(answers.values()) == {"exec program '/bin/sh': ended with status 3: it printed no reason"}
    assert (tmp_path / "calls").read_text() == "called\n"


# --- CDI --------------------------------------------------------------------------------------------------------------


GOOD: dict[str, Any] = {
    "cdiVersion": "0.6.0",
    "kind": "example.com/gpu",
    "devices": [{"name": "a", "containerEdits": {"env": ["A=1"]}}],
}


def with_device(**fields: object) -> dict[str, Any]:
    return {**GOOD, "devices": [{**GOOD["devices"][0], **fields}]}


def test_cdi_files_are_read_and_ignored_ones_are_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text(json.dumps(GOOD))
    (tmp_path / "nic.yaml").write_text(
        "cdiVersion: 0.6.0\nkind: example.com/nic\ndevices:\n- name: 1\n  containerEdits: {env: [A=1]}\n"
    )
    reading = read_cdi([str(tmp_path), str(tmp_path / "missing")])
    assert reading.value == CdiSeen(
        (
            CdiSpec(str(tmp_path), "gpu.json", "example.com/gpu", ("a",)),
            CdiSpec(str(tmp_path), "nic.yaml", "example.com/nic", ("1",)),
        )
    )
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.txt").write_text("{")
    broken = read_cdi([str(tmp_path)])
    assert broken.value is not None
    assert (broken.value.is_complete, broken.notes) == (True, ())
    assert [one.file for one in broken.value.specs if one.problem] == ["broken.json"]


@pytest.mark.parametrize(
    ("file", "content", "is_defined"),
    [
        ("good.json", GOOD, True),
        ("good.yaml", GOOD, True),
        ("other-ending.yml", GOOD, False),
        ("no-edits.json", {**GOOD, "devices": [{"name": "a"}]}, False),
        ("unknown-version.json", {**GOOD, "cdiVersion": "9.9.9"}, False),
        ("old-version.json", with_device(containerEdits={"additionalGids": [5]}), False),
        ("variable.json", with_device(containerEdits={"env": ["A"]}), False),
        ("hook.json", with_device(containerEdits={"hooks": [{"hookName": "later", "path": "/x"}]}), False),
        ("node.json", with_device(containerEdits={"deviceNodes": [{"path": "/dev/a", "type": "x"}]}), False),
        ("field.json", {**GOOD, "color": "red"}, False),
        ("twice.json", {**GOOD, "devices": GOOD["devices"] * 2}, False),
    ],
)
def test_doctor_and_runtimes_agree_on_which_cdi_files_count(
    file: str, content: object, is_defined: bool, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(json.dumps(content))
    seen = read_cdi([str(tmp_path)]).value
    assert seen is not None
    assert ("example.com/gpu=a" in seen.defined) == is_defined == ("example.com/gpu=a" in names_in(tmp_path))


def test_the_total_size_of_cdi_files_is_bounded(tmp_path: Path) -> None:
    spec = b'{"cdiVersion": "0.6.0", "kind": "a.example/b", "devices": []}'
    number_read = cdi.MAX_BYTES_OF_ALL // MAX_BYTES + 1  # the last file read exceeds the limit
    (tmp_path / "000.json").write_bytes(spec.ljust(MAX_BYTES))
    for number in range(1, number_read + 3):
        (tmp_path / f"{number:03}.json").hardlink_to(tmp_path / "000.json")
    reading = read_cdi([str(tmp_path)])
    assert reading.value is not None
    assert not reading.value.is_complete
    assert len(reading.value.specs) == number_read
    (note,) = reading.notes
    assert note == f"{tmp_path}: the CDI files together contain more than 67,108,864 bytes, so doctor skipped 3 files"


def test_the_devices_of_all_cdi_files_are_bounded(tmp_path: Path) -> None:
    for name in ("0.json", "1.json", "2.json"):
        (tmp_path / name).write_text(json.dumps(GOOD))
    reading = read_cdi([str(tmp_path)], most_devices=1)
    assert reading.value is not None
    assert [spec.file for spec in reading.value.specs] == ["0.json", "1.json"]
    assert not reading.value.is_complete


def test_many_notes_of_one_source_are_counted(tmp_path: Path) -> None:
    for number in range(30):
        os.mkfifo(tmp_path / f"{number}.json")
    notes = read_cdi([str(tmp_path)]).notes
    assert len(notes) == look.MAX_NOTES
    assert notes[-1] == "and 21 more such notes"


def test_cdi_directories_that_do_not_exist_define_nothing(tmp_path: Path) -> None:
    seen = read_cdi([str(tmp_path / "missing")])
    assert (seen.value, seen.notes) == (CdiSeen(), (NO_DIRECTORY,))


# --- the pod-resources API --------------------------------------------------------------------------------------------


@pytest.fixture
def snapshot() -> Snapshot:
    transport = MemoryTransport()
    pod = Pod(PodUid("u"), name="train", containers=(Container("main", {GPU: 2}),))
    with DeviceManager(transport, MemoryStore(), _Nowhere()) as manager:
        transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 4, numa_nodes=[0, 1])))
        manager.admit(pod)
        return Snapshot(manager.state, [pod])


class _Nowhere:
    def publish(self, status: object) -> None:
        """Publish nothing."""


def test_the_kubelet_is_asked_who_holds_what(directory: Path, snapshot: Snapshot) -> None:
    path = directory / "kubelet.sock"
    with PodResourcesServer(path, lambda: snapshot):
        seen = read_pod_resources(str(path)).value
    assert seen is not None
    assert (seen.version, seen.pods) == ("v1", frozenset({("default", "train")}))
    (held,) = seen.holdings
    assert (held.pod, held.container, held.resource) == ("train", "main", GPU)
    assert held.devices == {"gpu-0": (0,), "gpu-1": (1,)}
    assert seen.allocatable == {GPU: {"gpu-0": (0,), "gpu-1": (1,), "gpu-2": (0,), "gpu-3": (1,)}}


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
def test_a_kubelet_that_does_not_offer_allocatable_devices_is_read(directory: Path, version: str) -> None:
    """A kubelet that does not serve v1 is queried with v1alpha1."""
    path = directory / "kubelet.sock"
    with answering(path, {f"/{version}.PodResourcesLister/List": b""}):
        seen = read_pod_resources(str(path)).value
    assert seen is not None
    assert (seen.version, seen.allocatable) == (version, None)


def test_the_devices_of_claims_are_read(directory: Path) -> None:
    """Two shares of one device count as two devices. A device that is not shared has no share id."""
    shared = podresources.ClaimResource(driver_name="d", pool_name="p", device_name="x", share_id="s")
    whole = podresources.ClaimResource(driver_name="d", pool_name="p", device_name="y")
    whole.cdi_devices.add(name="d/c=y")
    claim = podresources.DynamicResource(claim_name="c", claim_namespace="ns", claim_resources=[shared, whole])
    container = podresources.ContainerResources(name="main", dynamic_resources=[claim])
    pod = podresources.PodResources(name="a", namespace="ns", containers=[container])
    answer = podresources.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString()
    path = directory / "kubelet.sock"
    with answering(path, {"/v1.PodResourcesLister/List": answer}):
        seen = read_pod_resources(str(path)).value
    assert seen is not None
    assert seen.claimed == (
        ClaimedDeviceSeen("ns", "a", "main", "c", "d", "p", "x", "s"),
        ClaimedDeviceSeen("ns", "a", "main", "c", "d", "p", "y", None, ("d/c=y",)),
    )


def test_a_kubelet_that_answers_nonsense_is_a_sentence(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = directory / "kubelet.sock"
    with answering(path, {"/v1.PodResourcesLister/List": b"\xff\xff\xff"}):
        reading = read_pod_resources(str(path))
    assert reading.value is None
    assert reading.problem.startswith("List failed with INTERNAL: the answer cannot be read")
    assert caplog.text == ""


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256)) * 20, b""])
def test_a_process_that_does_not_speak_grpc_is_a_sentence(directory: Path, garbage: bytes) -> None:
    path = directory / "kubelet.sock"

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.sendall(garbage)

    with listening(path, answer):
        reading = read_pod_resources(str(path), 0.3)
        (plugin,) = read_plugins(str(directory), ["kubelet.sock"], "", (), asking(0.3)).value or ()
    assert reading.problem.startswith("List failed with ")
    assert plugin.problem == "no answer to GetDevicePluginOptions within 0.3 s"


def test_a_socket_without_a_server_is_an_error_at_once(directory: Path) -> None:
    path = directory / "kubelet.sock"
    assert read_pod_resources(str(path)).problem == "there is no socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert read_pod_resources(str(path)).problem == "no process listens at the socket"


# --- plugins ----------------------------------------------------------------------------------------------------------


def asking(answer: float) -> Listeners[PluginSeen | None]:
    return Listeners(answer, answer + 1.0, lists_of)


def test_a_plugin_is_asked_for_options_and_one_list(directory: Path) -> None:
    asked: list[str] = []

    class Spying(SimulatedPlugin):
        def allocate(self, devices: object) -> ContainerAllocateResponse:
            asked.append(str(devices))
            return ContainerAllocateResponse()

    plugin = Spying(GPU, simulated_devices("gpu", 3, numa_nodes=[0, 1], unhealthy=[2]))
    with serve_plugin(plugin, directory, endpoint="gpu.sock", poll_interval=0.1):
        (seen,) = read_plugins(str(directory), ["gpu.sock"], "", ()).value or ()
    assert seen.devices is not None
    assert (seen.socket, seen.problem) == ("gpu.sock", "")
    assert [device.id for device in seen.devices] == ["gpu-0", "gpu-1", "gpu-2"]
    assert seen.list_bytes > 30
    assert asked == []


def test_a_record_has_what_plugins_and_cdi_files_said(directory: Path, tmp_path: Path) -> None:
    cdi_files = tmp_path / "cdi"
    cdi_files.mkdir()
    (cdi_files / "a.json").write_text(json.dumps(GOOD))
    plugin = SimulatedPlugin(GPU, simulated_devices("gpu", 3, numa_nodes=[0, 1]))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "dead.sock"))
    with serve_plugin(plugin, directory, endpoint="gpu.sock", poll_interval=0.1):
        (directory / "kubelet_internal_checkpoint").touch()  # this file shows that the directory is a kubelet's
        sources = NodeSources(str(directory), plugins=True, cdi_directories=(str(cdi_files),))
        look = sources.look()
        sources.save(str(tmp_path / "saved"), look)
    again = NodeSources(str(tmp_path / "saved")).look()
    assert look.plugins.value is not None
    assert [bool(one.problem) for one in look.plugins.value] == [True, False]
    assert again.plugins.value == look.plugins.value
    assert again.cdi.value == look.cdi.value == CdiSeen((CdiSpec(str(cdi_files), "a.json", "example.com/gpu", ("a",)),))
    (tmp_path / "saved" / "plugins.json").write_text('{"plugins": 1}')
    assert "expected" in NodeSources(str(tmp_path / "saved")).look().plugins.problem


def test_a_plugin_of_the_plugin_watcher_names_its_resource(directory: Path) -> None:
    (directory / "registry").mkdir(mode=0o750)
    plugin = SimulatedPlugin(GPU, simulated_devices("gpu", 2))
    with serve_plugin(plugin, registry=directory / "registry", poll_interval=0.1) as running:
        name = Path(running.socket).name
        (seen,) = read_plugins(str(directory), (), str(directory / "registry"), [name]).value or ()
    assert (seen.resource, seen.problem, len(seen.devices or ())) == (GPU, "", 2)


def test_a_driver_of_another_type_is_left_out(directory: Path) -> None:
    info = b"\x0a\x09CSIPlugin\x12\x07example"
    with answering(directory / "csi.sock", {"/pluginregistration.Registration/GetInfo": info}):
        assert read_plugins("", (), str(directory), ["csi.sock"]).value == ()


@pytest.mark.parametrize(
    ("endpoint", "offered", "expected"),
    [
        ("dra.sock", ["v1.DRAPlugin"], "no process listens at its socket"),
        ("reg.sock", ["v1.DRAPlugin"], ""),
        ("", ["v1beta1.DRAPlugin", "v9.DRAPlugin"], ""),
        ("elsewhere/dra.sock", ["v1.DRAPlugin"], ""),  # only the driver and the kubelet can see `elsewhere`
        ("reg.sock", ["1.0.0"], "it offers 1.0.0, but a kubelet calls v1.DRAPlugin, v1beta1.DRAPlugin"),
    ],
)
def test_a_driver_whose_service_no_kubelet_can_call_is_known(
    directory: Path, endpoint: str, offered: list[str], expected: str
) -> None:
    """A driver's registrar may still answer when its service no longer does."""
    path = directory / "reg.sock"
    place = str(directory / endpoint) if endpoint else ""
    info = PluginInfo(type="DRAPlugin", name="gpu.example.com", endpoint=place, supported_versions=offered)
    with answering(path, {"/pluginregistration.Registration/GetInfo": info.SerializeToString()}):
        seen = who_listens("plugins_registry/reg.sock", str(path), lambda: 5.0)
    assert (seen.kind, seen.name) == ("DRAPlugin", "gpu.example.com")
    assert seen.unusable.startswith(expected) if expected else not seen.unusable


OPTIONS, LIST = "/v1beta1.DevicePlugin/GetDevicePluginOptions", "/v1beta1.DevicePlugin/ListAndWatch"


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({}, "it does not serve GetDevicePluginOptions"),
        ({OPTIONS: b""}, "it does not serve ListAndWatch"),
        ({OPTIONS: b"\xff"}, "its answer cannot be read"),
        ({OPTIONS: b"", LIST: b"\xff"}, "its answer cannot be read"),
        ({OPTIONS: bytes(5_000)}, "its answer to GetDevicePluginOptions is larger than 4,000 bytes"),
        ({OPTIONS: b"", LIST: bytes(5_000)}, f"{look.LIST_HAS} more than 4,000 bytes"),
    ],
)
def test_a_plugin_that_answers_nonsense_is_a_sentence(
    directory: Path, answers: dict[str, bytes], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_sockets, "MAX_LIST_BYTES", 4_000)
    with answering(directory / "gpu.sock", answers):
        (seen,) = read_plugins(str(directory), ["gpu.sock"], "", ()).value or ()
    assert seen.problem == problem


@pytest.mark.parametrize(("count", "said"), [(260_000, "260,000"), (2_100_000, "more than 250,000")])
def test_only_a_list_that_a_kubelet_could_take_is_counted_to_its_end(directory: Path, count: int, said: str) -> None:
    with answering(directory / "gpu.sock", {OPTIONS: b"", LIST: b"\n\x00" * count}):
        (seen,) = read_plugins(str(directory), ["gpu.sock"], "", ()).value or ()
    assert seen.problem == f"{look.LIST_HAS} {said} devices, expected at most 250,000"


def test_a_plugin_that_sends_ping_without_end_is_given_up(directory: Path) -> None:
    with flood_of_pings(directory / "gpu.sock"):
        (seen,) = read_plugins(str(directory), ["gpu.sock"], "", (), asking(0.2)).value or ()
        assert seen.problem.startswith("no answer ")


def test_a_plugin_that_is_silent_or_gone_is_a_sentence(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as dead:
        silent.bind(str(directory / "silent.sock"))
        silent.listen()
        dead.bind(str(directory / "dead.sock"))
        seen = read_plugins(str(directory), ["silent.sock", "dead.sock"], "", (), asking(0.3)).value or ()
    expected = ["no answer to GetDevicePluginOptions within 0.3 s", "no process listens at the socket"]
    assert [one.problem for one in seen] == expected


ROUNDED = 0.01  # gRPC may send a server a deadline that is this many seconds longer


@contextmanager
def hanging(path: Path) -> Iterator[list[float]]:
    """Serve a plugin that never returns its options, and yield the timeout of each request in seconds."""
    ended, given = threading.Event(), list[float]()

    def hang(_: bytes, context: grpc.ServicerContext) -> bytes:
        given.append(context.time_remaining())
        ended.wait()
        return b""

    with answering(path, {OPTIONS: hang}):
        try:
            yield given
        finally:
            ended.set()


def test_a_socket_that_had_less_time_than_others_is_not_called_silent(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_sockets, "_AGAIN", 0.1)
    name, path = "device-plugins/gpu.sock", directory / "gpu.sock"
    with hanging(path) as given:
        for left in (0.0, 0.2):
            listeners = Listeners(0.4, left, who_listens, now=lambda: 0.0)
            assert listeners.ask({name: str(path)}) == ({}, {}, (name,))
            assert all(one <= max(left, 0.1) + ROUNDED for one in given)
        full = Listeners(0.4, 1.0, who_listens, now=lambda: 0.0).ask({name: str(path)})
        assert full == ({}, {name: "no answer to GetDevicePluginOptions within 0.4 s"}, ())


@pytest.mark.parametrize("question", [who_listens, lists_of])
def test_many_looks_at_a_hanging_socket_share_one_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch, question: Callable[..., object]
) -> None:
    monkeypatch.setattr(plugin_sockets, "_AGAIN", 0.05)
    paths = {f"device-plugins/{name}.sock": str(directory / f"{name}.sock") for name in ("gpu", "nic")}
    listeners: Listeners[object] = Listeners(0.3, 0.4, question)
    with hanging(directory / "gpu.sock") as given, answering(directory / "nic.sock", {OPTIONS: b"", LIST: b""}):
        looks = [listeners.ask(paths) for _ in range(5)]
    silent = {"device-plugins/gpu.sock": "no answer to GetDevicePluginOptions within 0.3 s"}
    assert [[list(answered), late, unasked] for answered, late, unasked in looks] == [
        [["device-plugins/nic.sock"], silent, ()]
    ] * 5
    assert sum(given) <= 0.3 + 4 * 0.05 + 5 * ROUNDED


def test_an_answer_counts_until_a_look_with_enough_time_is_not_answered(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process answers the first call, and then hangs."""
    monkeypatch.setattr(plugin_sockets, "_AGAIN", 0.1)
    is_hanging, ended = threading.Event(), threading.Event()

    def once(_: bytes, __: object) -> bytes:
        if is_hanging.is_set():
            ended.wait()
        is_hanging.set()
        return b""

    name, path = "device-plugins/gpu.sock", directory / "gpu.sock"
    with answering(path, {OPTIONS: once}):
        listeners = Listeners(0.3, 0.4, who_listens)
        answered = listeners.ask({name: str(path)})
        assert answered == ({name: Listener("DevicePlugin")}, {}, ())
        listeners.left = 0.2  # less time than a response may take
        assert listeners.ask({name: str(path)}) == answered
        listeners.left = 1.0
        assert listeners.ask({name: str(path)})[1] == {name: "no answer to GetDevicePluginOptions within 0.3 s"}
        ended.set()


def test_a_later_look_asks_a_silent_socket_only_briefly(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_sockets, "_AGAIN", 0.1)
    sources = NodeSources(root=str(directory), plugin_timeout=0.5)
    sources.begin(0.0)
    (directory / "device-plugins").mkdir()
    with hanging(directory / "device-plugins" / "gpu.sock") as given:
        looks = [sources.look().sockets.value for _ in range(3)]
    silent = {"device-plugins/gpu.sock": "no answer to GetDevicePluginOptions within 0.5 s"}
    assert [one and one.silent for one in looks] == [silent] * 3
    assert all(one <= 0.1 + ROUNDED for one in given[1:])


def test_sockets_that_were_not_asked_are_named_as_unknown(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_sockets, "MAX_PLUGINS", 1)
    (plugins := directory / "device-plugins").mkdir()
    with hanging(plugins / "a.sock"), hanging(plugins / "b.sock") as given:
        seen = NodeSources(root=str(directory), plugin_timeout=0.2).look().sockets
    unknown = (
        "it is unknown which process listens at device-plugins/b.sock: it was not queried, or was given less time "
        "than others"
    )
    assert seen.notes == (unknown,)
    assert (seen.value and list(seen.value.silent), given) == (["device-plugins/a.sock"], [])


@pytest.mark.parametrize(("patience", "left"), [((), 10.0), (("--patience", "2"), 2.0), (("--patience", "0"), 1.2)])
def test_the_patience_bounds_the_time_to_ask_who_listens(
    directory: Path, monkeypatch: pytest.MonkeyPatch, patience: tuple[str, ...], left: float
) -> None:
    made: list[tuple[float, float]] = []

    def make(answer: float, left: float, question: Callable[..., object]) -> Listeners[object]:
        made.append((answer, left))
        return Listeners(answer, left, question)

    monkeypatch.setattr(plugin_sockets, "Listeners", make)
    (plugins := directory / "device-plugins").mkdir()
    with answering(plugins / "gpu.sock", {OPTIONS: b""}):
        main(["doctor", "--root", str(directory), "--plugin-timeout", "0.2", *patience])
    assert made == [(0.2, left)]


def test_a_plugin_whose_socket_is_deleted_before_or_while_it_is_asked_is_left_out(directory: Path) -> None:
    path = directory / "gpu.sock"
    with socket.socket(socket.AF_UNIX) as plugin, ThreadPoolExecutor(1) as kubelet:
        plugin.bind(str(path))
        plugin.listen()

        def delete_when_dialed() -> None:
            with plugin.accept()[0]:
                path.unlink()

        kubelet.submit(delete_when_dialed)
        assert read_plugins(str(directory), ["gpu.sock", "none.sock"], "", (), asking(0.3)).value == ()


def test_all_nodes_are_judged_from_the_api_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One Node's plugin is gone, another Node is not ready, and the third Node's kubelet is silent."""
    gpu = "example.com/gpu"
    with LocalApiServer() as server:
        for name, allocatable, ready in (("n1", "0", "True"), ("n2", "2", "False"), ("n3", "2", "Unknown")):
            ready_now = {"type": "Ready", "status": ready, "reason": "none", "message": "none"}
            status = {"capacity": {gpu: "2"}, "allocatable": {gpu: allocatable}, "conditions": [ready_now]}
            server.create({"kind": "Node", "metadata": {"name": name}, "status": status})
            container = {"name": "main", "image": "img", "resources": {"limits": {gpu: "1"}}}
            spec = {"nodeName": name, "containers": [container]}
            server.create({"kind": "Pod", "metadata": {"name": f"on-{name}"}, "spec": spec})
        by_device: list[object] = [{"name": f"gpu-{name}", "nodeName": name} for name in ("n1", "n2")]
        by_device.append({"name": "gpu-any", "allNodes": True})
        placed: list[tuple[str, object, list[object]]] = [
            ("nodeName", "n1", [{"name": "gpu-0"}]),
            ("allNodes", True, [{"name": "gpu-1"}]),
            ("perDeviceNodeSelection", True, by_device),
        ]
        for number, (place, value, devices) in enumerate(placed):
            pool = {"name": f"pool-{number}", "generation": 1, "resourceSliceCount": 1}
            of_slice: dict[str, object] = {"driver": "gpu.example.com", "pool": pool, "devices": devices, place: value}
            server.create({"kind": "ResourceSlice", "metadata": {"name": f"slice-{number}"}, "spec": of_slice})
        requests = [{"name": "r", "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}}]
        server.create({"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}})
        result = {"request": "r", "driver": "gpu.example.com", "pool": "pool-2", "device": "gpu-n2"}
        status = {"allocation": {"devices": {"results": [result]}}}
        server.change("ResourceClaim", "c", lambda claim: claim.update(status=status))
        config = str(server.kubeconfig(tmp_path / "config"))
        arguments = ["doctor", "--all-nodes", "--kubeconfig", config, "--patience", "0"]
        assert main([*arguments, "--json"]) == 1
        document = json.loads(capsys.readouterr().out)
        nodes, shared = document["nodes"], document["devices_of_several_nodes"]
        assert main(arguments) == 1
    findings = [(one["name"], [found["code"] for found in one["findings"]]) for one in nodes]
    assert findings == [("n1", ["plugin-gone"]), ("n2", ["node-not-ready"]), ("n3", ["kubelet-gone"])]
    assert "The Node is not Ready: none: none." in capsys.readouterr().out
    # Each device is listed once, so that the report does not grow with nodes times slices.
    published = [[row["device"] for row in one["devices"] if row["pool"]] for one in nodes]
    assert published == [["gpu-0", "gpu-n1"], ["gpu-n2"], []]
    assert [row["device"] for row in shared] == ["gpu-1", "gpu-any"]
    assert [row["owner"] for row in nodes[1]["devices"] if row["pool"]] == ["claim default/c"]


def test_a_list_of_very_many_devices_is_counted_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two million empty devices take 4 MB in a message, and once took 1.5 GB as Python objects."""
    monkeypatch.setattr(plugin_sockets, "MAX_DEVICES", 3)
    assert len(plugin_sockets._devices_in(b"\x0a\x00" * 3)) == 3  # noqa: SLF001 - what is read from one response
    with pytest.raises(Exception, match="its list has 4 devices, expected at most 3"):
        plugin_sockets._devices_in(b"\x0a\x00" * 4)  # noqa: SLF001 - as above
