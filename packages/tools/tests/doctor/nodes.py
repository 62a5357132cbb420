"""A sound node, and functions that each inject one anomaly into it.

A node is a `Look`, which contains what every source says. `CLEAN` contains two resources, three pods and most sources.
Each function changes the sources as little as possible, so that most functions can be combined.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import evolve
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.findings.checks import CHECKS
from devicecore_tools.doctor.findings.report import NodeReport, check, report
from devicecore_tools.doctor.look.taints import CORDONED
from devicecore_tools.doctor.look.values import (
    LIST_HAS,
    NO_NODE,
    AllocatedClaimSeen,
    CdiSeen,
    CdiSpec,
    CheckpointSeen,
    ClaimedDeviceSeen,
    ClaimsSeen,
    EventSeen,
    HoldingSeen,
    Look,
    MachineSeen,
    NodeSeen,
    PluginSeen,
    PodResourcesSeen,
    PodSeen,
    PreparedDeviceSeen,
    PublishedDeviceSeen,
    Reading,
    ReceiptSeen,
    SocketsSeen,
    StateFileSeen,
)

from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode, judge
from devicecore.domain.checkpoint.decoding import decode
from devicecore.domain.device_list import DeviceList
from devicecore.domain.model import (
    Container,
    ContainerClaim,
    ContainerKey,
    Device,
    DeviceId,
    Health,
    NumaNode,
    PluginOptions,
    Pod,
    PodClaim,
    PodUid,
    ResourceName,
)

GPU, NIC, FPGA = "example.com/gpu", "example.com/nic", "example.com/fpga"
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
    """Return what is read from a checkpoint with these entries and registered devices."""
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


def sockets(
    *plugins: str, registry: tuple[str, ...] = ("rdma.other.org-reg.sock",), dead: tuple[str, ...] = ()
) -> SocketsSeen:
    """Return a running kubelet's sockets. Processes listen on all sockets that are not in `dead`."""
    names = ["device-plugins/kubelet.sock", "pod-resources/kubelet.sock"]
    names += [f"device-plugins/{name}" for name in plugins] + [f"plugins_registry/{name}" for name in registry]
    return SocketsSeen(kubelet=True, plugins=plugins, registry=registry, served={one: one not in dead for one in names})


CLEAN = Look(
    Reading.of("checkpoint", checkpoint(ENTRIES, {GPU: GPUS, NIC: NICS})),
    Reading.of("plugins", sockets("gpu.sock", "nic.sock")),
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
            {GPU: {device: numa_nodes_of(device) for device in GPUS}, NIC: dict.fromkeys(NICS, ())},
        ),
    ),
    Reading[tuple[PodSeen, ...]]("pods.json", PODS, "", is_whole=True),
    Reading.of("node.json", NodeSeen("n1", "v1.36.2", {GPU: 8, NIC: 4}, {GPU: 8, NIC: 4})),
    Reading.of("plugins", (plugin("gpu.sock", GPUS), plugin("nic.sock", NICS))),
    Reading.of("/etc/cdi", CdiSeen((CdiSpec("/etc/cdi", "nic.json", "example.com/nic", ("0", "1")),))),
    Reading.of("dra_manager_state", ClaimsSeen((PreparedDeviceSeen("default/link", *RDMA),))),
    Reading.of("slices.json", (PublishedDeviceSeen("rdma.other.org", "n1", "rdma-0", {PCI: "0000:5e:00.0"}),)),
)


# --- parts of a `Look` ------------------------------------------------------------------------------------------------


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


def pods_of(look: Look) -> tuple[PodSeen, ...]:
    assert look.pods.value is not None
    return look.pods.value


def with_prepared(look: Look, device: PreparedDeviceSeen, uid: str) -> Look:
    """Return `look` with a device that is prepared for a pod's claim."""
    assert look.claims.value is not None
    claims = look.claims.value
    devices = tuple(one for one in claims.devices if one != device)
    drivers, pods = {**claims.drivers, device.claim: (device.driver,)}, {**claims.pods, device.claim: (uid,)}
    return evolve(look, claims=Reading.of("dra_manager_state", ClaimsSeen((*devices, device), drivers, pods)))


def with_pods(look: Look, *pods: PodSeen) -> Look:
    return evolve(look, pods=evolve(Reading.of("pods.json", pods), is_whole=True))


