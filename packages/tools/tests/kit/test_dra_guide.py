"""The commands of `docs/test-your-dra-driver.md` print what the guide shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from devicecore_tools.command.conformance_driver import PLACEHOLDERS
from devicecore_tools.conformance.dra.environment import Environment
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from tests.conformance.harness import TRIES_ALL_FAULTS
from tests.kit.test_docs import DOCS, assert_prints_what_is_shown

from tests.guides import PYTHON

GUIDE = (DOCS / "test-your-dra-driver.md").read_text(encoding="utf-8")
GO = re.compile(r"```go\n(.*?)```", re.DOTALL)
ROLLING_UPDATE = re.compile(r"`(kubeletplugin\.RollingUpdate\(.*\))`")
FILE = re.compile(r"<!-- file: (\S+) -->\n```yaml\n(.*?)```", re.DOTALL)
# Replacements that select only the checks that the guide shows; the rest of the run would mostly be waiting.
SOONER = {
    "passing": (" -- ", " --only announces-known-versions --only completes-its-pools -- "),
    "failing": ("*-cdi-*", "*-resolvable-cdi-*"),
}


@pytest.mark.parametrize(
    ("name", "status"),
    [
        pytest.param("passing", 0, marks=pytest.mark.slow),
        pytest.param("failing", 1, marks=pytest.mark.slow),
        pytest.param("claims", 0, marks=pytest.mark.slow),
    ],
)
def test_a_command_prints_what_the_guide_shows(tmp_path: Path, name: str, status: int) -> None:
    for file, content in FILE.findall(GUIDE):
        (tmp_path / file).write_text(content)
    assert_prints_what_is_shown(GUIDE, name, status, tmp_path, SOONER.get(name, ("", "")))


@pytest.mark.slow
def test_the_driver_in_python_passes_the_checks(tmp_path: Path) -> None:
    """The two programs are saved as the guide says."""
    guide = (DOCS / "write-a-driver.md").read_text(encoding="utf-8")
    *program, trial = PYTHON.findall(guide)
    (tmp_path / "chips_driver.py").write_text("\n".join([*program, 'if __name__ == "__main__":\n    main()\n']))
    (tmp_path / "try_chips.py").write_text(f"from chips_driver import *\n{trial}")
    subprocess.run([sys.executable, "try_chips.py"], cwd=tmp_path, check=True, timeout=120)
    sooner = "--only completes-its-pools --only names-its-node --only answers-resolvable-cdi-names"
    assert_prints_what_is_shown(guide, "driver", 0, tmp_path, ("conformance driver", f"conformance driver {sooner}"))


def test_the_table_names_every_placeholder_and_variable_of_the_driver() -> None:
    rows = dict(re.findall(r"^\| `(\{\w+\})` \| (?:`(\w+)`|none, see below) \|", GUIDE, re.MULTILINE))
    with Environment(DriverTestSettings()) as environment:
        variables = environment.variables()
        for placeholder, variable in rows.items():
            if variable:
                assert variables[variable] == environment.expand(placeholder)
        assert environment.expand("{pod_uid}") != "{pod_uid}"
        of_every_process = {"{dir}", "{socket}"}
        known = {*environment.placeholders, "{pod_uid}", *of_every_process}
    assert len(rows) == 6
    assert {f"{{{name}}}" for name in PLACEHOLDERS} == known


# Stand-ins for the packages that the guide's Go code uses, with the signatures of k8s.io/dynamic-resource-allocation
# v0.34, and a program into which the code is inserted.
GO_SOURCES = Path(__file__).parents[1] / "data" / "go"
GO_COMMAND = shutil.which("go")


@pytest.mark.skipif(GO_COMMAND is None, reason="this test needs Go")
@pytest.mark.skipif(not TRIES_ALL_FAULTS, reason="Go compiles its own library first; `make faults` runs this test")
def test_the_go_code_is_compiled_as_it_is_printed(tmp_path: Path) -> None:
    (code,), (option,) = GO.findall(GUIDE), ROLLING_UPDATE.findall(GUIDE)
    shutil.copytree(GO_SOURCES, tmp_path / "src")
    program = (tmp_path / "src" / "driver" / "main.go.txt").read_text()
    program = program.replace("// the code of the guide", code).replace("_ = option", f"_ = {option}")
    (tmp_path / "src" / "driver" / "main.go").write_text(program)
    settings = {"GO111MODULE": "off", "GOPATH": str(tmp_path), "GOFLAGS": ""}
    built = subprocess.run(
        [GO_COMMAND or "go", "vet", "driver"],
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
        check=False,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
