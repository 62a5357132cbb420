"""A directory belongs to one manager at a time, and to the next as soon as that manager has ended or been killed."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from devicecore import DeviceManager, ResourceName
from devicecore.adapters.file import CHECKPOINT_NAME, FileStore
from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin
from devicecore.adapters.memory import MemorySink
from devicecore.domain.errors import DirectoryInUseError, ManagerStoppedError
from tests.reliability.child import Child
from tests.reliability.pods import GPU, admit, held, plugin, pod
from tests.reliability.scale import PATIENCE


def managed(directory: Path | str) -> DeviceManager:
    """Return a manager with its sockets and its checkpoint in `directory`."""
    return DeviceManager(GrpcUnixTransport(directory), FileStore.in_directory(directory), MemorySink())


def main(directory: str, uid: str) -> None:
    """Run a manager, admit a pod, print its devices and the id of a child that outlives this process, and wait."""
    try:
        with managed(directory) as manager:
            manager.wait_for(lambda node: bool(node.inventory.status().allocatable), PATIENCE)
            print(*admit(manager, uid), flush=True)  # noqa: T201 - what the test reads
            with subprocess.Popen(["sleep", "60"]) as sleeper:  # noqa: S607 - wherever it is
                print(sleeper.pid, flush=True)  # noqa: T201 - as above
                threading.Event().wait()
    except DirectoryInUseError as refusal:
        print("refused:", refusal, flush=True)  # noqa: T201 - as above


def test_a_second_process_is_refused_and_takes_over_when_the_first_is_killed(directory: Path) -> None:
    with serve_plugin(plugin(), directory, poll_interval=0.1), Child("test_one_owner", directory, "pod-1") as first:
        devices = first.line().split()
        sleeper = int(first.line())
        try:
            assert len(devices) == 2
            blob = (directory / "kubelet_internal_checkpoint").read_bytes()
            with Child("test_one_owner", directory, "pod-2") as second:
                assert "belongs to another running kubelet" in second.line()
                assert second.wait(PATIENCE) == 0
            with pytest.raises(DirectoryInUseError):
                managed(directory).start()
            assert (directory / "kubelet_internal_checkpoint").read_bytes() == blob
            first.kill()
            first.wait()
            with managed(directory) as third:  # a child of the first process is still running
                assert held(third) == {"pod-1": tuple(devices)}
                third.wait_for(lambda node: bool(node.inventory.status().allocatable.get(ResourceName(GPU))), PATIENCE)
                assert not set(admit(third, "pod-3")) & set(devices)
        finally:
            os.kill(sleeper, signal.SIGKILL)


def test_a_refused_manager_changes_no_file(directory: Path) -> None:
    """The refused manager does not set an invalid checkpoint aside, because the file belongs to the running manager."""
    with managed(directory):
        checkpoint = directory / CHECKPOINT_NAME
        checkpoint.write_bytes(b"{torn")
        intruder = managed(directory)
        with pytest.raises(DirectoryInUseError):
            intruder.start()
        with pytest.raises(ManagerStoppedError):
            intruder.evict([pod("pod-1").uid])
        assert checkpoint.read_bytes() == b"{torn"
        assert list(directory.glob(f"{CHECKPOINT_NAME}*")) == [checkpoint]


if __name__ == "__main__":
    main(*sys.argv[1:])
