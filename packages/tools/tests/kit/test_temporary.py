"""Temporary directories are removed with everything in them."""

import inspect
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from devicecore_tools.testing.temporary import remove_tree, short_directory


def test_a_tree_of_any_depth_with_any_links_and_permissions_is_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    with ExitStack() as stack, short_directory() as path:
        root = Path(path)
        (root / "link").symlink_to(outside)
        (root / "closed").mkdir()
        (root / "closed" / "link").symlink_to(outside)
        (root / "closed" / "file").touch()
        (root / "closed").chmod(0)
        place = os.open(root, os.O_DIRECTORY)
        for _ in range(300):
            os.mkdir("d", dir_fd=place)
            inner = os.open("d", os.O_DIRECTORY, dir_fd=place)
            os.close(place)
            place = inner
        os.close(place)
        stack.callback(sys.setrecursionlimit, sys.getrecursionlimit())
        sys.setrecursionlimit(len(inspect.stack()) + 150)  # too little for a recursion into 300 directories
    assert not root.exists()
    assert [entry.name for entry in outside.iterdir()] == ["kept"]


@pytest.mark.parametrize("in_its_place", ["nothing", "a link", "a file"])
def test_anything_in_place_of_the_directory_is_removed(in_its_place: str, tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    with short_directory() as path:
        root = Path(path)
        root.rmdir()
        if in_its_place == "a link":
            root.symlink_to(tmp_path)
        elif in_its_place == "a file":
            root.touch()
    assert not os.path.lexists(root)
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]


def test_a_missing_tree_is_not_an_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "missing")
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []
