"""Each finding has a node that shows it, and nodes that almost show it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.findings.checks import CHECKS
from devicecore_tools.doctor.findings.finding import NodeFinding
from devicecore_tools.doctor.findings.report import check
from devicecore_tools.doctor.look.values import (
    CdiSpec,
    CheckpointSeen,
    Look,
    MachineSeen,
    PodSeen,
    Reading,
    SocketsSeen,
    Source,
)
from devicecore_tools.doctor.reading.look_file import look_in, text_of
from tests.doctor import nodes
from tests.doctor.nodes import CLEAN, GPU, GPUS, NIC, NICS, PLANTS, Plant

from devicecore.domain.checkpoint import judge
from devicecore.domain.device_list import DeviceList
from tests.recorded import share

ALSO = {  # findings that are also true on the node with the anomaly
    "over-allocated": {"node-status-differs"},
    "pod-cannot-end": {"driver-gone"},
    "resource-not-on-node": {"node-status-differs"},
    "same-ids": {"socket-without-resource"},
}
EXPLAINED = (  # pairs of anomalies: one explains the other's finding, or removes a source that the finding needs
    {"over-allocated", "held-unhealthy"},
    {"driver-silent", "slices-missing"},
    {"pods-not-taken", "node-not-ready"},
    {"listed-twice", "held-unhealthy"},
    {"same-ids", "plugins-differ"},
    {"resource-not-on-node", "over-allocated"},
)
HIDE_OTHERS = {  # anomalies that remove a source that other findings depend on
    "node-missing",
    "kubelet-gone",
    "kubelet-starting",
    "checkpoint-checksum",
    "checkpoint-unreadable",
}


def findings(look: Look) -> tuple[NodeFinding, ...]:
    return check(Facts(look))


def codes(look: Look) -> set[str]:
    return {finding.code for finding in findings(look)}


def test_nothing_is_wrong_on_a_clean_node() -> None:
    assert findings(CLEAN) == ()


def test_a_claim_is_reported_gone_only_if_all_claims_were_read() -> None:
    look = nodes.claim_taken_away(CLEAN)
    of_some = evolve(look.allocations, value=())
    assert findings(evolve(look, allocations=of_some)) == ()
    (found,) = findings(evolve(look, allocations=evolve(of_some, is_whole=True)))
    assert found.sentence.endswith("runs with ResourceClaim 'default/freed', which is no longer on the API server.")


def test_each_check_has_a_node_with_its_anomaly() -> None:
    on_look = {"look": Look, "return": Look}
    plants = {name for name, one in vars(nodes).items() if getattr(one, "__annotations__", {}) == on_look}
    assert {name.replace("_", "-") for name in plants - {"of_a_pod_that_is_gone"}} == {one.code for one in CHECKS}
    assert PLANTS.keys() == {one.code for one in CHECKS}


@pytest.mark.parametrize("code", PLANTS)
def test_an_injected_anomaly_is_found_and_nothing_else(code: str) -> None:
    assert codes(PLANTS[code](CLEAN)) == {code} | ALSO.get(code, set())


@pytest.mark.parametrize("first", PLANTS)
def test_anomalies_are_found_in_pairs(first: str) -> None:
    names = [name for name in PLANTS if name not in HIDE_OTHERS]
    if first in names:
        others = [name for name in names if name != first and {first, name} not in EXPLAINED]
        for other in share(others[names.index(first) % 8 :], of=8):
            assert codes(PLANTS[other](PLANTS[first](CLEAN))) >= {first, other}, (first, other)


@pytest.mark.parametrize("code", PLANTS)
def test_each_finding_says_what_it_is_what_follows_and_how_to_confirm_it(code: str) -> None:
    (finding,) = (one for one in findings(PLANTS[code](CLEAN)) if one.code == code)
    assert finding.sentence.endswith(".")
    assert finding.evidence
    assert all(evidence.text for evidence in finding.evidence)
    assert finding.next.endswith(".")
    assert not finding.next.startswith("It ")
    assert finding.confirm
    assert finding.issue.startswith("https://")


def test_pods_bound_just_now_or_elsewhere_are_not_reported_as_waiting() -> None:
    look = nodes.pods_not_taken(CLEAN)
    (*others, new) = nodes.pods_of(look)
    for one in (
        evolve(new, bound_at=1_000_195.0),
        evolve(new, bound_at=None),
        evolve(new, node="n2"),
        evolve(new, is_acknowledged=True),
        evolve(new, is_deleting=True),
    ):
        assert "pods-not-taken" not in codes(evolve(look, pods=evolve(look.pods, value=(*others, one))))
    assert "pods-not-taken" not in codes(nodes.node_not_ready(look))
    assert "pods-not-taken" not in codes(evolve(look, taken=None))


def test_a_driver_whose_slices_are_deleted_is_known_by_the_socket_that_it_left() -> None:
    """A dead socket is an ordinary leftover if the driver also has a live socket, or if it is a CSI driver's socket."""
    seen, path = CLEAN.sockets.value or SocketsSeen(), "plugins_registry/gone.other.org-reg.sock"
    named = {one: ("DRAPlugin", "rdma.other.org") for one in seen.served if one.startswith("plugins_registry/")}
    seen = evolve(seen, named=named)
    dead = evolve(seen, served={**seen.served, path: False})
    (found,) = findings(evolve(CLEAN, sockets=evolve(CLEAN.sockets, value=dead)))
    assert (found.code, "gone.other.org-reg.sock" in found.sentence) == ("driver-gone", True)
    alive = {"plugins_registry/dra-1-reg.sock": ("DRAPlugin", "gone.other.org")}
    for sockets in (
        evolve(dead, named={**named, **alive}),
        evolve(dead, named={}),
        evolve(seen, served={**seen.served, "plugins_registry/ebs.csi.aws.com-reg.sock": False}),
        evolve(seen, served={**seen.served, path: True}),
    ):
        assert findings(evolve(CLEAN, sockets=evolve(CLEAN.sockets, value=sockets))) == ()