def with_entries(look: Look, *more: Entry) -> Look:
    """Return `look` with further entries, without receipts, in its checkpoint. The file's verdict is unchanged."""
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
    """Return `look` with a claim for a device that its driver has published with these attributes."""
    assert look.claims.value is not None
    assert look.slices.value is not None
    prepared = PreparedDeviceSeen("default/claim", driver, "n1", device, (f"{driver}/gpu={device}",))
    published = PublishedDeviceSeen(driver, "n1", device, attributes)
    claims = evolve(look.claims.value, devices=(*look.claims.value.devices, prepared))
    seen = look.sockets.value or SocketsSeen()
    name = f"{driver}-reg.sock"
    seen = evolve(seen, registry=(*seen.registry, name), served={**seen.served, f"plugins_registry/{name}": True})
    return evolve(
        look,
        sockets=Reading.of("plugins", seen),
        claims=Reading.of("dra_manager_state", claims),
        slices=Reading.of("slices.json", (*look.slices.value, published)),
    )


def without(look: Look, *sources: str) -> Look:
    """Return `look` without these sources."""
    unread: dict[str, Any] = dict.fromkeys(sources, Reading())
    return evolve(look, **unread)


def receipt(*cdi_devices: str, problem: str = "") -> ReceiptSeen:
    return ReceiptSeen(ContainerKey(PodUid("uid-static"), "proxy"), ResourceName(NIC), cdi_devices, problem)


# --- injected anomalies ---------------------------------------------------------------------------------------------


def of_a_pod_that_is_gone(look: Look) -> Look:
    return with_entries(look, ("uid-gone", "main", GPU, {1: ("gpu-7",)}))


def kubelet_gone(look: Look) -> Look:
    dead = ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock")
    look = without(look, "pod_resources")
    return evolve(look, sockets=Reading.of("plugins", sockets("gpu.sock", "nic.sock", dead=dead)))


def kubelet_cannot_start(look: Look) -> Look:
    return evolve(look, state_files=Reading.of("root", (StateFileSeen("cpu_manager_state", "it is not JSON"),)))


def kubelet_starting(look: Look) -> Look:
    return with_api(look, PodResourcesSeen("v1", allocatable={}))


def request_without_device(look: Look) -> Look:
    """The kubelet lists a running pod, but no source names the pod's devices."""
    lost = PodSeen(Pod(PodUid("uid-lost"), name="lost", containers=(Container("main", {NIC: 2}),)), "Running")
    look = with_pods(look, *pods_of(look), lost)
    seen = api_of(look)
    return with_api(look, evolve(seen, pods=seen.pods | {("default", "lost")}))


def driver_gone(look: Look) -> Look:
    """A driver has published a device, but none of the sockets can be the driver's."""
    gone = PublishedDeviceSeen("gone.other.org", "n1", "card-0")
    return evolve(look, slices=Reading.of("slices.json", (*(look.slices.value or ()), gone)))


def pod_does_not_end(look: Look) -> Look:
    """A pod that holds a plugin's device should have ended 200 s before the node was read."""
    late: dict[str, Any] = {"is_deleting": True, "ends_by": 1_000_000.0}
    seen = [evolve(one, **(late if one.pod.name == "serve" else {})) for one in pods_of(look)]
    return evolve(with_pods(look, *seen), taken=1_000_200.0)


def driver_silent(look: Look) -> Look:
    """A driver has published a device, but no longer answers."""
    hanging = PublishedDeviceSeen("hangs.other.org", "n1", "card-0")
    seen, path = look.sockets.value or SocketsSeen(), "plugins_registry/hangs.other.org-reg.sock"
    sockets = evolve(
        seen,
        registry=(*seen.registry, path.rpartition("/")[2]),
        served={**seen.served, path: True},
        silent={**seen.silent, path: "no answer to GetInfo within 5 s"},
    )
    look = evolve(look, sockets=Reading.of("device-plugins", sockets))
    return evolve(look, slices=Reading.of("slices.json", (*(look.slices.value or ()), hanging)))


