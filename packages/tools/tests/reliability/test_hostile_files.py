"""Each command reports hostile files in bounded time and memory, with printable sentences."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from devicecore_tools.command import inputs
from devicecore_tools.command.main import main

from tests.adapters.peers import leave_socket
from tests.reliability.scale import PATIENCE, scale

DEPTH = scale(2_000, 10_000)  # both values exceed Python's recursion limit
ESCAPES = "\x1b[31m\x1b]0;x\x07\n\u202e\x00"
MESSAGE = "Allocate failed due to no containers return in allocation response, which is unexpected"


def checkpoint(text: str) -> str:
    entry = {"PodUID": text, "ContainerName": text, "ResourceName": text, "DeviceIDs": {"0": [text]}, "AllocResp": text}
    return json.dumps({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {text: [text]}}, "Checksum": 0})


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "nested lists": lambda path: path.write_text("[" * DEPTH + "]" * DEPTH),
    "nested objects": lambda path: path.write_text('{"a":' * DEPTH + "1" + "}" * DEPTH),
    "nested lists as entries": lambda path: path.write_text(
        '{"Data":{"PodDeviceEntries":' + "[" * DEPTH + "]" * DEPTH + '},"Checksum":1}'
    ),
    "1 GB": sparse,
    "a pipe without a writer": os.mkfifo,
    "no UTF-8": lambda path: path.write_bytes(checkpoint("x").replace("x", "\xff").encode("latin-1")),
    "escape sequences": lambda path: path.write_text(checkpoint(ESCAPES)),
    "NUL": lambda path: path.write_bytes(b"\0" * 5_000),
    "nothing": lambda path: path.write_bytes(b""),
    "a long number": lambda path: path.write_text('{"Data":{},"Checksum":' + "9" * 1_000_000 + "}"),
    "a directory": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": leave_socket,
}
EXPENSIVE = {"1 GB", "a long number", "nested lists", "nested objects"}
COMMANDS: dict[str, Sequence[str]] = {
    "verify": ("checkpoint", "verify", "FILE"),
    "verify --json": ("checkpoint", "verify", "--json", "FILE"),
    "show": ("checkpoint", "show", "FILE"),
    "repair": ("checkpoint", "repair", "--pods", "FILE", "FILE", "NEW"),
    "convert": ("checkpoint", "convert", "--to", "1", "FILE"),
    "diff": ("checkpoint", "diff", "FILE", "FILE"),
    "fits": ("fits", "FILE", "--node", "FILE"),
    "fits on a node": ("fits", "POD", "--node", "FILE"),
    "why": ("why", "FILE"),
    "why on a node": ("why", MESSAGE, "--checkpoint", "FILE", "--pods", "FILE", "--node", "FILE"),
    "doctor": ("doctor", "--checkpoint", "FILE", "--pods", "FILE", "--node", "FILE", "--patience", "0.1"),
    "doctor --root": ("doctor", "--root", "FILE", "--patience", "0.1"),
}


@pytest.mark.parametrize(
    "hostile",
    [pytest.param(name, marks=pytest.mark.slow) if name in EXPENSIVE else name for name in HOSTILE],
)
def test_a_hostile_file_is_judged_in_printable_sentences(
    directory: Path, hostile: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "PIPE_PATIENCE", 0.05)
    HOSTILE[hostile](directory / "file")
    container = {"name": "main", "resources": {"limits": {"example.com/gpu": 1}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [container]}}
    (directory / "pod").write_text(json.dumps(pod))
    named = {"FILE": str(directory / "file"), "NEW": str(directory / "new"), "POD": str(directory / "pod")}
    for name, command in COMMANDS.items():
        status = main([named.get(word, word) for word in command])
        said = capfd.readouterr()
        assert status in {0, 1, 2, 3, 4}, name
        assert said.out + said.err, name
        assert (said.out + said.err).replace("\n", "").isprintable(), name
        assert len(said.out + said.err) < 100_000, name
        assert not (directory / "new").exists() or status == 0, name


@pytest.mark.parametrize("hostile", ["1 GB", pytest.param("an endless device", marks=pytest.mark.slow)])
def test_a_file_without_end_is_refused_in_little_memory(directory: Path, hostile: str) -> None:
    HOSTILE[hostile](directory / "file")
    command = [sys.executable, "-m", "devicecore_tools", "checkpoint", "verify", str(directory / "file")]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (400_000_000, 400_000_000)),
    )
    assert ran.returncode == 2
    assert "expected at most 67108864" in ran.stdout + ran.stderr
