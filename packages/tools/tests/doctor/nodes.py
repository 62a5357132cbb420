"""A node on which nothing is wrong, and how to plant each anomaly in it.

A node is a `Look`: what every source says. `CLEAN` has two resources, three pods, and every source. Each plant changes
what sources say as little as possible, and plants other things than the others do, so that they can be combined.
"""

from collections.abc import Callable, Iterable, Mapping

from attrs import evolve
from devicecore_tools.doctor import (
    CdiSeen,
    CdiSpec,
    CheckpointSeen,
    ClaimsSeen,
    Facts,
    HoldingSeen,
    Look,
    NodeReport,
    NodeSeen,
    PluginSeen,
    PodResourcesSeen,
    PodSeen,
    PreparedDeviceSeen,
    PublishedDeviceSeen,
    Reading,
    ReceiptSeen,
    SocketsSeen,
    check,
    report,
)

from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode, judge
from devicecore.domain.checkpoint.decoding import decode
from devicecore.domain.device_list import DeviceList
from devicecore.domain.model import (
    Container,
    ContainerKey,
    Device,
    DeviceId,
    Health,
    NumaNode,
    PluginOptions,
    Pod,
    PodUid,
    ResourceName,
)

GPU, NIC = "example.com/gpu", "example.com/nic"
RDMA = ("rdma.other.org", "n1", "rdma-0")
PCI = "resource.kubernetes.io/pciBusID"
GPUS = tuple(f"gpu-{number}" for number in range(8))
NICS = tuple(f"nic-{number}" for number in range(4))

Plant = Callable[[Look], Look]
Entry = tuple[str, str, str, Mapping[int, tuple[str, ...]]]

ENTRIES: tuple[Entry, ...] = (
    ("uid-train", "load", GPU, {0: ("gpu-0",)}),
    ("uid-train", "main", GPU, {0: ("gpu-0", "gpu-2")}),
    ("uid-train", "main", NIC, {-1: ("nic-0",)}),
    ("uid-serve", "main", GPU, {1: ("gpu-1",)}),
    ("uid-static", "proxy", NIC, {-1: ("nic-1",)}),
)


def pod(name: str, *containers: str, init: Iterable[str] = (), phase: str = "Running", uid: str = "") -> PodSeen:
    seen = Pod(
        PodUid(uid or f"uid-{name}"),
        name=name,
        containers=tuple(Container(one) for one in containers),
        init_containers=tuple(Container(one) for one in init),
    )
    return PodSeen(seen, phase)


PODS = (
    pod("train", "main", init=["load"]),
    pod("serve", "main"),
    evolve(pod("static", "proxy", uid="uid-of-the-mirror"), other_uids=("uid-static",)),
    pod("done", "main", phase="Succeeded"),
)


def checkpoint(entries: Iterable[Entry], registered: Mapping[str, tuple[str, ...]]) -> CheckpointSeen:
    """The file with these entries, as it is read."""
    listed = tuple(PodDevicesEntry(*entry, b"") for entry in entries)
    blob = encode(CheckpointData(listed or None, dict(registered)))
    return CheckpointSeen(judge(blob), decode(blob).data)


def holding(name: str, container: str, resource: str, *devices: str) -> HoldingSeen:
    return HoldingSeen("default", name, container, resource, {device: numa_nodes_of(device) for device in devices})


def numa_nodes_of(device: str) -> tuple[int, ...]:
    return (int(device.rpartition("-")[2]) % 2,) if device.startswith("gpu") else ()


def plugin(socket: str, devices: Iterable[str], *, unhealthy: Iterable[str] = ()) -> PluginSeen:
    sick = set(unhealthy)
    listed = [
        Device(
            DeviceId(device),
            Health.UNHEALTHY if device in sick else Health.HEALTHY,
            tuple(map(NumaNode, numa_nodes_of(device))) or None,
        )
        for device in devices
    ]
    return PluginSeen(socket, "", PluginOptions(), DeviceList.of(listed), 200, 0.01)


CLEAN = Look(
    Reading.of("checkpoint", checkpoint(ENTRIES, {GPU: GPUS, NIC: NICS})),
    Reading.of("plugins", SocketsSeen(kubelet=True, plugins=("gpu.sock", "nic.sock"))),
    Reading.of(
        "kubelet.sock",
        PodResourcesSeen(
            "v1",
            frozenset({("default", "train"), ("default", "serve"), ("default", "static")}),
            (
                holding("train", "main", GPU, "gpu-0", "gpu-2"),
                holding("train", "main", NIC, "nic-0"),
                holding("serve", "main", GPU, "gpu-1"),
                holding("static", "proxy", NIC, "nic-1"),
            ),
            {
                GPU: {device: numa_nodes_of(device) for device in GPUS},
                NIC: dict.fromkeys(NICS, ()),
            },
        ),
    ),
    Reading.of("pods.json", PODS),
    Reading.of("node.json", NodeSeen("n1", "v1.36.2", {GPU: 8, NIC: 4}, {GPU: 8, NIC: 4})),
    Reading.of("plugins", (plugin("gpu.sock", GPUS), plugin("nic.sock", NICS))),
    Reading.of("/etc/cdi", CdiSeen((CdiSpec("/etc/cdi", "nic.json", "example.com/nic", ("0", "1")),))),
    Reading.of(
        "dra_manager_state", ClaimsSeen((PreparedDeviceSeen("default/link", "rdma.other.org", "n1", "rdma-0"),))
    ),
    Reading.of("slices.json", (PublishedDeviceSeen("rdma.other.org", "n1", "rdma-0", {PCI: "0000:5e:00.0"}),)),
)


