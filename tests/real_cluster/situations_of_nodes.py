"""More situations of a real kubelet: the Node and the scheduler, all kinds of pods, and who serves which resource."""

import json
from typing import Any

from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode
from tests.real_cluster.kubelet import RealKubelet
from tests.real_cluster.node import GPU
from tests.real_cluster.situations_of_devices import CHECKPOINT, NIC
from tests.real_cluster.trouble import (
    a_claim,
    a_claiming_pod,
    a_class,
    a_driver_in_use,
    a_pod,
    settle,
    situation,
    with_claims,
)

Json = Any

_TAINT = "acme.io/reserved"
_TOLERATION = {"key": _TAINT, "operator": "Exists", "effect": "NoSchedule"}


def _container(name: str, count: int, **fields: Json) -> Json:
    return {"name": name, "image": "registry.example/main:1", "resources": {"limits": {GPU: str(count)}}, **fields}


# --- the Node ---------------------------------------------------------------------------------------------------------


@situation(a_pod("probe"))
def the_node_is_cordoned(node: RealKubelet) -> None:
    node.plugin()
    node.plane.admin.patch("Node", node.name, {"spec": {"unschedulable": True}})
    node.wait_for_node("to have a taint", lambda one: one["spec"].get("taints"))


@situation(a_pod("probe"), a_pod("tolerating", tolerations=[_TOLERATION]), is_quiet=True)
def the_node_has_a_taint(node: RealKubelet) -> None:
    node.plugin()
    taint = {"key": _TAINT, "value": "yes", "effect": "NoSchedule"}
    node.plane.admin.patch("Node", node.name, {"spec": {"taints": [taint]}})


@situation(a_pod("probe"), finds={"node-closed"}, evictionHard={"memory.available": "99%"})
def the_memory_of_the_node_is_short(node: RealKubelet) -> None:
    node.plugin()
    node.wait_for_node("to have memory pressure", lambda one: "memory-pressure" in str(one["spec"].get("taints")))


@situation(a_pod("probe"), maxPods=1)
def the_node_has_as_many_pods_as_it_may(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 1))


@situation(a_pod("probe"))
def the_node_object_is_deleted(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 1))
    node.plane.admin.delete("Node", node.name)
    settle(2.0)


@situation(a_pod("two", 2, "acme.io/dongle"), a_pod("three", 3, "acme.io/dongle"), is_quiet=True)
def an_administrator_has_added_a_resource(node: RealKubelet) -> None:
    node.plugin()
    status = {"status": {"capacity": {"acme.io/dongle": "2"}}}
    node.plane.admin.patch("Node", node.name, status, subresource="status")
    node.wait_for_resource("acme.io/dongle", 2)


@situation(a_pod("one", 1), a_pod("two", 2), finds={"numa-node-missing"}, topologyManagerPolicy="single-numa-node")
def devices_are_on_two_numa_nodes_and_must_be_on_one(node: RealKubelet) -> None:
    node.plugin(GPU, 2, "--numa-nodes=0,1")


@situation(a_pod("probe"), is_quiet=True, cpuManagerPolicy="static", reservedSystemCPUs="0")
def the_cpu_manager_is_static(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 1))


@situation(a_pod("probe"), finds={"kubelet-cannot-start"})
def the_policy_of_the_cpu_manager_was_changed(node: RealKubelet) -> None:
    node.plugin()
    node.kubelet.stop()
    file = node.home / "kubelet.json"
    changed = {**json.loads(file.read_text()), "cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
    for place in (file, node.directory / "config.yaml"):
        place.write_text(json.dumps(changed))
    node.kubelet.start()
    settle(5.0)


@situation(a_pod("probe"), finds={"kubelet-cannot-start"})
def the_data_of_the_cpu_manager_are_damaged(node: RealKubelet) -> None:
    node.plugin()
    node.kubelet.stop()
    file = node.directory / "cpu_manager_state"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "data": document["data"].replace("none", "None")}))
    node.kubelet.start()
    settle(5.0)


@situation(a_pod("probe"))
def the_checkpoint_cannot_be_written(node: RealKubelet) -> None:
    node.plugin()
    file = node.device_plugins / CHECKPOINT
    file.unlink()
    file.mkdir()


# --- pods -------------------------------------------------------------------------------------------------------------


@situation(a_pod("four", 4), is_quiet=True)
def a_deleted_pod_has_a_finalizer(node: RealKubelet) -> None:
    node.plugin()
    node.run({**(pod := a_pod("holder", 3)), "metadata": {**pod["metadata"], "finalizers": ["acme.io/keep"]}})
    node.plane.admin.delete("Pod", "holder")
    settle(30.0)  # longer than a pod may take to end


@situation(a_pod("one", 1), a_pod("three", 3), is_quiet=True)
def an_init_container_starts_again_and_again(node: RealKubelet) -> None:
    node.plugin()
    pod = a_pod("holder", 1)
    pod["spec"]["initContainers"] = [_container("first", 2)]
    node.bind(pod)

    def has_begun(one: Json) -> bool:
        return "running" in str(one["status"].get("initContainerStatuses"))

    node.plane.admin.wait("Pod", "holder", "to begin", has_begun)
    node.end_container("holder", 1, "first")
    settle(5.0)


