"""The programs in `peers/subjects/`: each fault names a check or a reason, and all programs that were built are run."""

import json
import re

import pytest
from devicecore_tools.conformance.device_plugin import CHECKS
from devicecore_tools.conformance.dra import CHECKS as DRA_CHECKS

from tools.find_subjects import PLANTED, PROGRAMS, run
from tools.make_peers import default_version, problem_of

PROGRAMS_WITH_FAULTS = json.loads(PLANTED.read_text(encoding="utf-8"))["programs"]
FAULTS = [one for one in PROGRAMS_WITH_FAULTS if "severity" in one]
NAMES = {"driver": {one.name for one in DRA_CHECKS}, "plugin": {one.name for one in CHECKS}}
NOT_BUILT = problem_of("subject-plugin", default_version())


def test_each_fault_names_a_check_or_a_reason() -> None:
    for one in FAULTS:
        assert NAMES[one["program"]].issuperset(one["checks"]), one["name"]
        assert one["checks"] or one["reason"], one["name"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_faults_match_the_program(program: str) -> None:
    text = (PLANTED.parent / program / "main.go").read_text(encoding="utf-8")
    listed = max(re.findall("`([^`]*)`", text), key=len).split()
    assert sorted(listed) == sorted(one["name"] for one in FAULTS if one["program"] == program)
    assert len(listed) == 30


@pytest.mark.skipif(bool(NOT_BUILT), reason=f"{NOT_BUILT}; python3 tools/make_peers.py subjects")
@pytest.mark.parametrize("name", ["", "node-by-last-digit", "id-too-long"])
def test_a_plugin_in_go_is_judged_as_the_list_says(name: str) -> None:
    planted = next(one for one in PROGRAMS_WITH_FAULTS if (one["program"], one["name"]) == ("plugin", name))
    wanted = [word for check in planted["checks"] or ["lists-short-ids"] for word in ("--only", check)]
    assert run(planted, *wanted).failed.keys() == set(planted["checks"])