def claim_not_prepared(look: Look) -> Look:
    entry, used = PodClaim("link", claim="wanted"), ContainerClaim("link")
    spec = Pod(PodUid("uid-waits"), name="waits", containers=(Container("main", claims=[used]),), claims=[entry])
    look = with_pods(look, *pods_of(look), PodSeen(spec, "Pending", is_acknowledged=True))
    seen = api_of(look)
    message = "Failed to prepare dynamic resources: NodePrepareResources failed for ResourceClaim wanted: out of links"
    event = EventSeen("default", "waits", "uid-waits", "FailedPrepareDynamicResources", message)
    look = with_api(look, evolve(seen, pods=seen.pods | {("default", "waits")}))
    return evolve(look, events=Reading.of("events.json", (event,)))


def claim_without_record(look: Look) -> Look:
    containers = (Container("main", claims=[ContainerClaim("link")]),)
    spec = Pod(PodUid("uid-forgot"), name="forgot", containers=containers, claims=[PodClaim("link", claim="lost")])
    seen = api_of(look)
    look = with_api(look, evolve(seen, pods=seen.pods | {("default", "forgot")}))
    return with_pods(look, *pods_of(look), PodSeen(spec, "Running", is_acknowledged=True))


def claim_taken_away(look: Look) -> Look:
    """The kubelet lists a device of a claim that has been deallocated on the API server."""
    seen = api_of(look)
    held = ClaimedDeviceSeen("default", "train", "main", "freed", "tpu.other.org", "n1", "tpu-9")
    look = with_api(look, evolve(seen, claimed=(*seen.claimed, held)))
    return evolve(
        look,
        allocations=Reading.of("claims.json", (*(look.allocations.value or ()), AllocatedClaimSeen("default/freed"))),
    )


def pod_cannot_end(look: Look) -> Look:
    look = driver_gone(look)
    prepared = PreparedDeviceSeen("default/card", "gone.other.org", "n1", "card-0")
    look = with_prepared(look, prepared, "uid-leaves")
    return with_pods(look, *pods_of(look), evolve(pod("leaves", "main"), is_deleting=True))


def claimed_unhealthy(look: Look) -> Look:
    look = with_prepared(look, PreparedDeviceSeen("default/link", *RDMA), "uid-serve")
    return evolve(look, health=Reading.of("dra_health_state", {RDMA: "Unhealthy"}))


def device_tainted(look: Look) -> Look:
    """The driver has tainted a device other than the prepared one."""
    sick = PublishedDeviceSeen(RDMA[0], RDMA[1], "rdma-5", taint="rdma.other.org/link=down:NoSchedule")
    return evolve(look, slices=Reading.of("slices.json", (*(look.slices.value or ()), sick)))


def two_claims(look: Look) -> Look:
    """Two schedulers have allocated the same device."""
    both = tuple(AllocatedClaimSeen(f"default/of-{one}", (RDMA,), ()) for one in ("one", "other"))
    return evolve(look, allocations=Reading.of("claims.json", (*(look.allocations.value or ()), *both)))


def slices_missing(look: Look) -> Look:
    """A driver has prepared a device for a pod, but the driver's slices were deleted."""
    key = ("tpu.other.org", "n1", "tpu-0")
    look = with_prepared(look, PreparedDeviceSeen("default/tpu", *key), "uid-serve")
    registry = ("rdma.other.org-reg.sock", "tpu.other.org-reg.sock")
    seen = sockets("gpu.sock", "nic.sock", registry=registry)
    remade = look.sockets.value.remade if look.sockets.value else frozenset()
    look = evolve(look, sockets=Reading.of("plugins", evolve(seen, remade=remade)))
    allocated = AllocatedClaimSeen("default/tpu", (key,), ("uid-serve",), nodes=("n1",))
    return evolve(look, allocations=Reading.of("resourceclaims.json", (*(look.allocations.value or ()), allocated)))


def checkpoint_unwritable(look: Look) -> Look:
    """The node's disk is full."""
    assert look.checkpoint.value is not None
    return evolve(
        look, checkpoint=evolve(look.checkpoint, value=evolve(look.checkpoint.value, unwritable="it is full"))
    )


def pods_not_taken(look: Look) -> Look:
    """A pod was bound to the node 200 s before the node was read, and the kubelet has not written the pod's status."""
    new = evolve(pod("new", "main", phase="Pending"), node=node_of(look).name, bound_at=1_000_000.0)
    return evolve(with_pods(look, *pods_of(look), new), taken=1_000_200.0)


