"""The cases in docs/four-nodes.md: the commands print what the page shows, and write the page's pictures."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from devicecore_tools.command.main import main

DOCS = Path(__file__).parents[4] / "docs"
GUIDE = (DOCS / "four-nodes.md").read_text(encoding="utf-8")
CASES = re.findall(r"^## (.*?)\n(.*?)(?=^##|\Z)", GUIDE, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Return each command of a case with the parts of its output that the page shows. A line `...` separates parts."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = one.partition("\n")
            found.append((command, [part.strip("\n") for part in re.split(r"^\.\.\.$", output, flags=re.MULTILINE)]))
    return [(command, [part for part in parts if part]) for command, parts in found]


def test_there_are_four_cases() -> None:
    assert [title.partition(":")[0] for title, _ in CASES] == ["A leak", "A reboot", "Two owners", "A corrupt file"]


@pytest.mark.parametrize(("title", "text"), CASES, ids=[title.partition(":")[0] for title, _ in CASES])
def test_a_case_shows_what_its_commands_print(
    title: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DOCS / "nodes", tmp_path / "nodes", ignore=shutil.ignore_patterns("*.svg"))
    monkeypatch.chdir(tmp_path / "nodes")
    monkeypatch.setattr(sys, "stderr", sys.stdout)  # on a terminal, both are printed in order
    listed = commands(text)
    assert len(listed) >= 2, title
    for command, parts in listed:
        program, *arguments = shlex.split(command)
        assert program == "devicecore"
        main(arguments)
        printed = capsys.readouterr().out
        rest = "".join(printed.split())
        for part in parts:
            shown = "".join(part.split())  # the page wraps output to its own width
            assert shown in rest, f"{command}\nprints\n{printed}\nwithout\n{part}"
            rest = rest.partition(shown)[2]
    (picture,) = re.findall(r"!\[[^\]]{20,}\]\(nodes/([\w-]+\.svg)\)", text)
    made = [path.name for path in Path.cwd().glob("*.svg")]
    assert made == [picture]
    assert Path(picture).read_bytes() == (DOCS / "nodes" / picture).read_bytes(), f"run the commands of {title!r} again"


def test_a_command_names_the_only_pod_of_its_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--root", str(DOCS / "nodes" / "leak")]) == 1
    assert "confirm:  kubectl get pod batch -n default -o jsonpath=" in capsys.readouterr().out
