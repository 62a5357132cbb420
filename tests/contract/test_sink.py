"""Every node-status sink meets the contract, and broken ones are caught."""

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from attrs import define, evolve, field
from tests.node_server import NodeServer

from devicecore.adapters.file import JsonFileSink
from devicecore.adapters.kube_api import Access, KubeApiSink, PatchStrategy
from devicecore.adapters.memory import MemorySink
from devicecore.domain.capacity import NodeStatus
from devicecore.ports.sink import NodeStatusSink
from devicecore.testing.contracts import NODE_STATUS_SINK, MakeSink, SinkHarness
from devicecore.testing.contracts import sink as contract

Check = Callable[[MakeSink], None]

NODE = "worker-1"


@define
class InMemory:
    """Other clients read the MemorySink itself."""

    sink: MemorySink = field(factory=MemorySink)

    def put(self, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> None:
        self.sink.capacity.update(capacity)
        self.sink.allocatable.update(allocatable)

    def seen(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        return self.sink.capacity, self.sink.allocatable


class InFile:
    """Other clients read and write the file."""

    def __init__(self, path: Path) -> None:
        self.sink: NodeStatusSink = JsonFileSink(path)
        self._path = path

    def put(self, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> None:
        self._path.write_text(json.dumps({"capacity": capacity, "allocatable": allocatable}))

    def seen(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        node = json.loads(self._path.read_text())
        return node["capacity"], node["allocatable"]


def in_memory() -> AbstractContextManager[SinkHarness]:
    return nullcontext(InMemory())


@contextmanager
def in_file() -> Iterator[SinkHarness]:
    with tempfile.TemporaryDirectory() as directory:
        yield InFile(Path(directory) / "status.json")


class OnApiServer:
    """Other clients write to the Node, and read it once it shows everything that was published."""

    def __init__(self, server: NodeServer, sink: KubeApiSink) -> None:
        self.sink = sink
        self._server = server

    def put(self, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> None:
        counts = {"capacity": capacity, "allocatable": allocatable}

        def change(status: dict[str, dict[str, str]]) -> None:
            for section, numbers in counts.items():
                status.setdefault(section, {}).update({name: str(count) for name, count in numbers.items()})

        self._server.write(NODE, change)

    def seen(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        self.sink.wait_until_published(timeout=60.0)
        status = self._server.status(NODE)
        capacity, allocatable = (
            {name: int(count) for name, count in status.get(section, {}).items()}
            for section in ("capacity", "allocatable")
        )
        return capacity, allocatable


def on_api_server(*, strategy: PatchStrategy = PatchStrategy.STRATEGIC_MERGE, keep_removed: bool = True) -> MakeSink:
    @contextmanager
    def make() -> Iterator[SinkHarness]:
        with tempfile.TemporaryDirectory() as directory, NodeServer() as server:
            server.add_node(NODE, {})
            kubeconfig = server.config(Path(directory))
            with KubeApiSink(NODE, Access(kubeconfig), strategy=strategy, keep_removed=keep_removed) as sink:
                yield OnApiServer(server, sink)

    return make


SINKS = {
    "in memory": in_memory,
    "in a file": in_file,
    **{f"on an API server by {strategy.value}": on_api_server(strategy=strategy) for strategy in PatchStrategy},
    "on an API server, nothing kept": on_api_server(keep_removed=False),
}


@pytest.mark.parametrize("make", SINKS.values(), ids=SINKS)
@pytest.mark.parametrize("check", NODE_STATUS_SINK)
def test_a_sink_keeps_the_contract(check: Check, make: MakeSink) -> None:
    """MemorySink, JsonFileSink and KubeApiSink meet every sentence of the port."""
    check(make)


# --- the contract can fail -------------------------------------------------------------------------------------------


@define
class BrokenSink(MemorySink):
    """A sink that makes a given mistake when it publishes."""

    wrong: Callable[[MemorySink, NodeStatus], None] = MemorySink.publish

    def publish(self, status: NodeStatus) -> None:
        self.wrong(self, status)


def ignores_allocatable(sink: MemorySink, status: NodeStatus) -> None:
    MemorySink.publish(sink, evolve(status, allocatable=status.capacity))


def never_lowers(sink: MemorySink, status: NodeStatus) -> None:
    higher = {name: max(count, sink.allocatable.get(name, 0)) for name, count in status.allocatable.items()}
    MemorySink.publish(sink, evolve(status, allocatable=higher))


def is_alone_in_the_world(sink: MemorySink, status: NodeStatus) -> None:
    sink.capacity = {str(name): count for name, count in status.capacity.items()}
    sink.allocatable = {str(name): count for name, count in status.allocatable.items()}


def shows_one_status_only(sink: MemorySink, status: NodeStatus) -> None:
    for shown, counts in ((sink.capacity, status.capacity), (sink.allocatable, status.allocatable)):
        for name in [name for name in shown if name.startswith("example.com/")]:
            del shown[name]
        shown |= {str(name): count for name, count in counts.items()}


def never_removes(sink: MemorySink, status: NodeStatus) -> None:
    MemorySink.publish(sink, evolve(status, removed=()))


def adds_up(sink: MemorySink, status: NodeStatus) -> None:
    again = bool(sink.published)
    MemorySink.publish(sink, status)
    if again:
        sink.capacity = {name: 2 * count for name, count in sink.capacity.items()}


LOCK = threading.Condition()  # Condition is written in Python, so an interrupt may leave the lock held


def keeps_a_lock(sink: MemorySink, status: NodeStatus) -> None:
    with LOCK:
        MemorySink.publish(sink, status)


BROKEN: dict[Check, Callable[[MemorySink, NodeStatus], None]] = {
    contract.shows_what_was_published: ignores_allocatable,
    contract.shows_what_was_published_last: never_lowers,
    contract.leaves_alone_what_a_status_does_not_name: is_alone_in_the_world,
    contract.keeps_showing_what_a_later_status_does_not_name: shows_one_status_only,
    contract.shows_none_of_a_removed_resource: never_removes,
    contract.takes_the_same_status_twice: adds_up,
    contract.shows_what_is_published_after_an_interrupt: keeps_a_lock,
}


@pytest.mark.parametrize("check", NODE_STATUS_SINK)
def test_each_check_catches_a_sink_that_breaks_its_sentence(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail tests nothing."""
    monkeypatch.setattr(contract, "EVENT_TIMEOUT", 0.5)

    with pytest.raises(AssertionError):
        check(lambda: nullcontext(InMemory(BrokenSink(wrong=BROKEN[check]))))
