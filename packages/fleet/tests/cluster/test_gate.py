"""Which requests and events pass through a node's gate, and in what order."""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from devicecore_fleet.cluster.gate import NodeGate
from devicecore_fleet.cluster.pods import PodReceiver
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_tools.testing.api_server import LocalApiServer
from tests.cluster.jobs import Jobs

from devicecore.adapters.kube_api import Access
from devicecore.adapters.kube_api.access import RequestError
from devicecore.adapters.kube_api.requests import PODS

Json = Any


class Receiver(PodReceiver):
    """Records what it receives, and calls a function for each list."""

    def __init__(self, at_list: Callable[[], None] = lambda: None) -> None:
        self.at_list = at_list
        self.told: list[str] = []

    def listed(self, pods: Sequence[Json]) -> None:
        self.told += [f"listed {pod['metadata']['name']}" for pod in pods]
        self.at_list()

    def seen(self, kind: str, pod: Json) -> None:
        if pod["spec"] is None:
            message = "spec has the wrong type"
            raise TypeError(message)
        self.told.append(f"{kind} {pod['metadata']['name']}")


def a_pod(name: str, spec: Json) -> Json:
    return {"metadata": {"name": name, "uid": name}, "spec": spec}


@pytest.fixture
def requests(tmp_path: Path) -> Iterator[KubeApiRequests]:
    with LocalApiServer() as server:
        yield KubeApiRequests(Access(server.kubeconfig(tmp_path / "kubeconfig")))


def test_the_second_of_two_threads_at_a_gate_asks_when_the_first_is_done() -> None:
    gate = NodeGate(Jobs(), None, Receiver, is_closed=True)
    seen: list[bool] = []

    def is_ours_no_more() -> bool:
        seen.append(gate.is_closed)
        return False

    second = threading.Thread(target=gate.decide, args=(is_ours_no_more,))

    def is_ours() -> bool:
        second.start()
        second.join(0.1)  # without a lock, the second thread would decide now
        return True

    gate.decide(is_ours)
    second.join()
    assert seen == [False], "the second question is asked once the gate is open"
    assert gate.is_closed


def test_a_job_that_waited_is_not_handed_on_after_a_newer_one(requests: KubeApiRequests) -> None:
    jobs, ran = Jobs(), list[str]()

    def job(what: str, _: KubeApiRequests) -> None:
        ran.append(what)

    gate = NodeGate(jobs, None, lambda: receiver, is_closed=True)
    receiver = Receiver(lambda: gate.put("key", partial(job, "newer")))
    gate.put("key", partial(job, "older"))
    gate.listed([a_pod("a", {})])
    gate.open()
    jobs.run(requests)
    assert ran == ["newer"]


def test_a_job_handed_over_before_the_node_was_recreated_does_not_run(requests: KubeApiRequests) -> None:
    jobs, ran = Jobs(), list[str]()

    def job(what: str, _: KubeApiRequests) -> None:
        ran.append(what)

    outer = NodeGate(jobs, None, Receiver)
    inner = NodeGate(outer, None, Receiver)
    inner.put("pod", partial(job, "of the previous run"))
    inner.forget_jobs()
    inner.put("lease", partial(job, "of this run"))
    jobs.run(requests)
    assert ran == ["of this run"]


def test_a_pod_that_cannot_be_understood_keeps_no_gate_closed(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver()
    gate = NodeGate(Jobs(), None, lambda: receiver, is_closed=True)
    for pod in (a_pod("odd", None), a_pod("plain", {})):
        gate.seen("ADDED", pod)
    gate.open()
    assert receiver.told == ["ADDED plain"]
    assert not gate.is_closed
    assert "pods odd is invalid and is skipped: TypeError: spec has the wrong type" in caplog.text


def test_what_the_watch_shows_while_pods_are_listed_is_newer_than_the_list() -> None:
    receiver = Receiver()
    gate = NodeGate(Jobs(), None, lambda: receiver)

    def listing() -> Sequence[Json]:
        gate.seen("ADDED", a_pod("bound-since", {}))
        gate.seen("DELETED", a_pod("gone-since", {}))
        return [a_pod("gone-since", {})]

    gate.catch_up(listing)
    assert receiver.told == ["listed gone-since", "ADDED bound-since", "DELETED gone-since"]


def test_a_list_that_failed_is_waited_for(requests: KubeApiRequests) -> None:
    receiver = Receiver()
    gate = NodeGate(Jobs(), None, lambda: receiver)
    with pytest.raises(RequestError):
        gate.catch_up(lambda: requests.list(PODS))  # fails, because the client was not started
    gate.seen("ADDED", a_pod("b", {}))
    assert receiver.told == []
    gate.close()
    gate.open()
    assert receiver.told == []
    gate.catch_up(lambda: [a_pod("a", {})])
    assert receiver.told == ["listed a", "ADDED b"]


def test_the_watchs_list_replaces_one_made_meanwhile() -> None:
    receiver = Receiver()
    gate = NodeGate(Jobs(), None, lambda: receiver)

    def listing() -> Sequence[Json]:
        gate.listed([a_pod("new", {})])
        return [a_pod("old", {})]

    gate.catch_up(listing)
    assert receiver.told == ["listed new"]
