"""Converts the answers of a kubelet's pod-resources API, as messages or as JSON, to one value.

Law: the same answer gives the same value, whether it came over the socket or was saved as JSON and read back.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from devicecore.domain.documents import Value, described
from devicecore.domain.errors import DocumentError
from devicecore.wire import podresources, podresources_v1alpha1
from devicecore_tools.doctor.look.values import (
    ALLOCATABLE_NAME,
    LIST_NAME,
    ClaimedDeviceSeen,
    HoldingSeen,
    PodResourcesSeen,
    Reading,
)
from devicecore_tools.doctor.reading.large_documents import read_document_file

_MAX_DIGITS = 19

Devices = dict[str, tuple[int, ...]]
Element = tuple[str, Iterable[str], tuple[int, ...]]  # a resource, device ids, and the devices' NUMA nodes


def read_saved_pod_resources(directory: Path) -> Reading[PodResourcesSeen]:
    """Return the answers saved in a directory.

    Without a file named `ALLOCATABLE_NAME`, the allocatable devices are unknown.
    """
    place = directory / LIST_NAME
    try:
        pods = _answer(place, "pod_resources").sequence()
        holdings, claimed = [], []
        for pod in pods:
            names = pod["namespace"].text(""), pod["name"].text("")
            for container in pod["containers"].sequence():
                of = (*names, container["name"].text(""))
                devices = _grouped(_elements_in(container["devices"]))
                holdings += [HoldingSeen(*of, resource, ids) for resource, ids in devices.items()]
                claimed += [
                    one for claim in container["dynamic_resources"].sequence() for one in _claimed_in(of, claim)
                ]
        allocatable = None
        if (directory / ALLOCATABLE_NAME).exists():
            allocatable = _grouped(_elements_in(_answer(directory / ALLOCATABLE_NAME, "devices", "cpu_ids", "memory")))
    except DocumentError as error:
        return Reading(str(place), problem=str(error))
    listed = frozenset((pod["namespace"].text(""), pod["name"].text("")) for pod in pods)
    notes = () if allocatable is not None else (f"there is no file {ALLOCATABLE_NAME}",)
    return Reading.of(str(place), PodResourcesSeen("v1", listed, tuple(holdings), allocatable, tuple(claimed)), notes)


def _answer(place: Path, wanted: str, *others: str) -> Value:
    """Return a field of a saved answer. The file may use the names of protobuf's JSON (`podResources`).

    Raises DocumentError if the document contains other fields. Such a document is not a kubelet's answer, and must not
    be mistaken for an empty answer.
    """
    document, known = read_document_file(str(place)), {wanted, *others}
    devices = document["devices"].data
    first = devices[0] if isinstance(devices, list) and devices else None
    if not document.mapping().keys() <= known or (isinstance(first, dict) and "resourceName" in first):
        document = Value(_named_as_in_proto(document.data), document.file)
    if unknown := [name for name in document.mapping() if name not in known]:
        problem = f"expected a kubelet's answer with {wanted}, got {described(unknown[0])}"
        document[wanted].refuse(problem)
    return document[wanted]


def _named_as_in_proto(data: Any, depth: int = 12) -> Any:  # noqa: ANN401 - JSON has no better type
    """Return JSON with its names as in the .proto file (`pod_resources`), down to a depth that no answer reaches."""
    if isinstance(data, list) and depth:
        return [_named_as_in_proto(one, depth - 1) for one in data]
    if not isinstance(data, dict) or not depth:
        return data
    names = {name: re.sub("(?<=[a-z])[A-Z]", lambda found: f"_{found[0].lower()}", name) for name in data}
    return {names[name]: _named_as_in_proto(one, depth - 1) for name, one in data.items()}


def _elements_in(devices: Value) -> Iterator[Element]:
    """Yield the elements of a list of devices.

    `Value` is not used for elements in the form that kubelets write, because 100,000 of them would take too long.
    """
    for number, one in enumerate(devices.data if isinstance(devices.data, list) else devices.sequence()):
        try:
            resource, ids = one["resource_name"], one["device_ids"]
            numa_nodes = _NUMA_NODES[*[node["ID"] for node in one["topology"]["nodes"]]] if "topology" in one else ()
            is_usual = type(resource) is str and type(ids) is list and len(ids) == 1 and type(ids[0]) is str and ids[0]
        except (LookupError, TypeError):
            is_usual = False
        yield (resource, ids, numa_nodes) if is_usual else _element(Value(one, devices, number))


_NUMA_NODES = {(str(number),): (number,) for number in range(1024)} | {(): ()}


def _element(one: Value) -> Element:
    numbers = [_number(node["ID"]) for node in one["topology"]["nodes"].sequence()]
    return one["resource_name"].text(""), [device.text() for device in one["device_ids"].sequence()], tuple(numbers)


def _number(value: Value) -> int:
    """Return a 64-bit number. In protobuf's JSON, it is a string, and is omitted if it is 0."""
    if isinstance(value.data, str) and value.data.isdecimal() and len(value.data) <= _MAX_DIGITS:
        return int(value.data)
    return 0 if value.data is None else value.integer()


