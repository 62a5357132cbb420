"""Each example in examples/ is run as a reader would run it, and the folder's README.md lists all of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


def test_the_workflow_of_the_guide_is_the_example() -> None:
    guide = (EXAMPLES.parent / "docs" / "ci.md").read_text(encoding="utf-8")
    _comments, _on, workflow = (EXAMPLES / "ci" / "conformance.yml").read_text(encoding="utf-8").partition("on: ")
    assert f"```yaml\non: {workflow}```" in guide


def test_the_list_of_examples_has_each_of_them() -> None:
    listed = re.findall(r"^\| `([\w./-]+)` \|", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    files = [path.relative_to(EXAMPLES).as_posix() for path in (*PROGRAMS, *EXAMPLES.glob("ci/*"))]
    assert sorted(listed) == sorted(files)


def test_each_page_that_lists_a_cluster_in_files_also_lists_the_templates_of_claims() -> None:
    """Without the templates, `why --slices` cannot try a pod whose claim is created from one."""
    pages = sorted((EXAMPLES.parent / "docs").glob("*.md"))
    blocks = [one for page in pages for one in re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL)]
    lists = {one: set(re.findall(r"[a-z]+", " ".join(re.findall(r"kubectl get (\S+) .*>", one)))) for one in blocks}
    tried = {one: kinds for one, kinds in lists.items() if {"deviceclasses", "resourceclaims"} <= kinds}
    assert len(tried) == 2
    assert [one for one, kinds in tried.items() if "resourceclaimtemplates" not in kinds] == []


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run all examples' tests in one project without settings, and return pytest's output."""
    project = tmp_path_factory.mktemp("project")
    for program in PROGRAMS:
        (project / program.name).write_bytes(program.read_bytes())
    command = (sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", *[program.name for program in PROGRAMS])
    return subprocess.run(command, cwd=project, stdout=subprocess.PIPE, text=True, check=False).stdout


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_passes_in_a_project_without_settings(program: Path, outcomes: str) -> None:
    found = re.findall(rf"^{program.name}::.* (PASSED|FAILED|ERROR|SKIPPED)\b", outcomes, re.MULTILINE)
    assert set(found) == {"PASSED"}, outcomes
