"""The contract of `NodeStatusSink`.

Law: others see the newest status of every resource that was ever named, and of everything else what they saw before.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from devicecore.domain.capacity import NodeStatus
from devicecore.ports.sink import NodeStatusSink
from devicecore.testing.contracts.expecting import GPU, RDMA, a_check, expect


class SinkHarness(Protocol):
    """A sink, and what others see of it."""

    @property
    def sink(self) -> NodeStatusSink:
        """The sink."""

    def put(self, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> None:
        """Somebody else writes these numbers where the sink writes its own."""

    def seen(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Capacity and allocatable as others see them, once all that was published has arrived."""


MakeSink = Callable[[], AbstractContextManager[SinkHarness]]
"""Makes a sink where nothing was ever published."""


@a_check
def shows_what_was_published(make: MakeSink) -> None:
    """Others see the status: capacity and allocatable of every resource it names."""
    with make() as harness:
        harness.sink.publish(NodeStatus({GPU: 8, RDMA: 2}, {GPU: 6, RDMA: 0}))
        expect("what others see", _of(harness, GPU, RDMA), ({GPU: 8, RDMA: 2}, {GPU: 6, RDMA: 0}))


@a_check
def shows_what_was_published_last(make: MakeSink) -> None:
    """A later status replaces an earlier one, up and down."""
    with make() as harness:
        for count in (3, 8, 0, 5):
            harness.sink.publish(NodeStatus({GPU: 8}, {GPU: count}))
            expect("what others see after another status", _of(harness, GPU), ({GPU: 8}, {GPU: count}))


@a_check
def leaves_alone_what_a_status_does_not_name(make: MakeSink) -> None:
    """Anything else that others see stays as it is: other people's resources, be they native or extended."""
    capacity, allocatable = {"cpu": 8, "other.com/fpga": 4}, {"cpu": 7, "other.com/fpga": 3}
    with make() as harness:
        harness.put(capacity, allocatable)
        harness.sink.publish(NodeStatus({GPU: 8}, {GPU: 8}))
        harness.sink.publish(NodeStatus(removed=(GPU,)))
        expect("what others see of other resources", _of(harness, *capacity), (capacity, allocatable))


@a_check
def keeps_showing_what_a_later_status_does_not_name(make: MakeSink) -> None:
    """A status is about the resources it names, so that what an earlier one said of others still stands."""
    with make() as harness:
        harness.sink.publish(NodeStatus({GPU: 8}, {GPU: 7}))
        harness.sink.publish(NodeStatus({RDMA: 2}, {RDMA: 2}))
        expect("what others see", _of(harness, GPU, RDMA), ({GPU: 8, RDMA: 2}, {GPU: 7, RDMA: 2}))


@a_check
def shows_none_of_a_removed_resource(make: MakeSink) -> None:
    """Of a resource that a status names as removed, others see 0 or nothing; it may come back."""
    with make() as harness:
        harness.sink.publish(NodeStatus({GPU: 8, RDMA: 2}, {GPU: 8, RDMA: 2}))
        harness.sink.publish(NodeStatus({RDMA: 2}, {RDMA: 2}, removed=(GPU,)))
        expect("what others see of a removed resource", _of(harness, GPU, RDMA), ({GPU: 0, RDMA: 2}, {GPU: 0, RDMA: 2}))
        harness.sink.publish(NodeStatus({GPU: 4, RDMA: 2}, {GPU: 4, RDMA: 2}))
        expect("what others see once it is back", _of(harness, GPU), ({GPU: 4}, {GPU: 4}))


@a_check
def takes_the_same_status_twice(make: MakeSink) -> None:
    """The same status twice is no error, and changes nothing."""
    status = NodeStatus({GPU: 8}, {GPU: 6}, removed=(RDMA,))
    with make() as harness:
        harness.sink.publish(status)
        once = _of(harness, GPU, RDMA)
        harness.sink.publish(status)
        expect("what others see after the same status again", _of(harness, GPU, RDMA), once)


def _of(harness: SinkHarness, *names: str) -> tuple[dict[str, int], dict[str, int]]:
    capacity, allocatable = harness.seen()
    return {name: capacity.get(name, 0) for name in names}, {name: allocatable.get(name, 0) for name in names}


NODE_STATUS_SINK: tuple[Callable[[MakeSink], None], ...] = (
    shows_what_was_published,
    shows_what_was_published_last,
    leaves_alone_what_a_status_does_not_name,
    keeps_showing_what_a_later_status_does_not_name,
    shows_none_of_a_removed_resource,
    takes_the_same_status_twice,
)
"""For every sink."""
