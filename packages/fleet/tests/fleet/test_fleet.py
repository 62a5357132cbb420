"""A fleet on the API server for tests: pods, faults, and what survives a restart."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from devicecore_fleet.fleet import assembly
from devicecore_fleet.fleet.metrics import FleetCollector
from devicecore_tools.testing.api_server import LocalApiServer
from tests.fleet.world import FILE, PATIENCE, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with LocalApiServer() as server:
        made = World(server, tmp_path)
        yield made
        made.close()


def test_at_rest_a_node_sends_its_lease_and_nothing_else(world: World) -> None:
    fleet = world.start()
    world.until(world.is_settled)
    node = world.server.get("Node", "n-1")
    assert node["metadata"]["labels"]["devicecore.io/fleet"] == "true"
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["devicecore.io/virtual"]
    world.until(lambda: Counter(one.verb for one in world.server.requests)["watch"] == 2)
    before = len(world.server.requests)
    for renewals in (2, 4, 6):  # requests from one tick are sent before the Leases of the next tick
        for name, virtual in world.fleet.nodes.items():
            virtual.tick()
            world.fleet.connections[name].tick()
        world.until(lambda renewals=renewals: len(world.server.requests) >= before + renewals)  # type: ignore[misc]  # mypy: a default for a captured loop variable
    assert Counter(f"{one.verb} {one.resource}" for one in world.server.requests[before:]) == {"update leases": 6}
    assert threading.active_count() < 30
    assert list(FleetCollector(lambda: fleet.totals(0)).collect()) == [], "only the loop's thread may count"
    with ThreadPoolExecutor(1) as scrape:
        counted = scrape.submit(lambda: list(FleetCollector(fleet.totals).collect()))
        world.until(counted.done)
    samples = {(one.name, *one.labels.values()): one.value for metric in counted.result() for one in metric.samples}
    assert samples["devicecore_fleet_nodes", "up"] == 2
    assert samples["devicecore_fleet_devices", "example.com/gpu", "free"] == 8


def test_a_large_fleet_creates_its_nodes_without_reading_each_of_them(world: World) -> None:
    world.start(file=FILE.replace("count: 2\n", "count: 20\n", 1))
    world.until(lambda: len(world.server.objects("Lease", "kube-node-lease")) == 20)
    sent = Counter(f"{one.verb} {one.resource}" for one in world.server.requests)
    assert (sent["list leases"], sent["get leases"], sent["create nodes"]) == (1, 0, 20)


def test_a_pod_that_runs_leaves_its_node_nothing_to_do(world: World) -> None:
    fleet = world.start()
    world.until(world.is_settled)
    world.until(lambda: fleet.step() > time.monotonic())
    engine = fleet.nodes["n-0"].engine
    assert engine is not None
    world.pod("a")
    due = 0.0
    while not engine.phases.get("Running"):
        assert world.woken.wait(PATIENCE)
        world.woken.clear()
        due = fleet.step()
    assert due > time.monotonic()


def test_pods_get_devices_are_refused_and_go(world: World) -> None:
    world.start()
    world.pod("three", gpus=3)
    world.until(lambda: world.phase("three") == "Running")
    assert world.devices("three") == dict.fromkeys(["gpu-0", "gpu-1", "gpu-2"], "Healthy")
    world.pod("two", gpus=2)
    world.until(lambda: world.phase("two") == "Failed")
    assert world.server.get("Pod", "two")["status"]["reason"] == "UnexpectedAdmissionError"
    world.server.delete("Pod", "three")
    world.until(lambda: world.names() == ["two"])
    world.pod("four", gpus=4)
    world.until(lambda: world.phase("four") == "Running")


def test_the_file_says_how_containers_end_unless_their_pod_does(world: World) -> None:
    world.start(file=FILE + "  containers: [{pods: 'ends*', do: 'main: exit 3; other: oom'}]")
    for name, annotation in (("ends", ""), ("ends-well", "exit 0"), ("goes-on", "")):
        annotations = {"devicecore.io/containers": annotation}
        spec = {"nodeName": "n-0", "restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
        world.server.create({"kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec})
    world.until(lambda: world.phase("ends") == "Failed" and world.phase("ends-well") == "Succeeded")
    (container,) = world.server.get("Pod", "ends")["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 3
    world.until(lambda: world.phase("goes-on") == "Running")
    assert not [one for one in world.server.objects("Event") if one["reason"] == "NotUnderstood"]


@pytest.mark.parametrize("has_sockets", [False, True])
def test_a_claim_gets_its_device_once_and_its_health_is_shown(world: World, directory: Path, has_sockets: bool) -> None:
    world.start(file=FILE + (f"  directory: {directory}/{{node}}" if has_sockets else ""))
    world.until(world.is_settled)
    assert world.offered("n-0") == ["nic-0", "nic-1"]
    world.give("first", "nic-1")
    world.until(lambda: world.phase("first") == "Running")
    world.give("second", "nic-1")
    world.until(lambda: [one for one in world.server.objects("Event") if "is prepared for" in one["message"]])
    assert world.phase("second") == "Pending"
    world.fleet.command_now("n-0", ("unhealthy", "nic-1"))
    world.until(lambda: "Unhealthy" in world.devices("first").values() and world.offered("n-0") == ["nic-0"])


def test_faults_change_what_the_cluster_sees(world: World) -> None:
    fleet = world.start()
    world.until(world.is_settled)
    world.pod("a", gpus=1)
    world.until(lambda: world.phase("a") == "Running")
    assert fleet.command_now("n-*", ("unhealthy", "gpu-0")).obeyed == 2
    world.until(lambda: world.allocatable() == "3" and world.devices("a") == {"gpu-0": "Unhealthy"})
    fleet.command_now("n-0", ("plugin-gone", "example.com/gpu"))
    world.until(lambda: world.allocatable() == "0")
    fleet.command_now("n-0", ("plugin-back", "example.com/gpu"))
    world.until(lambda: world.allocatable() == "3")
    fleet.command_now("n-0", ("partition",))
    world.pod("b", gpus=1)
    world.pod("c", "n-1", gpus=1)
    world.until(lambda: world.phase("c") == "Running")
    before = world.server.get("Lease", "n-0", "kube-node-lease")
    fleet.connections["n-0"].tick()
    fleet.connections["n-1"].tick()
    last = len(world.server.requests)
    world.until(lambda: [one for one in world.server.requests[last - 1 :] if one.resource == "leases"])
    assert world.server.get("Lease", "n-0", "kube-node-lease") == before
    assert world.phase("b") == "Pending"
    fleet.command_now("n-0", ("heal",))
    world.until(lambda: world.phase("b") == "Running")
    assert fleet.command_now("n-7", ("heal",)).sentences == ("there is no node n-7; nodes: n-0, n-1",)
    assert fleet.command_now("n-0", ("unhealthy", "gpu-9")).obeyed == 0


def test_a_node_comes_up_after_a_reboot_unless_told_to_stay_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devicecore_fleet.fleet.fleet.REBOOT", 0.01)
    fleet = world.start()
    assert fleet.command_now("n-*", ("reboot",)).obeyed == 2
    fleet.command_now("n-0", ("down",))
    world.until(lambda: [view.state for view in fleet.views()] == ["down", "up"])


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_node_that_was_down_keeps_the_devices_of_its_pods(world: World, tmp_path: Path, on_disk: bool) -> None:
    root = tmp_path / "root"
    root.mkdir()
    fleet = world.start(root if on_disk else None)
    for number in range(3):
        world.pod(f"p{number}")
        world.until(lambda number=number: world.phase(f"p{number}") == "Running")  # type: ignore[misc]  # mypy: a default for a captured loop variable
    world.server.delete("Pod", "p1")
    world.until(lambda: world.names() == ["p0", "p2"])
    fleet.command_now("n-0", ("down",))
    world.server.delete("Pod", "p0")
    world.pod("p3")
    world.until(lambda: [view.state for view in fleet.views()] == ["down", "up"])
    fleet.command_now("n-0", ("up",))
    world.until(lambda: world.names() == ["p2", "p3"] and world.phase("p3") == "Running")
    assert world.devices("p2") == {"gpu-2": "Healthy"}
    held = [cell.value for view in fleet.views() for _, cell in view.providers[0].devices if view.name == "n-0"]
    assert sorted(held) == ["free", "free", "held", "held"]


@pytest.mark.parametrize("has_sockets", [False, True])
def test_a_fleet_that_stops_changes_nothing_on_the_server(world: World, directory: Path, has_sockets: bool) -> None:
    file = FILE.replace("count: 2\n", f"count: {4 if has_sockets else 20}\n", 1)
    fleet = world.start(file=file + (f"  directory: {directory}/{{node}}" if has_sockets else ""))
    world.pod("a")
    world.give("b", "nic-1")
    kinds = ("Node", "Pod", "ResourceClaim", "ResourceSlice", "Event")

    def shown() -> list[dict[str, Any]]:
        return [one for kind in kinds for one in world.server.objects(kind)]

    def renewals() -> int:
        return [one.resource for one in world.server.requests].count("leases")

    world.until(lambda: len(world.server.objects("ResourceSlice")) == 2 * len(fleet.nodes))
    world.until(lambda: len(world.server.objects("Event")) >= len(fleet.nodes))
    world.until(lambda: all(world.allocatable(name) == "4" for name in fleet.nodes))
    world.until(lambda: world.phase("a") == world.phase("b") == "Running")
    before = shown()
    fleet.stop()
    asked = renewals()
    for connection in fleet.connections.values():
        connection.tick()  # the Leases are renewed after what the nodes have written before
    world.server.wait_for(lambda: renewals() >= asked + len(fleet.nodes))
    assert shown() == before


def test_a_fleet_that_starts_again_writes_nothing_that_already_exists(world: World, tmp_path: Path) -> None:
    world.start(tmp_path)
    world.until(world.is_settled)
    for number in range(3):
        world.pod(f"p{number}")
    world.until(lambda: all(world.phase(f"p{number}") == "Running" for number in range(3)))
    before = {name: world.devices(name) for name in world.names()}
    world.closing.close()
    last = len(world.server.requests)
    fleet = world.start(tmp_path)
    world.until(
        lambda: all(node.view().pods.get("Running") == 3 for name, node in fleet.nodes.items() if name == "n-0")
    )
    world.until(lambda: len([one for one in world.server.requests[last:] if one.resource == "leases"]) >= 4)
    world.pod("p3")
    world.until(lambda: world.phase("p3") == "Running")
    assert {name: world.devices(name) for name in before} == before
    assert {id_ for name in world.names() for id_ in world.devices(name)} == {"gpu-0", "gpu-1", "gpu-2", "gpu-3"}
    written = {f"{one.verb} {one.resource}" for one in world.server.requests[last:]}
    assert not {"create resourceslices", "update resourceslices", "delete pods"} & written


def test_changes_while_the_server_is_down_are_reported_afterwards(world: World) -> None:
    fleet = world.start()
    world.until(world.is_settled)
    world.pod("before")
    world.until(lambda: world.phase("before") == "Running")
    world.server.stop()
    fleet.command_now("n-0", ("unhealthy", "gpu-0"))
    world.until(lambda: fleet.nodes["n-0"].view().providers[0].devices[0][1].value == "held and unhealthy")
    world.pod("meanwhile")
    world.server.delete("Pod", "before")
    world.server.start()
    world.until(lambda: world.names() == ["meanwhile"] and world.phase("meanwhile") == "Running")
    assert world.devices("meanwhile") == {"gpu-1": "Healthy"}
    world.until(lambda: world.allocatable() == "3")


def test_a_node_forgets_claims_that_are_released_and_times_of_earlier_looks(world: World) -> None:
    fleet = world.start()
    world.until(world.is_settled)
    world.give("claims", "nic-1")
    world.until(lambda: world.phase("claims") == "Running")
    node = fleet.nodes["n-0"]
    remembered = node._drivers["nic.example.com"].claims._read  # noqa: SLF001 - memory is shown nowhere else
    assert len(remembered) == 1
    world.server.delete("Pod", "claims")
    world.until(lambda: not remembered)
    metadata = {"name": "long", "annotations": {"devicecore.io/run-for": "24h"}}
    spec = {"nodeName": "n-0", "restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
    world.server.create({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec})
    world.until(lambda: world.phase("long") == "Running")
    for _ in range(50):
        node._wake()  # noqa: SLF001 - as a pod or a plugin does
        fleet.step()
    times = fleet._due  # noqa: SLF001 - as above
    assert max(times) == (max(at for at, _ in times), "n-0")
    assert len(times) <= 4 * len(fleet.nodes)


def test_a_node_that_the_controller_has_lost_is_ready_again_by_the_watch(world: World) -> None:
    """The node lifecycle controller writes Unknown after an outage, even if the Lease has already been renewed."""
    world.start()
    world.until(world.is_settled)
    world.until(lambda: Counter(one.verb for one in world.server.requests)["watch"] == 2)

    def lose(node: dict[str, Any]) -> None:
        for one in node["status"]["conditions"]:
            one |= {"status": "Unknown", "reason": "NodeStatusUnknown"}

    def is_ready(name: str) -> bool:
        conditions = world.server.get("Node", name)["status"]["conditions"]
        return bool({one["type"]: one["status"] for one in conditions}["Ready"] == "True")

    before = len(world.server.requests)
    for name in ("n-0", "n-1"):
        world.server.change("Node", name, lose)
    world.until(lambda: is_ready("n-0") and is_ready("n-1"))
    sent = Counter(f"{one.verb} {one.resource}" for one in world.server.requests[before:] if one.resource != "leases")
    assert sent == {"patch nodes/status": 2}
    world.fleet.command_now("n-0", ("partition",))
    world.server.change("Node", "n-0", lose)
    world.server.change("Node", "n-1", lose)
    world.fleet.connections["n-1"].tick()
    world.until(lambda: is_ready("n-1"))
    assert not is_ready("n-0"), "a separated node learns nothing"
    world.fleet.command_now("n-0", ("heal",))
    world.until(lambda: is_ready("n-0"))


def test_a_driver_reports_the_health_of_its_devices_again_and_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report is valid for 30 seconds, and a real driver sends a new report before the previous one expires."""
    later = [0.0]
    monkeypatch.setattr(assembly, "monotonic", lambda: time.monotonic() + later[0])
    fleet = world.start()
    world.until(world.is_settled)
    world.give("a", "nic-0")
    world.until(lambda: set(world.devices("a").values()) == {"Healthy"})
    for _ in range(3):
        later[0] += 20.0
        fleet.step()
    world.server.change("Pod", "a", lambda pod: pod["status"]["containerStatuses"].clear())  # the node must repair this
    world.until(lambda: world.devices("a"))
    assert set(world.devices("a").values()) == {"Healthy"}