def node_missing(look: Look) -> Look:
    """Someone has deleted the Node, but the kubelet keeps running."""
    return evolve(look, node=Reading("API server, node n1", problem=f"{NO_NODE}'n1' (nodes \"n1\" not found)"))


def node_closed(look: Look) -> Look:
    """Someone has cordoned the node."""
    return with_node(look, evolve(node_of(look), taints=(CORDONED,)))


def node_not_ready(look: Look) -> Look:
    """The container runtime is down, so the kubelet says that the Node is not Ready."""
    return with_node(look, evolve(node_of(look), ready="False", why_not_ready="KubeletNotReady: runtime is down"))


def held_not_published(look: Look) -> Look:
    """A pod holds a device that the driver now publishes under a different name."""
    assert look.slices.value is not None
    kept = tuple(one for one in look.slices.value if one.key != RDMA)
    look = with_prepared(look, PreparedDeviceSeen("default/link", *RDMA), "uid-serve")
    return evolve(look, slices=Reading.of("slices.json", (*kept, PublishedDeviceSeen(RDMA[0], RDMA[1], "rdma-1"))))


def plugin_gone(look: Look) -> Look:
    """A pod holds a device of a resource for which the kubelet has no healthy devices."""
    look = with_entries(look, ("uid-serve", "main", FPGA, {0: ("fpga-7",)}))
    look = with_holding(look, HoldingSeen("default", "serve", "main", FPGA, {"fpga-7": (0,)}))
    node = node_of(look)
    return with_node(look, evolve(node, capacity={**node.capacity, FPGA: 1}, allocatable={**node.allocatable, FPGA: 0}))


def unhealthy(look: Look) -> Look:
    """A plugin lists an unhealthy device that no container holds."""
    node = node_of(look)
    look = with_node(look, evolve(node, capacity={**node.capacity, GPU: 9}))
    kept = [one for one in plugins_of(look) if one.socket != "gpu.sock"]
    seen = _gpu_plugin(look)
    sick = Device(DeviceId("gpu-8"), Health.UNHEALTHY)
    return with_plugins(look, *kept, evolve(seen, devices=DeviceList.of([*(seen.devices or ()), sick])))


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
    """Make fewer NICs allocatable than the two in use, so that the Node also differs from what is registered."""
    node = node_of(look)
    return with_node(look, evolve(node, allocatable={**node.allocatable, NIC: 1}))


def node_status_differs(look: Look) -> Look:
    node = node_of(look)
    return with_node(look, evolve(node, allocatable={**node.allocatable, GPU: 7}))


def socket_without_resource(look: Look) -> Look:
    return with_plugins(look, *plugins_of(look), plugin("fpga.sock", ("fpga-0", "fpga-1")))


def resource_without_socket(look: Look) -> Look:
    look, seen = with_registered(look, "example.com/tpu", "tpu-0"), look.pod_resources.value
    if seen is not None:
        look = with_api(look, evolve(seen, allocatable={**(seen.allocatable or {}), "example.com/tpu": {"tpu-0": ()}}))
    node = node_of(look)
    more = {"example.com/tpu": 1}
    return with_node(look, evolve(node, capacity={**node.capacity, **more}, allocatable={**node.allocatable, **more}))


def plugin_silent(look: Look) -> Look:
    """A device plugin that the plugin watcher found does not answer."""
    dead = PluginSeen("dead.sock", "example.com/dead", problem="connection refused")
    return with_plugins(look, *plugins_of(look), dead)


def list_too_long(look: Look) -> Look:
    """The plugin watcher has found a plugin whose list is not read completely."""
    problem = f"{LIST_HAS} more than 1,000,000 devices"
    return with_plugins(look, *plugins_of(look), PluginSeen("long.sock", "example.com/long", problem=problem))


def plugin_restarts(look: Look) -> Look:
    """A plugin was restarted while the node was being read."""
    seen = look.sockets.value or SocketsSeen()
    return evolve(look, sockets=Reading.of("plugins", evolve(seen, remade=seen.remade | {"device-plugins/nic.sock"})))


def plugins_differ(look: Look) -> Look:
    """A second plugin for the NICs lists a different device."""
    other = evolve(plugin("other.sock", ("nic-9",)), resource=NIC)
    return with_plugins(look, *plugins_of(look), other)


def plugin_late(look: Look) -> Look:
    (slow, *others) = plugins_of(look)
    return with_plugins(look, evolve(slow, seconds=2.5), *others)


