"""The workload: P pods with one container and one device each, D devices on two NUMA nodes, answers of 71 bytes."""

import random
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import define, frozen

from devicecore import (
    Admitted,
    Container,
    ContainerAllocateResponse,
    ContainerKey,
    Device,
    DeviceId,
    DeviceManager,
    DevicePlugin,
    DeviceSpec,
    Health,
    NodeStatus,
    NumaNode,
    Pod,
    PodUid,
    Topology,
    resource_name,
)
from devicecore.adapters.file import FileStore
from devicecore.adapters.grpc_unix import GrpcUnixTransport
from devicecore.adapters.memory import MemorySink, MemoryTransport
from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode
from devicecore.domain.model import PluginId, Receipt
from devicecore.wire.conversion import from_response, to_receipt

RESOURCE = resource_name("example.com/dev")
CONTAINER = "c0"
ANSWER = ContainerAllocateResponse(
    envs={"EXAMPLE_COM_DEV": "dev-000000"}, devices=(DeviceSpec("/dev/device-000", "/dev/device-000", "rw"),)
)
MESSAGE = from_response(ANSWER)
RECEIPT = to_receipt(MESSAGE)
assert len(RECEIPT) == 71, len(RECEIPT)
FAST_DISK = Path("/dev/shm")  # noqa: S108 - Kubernetes' figures were measured on a tmpfs


@frozen
class Size:
    """The size of a workload: how many pods and how many devices."""

    pods: int
    devices: int

    def __str__(self) -> str:
        return f"{self.pods:,} / {self.devices:,}"


def device(number: int, health: Health = Health.HEALTHY, nodes: int = 2) -> Device:
    """Return the device with this number."""
    return Device(DeviceId(f"dev-{number:06d}"), health, (NumaNode(number % nodes),))


def devices(count: int, nodes: int = 2) -> tuple[Device, ...]:
    """Return all devices, alternating between the NUMA nodes."""
    return tuple(device(number, nodes=nodes) for number in range(count))


def pod(number: int) -> Pod:
    """Return the pod with this number: one container that requests one device."""
    uid = PodUid(f"{number:08x}-6b1f-4a5e-9c3d-2f8e7a901b4c")
    return Pod(uid, containers=(Container(CONTAINER, {RESOURCE: 1}),))


def checkpoint(size: Size) -> CheckpointData:
    """Return the saved state of a node on which each pod has a device."""
    entries = tuple(
        PodDevicesEntry(pod(number).uid, CONTAINER, RESOURCE, {number % 2: (f"dev-{number:06d}",)}, bytes(RECEIPT))
        for number in range(size.pods)
    )
    return CheckpointData(entries, {RESOURCE: tuple(f"dev-{number:06d}" for number in range(size.devices))})


class Plugin(DevicePlugin):
    """A plugin with devices that always gives the same answer."""

    resource = RESOURCE

    def __init__(self, count: int) -> None:
        self.listed = devices(count)

    def devices(self) -> tuple[Device, ...]:
        return self.listed

    def allocate(self, devices: Collection[DeviceId]) -> ContainerAllocateResponse:
        return ANSWER


class Transport(MemoryTransport):
    """Returns a prepared message instead of calling the plugin, as the measurements of Kubernetes do."""

    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        return to_receipt(MESSAGE)


@define
class ActivePods:
    """A pod source that keeps the active pods in memory, as a kubelet's pod manager does."""

    active: dict[PodUid, None]

    def active_pods(self) -> Collection[PodUid]:
        return self.active.keys()

    def sources_ready(self) -> bool:
        return True

    def running_containers(self) -> Collection[ContainerKey]:
        return ()


class Sink(MemorySink):
    """A sink with which callers can wait for a capacity."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def publish(self, status: NodeStatus) -> None:
        with self._changed:
            super().publish(status)
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Wait until the capacity is `count`. Raises AssertionError if this takes longer than 30 seconds."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.capacity.get(RESOURCE) == count, 30)


@define
class Bench:
    """A manager with the pods and devices of `size`, its pod source and its sink, and the path of its checkpoint."""

    size: Size
    manager: DeviceManager
    pods: ActivePods
    sink: "Sink"
    path: Path
    _next: int
    _random: random.Random

    def newcomer(self) -> Pod:
        """Return a pod that was never admitted."""
        self._next += 1
        return pod(self._next)

    def any_pod(self) -> PodUid:
        """Return the UID of one of the active pods, chosen at random."""
        return self._random.choice(tuple(self.pods.active))

    def admit(self, newcomer: Pod) -> None:
        """Admit a pod: the call that is timed."""
        verdict = self.manager.admit(newcomer)
        assert isinstance(verdict, Admitted), verdict

    def forget(self, uid: PodUid) -> None:
        """Remove a pod from the active pods, without telling the manager."""
        del self.pods.active[uid]


@contextmanager
def running(
    size: Size, topology: Topology | None = None, transport: GrpcUnixTransport | None = None
) -> Iterator[Bench]:
    """Run a manager that restores all pods, with an in-memory plugin unless `transport` is given."""
    with TemporaryDirectory(dir=FAST_DISK if FAST_DISK.is_dir() else None) as directory:
        path = Path(directory) / "kubelet_internal_checkpoint"
        path.write_bytes(encode(checkpoint(size)))
        pods = ActivePods({pod(number).uid: None for number in range(size.pods)})
        memory = Transport()
        sink = Sink()
        two_nodes = Topology((NumaNode(0), NumaNode(1)))
        with DeviceManager(
            transport or memory, FileStore(path), sink, pods=pods, topology=topology or two_nodes
        ) as manager:
            if transport is None:
                memory.connect(Plugin(size.devices))
            chance = random.Random(4)  # noqa: S311 - the same pods every time
            yield Bench(size, manager, pods, sink, path, size.pods, chance)
