"""More situations of a real kubelet: trouble with a plugin, a driver, a pod, a file or a socket, one at a time."""

from tests.real_cluster.kubelet import RealKubelet
from tests.real_cluster.node import GPU, is_ready
from tests.real_cluster.trouble import a_claiming_pod, a_driver_in_use, a_pod, settle, situation, with_claims

NIC = "acme.io/nic"
CHECKPOINT = "kubelet_internal_checkpoint"


# --- plugins ----------------------------------------------------------------------------------------------------------


@situation(a_pod("probe"))
def a_plugin_is_stopped_and_removes_its_socket(node: RealKubelet) -> None:
    plugin = node.plugin()
    node.run(a_pod("holder", 1))
    plugin.stop()
    node.wait_for_resource(GPU, 0)


@situation(a_pod("probe", resource="acme.io/gpuu"), is_quiet=True)
def a_resource_is_misspelt(node: RealKubelet) -> None:
    node.plugin()


@situation(a_pod("probe"))
def a_plugin_lists_nothing(node: RealKubelet) -> None:
    node.plugin(GPU, 0)


@situation(a_pod("probe"), finds={"unhealthy"})
def all_devices_are_unhealthy_and_free(node: RealKubelet) -> None:
    node.plugin(GPU, 4, "--unhealthy=0-3")
    settle(3.0)


@situation(a_pod("three", 3), a_pod("four", 4), finds={"unhealthy"})
def one_free_device_is_unhealthy(node: RealKubelet) -> None:
    node.plugin(GPU, 4, "--unhealthy=3")
    settle(3.0)


@situation(a_pod("probe"), is_quiet=True)
def all_devices_are_held(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 4))


@situation(a_pod("one", 1), a_pod("nic", 1, NIC))
def one_of_two_plugins_is_killed(node: RealKubelet) -> None:
    plugin = node.plugin()
    node.plugin(NIC, 2)
    node.run(a_pod("holder", 1))
    plugin.kill()
    node.wait_for_resource(GPU, 0)


@situation(a_pod("gpu", 1), a_pod("nic", 1, NIC))
def a_plugin_is_killed_beside_one_that_lists_nothing(node: RealKubelet) -> None:
    plugin = node.plugin()
    node.plugin(NIC, 0)
    node.run(a_pod("holder", 1))
    plugin.kill()
    node.wait_for_resource(GPU, 0)


@situation(a_pod("one", 1), is_quiet=True)
def a_plugin_is_replaced_and_leaves_a_dead_socket(node: RealKubelet) -> None:
    plugin = node.plugin(GPU, 4, "--endpoint=old.sock")
    node.run(a_pod("holder", 1))
    plugin.kill()
    node.wait_for_resource(GPU, 0)
    node.plugin(GPU, 4, "--endpoint=new.sock", name="plugin-2")


@situation(a_pod("one", 1), a_pod("two", 2))
def a_plugin_comes_back_without_the_device_in_use(node: RealKubelet) -> None:
    plugin = node.plugin(GPU, 3, "--prefix=old")
    node.run(a_pod("holder", 2))
    plugin.stop()
    node.wait_for_resource(GPU, 0)
    node.plugin(GPU, 3, "--prefix=new", name="plugin-2")


@situation(a_pod("probe"))
def a_plugin_in_use_is_paused(node: RealKubelet) -> None:
    plugin = node.plugin()
    node.run(a_pod("holder", 2))
    plugin.pause()


# --- pods -------------------------------------------------------------------------------------------------------------


@situation(a_pod("four", 4), is_quiet=True)
def a_pod_was_deleted(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 3))
    node.plane.admin.delete("Pod", "holder")
    settle(5.0)


@situation(a_pod("one", 1), is_quiet=True)
def a_pod_was_deleted_by_force(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 3))
    node.plane.admin.delete("Pod", "holder", grace=0)
    settle(5.0)


@situation(a_pod("four", 4), is_quiet=True)
def a_pod_has_ended(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 3, restartPolicy="Never"))
    node.end_container("holder")
    node.plane.admin.wait_for_phase("holder", "Succeeded")
    settle(3.0)


