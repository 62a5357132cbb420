"""The names of the services and the answers to their methods, computed from a snapshot.

Laws: the devices in `List` and `Get` come from the ledger and the claims alone, with one element for each device and
each NUMA node that the device was on (kubelet.md 10.2, kubelet-dra.md 12). The devices in `GetAllocatableResources`
come from the plugins' newest reports alone.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from attrs import frozen

from devicecore.domain.model import Container, NumaNode, Pod
from devicecore.domain.node_state import NodeState
from devicecore.system.arguments import checks_arguments, checks_fields
from devicecore.wire import podresources, podresources_v1alpha1

SERVICE_V1 = "v1.PodResourcesLister"
SERVICE_V1ALPHA1 = "v1alpha1.PodResourcesLister"


Claims = Callable[[Pod, Container], Sequence[podresources.DynamicResource]]
"""Returns the claims of a container, as `claims.to_dynamic_resources` creates them."""


def no_claims(_pod: Pod, _container: Container) -> Sequence[podresources.DynamicResource]:
    """Return no claims, as on a node without dynamic resource allocation."""
    return ()


@checks_fields
@frozen
class MemoryBlock:
    """Bytes of memory or of huge pages on a group of NUMA nodes."""

    type: str
    size: int
    numa_nodes: tuple[int, ...]


class PinnedResources(Protocol):
    """What the CPU and memory managers have allocated to containers, and what is available."""

    def cpus(self, pod: Pod, container: Container) -> Sequence[int]:
        """Return the exclusive CPUs of a container."""

    def memory(self, pod: Pod, container: Container) -> Sequence[MemoryBlock]:
        """Return the memory of a container."""

    @property
    def allocatable_cpus(self) -> Sequence[int]:
        """All CPUs that can become exclusive."""

    @property
    def allocatable_memory(self) -> Sequence[MemoryBlock]:
        """All memory that containers can have, by NUMA node."""


@checks_fields
@frozen
class Snapshot:
    """The data from which answers are computed: the state of all devices, the active pods in order, and the claims.

    `pinned` provides exclusive CPUs and NUMA-local memory; without `pinned`, containers have neither.
    """

    state: NodeState
    pods: Sequence[Pod]
    claims: Claims = no_claims
    pinned: PinnedResources | None = None


@checks_arguments()
def list_pods(snapshot: Snapshot) -> podresources.ListPodResourcesResponse:
    """Return every active pod, with the devices of its containers (kubelet: `List`)."""
    return podresources.ListPodResourcesResponse(pod_resources=[_pod(snapshot, pod) for pod in snapshot.pods])


@checks_arguments()
def get_pod(snapshot: Snapshot, name: str, namespace: str) -> podresources.GetPodResourcesResponse | None:
    """Return the active pod with this name and namespace, or None (kubelet: `Get`)."""
    for pod in snapshot.pods:
        if (pod.name, pod.namespace) == (name, namespace):
            return podresources.GetPodResourcesResponse(pod_resources=_pod(snapshot, pod))
    return None


@checks_arguments()
def allocatable_resources(snapshot: Snapshot) -> podresources.AllocatableResourcesResponse:
    """Return all healthy devices, and all allocatable CPUs and memory, whether held or not.

    Kubelet: `GetAllocatableResources`.
    """
    elements = [
        element
        for name, resource in sorted(snapshot.state.inventory.resources.items())
        if resource.report is not None
        for device in resource.report.healthy
        # A topology without nodes yields no element at all, whereas a missing topology yields one.
        for element in _elements(name, device, resource.report.devices[device].topology)
    ]
    pinned = snapshot.pinned
    return podresources.AllocatableResourcesResponse(
        devices=elements,
        cpu_ids=pinned.allocatable_cpus if pinned is not None else (),
        memory=map(_memory, pinned.allocatable_memory if pinned is not None else ()),
    )


@checks_arguments()
def list_pods_v1alpha1(snapshot: Snapshot) -> podresources_v1alpha1.ListPodResourcesResponse:
    """Return every active pod in the older API, which has no NUMA nodes and no sidecars."""
    pods = [
        podresources_v1alpha1.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                podresources_v1alpha1.ContainerResources(
                    name=container.name,
                    devices=[
                        podresources_v1alpha1.ContainerDevices(
                            resource_name=devices.resource_name, device_ids=devices.device_ids
                        )
                        for devices in _devices(snapshot.state, pod, container)
                    ],
                )
                for container in pod.containers
            ],
        )
        for pod in snapshot.pods
    ]
    return podresources_v1alpha1.ListPodResourcesResponse(pod_resources=pods)


def _pod(snapshot: Snapshot, pod: Pod) -> podresources.PodResources:
    return podresources.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            podresources.ContainerResources(
                name=container.name,
                devices=_devices(snapshot.state, pod, container),
                cpu_ids=snapshot.pinned.cpus(pod, container) if snapshot.pinned is not None else (),
                memory=map(_memory, snapshot.pinned.memory(pod, container) if snapshot.pinned is not None else ()),
                dynamic_resources=snapshot.claims(pod, container),
            )
            for container in pod.in_start_order
            if not pod.is_reusable(container)  # an ordinary init container is never listed, but a sidecar is
        ],
    )


def _memory(block: MemoryBlock) -> podresources.ContainerMemory:
    nodes = [podresources.NUMANode(ID=numa_node) for numa_node in block.numa_nodes]
    topology = podresources.TopologyInfo(nodes=nodes)
    return podresources.ContainerMemory(memory_type=block.type, size=block.size, topology=topology)


def _devices(state: NodeState, pod: Pod, container: Container) -> list[podresources.ContainerDevices]:
    allocations = sorted(state.ledger.of_container(pod.key(container)), key=lambda allocation: allocation.resource)
    return [
        element
        for allocation in allocations
        for device in allocation.devices
        # A device that is stored under no NUMA node (key -1) has no topology.
        for element in _elements(allocation.resource, device, allocation.numa_nodes[device] or None)
    ]


def _elements(
    resource: str, device: str, topology: tuple[NumaNode, ...] | None
) -> Iterator[podresources.ContainerDevices]:
    if topology is None:
        yield podresources.ContainerDevices(resource_name=resource, device_ids=[device])
        return
    for numa_node in topology:
        numa = podresources.TopologyInfo(nodes=[podresources.NUMANode(ID=numa_node)])
        yield podresources.ContainerDevices(resource_name=resource, device_ids=[device], topology=numa)
