"""The fleet is a separate distribution: without it, everything else works and says what is missing."""

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import walk_packages

import devicecore_tools
import pytest
from devicecore_fleet.cluster import assembly
from devicecore_fleet.command.fleet import fleet
from devicecore_tools.command.commands import COMMANDS, FLEET
from devicecore_tools.command.distributions import GROUP
from devicecore_tools.command.kubelet.command import IN_CLUSTER

INSTALL = "in a clone, pip install . ./packages/tools ./packages/fleet; elsewhere, pip install devicecore-fleet"
BLOCKED = """
import sys
sys.modules |= dict.fromkeys(("devicecore_fleet", "httpcore2", "httpx2"))
from devicecore_tools.command.main import main
"""


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def without(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python(f"{BLOCKED}sys.exit(main(sys.argv[1:]))", *arguments)


@pytest.mark.slow
def test_no_module_of_the_tools_loads_the_fleet() -> None:
    names = [found.name for found in walk_packages(devicecore_tools.__path__, "devicecore_tools.")]
    names = [name for name in names if not name.endswith("__main__")]
    assert len(names) > 100
    script = "import sys; from importlib import import_module; [import_module(name) for name in sys.argv[1:]]"
    ran = python(f"{script}; print([one for one in sys.modules if one.startswith('devicecore_fleet')])", *names)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


def test_the_entry_points_name_what_the_command_asks_for() -> None:
    assert [one.load() for one in entry_points(group=GROUP)] == [fleet]
    assert {one.name for one in entry_points(group=GROUP)} == set(FLEET)
    assert [one.load() for one in entry_points(group=IN_CLUSTER, name="cluster")] == [assembly.begin]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["fleet", "shapes"], "this command"),
        (["kubelet", "--root", "{root}", "--register-node"], "a node of a cluster"),
        (["kubelet", "--root", "{root}", "--pods-from-server"], "a node of a cluster"),
        (["kubelet", "--root", "{root}", "--topology-objects"], "a node of a cluster"),
    ],
)
def test_what_needs_the_fleet_names_the_distribution_to_install(
    tmp_path: Path, arguments: Sequence[str], what: str
) -> None:
    server = ["--kubeconfig", str(tmp_path / "config")] if "kubelet" in arguments else []
    ran = without(*(one.format(root=tmp_path) for one in arguments), *server)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"devicecore {arguments[0]}: {what} needs the distribution devicecore-fleet: {INSTALL}\n"
    assert list(tmp_path.iterdir()) == []


def test_every_other_command_works_without_the_fleet(tmp_path: Path) -> None:
    script = f"{BLOCKED}print([main([name, '--help']) for name in sys.argv[1:]])"
    ran = python(script, *COMMANDS)
    assert ran.stdout.splitlines()[-1] == str([0] * len(COMMANDS)), ran.stderr
    ran = without("kubelet", "--root", str(tmp_path), "--once", "--wait", "0", "--json")
    assert (ran.returncode, ran.stderr.count("Traceback")) == (0, 0), ran.stderr


ODD = """
[devicecore.commands]
raises = odd:nothing_is_called_so
number = odd:NUMBER
fleet = odd:NUMBER
"""


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("raises", 2, "devicecore raises: raises from odd cannot be imported: AttributeError: "),
        ("number", 2, "devicecore number: number from another distribution: expected a click.Command, got int"),
        ("fleet", 0, ""),
    ],
)
def test_a_distribution_with_odd_entry_points_is_named_in_a_sentence(
    tmp_path: Path, name: str, status: int, said: str
) -> None:
    installed = tmp_path / "odd-1.0.dist-info"
    installed.mkdir()
    (tmp_path / "odd.py").write_text("NUMBER = 42")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(ODD)
    script = "import sys; sys.path.insert(0, sys.argv.pop(1)); from devicecore_tools.command.main import main; "
    ran = python(f"{script}sys.exit(main(sys.argv[1:]))", str(tmp_path), name, "--help")
    assert (ran.returncode, ran.stderr[: len(said)], ran.stderr.count("Traceback")) == (status, said, 0)