# --- nearly -----------------------------------------------------------------------------------------------------------


def ended(look: Look) -> Look:
    """The pod still exists, but has ended. The kubelet frees the pod's devices at the next admission."""
    return nodes.with_entries(look, ("uid-done", "main", GPU, {1: ("gpu-7",)}))


def an_ordinary_deletion(look: Look) -> Look:
    """The kubelet no longer lists the pod, but the pod's entry stays in the file until the next write."""
    return nodes.of_a_pod_that_is_gone(look)


def an_ordinary_deletion_without_pods(look: Look) -> Look:
    return nodes.without(nodes.of_a_pod_that_is_gone(look), "pods")


def pods_of_one_namespace(look: Look) -> Look:
    """The kubelet lists a pod that is missing from the list of pods, so other pods may be missing, too."""
    look = nodes.of_a_pod_that_is_gone(look)
    return nodes.with_pods(look, *nodes.PODS[1:])


def known_by_another_uid(look: Look) -> Look:
    return nodes.with_entries(look, ("uid-of-the-mirror", "proxy", NIC, {-1: ()}))


def reused_after_an_init_container(look: Look) -> Look:
    """Within one pod, a finished init container and the containers after it may share devices."""
    return nodes.with_entries(look, ("uid-train", "load", NIC, {-1: ("nic-0",)}))


def shared_without_pods(look: Look) -> Look:
    """If no pods were read, nothing shows that `load` is an init container, but both containers are in the same pod."""
    return nodes.without(look, "pods")


def init_containers_only(look: Look) -> Look:
    """The kubelet never lists an ordinary init container."""
    seen = nodes.pod("prepare", "main", init=["fetch"])
    look = nodes.with_pods(look, *nodes.PODS, seen)
    return nodes.with_entries(look, ("uid-prepare", "fetch", GPU, {1: ("gpu-7",)}))


def old_api(look: Look) -> Look:
    """Version v1alpha1 of the pod-resources API has neither NUMA nodes nor allocatable devices."""
    seen = nodes.api_of(look)
    holdings = tuple(evolve(one, devices=dict.fromkeys(one.devices, ())) for one in seen.holdings)
    return nodes.with_api(look, evolve(seen, version="v1alpha1", holdings=holdings, allocatable=None))


