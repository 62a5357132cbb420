"""Lines about the node's status in the log of `devicecore kubelet`."""

import logging

import pytest
from devicecore_tools.node.status_log import LoggedSink

from devicecore.adapters.memory import MemorySink
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.model import ResourceName

GPU = ResourceName("acme.io/gpu")


def test_numbers_are_logged_when_they_change_and_not_before_there_are_devices(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "devicecore_tools")
    sink = LoggedSink(MemorySink(), lambda: None)
    for capacity, allocatable in ((0, 0), (4, 4), (4, 4), (4, 3), (1, 1)):
        sink.publish(NodeStatus({GPU: capacity}, {GPU: allocatable}))
    assert caplog.messages == [
        "acme.io/gpu: 4 of 4 devices allocatable",
        "acme.io/gpu: 3 of 4 devices allocatable",
        "acme.io/gpu: 1 of 1 device allocatable",
    ]
