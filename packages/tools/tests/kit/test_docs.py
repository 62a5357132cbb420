"""The examples in the guides that Sybil cannot run: commands, and tests that need pytest."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from devicecore_tools.conformance.device_plugin import CHECKS, Settings
from tests.kit.faults import EXPENSIVE, RESTARTS

from tests.guides import GUIDES, PYTHON

DOCS = Path(__file__).parents[4] / "docs"
GUIDE = (DOCS / "test-your-plugin.md").read_text(encoding="utf-8")
SHELL = re.compile(r"<!-- shell: (\w+) -->\n```console\n\$ (.+)\n((?:.+\n)*)```")
QUICK = " ".join(f"--skip={name}" for name in (*RESTARTS, *EXPENSIVE))
QUICK_BUT_ONE = QUICK.replace("--skip=returns-after-the-directory-is-emptied ", "")


def assert_prints_what_is_shown(guide: str, name: str, status: int, directory: Path, sooner: tuple[str, str]) -> None:
    """Run a shortened version of a guide's command, and check that it prints each line that the guide shows."""
    ((command, shown),) = [found[1:] for found in SHELL.findall(guide) if found[0] == name]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ran = subprocess.run(
        ["/bin/sh", "-c", command.replace(*sooner)],
        cwd=directory,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        check=False,
        timeout=120,
    )
    assert ran.returncode == status, ran.stdout + ran.stderr
    assert [line for line in shown.splitlines() if line not in ran.stdout] == []


@pytest.mark.parametrize(
    ("name", "status", "sooner"),
    [("failing", 1, QUICK), pytest.param("passing", 0, QUICK_BUT_ONE, marks=pytest.mark.slow)],
)
def test_a_command_prints_what_the_guide_shows(name: str, status: int, sooner: str) -> None:
    assert_prints_what_is_shown(GUIDE, name, status, Path.cwd(), ("conformance plugin", f"conformance plugin {sooner}"))


@pytest.mark.parametrize(
    ("name", "number"), [("test-your-plugin", 3), pytest.param("dra-fixtures", 2, marks=pytest.mark.slow)]
)
def test_the_tests_in_the_guide_pass(tmp_path: Path, name: str, number: int) -> None:
    guide = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    (block,) = [block for block in PYTHON.findall(guide) if "def test_" in block]
    (tmp_path / "test_guide.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "-pno:cacheprovider", "-pno:hypothesispytest", "-pno:pytest_cov"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert f"{number} passed" in ran.stdout, ran.stdout


def test_the_commands_without_a_cluster_have_the_arguments_of_the_manifests() -> None:
    page = (DOCS / "gpu-in-kind.md").read_text(encoding="utf-8")
    by_hand = re.findall(r"^\$ (devicecore (?:plugin|dra-driver) .*)$", page, re.MULTILINE)
    manifests = [(DOCS.parent / "deploy" / "kind" / f"{name}.yaml").read_text() for name in ("plugin", "driver")]
    containers = [
        container
        for one in yaml.safe_load_all("\n---\n".join(manifests))
        if one["kind"] == "DaemonSet"
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    assert len(by_hand) == len(containers) == 3
    for command, container in zip(by_hand, containers, strict=True):
        for argument in container["args"]:
            option, _, value = argument.partition("=")
            if option != "--pod-uid":  # there is no rolling update
                assert f"{option} {'' if '$' in value else value}" in f"{command} "


def test_the_guides_import_nothing_from_the_tests() -> None:
    texts = [(DOCS / f"{name}.md").read_text(encoding="utf-8") for name in GUIDES]
    assert [text for text in texts if re.search(r"^(from|import) tests\b", text, re.MULTILINE)] == []


def test_the_guide_and_the_settings_have_the_same_seconds() -> None:
    settings = Settings()
    assert f"waits {settings.first:g} seconds (`--starting`)" in " ".join(GUIDE.split())
    for option in ("returning", "noticing", "grace"):
        seconds = getattr(settings, option)
        assert f"{seconds:g} seconds (`--{option}`)" in " ".join(GUIDE.split())


def test_the_guide_names_only_checks_that_exist() -> None:
    named = set(re.findall(r"--(?:skip|only) ([a-z][a-z-]+)", " ".join(GUIDE.split())))
    assert named <= {check.name for check in CHECKS}
    assert named