@situation(a_pod("one", 1), a_pod("two", 2), is_quiet=True)
def a_pod_waits_for_a_config_map(node: RealKubelet) -> None:
    node.plugin()
    pod = a_pod("holder", 3)
    pod["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "missing"}}]
    node.bind(pod)
    node.plane.admin.wait("Pod", "holder", "to wait", lambda one: "CreateContainerConfigError" in str(one["status"]))


@situation(a_pod("one", 1), a_pod("two", 2), is_quiet=True)
def an_init_container_had_more_devices(node: RealKubelet) -> None:
    node.plugin()
    pod = a_pod("holder", 1)
    pod["spec"]["initContainers"] = [_container("first", 3)]
    node.bind(pod)
    node.plane.admin.wait(
        "Pod", "holder", "to begin", lambda one: "first" in str(one["status"].get("initContainerStatuses"))
    )
    node.end_container("holder", 0, "first")
    node.plane.admin.wait_for_phase("holder", "Running")


@situation(a_pod("one", 1), a_pod("two", 2), is_quiet=True)
def a_sidecar_has_a_device(node: RealKubelet) -> None:
    node.plugin()
    pod = a_pod("holder", 2)
    pod["spec"]["initContainers"] = [_container("beside", 1, restartPolicy="Always")]
    node.run(pod)


@situation(a_pod("one", 1), a_pod("three", 3), is_quiet=True)
def a_static_pod_has_devices(node: RealKubelet) -> None:
    node.plugin()
    folder = node.home / "static"
    folder.mkdir(exist_ok=True)
    with node.without_kubelet():
        file = node.home / "kubelet.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "staticPodPath": str(folder)}))
    settle(5.0)  # a static pod is rejected if it starts before the plugin has registered again
    (folder / "pod.json").write_text(json.dumps(a_pod("holder", 2)))
    name = f"holder-{node.name}"
    node.plane.admin.wait_for_phase(name, "Running")
    settle(3.0)


@situation(a_pod("four", 4), finds={"pod-refused"})
def a_pod_was_refused(node: RealKubelet) -> None:
    node.plugin()
    pod = a_pod("greedy", 9)
    node.bind(pod)
    node.plane.admin.wait_for_phase("greedy", "Failed")


@situation(a_pod("one", 1), a_pod("two", 2), finds={"pod-does-not-end"})
def a_pod_does_not_end(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 3))
    for method in ("StopContainer", "StopPodSandbox"):
        node.break_runtime(f"refuse/{method}", "the container is stuck in the kernel")
    node.plane.admin.delete("Pod", "holder")
    settle(25.0)  # earlier, the container might just be slow


@situation(a_pod("four", 4), is_quiet=True)
def a_pod_was_deleted_while_no_kubelet_ran(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 3))
    with node.without_kubelet():
        node.plane.admin.delete("Pod", "holder", grace=0)
    node.wait_for_resource(GPU, 4)
    settle(8.0)


@situation(a_pod("probe"))
def a_pod_was_deleted_by_force_and_the_kubelet_is_down(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 3))
    node.kubelet.stop()
    node.plane.admin.delete("Pod", "holder", grace=0)


@situation(a_pod("one", 1), a_pod("two", 2), is_quiet=True)
def pods_of_other_kinds_wait(node: RealKubelet) -> None:
    """Of three waiting pods, one is gated, one requests too much, and one matches no node."""
    node.plugin()
    node.run(a_pod("holder", 3))
    node.plane.admin.create(a_pod("gated", 1, schedulingGates=[{"name": "acme.io/gate"}]))
    node.plane.admin.create(a_pod("huge", 99))
    node.plane.admin.create(a_pod("elsewhere", 1, nodeSelector={"none": "such"}))
    settle(2.0)


# --- plugins ----------------------------------------------------------------------------------------------------------


@situation(a_pod("old", 1), a_pod("new", 1, "acme.io/gpu2"))
def a_plugin_comes_back_under_another_resource_name(node: RealKubelet) -> None:
    plugin = node.plugin()
    node.run(a_pod("holder", 1))
    plugin.stop()
    node.wait_for_resource(GPU, 0)
    node.plugin("acme.io/gpu2", 4, "--prefix=gpu", name="plugin-2")


@situation(a_pod("one", 1), a_pod("two", 2))
def two_plugins_serve_one_resource(node: RealKubelet) -> None:
    node.plugin(GPU, 3, "--prefix=first", "--endpoint=first.sock")
    node.run(a_pod("holder", 2))
    node.plugin(GPU, 1, "--prefix=second", "--endpoint=second.sock", name="plugin-2")
    settle(3.0)


@situation(a_pod("gpu", 1), a_pod("nic", 1, NIC))
def two_plugins_use_one_socket(node: RealKubelet) -> None:
    node.plugin(GPU, 4, "--endpoint=same.sock")
    node.plugin(NIC, 2, "--endpoint=same.sock")
    settle(3.0)


