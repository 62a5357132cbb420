"""The programs that `make peers` builds are found where it puts them, but only if they were built from this tree.

No test in this file needs Go.
"""

import re
from pathlib import Path

import pytest

from tests.real_cluster.programs import Programs, RealClusterError
from tools import make_peers
from tools.make_peers import DESCRIBED, OURS, TOOLS, cache_of, default_version, program, sources_hash, stamp_of

VERSION = default_version()


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES", raising=False)
    cache_of(VERSION).joinpath("bin").mkdir(parents=True)


def _build(name: str) -> None:
    program(name).touch()
    built_from = sources_hash(name) if name in (*OURS, DESCRIBED) else ""
    stamp_of(name, VERSION).write_text(built_from, encoding="utf-8")


def _refused(problem: str) -> None:
    with pytest.raises(RealClusterError, match=rf"{re.escape(problem)}.*Run `make peers` first"):
        Programs.built().check(["cri"])


def test_every_program_that_make_peers_builds_is_found() -> None:
    """`make cluster` used to look for `cri`, although `make peers` builds `cri-<tree>`."""
    for name in (*OURS, *TOOLS, DESCRIBED):
        _build(name)
    for name in (*OURS, *TOOLS, DESCRIBED):
        assert Programs.built().path(name) == str(program(name))


def test_a_program_of_another_tree_is_not_taken_for_ours() -> None:
    """A runtime that an older tree has left in the cache is not used."""
    (program("cri").parent / "cri").touch()
    _refused(f"{program('cri')} has not been built")


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
    _refused("is incomplete")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("go: k8s.io/kubernetes@v9.9.9: reading https://example.com/k8s.io: 404 Not Found", 4),
        ("go: download go1.99.0 for linux/amd64: toolchain not available", 4),
        ("oracle/cel.go:9:2: no required module provides package example.com/cel; to add it:", 1),
        ("# example.com/oracle\noracle/main.go:9:2: undefined: devicemanager.Allocate", 1),
    ],
)
def test_what_cannot_be_downloaded_and_what_does_not_build_have_separate_statuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, status: int
) -> None:
    """A package that had moved used to count as unavailable, so CI compared nothing and passed."""
    (go := tmp_path / "go").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setitem(make_peers.ENVIRONMENT, "PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(make_peers.PeersError, match=re.escape(said.splitlines()[-1])) as caught:
        make_peers.go("build")
    assert caught.value.status == status


def test_without_go_the_status_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(make_peers.NoGoError, match="Go is not installed") as caught:
        make_peers.go("version")
    assert caught.value.status == 3


def test_a_newer_go_is_used_if_the_sources_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_peers, "go", lambda *_: "go version go1.26.8 linux/amd64")
    monkeypatch.setattr(make_peers, "ENVIRONMENT", {})
    (tmp_path / "go.mod").write_text("module m\n\ngo 1.26.2\n")
    make_peers.use_go_of(tmp_path)
    assert make_peers.ENVIRONMENT == {}
    (tmp_path / "go.mod").write_text("module m\n\ngo 1.27.0\n")
    make_peers.use_go_of(tmp_path)
    assert make_peers.ENVIRONMENT == {"GOTOOLCHAIN": "go1.27.0"}


def test_the_modules_that_are_refused_are_named_once_with_the_reason() -> None:
    """`go mod tidy -e` continues without refused modules, and the build then reports only a missing entry in go.sum."""
    told = "p/{0}: example.com/m@v1.0.1: reading https://example.com/m/@v/v1.0.1.zip: 403 Forbidden"
    lines = "\n".join(("go: finding module", told.format("a"), told.format("b")))
    reason = "example.com/m@v1.0.1: reading https://example.com/m/@v/v1.0.1.zip: 403 Forbidden"
    assert make_peers.refused_in(lines) == [reason]


def test_a_map_that_kubernetes_no_longer_walks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this went unnoticed, the oracle could again give different answers to the same question."""
    source = tmp_path / "pkg" / "manager.go"
    source.parent.mkdir()
    source.write_text('package a\n\nimport (\n\t"fmt"\n)\n\nfor k := range all {\n}\n', encoding="utf-8")
    monkeypatch.setattr(make_peers, "IN_ORDER", tmp_path / "in_order.toml")
    make_peers.IN_ORDER.write_text('"pkg/manager.go" = ["all"]\n', encoding="utf-8")
    ((name, path),) = make_peers.walking_in_order(tmp_path, tmp_path)
    assert (name, "range inorder.Of(all) {" in path.read_text("utf-8")) == ("pkg/manager.go", True)
    make_peers.IN_ORDER.write_text('"pkg/manager.go" = ["some"]\n', encoding="utf-8")
    message = r"pkg/manager.go does not iterate over some, which in_order.toml names"
    with pytest.raises(make_peers.PeersError, match=message):
        list(make_peers.walking_in_order(tmp_path, tmp_path))


def test_a_text_that_kubernetes_no_longer_has_is_named(tmp_path: Path) -> None:
    """If this went unnoticed, the kubelet would use the real machine instead of the described one."""
    source = tmp_path / "pkg" / "cadvisor.go"
    source.parent.mkdir()
    source.write_text("return found()\n", encoding="utf-8")
    texts = tmp_path / "replaced.toml"
    texts.write_text('["pkg/cadvisor.go"]\n"found()" = "described(found())"\n', encoding="utf-8")
    ((name, path),) = make_peers.replaced(tmp_path, tmp_path, tmp_path)
    assert (name, path.read_text("utf-8")) == ("pkg/cadvisor.go", "return described(found())\n")
    texts.write_text('["pkg/cadvisor.go"]\n"missing()" = ""\n', encoding="utf-8")
    with pytest.raises(
        make_peers.PeersError, match=r"expected 'missing\(\)' exactly once in pkg/cadvisor.go, found it 0 times"
    ):
        list(make_peers.replaced(tmp_path, tmp_path, tmp_path))


def test_a_change_of_one_program_does_not_make_the_others_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_peers, "PEERS", tmp_path)
    before = sources_hash("oracle"), sources_hash(DESCRIBED)
    (tmp_path / "_described").mkdir()
    (tmp_path / "_described" / "more.go").write_text("package cadvisor\n", encoding="utf-8")
    assert sources_hash("oracle") == before[0]
    assert sources_hash(DESCRIBED) != before[1]
