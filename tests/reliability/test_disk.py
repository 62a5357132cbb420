"""If the disk fails, the admission is refused, and the state in memory, the file and its directory are unchanged."""

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devicecore import Admitted, Refused
from devicecore.adapters.file import CHECKPOINT_NAME
from devicecore.domain.errors import StoreError
from tests.adapters.peers import environment
from tests.reliability.faulty_os import ERRORS, HALF, FaultyOs
from tests.reliability.pods import Holders, admit, held, in_memory, plugin, pod


def on_disk(directory: Path) -> Holders:
    """Return the devices that each pod would hold after a restart, which is tried with a copy of the file."""
    copy = directory.with_name(f"{directory.name}-copy")
    copy.mkdir()
    try:
        shutil.copy(directory / CHECKPOINT_NAME, copy)
        manager, _ = in_memory(copy)
        with manager:
            assert manager.restored.problem is None
            return held(manager)
    finally:
        shutil.rmtree(copy)


def check_a_refusal(verdict: object, words: str) -> None:
    """Check that the verdict is a refusal because of the disk, with `words` in its text."""
    assert isinstance(verdict, Refused)
    assert isinstance(verdict.error, StoreError)
    assert words in str(verdict.error)


# --- every call that can fail, once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ERRORS)
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "until it is repaired"])
def test_if_any_call_fails_the_admission_is_refused_or_complete(directory: Path, fault: str, *, lasting: bool) -> None:
    refused, at = set(), 0
    while True:
        at += 1
        place = directory / str(at)
        place.mkdir()
        manager, transport = in_memory(place)
        with manager:
            transport.connect(plugin())
            admit(manager, "pod-before")
            before = manager.state
            with FaultyOs(at, fault, lasting=lasting) as faulty:
                verdict = manager.admit(pod("pod-1"))
            if not faulty.hit:
                break
            point = f"{fault} at {at}, {faulty.calls[at - 1]}"
            if isinstance(verdict, Refused):
                check_a_refusal(verdict, os.strerror(getattr(errno, fault)))
                assert manager.state.ledger == before.ledger, point
                refused.add(faulty.calls[at - 1])
            else:
                assert isinstance(verdict, Admitted), point
            if not lasting:
                assert held(manager) == on_disk(place), point
            admit(manager, "pod-2")  # the next admission is not refused because of an earlier failure
            assert held(manager) == on_disk(place), point
        assert {path.name for path in place.iterdir()} == {CHECKPOINT_NAME}, point
    assert refused == {"open", "write", "fsync", "close", "replace"}


def test_a_partial_write_is_continued(directory: Path) -> None:
    manager, transport = in_memory(directory)
    with manager:
        transport.connect(plugin())
        admit(manager, "pod-before")
        for at in range(1, 12):
            with FaultyOs(at, HALF) as faulty:
                admit(manager, f"pod-{at}")
            assert held(manager) == on_disk(directory), faulty.calls


def test_a_power_cut_finds_the_blob_before_its_name_and_the_name_before_the_answer(directory: Path) -> None:
    """A test cannot cut the power, and the kernel keeps a killed process's writes, so the order of calls is checked."""
    manager, transport = in_memory(directory)
    with manager:
        transport.connect(plugin())
        admit(manager, "pod-before")
        with FaultyOs() as healthy:
            admit(manager, "pod-1")
    calls = healthy.calls
    named = calls.index("replace")
    assert "fsync" in calls[calls.index("write") : named]
    assert "fsync" in calls[named:]
    assert "write" not in calls[named:]


# --- real disks -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(directory: Path) -> Iterator[Path]:
    """Mount a file system of 256 kB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "devicecore-test", str(directory)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"file systems cannot be mounted here: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)  # noqa: S607 - wherever it is


def fill(disk: Path) -> Callable[[], None]:
    """Fill the disk, and return a function that frees the space again."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        any(file.write(bytes(4096)) == 0 for _ in itertools.count())
    return ballast.unlink


def remount(disk: Path, mode: str) -> None:
    """Mount a disk again with the mode `ro` or `rw`."""
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)  # noqa: S607 - wherever it is


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_disk_that_is_full_or_read_only_refuses_until_it_is_not(small_disk: Path, trouble: str) -> None:
    manager, transport = in_memory(small_disk)
    with manager:
        transport.connect(plugin())
        admit(manager, "pod-before")
        before = manager.state
        blob = (small_disk / CHECKPOINT_NAME).read_bytes()
        if trouble == "full":
            repair, words = fill(small_disk), "No space left on device"
        else:
            remount(small_disk, "ro")
            repair, words = (lambda: remount(small_disk, "rw")), "Read-only file system"
        try:
            for _ in range(3):
                check_a_refusal(manager.admit(pod("pod-1")), words)
                assert manager.state.ledger == before.ledger
                assert (small_disk / CHECKPOINT_NAME).read_bytes() == blob
            assert isinstance(manager.admit(pod("pod-without", 0)), Admitted)  # needs no disk
        finally:
            repair()
        admit(manager, "pod-1")
        holders = held(manager)
    assert {path.name for path in small_disk.iterdir()} == {CHECKPOINT_NAME}
    again, _ = in_memory(small_disk)
    with again:
        assert held(again) == holders


def test_an_eviction_with_a_full_disk_is_saved_when_there_is_space(small_disk: Path) -> None:
    manager, transport = in_memory(small_disk)
    with manager:
        transport.connect(plugin())
        for uid in ("pod-1", "pod-2"):
            admit(manager, uid)
        free_the_disk = fill(small_disk)
        manager.evict([pod("pod-1").uid])
        assert held(manager).keys() == {"pod-2"}
        assert on_disk_elsewhere(small_disk).keys() == {"pod-1", "pod-2"}
        free_the_disk()
        admit(manager, "pod-3")
        assert held(manager).keys() == on_disk_elsewhere(small_disk).keys() == {"pod-2", "pod-3"}


def on_disk_elsewhere(disk: Path) -> Holders:
    """Return `on_disk` for a copy of the file on another file system, because this file system is full."""
    copy = disk.with_name(f"{disk.name}-elsewhere")
    copy.mkdir()
    try:
        shutil.copy(disk / CHECKPOINT_NAME, copy)
        return on_disk(copy)
    finally:
        shutil.rmtree(copy)


def test_a_process_at_its_file_size_limit_refuses_the_pod(directory: Path) -> None:
    """Without permission to mount, a limit on file sizes acts like a full disk: a partial write, and then an error."""
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from tests.reliability.pods import admit, held, in_memory, plugin, pod\n"
        "manager, transport = in_memory(Path(sys.argv[1]))\n"
        "with manager:\n"
        "    transport.connect(plugin())\n"
        "    admit(manager, 'pod-before')\n"
        "    size = (Path(sys.argv[1]) / 'kubelet_internal_checkpoint').stat().st_size\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))\n"
        "    print(manager.admit(pod('pod-1')).error)\n"
        "    print(*held(manager))\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "    admit(manager, 'pod-1')\n"
    )
    command = [sys.executable, "-c", script, str(directory)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    refusal, holders = run.stdout.splitlines()
    assert refusal.endswith("File too large")
    assert holders == "pod-before"
    assert on_disk(directory).keys() == {"pod-before", "pod-1"}