# --- parts of a look --------------------------------------------------------------------------------------------------


def file_of(look: Look) -> CheckpointSeen:
    assert look.checkpoint.value is not None
    return look.checkpoint.value


def api_of(look: Look) -> PodResourcesSeen:
    assert look.pod_resources.value is not None
    return look.pod_resources.value


def node_of(look: Look) -> NodeSeen:
    assert look.node.value is not None
    return look.node.value


def plugins_of(look: Look) -> tuple[PluginSeen, ...]:
    assert look.plugins.value is not None
    return look.plugins.value


def with_file(look: Look, seen: CheckpointSeen) -> Look:
    return evolve(look, checkpoint=Reading.of("checkpoint", seen))


def with_api(look: Look, seen: PodResourcesSeen) -> Look:
    return evolve(look, pod_resources=Reading.of("kubelet.sock", seen))


def with_node(look: Look, seen: NodeSeen) -> Look:
    return evolve(look, node=Reading.of("node.json", seen))


def with_plugins(look: Look, *seen: PluginSeen) -> Look:
    return evolve(look, plugins=Reading.of("plugins", seen))


def with_cdi(look: Look, *specs: CdiSpec, is_complete: bool = True) -> Look:
    return evolve(look, cdi=Reading.of("/etc/cdi", CdiSeen(specs, is_complete)))


def with_pods(look: Look, *pods: PodSeen) -> Look:
    return evolve(look, pods=Reading.of("pods.json", pods))


def with_entries(look: Look, *more: Entry) -> Look:
    """`look` with further entries in its checkpoint; its receipts and its verdict stay."""
    seen = file_of(look)
    assert seen.data is not None
    listed = (*(seen.data.entries or ()), *(PodDevicesEntry(*entry, b"") for entry in more))
    return with_file(look, evolve(seen, data=evolve(seen.data, entries=listed)))


def with_registered(look: Look, resource: str, *ids: str) -> Look:
    seen = file_of(look)
    assert seen.data is not None
    listed = {**(seen.data.registered_devices or {}), resource: ids}
    return with_file(look, evolve(seen, data=evolve(seen.data, registered_devices=listed)))


def with_holding(look: Look, *more: HoldingSeen) -> Look:
    seen = api_of(look)
    return with_api(look, evolve(seen, holdings=(*seen.holdings, *more)))


def with_receipt(look: Look, *more: ReceiptSeen) -> Look:
    seen = file_of(look)
    return with_file(look, evolve(seen, receipts=(*seen.receipts, *more)))


def with_cdi_files(look: Look, *more: CdiSpec) -> Look:
    assert look.cdi.value is not None
    return with_cdi(look, *look.cdi.value.specs, *more)


def with_claim(look: Look, device: str, driver: str = "gpu.example.com", **attributes: str) -> Look:
    """`look` with a claim that has a device, which its driver has published with these attributes."""
    assert look.claims.value is not None
    assert look.slices.value is not None
    prepared = PreparedDeviceSeen("default/claim", driver, "n1", device, (f"{driver}/gpu={device}",))
    published = PublishedDeviceSeen(driver, "n1", device, attributes)
    claims = evolve(look.claims.value, devices=(*look.claims.value.devices, prepared))
    return evolve(
        look,
        claims=Reading.of("dra_manager_state", claims),
        slices=Reading.of("slices.json", (*look.slices.value, published)),
    )


def without(look: Look, *sources: str) -> Look:
    """`look` without some of its sources."""
    return evolve(look, **dict.fromkeys(sources, Reading()))


def receipt(*cdi_devices: str, problem: str = "") -> ReceiptSeen:
    return ReceiptSeen(ContainerKey(PodUid("uid-static"), "proxy"), ResourceName(NIC), cdi_devices, problem)


# --- what is planted --------------------------------------------------------------------------------------------------


def owner_without_pod(look: Look) -> Look:
    return with_entries(look, ("uid-gone", "main", GPU, {1: ("gpu-7",)}))


def two_owners(look: Look) -> Look:
    look = with_entries(look, ("uid-serve", "main", NIC, {-1: ("nic-0",)}))
    return with_holding(look, holding("serve", "main", NIC, "nic-0"))


def plugin_and_claim(look: Look) -> Look:
    return with_claim(look, "gpu-2")


def offered_and_claimed(look: Look) -> Look:
    return with_claim(look, "gpu-3")


def held_not_listed(look: Look) -> Look:
    """The GPU plugin no longer lists gpu-1."""
    kept = [one for one in plugins_of(look) if one.socket != "gpu.sock"]
    return with_plugins(look, *kept, _less(_gpu_plugin(look), "gpu-1"))


