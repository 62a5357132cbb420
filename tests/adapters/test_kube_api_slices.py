"""The publisher of ResourceSlices, on the API server for tests."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devicecore_tools.testing.api_server import Answer, Drop, LocalApiServer
from devicecore_tools.testing.api_server.kinds import Kind
from devicecore_tools.testing.api_server.status import Json

from devicecore.adapters.kube_api import Access, Backoff, NodeNameError
from devicecore.adapters.kube_api.dra import KubeApiSlices
from devicecore.adapters.kube_api.slices import KubeApiSlicePublisher
from devicecore.domain.dra.errors import InvalidPoolError, SlicePublishError
from devicecore.domain.dra.model import DriverName
from devicecore.domain.dra.slices import DevicePool, PublishedDevice, changes
from tests.adapters.peers import PATIENCE

DRIVER, NODE = "gpu.example.com", "worker-1"
QUICK = Backoff(0.01, 0.05)


def devices(count: int) -> list[PublishedDevice]:
    return [PublishedDevice(f"dev-{number}") for number in range(count)]


@pytest.fixture
def server() -> Iterator[LocalApiServer]:
    with LocalApiServer() as server:
        server.create({"kind": "Node", "metadata": {"name": NODE}})
        yield server


@pytest.fixture
def publisher(server: LocalApiServer, tmp_path: Path) -> Iterator[KubeApiSlicePublisher]:
    with make(server, tmp_path) as publisher:
        yield publisher


def make(server: LocalApiServer, tmp_path: Path) -> KubeApiSlicePublisher:
    config = server.kubeconfig(tmp_path / "config")
    publisher = KubeApiSlicePublisher(DRIVER, NODE, Access(config), backoff=QUICK)
    publisher.start()
    return publisher


def published(publisher: KubeApiSlicePublisher, listed: list[PublishedDevice]) -> None:
    publisher.publish(listed)
    publisher.wait_until_published(PATIENCE)


def names(server: LocalApiServer) -> list[str]:
    return [device["name"] for one in server.objects("ResourceSlice") for device in one["spec"].get("devices", [])]


def shows(server: LocalApiServer, count: int) -> Callable[[], bool]:
    """Return a function that tells whether all slices form one complete pool with this many devices."""

    def is_shown() -> bool:
        slices = server.objects("ResourceSlice")
        expected = {(one["spec"]["pool"]["generation"], len(slices)) for one in slices}
        pools = {(one["spec"]["pool"]["generation"], one["spec"]["pool"]["resourceSliceCount"]) for one in slices}
        return pools == expected and len(pools) == 1 and names(server) == [device.name for device in devices(count)]

    return is_shown


def put(server: LocalApiServer, driver: str, node: str, pool: str, generation: int) -> str:
    """Create a slice as a different publisher would."""
    stored = DevicePool(DriverName(driver), node, pool, devices(2))
    (body,) = changes(stored, "uid", (), least_generation=generation).create
    created = {**body, "metadata": {"name": f"left-{driver}-{node}-{pool}"}}
    return str(server.create(created)["metadata"]["name"])


def test_devices_are_published_for_their_node(server: LocalApiServer, publisher: KubeApiSlicePublisher) -> None:
    published(publisher, devices(300))
    assert shows(server, 300)()
    uid = server.get("Node", NODE)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": True}
    for one in server.objects("ResourceSlice"):
        assert one["metadata"]["ownerReferences"] == [owner]
        assert (one["spec"]["driver"], one["spec"]["nodeName"], one["spec"]["pool"]["name"]) == (DRIVER, NODE, NODE)
    published(publisher, [])
    (empty,) = server.objects("ResourceSlice")
    assert empty["spec"]["pool"] == {"name": NODE, "generation": 2, "resourceSliceCount": 1}


def test_wiped_slices_are_restored(server: LocalApiServer, publisher: KubeApiSlicePublisher, tmp_path: Path) -> None:
    published(publisher, devices(129))
    with KubeApiSlices(NODE, Access(tmp_path / "config")) as kubelet:
        kubelet.delete(None)
    server.wait_for(shows(server, 129), PATIENCE)


def test_changes_by_others_are_repaired(server: LocalApiServer, publisher: KubeApiSlicePublisher) -> None:
    published(publisher, devices(2))
    (one,) = server.objects("ResourceSlice")
    server.change("ResourceSlice", one["metadata"]["name"], lambda body: body["spec"].update(devices=[{"name": "x"}]))
    server.wait_for(shows(server, 2), PATIENCE)
    server.delete("ResourceSlice", one["metadata"]["name"])
    server.wait_for(shows(server, 2), PATIENCE)


def test_a_response_that_is_not_a_list_is_logged_once(
    server: LocalApiServer, publisher: KubeApiSlicePublisher, caplog: pytest.LogCaptureFixture
) -> None:
    server.inject(*[Answer(200, [])] * 3, verb="list", resource="resourceslices")
    published(publisher, devices(1))
    [line] = [one for one in caplog.messages if "retrying until" in one]
    assert "expected a list of objects" in line


def test_a_wipe_is_noticed_even_if_watches_break(server: LocalApiServer, publisher: KubeApiSlicePublisher) -> None:
    published(publisher, devices(2))
    expired = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired"}
    server.inject(Answer(410, expired), Drop(), Answer(500, "broken"), verb="watch", resource="resourceslices")
    server.cut_watches()
    for one in server.objects("ResourceSlice"):
        server.delete("ResourceSlice", one["metadata"]["name"])
    server.wait_for(shows(server, 2), PATIENCE)


def test_an_earlier_runs_slices_are_replaced_and_others_are_kept(
    server: LocalApiServer, publisher: KubeApiSlicePublisher
) -> None:
    put(server, DRIVER, NODE, NODE, 7)
    put(server, DRIVER, NODE, "former-pool", 1)
    foreign = {put(server, "nic.example.com", NODE, NODE, 1), put(server, DRIVER, "worker-2", "worker-2", 1)}
    before = [server.get("ResourceSlice", name) for name in sorted(foreign)]
    published(publisher, devices(3))
    assert [server.get("ResourceSlice", name) for name in sorted(foreign)] == before
    (own,) = (one for one in server.objects("ResourceSlice") if one["metadata"]["name"] not in foreign)
    assert own["spec"]["pool"] == {"name": NODE, "generation": 8, "resourceSliceCount": 1}


def test_conflicts_and_lost_answers_end_the_same_way(server: LocalApiServer, publisher: KubeApiSlicePublisher) -> None:
    conflict = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409, "reason": "Conflict"}
    server.inject(Drop(after=True), verb="create", resource="resourceslices")
    server.inject(Answer(429, "slow down", {"Retry-After": "0"}), verb="create", resource="resourceslices")
    server.inject(Answer(409, conflict), verb="update", resource="resourceslices", times=None, every=2)
    published(publisher, devices(300))
    published(publisher, devices(299))
    assert shows(server, 299)()


def test_nothing_is_published_before_the_node_exists(tmp_path: Path) -> None:
    with LocalApiServer() as server, make(server, tmp_path) as publisher:
        publisher.publish(devices(1))
        server.wait_for(lambda: len(server.requests) > 2, PATIENCE)
        assert server.objects("ResourceSlice") == []
        assert "there is no node 'worker-1'" in str(publisher.problem)
        server.create({"kind": "Node", "metadata": {"name": NODE}})
        publisher.wait_until_published(PATIENCE)
        assert publisher.problem is None


def test_an_unavailable_server_is_queried_until_it_is_back(server: LocalApiServer, tmp_path: Path) -> None:
    with make(server, tmp_path) as publisher:
        server.stop()
        publisher.publish(devices(1))
        with pytest.raises(SlicePublishError, match=r"publish ResourceSlices of gpu\.example\.com: "):
            publisher.wait_until_published(0.2)
        server.start()
        publisher.wait_until_published(PATIENCE)
        server.stop()
        server.start()
        for one in server.objects("ResourceSlice"):
            server.delete("ResourceSlice", one["metadata"]["name"])
        server.wait_for(shows(server, 1), PATIENCE)


def test_a_refused_slice_is_a_problem_with_a_sentence(server: LocalApiServer, tmp_path: Path) -> None:
    server.forbidden.add("create resourceslices")
    with make(server, tmp_path) as publisher:
        publisher.publish(devices(1))
        server.wait_for(lambda: publisher.problem, PATIENCE)
        assert "forbidden: the permission to 'create resourceslices' is missing" in str(publisher.problem)


def test_devices_that_the_server_drops_fields_of_are_written_once(
    server: LocalApiServer, publisher: KubeApiSlicePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = server.store.create

    def dropping(kind: Kind, namespace: str, body: Json, *, manager: str, operation: str = "Update") -> Json:
        for device in body["spec"]["devices"]:
            del device["capacity"]
        return create(kind, namespace, body, manager=manager, operation=operation)

    monkeypatch.setattr(server.store, "create", dropping)
    published(publisher, [PublishedDevice("a", capacity={"memory": "1Gi"})])
    writes = [request.verb for request in server.requests if request.verb in ("create", "update", "delete")]
    assert writes == ["create"]


@pytest.mark.parametrize("cpus", ["1", "1000m"], ids=["as sent", "in a different form"])
def test_counter_sets_are_written_once(
    server: LocalApiServer,
    publisher: KubeApiSlicePublisher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cpus: str,
) -> None:
    create = server.store.create

    def normalizing(kind: Kind, namespace: str, body: Json, *, manager: str, operation: str = "Update") -> Json:
        for one in body["spec"].get("sharedCounters", ()):
            one["counters"]["cpus"] = {"value": "1"}
        return create(kind, namespace, body, manager=manager, operation=operation)

    monkeypatch.setattr(server.store, "create", normalizing)
    sets = [{"name": f"set-{number}", "counters": {"cpus": {"value": cpus}}} for number in range(9)]
    publisher.publish(devices(1), sets)
    publisher.wait_until_published(PATIENCE)
    writes = [request.verb for request in server.requests if request.verb in ("create", "update", "delete")]
    assert writes == ["create"] * 3
    assert not [line for line in caplog.messages if "retrying until" in line]


def test_slices_stay_when_the_publisher_is_closed(server: LocalApiServer, tmp_path: Path) -> None:
    publisher = make(server, tmp_path)
    publisher.stop()
    publisher = make(server, tmp_path)
    published(publisher, devices(1))
    before = threading.active_count()
    publisher.stop()
    publisher.stop()
    assert threading.active_count() < before
    assert shows(server, 1)()
    with pytest.raises(SlicePublishError, match="not started"):
        publisher.publish(devices(2))


def test_two_instances_with_the_same_devices_write_nothing(server: LocalApiServer, tmp_path: Path) -> None:
    with make(server, tmp_path) as first, make(server, tmp_path) as second:
        published(first, devices(2))
        before = server.objects("ResourceSlice")
        published(second, devices(2))
    assert server.objects("ResourceSlice") == before


def test_names_that_nothing_can_have_are_refused(server: LocalApiServer, tmp_path: Path) -> None:
    config = server.kubeconfig(tmp_path / "config")
    with pytest.raises(NodeNameError):
        KubeApiSlicePublisher(DRIVER, "Worker_1", Access(config))
    with pytest.raises(InvalidPoolError):
        KubeApiSlicePublisher("../driver", NODE, Access(config))
