"""Links, pipes, sockets, devices and directories in place of `devicecore kubelet`'s files."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.world import KubeletWorld

from tests.adapters.peers import environment, leave_socket
from tests.reliability.scale import PATIENCE, STORM

FILES = ("state.json", "pods_state", "node.json", "dra_manager_state", "device-plugins/kubelet_internal_checkpoint")


PLANT: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to(path.parents[1 if path.parent.name == "root" else 2] / "foreign"),
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a full device": lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7)),
    "a socket": leave_socket,
}


@pytest.fixture
def world(directory: Path) -> Iterator[KubeletWorld]:
    (directory / "foreign").write_text("theirs")
    with KubeletWorld(directory) as world:
        yield world


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
@pytest.mark.parametrize("kind", PLANT if STORM else ["a link", "a pipe", "a full device"])
def test_a_planted_file_neither_ends_the_kubelet_nor_is_written_through(world: KubeletWorld, kind: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}}
    world.put("a", pod)
    for name in FILES:
        PLANT[kind](world.root / name)
    world.start()
    world.wait_until_running("a")
    assert world.end_kubelet() == 0
    assert (world.directory / "foreign").read_text() == "theirs"
    assert "Traceback" not in world.log.read_text()


def test_a_directory_in_place_of_the_checkpoint_is_refused_in_a_sentence(world: KubeletWorld) -> None:
    (world.root / FILES[-1]).mkdir()
    once = ("kubelet", "--root", str(world.root), "--once", "--wait", "0")
    command = [sys.executable, "-m", "devicecore_tools", *once]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=PATIENCE)
    assert ran.returncode == 2
    assert "kubelet_internal_checkpoint" in ran.stderr
    assert "directory" in ran.stderr
    assert "Traceback" not in ran.stderr
