"""The log messages about many refused nodes."""

from typing import cast

import pytest
from devicecore_fleet.cluster.refusals import TOGETHER, Refusals
from devicecore_fleet.cluster.requests import KubeApiRequests
from tests.cluster.jobs import Jobs

NO_REQUESTS = cast("KubeApiRequests", None)


def test_nodes_that_are_refused_for_the_same_reason_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    jobs, now = Jobs(), [0.0]
    refusals = Refusals(jobs, lambda: now[0])
    for number in range(5):
        refusals.add(f"n-{number}", f"its Lease is held by devicecore/n-{number}/1")
    refusals.add("other", "it exists")
    (job,) = jobs.waiting.values()
    assert job(NO_REQUESTS) == TOGETHER
    assert not caplog.messages
    now[0] = 2 * TOGETHER
    assert job(NO_REQUESTS) is None
    assert caplog.messages == [
        "5 nodes are refused (n-0, n-1, n-2 and 2 more): its Lease is held by devicecore/NODE/1",
        "node other is refused: it exists",
    ]
