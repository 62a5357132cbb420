"""More situations of a real kubelet, which come from Kubernetes' documentation and public issues, not from our checks.

Faulty plugins come from `devicecore_tools.conformance.faults`; their resource is `CHIP`.
"""

import json
import shlex
import sys
from collections.abc import Callable
from typing import Any

from tests.real_cluster.kubelet import RealKubelet
from tests.real_cluster.node import GPU
from tests.real_cluster.situations_of_devices import NIC
from tests.real_cluster.trouble import (
    a_claim,
    a_claiming_pod,
    a_driver_in_use,
    a_pod,
    settle,
    situation,
    with_claims,
)

Json = Any

CHIP = "example.com/chip"
_RUNTIME = "failed to create shim task: OCI runtime create failed: runc create failed"


def _with_condition(node: RealKubelet, kind: str, status: str, reason: str, message: str) -> None:
    """Set a condition of the Node, as a program other than the kubelet would."""
    now = node.plane.admin.get("Node", node.name)["status"]["conditions"]
    times = dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), "2026-11-28T00:00:00Z")
    added = {"type": kind, "status": status, "reason": reason, "message": message, **times}
    conditions = [*(one for one in now if one["type"] != kind), added]
    node.plane.admin.patch("Node", node.name, {"status": {"conditions": conditions}}, subresource="status")


def _with_taint(node: RealKubelet, key: str, effect: str = "NoSchedule") -> None:
    node.plane.admin.patch("Node", node.name, {"spec": {"taints": [{"key": key, "effect": effect}]}})


def _bound(node: RealKubelet, pod: Json, expected: str, look: Callable[[Json], object]) -> None:
    node.bind(pod)
    node.plane.admin.wait("Pod", pod["metadata"]["name"], expected, look)


def _refused(node: RealKubelet, pod: Json) -> None:
    node.bind(pod)
    node.plane.admin.wait_for_phase(pod["metadata"]["name"], "Failed")


# --- the Node ---------------------------------------------------------------------------------------------------------


@situation(a_pod("probe"), names={"KernelDeadlock"})
def a_detector_reports_a_deadlock_of_the_kernel(node: RealKubelet) -> None:
    node.plugin()
    _with_condition(node, "KernelDeadlock", "True", "DockerHung", "task docker:1234 blocked for more than 120 seconds")


@situation(a_pod("probe"), names={"AcceleratedHardwareReady"})
def an_agent_reports_a_broken_accelerator(node: RealKubelet) -> None:
    node.plugin()
    _with_condition(node, "AcceleratedHardwareReady", "False", "XID79", "GPU has fallen off the bus")


@situation(a_pod("probe"), names={"NetworkUnavailable"})
def the_cloud_has_no_route_to_the_node(node: RealKubelet) -> None:
    node.plugin()
    _with_condition(node, "NetworkUnavailable", "True", "NoRouteCreated", "RouteController failed to create a route")
    settle(3.0)


@situation(a_pod("probe"), finds={"node-closed"})
def an_autoscaler_removes_the_node(node: RealKubelet) -> None:
    node.plugin()
    _with_taint(node, "ToBeDeletedByClusterAutoscaler")


@situation(a_pod("probe"), finds={"node-closed"})
def karpenter_replaces_the_node(node: RealKubelet) -> None:
    node.plugin()
    _with_taint(node, "karpenter.sh/disrupted")


@situation(a_pod("probe"), finds={"node-closed"})
def the_agent_of_the_network_is_not_ready(node: RealKubelet) -> None:
    node.plugin()
    _with_taint(node, "node.cilium.io/agent-not-ready", "NoExecute")


@situation(a_pod("probe"), finds={"node-closed"})
def the_node_is_out_of_service(node: RealKubelet) -> None:
    node.plugin()
    _with_taint(node, "node.kubernetes.io/out-of-service", "NoExecute")