def held_unhealthy(look: Look) -> Look:
    kept = [one for one in plugins_of(look) if one.socket != "nic.sock"]
    return with_plugins(look, *kept, plugin("nic.sock", NICS, unhealthy=["nic-1"]))


def _gpu_plugin(look: Look) -> PluginSeen:
    return next(one for one in plugins_of(look) if one.socket == "gpu.sock")


def _less(seen: PluginSeen, *gone: str) -> PluginSeen:
    assert seen.devices is not None
    return evolve(seen, devices=DeviceList.of(device for device in seen.devices if device.id not in gone))


def over_allocated(look: Look) -> Look:
    """Less than the two NICs in use; that the Node differs from what is registered is part of it."""
    node = node_of(look)
    return with_node(look, evolve(node, allocatable={**node.allocatable, NIC: 1}))


def node_differs(look: Look) -> Look:
    node = node_of(look)
    return with_node(look, evolve(node, allocatable={**node.allocatable, GPU: 7}))


def socket_without_resource(look: Look) -> Look:
    return with_plugins(look, *plugins_of(look), plugin("fpga.sock", ("fpga-0", "fpga-1")))


def resource_without_socket(look: Look) -> Look:
    look = with_registered(look, "example.com/tpu", "tpu-0")
    node = node_of(look)
    more = {"example.com/tpu": 1}
    return with_node(look, evolve(node, capacity={**node.capacity, **more}, allocatable={**node.allocatable, **more}))


def plugin_silent(look: Look) -> Look:
    """The answer of a CSI driver is never read; this is a device plugin that the plugin watcher found."""
    dead = PluginSeen("dead.sock", "example.com/dead", problem="connection refused")
    return with_plugins(look, *plugins_of(look), dead)


def plugin_late(look: Look) -> Look:
    slow = evolve(plugin("slow.sock", GPUS[4:]), seconds=2.5)
    return with_plugins(look, *plugins_of(look), slow)


def plugin_empty(look: Look) -> Look:
    empty = evolve(plugin("empty.sock", ()), resource="example.com/empty")
    return with_plugins(look, *plugins_of(look), empty)


def receipt_unreadable(look: Look) -> Look:
    return with_receipt(look, receipt(problem="Error parsing message"))


def wrong_checksum(look: Look) -> Look:
    seen = file_of(look)
    bad = judge(encode(CheckpointData()).replace(b'Checksum":', b'Checksum":1'))
    return with_file(look, evolve(seen, verdict=evolve(bad, format=seen.verdict.format)))


def checkpoint_unreadable(look: Look) -> Look:
    return with_file(look, CheckpointSeen(judge(b"{")))


def old_format(look: Look) -> Look:
    seen = file_of(look)
    return with_file(look, evolve(seen, verdict=evolve(seen.verdict, format=1)))


def cdi_duplicate(look: Look) -> Look:
    return with_cdi_files(look, CdiSpec("/etc/cdi", "old.json", "example.com/nic", ("1",)))


def cdi_unresolvable(look: Look) -> Look:
    return with_receipt(look, receipt("example.com/nic=9"))


def list_near_limit(look: Look) -> Look:
    large = evolve(plugin("large.sock", GPUS[6:]), list_bytes=4_000_000)
    return with_plugins(look, *plugins_of(look), large)


def sources_disagree(look: Look) -> Look:
    return with_holding(look, holding("serve", "main", GPU, "gpu-5"))


def many_numa_nodes(look: Look) -> Look:
    seen = api_of(look)
    allocatable = {**(seen.allocatable or {})}
    allocatable[GPU] = {**allocatable[GPU], "gpu-6": tuple(range(9))}
    return with_api(look, evolve(seen, allocatable=allocatable))


PLANTS: Mapping[str, Plant] = {
    "owner-without-pod": owner_without_pod,
    "plugin-and-claim": plugin_and_claim,
    "offered-and-claimed": offered_and_claimed,
    "two-owners": two_owners,
    "held-not-listed": held_not_listed,
    "held-unhealthy": held_unhealthy,
    "over-allocated": over_allocated,
    "node-status-differs": node_differs,
    "socket-without-resource": socket_without_resource,
    "resource-without-socket": resource_without_socket,
    "plugin-silent": plugin_silent,
    "plugin-late": plugin_late,
    "plugin-empty": plugin_empty,
    "receipt-unreadable": receipt_unreadable,
    "checkpoint-checksum": wrong_checksum,
    "checkpoint-unreadable": checkpoint_unreadable,
    "checkpoint-old-format": old_format,
    "cdi-duplicate": cdi_duplicate,
    "cdi-unresolvable": cdi_unresolvable,
    "list-near-limit": list_near_limit,
    "sources-disagree": sources_disagree,
    "many-numa-nodes": many_numa_nodes,
}
"""By the code of the finding that shows it."""


def report_of(look: Look) -> NodeReport:
    """What `doctor` reports after this look."""
    facts = Facts(look)
    return report(facts, check(facts))
