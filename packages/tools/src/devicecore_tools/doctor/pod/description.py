"""Reads a node from a file: the output of `devicecore doctor --json`, or a few lines of YAML in the same form.

Law: a description is used completely, or refused with the name of the invalid field.
"""

from typing import TYPE_CHECKING, TypeVar

from attrs import evolve

from devicecore.domain.errors import InvalidResourceNameError
from devicecore.domain.ledger import Allocation
from devicecore.domain.model import (
    ContainerKey,
    Device,
    DeviceId,
    Health,
    NumaNode,
    PodUid,
    Receipt,
    ResourceName,
    resource_name,
)
from devicecore.domain.text import foreign_text
from devicecore.domain.topology import Policy, Scope
from devicecore_tools.doctor.look.topology_settings import TopologySettings
from devicecore_tools.doctor.pod.trial import CURES, TrialNode
from devicecore_tools.doctor.reading.large_documents import refuse_misspelled

if TYPE_CHECKING:
    from devicecore.domain.documents import Value

Choice = TypeVar("Choice", Policy, Scope)

_FIELDS = (
    "resource",
    "device",
    "pool",
    "numa_nodes",
    "health",
    "owner",
    "pod_uid",
    "container",
    "sources",
    "state",
    "note",
)
_OF_DOCUMENT = ("name", "devices", "findings", "topologyPolicy", "topologyScope", "numaNodes")
_HEALTH = (*(one.value for one in Health), "unknown")
_NO_OWNER = ("", "free", "none")


def described_node(document: "Value", topology: TopologySettings) -> TrialNode:
    """Return the node that a document describes. A device whose owner is `unknown` counts as held.

    If `doctor` has found a problem that keeps every pod from starting (`CURES`), the node admits no pod.

    Args:
        document: an object with `devices`, and optionally `name`, `topologyPolicy`, `topologyScope`, `numaNodes` and
            `findings`.
        topology: the defaults for missing fields. If no NUMA nodes are given, the devices' NUMA nodes are used.

    Raises:
        DocumentError: part of the document cannot be used.
    """
    devices: dict[ResourceName, dict[DeviceId, Device]] = {}
    held: dict[tuple[ContainerKey, ResourceName], dict[DeviceId, tuple[NumaNode, ...]]] = {}
    refuse_misspelled(document, _OF_DOCUMENT)
    free: set[tuple[ResourceName, DeviceId]] = set()
    for row in document["devices"].sequence():
        refuse_misspelled(row, _FIELDS)
        if row["pool"].text(""):
            continue  # a device of a DRA driver
        resource, device = _resource(row["resource"]), _device(row)
        devices.setdefault(resource, {})[device.id] = device
        owner = row["owner"].text("")
        if owner not in _NO_OWNER:
            uid = PodUid(row["pod_uid"].text("") or owner)
            key = ContainerKey(uid, row["container"].text("") or "?")
            held.setdefault((key, resource), {})[device.id] = device.topology or ()
        elif (resource, device.id) in free:
            row["device"].refuse(f"{resource} lists {foreign_text(device.id, 50)!r} twice; expected each device once")
        else:
            free.add((resource, device.id))
    numa_nodes = {
        node for of_resource in devices.values() for one in of_resource.values() for node in one.topology or ()
    }
    policy = _choice(document["topologyPolicy"], Policy, topology.policy)
    settings = evolve(topology, policy=policy, scope=_choice(document["topologyScope"], Scope, topology.scope))
    found = settings.on(_numa_nodes(document["numaNodes"]) or tuple(sorted(numa_nodes)) or (NumaNode(0),))
    allocations = [Allocation(key, resource, nodes, Receipt(b"")) for (key, resource), nodes in held.items()]
    lists = {resource: tuple(listed.values()) for resource, listed in devices.items()}
    wrong = {one["code"].text(""): one["sentence"].text("") for one in document["findings"].sequence()}
    name = document["name"].text("") or document.file
    stopped, restart = next(((wrong[code], cure) for code, cure in CURES.items() if code in wrong), ("", ""))
    return TrialNode(name, lists, allocations, topology=found, stopped=stopped, restart=restart)


def _resource(value: "Value") -> ResourceName:
    try:
        return resource_name(value.text())
    except InvalidResourceNameError as error:
        value.refuse(str(error), error)


def _device(row: "Value") -> Device:
    listed = row["numa_nodes"]
    text = row["health"].text(Health.HEALTHY.value)
    if text not in _HEALTH:
        row["health"].refuse(f"expected one of {', '.join(_HEALTH)}, got {foreign_text(text, 50)!r}")
    health = Health.parse(text)
    topology = None if listed.data is None else _numa_nodes(listed)
    return Device(DeviceId(row["device"].text()), health, topology)


def _numa_nodes(value: "Value") -> tuple[NumaNode, ...]:
    found = [one.integer() for one in value.sequence()]
    if min(found, default=0) < 0:
        value.refuse("expected numbers that are at least 0")
    return tuple(map(NumaNode, dict.fromkeys(found)))


def _choice(value: "Value", kind: type[Choice], default: Choice) -> Choice:
    text = value.text(default.value)
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(one.value for one in kind)
        value.refuse(f"expected one of {known}, got {text!r}")
