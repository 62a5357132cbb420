"""Nodes with problems that Kubernetes' documentation and public issues describe.

Each node is a recorded node with one change. Law: `doctor` reports a finding, or names the problem under "not ruled
out".
"""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main

Files = dict[str, Any]
DATA = Path(__file__).parent.parent / "data" / "nodes"
PLUGINS, DRIVERS = "01-healthy", "14-dra-healthy"
BOTH = "../troubles/a_plugin_and_a_driver_have_devices_of_their_own"
DAY = "2026-11-22T05:00:00Z"
RUNTIME = "failed to create shim task: OCI runtime create failed"


# --- the Node ---------------------------------------------------------------------------------------------------------


def condition(kind: str, status: str, message: str = "") -> Callable[[Files], None]:
    def change(files: Files) -> None:
        ready = {"type": "Ready", "status": "True"}
        added = {"type": kind, "status": status, "reason": "R", "message": message}
        files["node.json"]["status"]["conditions"] = [ready, added]

    return change


def taint(key: str, effect: str = "NoSchedule") -> Callable[[Files], None]:
    return lambda files: files["node.json"]["spec"].update(taints=[{"key": key, "effect": effect}])


def counts(resource: str, **sections: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        for section, count in sections.items():
            files["node.json"]["status"][section][resource] = count

    return change


def no_ready(files: Files) -> None:
    files["node.json"]["status"]["conditions"] = [{"type": "MemoryPressure", "status": "False"}]


def deleted_node(files: Files) -> None:
    files["node.json"]["metadata"]["deletionTimestamp"] = DAY


# --- pods -------------------------------------------------------------------------------------------------------------


def pod_of(files: Files, name: str) -> Any:  # noqa: ANN401 - JSON has no better type
    return next(one for one in files["pods.json"]["items"] if one["metadata"]["name"] == name)


def status(**fields: object) -> Callable[[Files], None]:
    return lambda files: pod_of(files, "infer")["status"].update(fields)


def another(name: str, **fields: object) -> Callable[[Files], None]:
    """Return a change that adds a started pod, bound at `DAY`, with these status fields."""

    def change(files: Files) -> None:
        added = deepcopy(files["pods.json"]["items"][0])
        added["metadata"].update(name=name, uid=f"uid-{name}")
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": DAY}
        added["status"] = {"startTime": DAY, "conditions": [bound], **fields}
        files["pods.json"]["items"].append(added)

    return change


def waits(reason: str, message: str, **last: object) -> Callable[[Files], None]:
    container = {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}, "lastState": last}
    return status(containerStatuses=[container])


def health(told: str, device: str = "gpu-2") -> Callable[[Files], None]:
    named = {"name": "acme.io/gpu", "resources": [{"health": told, "resourceID": device}]}
    running = {"name": "main", "state": {"running": {}}, "allocatedResourcesStatus": [named]}
    return status(containerStatuses=[running])


def late(files: Files) -> None:
    another("late", phase="Running")(files)
    added = pod_of(files, "late")
    added["spec"]["containers"][0]["resources"] = {}
    added["metadata"]["deletionTimestamp"] = DAY


# --- sockets ----------------------------------------------------------------------------------------------------------


def tried(line: str) -> Callable[[Files], None]:
    return lambda files: files.update({"listing.txt": f"{files['listing.txt']}/var/lib/kubelet/{line}\n"})


def without_socket_for_plugins(files: Files) -> None:
    before, rest = files["listing.txt"].split("/pod-resources", 1)
    kept = [line for line in before.splitlines() if not line.endswith(" kubelet.sock")]
    text = "/pod-resources".join(["\n".join(kept), rest])
    files["listing.txt"] = text.replace("/var/lib/kubelet/device-plugins/kubelet.sock  listener\n", "")


def said(before: str, after: str) -> Callable[[Files], None]:
    """Return a change that replaces text in the listing of the node's directories."""

    def change(files: Files) -> None:
        assert before in files["listing.txt"]
        files["listing.txt"] = files["listing.txt"].replace(before, after)

    return change


def listed(number: int, **fields: str) -> Callable[[Files], None]:
    return lambda files: files["plugins.json"]["devices"][0][number].update(fields)


# --- the kubelet ------------------------------------------------------------------------------------------------------


def configured(name: str, value: str) -> Callable[[Files], None]:
    return lambda files: files["config.yaml"].update({name: value})


# --- drivers and claims -----------------------------------------------------------------------------------------------


def slice_in(files: Files) -> Any:  # noqa: ANN401 - as above
    return files["resourceslices.json"]["items"][0]["spec"]


