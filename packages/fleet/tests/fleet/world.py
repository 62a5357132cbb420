"""A fleet on the API server for tests, whose loop runs in the test's thread."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from devicecore_fleet.fleet import assembly
from devicecore_fleet.fleet.description import FleetDescription
from devicecore_fleet.fleet.fleet import Fleet
from devicecore_fleet.fleet.reading import parse_fleet
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


MANIFEST = Path(__file__).parents[4] / "docs" / "fleet" / "fleet.yaml"


def permitted() -> set[tuple[str, str]]:
    """Return the verbs and resources in the manifest's roles."""
    objects = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    roles = [one for one in objects if one["kind"] in ("ClusterRole", "Role")]
    rules = [rule for role in roles for rule in role["rules"]]
    return {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


class World:
    """A fleet whose loop runs in the test's thread."""

    def __init__(self, server: LocalApiServer, directory: Path) -> None:
        self.server = server
        self.kubeconfig = server.kubeconfig(directory / "kubeconfig")
        self.woken = threading.Event()
        self.closing = ExitStack()

    def close(self) -> None:
        """Stop the fleet, and check that it made no request that the manifest's roles do not allow."""
        self.closing.close()
        asked = {(one.verb, one.resource) for one in self.server.requests}
        assert asked <= permitted(), asked - permitted()

    def start(self, root: Path | None = None, file: str = FILE) -> Fleet:
        settings = assembly.FleetSettings(self.kubeconfig, root=root)
        self.file = file
        self.fleet = assembly.start(self.described(), settings, self.woken.set, self.closing, self.described)
        return self.fleet

    def described(self) -> FleetDescription:
        """Return the current content of the fleet's file."""
        return parse_fleet(self.file, "fleet.yaml")

    def until(self, condition: Callable[[], object], *, but: Callable[[], object] = lambda: "") -> None:
        """Run the fleet until a condition is true."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, but()
            self.turn()

    def turn(self) -> None:
        """Run the fleet's due work, and wait briefly for more."""
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
        """Return the devices in a pod's status, with their health."""
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
        started = {one["involvedObject"]["name"] for one in self.server.objects("Event")}
        return len(slices) == 4 and len(leases) == len(nodes) == 2 and has_devices and {*nodes} <= started

    def offered(self, node: str) -> list[str]:
        """Return the devices in a node's slices."""
        slices = [one["spec"] for one in self.server.objects("ResourceSlice") if one["spec"]["nodeName"] == node]
        return sorted(device["name"] for one in slices for device in one.get("devices", ()))

    def give(self, name: str, device: str) -> None:
        """Create a pod, and a claim of the pod with a device of n-0 allocated to it."""
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