@situation(a_pod("probe"), names={"being deleted"})
def the_node_object_is_being_deleted(node: RealKubelet) -> None:
    node.plugin()
    node.plane.admin.patch("Node", node.name, {"metadata": {"finalizers": ["acme.io/keep"]}})
    node.plane.admin.delete("Node", node.name)


@situation(a_pod("probe"), finds={"node-closed"}, evictionHard={"nodefs.available": "99.9%"})
def the_disk_of_the_node_is_nearly_full(node: RealKubelet) -> None:
    node.plugin()
    node.wait_for_node("to have disk pressure", lambda one: "disk-pressure" in str(one["spec"].get("taints")))


@situation(a_pod("probe"), finds={"node-closed"}, evictionHard={"pid.available": "99.9%"})
def the_node_has_too_many_processes(node: RealKubelet) -> None:
    node.plugin()
    node.wait_for_node("to have PID pressure", lambda one: "pid-pressure" in str(one["spec"].get("taints")))


# --- pods -------------------------------------------------------------------------------------------------------------


@situation(a_pod("probe"), finds={"container-cannot-start"})
def driver_and_library_of_the_gpu_differ(node: RealKubelet) -> None:
    node.plugin()
    told = "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch"
    node.break_runtime("refuse/CreateContainer", f"{_RUNTIME}: error running prestart hook #0: {told}")
    _bound(node, a_pod("holder", 1), "to wait", lambda one: "CreateContainerError" in str(one["status"]))


@situation(a_pod("probe"), finds={"container-cannot-start"})
def the_device_file_does_not_exist(node: RealKubelet) -> None:
    node.plugin()
    told = 'error gathering device information while adding custom device "/dev/gpu0": no such file or directory'
    node.break_runtime("refuse/StartContainer", told)
    _bound(node, a_pod("holder", 1), "to wait", lambda one: "RunContainerError" in str(one["status"]))


@situation(a_pod("probe"), names={"FailedCreatePodSandBox"})
def the_network_plugin_has_no_device_left(node: RealKubelet) -> None:
    node.plugin()
    told = 'plugin type="sriov" failed (add): failed to configure VF "VF 3 of PF ens1f0 is in use"'
    node.break_runtime("refuse/RunPodSandbox", told)
    node.bind(a_pod("holder", 1))
    settle(12.0)


@situation(a_pod("four", 4), finds={"pod-refused"})
def a_critical_pod_finds_no_free_devices(node: RealKubelet) -> None:
    # A kubelet consults its device manager before it looks for pods to preempt.
    node.plugin()
    node.run(a_pod("holder", 3))
    _refused(node, a_pod("critical", 4, priorityClassName="system-node-critical", priority=2_000_001_000))


@situation(a_pod("four", 4), finds={"pod-refused"})
def a_pod_asks_for_more_processors_than_there_are(node: RealKubelet) -> None:
    node.plugin()
    pod = a_pod("greedy", 1)
    pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "999"
    _refused(node, pod)


@situation(a_pod("four", 4), finds={"pod-refused"})
def a_pod_was_sent_past_the_scheduler_to_the_wrong_node(node: RealKubelet) -> None:
    node.plugin()
    _refused(node, a_pod("elsewhere", 1, nodeSelector={"acme.io/pool": "none"}))


@situation(a_pod("one", 1), a_pod("two", 2), finds={"pod-refused"}, topologyManagerPolicy="single-numa-node")
def a_pod_wants_devices_of_two_numa_nodes(node: RealKubelet) -> None:
    node.plugin(GPU, 2, "--numa-nodes=0,1")
    _refused(node, a_pod("wide", 2))


# --- plugins ----------------------------------------------------------------------------------------------------------


@situation(a_pod("probe", resource=CHIP), finds={"container-cannot-start"})
def a_plugin_refuses_to_start_containers(node: RealKubelet) -> None:
    node.faulty_plugin("no-pre-start")
    node.wait_for_resource(CHIP, 3)
    node.bind(a_pod("holder", 1, CHIP))
    settle(5.0)


