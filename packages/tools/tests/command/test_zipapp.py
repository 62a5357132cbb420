"""The one-file devicecore: what it can do without any Python packages."""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from devicecore_tools.command.main import main
from devicecore_tools.doctor.look.values import Source

from devicecore import __version__
from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode

ROOT = Path(__file__).parents[4]
NODES = sorted((Path(__file__).parents[1] / "data" / "nodes").glob("*.json"))
GPU = "example.com/gpu"
ENTRY = PodDevicesEntry("u-1", "main", GPU, {0: ("gpu-0",)}, b"\n\x08\n\x03GPU\x12\x010")
REFUSAL = (
    f"Allocate failed due to requested number of devices unavailable for {GPU}. Requested: 2, Available: 1, which is "
    "unexpected"
)
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {GPU: "1"}}}]},
}


def build(target: Path, **environment: str) -> Path:
    command = [sys.executable, str(ROOT / "tools" / "make_zipapp.py"), str(target)]
    subprocess.run(command, check=True, capture_output=True, timeout=100, env={**os.environ, **environment})
    return target


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("pyz") / "devicecore.pyz", PYTHONHASHSEED="1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "device-plugins" / "kubelet_internal_checkpoint"
    path.parent.mkdir()
    path.write_bytes(encode(CheckpointData((ENTRY,), {GPU: ("gpu-0", "gpu-1")})))
    return path


def run(pyz: Path, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the file with only the standard library."""
    command = [sys.executable, "-I", "-S", str(pyz), *arguments]
    directory = pyz.parent
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=100, check=False, cwd=directory)


EACH = """
import contextlib, io, json, sys

sys.path.insert(0, sys.argv[1])
from devicecore_tools.command.main import main

for arguments in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        status = main(arguments)
    print(json.dumps([status, out.getvalue(), error.getvalue()]))
"""


def run_each(pyz: Path, commands: Sequence[Sequence[str]]) -> list[tuple[int, str, str]]:
    """Run commands in a single process, and return each command's status, output and errors."""
    command = [sys.executable, "-I", "-S", "-c", EACH, str(pyz)]
    given = json.dumps(commands)
    where = pyz.parent
    ran = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, timeout=100, check=True, cwd=where)
    return [(status, out, error) for status, out, error in map(json.loads, ran.stdout.splitlines())]


