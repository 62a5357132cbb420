"""The contract of `NodeStatusSink`.

Law: readers see the latest published status of every resource. Everything else stays as it was.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Protocol

from devicecore.domain.capacity import NodeStatus
from devicecore.ports.sink import NodeStatusSink
from devicecore.runtime.in_time import in_time
from devicecore.testing.contracts.expect import EVENT_TIMEOUT, GPU, RDMA, Suite, expect
from devicecore.testing.interrupts import Interrupts


class SinkHarness(Protocol):
    """A sink, and the values that its readers see."""

    @property
    def sink(self) -> NodeStatusSink:
        """The sink."""

    def put(self, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> None:
        """Write these counts to the same place, as another program would."""

    def seen(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return capacity and allocatable as readers see them, once everything that was published has arrived."""


MakeSink = Callable[[], AbstractContextManager[SinkHarness]]
"""Creates a sink that has published nothing yet."""

NODE_STATUS_SINK: Suite[MakeSink] = Suite()
"""The checks for every sink."""


@NODE_STATUS_SINK.check
def shows_what_was_published(make: MakeSink) -> None:
    """Readers see the capacity and allocatable of every resource in the status."""
    with make() as harness:
        harness.sink.publish(NodeStatus({GPU: 8, RDMA: 2}, {GPU: 6, RDMA: 0}))
        expect("what readers see", _of(harness, GPU, RDMA), ({GPU: 8, RDMA: 2}, {GPU: 6, RDMA: 0}))


@NODE_STATUS_SINK.check
def shows_what_was_published_last(make: MakeSink) -> None:
    """A later status replaces an earlier one, whether the numbers are higher or lower."""
    with make() as harness:
        for count in (3, 8, 0, 5):
            harness.sink.publish(NodeStatus({GPU: 8}, {GPU: count}))
            expect("what readers see after another status", _of(harness, GPU), ({GPU: 8}, {GPU: count}))


@NODE_STATUS_SINK.check
def leaves_alone_what_a_status_does_not_name(make: MakeSink) -> None:
    """Resources that are not in the status do not change, whether they are native or extended."""
    capacity, allocatable = {"cpu": 8, "other.com/fpga": 4}, {"cpu": 7, "other.com/fpga": 3}
    with make() as harness:
        harness.put(capacity, allocatable)
        harness.sink.publish(NodeStatus({GPU: 8}, {GPU: 8}))
        harness.sink.publish(NodeStatus(removed=(GPU,)))
        expect("what readers see of other resources", _of(harness, *capacity), (capacity, allocatable))


@NODE_STATUS_SINK.check
def keeps_showing_what_a_later_status_does_not_name(make: MakeSink) -> None:
    """A status changes only the resources that it names. Other resources stay as an earlier status has set them."""
    with make() as harness:
        harness.sink.publish(NodeStatus({GPU: 8}, {GPU: 7}))
        harness.sink.publish(NodeStatus({RDMA: 2}, {RDMA: 2}))
        expect("what readers see", _of(harness, GPU, RDMA), ({GPU: 8, RDMA: 2}, {GPU: 7, RDMA: 2}))


@NODE_STATUS_SINK.check
def shows_none_of_a_removed_resource(make: MakeSink) -> None:
    """Readers see 0 or nothing for a removed resource. The resource can be published again later."""
    with make() as harness:
        harness.sink.publish(NodeStatus({GPU: 8, RDMA: 2}, {GPU: 8, RDMA: 2}))
        harness.sink.publish(NodeStatus({RDMA: 2}, {RDMA: 2}, removed=(GPU,)))
        expect(
            "what readers see for a removed resource", _of(harness, GPU, RDMA), ({GPU: 0, RDMA: 2}, {GPU: 0, RDMA: 2})
        )
        harness.sink.publish(NodeStatus({GPU: 4, RDMA: 2}, {GPU: 4, RDMA: 2}))
        expect("what readers see after it was published again", _of(harness, GPU), ({GPU: 4}, {GPU: 4}))


@NODE_STATUS_SINK.check
def takes_the_same_status_twice(make: MakeSink) -> None:
    """Publishing the same status twice is not an error and changes nothing."""
    status = NodeStatus({GPU: 8}, {GPU: 6}, removed=(RDMA,))
    with make() as harness:
        harness.sink.publish(status)
        once = _of(harness, GPU, RDMA)
        harness.sink.publish(status)
        expect("what readers see after the same status again", _of(harness, GPU, RDMA), once)


@NODE_STATUS_SINK.check
def shows_what_is_published_after_an_interrupt(make: MakeSink) -> None:
    """An interrupted `publish` (Ctrl-C) leaves no lock locked, so readers see what is published later."""
    with make() as harness:
        sink = harness.sink
        found = [sys.modules.get(kind.__module__) for kind in type(sink).__mro__]
        modules = [one for one in found if one is not None and hasattr(one, "__file__")]  # code at a prompt has no file
        for place in count(1):
            is_interrupted = Interrupts(place, threading, *modules).interrupt(partial(sink.publish, NodeStatus()))
            status = NodeStatus({GPU: place}, {GPU: place})
            # A different thread publishes, and needs the same locks.
            in_time(partial(sink.publish, status), EVENT_TIMEOUT)
            if not is_interrupted:
                break
        expect("what readers see", _of(harness, GPU), ({GPU: place}, {GPU: place}))


def _of(harness: SinkHarness, *names: str) -> tuple[dict[str, int], dict[str, int]]:
    capacity, allocatable = harness.seen()
    return {name: capacity.get(name, 0) for name in names}, {name: allocatable.get(name, 0) for name in names}
