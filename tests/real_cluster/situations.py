"""Situations of a real kubelet that test `doctor` and `fits`. `make cluster SITUATION=NAME` runs one of them."""

import tests.real_cluster.situations_of_devices
import tests.real_cluster.situations_of_documents
import tests.real_cluster.situations_of_nodes  # noqa: F401 - importing them registers their situations
from tests.real_cluster.kubelet import RealKubelet
from tests.real_cluster.node import GPU, is_ready
from tests.real_cluster.trouble import SITUATIONS, a_claiming_pod, a_pod, settle, situation, with_claims

__all__ = ["SITUATIONS"]


@situation(a_pod("one", 1), a_pod("three", 3), is_quiet=True)
def nothing_is_wrong(node: RealKubelet) -> None:
    node.plugin()
    node.run(a_pod("holder", 2))


@situation(a_claiming_pod("claims-one", "one"), a_claiming_pod("claims-three", "three"), is_quiet=True)
def nothing_is_wrong_with_claims(node: RealKubelet) -> None:
    node.driver()
    with_claims(node, held=2, one=1, three=3)
    node.run(a_claiming_pod("holder", "held"))


@situation(a_pod("probe"))
def a_plugin_is_killed(node: RealKubelet) -> None:
    plugin = node.plugin()
    node.run(a_pod("holder", 1))
    plugin.kill()
    node.wait_for_resource(GPU, 0)


@situation(a_pod("probe"))
def a_plugin_answers_no_more(node: RealKubelet) -> None:
    node.plugin().pause()


@situation(a_pod("probe"))
def a_device_in_use_is_unhealthy_and_so_are_the_others(node: RealKubelet) -> None:
    plugin = node.plugin()
    node.run(a_pod("holder", 1))
    plugin.kill()
    node.wait_for_resource(GPU, 0)
    node.plugin(GPU, 4, "--unhealthy=0-3", name="plugin-2")
    settle(2.0)


@situation(a_pod("one", 1), a_pod("two", 2))
def a_plugin_comes_back_with_fewer_devices(node: RealKubelet) -> None:
    plugin = node.plugin()
    node.run(a_pod("holder", 3))
    plugin.stop()
    node.wait_for_resource(GPU, 0)
    node.plugin(GPU, 2, name="plugin-2")


@situation(a_pod("probe"))
def the_kubelet_restarts_and_its_plugin_is_gone(node: RealKubelet) -> None:
    plugin = node.plugin()
    node.run(a_pod("holder", 1))
    with node.without_kubelet():
        plugin.kill()
    node.wait_for_resource(GPU, 0)


@situation(a_pod("probe"))
def the_kubelet_is_killed(node: RealKubelet) -> None:
    node.plugin()
    node.kubelet.kill()


@situation(a_pod("probe"))
def the_runtime_is_not_ready(node: RealKubelet) -> None:
    node.plugin()
    node.break_runtime("runtime-not-ready", "containerd has lost its snapshotter")
    node.wait_for_node("not to be ready", lambda one: not is_ready(one))


@situation(a_pod("probe"))
def the_network_is_not_ready(node: RealKubelet) -> None:
    node.plugin()
    node.break_runtime("network-not-ready", "cni plugin not initialized")
    node.wait_for_node("not to be ready", lambda one: not is_ready(one))


@situation(a_claiming_pod("probe", "claim"))
def a_driver_is_killed(node: RealKubelet) -> None:
    driver = node.driver()
    with_claims(node, claim=1)
    driver.kill()
    settle(2.0)