def test_the_help_lists_first_what_the_file_can_run(pyz: Path) -> None:
    said = run(pyz, "--help").stdout
    can_run, _, others = said.partition("\nCommands:")[2].partition("Commands that need an installation:")
    commands = ["checkpoint", "doctor", "fits", "nodes", "why"]
    assert [line.split()[0] for line in can_run.splitlines() if line] == commands
    for page in ("README.md", "docs/install.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert sorted(re.findall(r"`(\w+)`", text.partition("The file runs ")[2].partition(".")[0])[:5]) == commands
    assert {line.split()[0] for line in others.splitlines() if line} >= {"conformance", "demo", "fleet", "kubelet"}


def test_doctor_reads_what_it_can_and_names_what_it_skips(pyz: Path, file: Path, tmp_path: Path) -> None:
    page = tmp_path / "node.html"
    ran = run(pyz, "doctor", "--root", str(tmp_path), "--plugins", "--patience", "0", "--json", "--html", str(page))
    sources = {one["source"]: one for one in json.loads(ran.stdout)["sources"]}
    assert ran.stderr == ""
    assert sources[Source.CHECKPOINT.value]["place"] == str(file)
    assert sources[Source.CHECKPOINT.value]["notes"] == []
    for source in (Source.POD_RESOURCES, Source.PLUGINS):
        assert sources[source.value]["problem"].startswith("it is skipped, because grpcio is not installed")
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_why_explains(pyz: Path, file: Path) -> None:
    ran = run(pyz, "why", "-", "--checkpoint", str(file), "--json", stdin=REFUSAL)
    (explained,) = json.loads(ran.stdout)["explanations"]
    assert (ran.returncode, ran.stderr, explained["id"]) == (0, "", "DM-05")
    assert [row["device"] for row in explained["devices"]] == ["gpu-0", "gpu-1"]
    assert "decided by" in run(pyz, "why", REFUSAL).stdout


@pytest.mark.slow
def test_fits_tries_a_pod(pyz: Path, file: Path, tmp_path: Path) -> None:
    """YAML manifests can be read even though PyYAML's C parser is missing."""
    lines = ["apiVersion: v1", "kind: Pod", "metadata: {name: a}", "spec:", "  containers:", "  - name: c"]
    lines += ["    resources:", "      limits:", f"        {GPU}: 1"]
    pods = [tmp_path / "pod.json", tmp_path / "pod.yaml"]
    for pod, text in zip(pods, (json.dumps(POD), "\n".join(lines)), strict=True):
        pod.write_text(text)
    for status, out, error in run_each(pyz, [["fits", str(pod), "--node", str(file)] for pod in pods]):
        assert (status, error) == (0, "")
        assert ": fits\n" in out


def test_doctor_agrees_with_the_installed_one_on_each_recorded_node(
    pyz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = []
    for node in NODES:
        root = tmp_path / node.stem
        root.mkdir()
        for name, content in json.loads(node.read_text()).items():
            (root / name).write_text(content if isinstance(content, str) else json.dumps(content))
        commands.append(["doctor", "--root", str(root), "--json"])
    one_file = run_each(pyz, commands)
    installed = [(main(command), *capsys.readouterr()) for command in commands]
    assert len(installed) == 17
    assert one_file == installed


@pytest.mark.slow
def test_each_command_for_checkpoints_works(pyz: Path, file: Path, tmp_path: Path) -> None:
    more = {
        "verify": [],
        "show": [],
        "diff": [str(file)],
        "convert": ["--to", "1", "-o", str(tmp_path / "converted")],
        "repair": [str(tmp_path / "repaired")],
    }
    results = run_each(pyz, [["checkpoint", name, str(file), *more[name]] for name in more])
    for name, (status, out, error) in zip(more, results, strict=True):
        assert (status, "Traceback" in error) == (0, False), (name, error)
        assert name != "show" or "GPU=0" in out


def test_a_command_that_needs_more_says_so_and_leaves_nothing(pyz: Path) -> None:
    commands = [
        ["demo"],
        ["kubelet", "--root", "."],
        ["plugin", "simulated", "--resource", GPU],
        ["conformance", "plugin", "--", "plugin"],
        ["dra-driver", "simulated", "--name", "example.com", "--node", "n", "--manifests", "."],
    ]
    ways = "in a clone, pip install . './packages/tools'; elsewhere, pip install 'devicecore-tools'"
    sentence = f"the command needs grpc, which devicecore.pyz does not contain: {ways}\n"
    for command, (status, out, error) in zip(commands, run_each(pyz, commands), strict=True):
        called, colon, said = error.partition(": ")
        assert (status, out, colon + said) == (2, "", f": {sentence}")
        assert called in {f"devicecore {' '.join(command[:count])}" for count in (1, 2)}
    assert [path.name for path in pyz.parent.iterdir()] == ["devicecore.pyz"]


@pytest.mark.slow
def test_help_and_version_need_nothing(pyz: Path) -> None:
    assert run(pyz, "--version").stdout == f"devicecore {__version__}\n"
    assert "doctor" in run(pyz, "--help").stdout


MODULES = """
import sys, zipfile
from tools.make_zipapp import ROOT, _entry, _module
for path in sorted((ROOT / "src" / "devicecore" / "domain").glob("*.py")):
    for name, blob in _module(path.name, path.read_bytes()):
        print(_entry(name), blob)
"""


def test_equal_sources_give_equal_bytes() -> None:
    """Two builds could otherwise differ in the order of a set in a module's bytecode."""
    built = {
        subprocess.run(
            [sys.executable, "-c", MODULES],
            check=True,
            capture_output=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in "12"
    }
    assert len(built) == 1


def test_it_is_a_program_without_compiled_parts_and_has_the_licenses(pyz: Path) -> None:
    assert pyz.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert os.access(pyz, os.X_OK)
    names = zipfile.ZipFile(pyz).namelist()
    assert [name for name in names if name.endswith((".so", ".pyd"))] == []
    assert {name.split("/")[1] for name in names if name.startswith("licenses/")} >= {"devicecore", "click", "rich"}
