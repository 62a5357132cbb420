"""A record gives the same report as the live node: everything seen, refused or not read is written completely."""

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from devicecore_tools.command.main import main
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.findings.report import check, report
from devicecore_tools.doctor.look.values import Look, MachineSeen, Reading, Source
from devicecore_tools.doctor.reading import record
from devicecore_tools.doctor.reading.look_file import look_in, text_of
from devicecore_tools.doctor.reading.node import NodeSources
from hypothesis import given
from hypothesis import strategies as st
from tests.doctor.nodes import CLEAN, PLANTS, report_of

PROBLEMS = st.sampled_from(["Permission denied", "no process listens at the socket", "List failed with UNAVAILABLE"])
PLANTED = st.lists(st.sampled_from(sorted(PLANTS)), max_size=1)
REFUSED = st.dictionaries(st.sampled_from([source.name.lower() for source in Source]), PROBLEMS, max_size=3)


def looked_at(planted: list[str], refused: dict[str, str]) -> Look:
    look = PLANTS[planted[0]](CLEAN) if planted else CLEAN
    machine = MachineSeen("machine", "boot", (0, 1), "restricted", 16)
    unread: dict[str, Any] = {name: Reading(f"/var/lib/kubelet/{name}", problem=why) for name, why in refused.items()}
    return evolve(look, machine=machine, elsewhere={"d.org": ("n9",)}, taken=1_764_000_000.5, **unread)


@given(planted=PLANTED, refused=REFUSED)
def test_a_look_that_is_read_again_is_the_look_that_was_written(planted: list[str], refused: dict[str, str]) -> None:
    """Law: `report(look) == report(read(written(look)))` for any look."""
    look = looked_at(planted, refused)
    again, files = look_in(text_of(look, {Source.PODS: {"pods.json": "digest"}}))
    assert (again, again.taken, again.machine, files) == (
        look,
        look.taken,
        look.machine,
        {"pods": {"pods.json": "digest"}},
    )
    assert report_of(again) == report_of(look)


@pytest.mark.parametrize("code", sorted(PLANTS))
def test_a_record_in_a_directory_gives_the_report_of_the_node(code: str, tmp_path: Path) -> None:
    look = looked_at([code], {"events": "Permission denied"})
    record.save(str(tmp_path / "record"), look, None, None, {}, {}, taken=1_764_000_000_500_000_000)
    again = NodeSources(root=str(tmp_path / "record")).look()
    facts = Facts(again)
    assert report(facts, check(facts)) == report_of(look)


def test_anything_removed_from_a_record_is_no_longer_known(tmp_path: Path) -> None:
    root = tmp_path / "record"
    record.save(str(root), CLEAN, None, None, {"pods.json": {"kind": "PodList", "items": []}}, {}, taken=None)
    assert NodeSources(root=str(root)).look().pods == CLEAN.pods
    (root / "pods.json").unlink()
    assert NodeSources(root=str(root)).look().pods.value is None
    (root / "listing.txt").write_text("$ ls -la device-plugins\n")
    sockets = NodeSources(root=str(root)).look().sockets.value
    assert sockets is not None
    assert sockets.plugins == ()


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 99}', '{"format": 1, "look": {"pods": 1}, "files": {}}'])
def test_a_damaged_look_is_passed_over(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "record"
    record.save(str(root), CLEAN, None, None, {}, {}, taken=None)
    (root / record.LOOK_NAME).write_text(content)
    assert main(["doctor", "--root", str(root), "--json"]) in {1, 2, 3}
    assert json.loads(capsys.readouterr().out)["is_sound"] is False
