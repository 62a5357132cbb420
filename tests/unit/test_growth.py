"""The cost of an admission does not depend on the number of pods and devices: counted, not timed.

Counted is what is done for one more pod: entries rendered, bytes hashed, device ids looked at (hashed or compared), and
calls of any function. Joining and writing the file is left: those bytes have to be written.
"""

import sys
from collections.abc import Callable, Sequence
from types import FrameType

import pytest
from attrs import define, frozen

from devicecore import (
    Admitted,
    Container,
    ContainerAllocateResponse,
    Device,
    DeviceId,
    DeviceManager,
    DevicePlugin,
    Health,
    NumaNode,
    Pod,
    PodUid,
    Policy,
    Topology,
    resource_name,
)
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.checkpoint import CheckpointWriter, fnv, writer
from devicecore.domain.checkpoint.fnv import HashedText
from devicecore.domain.node_state import NodeState

GPU = resource_name("example.com/gpu")
SMALL, LARGE = (40, 400), (400, 4_000)
TWO_NODES = Topology((NumaNode(0), NumaNode(1)), Policy.BEST_EFFORT)


@define
class Work:
    """What has been done since the counting began."""

    entries_rendered: int = 0
    bytes_hashed: int = 0
    ids_looked_at: int = 0
    calls: int = 0


class Watched(str):
    """A device id that counts how often it is hashed or compared."""

    __slots__ = ()
    work = Work()
    writer = CheckpointWriter()

    def __hash__(self) -> int:
        Watched.work.ids_looked_at += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        Watched.work.ids_looked_at += 1
        return str.__eq__(self, other)


class Plugin(DevicePlugin):
    resource = GPU

    def __init__(self, count: int) -> None:
        self.listed = [
            Device(DeviceId(Watched(f"gpu-{number:06d}")), Health.HEALTHY, (NumaNode(number % 2),))
            for number in range(count)
        ]

    def devices(self) -> list[Device]:
        return self.listed

    def allocate(self, devices: object) -> ContainerAllocateResponse:
        return ContainerAllocateResponse({"GPU": "one"})


@frozen
class Counting:
    """A manager with many pods, and the work for one more."""

    manager: DeviceManager
    pods: int

    def admit(self, number: int) -> None:
        pod = Pod(PodUid(f"pod-{number:06d}"), containers=(Container("main", {GPU: 1}),))
        assert isinstance(self.manager.admit(pod), Admitted)

    def one_more_pod(self) -> Work:
        """Admit a pod where another has just been, so that the number of pods stays."""
        counted: list[Work] = []
        for number in (self.pods, self.pods + 1):
            Watched.work = Work()
            sys.setprofile(_count_call)
            try:
                self.admit(number)
            finally:
                sys.setprofile(None)
            counted.append(Watched.work)
            Watched.work = Work()
            self.manager.evict([PodUid(f"pod-{number:06d}")])
        return counted[-1]  # the first may have had something to prepare


def _count_call(_frame: FrameType, event: str, _argument: object) -> None:
    Watched.work.calls += event in {"call", "c_call"}


def running(pods: int, devices: int, topology: Topology) -> Counting:
    transport = MemoryTransport()
    manager = DeviceManager(transport, MemoryStore(), MemorySink(), topology=topology)
    manager._saver.in_background = False  # noqa: SLF001 - how long a thread waits for another changes its calls
    manager.start()
    transport.connect(Plugin(devices))
    counting = Counting(manager, pods)
    for number in range(pods):
        counting.admit(number)
    for state in range(256):  # each comes up now and then, and is remembered
        Watched.writer._resources.dump.hash(state)  # noqa: SLF001 - there is no other way to meet them all
    return counting


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rendering and hashing counted."""

    def counting(real: Callable[..., object], attribute: str, amount: Callable[..., int]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            setattr(Watched.work, attribute, getattr(Watched.work, attribute) + amount(*arguments))
            return real(*arguments)

        return call

    hashing = counting(fnv.fnv1a_32, "bytes_hashed", lambda data, *_: len(data))
    monkeypatch.setattr(fnv, "fnv1a_32", hashing)
    monkeypatch.setattr(writer, "fnv1a_32", hashing)
    rendering = counting(writer._text, "entries_rendered", lambda _: 1)  # noqa: SLF001 - the one place that renders
    monkeypatch.setattr(writer, "_text", rendering)
    real_file = CheckpointWriter.file

    def file(self: CheckpointWriter, state: NodeState) -> bytes:
        Watched.writer = self
        return real_file(self, state)

    monkeypatch.setattr(CheckpointWriter, "file", file)


@pytest.mark.parametrize("topology", [Topology(), TWO_NODES], ids=["any node", "best node"])
def test_one_more_pod_costs_the_same_among_few_and_among_many(topology: Topology) -> None:
    few, many = running(*SMALL, topology).one_more_pod(), running(*LARGE, topology).one_more_pod()
    assert few.entries_rendered == many.entries_rendered == 1
    assert few.bytes_hashed == many.bytes_hashed < 500
    assert few.ids_looked_at == many.ids_looked_at < 20
    assert few.calls == many.calls


def test_one_more_pod_costs_the_same_after_any_pod_has_gone() -> None:
    """The entries behind that pod are hashed again before, when the pod goes."""
    few, many = running(*SMALL, Topology()), running(*LARGE, Topology())
    for counting in (few, many):
        counting.manager.evict([PodUid("pod-000003")])
    first, second = few.one_more_pod(), many.one_more_pod()
    assert first.entries_rendered == second.entries_rendered == 1
    assert first.bytes_hashed == second.bytes_hashed < 500
    assert first.ids_looked_at == second.ids_looked_at < 20


def test_pods_that_go_cost_one_hashing_of_what_stood_behind_them() -> None:
    """When the file is made, what stood behind all of them is hashed once, and nothing is rendered again."""
    node = running(*SMALL, Topology()).manager.state
    for number in range(0, SMALL[0], 2):
        node = node.evict([PodUid(f"pod-{number:06d}")])
    Watched.work = Work()
    file = Watched.writer.file(node)
    assert 0 < Watched.work.bytes_hashed < 2 * len(file)
    assert Watched.work.entries_rendered == 0


def test_a_container_more_renders_only_its_own_entry() -> None:
    """The pod stays where it was; the entries that it had are not rendered again."""
    counting = running(*SMALL, Topology())
    pod = Pod(PodUid("pod-000003"), containers=(Container("main", {GPU: 1}), Container("other", {GPU: 1})))
    Watched.work = Work()
    assert isinstance(counting.manager.admit(pod), Admitted)
    assert Watched.work.entries_rendered == 1


def _hash_anew(passage: HashedText, state: int = fnv.OFFSET) -> int:
    return fnv.fnv1a_32(b"".join(passage.parts), state)


def _render_anew(block: writer._Block, pods: Sequence[writer._PodText]) -> writer._Block:
    for _ in block.pods:
        Watched.work.entries_rendered += 1
    return writer._Block.of([*block.pods, *pods])  # noqa: SLF001 - as above


def test_the_counting_notices_when_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HashedText, "hash", _hash_anew)
    monkeypatch.setattr(writer._Block, "followed_by", _render_anew)  # noqa: SLF001 - as above
    few, many = running(*SMALL, Topology()).one_more_pod(), running(*LARGE, Topology()).one_more_pod()
    assert many.bytes_hashed > 5 * few.bytes_hashed > 5 * 500
    assert min(few.entries_rendered, many.entries_rendered) > 5
