"""The Node, as a kubelet creates and changes it.

Law: a Node that is already as desired is patched only if its conditions have not been reported for as long as
`heartbeat` says. Anything that others have written, such as taints, labels and conditions, is kept.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import NAMESPACE_DNS, uuid5

from attrs import field, frozen

from devicecore.domain.capacity import NodeStatus
from devicecore.domain.quantity import Quantity
from devicecore_fleet.cluster.words.patches import Json, difference, with_transitions, written

CLOSED_PORT = 1
"""The kubelet port on a Node, where nothing listens. 0 would mean 10250, where this machine's kubelet may listen."""

HEARTBEAT = timedelta(minutes=5)
"""How often the conditions are reported if nothing changes."""

NEVER = datetime.max.replace(tzinfo=UTC)
"""When the conditions of a node without a heartbeat are next reported: practically never."""

LABEL = "devicecore.io/fleet"
"""The label of every Node that a fleet created. Pods whose containers have to run can avoid Nodes with this label."""

HOST_NAME = "kubernetes.io/hostname"
"""The label whose value is the Node's name. A label selector can list several of these names."""

ANNOTATION = ("devicecore.io/containers", "none")
"""The annotation that tells tools that no containers are run on the Node."""

_WELL = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}
_NO_DEVICES = NodeStatus()
_NO_CONTAINERS = "devicecore allocates devices on this node and reports pods, but runs no containers"
_INFO: Mapping[str, str] = {
    **dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "kubeProxyVersion"), ""),
    "osImage": "devicecore",
    "containerRuntimeVersion": "none://0",
    "kubeletVersion": "v1.37.2-devicecore",  # clients parse the kubelet's version
    "operatingSystem": "linux",
    "architecture": "amd64",
}


@frozen
class NodeDescription:
    """The description of a node.

    Attributes:
        name: the name of the Node.
        capacity: the node's capacity, not including devices, such as `cpu`, `memory` and `pods`, as quantities.
        allocatable: how much of a resource pods may use, for resources where that is less than the capacity.
        labels: additional labels.
        host_ips: the node's addresses.
        taints: taints of a new Node.
        info: fields of `nodeInfo`.
        problem: why the node is not ready, or an empty string.
        adopts: whether to take over a Node or Lease that devicecore did not create.
        annotations: additional annotations.
        provider_id: the id under which a cloud controller or an autoscaler knows the node, or an empty string.
    """

    name: str
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str] = field(factory=dict)
    labels: Mapping[str, str] = field(factory=dict)
    host_ips: tuple[str, ...] = ()
    taints: tuple[Mapping[str, str], ...] = ()
    info: Mapping[str, str] = field(factory=dict)
    problem: str = ""
    adopts: bool = False
    annotations: Mapping[str, str] = field(factory=dict)
    provider_id: str = ""


def machine_info(node: str) -> dict[str, str]:
    """Return machine ids for the `nodeInfo` of a virtual node. For a given node name, the ids are always the same."""
    machine = uuid5(NAMESPACE_DNS, node)
    return {"machineID": machine.hex, "systemUUID": str(machine)}


def node_object(node: NodeDescription, now: datetime, devices: NodeStatus = _NO_DEVICES) -> Json:
    """Return the Node to create, with its devices if any are known, as in a kubelet."""
    arch, system = node.info.get("architecture", "amd64"), node.info.get("operatingSystem", "linux")
    labels = {
        f"{prefix}kubernetes.io/{name}": value
        for prefix in ("", "beta.")
        for name, value in (("arch", arch), ("os", system))
    }
    wanted = node_status(node, devices)
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": node.name,
            "labels": {**labels, HOST_NAME: node.name, **node.labels},
            "annotations": {**node.annotations, **dict([ANNOTATION])},
        },
        "spec": {
            **({"providerID": node.provider_id} if node.provider_id else {}),
            **({"taints": [dict(taint) for taint in node.taints]} if node.taints else {}),
        },
        "status": {**wanted, "conditions": _at(with_transitions((), wanted["conditions"], now), now)},
    }


def foreign_node(found: Json, node: NodeDescription) -> str:
    """Return what shows that a Node was not created by devicecore (or a fleet), or an empty string if it was."""
    metadata, (key, value) = found["metadata"], ANNOTATION
    if (metadata.get("annotations") or {}).get(key) != value:
        return f"it has no annotation {key}={value}"
    if LABEL in node.labels and LABEL not in (metadata.get("labels") or {}):
        return f"it has no label {LABEL}"
    return ""