def removed_resource(look: Look) -> Look:
    """A removed resource stays on the Node with 0 devices forever, and other clients may add resources of their own."""
    node = nodes.node_of(look)
    more = {"example.com/former": 0, "example.org/dongle": 3}
    return nodes.with_node(
        look, evolve(node, capacity={**node.capacity, **more}, allocatable={**node.allocatable, **more})
    )


def node_follows_the_kubelet(look: Look) -> Look:
    """The kubelet has already removed a device that is still in the checkpoint."""
    node, seen = nodes.node_of(look), nodes.api_of(look)
    look = nodes.with_node(look, evolve(node, allocatable={**node.allocatable, GPU: 7}))
    _, *others = nodes.plugins_of(look)
    look = nodes.with_plugins(look, nodes.plugin("gpu.sock", GPUS[:7]), *others)
    fewer = {device: nodes.numa_nodes_of(device) for device in GPUS[:7]}
    return nodes.with_api(look, evolve(seen, allocatable={**(seen.allocatable or {}), GPU: fewer}))


def two_instances(look: Look) -> Look:
    """During a rolling update, two plugins serve one resource."""
    return nodes.with_plugins(look, *nodes.plugins_of(look), nodes.plugin("gpu-2.sock", GPUS))


def only_unhealthy_devices(look: Look) -> Look:
    """The checkpoint contains only healthy devices, and this plugin has none, so the ids cannot be compared."""
    return nodes.with_plugins(
        look, *nodes.plugins_of(look), nodes.plugin("fpga.sock", ["fpga-0"], unhealthy=["fpga-0"])
    )


def a_copy_of_a_directory(look: Look) -> Look:
    """A directory without the kubelet's own socket is a copy, which says nothing about sockets."""
    look = nodes.resource_without_socket(nodes.without(look, "plugins"))
    return evolve(look, sockets=Reading.of("copy", SocketsSeen()))


def sockets_that_may_be_anybodys(look: Look) -> Look:
    """If no plugin is called, any socket may belong to any resource."""
    return nodes.resource_without_socket(nodes.without(look, "plugins"))


def prompt(look: Look) -> Look:
    slow = evolve(nodes.plugins_of(look)[0], seconds=1.9)
    return nodes.with_plugins(look, slow, nodes.plugins_of(look)[1])


def large_but_not_too_large(look: Look) -> Look:
    large = evolve(nodes.plugins_of(look)[0], list_bytes=3_300_000)
    return nodes.with_plugins(look, large, nodes.plugins_of(look)[1])


def eight_numa_nodes(look: Look) -> Look:
    seen = nodes.api_of(look)
    wide = {GPU: {**(seen.allocatable or {})[GPU], "gpu-6": tuple(range(8))}, NIC: (seen.allocatable or {})[NIC]}
    return nodes.with_api(look, evolve(seen, allocatable=wide))


def old_file_of_an_old_kubelet(look: Look) -> Look:
    look = nodes.checkpoint_old_format(nodes.without(look, "pod_resources"))
    return nodes.with_node(look, evolve(nodes.node_of(look), kubelet_version="v1.19.16"))


def old_file_of_an_unknown_kubelet(look: Look) -> Look:
    return nodes.checkpoint_old_format(nodes.without(look, "pod_resources", "node"))


def overridden_cdi_file(look: Look) -> Look:
    """A device from a directory of higher priority replaces the same device from a directory of lower priority."""
    return nodes.with_cdi_files(look, CdiSpec("/var/run/cdi", "nic.json", "example.com/nic", ("0", "1")))


def resolvable_cdi_name(look: Look) -> Look:
    return nodes.with_receipt(look, nodes.receipt("example.com/nic=1"))


def unreadable_cdi_file(look: Look) -> Look:
    """The device that cannot be resolved may be in a file that could not be read."""
    look = nodes.cdi_unresolvable(look)
    return nodes.with_cdi(look, is_complete=False)


