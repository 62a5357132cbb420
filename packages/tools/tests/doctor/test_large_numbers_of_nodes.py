"""A number in a node's file is never used as a length or range. `doctor` exits with an error message or a report.

The files come from recorded nodes, from a record that `doctor --save` wrote, and from a node whose CPUs are pinned.
The numbers in the files are replaced one at a time. Of each list, only the first item is searched for numbers.
"""

import copy
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main
from devicecore_tools.doctor.reading import record
from tests.doctor.nodes import CLEAN
from tests.doctor.test_recorded_nodes import NODES, written
from tests.numa_node import make_directory, pod

from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode
from tests.recorded import share

Place = tuple[str, tuple[Any, ...]]
"""A file, and the path of a number in the file."""

POD = pod("asked", "2", "1Gi", **{"example.com/gpu": "1"})
ENOUGH = 1 << 20  # bytes of output


def numbers_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - any JSON
    """Yield the path of each number and quantity. Only the first item of a list is searched."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, one in items:
        yield from numbers_in(one, (*path, key))
    if type(value) in {int, float} or (isinstance(value, str) and value[:1].isdigit()):
        yield path


def replaced(document: Any, path: tuple[Any, ...], number: int) -> Iterator[Any]:  # noqa: ANN401 - any JSON
    """Yield the document with the number and then its negative at a path.

    If the value at the path is a string, yield the document with a number, a range and a size as strings instead.
    """
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    is_text = isinstance(inner[path[-1]], str)
    for new in (str(number), f"0-{number}", f"{number}Gi") if is_text else (number, -number):
        inner[path[-1]] = new
        yield changed


def directories(tmp_path: Path) -> Iterator[Path]:
    """Yield the directories of recorded nodes, a record with all sources, and a node with pinned CPUs and memory."""
    for name in NODES:
        yield Path(written(tmp_path, name))
    saved = tmp_path / "saved"
    record.save(str(saved), CLEAN, None, None, {}, {}, taken=0)
    yield saved
    (tmp_path / "numa").mkdir()
    yield make_directory(tmp_path / "numa", (pod("a", "4", "2Gi"), 1))


def places(tmp_path: Path) -> list[tuple[Path, Place]]:
    """Return each number in the files of all nodes, once for each path."""
    found: dict[Place, Path] = {}
    for directory in directories(tmp_path):
        for file in sorted(one for one in directory.rglob("*") if one.is_file()):
            try:
                document = json.loads(file.read_text())
            except ValueError:  # a listing
                continue
            for path in numbers_in(document):
                found.setdefault((str(file.relative_to(directory)), path), directory)
    return [(directory, place) for place, directory in found.items()]


@pytest.mark.parametrize("number", [10**18, pytest.param(10**30, marks=pytest.mark.slow)])
def test_no_number_in_a_file_of_a_node_takes_memory_or_time(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pod.json").write_text(json.dumps(POD))
    known = places(tmp_path)
    assert {name for _, (name, _) in known} >= {
        *("kubelet_internal_checkpoint", "dra_manager_state", "dra_health_state", "cpu_manager_state"),
        *("memory_manager_state", "config.yaml", "machine.json", "look.json", "events.json", "pods.json", "node.json"),
        *("resourceslices.json", "resourceclaims.json", "pod-resources-list.json", "pod-resources-allocatable.json"),
        *(record.PLUGINS, record.CDI),
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for directory, (name, path) in share(known, 20):
        whole = (directory / name).read_text()
        for changed in replaced(json.loads(whole), path, number):
            (directory / name).write_text(json.dumps(changed))
            for arguments in (
                ["doctor", "--root", str(directory), "--patience", "0", "--json"],
                ["fits", str(tmp_path / "pod.json"), "--node", str(directory)],
            ):
                status = main(arguments)
                printed = "".join(capsys.readouterr())
                assert status in range(5), (arguments, path)
                assert "Traceback" not in printed, (arguments, path)
                assert len(printed) < ENOUGH, (arguments, path)
        (directory / name).write_text(whole)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB


@pytest.mark.parametrize("number", [10**18, 2**63 - 1])
def test_no_numa_node_in_a_sound_checkpoint_takes_memory_or_time(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(written(tmp_path, "01-healthy"))
    entry = PodDevicesEntry("uid", "main", "example.com/gpu", {number: ("gpu-0",)}, b"")
    (root / "kubelet_internal_checkpoint").write_bytes(
        encode(CheckpointData((entry,), {"example.com/gpu": ("gpu-0",)}))
    )
    (tmp_path / "pod.json").write_text(json.dumps(POD))
    assert main(["doctor", "--root", str(root), "--patience", "0"]) in {1, 3}
    assert main(["fits", str(tmp_path / "pod.json"), "--node", str(root)]) in range(5)
    assert "Traceback" not in "".join(capsys.readouterr())
