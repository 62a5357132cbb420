"""The cost of an admission, counted rather than timed.

Law: the work for one more pod does not depend on the number of pods and devices. The tests count the entries rendered,
the bytes hashed, the device ids read (hashed or compared) and all function calls. They do not count the bytes of the
file, because the whole file has to be written.
"""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from attrs import define, evolve, frozen

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
from devicecore.domain.checkpoint.state import entry_of
from devicecore.domain.node_state import NodeState
from tests.counting import function_calls

GPU = resource_name("example.com/gpu")
SMALL, LARGE = (40, 400), (400, 4_000)
TWO_NODES = Topology((NumaNode(0), NumaNode(1)), Policy.BEST_EFFORT)


@define
class Work:
    """The amount of work since counting started."""

    entries_rendered: int = 0
    bytes_hashed: int = 0
    ids_read: int = 0
    calls: int = 0


class CountedId(str):
    """A device id that counts how often it is hashed or compared."""

    __slots__ = ()
    work = Work()
    writer = CheckpointWriter()

    def __hash__(self) -> int:
        CountedId.work.ids_read += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        CountedId.work.ids_read += 1
        return str.__eq__(self, other)


class Plugin(DevicePlugin):
    resource = GPU

    def __init__(self, count: int) -> None:
        self.listed = [
            Device(DeviceId(CountedId(f"gpu-{number:06d}")), Health.HEALTHY, (NumaNode(number % 2),))
            for number in range(count)
        ]

    def devices(self) -> list[Device]:
        return self.listed

    def allocate(self, devices: object) -> ContainerAllocateResponse:
        return ContainerAllocateResponse({"GPU": "one"})


@frozen
class Counting:
    """A manager with many pods, and counters of the work for one more."""

    manager: DeviceManager
    pods: int

    def admit(self, number: int) -> None:
        pod = Pod(PodUid(f"pod-{number:06d}"), containers=(Container("main", {GPU: 1}),))
        assert isinstance(self.manager.admit(pod), Admitted)

    def one_more_pod(self) -> Work:
        """Admit and evict a pod twice, and return the work of the second admission."""
        counted: list[Work] = []
        for number in (self.pods, self.pods + 1):
            CountedId.work = Work()
            calls = function_calls(partial(self.admit, number))
            counted.append(evolve(CountedId.work, calls=calls))
            CountedId.work = Work()
            self.manager.evict([PodUid(f"pod-{number:06d}")])
        return counted[-1]  # the first admission may fill caches


def running(pods: int, devices: int, topology: Topology) -> Counting:
    transport = MemoryTransport()
    manager = DeviceManager(transport, MemoryStore(), MemorySink(), topology=topology)
    manager._saver.in_background = False  # noqa: SLF001 - how long a thread waits for another changes its calls
    manager.start()
    transport.connect(Plugin(devices))
    counting = Counting(manager, pods)
    for number in range(pods):
        counting.admit(number)
    for state in range(256):  # any state of the hash may occur, so all are cached before counting starts
        CountedId.writer._resources.dump.hash(state)  # noqa: SLF001 - no public method reaches all states
    return counting


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count rendering and hashing."""

    def counting(real: Callable[..., object], attribute: str, amount: Callable[..., int]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            setattr(CountedId.work, attribute, getattr(CountedId.work, attribute) + amount(*arguments))
            return real(*arguments)

        return call

    hashing = counting(fnv.fnv1a_32, "bytes_hashed", lambda data, *_: len(data))
    monkeypatch.setattr(fnv, "fnv1a_32", hashing)
    monkeypatch.setattr(writer, "fnv1a_32", hashing)
    rendering = counting(entry_of, "entries_rendered", lambda _: 1)  # called once for each entry rendered
    monkeypatch.setattr(writer, "entry_of", rendering)
    real_file = CheckpointWriter.file

    def file(self: CheckpointWriter, state: NodeState) -> bytes:
        CountedId.writer = self
        return real_file(self, state)

    monkeypatch.setattr(CheckpointWriter, "file", file)


@pytest.mark.parametrize("topology", [Topology(), TWO_NODES], ids=["any node", "best node"])
def test_one_more_pod_costs_the_same_among_few_and_among_many(topology: Topology) -> None:
    few, many = running(*SMALL, topology).one_more_pod(), running(*LARGE, topology).one_more_pod()
    assert few.entries_rendered == many.entries_rendered == 1
    assert few.bytes_hashed == many.bytes_hashed < 500
    assert few.ids_read == many.ids_read < 20
    assert few.calls == many.calls


def test_one_more_pod_costs_the_same_after_any_pod_has_gone() -> None:
    """The entries after that pod were already hashed again when it was evicted."""
    few, many = running(*SMALL, Topology()), running(*LARGE, Topology())
    for counting in (few, many):
        counting.manager.evict([PodUid("pod-000003")])
    first, second = few.one_more_pod(), many.one_more_pod()
    assert first.entries_rendered == second.entries_rendered == 1
    assert first.bytes_hashed == second.bytes_hashed < 500
    assert first.ids_read == second.ids_read < 20


def test_evicted_pods_cost_one_hashing_of_the_entries_behind_them() -> None:
    """When the file is created, the entries after these pods are hashed once, and no entry is rendered again."""
    node = running(*SMALL, Topology()).manager.state
    for number in range(0, SMALL[0], 2):
        node = node.evict([PodUid(f"pod-{number:06d}")])
    CountedId.work = Work()
    file = CountedId.writer.file(node)
    assert 0 < CountedId.work.bytes_hashed < 2 * len(file)
    assert CountedId.work.entries_rendered == 0


def test_one_more_container_renders_only_its_own_entry() -> None:
    """The pod keeps its place, and its other entries are not rendered again."""
    counting = running(*SMALL, Topology())
    pod = Pod(PodUid("pod-000003"), containers=(Container("main", {GPU: 1}), Container("other", {GPU: 1})))
    CountedId.work = Work()
    assert isinstance(counting.manager.admit(pod), Admitted)
    assert CountedId.work.entries_rendered == 1


def _hash_again(text: HashedText, state: int = fnv.OFFSET) -> int:
    return fnv.fnv1a_32(b"".join(text.parts), state)


def _render_again(block: writer._Block, pods: Sequence[writer._PodText]) -> writer._Block:
    for _ in block.pods:
        CountedId.work.entries_rendered += 1
    return writer._Block.of([*block.pods, *pods], block.start)  # noqa: SLF001 - as above


def test_the_counting_notices_if_nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HashedText, "hash", _hash_again)
    monkeypatch.setattr(writer._Block, "followed_by", _render_again)  # noqa: SLF001 - as above
    few, many = running(*SMALL, Topology()).one_more_pod(), running(*LARGE, Topology()).one_more_pod()
    assert many.bytes_hashed > 5 * few.bytes_hashed > 5 * 500
    assert min(few.entries_rendered, many.entries_rendered) > 5
