"""A program as a user would write it.

The program is never run: `make types` checks it with mypy --strict and with pyright.
"""

from collections.abc import Sequence
from typing import assert_type

from devicecore import (
    Admitted,
    Allocated,
    Allocation,
    Container,
    ContainerAllocateResponse,
    ContainerOptions,
    Device,
    DeviceCoreError,
    DeviceId,
    DeviceManager,
    DevicePlugin,
    DeviceSet,
    Health,
    HealthChanged,
    NodeState,
    NodeStatus,
    Notification,
    NotReady,
    NumaNode,
    Pod,
    PodUid,
    Policy,
    Refused,
    Released,
    ResourceName,
    Restored,
    StoreError,
    Topology,
    Verdict,
    resource_name,
)
from devicecore.adapters.file import FileStore
from devicecore.adapters.memory import MemorySink, MemoryTransport

GPU = resource_name("example.com/gpu")


class Gpus(DevicePlugin):
    resource = GPU

    def devices(self) -> Sequence[Device]:
        return [Device(DeviceId("gpu-0")), Device(DeviceId("gpu-1"), "Unhealthy", [NumaNode(0)])]

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        return ContainerAllocateResponse(envs={"GPUS": ",".join(devices)})

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> Sequence[DeviceId]:
        return [*must_include, *available][:size]


def observe(notification: Notification) -> None:
    match notification:
        case Allocated(pod, allocation) | Released(pod, allocation):
            assert_type(pod, PodUid)
            assert_type(allocation, Allocation)
        case HealthChanged(resource, device, health, pods):
            assert_type((resource, device), tuple[ResourceName, DeviceId])
            assert_type((health, pods), tuple[Health, tuple[PodUid, ...]])


def devices_of(verdict: Verdict) -> dict[ResourceName, DeviceSet]:
    if verdict:
        assert_type(verdict, Admitted)
        return verdict.devices("main")
    match verdict:
        case Refused(error, container):
            assert_type(container, str | None)
            raise error
        case NotReady(error, resource):
            assert_type(resource, ResourceName)
            raise error


def main() -> None:
    transport, topology = MemoryTransport(), Topology((NumaNode(0), NumaNode(1)), Policy.BEST_EFFORT)
    pod = Pod(PodUid("p"), name="train", containers=[Container("main", {GPU: 1, "cpu": 2})])
    try:
        with DeviceManager(
            transport, FileStore("state"), MemorySink(), topology=topology, observers=[observe]
        ) as manager:
            transport.connect(Gpus())
            assert_type(manager.restored, Restored)
            for resource, devices in devices_of(manager.admit(pod)).items():
                assert_type((resource, devices), tuple[ResourceName, DeviceSet])
                print(f"{resource}: {', '.join(devices)}, {len(devices & {DeviceId('gpu-0')})} shared")
            assert_type(manager.start_container(pod, "main"), ContainerOptions | None)
            assert_type(manager.tick(), NodeStatus)
            assert_type(manager.state, NodeState)
            for allocation in manager.state.ledger.of_pod(pod.uid):
                assert_type(allocation, Allocation)
            manager.evict([pod.uid])
    except StoreError as error:
        print(error.action, error.cause)
    except DeviceCoreError as error:
        print(error)
