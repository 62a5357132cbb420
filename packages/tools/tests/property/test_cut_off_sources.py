"""A recorded node that lacks one of its sources is never reported as sound."""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main

from tests.recorded import share

DATA = Path(__file__).parent.parent / "data"
NODES: dict[str, dict[str, Any]] = {
    f"{path.parent.name}/{path.stem}": json.loads(path.read_text())
    for of in ("nodes", "troubles", "misread_nodes", "unaccounted_nodes")
    for path in sorted((DATA / of).glob("*.json"))
}
NEEDLESS = {
    "truth.json": "it is not a source, and belongs to the tests",
    "sources.json": "without it, a missing file counts as not read, and no file is missing",
    "config.yaml": "it says how to read other files",
    "deviceclasses.json": "doctor does not read classes",
    "events.json": "events only explain pods that wait",
    "plugins.json": "a node is read without its plugins' lists unless --plugins asks for them",
    "resourceclaims.json": "on a node without drivers, no claim has devices",
}


def written(root: Path, files: dict[str, Any]) -> Path:
    root.mkdir()
    for file, content in files.items():
        (root / file).write_text(content if isinstance(content, str) else json.dumps(content))
    return root


CUT = [(name, file) for name, files in NODES.items() for file in files if file not in NEEDLESS]


@pytest.mark.parametrize(("name", "file"), share(CUT, 24))
def test_a_recorded_node_without_a_source_is_not_called_sound(
    name: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law: without one of a record's files, `doctor` does not exit with 0. It names findings or what it did not see."""
    files = {one: of for one, of in NODES[name].items() if one not in {file, "truth.json"}}
    status = main(["doctor", "--root", str(written(tmp_path / "node", files)), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert status != 0
    assert not document["is_sound"]
    assert status == 1 or document["not_ruled_out"] or not document["is_enough"]


@pytest.mark.parametrize("name", share([name for name in NODES if name.startswith("nodes/")], 5))
def test_a_record_from_which_a_file_was_taken_is_not_called_sound(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law: a record states which files it had, including those that are optional on a node."""
    root = written(tmp_path / "node", {file: of for file, of in NODES[name].items() if file != "truth.json"})
    saved = tmp_path / "saved"
    main(["doctor", "--root", str(root), "--save", str(saved), "--json"])
    for file in sorted(saved.iterdir()):
        if file.name not in {"look.json", "sources.json", "deviceclasses.json", "config.yaml"}:
            content = file.read_bytes()
            file.unlink()
            capsys.readouterr()
            assert main(["doctor", "--root", str(saved), "--json"]) != 0, file.name
            file.write_bytes(content)
