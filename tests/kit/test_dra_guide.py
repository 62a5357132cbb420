"""The commands of `docs/test-your-dra-driver.md` print what the guide shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from devicecore.conformance.dra.environment import Environment
from devicecore.conformance.dra.settings import DriverTestSettings

GUIDE = (Path(__file__).parents[2] / "docs" / "test-your-dra-driver.md").read_text(encoding="utf-8")
SHELL = re.compile(r"<!-- shell: (\w+) -->\n```console\n\$ (.+)\n((?:.+\n)*)```")
FILE = re.compile(r"<!-- file: (\S+) -->\n```yaml\n(.*?)```", re.DOTALL)
# Of the run by default, only what the guide shows: the rest is waiting.
SOONER = {"passing": "--only announces-known-versions --only completes-its-pools"}


@pytest.mark.parametrize(("name", "status"), [("passing", 0), ("failing", 1), ("claims", 0)])
def test_a_command_prints_what_the_guide_shows(tmp_path: Path, name: str, status: int) -> None:
    for file, content in FILE.findall(GUIDE):
        (tmp_path / file).write_text(content)
    ((command, shown),) = [found[1:] for found in SHELL.findall(GUIDE) if found[0] == name]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ran = subprocess.run(
        ["/bin/sh", "-c", command.replace(" --dra", f" --dra {SOONER.get(name, '')}")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        check=False,
        timeout=120,
    )
    assert ran.returncode == status, ran.stdout + ran.stderr
    assert [line for line in shown.splitlines() if line not in ran.stdout] == []


def test_the_table_names_every_placeholder_and_variable_of_the_driver() -> None:
    rows = {
        row[0]: row[1] for row in re.findall(r"^\| `(\{\w+\})` \| (?:`(\w+)`|none, see below) \|", GUIDE, re.MULTILINE)
    }
    with Environment(DriverTestSettings()) as environment:
        variables = environment.variables()
        for placeholder, variable in rows.items():
            if variable:
                assert variables[variable] == environment.expand(placeholder)
        assert environment.expand("{pod_uid}") != "{pod_uid}"
    assert len(rows) == 6