def topology_without_nodes(look: Look) -> Look:
    """The kubelet's answer leaves out a healthy device whose topology has no nodes."""
    look = nodes.without(look, "plugins", "checkpoint", "pods")
    seen = nodes.api_of(look)
    fewer = dict.fromkeys(NICS[1:], ())
    return nodes.with_api(look, evolve(seen, allocatable={**(seen.allocatable or {}), NIC: fewer}))


def ambiguous_ids(look: Look) -> Look:
    """Two resources have devices with the same ids, so it is not known which socket belongs to which resource."""
    ids = ("0", "1")
    for resource in ("example.com/a", "example.com/b"):
        look = nodes.with_registered(look, resource, *ids)
    more = {"example.com/a": 2, "example.com/b": 2}
    node = nodes.node_of(look)
    look = nodes.with_node(
        look, evolve(node, capacity={**node.capacity, **more}, allocatable={**node.allocatable, **more})
    )
    return nodes.with_plugins(look, *nodes.plugins_of(look), nodes.plugin("a.sock", ids), nodes.plugin("b.sock", ids))


NEAR_MISSES: list[Plant] = [
    one for one in list(globals().values()) if getattr(one, "__annotations__", {}).get("return") is Look
]
"""The functions above that return a `Look`."""


def test_each_near_miss_is_tried() -> None:
    assert len(NEAR_MISSES) == 25


@pytest.mark.parametrize("near_miss", NEAR_MISSES, ids=lambda plant: plant.__name__)
def test_a_near_miss_is_no_finding(near_miss: Plant) -> None:
    assert findings(near_miss(CLEAN)) == ()


# --- cases that a finding's code alone does not cover -----------------------------------------------------------------


def test_two_app_containers_of_one_pod_cannot_share() -> None:
    look = nodes.with_pods(CLEAN, *nodes.PODS, nodes.pod("pair", "left", "right"))
    for container in ("left", "right"):
        look = nodes.with_entries(look, ("uid-pair", container, GPU, {1: ("gpu-7",)}))
        look = nodes.with_holding(look, nodes.holding("pair", container, GPU, "gpu-7"))
    assert codes(look) == {"two-owners"}


def test_a_checkpoint_that_does_not_exist_disagrees_with_what_the_kubelet_lists() -> None:
    absent = CheckpointSeen(judge(None))
    look = nodes.with_file(nodes.without(CLEAN, "plugins"), absent)
    assert codes(look) == {"sources-disagree"}


def test_without_plugins_a_held_device_that_is_not_registered_is_not_healthy() -> None:
    look = nodes.with_registered(nodes.without(CLEAN, "plugins", "node", "pod_resources"), GPU, *GPUS[1:])
    (finding,) = findings(look)
    assert (finding.code, finding.devices) == ("held-unhealthy", ("gpu-0",))


def test_sockets_without_any_registered_resource_are_found_without_asking_plugins() -> None:
    look = nodes.without(CLEAN, "plugins", "pod_resources", "pods", "node")
    look = nodes.with_file(look, nodes.checkpoint((), {}))
    assert codes(look) == {"socket-without-resource"}


def test_a_resource_without_any_socket_is_found_without_asking_plugins() -> None:
    look = evolve(nodes.without(CLEAN, "plugins"), sockets=Reading.of("plugins", nodes.sockets()))
    assert [(one.code, one.resource) for one in findings(look)] == [
        ("resource-without-socket", GPU),
        ("resource-without-socket", NIC),
    ]


def test_the_size_of_a_list_is_estimated_if_the_plugin_was_not_asked() -> None:
    ids = tuple(f"{number:05}-{'x' * 60}" for number in range(50_000))
    look = nodes.with_registered(nodes.without(CLEAN, "plugins", "node"), "example.com/many", *ids)
    assert [one.code for one in findings(look)] == ["list-near-limit"]


