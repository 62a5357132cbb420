"""What a kubelet's pod-resources API says about devices, as one value.

Law: the result is a `Reading` for any answer of the process at the socket.
"""

from collections.abc import Iterable

from devicecore.adapters.pod_resources.client import PodResourcesClient, PodResourcesError
from devicecore.domain.text import foreign_text
from devicecore.system.sockets import is_served, socket_identity
from devicecore.wire import podresources, podresources_v1alpha1
from devicecore_tools.doctor import ClaimedDeviceSeen, HoldingSeen, PodResourcesSeen, Reading

_NOT_OFFERED = "UNIMPLEMENTED"
_MAX_CAUSE = 300

Devices = dict[str, tuple[int, ...]]


def read_pod_resources(socket: str, timeout: float = 10.0) -> Reading[PodResourcesSeen]:
    """Ask the kubelet at `socket`: v1, or v1alpha1 if it has no v1. `timeout` is in seconds, for each call."""
    if socket_identity(socket) is None:
        return Reading(socket, problem="there is no socket")
    try:
        if not is_served(socket):
            return Reading(socket, problem="no process listens at the socket")
        with PodResourcesClient(socket, timeout=timeout) as client:
            return Reading.of(socket, _ask(client))
    except OSError as error:
        return Reading(socket, problem=error.strerror or str(error))
    except PodResourcesError as error:
        cause = foreign_text(error.cause, _MAX_CAUSE)
        return Reading(socket, problem=f"{error.method} failed with {error.code}: {cause}")


def _ask(client: PodResourcesClient) -> PodResourcesSeen:
    try:
        listed = client.list()
    except PodResourcesError as error:
        if error.code != _NOT_OFFERED:
            raise
        return seen_of("v1alpha1", client.list_v1alpha1(), None)
    try:
        devices = client.get_allocatable_resources().devices
    except PodResourcesError as error:
        if error.code != _NOT_OFFERED:  # before Kubernetes 1.23 it is behind a gate
            raise
        return seen_of("v1", listed, None)
    return seen_of("v1", listed, by_resource(devices))


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