@situation(a_pod("one", 1, CHIP), a_pod("three", 3, CHIP), finds={"pod-refused"})
def a_plugin_gives_no_three_devices_at_once(node: RealKubelet) -> None:
    node.faulty_plugin("refuses-all")
    node.wait_for_resource(CHIP, 3)
    _refused(node, a_pod("wide", 3, CHIP))


@situation(a_pod("one", 1, CHIP), a_pod("three", 3, CHIP), finds={"pod-refused"})
def a_plugin_answers_without_containers(node: RealKubelet) -> None:
    node.faulty_plugin("answers-few")
    node.wait_for_resource(CHIP, 3)
    _refused(node, a_pod("wide", 3, CHIP))


@situation(a_pod("one", 1, CHIP), finds={"listed-twice"})
def a_plugin_lists_a_device_twice(node: RealKubelet) -> None:
    node.faulty_plugin("twice")
    node.wait_for_resource(CHIP, 3)


@situation(a_pod("probe", 1, CHIP), finds={"list-near-limit"})
def a_plugin_lists_more_than_a_message_holds(node: RealKubelet) -> None:
    node.faulty_plugin("huge")
    settle(8.0)


@situation(a_pod("probe", 1, CHIP), finds={"plugin-silent"})
def a_plugin_never_sends_its_list(node: RealKubelet) -> None:
    node.faulty_plugin("silent")
    settle(5.0)


@situation(a_pod("probe", 1, CHIP), finds={"plugin-silent"})
def a_plugin_does_not_know_its_options(node: RealKubelet) -> None:
    node.faulty_plugin("no-options")
    settle(5.0)


@situation(a_pod("probe", 1, CHIP))
def a_plugin_registers_with_an_old_version(node: RealKubelet) -> None:
    node.faulty_plugin("old-version")
    settle(5.0)


@situation(a_pod("probe", 1, "example.com/chip"))
def a_plugin_registers_a_name_without_a_domain(node: RealKubelet) -> None:
    node.faulty_plugin("bad-name")
    settle(5.0)


@situation(a_pod("two", 2, CHIP), a_pod("three", 3, CHIP))
def a_plugin_writes_the_health_in_small_letters(node: RealKubelet) -> None:
    node.faulty_plugin("odd-health")
    node.wait_for_resource(CHIP, 2)


@situation(a_pod("probe", 1, CHIP), finds={"plugin-restarts"})
def a_plugin_ends_again_and_again(node: RealKubelet) -> None:
    settle(35.0)  # so that the kubelet is older than its newly created socket
    words = shlex.join(node.faulty_plugin_command("ends-after-a-while"))
    node.program("again", "sh", "-c", f"while :; do {words}; sleep 2; done")
    node.wait_for_resource(CHIP, 3)


@situation(a_pod("one", 1), a_pod("nic", 1, NIC), names={"whether plugins can register"})
def the_socket_of_the_kubelet_is_deleted(node: RealKubelet) -> None:
    node.plugin()
    (node.device_plugins / "kubelet.sock").unlink()
    node.program("late", *node.command("plugin", "simulated", f"--resource={NIC}", "--count=2"))
    settle(5.0)


@situation(a_pod("one", 1), finds={"plugin-silent"})
def a_process_that_is_no_plugin_has_a_socket(node: RealKubelet) -> None:
    node.plugin()
    path = str(node.device_plugins / "other.sock")
    serve = f"import socket, time; s = socket.socket(socket.AF_UNIX); s.bind({path!r}); s.listen(); time.sleep(999)"
    node.program("other", sys.executable, "-c", serve)
    settle(2.0)


@situation(a_pod("card", 1, "acme.io/card"), a_pod("part", 1, "acme.io/part"), finds={"same-ids"})
def two_plugins_list_the_same_devices(node: RealKubelet) -> None:
    node.plugin("acme.io/card", 2, "--prefix=card")
    node.plugin("acme.io/part", 2, "--prefix=card")


# --- the kubelet ------------------------------------------------------------------------------------------------------