@situation(a_pod("probe"))
def the_kubelet_restarts_while_a_plugin_hangs(node: RealKubelet) -> None:
    plugin = node.plugin()
    node.run(a_pod("holder", 1))
    with node.without_kubelet():
        plugin.pause()
    settle(3.0)


@situation(a_pod("one", 1), a_pod("four", 4), is_quiet=True)
def the_checkpoint_is_that_of_another_node(node: RealKubelet) -> None:
    node.plugin()
    with node.without_kubelet():
        entry = PodDevicesEntry("4ef9a36c-0000-4000-8000-000000000001", "main", GPU, {-1: ("gpu-0", "gpu-9")}, b"")
        data = CheckpointData((entry,), {GPU: ("gpu-0", "gpu-9")})
        (node.device_plugins / CHECKPOINT).write_bytes(encode(data))
    node.wait_for_resource(GPU, 4)
    settle(3.0)


@situation(a_pod("one", 1), a_pod("four", 4))
def the_checkpoint_is_an_empty_list(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 1))
    with node.without_kubelet():
        (node.device_plugins / CHECKPOINT).write_text("[]")
    node.wait_for_resource(GPU, 4)
    settle(3.0)


# --- drivers ----------------------------------------------------------------------------------------------------------


@situation(a_claiming_pod("probe", "asked"))
def a_driver_hangs_when_it_should_prepare(node: RealKubelet) -> None:
    driver = node.driver()
    with_claims(node, asked=1)
    driver.pause()


@situation(a_claiming_pod("one", "asked"), a_claiming_pod("nic", "nic"))
def one_of_two_drivers_is_killed(node: RealKubelet) -> None:
    driver = node.driver()
    node.driver("nic.example.com", 2)
    with_claims(node, asked=1)
    node.plane.admin.create(a_class("nic.example.com"))
    node.plane.admin.create(a_claim("nic", 1, "nic.example.com"))
    driver.kill()
    settle(2.0)


@situation(a_claiming_pod("probe", "asked"))
def a_driver_comes_back_under_another_name(node: RealKubelet) -> None:
    driver = a_driver_in_use(node)
    driver.stop()
    node.driver("gpu2.example.com")
    settle(3.0)


@situation(a_claiming_pod("one", "one"), is_quiet=True)
def the_slices_of_a_driver_were_deleted(node: RealKubelet) -> None:
    node.driver()
    with_claims(node, one=1)
    for one in node.plane.admin.list("ResourceSlice"):
        node.plane.admin.delete("ResourceSlice", one["metadata"]["name"])
    settle(3.0)


@situation(a_claiming_pod("probe", "asked"))
def the_slices_of_a_paused_driver_were_deleted(node: RealKubelet) -> None:
    driver = node.driver()
    with_claims(node, asked=1)
    driver.pause()
    for one in node.plane.admin.list("ResourceSlice"):
        node.plane.admin.delete("ResourceSlice", one["metadata"]["name"])
    settle(2.0)


@situation(a_claiming_pod("probe", "asked"))
def all_devices_of_a_driver_are_unhealthy(node: RealKubelet) -> None:
    node.driver("gpu.example.com", 4, "--unhealthy=0-3")
    with_claims(node, asked=1)
    settle(3.0)


@situation(a_claiming_pod("four", "four"), a_claiming_pod("five", "five"), is_quiet=True)
def a_pod_only_watches_devices(node: RealKubelet) -> None:
    node.driver()
    admin = node.plane.admin
    admin.patch("Namespace", "default", {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}})
    with_claims(node, four=4, five=5)
    watching = a_claim("watching")
    exactly = {"deviceClassName": "gpu.example.com", "allocationMode": "All", "adminAccess": True}
    watching["spec"]["devices"]["requests"][0]["exactly"] = exactly
    admin.create(watching)
    node.run(a_claiming_pod("watcher", "watching"))


@situation(a_pod("one", 1), a_pod("two", 2), is_quiet=True)
def a_driver_serves_an_extended_resource(node: RealKubelet) -> None:
    node.driver("gpu.example.com", 4)
    served = a_class()
    served["spec"]["extendedResourceName"] = GPU
    node.plane.admin.create(served)
    settle(2.0)
    node.run(a_pod("holder", 3))


@situation(a_claiming_pod("probe", "asked"), is_quiet=True)
def no_device_class_selects_a_device(node: RealKubelet) -> None:
    node.driver()
    node.plane.admin.create(a_class("gpu.example.org"))
    node.plane.admin.create(a_claim("asked", 1, "gpu.example.org"))


@situation(a_claiming_pod("probe", "asked"))
def the_kubelet_restarts_and_its_driver_is_gone(node: RealKubelet) -> None:
    driver = a_driver_in_use(node)
    with node.without_kubelet():
        driver.kill()
    settle(3.0)


@situation(a_claiming_pod("probe", "asked"))
def a_pod_with_a_claim_waits_for_its_driver_to_end(node: RealKubelet) -> None:
    driver = a_driver_in_use(node)
    driver.kill()
    node.plane.admin.delete("Pod", "holder")
    settle(12.0)