def device_taint(effect: str, device: int = 3) -> Callable[[Files], None]:
    given = [{"key": "gpu.example.com/xid", "value": "79", "effect": effect}]
    return lambda files: slice_in(files)["devices"][device].update(taints=given)


def rule(files: Files) -> None:
    spec = {"deviceSelector": {"driver": "gpu.example.com"}, "taint": {"key": "a.org/b", "effect": "NoExecute"}}
    files["devicetaintrules.json"] = {"kind": "List", "items": [{"kind": "DeviceTaintRule", "spec": spec}]}


def claim_in(files: Files, name: str) -> Any:  # noqa: ANN401 - as above
    return next(one for one in files["resourceclaims.json"]["items"] if one["metadata"]["name"] == name)


def without_pod(files: Files) -> None:
    """A pod is gone, but its claim is still prepared."""
    for file, items in (("pods.json", "items"), ("pod-resources-list.json", "pod_resources")):
        kept = [one for one in files[file][items] if one.get("name", one.get("metadata", {}).get("name")) != "p2"]
        files[file][items] = kept


def link_down(files: Files) -> None:
    told = {"type": "Ready", "status": "False", "reason": "LinkDown", "message": "no carrier"}
    device = {"driver": "gpu.example.com", "pool": "node-14", "device": "dev-1", "conditions": [told]}
    claim_in(files, "k2")["status"]["devices"] = [device]


def second_claim(files: Files) -> None:
    copied = deepcopy(claim_in(files, "k1"))
    copied["metadata"].update(name="k9", uid="k9")
    files["resourceclaims.json"]["items"].append(copied)


def silent_health(files: Files) -> None:
    files["dra_health_state"] = files["dra_health_state"].replace("Healthy", "Unknown")


def without_sandbox(files: Files) -> None:
    """A pod that requests no devices is waiting because a network plugin has no device left for the pod."""
    waiting = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
    another("waits", phase="Pending", containerStatuses=[waiting])(files)
    pod_of(files, "waits")["spec"]["containers"][0]["resources"] = {}
    about = {"kind": "Pod", "namespace": "team-1", "name": "waits"}
    event = {"reason": "FailedCreatePodSandBox", "message": "VF 3 is in use", "involvedObject": about}
    files["events.json"]["items"].append(event)


def held_claim(files: Files) -> Any:  # noqa: ANN401 - as above
    return claim_in(files, "held")


def result_of(files: Files) -> Any:  # noqa: ANN401 - as above
    return held_claim(files)["status"]["allocation"]["devices"]["results"][0]


def other_device(files: Files) -> None:
    result_of(files)["device"] = "dev-1"


