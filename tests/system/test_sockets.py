"""Sockets that this process binds next to other processes' sockets."""

import ctypes
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from devicecore.domain.errors import DirectoryError, SocketPathTooLongError
from devicecore.system.sockets import MAX_SOCKET_PATH, OwnedSocket, SocketState, is_served, socket_identity


@pytest.fixture
def listeners() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def serve(owned: OwnedSocket, listeners: ExitStack) -> None:
    with owned.binding() as private:
        listen(private, listeners)


def listen(path: str, listeners: ExitStack) -> None:
    listener = listeners.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(path)
    listener.listen()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_socket_appears_only_when_it_is_served_and_leaves_nothing_else(directory: Path, listeners: ExitStack) -> None:
    owned = OwnedSocket(str(directory / "a.sock"))
    assert owned.state() is SocketState.MISSING
    with owned.binding() as private:
        assert owned.state() is SocketState.MISSING
        assert Path(private).parent.stat().st_mode & 0o077 == 0  # no other user can connect before the mode is set
        listen(private, listeners)
    assert owned.state() is SocketState.OURS
    assert is_served(owned.path)
    assert names(directory) == ["a.sock"]
    owned.remove()
    owned.remove()
    assert names(directory) == []


def test_a_new_socket_is_a_created_file_for_inotify(directory: Path, listeners: ExitStack) -> None:
    """Some plugins wait until kubelet.sock is created, and do not notice a rename to that name."""
    libc = ctypes.CDLL(None, use_errno=True)
    in_create = 0x100
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(watch, os.fsencode(directory), in_create) > 0
    try:
        serve(OwnedSocket(str(directory / "kubelet.sock")), listeners)
        assert b"kubelet.sock\0" in os.read(watch, 4096)
    finally:
        os.close(watch)


@pytest.mark.parametrize("umask", [0, 0o077])
def test_the_mode_does_not_depend_on_the_umask(directory: Path, listeners: ExitStack, umask: int) -> None:
    owned = OwnedSocket(str(directory / "a.sock"), 0o755)
    old = os.umask(umask)
    try:
        serve(owned, listeners)
    finally:
        os.umask(old)
    assert stat.S_IMODE(Path(owned.path).stat().st_mode) == 0o755


def test_a_successor_replaces_the_socket_in_one_step_and_the_former_owner_lets_it_be(
    directory: Path, listeners: ExitStack
) -> None:
    former, successor = (OwnedSocket(str(directory / "a.sock")) for _ in range(2))
    serve(former, listeners)
    with successor.binding() as private:
        listen(private, listeners)
        assert former.state() is SocketState.OURS
    assert former.state() is SocketState.FOREIGN
    former.remove()
    assert successor.state() is SocketState.OURS
    assert is_served(successor.path)


def test_a_deleted_socket_is_noticed_and_can_be_served_again(directory: Path, listeners: ExitStack) -> None:
    owned = OwnedSocket(str(directory / "a.sock"))
    serve(owned, listeners)
    before = owned.identity
    Path(owned.path).unlink()
    assert owned.state() is SocketState.MISSING
    serve(owned, listeners)
    assert owned.state() is SocketState.OURS
    assert owned.identity != before


def test_a_file_that_is_not_a_socket_is_neither_replaced_nor_removed(directory: Path, listeners: ExitStack) -> None:
    owned = OwnedSocket(str(directory / "a.sock"))
    serve(owned, listeners)
    Path(owned.path).unlink()
    Path(owned.path).write_text("someone's file")
    assert owned.state() is SocketState.FOREIGN
    with pytest.raises(DirectoryError, match=r"a\.sock is in the way and is not a socket"):
        serve(owned, listeners)
    owned.remove()
    assert names(directory) == ["a.sock"]


def test_a_failure_while_binding_changes_nothing(directory: Path, listeners: ExitStack) -> None:
    owned = OwnedSocket(str(directory / "a.sock"))
    serve(owned, listeners)
    before = owned.identity
    with pytest.raises(FileNotFoundError), owned.binding():
        pass  # nothing is bound
    assert (owned.identity, owned.state()) == (before, SocketState.OURS)
    assert names(directory) == ["a.sock"]


def test_a_path_that_is_too_long_is_refused(directory: Path) -> None:
    owned = OwnedSocket(str(directory / ("a" * MAX_SOCKET_PATH)))
    with pytest.raises(SocketPathTooLongError), owned.binding():
        pass


def test_an_impossible_path_has_no_socket() -> None:
    assert socket_identity("a\0b") is None