def test_a_resource_without_a_plugin_is_found_in_the_kubelets_answer_or_in_the_node() -> None:
    look = nodes.plugin_gone(CLEAN)
    found = [*findings(look), *findings(nodes.without(look, "pod_resources"))]
    assert [one.sentence.partition(" of ")[0] for one in found] == [
        "The kubelet has no healthy device",
        "The Node has no allocatable device",
    ]


def test_a_container_that_only_the_checkpoint_has_is_found() -> None:
    (finding,) = findings(nodes.with_entries(CLEAN, ("uid-train", "extra", GPU, {0: ("gpu-7",)})))
    assert finding.code == "sources-disagree"
    assert finding.sentence.endswith("but the kubelet lists no such container.")


def test_a_held_device_that_is_not_healthy_is_not_the_last_one() -> None:
    look = nodes.without(CLEAN, "plugins")
    answer = nodes.api_of(look)
    healthy = {device: of for device, of in (answer.allocatable or {})[GPU].items() if device != "gpu-0"}
    look = nodes.with_api(look, evolve(answer, allocatable={**(answer.allocatable or {}), GPU: healthy}))
    (finding,) = findings(look)
    assert finding.sentence.endswith("(gpu-0), which the kubelet does not count as healthy.")


def test_a_driver_without_slices_is_found_with_its_devices_that_are_in_use() -> None:
    (finding,) = findings(nodes.slices_missing(CLEAN))
    assert "1 of its devices is in use (tpu-0)." in finding.sentence


def test_a_claim_without_a_record_is_found_with_each_source_that_lacks_it() -> None:
    (finding,) = findings(nodes.claim_without_record(CLEAN))
    assert [one.source for one in finding.evidence] == [Source.PODS, Source.CLAIMS, Source.POD_RESOURCES]


def test_a_device_that_is_listed_twice_is_found_for_its_resource() -> None:
    (finding,) = findings(nodes.listed_twice(CLEAN))
    assert (finding.code, finding.resource) == ("listed-twice", NIC)


@pytest.mark.parametrize(("version", "says"), [("v1.25.3", "still reads the file"), ("v1.36.2", "cannot read it")])
def test_what_becomes_of_an_old_file_depends_on_the_kubelet(version: str, says: str) -> None:
    look = nodes.with_node(CLEAN, evolve(nodes.node_of(CLEAN), kubelet_version=version))
    (finding,) = findings(nodes.checkpoint_old_format(look))
    assert says in finding.next


def test_names_from_outside_are_escaped_and_bounded() -> None:
    evil = "\x1b[31m" + "x" * 10_000
    look = nodes.with_entries(CLEAN, (evil, evil, GPU, {0: (evil,)}))
    for finding in findings(look):
        text = " ".join([finding.sentence, *(evidence.text for evidence in finding.evidence)])
        assert text.isprintable()
        assert len(text) < 2_000


def test_a_plugin_that_is_late_is_the_same_finding_however_late_it_is() -> None:
    first = findings(nodes.plugin_late(CLEAN))
    (slow, *others) = nodes.plugins_of(CLEAN)
    later = findings(nodes.with_plugins(CLEAN, evolve(slow, seconds=9.0), *others))
    assert first == later
    assert [one.measured for one in later] == ["9.0 s"]


def test_a_list_without_devices_is_not_a_plugin_that_did_not_answer() -> None:
    empty = evolve(nodes.plugins_of(CLEAN)[0], devices=DeviceList())
    assert "plugin-silent" not in codes(nodes.with_plugins(CLEAN, empty))


def test_a_pod_has_ended_if_its_phase_says_so() -> None:
    assert [PodSeen(nodes.PODS[0].pod, phase).has_ended for phase in ("Running", "Failed", "Succeeded", "")] == [
        False,
        True,
        True,
        False,
    ]


def test_without_the_checkpoint_a_plugin_of_devices_on_no_numa_node_may_be_registered() -> None:
    """The kubelet's answer leaves out healthy devices whose topology has no nodes."""
    look = nodes.without(CLEAN, "checkpoint", "node")
    (plugin,) = (one for one in nodes.plugins_of(nodes.socket_without_resource(look)) if one.socket == "fpga.sock")
    assert plugin.devices is not None
    nowhere = evolve(plugin, devices=DeviceList.of(evolve(one, topology=()) for one in plugin.devices))
    assert codes(nodes.with_plugins(look, *nodes.plugins_of(look), nowhere)) == set()
    assert codes(nodes.with_plugins(look, *nodes.plugins_of(look), plugin)) == {"socket-without-resource"}