def other_node(files: Files) -> None:
    term = held_claim(files)["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]
    term["matchFields"][0]["values"] = ["worker-7"]


def fabric_failed(files: Files) -> None:
    """One of the device's binding failure conditions is true."""
    result_of(files)["bindingFailureConditions"] = ["fabric.example.com/failed"]
    told = {"type": "fabric.example.com/failed", "status": "True", "message": "it is lost"}
    device = {name: result_of(files)[name] for name in ("driver", "pool", "device")}
    held_claim(files)["status"]["devices"] = [{**device, "conditions": [told]}]


def kept_claim(files: Files) -> None:
    """The claim of a pod that is gone is not released, and holds a device that other pods could use."""
    copied = deepcopy(held_claim(files))
    copied["metadata"].update(name="kept", uid="kept", deletionTimestamp=DAY)
    copied["status"]["allocation"]["devices"]["results"][0]["device"] = "dev-2"
    copied["status"]["reservedFor"] = [{"resource": "pods", "name": "gone", "uid": "gone"}]
    files["resourceclaims.json"]["items"].append(copied)


def sick_of_driver(files: Files) -> None:
    files["dra_health_state"]["gpu.example.com"]["Devices"]["worker-2/dev-3"]["Health"] = "Unhealthy"


def sick_by_status(files: Files) -> None:
    (container,) = pod_of(files, "claiming")["status"]["containerStatuses"]
    container["allocatedResourcesStatus"][0]["resources"][0]["health"] = "Unhealthy"


def old_status(files: Files) -> None:
    for one in files["node.json"]["status"]["conditions"]:
        one["lastHeartbeatTime"] = "2026-11-26T18:00:00Z"


def nobody_published(files: Files) -> None:
    """A driver publishes nothing, no claim names it, and no claim has ever had a device."""
    sound = json.loads((DATA / f"{PLUGINS}.json").read_text())
    for file in ("resourceslices.json", "resourceclaims.json", "pods.json"):
        files[file]["items"] = []
    files["pod-resources-list.json"] = {"pod_resources": []}
    files |= {"dra_manager_state": sound["dra_manager_state"], "dra_health_state": "{}"}


BROKEN: dict[str, tuple[str, Callable[[Files], None], str]] = {
    "kernel deadlock": (PLUGINS, condition("KernelDeadlock", "True", "blocked"), "'KernelDeadlock': True: R: blocked"),
    "read-only disk": (PLUGINS, condition("ReadonlyFilesystem", "True"), "'ReadonlyFilesystem': True"),
    "sick GPU": (PLUGINS, condition("AcceleratedHardwareReady", "False", "XID 79"), "False: R: XID 79"),
    "no network": (PLUGINS, condition("NetworkUnavailable", "True"), "'NetworkUnavailable'"),
    "unknown pressure": (PLUGINS, condition("DiskPressure", "Unknown"), "'DiskPressure': Unknown"),
    "no condition Ready": (PLUGINS, no_ready, "the Node has no such condition"),
    "deleted Node": (PLUGINS, deleted_node, "the Node is being deleted"),
    "autoscaler removes it": (PLUGINS, taint("ToBeDeletedByClusterAutoscaler"), "node-closed"),
    "karpenter removes it": (PLUGINS, taint("karpenter.sh/disrupted"), "node-closed"),
    "network agent missing": (PLUGINS, taint("node.cilium.io/agent-not-ready", "NoExecute"), "node-closed"),
    "out of service": (PLUGINS, taint("node.kubernetes.io/out-of-service", "NoExecute"), "node-closed"),
    "plugin removed": (PLUGINS, counts("a.org/tpu", capacity="0", allocatable="0"), "why there are 0 of 'a.org/tpu'"),
    "no allocatable": (PLUGINS, counts("a.org/tpu", capacity="4"), "4 of 4 'a.org/tpu' are not allocatable"),
    "more than capacity": (PLUGINS, counts("acme.io/nic", allocatable="5"), "node-status-differs"),
    "driver and library differ": (
        PLUGINS,
        waits("RunContainerError", f"{RUNTIME}: nvidia-container-cli: nvml error: driver/library version mismatch"),
        "container-cannot-start",
    ),
    "runtime fails": (PLUGINS, waits("CreateContainerError", f"{RUNTIME}: unknown"), "does not start because of its"),
    "device file missing": (
        PLUGINS,
        waits("CreateContainerError", 'error adding custom device "/dev/gpu0": no such file or directory'),
        "container-cannot-start",
    ),
    "start fails again and again": (
        PLUGINS,
        waits(
            "CrashLoopBackOff",
            "back-off 5m0s",
            terminated={"reason": "StartError", "message": f"{RUNTIME}: error running prestart hook"},
        ),
        "container-cannot-start",
    ),
    "no sandbox": (
        PLUGINS,
        another("new", phase="Pending", containerStatuses=[]),
        "why pod 'team-1/new' does not start",
    ),
    "pod does not end": (PLUGINS, late, "pod 'team-1/late' has not ended"),
    "phase unknown": (PLUGINS, status(phase="Unknown"), "whether pod 'team-1/infer' runs"),
    "node lost": (PLUGINS, status(reason="NodeLost"), "whether pod 'team-1/infer' runs"),
    "evicted": (PLUGINS, another("ev", phase="Failed", reason="Evicted", message="low on memory"), "low on memory"),
    "shut down": (PLUGINS, another("sd", phase="Failed", reason="Terminated", message="imminent"), "imminent"),
    "preempted": (PLUGINS, another("pr", phase="Failed", reason="Preempting", message="critical"), "critical"),
    "out of devices": (PLUGINS, another("oo", phase="Failed", reason="OutOfacme.io/gpu", message="m"), "pod-refused"),
    "status says unhealthy": (PLUGINS, health("Unhealthy"), "whether 'gpu-2' of 'acme.io/gpu' is healthy"),
    "status knows no health": (PLUGINS, health("Unknown"), "whether 'gpu-2' of 'acme.io/gpu' is healthy"),
    "status has a different device": (PLUGINS, health("Healthy", "gpu-3"), "holds 'gpu-3' of 'acme.io/gpu'"),
    "socket of the kubelet deleted": (PLUGINS, without_socket_for_plugins, "whether plugins can register"),
    "a third plugin": (PLUGINS, tried("device-plugins/new.sock  listener"), "there are 3 live plugin sockets"),
    "driver ended": (PLUGINS, tried("plugins_registry/old.org-reg.sock  no listener"), "driver-gone"),
    "claim file cut short": (DRIVERS, lambda files: files.update(dra_manager_state=""), "kubelet-cannot-start"),
    "device tainted": (DRIVERS, device_taint("NoExecute"), "device-tainted"),
    "held device tainted": (DRIVERS, device_taint("NoSchedule", 0), "device-tainted"),
    "device remarked": (DRIVERS, device_taint("None"), "what the taint gpu.example.com/xid=79:None means"),
    "devices tainted by a rule": (DRIVERS, rule, "device-tainted"),
    "slices missing": (DRIVERS, lambda files: slice_in(files)["pool"].update(resourceSliceCount=2), "1 of 2 slices"),
    "device twice": (DRIVERS, lambda files: slice_in(files)["devices"][3].update(name="dev-1"), "dev-1 appears twice"),
    "no devices": (DRIVERS, lambda files: slice_in(files).update(devices=[]), "slices-missing"),
    "nothing published": (DRIVERS, nobody_published, "which driver listens at 'gpu.example.com-reg.sock'"),
    "claim not released": (DRIVERS, without_pod, "whether ResourceClaim 'team-14/k2' is released"),
    "device not ready": (DRIVERS, link_down, "Ready is False: LinkDown: no carrier"),
    "two claims": (DRIVERS, second_claim, "two-claims"),
    "health not reported": (DRIVERS, silent_health, "the driver has not reported the health recently"),
    "no sandbox for the network": (PLUGINS, without_sandbox, "FailedCreatePodSandBox: VF 3 is in use"),
    "old status": (BOTH, old_status, "whether the Node's status, which is 40 minutes old, is still true"),
    "unknown policy": (BOTH, configured("topologyManagerPolicy", "single-numa"), "kubelet-cannot-start"),
    "no configuration": (BOTH, lambda files: files.update({"config.yaml": "kind: [\n"}), "kubelet-cannot-start"),
    "socket that cannot be judged": (
        BOTH,
        said("gpu-06af1d6d.sock  listener", "gpu-06af1d6d.sock  permission denied"),
        "whether a process listens at 'gpu-06af1d6d.sock'",
    ),
    "list that the kubelet does not have": (BOTH, listed(0, id="gpu-9"), "list-differs"),
    "health that the kubelet does not have": (BOTH, listed(0, health="Unhealthy"), "list-differs"),
    "driver's service gone": (BOTH, tried("plugins/gpu.example.com/dra.sock  no listener"), "driver-silent"),
    "services that no kubelet calls": (
        BOTH,
        said("DRAPlugin gpu.example.com", "DRAPlugin gpu.example.com, but it offers v9.DRAPlugin"),
        "driver-silent",
    ),
    "claim made again": (BOTH, lambda files: held_claim(files)["metadata"].update(uid="new"), "claim-taken-away"),
    "claim for a different node": (BOTH, other_node, "claim-taken-away"),
    "claim for a different device": (BOTH, other_device, "has dev-1, but its driver has prepared dev-0"),
    "claim of a pod that is gone": (BOTH, kept_claim, "whether dev-2 can be given to other pods"),
    "device lost by its fabric": (BOTH, fabric_failed, "fabric.example.com/failed is True: it is lost"),
    "driver's free device unhealthy": (BOTH, sick_of_driver, "says that dev-3 is unhealthy"),
    "status says that a claim's device is unhealthy": (
        BOTH,
        sick_by_status,
        "the status of default/claiming says Unhealthy",
    ),
}


def test_a_pod_without_a_sandbox_is_a_doubt_of_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = json.loads((DATA / f"{PLUGINS}.json").read_text())
    without_sandbox(files)
    for file, content in files.items():
        (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": deepcopy(files["pods.json"]["items"][0]["spec"]),
    }
    (tmp_path / "pod.yaml").write_text(json.dumps({**pod, "spec": {"containers": pod["spec"]["containers"]}}))
    assert main(["fits", str(tmp_path / "pod.yaml"), "--node", str(tmp_path)]) == 3
    assert "the runtime cannot create the sandbox of pod team-1/waits here: VF 3 is in use" in capsys.readouterr().out


@pytest.mark.parametrize("trouble", BROKEN)
def test_a_broken_node_is_not_called_sound(trouble: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, change, words = BROKEN[trouble]
    files = json.loads((DATA / f"{name}.json").read_text())
    change(files)
    for file, content in files.items():
        if file != "truth.json" and content is not None:
            (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    assert main(["doctor", "--root", str(tmp_path), "--json"]) in {1, 3}
    document = json.loads(capsys.readouterr().out)
    said = [*(one["code"] for one in document["findings"]), *document["not_ruled_out"]]
    assert any(words in one for one in said), said
