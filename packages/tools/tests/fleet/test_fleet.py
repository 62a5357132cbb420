"""A fleet on the API server for tests: pods, faults, and what a restart keeps."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.fleet import assembly
from devicecore_tools.fleet.fleet import Fleet
from devicecore_tools.fleet.reading import parse_fleet
from devicecore_tools.testing.api_server import LocalApiServer

FILE = """
nodes:
- name: n-{number}
  count: 2
  numaNodes: 2
  plugins:
  - {resource: example.com/gpu, devices: 4}
  drivers:
  - name: nic.example.com
    sharedCounters: [{name: lanes, counters: {lanes: 4}}]
    devices:
    - {name: "nic-{number}", count: 2, numa: [0, 1], consumesCounters: [{counterSet: lanes, counters: {lanes: 2}}]}
"""
PATIENCE = 30.0


class World:
    """A fleet whose loop is the thread of the test."""

    def __init__(self, server: LocalApiServer, directory: Path) -> None:
        self.server = server
        self.kubeconfig = server.kubeconfig(directory / "kubeconfig")
        self.woken = threading.Event()
        self.closing = ExitStack()

    def start(self, root: Path | None = None, file: str = FILE) -> Fleet:
        settings = assembly.FleetSettings(self.kubeconfig, root=root)
        self.fleet = assembly.start(parse_fleet(file, "fleet.yaml"), settings, self.woken.set, self.closing)
        return self.fleet

    def until(self, condition: Callable[[], object], *, but: Callable[[], object] = lambda: "") -> None:
        """Run the fleet until something is true."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, but()
            self.woken.clear()
            due = self.fleet.step()
            self.woken.wait(max(0.0, min(due - time.monotonic(), 0.05)))

    def pod(self, name: str, node: str = "n-0", gpus: int = 1, claim: str = "") -> str:
        container: dict[str, Any] = {"name": "main", "image": "none"}
        spec: dict[str, Any] = {"nodeName": node, "containers": [container]}
        if claim:
            spec["resourceClaims"] = [{"name": "nic", "resourceClaimName": claim}]
            container["resources"] = {"claims": [{"name": "nic"}]}
        else:
            container["resources"] = {"limits": {"example.com/gpu": str(gpus)}}
        made = self.server.create({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec})
        return str(made["metadata"]["uid"])

    def phase(self, name: str) -> str:
        return str(self.server.get("Pod", name)["status"].get("phase"))

    def devices(self, name: str) -> dict[str, str]:
        """The devices that the status of a pod shows, with their health."""
        (container,) = self.server.get("Pod", name)["status"].get("containerStatuses") or [{}]
        rows = container.get("allocatedResourcesStatus") or []
        return {one["resourceID"]: one["health"] for row in rows for one in row.get("resources", ())}

    def allocatable(self, node: str = "n-0") -> str | None:
        found = (self.server.get("Node", node).get("status") or {}).get("allocatable") or {}
        return found.get("example.com/gpu")

    def is_settled(self) -> bool:
        nodes = {node["metadata"]["name"]: node for node in self.server.objects("Node")}
        slices = self.server.objects("ResourceSlice")
        leases = self.server.objects("Lease", "kube-node-lease")
        has_devices = all(self.allocatable(name) == "4" for name in nodes)
        return len(slices) == 4 and len(leases) == len(nodes) == 2 and has_devices

    def offered(self, node: str) -> list[str]:
        """The devices in the slices of a node."""
        slices = [one["spec"] for one in self.server.objects("ResourceSlice") if one["spec"]["nodeName"] == node]
        return sorted(device["name"] for one in slices for device in one.get("devices", ()))

    def give(self, name: str, device: str) -> None:
        """Create a pod and its claim, which has a device of n-0."""
        spec = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]}}
        version = {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1"}
        self.server.create({**version, "metadata": {"name": name}, "spec": spec})
        uid = self.pod(name, claim=name)
        result = {"request": "nic", "driver": "nic.example.com", "pool": "n-0", "device": device}
        users = [{"resource": "pods", "name": name, "uid": uid}]
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}
        self.server.change("ResourceClaim", name, lambda one: one.update(status=status))

    def names(self, node: str = "n-0") -> list[str]:
        return sorted(one["metadata"]["name"] for one in self.server.objects("Pod") if one["spec"]["nodeName"] == node)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with LocalApiServer() as server:
        made = World(server, tmp_path)
        yield made
        made.closing.close()