def _restarted_with(node: RealKubelet, file: str, text: str) -> None:
    node.plugin()
    node.run(a_pod("holder", 1))
    node.kubelet.stop()
    (node.directory / file).write_text(text)
    node.kubelet.start()
    settle(5.0)


@situation(a_pod("probe"), finds={"kubelet-cannot-start"})
def the_file_of_claims_is_empty(node: RealKubelet) -> None:
    _restarted_with(node, "dra_manager_state", "")


@situation(a_pod("probe"), finds={"kubelet-cannot-start"})
def the_file_of_allocated_pods_has_two_ends(node: RealKubelet) -> None:
    _restarted_with(node, "allocated_pods_state", '{"data":"{\\"entries\\":{}}","checksum":1}"}')


@situation(a_pod("probe"), finds={"kubelet-cannot-start"})
def the_file_of_actuated_pods_was_cut(node: RealKubelet) -> None:
    _restarted_with(node, "actuated_pods_state", '{"data":"{\\"entr')


@situation(a_pod("probe"), finds={"kubelet-cannot-start"})
def the_file_of_the_memory_manager_is_not_json(node: RealKubelet) -> None:
    _restarted_with(node, "memory_manager_state", "policyName: None\n")


@situation(
    a_pod("probe"),
    finds={"kubelet-cannot-start"},
    memoryManagerPolicy="Static",
    systemReserved={"memory": "100Mi"},
    reservedMemory=[{"numaNode": 0, "limits": {"memory": "100Mi"}}],
)
def the_reserved_memory_was_changed(node: RealKubelet) -> None:
    node.plugin()
    node.kubelet.stop()
    file = node.home / "kubelet.json"
    changed = json.loads(file.read_text())
    changed["systemReserved"]["memory"] = changed["reservedMemory"][0]["limits"]["memory"] = "200Mi"
    for place in (file, node.directory / "config.yaml"):
        place.write_text(json.dumps(changed))
    node.kubelet.start()
    settle(8.0)


@situation(a_pod("probe"), finds={"kubelet-cannot-start"})
def the_configuration_names_an_unknown_policy(node: RealKubelet) -> None:
    node.plugin()
    node.kubelet.stop()
    file = node.home / "kubelet.json"
    changed = {**json.loads(file.read_text()), "topologyManagerPolicy": "single-numa"}
    for place in (file, node.directory / "config.yaml"):
        place.write_text(json.dumps(changed))
    node.kubelet.start()
    settle(5.0)


# --- drivers and claims -----------------------------------------------------------------------------------------------


@situation(a_claiming_pod("probe", "asked"), finds={"device-tainted"})
def a_rule_taints_all_devices_of_a_driver(node: RealKubelet) -> None:
    node.driver()
    with_claims(node, asked=1)
    taint = {"key": "acme.io/maintenance", "value": "yes", "effect": "NoSchedule"}
    spec = {"deviceSelector": {"driver": "gpu.example.com"}, "taint": taint}
    node.plane.admin.create({"kind": "DeviceTaintRule", "metadata": {"name": "maintenance"}, "spec": spec})
    settle(3.0)


@situation(a_claiming_pod("probe", "asked"), finds={"driver-silent"})
def a_pool_is_not_complete(node: RealKubelet) -> None:
    driver = node.driver()
    with_claims(node, asked=1)
    settle(1.0)
    driver.pause()
    for one in node.plane.admin.list("ResourceSlice"):
        pool = one["spec"]["pool"]
        changed = {**pool, "generation": pool["generation"] + 1, "resourceSliceCount": 2}
        node.plane.admin.patch("ResourceSlice", one["metadata"]["name"], {"spec": {"pool": changed}})
    settle(2.0)


@situation(a_claiming_pod("probe", "asked"), finds={"slices-missing"})
def a_driver_has_no_devices(node: RealKubelet) -> None:
    node.driver("gpu.example.com", 0)
    with_claims(node, asked=1)
    settle(5.0)


