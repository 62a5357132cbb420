"""The programs of `make peers` are found where it puts them. No test here needs Go."""

from pathlib import Path

import pytest

from tests.real_cluster.programs import Programs, RealClusterError
from tools.make_peers import OURS, TOOLS, cache_of, default_version, program


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES", raising=False)


def test_every_program_that_make_peers_builds_is_found() -> None:
    """`make cluster` looked for `cri`, which `make peers` builds as `cri-<tree>`."""
    cache_of(default_version()).joinpath("bin").mkdir(parents=True)
    for name in (*OURS, *TOOLS):
        program(name).touch()
    for name in (*OURS, *TOOLS):
        assert Programs.built().path(name) == str(program(name))


def test_a_program_of_another_tree_is_not_taken_for_ours() -> None:
    """A runtime that an older tree left in the cache is not used."""
    cache_of(default_version()).joinpath("bin").mkdir(parents=True)
    (program("cri").parent / "cri").touch()
    with pytest.raises(RealClusterError, match=r"not built: .*Run `make peers` first"):
        Programs.built().check(["cri"])
