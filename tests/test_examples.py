"""Each example in examples/ runs as its reader would run it, and README.md of the folder lists each."""

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


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_passes_in_a_project_without_settings(program: Path, tmp_path: Path) -> None:
    (tmp_path / program.name).write_bytes(program.read_bytes())
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", program.name)
    run = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 0, run.stdout
