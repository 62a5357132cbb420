"""A node without processes: in-memory plugins and drivers, a directory of manifests, and a `NodeEngine`."""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self, cast

from devicecore_tools.node.claims import DraParts, NodeClaims
from devicecore_tools.node.dra import NodeClaimSource
from devicecore_tools.node.engine import NodeEngine
from devicecore_tools.node.feed import ManifestFeed
from devicecore_tools.node.state import KubeletState

from devicecore.adapters.grpc_unix.watcher import PluginHandler
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.adapters.memory_dra import MemoryClaims, MemoryDriverInstance, MemoryDriverTransport
from devicecore.dra_manager import DraManager
from devicecore.manager import DeviceManager
from devicecore.ports.dra_driver import DraDriver
from devicecore.ports.dra_observer import DraObserver

GPU, NIC = "acme.io/gpu", "acme.io/nic"
PATIENCE = 60.0  # seconds; far more than needed


class Node:
    """The device manager and the DRA manager of a node, with plugins, drivers and the engine.

    `claim_store` contains the claims file, and `api_claims` contains the claims on an API server.
    """

    def __init__(
        self, directory: Path, store: MemoryStore | None = None, claim_store: MemoryStore | None = None
    ) -> None:
        self.claim_store = claim_store or MemoryStore()
        self.drivers = MemoryDriverTransport()
        self.api_claims = MemoryClaims()
        self.manifests = directory / "manifests"
        self.manifests.mkdir(exist_ok=True)
        self.transport = MemoryTransport()
        self.manager = DeviceManager(self.transport, store or MemoryStore(), MemorySink())
        self._woken = threading.Event()
        self.pods = ManifestFeed(self.manifests, directory / "pods_state")
        self.claims = NodeClaims(self._dra_parts, self._woken.set)
        self.engine = NodeEngine(self.manager, self.pods, self.claims, self._woken.set)

    def _dra_parts(self, observer: DraObserver) -> DraParts:
        source = NodeClaimSource(self.pods, self.api_claims)
        manager = DraManager(self.drivers, source, self.claim_store, pods=self.pods, observers=(observer,))
        return DraParts(manager, cast("PluginHandler", None), ExitStack())  # no plugin watcher calls the handler

    def __enter__(self) -> Self:
        self.engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()

    def register(self, driver: DraDriver) -> MemoryDriverInstance:
        """Register a driver, as the plugin watcher does when it finds one."""
        self.claims.start()
        instance = self.drivers.register(driver)
        self.claims.notify(None)
        return instance

    def put(self, name: str, *objects: Mapping[str, object]) -> None:
        """Write a manifest with these objects."""
        (self.manifests / f"{name}.yaml").write_text("\n---\n".join(map(json.dumps, objects)))

    def remove(self, name: str) -> None:
        """Delete a manifest."""
        (self.manifests / f"{name}.yaml").unlink()

    def wait_until(self, condition: Callable[[KubeletState], object]) -> KubeletState:
        """Run turns of the engine until the condition is true for its state, and return the state."""
        while not condition(state := self.turn()):
            assert self._woken.wait(PATIENCE), state
            self._woken.clear()
        return state

    def write(self, name: str, **limits: int) -> None:
        said = ", ".join(f"acme.io/{resource}: {count}" for resource, count in limits.items())
        (self.manifests / f"{name}.yaml").write_text(
            f"{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}},\n"
            f"spec: {{containers: [{{name: main, resources: {{limits: {{{said}}}}}}}]}}}}"
        )

    def turn(self) -> KubeletState:
        self.engine.poll()
        self.engine.advance()
        return self.engine.state()

    def wait_until_settled(self) -> KubeletState:
        """Run turns of the engine until nothing more happens on its own."""
        return self.wait_until(lambda state: state.is_settled)

    def wait_for_phases(self, **expected: str) -> KubeletState:
        """Run turns of the engine until these pods are in these phases."""
        return self.wait_until(
            lambda state: expected.items() <= {pod.pod.name: pod.phase for pod in state.pods}.items()
        )
