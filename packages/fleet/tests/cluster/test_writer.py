"""Several kinds of requests share a server that answers fewer requests than are needed, and the log says so."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.writer import SHARES, ApiWriter
from devicecore_tools.testing.api_server import LocalApiServer

from devicecore.adapters.kube_api import Access
from devicecore.adapters.kube_api.requests import NODES
from tests.adapters.peers import wait_until


@pytest.fixture
def requests(tmp_path: Path) -> Iterator[KubeApiRequests]:
    with LocalApiServer() as server:
        yield KubeApiRequests(Access(server.kubeconfig(tmp_path / "kubeconfig")))


def test_no_kind_of_request_waits_for_all_of_another_kind(requests: KubeApiRequests) -> None:
    """All jobs wait for one thread, which runs each kind's jobs according to the kind's share."""
    order: list[str] = []
    done, kinds = threading.Event(), ("lease", "pod", "event", "slices")
    writer = ApiWriter(requests, threads=1)
    for kind in kinds:
        for number in range(200):

            def job(_: KubeApiRequests, kind: str = kind) -> None:
                order.append(kind)
                if len(order) == len(kinds) * 200:
                    done.set()

            writer.put((kind, number), job)
    with writer:
        assert done.wait(60)
    first = Counter(order[:150])
    shares = {kind: SHARES.get(kind, 1.0) for kind in kinds}
    assert {kind: round(150 * share / sum(shares.values())) for kind, share in shares.items()} == pytest.approx(
        first, abs=2
    )
    assert order[-1] == "event", "the kind with the smallest share is done last, but it is done"


def test_the_log_says_what_the_server_allows_and_what_is_needed(
    requests: KubeApiRequests, caplog: pytest.LogCaptureFixture
) -> None:
    """The server answers one request every two seconds, according to a clock that each request moves forward."""
    now, done = [0.0], threading.Event()
    writer = ApiWriter(requests, threads=1, clock=lambda: now[0])

    def job(asks: KubeApiRequests) -> None:
        asks.find(NODES, "none")
        now[0] += 2.0
        if writer.waiting == 1:
            done.set()

    with writer:
        for number in range(20):
            writer.put(("lease", number), job)
        assert done.wait(60)
    said = [record.getMessage() for record in caplog.records]
    answers = "the API server answers 0.5 requests per second (connections: 1), but 1.6 are needed: "
    assert said == [f"{answers}requests wait for up to 18 s"], "once a minute"


def test_there_are_more_connections_while_jobs_wait(requests: KubeApiRequests) -> None:
    """The server answers one request every two seconds. In the end, the maximum number of jobs run at once."""
    now, meeting = [0.0], threading.Barrier(5)
    writer = ApiWriter(requests, threads=1, most=4, clock=lambda: now[0])
    waited = threading.Semaphore(0)

    def slow(_: KubeApiRequests) -> None:
        now[0] += 2.0
        waited.release()

    def meet(_: KubeApiRequests) -> None:
        meeting.wait(60)

    with writer:
        for number in range(40):
            writer.put(("lease", number), slow)
        for _ in range(40):
            assert waited.acquire(timeout=60)
        for number in range(4):
            writer.put(("pod", number), meet)
        meeting.wait(60)
        assert sum(one.name.startswith("devicecore-writer") for one in threading.enumerate()) == 4, "and not more"


def test_a_lease_that_has_waited_for_long_goes_before_all_statuses(requests: KubeApiRequests) -> None:
    """Each request takes 0.1 seconds by the writer's clock, so one request in three is not enough for the leases."""
    now, order, done = [0.0], list[str](), threading.Event()
    writer = ApiWriter(requests, threads=1, clock=lambda: now[0])
    waits: list[float] = []
    for kind, count in (("pod", 1000), ("lease", 250)):
        for number in range(count):

            def job(_: KubeApiRequests, kind: str = kind) -> None:
                now[0] += 0.1
                order.append(kind)
                if kind == "lease":
                    waits.append(now[0])
                if len(order) == 1250:
                    done.set()

            writer.put((kind, number), job)
    with writer:
        assert done.wait(60)
    assert Counter(order[:120])["lease"] == pytest.approx(40, abs=2), "at first, both kinds get their shares"
    assert max(waits) < 40, "no node is lost, although all requests together take two minutes"


def test_the_thread_that_became_idle_last_gets_the_next_job(requests: KubeApiRequests) -> None:
    used, done = list[str](), threading.Semaphore(0)

    def job(_: KubeApiRequests) -> None:
        used.append(threading.current_thread().name)
        done.release()

    with ApiWriter(requests, threads=16) as writer:
        for number in range(400):
            writer.put(("pod", number), job)
            assert done.acquire(timeout=60)
    assert len({*used[-100:]}) <= 8, "once all threads have started, only a few of them get jobs"


def test_a_job_runs_again_in_time_while_the_thread_that_waited_is_busy(requests: KubeApiRequests) -> None:
    """One idle thread waits until a job is due. As soon as it has the job, another thread waits for the next job."""
    is_first, began, ends, again = [True], threading.Event(), threading.Event(), threading.Event()

    def late(_: KubeApiRequests) -> float | None:
        if began.is_set():
            again.set()
            return None
        return 0.3

    def block(_: KubeApiRequests) -> float | None:
        if is_first.pop():
            is_first.append(False)
            return 0.1
        began.set()
        ends.wait(60)
        return None

    with ApiWriter(requests, threads=3) as writer:
        writer.put(("pod", "late"), late)
        writer.put(("pod", "blocking"), block)
        assert began.wait(60)
        try:
            assert again.wait(20), "no thread waited until the job was due"
        finally:
            ends.set()


def test_a_writer_that_starts_again_uses_all_its_threads(requests: KubeApiRequests) -> None:
    """Each of eight jobs waits for the others, although some threads were idle before the restart."""
    writer = ApiWriter(requests, threads=8)
    for life in range(2):
        with writer:
            for turn in range(5):
                meeting = threading.Barrier(9)

                def meet(_: KubeApiRequests, meeting: threading.Barrier = meeting) -> None:
                    meeting.wait(60)

                for number in range(8):
                    writer.put(("pod", life, turn, number), meet)
                meeting.wait(20)
                wait_until(lambda: not writer.waiting, "the writer knows that all jobs have ended, and repeats none")
