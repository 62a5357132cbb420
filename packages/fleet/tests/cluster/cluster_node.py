"""A node of a cluster without processes: a plugin in memory, an API server on a socket, and the engine between them."""

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from devicecore_fleet.cluster.object_watch import KubeApiPods
from devicecore_fleet.cluster.pods import ClusterPods, NodePods
from devicecore_fleet.cluster.registration import RegisteredNode
from devicecore_fleet.cluster.requests import KubeApiRequests
from devicecore_fleet.cluster.words.nodes import NodeDescription
from devicecore_fleet.cluster.writer import ApiWriter
from devicecore_tools.node.claims import DraParts, NodeClaims
from devicecore_tools.node.engine import NodeEngine
from devicecore_tools.testing.api_server import LocalApiServer

from devicecore import DeviceManager, ResourceName
from devicecore.adapters.kube_api import Access, Backoff
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.ports.plugin import DevicePlugin

Json = Any

NODE, GPU = "node-1", "acme.io/gpu"
PATIENCE = 20.0  # seconds; far more than is needed
SOON = Backoff(0.01, 0.05)


def a_pod(name: str, gpus: int = 1, **annotations: str) -> Json:
    resources = {part: {GPU: str(gpus)} for part in ("limits", "requests")} if gpus else {}
    said = {f"devicecore.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "annotations": said},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i", "resources": resources}]},
    }


class ClusterNode:
    """A node of a cluster. `run_until` is its main loop. A later node can continue with the checkpoint in `store`."""

    def __init__(
        self,
        server: LocalApiServer,
        directory: Path,
        store: MemoryStore | None = None,
        plugin: DevicePlugin | None = None,
        *,
        capacity: Mapping[str, str] | None = None,
        token: str = "token",  # noqa: S107 - of the server for tests
    ) -> None:
        kubeconfig = server.kubeconfig(directory / "kubeconfig", {"token": token})
        self.server = server
        self.store = store or MemoryStore()
        self.plugin = plugin or SimulatedPlugin(GPU, simulated_devices("gpu", 4, numa_nodes=[0]))
        self.woken = threading.Event()
        self.later = timedelta()
        self.writer = ApiWriter(KubeApiRequests(Access(kubeconfig, timeout=2.0)), backoff=SOON, threads=2)
        self.node = (
            None if capacity is None else RegisteredNode(NodeDescription(NODE, capacity, adopts=True), self.writer)
        )
        self.pods = ClusterPods(
            NODE, self.writer, self.woken.set, host_ips=("10.0.0.1",), node=lambda: self.node, wall=self.wall
        )
        self.watch = KubeApiPods(NodePods({NODE: self.pods}), Access(kubeconfig, timeout=2.0), node=NODE, backoff=SOON)
        self.transport = MemoryTransport()
        self.manager = DeviceManager(self.transport, self.store, self.node or MemorySink(), pods=self.pods)
        claims = NodeClaims(self._no_claims, self.woken.set)
        self.engine = NodeEngine(self.manager, self.pods, claims, self.woken.set, reporter=self.pods)

    def _no_claims(self, _observer: object) -> DraParts:
        raise AssertionError

    def wall(self) -> datetime:
        """Return the time, which a test can set forward."""
        return datetime.now(UTC) + self.later

    def __enter__(self) -> Self:
        self.engine.start()
        self.writer.start()
        if self.node is not None:
            self.node.tick()
            self.server.wait_for(lambda: self.server.objects("Lease"))
        self.watch.start()
        self.transport.connect(self.plugin)
        self.manager.wait_for(lambda state: state.inventory.current_report(ResourceName(GPU)), timeout=PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.stop()
        self.writer.stop()
        self.engine.stop()

    def run_until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Run turns of the engine until a condition is true."""
        end = threading.Event()
        timer = threading.Timer(seconds, end.set)
        timer.start()
        try:
            while not condition():
                assert not end.is_set(), (self.phases(), self.held(), self.server.requests[-3:])
                self.woken.wait(0.01)
                self.woken.clear()
                self.engine.poll()
                self.engine.advance()
        finally:
            timer.cancel()

    def held(self) -> dict[str, list[str]]:
        """Return the devices that each pod holds, by pod UID."""
        return {one.key.pod: sorted(one.devices) for one in self.manager.state.ledger}

    def phases(self) -> dict[str, str]:
        """Return each pod's phase on the server, by name."""
        return {one["metadata"]["name"]: one["status"]["phase"] for one in self.server.objects("Pod")}

    def bind(self, *pods: Json) -> None:
        """Create pods and bind them to this node."""
        for pod in pods:
            self.server.create(pod)
            self.server.bind(pod["metadata"]["name"], NODE)

    def status(self, name: str) -> Json:
        return self.server.get("Pod", name)["status"]

    def shown_devices(self) -> dict[str, list[str]]:
        """Return each running pod's devices, as the server shows them, by pod UID."""
        return {
            pod["metadata"]["uid"]: sorted(device["resourceID"] for device in one["resources"])
            for pod in self.server.objects("Pod")
            if pod["status"]["phase"] == "Running"
            for container in pod["status"]["containerStatuses"]
            for one in container.get("allocatedResourcesStatus", ())
        }

    def events(self, name: str) -> list[tuple[str, str]]:
        found = [one for one in self.server.objects("Event") if one["involvedObject"]["name"] == name]
        return [(one["reason"], one["message"]) for one in found]
