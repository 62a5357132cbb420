"""The versions, the changelog and the workflows are consistent. RELEASING.md says what only GitHub can check."""

import re
import shlex
from pathlib import Path
from tomllib import loads
from typing import Any

import devicecore_fleet
import devicecore_numa
import devicecore_tools
import pytest
import yaml

import devicecore
from tools.release_notes import notes

ROOT = Path(__file__).parent.parent
PROJECT = loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in [*WORKFLOWS, ROOT / "action.yml"]}
TARGETS = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def jobs() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for workflow in WORKFLOWS:
        text = yaml.safe_load(workflow.read_text(encoding="utf-8"))
        assert text["permissions"] == {"contents": "read"}, workflow.name
        found |= {f"{workflow.name}: {name}": job for name, job in text["jobs"].items()}
    return found


def test_all_distributions_and_the_citation_have_one_version() -> None:
    others = [loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "packages").glob("*/pyproject.toml"))]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    versions = {
        devicecore.__version__,
        devicecore_fleet.__version__,
        devicecore_numa.__version__,
        devicecore_tools.__version__,
        citation["version"],
        *(
            required.partition("==")[2]
            for other in others
            for required in other["project"]["dependencies"]
            if required.startswith("devicecore")
        ),
    }
    assert (len(others), versions) == (3, {devicecore.__version__})


def test_the_changelog_has_the_changes_of_the_version_for_its_tag_only() -> None:
    assert "\n### Added\n" in notes(f"v{devicecore.__version__}")
    with pytest.raises(SystemExit, match="got v9"):
        notes("v9.9.9")


def test_the_changelog_has_one_form() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *versions = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    assert first == "[Unreleased]"
    assert [one for one in versions if not re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", one)] == []
    kinds = set(re.findall(r"^### (.*)$", changelog, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Removed", "Fixed", "Security"}


def test_every_action_is_pinned_by_the_hash_of_a_commit_and_alike_everywhere() -> None:
    pins: dict[str, set[str]] = {}
    for name, text in TEXTS.items():
        for used in re.findall(r"uses: (.*)$", text, re.MULTILINE):
            pinned = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", used)
            assert pinned, f"{name}: {used}"
            pins.setdefault(pinned[1], set()).add(pinned[2])
    assert {action: pin for action, pin in pins.items() if len(pin) > 1} == {}


def test_every_command_of_a_workflow_exists_here() -> None:
    """Each command is a listed program on the runner, a target of the Makefile or a module of `tools`."""
    on_the_runner = {"cp", "docker", "gh", "kubectl", "mkdir"}
    for name, job in jobs().items():
        assert job["timeout-minutes"] <= 60, name
        for step in job["steps"]:
            assert "${{" not in step.get("run", ""), f"{name}: a value could be read as a command"
            for line in step.get("run", "").replace("\\\n", " ").splitlines():
                words = shlex.split(line)
                if words[0] == "make":
                    assert set(words[1:]) <= set(TARGETS), f"{name}: {line}"
                elif words[0] == ".venv/bin/python":
                    assert (ROOT / f"{words[2].replace('.', '/')}.py").exists(), f"{name}: {line}"
                else:
                    assert words[0] in on_the_runner, f"{name}: {line}"


def test_the_workflows_test_the_pythons_that_the_project_names() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    named = [one.rpartition(" ")[2] for one in classifiers if re.search(r":: 3\.\d+$", one)]
    for name, job in jobs().items():
        if "python" in job.get("strategy", {}).get("matrix", {}):
            assert job["strategy"]["matrix"]["python"] == named, name
        asked = [step["with"]["python-version"] for step in job["steps"] if "python-version" in step.get("with", {})]
        assert [one for one in asked if "\n" in one and sorted(one.split()) != named] == [], name
