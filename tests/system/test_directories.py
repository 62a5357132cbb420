"""The rules about which users may write to a directory."""

import os
from pathlib import Path

import pytest

from devicecore.domain.errors import DirectoryError
from devicecore.system.directories import check_directory, make_directories, make_directory

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")


def test_a_directory_of_our_own_is_accepted(tmp_path: Path) -> None:
    check_directory(tmp_path)


def test_a_directory_of_root_is_accepted() -> None:
    check_directory("/etc")


@pytest.mark.parametrize("mode", [0o770, 0o757, 0o777, 0o1777])
def test_a_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(DirectoryError, match=f"its mode is {mode:04o}.*--allow-shared-directory"):
        check_directory(tmp_path)
    check_directory(tmp_path, allow_shared=True)


@as_root
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(DirectoryError, match=r"it belongs to user id 65534, expected root"):
        check_directory(tmp_path)
    check_directory(tmp_path, allow_shared=True)


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o755)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(DirectoryError, match="it is a symbolic link"):
        make_directory(tmp_path / "link")
    make_directory(tmp_path / "link", allow_shared=True)


def test_a_missing_directory_is_created_with_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0, 0o077):
        old = os.umask(umask)
        try:
            make_directory(tmp_path / f"made-{umask}", 0o750)
        finally:
            os.umask(old)
        assert (tmp_path / f"made-{umask}").stat().st_mode & 0o7777 == 0o750


def test_an_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    make_directory(tmp_path, 0o750)
    assert tmp_path.stat().st_mode & 0o7777 == 0o711


def test_a_file_or_a_missing_parent_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryError, match="it is not a directory"):
        make_directory(tmp_path / "file")
    with pytest.raises(DirectoryError, match=r"there is no directory .*/missing: create it first"):
        make_directory(tmp_path / "missing" / "directory")


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_each_missing_part_of_a_path_gets_the_mode_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_directories(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [one.stat().st_mode & 0o777 for one in (tmp_path / "a", tmp_path / "a" / "b")] == [0o750, 0o750]
    make_directories(tmp_path / "a" / "b")
