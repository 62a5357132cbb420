"""Pods, a plugin, and a manager that gives one to the other; in the tests' process and in others."""

from collections.abc import Mapping
from pathlib import Path

from devicecore import Admitted, Container, DeviceManager, Pod, PodUid
from devicecore.adapters.file import FileStore
from devicecore.adapters.memory import MemorySink, MemoryTransport
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices

GPU = "acme.io/gpu"
Holders = Mapping[str, tuple[str, ...]]
"""Devices by pod."""


def pod(uid: str, size: int = 2, resource: str = GPU) -> Pod:
    """A pod of one container, that wants `size` devices; with 0, a pod that wants none at all."""
    return Pod(PodUid(uid), containers=(Container("main", {"cpu": 1, **({resource: size} if size else {})}),))


def plugin(resource: str = GPU, count: int = 32) -> SimulatedPlugin:
    """A plugin with `count` devices."""
    return SimulatedPlugin(resource, simulated_devices("gpu", count))


def in_memory(directory: Path) -> tuple[DeviceManager, MemoryTransport]:
    """A manager whose checkpoint is in `directory`, and everything else in memory."""
    transport = MemoryTransport()
    return DeviceManager(transport, FileStore.in_directory(directory), MemorySink()), transport


def admit(manager: DeviceManager, uid: str) -> tuple[str, ...]:
    """Admit a pod; its devices.

    Raises:
        AssertionError: it was not admitted.
    """
    verdict = manager.admit(pod(uid))
    assert isinstance(verdict, Admitted), verdict
    return tuple(verdict.devices("main")[GPU])  # type: ignore[index]  # of ResourceName


def held(manager: DeviceManager) -> Holders:
    """Who holds what."""
    return {allocation.key.pod: tuple(allocation.devices) for allocation in manager.state.ledger}