@situation(a_claiming_pod("probe", "asked"), finds={"slices-missing"})
def a_driver_may_not_write_its_slices(node: RealKubelet) -> None:
    config = node.plane.service_account_kubeconfig("driver-without-rights")
    node.program("driver", *node.driver_command("gpu.example.com", 4, kubeconfig=config))
    with_claims(node, asked=1)
    settle(8.0)


@situation(a_claiming_pod("probe", "asked"), finds={"slices-missing"})
def a_driver_publishes_for_a_former_name_of_the_node(node: RealKubelet) -> None:
    node.program("driver", *node.driver_command("gpu.example.com", 4, node="worker-old"))
    with_claims(node, asked=1)
    settle(5.0)


@situation(a_claiming_pod("probe", "asked"), finds={"driver-gone"})
def slices_are_there_of_a_driver_that_never_came(node: RealKubelet) -> None:
    with_claims(node, asked=1)
    pool = {"name": node.name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": node.name, "pool": pool, "devices": [{"name": "dev-0"}]}
    node.plane.admin.create({"kind": "ResourceSlice", "metadata": {"name": "left-over"}, "spec": spec})
    settle(2.0)


@situation(a_claiming_pod("probe", "asked"))
def the_service_of_a_driver_is_gone_and_its_registrar_lives(node: RealKubelet) -> None:
    node.driver()
    with_claims(node, asked=1)
    settle(2.0)
    for one in (node.directory / "plugins").rglob("*.sock"):
        one.unlink()


@situation(a_claiming_pod("probe", "asked"), finds={"two-claims"})
def two_claims_have_one_device(node: RealKubelet) -> None:
    a_driver_in_use(node)
    admin = node.plane.admin
    admin.create(a_claim("second"))
    allocation = admin.get("ResourceClaim", "held")["status"]["allocation"]
    admin.patch("ResourceClaim", "second", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
    admin.patch("ResourceClaim", "second", {"status": {"allocation": allocation}}, subresource="status")


@situation(a_claiming_pod("probe", "asked"), finds={"claim-taken-away"})
def a_claim_lost_its_devices_while_its_pod_runs(node: RealKubelet) -> None:
    a_driver_in_use(node)
    without = {"status": {"allocation": None, "reservedFor": None}}
    node.plane.admin.patch("ResourceClaim", "held", without, subresource="status")
    settle(2.0)


@situation(a_claiming_pod("probe", "asked"), finds={"claim-taken-away"})
def a_claim_was_made_again_under_its_name(node: RealKubelet) -> None:
    a_driver_in_use(node)
    admin = node.plane.admin
    admin.delete("ResourceClaim", "held")
    admin.patch("ResourceClaim", "held", {"metadata": {"finalizers": None}})
    settle(2.0)
    admin.create(a_claim("held"))
    settle(3.0)


@situation(a_claiming_pod("probe", "asked"), names={"Ready is False"})
def a_driver_says_of_a_claimed_device_that_it_is_not_ready(node: RealKubelet) -> None:
    a_driver_in_use(node)
    results = node.plane.admin.get("ResourceClaim", "held")["status"]["allocation"]["devices"]["results"]
    told = {"type": "Ready", "status": "False", "reason": "LinkDown", "message": "no carrier"}
    device = {name: results[0][name] for name in ("driver", "pool", "device")}
    condition = {**told, "lastTransitionTime": "2026-11-28T00:00:00Z"}
    said = {"status": {"devices": [{**device, "conditions": [condition]}]}}
    node.plane.admin.patch("ResourceClaim", "held", said, subresource="status")


@situation(a_claiming_pod("probe", "asked"), finds={"cdi-unresolvable"})
def the_cdi_files_were_deleted(node: RealKubelet) -> None:
    a_driver_in_use(node)
    for one in node.cdi.iterdir():
        one.unlink()


@situation(a_claiming_pod("probe", "asked"))
def a_pod_was_deleted_by_force_and_its_driver_is_gone(node: RealKubelet) -> None:
    driver = a_driver_in_use(node)
    driver.kill()
    node.plane.admin.delete("Pod", "holder", grace=0)
    settle(5.0)