def plugin_empty(look: Look) -> Look:
    empty = evolve(plugin("empty.sock", ()), resource="example.com/empty")
    return with_plugins(look, *plugins_of(look), empty)


def receipt_unreadable(look: Look) -> Look:
    return with_receipt(look, receipt(problem="Error parsing message"))


def checkpoint_checksum(look: Look) -> Look:
    seen = file_of(look)
    bad = judge(encode(CheckpointData()).replace(b'Checksum":', b'Checksum":1'))
    return with_file(look, evolve(seen, verdict=evolve(bad, format=seen.verdict.format)))


def checkpoint_unreadable(look: Look) -> Look:
    return with_file(look, CheckpointSeen(judge(b"{")))


def checkpoint_old_format(look: Look) -> Look:
    seen = file_of(look)
    return with_file(look, evolve(seen, verdict=evolve(seen.verdict, format=1)))


def cdi_duplicate(look: Look) -> Look:
    return with_cdi_files(look, CdiSpec("/etc/cdi", "old.json", "example.com/nic", ("1",)))


def cdi_unresolvable(look: Look) -> Look:
    return with_receipt(look, receipt("example.com/nic=9"))


def list_near_limit(look: Look) -> Look:
    (large, *others) = plugins_of(look)
    return with_plugins(look, evolve(large, list_bytes=4_000_000), *others)


def sources_disagree(look: Look) -> Look:
    return with_holding(look, holding("serve", "main", GPU, "gpu-5"))


def many_numa_nodes(look: Look) -> Look:
    seen = api_of(look)
    allocatable = {**(seen.allocatable or {})}
    allocatable[GPU] = {**allocatable[GPU], "gpu-6": tuple(range(9))}
    return with_api(look, evolve(seen, allocatable=allocatable))


def pod_refused(look: Look) -> Look:
    message = (
        "Pod was rejected: Allocate failed due to no containers return in allocation response , which is unexpected"
    )
    refused = evolve(pod("refused", "main", phase="Failed"), said=("UnexpectedAdmissionError", message))
    return with_pods(look, *pods_of(look), refused)


def container_cannot_start(look: Look) -> Look:
    """A pod's status says that the container runtime does not know the pod's CDI device."""
    containers = (Container("main", claims=[ContainerClaim("c")]),)
    message = "CDI device injection failed: unresolvable CDI devices example.com/gpu=gone"
    spec = Pod(PodUid("uid-stuck"), name="stuck", claims=[PodClaim("c")], containers=containers)
    seen = PodSeen(spec, "Pending", is_acknowledged=True)
    return with_pods(look, *pods_of(look), evolve(seen, waiting={"main": ("CreateContainerError", message)}))


def resource_not_on_node(look: Look) -> Look:
    """The Node's status has lost the NICs, so the Node also differs from the kubelet's resources."""
    node = node_of(look)
    without_nics = {name: count for name, count in node.capacity.items() if name != NIC}
    return with_node(look, evolve(node, capacity=without_nics, allocatable=without_nics))


def list_differs(look: Look) -> Look:
    """The GPU plugin's stream hangs: the kubelet has not received the plugin's last list."""
    (first, *others) = plugins_of(look)
    assert first.devices is not None
    return with_plugins(look, evolve(first, devices=DeviceList.of([*first.devices][:-1])), *others)


def listed_twice(look: Look) -> Look:
    (first, second, *others) = plugins_of(look)
    assert second.devices is not None
    return with_plugins(
        look, first, evolve(second, devices=DeviceList.of([*second.devices, second.devices[0]])), *others
    )


def same_ids(look: Look) -> Look:
    """A second plugin offers the NICs under a different name."""
    other = evolve(plugin("again.sock", NICS), resource="example.com/nic-shared")
    return with_plugins(look, *plugins_of(look), other)


def numa_node_missing(look: Look) -> Look:
    return evolve(look, machine=MachineSeen(numa_nodes=(0,), policy="restricted"))


PLANTS: Mapping[str, Plant] = {one.code: globals()[one.code.replace("-", "_")] for one in CHECKS}
"""By finding code, the function in this module with the same name."""


def report_of(look: Look) -> NodeReport:
    """Return what `doctor` reports for this look."""
    facts = Facts(look)
    return report(facts, check(facts))