def _claimed_in(of: tuple[str, str, str], claim: Value) -> Iterator[ClaimedDeviceSeen]:
    for device in claim["claim_resources"].sequence():
        key = device["driver_name"].text(""), device["pool_name"].text(""), device["device_name"].text("")
        names = tuple(one["name"].text("") for one in device["cdi_devices"].sequence())
        share_id = device["share_id"].text("") or None
        yield ClaimedDeviceSeen(*of, claim["claim_name"].text(""), *key, share_id, names)


def saved_pod_resources(seen: PodResourcesSeen) -> dict[str, object]:
    """Return the documents in which an answer is saved, by file name."""
    containers: dict[tuple[str, str], dict[str, dict[str, Any]]] = {place: {} for place in sorted(seen.pods)}
    for one in seen.holdings:
        found = containers[one.namespace, one.pod].setdefault(one.container, {"name": one.container})
        found.setdefault("devices", []).extend(_saved(one.resource, one.devices))
    for claimed in seen.claimed:
        found = containers[claimed.namespace, claimed.pod].setdefault(claimed.container, {"name": claimed.container})
        claim = {"claim_name": claimed.claim, "claim_namespace": claimed.namespace}
        device = {"driver_name": claimed.driver, "pool_name": claimed.pool, "device_name": claimed.device}
        share = {"share_id": claimed.share_id} if claimed.share_id else {}
        cdi = {"cdi_devices": [{"name": name} for name in claimed.cdi_devices]}
        found.setdefault("dynamic_resources", []).append({**claim, "claim_resources": [{**cdi, **device, **share}]})
    pods = [
        {"namespace": namespace, "name": name, "containers": [*of.values()]}
        for (namespace, name), of in containers.items()
    ]
    documents: dict[str, object] = {LIST_NAME: {"pod_resources": pods}}
    if seen.allocatable is not None:
        elements = [one for name, devices in seen.allocatable.items() for one in _saved(name, devices)]
        documents[ALLOCATABLE_NAME] = {"devices": elements}
    return documents


def _saved(resource: str, devices: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, object]]:
    for device, numa_nodes in devices.items():
        nodes = {"topology": {"nodes": [{"ID": str(node)} for node in numa_nodes]}} if numa_nodes else {}
        yield {"resource_name": resource, "device_ids": [device], **nodes}


def seen_of(
    version: str,
    listed: podresources.ListPodResourcesResponse | podresources_v1alpha1.ListPodResourcesResponse,
    allocatable: dict[str, Devices] | None,
) -> PodResourcesSeen:
    """Return the contents of the two answers from the pod-resources API.

    `allocatable` is None if the kubelet does not offer GetAllocatableResources.
    """
    holdings = [
        HoldingSeen(pod.namespace, pod.name, container.name, resource, devices)
        for pod in listed.pod_resources
        for container in pod.containers
        for resource, devices in by_resource(container.devices).items()
    ]
    pods = frozenset((pod.namespace, pod.name) for pod in listed.pod_resources)
    claimed = _claimed(listed) if isinstance(listed, podresources.ListPodResourcesResponse) else ()
    return PodResourcesSeen(version, pods, tuple(holdings), allocatable, claimed)


def _claimed(listed: podresources.ListPodResourcesResponse) -> tuple[ClaimedDeviceSeen, ...]:
    """Return the devices of claims. Later devices may repeat a device's CDI names (kubelet-dra.md 12)."""
    return tuple(
        ClaimedDeviceSeen(
            pod.namespace,
            pod.name,
            container.name,
            claim.claim_name,
            device.driver_name,
            device.pool_name,
            device.device_name,
            device.share_id if device.HasField("share_id") else None,
            tuple(one.name for one in device.cdi_devices),
        )
        for pod in listed.pod_resources
        for container in pod.containers
        for claim in container.dynamic_resources
        for device in claim.claim_resources
    )


def by_resource(
    elements: Iterable[podresources.ContainerDevices] | Iterable[podresources_v1alpha1.ContainerDevices],
) -> dict[str, Devices]:
    """Return the devices of each resource."""
    return _grouped(
        (
            one.resource_name,
            one.device_ids,
            tuple([node.ID for node in one.topology.nodes]) if isinstance(one, podresources.ContainerDevices) else (),
        )
        for one in elements
    )


def _grouped(elements: Iterable[Element]) -> dict[str, Devices]:
    """Return the devices of each resource. A device on two NUMA nodes is in two elements (kubelet.md 10.2)."""
    found: dict[str, Devices] = {}
    for resource, ids, numa_nodes in elements:
        devices = found.setdefault(resource, {})
        for device in ids:
            before = devices.get(device)
            devices[device] = (*before, *numa_nodes) if before else numa_nodes
    return found
