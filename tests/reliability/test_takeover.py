"""Old and new instances of one plugin, in real processes.

Law: of the connected instances, the one that registered last is used, no matter in what order they disconnect.
"""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devicecore import Admitted, DeviceManager, NodeState, ResourceName
from devicecore.adapters.file import FileStore
from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin
from devicecore.adapters.memory import MemorySink
from devicecore.domain.model import PluginId
from tests.reliability.child import Child
from tests.reliability.pods import GPU, admit, held, plugin, pod
from tests.reliability.scale import PATIENCE
from tests.reliability.storm import measured, settled


@contextmanager
def instance(directory: Path, name: str, *devices: str) -> Generator[Child, None, None]:
    """Run an instance of the plugin that serves but is not registered yet."""
    with Child("signing_plugin", directory, name, *devices) as process:
        assert process.line() == "serving"
        yield process


def registered(process: Child) -> str:
    """Make the instance register, and return the response."""
    process.send("register")
    return process.line()


def lists(*ids: str) -> "Lists":
    """Return a condition that is true if the healthy devices are exactly `ids`."""
    return Lists(ids)


class Lists:
    """The condition that `lists` returns."""

    def __init__(self, ids: tuple[str, ...]) -> None:
        self._ids = set(ids)

    def __call__(self, node: NodeState) -> bool:
        resource = node.inventory.resources.get(ResourceName(GPU))
        return resource is not None and resource.report is not None and set(resource.report.healthy) == self._ids


@pytest.fixture
def manager(directory: Path) -> Generator[DeviceManager, None, None]:
    """A running manager that uses real sockets."""
    store = FileStore.in_directory(directory)
    with DeviceManager(GrpcUnixTransport(directory), store, MemorySink()) as manager:
        yield manager


def instances(manager: DeviceManager) -> int:
    """Return the number of connected instances."""
    return len(manager.state.inventory.resources[ResourceName(GPU)].plugins)


def answered_by(manager: DeviceManager, uid: str) -> int:
    """Return the id of the process that answered Allocate for a pod."""
    options = manager.start_container(pod(uid), "main")
    assert options is not None
    return int(options.envs["BY"])


@pytest.mark.parametrize("way", [pytest.param("stopped", marks=pytest.mark.slow), "alive", "killed"])
def test_a_new_process_on_the_same_path_replaces_the_old_one(directory: Path, manager: DeviceManager, way: str) -> None:
    """In a rolling update over one socket, an old plugin that hangs does not block the new one."""
    with instance(directory, "p.sock", "old-0", "old-1") as old:
        assert registered(old) == "StatusCode.OK"
        manager.wait_for(lists("old-0", "old-1"), PATIENCE)
        if way != "alive":
            old.send_signal(signal.SIGSTOP if way == "stopped" else signal.SIGKILL)
        with instance(directory, "p.sock", "new-0", "new-1") as new:
            assert registered(new) == "StatusCode.OK"
            manager.wait_for(lists("new-0", "new-1"), PATIENCE)
            assert instances(manager) == 1
            if way == "stopped":
                old.send_signal(signal.SIGCONT)
            if way != "killed":
                old.send("list", "old-0", "old-1", "old-2")  # a list from the instance that was replaced
                old.send("disconnect")
            old.kill()
            old.wait()
            new.send("list", "new-0", "new-1", "new-2")
            manager.wait_for(lists("new-0", "new-1", "new-2"), PATIENCE)
            assert admit(manager, "pod-1") == ("new-0", "new-1")
            assert answered_by(manager, "pod-1") == new.pid
            assert registered(new) == "StatusCode.OK"
            assert instances(manager) == 1


@pytest.mark.parametrize("way", ["disconnect", pytest.param("killed", marks=pytest.mark.slow)])
def test_late_disconnects_and_lists_change_no_new_instance(directory: Path, manager: DeviceManager, way: str) -> None:
    """Two instances have two sockets, as with maxSurge (kubernetes#121994, #135437)."""
    with instance(directory, "a.sock", "d0", "d1") as old, instance(directory, "b.sock", "d0", "d1", "d2") as new:
        assert registered(old) == "StatusCode.OK"
        manager.wait_for(lists("d0", "d1"), PATIENCE)
        devices = admit(manager, "pod-1")
        assert registered(new) == "StatusCode.OK"
        manager.wait_for(lists("d0", "d1", "d2"), PATIENCE)
        before = manager.state.inventory.resources[ResourceName(GPU)].plugins[0].report
        old.send("list", "d0")  # another list from the old instance
        manager.wait_for(lambda node: node.inventory.resources[ResourceName(GPU)].plugins[0].report != before, PATIENCE)
        assert lists("d0", "d1", "d2")(manager.state)
        if way == "disconnect":
            old.send("disconnect")
        else:
            old.kill()
        manager.wait_for(lambda node: len(node.inventory.resources[ResourceName(GPU)].plugins) == 1, PATIENCE)
        assert lists("d0", "d1", "d2")(manager.state)
        assert held(manager) == {"pod-1": devices}
        assert isinstance(manager.admit(pod("pod-2", 1)), Admitted)
        assert answered_by(manager, "pod-2") == new.pid


def test_the_older_instance_is_used_when_the_newer_one_is_lost(directory: Path, manager: DeviceManager) -> None:
    with instance(directory, "a.sock", "a0", "a1") as old:
        assert registered(old) == "StatusCode.OK"
        manager.wait_for(lists("a0", "a1"), PATIENCE)
        with instance(directory, "b.sock", "b0", "b1") as new:
            assert registered(new) == "StatusCode.OK"
            manager.wait_for(lists("b0", "b1"), PATIENCE)
            new.kill()
            manager.wait_for(lists("a0", "a1"), PATIENCE)
        assert admit(manager, "pod-1") == ("a0", "a1")
        assert answered_by(manager, "pod-1") == old.pid


def test_a_closed_connection_leaves_no_file_descriptor(directory: Path) -> None:
    """The plugin continues to run, so only the manager's side can close the connection."""
    transport, known = GrpcUnixTransport(directory), ResourceName(GPU)
    with (
        DeviceManager(transport, FileStore.in_directory(directory), MemorySink()) as manager,
        serve_plugin(plugin(), directory, poll_interval=0.02),
    ):

        def reconnect() -> None:
            node = manager.wait_for(reported, PATIENCE)
            old = node.inventory.resources[known].plugins[-1].id
            transport.disconnect(old)
            manager.wait_for(lambda node: reported(node) and reported(node) != old, PATIENCE)

        def reported(node: NodeState) -> PluginId | None:
            last = node.inventory.resources[known].plugins[-1:]
            return last[0].id if last and last[0].report else None

        manager.wait_for(lambda node: known in node.inventory.resources, PATIENCE)
        reconnect()
        before = measured()
        for _ in range(10):
            reconnect()
        assert settled(before)["descriptors"] <= before["descriptors"]
