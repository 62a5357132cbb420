"""The programs of `make peers` are found where it puts them, and only those of this tree. No test here needs Go."""

import re
from pathlib import Path

import pytest

from tests.real_cluster.programs import Programs, RealClusterError
from tools import make_peers
from tools.make_peers import OURS, TOOLS, cache_of, default_version, program, sources_hash, stamp_of

VERSION = default_version()


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES", raising=False)
    cache_of(VERSION).joinpath("bin").mkdir(parents=True)


def _build(name: str) -> None:
    program(name).touch()
    stamp_of(name, VERSION).write_text(sources_hash() if name in OURS else "", encoding="utf-8")


def _refused(problem: str) -> None:
    with pytest.raises(RealClusterError, match=rf"{re.escape(problem)}.*Run `make peers` first"):
        Programs.built().check(["cri"])


def test_every_program_that_make_peers_builds_is_found() -> None:
    """`make cluster` looked for `cri`, which `make peers` builds as `cri-<tree>`."""
    for name in (*OURS, *TOOLS):
        _build(name)
    for name in (*OURS, *TOOLS):
        assert Programs.built().path(name) == str(program(name))


def test_a_program_of_another_tree_is_not_taken_for_ours() -> None:
    """A runtime that an older tree left in the cache is not used."""
    (program("cri").parent / "cri").touch()
    _refused(f"{program('cri')} is not built")


def test_a_program_that_is_older_than_its_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _build("cri")
    Programs.built().check(["cri"])
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "main.go").write_text("package main\n", encoding="utf-8")
    monkeypatch.setattr(make_peers, "PEERS", tmp_path / "peers")
    with pytest.raises(RealClusterError, match=r"cri-\w+ is older than peers/\. Run `make peers` first"):
        Programs(VERSION).check(["cri"])


def test_a_program_whose_build_was_interrupted_is_refused() -> None:
    _build("cri")
    stamp_of("cri", VERSION).unlink()
    _refused("is not whole")