def test_at_rest_a_node_sends_its_lease_and_nothing_else(world: World) -> None:
    world.start()
    world.until(world.is_settled)
    node = world.server.get("Node", "n-1")
    assert node["metadata"]["labels"]["devicecore.io/fleet"] == "true"
    assert "devicecore.io/fleet" in [taint["key"] for taint in node["spec"]["taints"]]
    world.until(lambda: Counter(one.verb for one in world.server.requests)["watch"] == 1)
    before = len(world.server.requests)
    for connection in world.fleet.connections.values():
        connection.tick()
    world.until(lambda: len(world.server.requests) == before + 2)
    for virtual in world.fleet.nodes.values():
        virtual.tick()
    world.until(lambda: all(view.is_up for view in world.fleet.views()))
    assert Counter(f"{one.verb} {one.resource}" for one in world.server.requests[before:]) == {"update leases": 2}
    assert threading.active_count() < 30


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


def test_a_claim_gets_its_device_once_and_its_health_is_shown(world: World) -> None:
    world.start()
    world.until(world.is_settled)
    assert world.offered("n-0") == ["nic-0", "nic-1"]
    world.give("first", "nic-1")
    world.until(lambda: world.phase("first") == "Running")
    world.give("second", "nic-1")
    world.until(lambda: [one for one in world.server.objects("Event") if "is prepared for" in one["message"]])
    assert world.phase("second") == "Pending"
    world.fleet.order_now("n-0", ("unhealthy", "nic-1"))
    world.until(lambda: "Unhealthy" in world.devices("first").values() and world.offered("n-0") == ["nic-0"])


def test_faults_change_what_the_cluster_sees(world: World) -> None:
    fleet = world.start()
    world.until(world.is_settled)
    world.pod("a", gpus=1)
    world.until(lambda: world.phase("a") == "Running")
    assert fleet.order_now("n-*", ("unhealthy", "gpu-0")).obeyed == 2
    world.until(lambda: world.allocatable() == "3" and world.devices("a") == {"gpu-0": "Unhealthy"})
    fleet.order_now("n-0", ("plugin-gone", "example.com/gpu"))
    world.until(lambda: world.allocatable() == "0")
    fleet.order_now("n-0", ("plugin-back", "example.com/gpu"))
    world.until(lambda: world.allocatable() == "3")
    fleet.order_now("n-0", ("partition",))
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
    fleet.order_now("n-0", ("heal",))
    world.until(lambda: world.phase("b") == "Running")
    assert fleet.order_now("n-7", ("heal",)).sentences == ("there is no node n-7",)
    assert fleet.order_now("n-0", ("unhealthy", "gpu-9")).obeyed == 0


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
    fleet.order_now("n-0", ("down",))
    world.server.delete("Pod", "p0")
    world.pod("p3")
    world.until(lambda: [view.state for view in fleet.views()] == ["down", "up"])
    fleet.order_now("n-0", ("up",))
    world.until(lambda: world.names() == ["p2", "p3"] and world.phase("p3") == "Running")
    assert world.devices("p2") == {"gpu-2": "Healthy"}
    held = [cell.value for view in fleet.views() for _, cell in view.owners[0].devices if view.name == "n-0"]
    assert sorted(held) == ["free", "free", "held", "held"]


def test_a_fleet_that_starts_again_writes_nothing_that_is_there(world: World, tmp_path: Path) -> None:
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