def test_what_is_registered_is_not_known_from_holders_alone() -> None:
    look = nodes.socket_without_resource(nodes.without(old_api(CLEAN), "checkpoint"))
    assert codes(look) == set()


def test_a_plugin_has_gone_if_the_node_has_devices_and_nothing_to_give() -> None:
    node = nodes.node_of(CLEAN)
    allocatable, capacity = {**node.allocatable, "example.com/x": 0}, {**node.capacity, "example.com/x": 1}
    look = nodes.with_node(nodes.without(CLEAN, "plugins"), evolve(node, allocatable=allocatable, capacity=capacity))
    (finding,) = findings(look)
    assert (finding.code, finding.resource) == ("plugin-gone", "example.com/x")
    assert f"kubectl get node {node.name} -o" in finding.confirm


def test_devices_that_were_never_healthy_belong_to_the_resource_that_is_left() -> None:
    """No source connects the plugin with the resource, but only these two are left, and their device counts match."""
    sick = [f"fpga-{number}" for number in range(3)]
    node = nodes.node_of(CLEAN)
    counted_ = evolve(node, capacity={**node.capacity, nodes.FPGA: 3}, allocatable={**node.allocatable, nodes.FPGA: 0})
    look = nodes.with_registered(nodes.with_node(CLEAN, counted_), nodes.FPGA)
    look = nodes.with_plugins(look, *nodes.plugins_of(CLEAN), nodes.plugin("fpga.sock", sick, unhealthy=sick))
    assert ("unhealthy", nodes.FPGA) in [(one.code, one.resource) for one in check(Facts(look))]
    other = nodes.with_node(look, evolve(counted_, capacity={**node.capacity, nodes.FPGA: 4}))
    assert ("unhealthy", nodes.FPGA) not in [(one.code, one.resource) for one in check(Facts(other))]


@pytest.mark.parametrize(
    ("policy", "count", "most", "is_found"),
    [("restricted", 9, 8, True), ("best-effort", 17, 16, True), ("restricted", 9, 16, False), ("none", 9, 8, False)],
)
def test_a_machine_with_more_numa_nodes_than_its_kubelet_allows_is_found(
    policy: str, count: int, most: int, is_found: bool
) -> None:
    """On such a machine, the kubelet exits with `Failed to start ContainerManager` before it has any devices."""
    machine = MachineSeen("machine", "boot", tuple(range(count)), policy, most)
    recorded, _ = look_in(text_of(evolve(CLEAN, machine=machine), {}))
    found = [one for one in findings(recorded) if one.code == "many-numa-nodes"]
    kubelet = f"The kubelet, whose topology manager policy is {policy}, accepts at most {most}, so it does not start."
    assert [one.sentence for one in found] == [f"This machine has {count} NUMA nodes. {kubelet}"] * is_found


def test_devices_on_many_numa_nodes_do_not_matter_without_alignment() -> None:
    many = PLANTS["many-numa-nodes"](CLEAN)
    machine = MachineSeen("machine", "boot", tuple(range(9)), "none")
    assert "many-numa-nodes" in codes(many)
    assert "many-numa-nodes" not in codes(evolve(many, machine=machine))


FINDINGS_OF_EACH_PLANT = """
from tests.doctor.nodes import CLEAN, PLANTS
from tests.doctor.test_checks import findings
for code, plant in PLANTS.items():
    print(code, findings(plant(CLEAN)))
"""


def test_no_finding_depends_on_the_order_of_a_set() -> None:
    """The reports on a live node and on its record must be the same, although different processes write them."""
    said = {
        subprocess.run(
            [sys.executable, "-c", FINDINGS_OF_EACH_PLANT],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[4])},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
