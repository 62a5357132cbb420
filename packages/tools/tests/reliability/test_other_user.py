"""Another user on a machine with root's kubelet, who tries to register, to plant files and to read secrets."""

import json
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from devicecore_tools.command.main import main
from tests.e2e.world import Kubelet, Plugin

from tests.adapters.peers import leave_socket

NOBODY = 65534
GPU = "example.com/gpu"


@pytest.fixture
def node(directory: Path) -> Path:
    """A directory that every user may enter."""
    directory.chmod(0o755)
    for name in ("root", "pods"):
        (directory / name).mkdir(0o755)
    return directory


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def attempts(root: Path) -> dict[str, Callable[[], object]]:
    """Return the other user's attempts by name: functions that raise PermissionError if the attempt is refused."""
    found: dict[str, Callable[[], object]] = {}
    for directory in (root, root / "device-plugins", root / "plugins_registry", root / "pod-resources"):
        name, planted = directory.name, directory / "planted"
        found[f"a file in {name}"] = planted.touch
        found[f"a link in {name}"] = partial(planted.symlink_to, "/etc/passwd")
        found[f"a directory in {name}"] = planted.mkdir
        found[f"a socket in {name}"] = partial(leave_socket, planted)
        found[f"another name for {name}"] = partial(directory.rename, directory.with_name("away"))
    for path in (root / "device-plugins" / "kubelet.sock", root / "pod-resources" / "kubelet.sock"):
        found[f"a connection to {path}"] = partial(connect, path)
    for path in (root / "pods_state", root / "state.json", root / "device-plugins" / "kubelet_internal_checkpoint"):
        found[f"the content of {path.name}"] = path.read_bytes
    for path in (root / "state.json", root / "node.json", root / "device-plugins" / ".devicecore.lock"):
        found[f"writing to {path.name}"] = partial(path.open, "ab")
        found[f"deleting {path.name}"] = path.unlink
    return found


def succeeded_as(user: int, tried: dict[str, Callable[[], object]]) -> list[str]:
    """Return the names of the attempts that succeed in a process that runs as this user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        succeeded = []
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        for name, attempt in tried.items():
            try:
                attempt()
            except PermissionError:
                continue
            except OSError as error:
                succeeded.append(f"{name}: {error}")
            else:
                succeeded.append(name)
        os.write(writer, json.dumps(succeeded).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    found: list[str] = json.loads(told)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("command", ["fits pod.yaml --root {0}", "checkpoint verify {0}"])
def test_a_directory_that_may_not_be_entered_is_named_itself(
    node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    closed = node / "closed"
    closed.mkdir(0o700)
    (node / "pod.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n")
    monkeypatch.chdir(node)
    main(command.format(closed).split())  # imports everything up front, because the other user may not read the modules
    capsys.readouterr()
    os.seteuid(NOBODY)
    try:
        assert main(command.format(closed).split()) == 2
    finally:
        os.seteuid(0)
    said = capsys.readouterr().err
    assert f"{closed}: Permission denied" in said
    assert "kubelet_internal_checkpoint" not in said
    assert "expected" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_can_neither_register_nor_plant_nor_read_secrets(node: Path) -> None:
    limits = {"resources": {"limits": {GPU: 1}}}
    spec = {"containers": [{"name": "c", **limits}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    (node / "pods" / "a.json").write_text(json.dumps(pod))
    root = node / "root"
    kubelet = Kubelet("--root", str(root), "--manifests", str(node / "pods"), log=node / "log")
    plugin = Plugin(
        "simulated", "--resource", GPU, "--count", "1", "--socket-dir", str(root / "device-plugins"), log=node / "log"
    )
    try:
        kubelet.wait_for(lambda state: state["pods"] and state["pods"][0]["phase"] == "Running")
        assert succeeded_as(NOBODY, attempts(root)) == []
        assert succeeded_as(0, {"deleting state.json": (root / "state.json").unlink}) == ["deleting state.json"]
    finally:
        plugin.kill()
        assert kubelet.end(signal.SIGTERM) == 0
