"""Pods, a plugin and a manager for the reliability tests and the processes that they start."""

from collections.abc import Mapping
from pathlib import Path

from devicecore import Admitted, Container, DeviceManager, Pod, PodUid
from devicecore.adapters.file import FileStore
from devicecore.adapters.memory import MemorySink, MemoryTransport
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices

GPU = "acme.io/gpu"
Holders = Mapping[str, tuple[str, ...]]
"""The devices of each pod, by pod UID."""


def pod(uid: str, size: int = 2, resource: str = GPU) -> Pod:
    """Return a pod with one container, which requests `size` devices (none if it is 0)."""
    return Pod(PodUid(uid), containers=(Container("main", {"cpu": 1, **({resource: size} if size else {})}),))


def plugin(resource: str = GPU, count: int = 32) -> SimulatedPlugin:
    """Return a plugin with `count` devices."""
    return SimulatedPlugin(resource, simulated_devices("gpu", count))


def in_memory(directory: Path) -> tuple[DeviceManager, MemoryTransport]:
    """Return a manager with its checkpoint in `directory`, and the manager's in-memory transport."""
    transport = MemoryTransport()
    return DeviceManager(transport, FileStore.in_directory(directory), MemorySink()), transport


def admit(manager: DeviceManager, uid: str) -> tuple[str, ...]:
    """Admit a pod, and return its devices.

    Raises: AssertionError: the pod is not admitted.
    """
    verdict = manager.admit(pod(uid))
    assert isinstance(verdict, Admitted), verdict
    return tuple(verdict.devices("main")[GPU])  # type: ignore[index]  # of ResourceName


def held(manager: DeviceManager) -> Holders:
    """Return the devices that each pod holds."""
    return {allocation.key.pod: tuple(allocation.devices) for allocation in manager.state.ledger}
