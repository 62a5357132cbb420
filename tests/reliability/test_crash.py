"""A process that is killed at any system call of a checkpoint write does not lose its earlier answers."""

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devicecore.adapters.file import CHECKPOINT_NAME
from tests.adapters.peers import environment
from tests.reliability.pods import admit, held, in_memory, plugin
from tests.reliability.scale import scale


def deaths(way: str, directory: Path, pods: int) -> Iterator[Any]:
    """Yield the lines that `dying` prints, as soon as they are printed."""
    command = [sys.executable, "-m", "tests.reliability.dying", way, str(directory), str(pods)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as program:
        assert program.stdout is not None
        yield from map(json.loads, program.stdout)
    assert program.returncode == 0


def check_what_is_left(death: Any) -> None:  # noqa: ANN401 - JSON is of any type
    """Check that every answer is restored with at most one other pod, and that the next manager works."""
    point, directory = death["point"], Path(death["directory"])
    answered = {"pod-old": ["gpu-0", "gpu-1"], **death["answered"]}
    manager, transport = in_memory(directory)
    with manager:
        assert manager.restored.problem is None, point
        assert manager.restored.skipped == (), point
        restored = {uid: list(devices) for uid, devices in held(manager).items()}
        assert answered.items() <= restored.items(), point
        assert len(restored) <= len(answered) + 1, point  # one pod may have been saved but not answered
        transport.connect(plugin())
        for uid in ("pod-0", "pod-1", "pod-next"):
            restored[uid] = list(admit(manager, uid))
        given = [device for devices in restored.values() for device in devices]
        assert len(given) == len(set(given)), point
    assert {path.name for path in directory.iterdir()} == {CHECKPOINT_NAME}, point
    assert stat.S_IMODE((directory / CHECKPOINT_NAME).stat().st_mode) == 0o600, point


def test_killed_before_after_and_in_the_middle_of_every_call(directory: Path) -> None:
    killed = set()
    for death in deaths("shim", directory, scale(2, 12)):
        assert death["code"] == -9, death
        killed.add(death["point"].partition(",")[0])
        check_what_is_left(death)
    calls = ("listdir", "unlink", "open", "write", "fsync", "close", "replace")
    expected = {f"killed {when} {call}" for when in ("before", "after") for call in calls}
    assert killed == {*expected, "killed halfway write"}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace")
def test_killed_by_the_kernel_on_entry_of_every_system_call(directory: Path) -> None:
    may_attach = subprocess.run(
        ["strace", "-o", "/dev/null", "-e", "inject=fsync:error=EIO", "true"],  # noqa: S607 - wherever it is
        capture_output=True,
        text=True,
        check=False,
    )
    if may_attach.returncode:
        pytest.skip(f"strace may not trace here: {may_attach.stderr.strip()}")
    killed_at = set()
    for death in deaths("strace", directory, scale(2, 12)):
        check_what_is_left(death)
        if death["code"] == -9:
            killed_at.add(death["point"].split()[4])
        else:
            assert death["code"] == 0  # the run that counts the calls, or one that made fewer calls
    assert {"write", "fsync", "openat", "close"} < killed_at
    assert any(name.startswith("rename") for name in killed_at), killed_at
