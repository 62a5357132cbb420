"""Bounded reads and file replacement on a real disk. Writes that fail are tested in tests/adapters/test_file.py."""

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from devicecore_tools.command import inputs
from devicecore_tools.command.inputs import read_input

from devicecore.adapters.manifests import pods_file
from devicecore.adapters.manifests.pods_file import PodsFile
from devicecore.domain.model import PodUid
from devicecore.system import directories, files
from devicecore.system.directories import KeptDirectory
from devicecore.system.files import DurableFile, read_file
from devicecore.testing.interrupts import Interrupts


class TestReadFile:
    def test_a_file_is_read_whole_up_to_its_bound(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"12345")
        assert read_file(path, 5) == b"12345"
        with pytest.raises(OSError, match="it is 5 bytes long, expected at most 4") as refused:
            read_file(path, 4)
        assert refused.value.errno == errno.EFBIG

    def test_a_file_without_an_end_is_refused_at_once(self) -> None:
        with pytest.raises(OSError, match="it is a pipe, a socket or a device"):
            read_file("/dev/zero")

    def test_a_pipe_is_refused_without_waiting_for_its_writer(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OSError, match="expected a regular file"):
            read_file(tmp_path / "pipe")

    def test_a_socket_is_refused(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(tmp_path / "socket"))
            with pytest.raises(OSError, match="No such device or address"):
                read_file(tmp_path / "socket")

    def test_a_link_is_followed_only_if_the_caller_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"secret")
        (tmp_path / "link").symlink_to("file")
        with pytest.raises(OSError, match="it is a symbolic link, expected a regular file"):
            read_file(tmp_path / "link")
        assert read_file(tmp_path / "link", follow_links=True) == b"secret"

    def test_a_link_to_itself_is_an_error_either_way(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("link")
        for follow_links in (True, False):
            with pytest.raises(OSError, match="symbolic link"):
                read_file(tmp_path / "link", follow_links=follow_links)


class TestDurableFile:
    def test_the_mode_does_not_depend_on_the_umask(self, tmp_path: Path) -> None:
        old = os.umask(0o077)
        try:
            DurableFile(tmp_path / "open", 0o644).replace(b"")
            os.umask(0)
            DurableFile(tmp_path / "closed", 0o600).replace(b"")
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o644
        assert stat.S_IMODE((tmp_path / "closed").stat().st_mode) == 0o600

    def test_a_planted_link_is_replaced_and_its_target_is_not_written(self, tmp_path: Path) -> None:
        foreign = tmp_path / "foreign"
        foreign.write_bytes(b"theirs")
        for name in ("state", ".state.new", f".state.{os.getpid()}-1.new"):
            (tmp_path / name).symlink_to(foreign)
        state = DurableFile(tmp_path / "state", 0o600)
        with pytest.raises(OSError, match="symbolic link"):
            state.read()
        state.replace(b"ours")
        state.write(b"ours too", b"ours")
        assert state.read() == b"ours too"
        assert foreign.read_bytes() == b"theirs"
        assert not (tmp_path / "state").is_symlink()

    def test_replacing_and_writing_leave_the_file_and_nothing_else(self, tmp_path: Path) -> None:
        state = DurableFile(tmp_path / "state", 0o600)
        assert state.read() is None
        state.replace(b"first")
        state.write(b"second", b"first")
        assert state.current() == state.read() == b"second"
        assert [path.name for path in tmp_path.iterdir()] == ["state"]


class TestInterrupts:
    """Ctrl-C at each point where Python allows an interrupt. A real signal hits a given point once in 10,000 times."""

    @pytest.mark.parametrize("action", ["read_file", "read_input", "write", "replace", "delete", "set_aside"])
    def test_an_interrupt_leaves_no_descriptor_open_and_no_half_a_file(self, tmp_path: Path, action: str) -> None:
        path, at = tmp_path / "file", 0
        file = DurableFile(path, 0o600)
        actions: dict[str, Callable[[], object]] = {
            "read_file": lambda: read_file(path),
            "read_input": lambda: read_input(path, 100),
            "write": lambda: file.write(b"new", b"old"),
            "replace": lambda: file.replace(b"new"),
            "delete": file.delete,
            "set_aside": file.set_aside,
        }
        result = b"new" if action in {"write", "replace"} else None if action in {"delete", "set_aside"} else b"old"
        descriptors = Path("/proc/self/fd")
        before = sorted(descriptors.iterdir())
        path.write_bytes(b"old")
        while Interrupts(at := at + 1, files, inputs).interrupt(actions[action]):
            assert sorted(descriptors.iterdir()) == before
            assert (path.read_bytes() if path.exists() else None) in {b"old", result}
            file.write(b"old", None)  # writing works again
            assert not [*tmp_path.glob(".*")]
        assert at > 5

    def test_an_interrupt_leaves_no_kept_directory_and_no_list_of_running_pods_open(self, tmp_path: Path) -> None:
        kept, pods, at = KeptDirectory(tmp_path), PodsFile(tmp_path / "pods", "boot"), 0
        pods.mark_running(PodUid("first"))
        descriptors = Path("/proc/self/fd")
        before = sorted(descriptors.iterdir())

        def act() -> None:
            pods.mark_running(PodUid(f"pod-{at}"))
            kept.make()

        while Interrupts(at := at + 1, files, directories, pods_file).interrupt(act):
            kept.close()
            assert sorted(descriptors.iterdir()) == before
        kept.close()
        assert at > 10
