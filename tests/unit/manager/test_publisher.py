import threading

import pytest
from attrs import evolve

from devicecore import NodeState, NodeStatus, ResourceName
from devicecore.domain.errors import CalledFromInsideError
from devicecore.domain.inventory import Inventory
from devicecore.manager.publisher import Publisher
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.run import Run
from tests.memory_manager import ActingSink, nothing

GPU = ResourceName("example.com/gpu")


class Bench:
    def __init__(self) -> None:
        self.sink = ActingSink()
        self.state = CurrentState(NodeState())
        self.publisher = Publisher(self.sink, self.state)
        self.state.begin(Run(), NodeState())
        self.state.replace(lambda state: evolve(state, inventory=Inventory().expect([GPU], 0.0)))


def test_a_status_is_published_once() -> None:
    bench = Bench()
    assert bench.publisher.publish() == bench.publisher.publish() == NodeStatus({GPU: 0}, {GPU: 0})
    assert bench.sink.published == [NodeStatus({GPU: 0}, {GPU: 0})]


def test_after_the_end_of_a_run_nothing_is_published() -> None:
    bench = Bench()
    bench.state.end()
    assert bench.publisher.publish().capacity == {GPU: 0}
    assert bench.sink.published == []


def test_publishing_inside_a_publication_is_an_error() -> None:
    bench = Bench()
    bench.sink.action = bench.publisher.publish
    errors: list[CalledFromInsideError] = []

    def publish() -> None:
        try:
            bench.publisher.publish()
        except CalledFromInsideError as error:
            errors.append(error)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    thread.join(60)
    assert [error.inside for error in errors] == ["NodeStatusSink.publish"]
    bench.sink.action = nothing
    assert bench.publisher.publish().capacity == {GPU: 0}
    assert len(bench.sink.published) == 1


def test_a_sink_with_a_mistake_leaves_the_publisher_usable() -> None:
    bench = Bench()
    bench.sink.action = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        bench.publisher.publish()
    bench.sink.action = nothing
    bench.publisher.publish()
    assert bench.sink.capacity == {GPU: 0}