def node_status(node: NodeDescription, devices: NodeStatus = _NO_DEVICES) -> Json:
    """Return the fields of the Node's status that a kubelet owns, without the times of conditions."""
    pages = {"hugepages-1Gi": "0", "hugepages-2Mi": "0"}
    counts = devices.capacity, devices.allocatable
    capacity, allocatable = ({str(name): str(count) for name, count in one.items()} for one in counts)
    status: Json = {
        "capacity": _canonical({**pages, **node.capacity, **capacity}),
        "allocatable": _canonical({**pages, **node.capacity, **node.allocatable, **allocatable}),
        "conditions": _conditions(node),
        "nodeInfo": {**_INFO, **node.info},
        "daemonEndpoints": {"kubeletEndpoint": {"Port": CLOSED_PORT}},
        "addresses": [
            *({"type": "InternalIP", "address": address} for address in node.host_ips),
            {"type": "Hostname", "address": node.name},
        ],
    }
    return status


def node_patch(node: Json, wanted: Json, now: datetime, heartbeat: timedelta | None = HEARTBEAT) -> Json | None:
    """Return the patch for `nodes/status` that turns the Node's status into `wanted`, or None if no patch is due.

    If anything else changes, the heartbeats of all conditions are renewed, as in a kubelet. Otherwise, the heartbeats
    are renewed when the oldest is older than `heartbeat`, or never if `heartbeat` is None. Addresses of types that
    devicecore does not write stay.
    """
    before = node.get("status") or {}
    sizes = {part: {**(before.get(part) or {}), **wanted[part]} for part in ("capacity", "allocatable")}
    wanted = {**wanted, **sizes}  # other writers may have added their own resources
    kinds = {one["type"] for one in wanted["addresses"]}
    kept = [one for one in before.get("addresses") or () if one["type"] not in kinds]
    wanted["addresses"] = [*wanted["addresses"], *kept]
    old = before.get("conditions") or []
    ours = {one["type"] for one in wanted["conditions"]}
    others = [one for one in old if one["type"] not in ours]
    conditions = with_transitions(old, wanted["conditions"], now)
    beats = {one["type"]: one.get("lastHeartbeatTime") for one in old}
    same = [{**one, "lastHeartbeatTime": beats.get(one["type"])} for one in conditions]
    is_same = not difference(before, {**wanted, "conditions": [*others, *same]})
    oldest = min((beats.get(kind) or "" for kind in ours), default="")
    if is_same and (heartbeat is None or oldest > written(now - heartbeat)):
        return None
    patch = difference(before, {**wanted, "conditions": [*others, *_at(conditions, now)]})
    if patch.pop("$setElementOrder/addresses", None):  # types may repeat, so all addresses are replaced together
        patch["addresses"] = [*wanted["addresses"], {"$patch": "replace"}]
    return {"status": patch} if patch else None


def next_report(node: Json, wanted: Json, heartbeat: timedelta | None) -> datetime | None:
    """Return the time at which `node_patch` has something to do even if nothing changes, or None if unknown."""
    if heartbeat is None:
        return NEVER
    beats = {one["type"]: one.get("lastHeartbeatTime") for one in (node.get("status") or {}).get("conditions") or []}
    try:
        return min(datetime.fromisoformat(beats[one["type"]]) for one in wanted["conditions"]) + heartbeat
    except (KeyError, TypeError, ValueError):  # a condition or its time is missing
        return None


def _canonical(sizes: Mapping[str, str]) -> dict[str, str]:
    """Return the quantities as an API server writes them, so that they can be compared with those on the server."""
    return {name: str(Quantity.parse(size)) for name, size in sizes.items()}


def _conditions(node: NodeDescription) -> list[Json]:
    found = [_condition(kind, "False", *words) for kind, words in _WELL.items()]
    if node.problem:
        found.append(_condition("Ready", "False", "KubeletNotReady", node.problem))
    else:
        found.append(_condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"))
    return [*found, _condition("ContainersRun", "False", "NoContainerRuntime", _NO_CONTAINERS)]


def _condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _at(conditions: list[Json], now: datetime) -> list[Json]:
    return [{**one, "lastHeartbeatTime": written(now)} for one in conditions]
