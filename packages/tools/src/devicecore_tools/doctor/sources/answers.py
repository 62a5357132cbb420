"""What a kubelet's pod-resources API answers, as one value, from messages or from JSON.

Law: the same answer gives the same value, whether it came over the socket or was saved as JSON, and back.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from devicecore.domain.errors import DocumentError
from devicecore.wire import podresources, podresources_v1alpha1
from devicecore_tools.doctor import ClaimedDeviceSeen, HoldingSeen, PodResourcesSeen, Reading
from devicecore_tools.doctor.sources.large_documents import read_document_file
from devicecore_tools.doctor.sources.names import ALLOCATABLE_NAME, LIST_NAME

Devices = dict[str, tuple[int, ...]]


def read_saved_pod_resources(directory: Path) -> Reading[PodResourcesSeen]:
    """The answers in the files of a directory; without the second file, the kubelet does not offer that call."""
    place = directory / LIST_NAME
    try:
        listed = ParseDict(_object(place), podresources.ListPodResourcesResponse())
        allocatable = None
        if (directory / ALLOCATABLE_NAME).exists():
            allocatable = ParseDict(_object(directory / ALLOCATABLE_NAME), podresources.AllocatableResourcesResponse())
    except (DocumentError, ParseError) as error:
        return Reading(str(place), problem=str(error))
    healthy = None if allocatable is None else by_resource(allocatable.devices)
    return Reading.of(str(place), seen_of("v1", listed, healthy))


def _object(path: Path) -> dict[str, Any]:
    data: Any = read_document_file(str(path)).data
    found: dict[str, Any] = data
    return found


def saved_pod_resources(seen: PodResourcesSeen) -> dict[str, Any]:
    """The documents of an answer, by the names of their files."""
    pods = {place: podresources.PodResources(namespace=place[0], name=place[1]) for place in sorted(seen.pods)}
    containers: dict[tuple[str, str, str], podresources.ContainerResources] = {}

    def container(namespace: str, pod: str, name: str) -> podresources.ContainerResources:
        if (namespace, pod, name) not in containers:
            containers[namespace, pod, name] = pods[namespace, pod].containers.add(name=name)
        return containers[namespace, pod, name]

    for one in seen.holdings:
        container(one.namespace, one.pod, one.container).devices.extend(_elements(one.resource, one.devices))
    for claimed in seen.claimed:
        resources = container(claimed.namespace, claimed.pod, claimed.container).dynamic_resources
        of = next((have for have in resources if have.claim_name == claimed.claim), None)
        if of is None:
            of = resources.add(claim_name=claimed.claim, claim_namespace=claimed.namespace)
        device = of.claim_resources.add(
            driver_name=claimed.driver, pool_name=claimed.pool, device_name=claimed.device, share_id=claimed.share_id
        )
        for name in claimed.cdi_devices:
            device.cdi_devices.add(name=name)
    listed = podresources.ListPodResourcesResponse(pod_resources=pods.values())
    documents = {LIST_NAME: MessageToDict(listed, preserving_proto_field_name=True)}
    if seen.allocatable is not None:
        elements = [one for name, devices in seen.allocatable.items() for one in _elements(name, devices)]
        answer = podresources.AllocatableResourcesResponse(devices=elements)
        documents[ALLOCATABLE_NAME] = MessageToDict(answer, preserving_proto_field_name=True)
    return documents


def _elements(resource: str, devices: Mapping[str, tuple[int, ...]]) -> Iterator[podresources.ContainerDevices]:
    for device, numa_nodes in devices.items():
        nodes = [podresources.NUMANode(ID=node) for node in numa_nodes]
        topology = podresources.TopologyInfo(nodes=nodes) if nodes else None
        yield podresources.ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)


def seen_of(
    version: str,
    listed: podresources.ListPodResourcesResponse | podresources_v1alpha1.ListPodResourcesResponse,
    allocatable: dict[str, Devices] | None,
) -> PodResourcesSeen:
    """What these answers say. `allocatable` is None if the kubelet does not offer that call."""
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
    """The devices of claims. A kubelet may list a device's CDI names with later devices too (kubelet-dra.md 12)."""
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
    """The devices of each resource; a device on two NUMA nodes comes in two elements (kubelet.md 10.2)."""
    found: dict[str, Devices] = {}
    for element in elements:
        numa_nodes: tuple[int, ...] = ()
        if isinstance(element, podresources.ContainerDevices):
            numa_nodes = tuple([node.ID for node in element.topology.nodes])
        devices = found.setdefault(element.resource_name, {})
        for device in element.device_ids:
            before = devices.get(device)
            devices[device] = (*before, *numa_nodes) if before else numa_nodes
    return found