@situation(a_pod("one", 1), a_pod("three", 3), is_quiet=True)
def a_container_starts_again_and_again(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 2))
    node.end_container("holder", 1)
    settle(5.0)


# --- the kubelet ------------------------------------------------------------------------------------------------------


@situation(a_pod("one", 1), a_pod("four", 4), is_quiet=True)
def the_kubelet_restarts_and_all_comes_back(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 1))
    with node.without_kubelet():
        pass
    node.wait_for_resource(GPU, 4)
    settle(3.0)


@situation(a_pod("probe"))
def the_kubelet_is_stopped(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 1))
    node.kubelet.stop()


@situation(a_pod("probe"))
def the_kubelet_is_paused(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 1))
    node.kubelet.pause()


@situation(a_pod("one", 1), a_pod("four", 4))
def the_checkpoint_is_deleted(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 1))
    (node.device_plugins / CHECKPOINT).unlink()


@situation(a_pod("one", 1), a_pod("four", 4))
def the_checkpoint_was_damaged_before_a_restart(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 1))
    with node.without_kubelet():
        file = node.device_plugins / CHECKPOINT
        file.write_text(file.read_text().replace("gpu-", "gpx-"))
    node.wait_for_resource(GPU, 4)
    settle(3.0)


@situation(a_pod("probe"), finds={"kubelet-cannot-start"})
def the_file_of_claims_is_damaged(node: RealKubelet) -> None:
    node.plugin()
    node.kubelet.stop()
    (node.directory / "dra_manager_state").write_text("{")


@situation(a_pod("probe"), finds={"kubelet-cannot-start"})
def the_state_of_the_cpu_manager_is_damaged(node: RealKubelet) -> None:
    node.plugin()
    node.kubelet.stop()
    (node.directory / "cpu_manager_state").write_text("{}")


@situation(a_pod("probe"))
def the_runtime_is_killed(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 1))
    node.runtime.kill()
    node.wait_for_node("not to be ready", lambda one: not is_ready(one))


@situation(a_pod("one", 1))
def the_socket_of_a_plugin_is_deleted(node: RealKubelet) -> None:
    socket = node.device_plugins / "gpu.sock"
    plugin = node.plugin(GPU, 4, f"--endpoint={socket.name}")
    socket.unlink()
    # The plugin creates a new socket and registers again. In the meantime, its devices are unhealthy.
    plugin.wait_for("the second registration", lambda: plugin.log.read_text("utf-8").count("registered with") > 1)
    node.wait_for_resource(GPU, 4)
    settle(1.0)


# --- drivers ----------------------------------------------------------------------------------------------------------


@situation(a_claiming_pod("probe", "asked"))
def a_driver_whose_devices_are_held_is_killed(node: RealKubelet) -> None:
    driver = a_driver_in_use(node)
    driver.kill()
    settle(2.0)


@situation(a_claiming_pod("probe", "asked"))
def a_driver_is_stopped(node: RealKubelet) -> None:
    driver = a_driver_in_use(node)
    driver.stop()
    settle(2.0)


@situation(a_claiming_pod("second", "shared"), is_quiet=True)
def a_claim_is_shared(node: RealKubelet) -> None:
    node.driver()
    with_claims(node, shared=1)
    node.run(a_claiming_pod("holder", "shared"))


@situation(a_claiming_pod("one", "one"), a_pod("gpu", 1), is_quiet=True)
def a_plugin_and_a_driver_have_devices_of_their_own(node: RealKubelet) -> None:
    node.plugin()
    node.driver()
    with_claims(node, held=1, one=1)
    node.run(a_pod("holder", 1))
    node.run(a_claiming_pod("claiming", "held"))


@situation(a_claiming_pod("one", "one"))
def a_driver_publishes_fewer_devices_than_are_held(node: RealKubelet) -> None:
    driver = node.driver()
    with_claims(node, held=3, one=1)
    node.run(a_claiming_pod("holder", "held"))
    driver.stop()
    node.driver("gpu.example.com", 2)
    settle(5.0)


@situation(a_claiming_pod("probe", "missing"), is_quiet=True)
def a_claim_does_not_exist(node: RealKubelet) -> None:
    node.driver()
    with_claims(node)
