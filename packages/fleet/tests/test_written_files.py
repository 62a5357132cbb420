"""SECURITY.md lists each file, directory and socket that a program creates, with its mode regardless of the umask."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_IMODE
from tempfile import TemporaryDirectory

import pytest

from tests.adapters.peers import wait_until
from tests.reliability.scale import PATIENCE, STORM

SECURITY = Path(__file__).parents[3] / "SECURITY.md"
_ROW = re.compile(r"\| `([A-Z]+[^`]*)`(?:, `([^`]+)`)? \| (0[0-7]{3}) \|")

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default}
spec:
  containers: [{name: c, resources: {limits: {x.y/z: 1}}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: claim, namespace: default, uid: u}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu}}]}}
status:
  reservedFor: [{resource: pods, name: b, uid: b}]
  allocation: {devices: {results: [{request: r, driver: gpu.example.com, pool: node, device: dev-0}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: default, uid: b}
spec:
  resourceClaims: [{name: x, resourceClaimName: claim}]
  containers: [{name: c, resources: {claims: [{name: x}]}}]
"""
FLEET = "nodes:\n- name: w-{number}\n  count: 1\n  plugins: [{resource: x.y/z, devices: 2}]\n"


def rows() -> dict[str, int]:
    """Return the table in SECURITY.md: the mode for each path pattern."""
    found: dict[str, int] = {}
    for line in SECURITY.read_text().splitlines():
        if row := _ROW.match(line):
            found |= {pattern.rstrip("/"): int(row[3], 8) for pattern in (row[1], row[2]) if pattern}
    return found


def command(umask: int, *words: str) -> "subprocess.Popen[str]":
    program = [sys.executable, "-m", "devicecore_tools", *words]
    return subprocess.Popen(
        program, umask=umask, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@contextmanager
def running(umask: int, *words: str) -> Iterator[None]:
    """Run a program until the end of the block."""
    with command(umask, *words) as process:
        try:
            yield
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


def run(umask: int, *words: str) -> None:
    with command(umask, *words) as process:
        said = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode in {0, 1, 3}, said


def made_in(directory: Path) -> dict[str, int]:
    """Return the mode of everything in a directory, by path."""
    return {
        str(path.relative_to(directory)): S_IMODE(path.lstat().st_mode)
        for path in directory.rglob("*")
        if not path.is_symlink()
    }


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0, 0o022, 0o077] if STORM else [0])
def test_each_file_has_the_mode_of_the_table_and_each_row_a_file(umask: int) -> None:
    """All programs run at the same time and create files. The table lists only files that the programs create."""
    with TemporaryDirectory(prefix="dc", dir="/tmp") as top:  # a socket path in pytest's directory may be too long
        made, given = made_by_all_programs(umask, Path(top))
    table = rows()
    found = {path: mode for path, mode in made.items() if path not in given}
    matched = {path: [pattern for pattern in table if fnmatchcase(path, pattern)] for path in found}
    assert not [path for path, patterns in matched.items() if not patterns]
    assert not {
        path: oct(mode) for path, mode in found.items() if any(table[pattern] != mode for pattern in matched[path])
    }
    assert not table.keys() - {pattern for patterns in matched.values() for pattern in patterns}


def made_by_all_programs(umask: int, top: Path) -> tuple[dict[str, int], set[str]]:
    """Run all programs at the same time. Return the mode of everything in `top`, and what this function put there."""
    place = {name: str(top / name) for name in ("ROOT", "FLEET", "CDI", "RECORD", "FILE")}
    given = [top / name for name in ("ROOT", "FLEET", "FILE", "manifests")]
    for directory in given:
        directory.mkdir(0o755)
    (top / "manifests" / "m.yaml").write_text(MANIFEST)
    (top / "fleet.yaml").write_text(FLEET)
    given += [top / "manifests" / "m.yaml", top / "fleet.yaml"]
    root, config = top / "ROOT", f"{place['FILE']}/kubeconfig"
    state, checkpoint = root / "state.json", root / "device-plugins" / "kubelet_internal_checkpoint"
    manifests = str(top / "manifests")
    fleet = ("--kubeconfig", config, "--node-ip", "127.0.0.1", "--root", place["FLEET"])
    driver = ("--name", "gpu.example.com", "--node", "node", "--pool", "node", "--manifests", manifests)
    sockets = ("--registry", str(root / "plugins_registry"), "--plugin-dir", str(root / "plugins"))
    with ExitStack() as stack:

        def start(*words: str) -> None:
            stack.enter_context(running(umask, *words))

        start("api-server", config)
        start("kubelet", "--root", place["ROOT"], "--manifests", manifests)
        wait_until((root / "device-plugins" / "kubelet.sock").exists, "the kubelet listens")
        wait_until((root / "plugins_registry").exists, "the kubelet watches")
        start("plugin", "simulated", "--resource", "x.y/z", "--count", "2", "--socket-dir", str(checkpoint.parent))
        start("dra-driver", "simulated", *driver, *sockets, "--cdi-dir", place["CDI"])
        wait_until(lambda: Path(config).exists() and Path(config).read_text() != "", "there is a server")
        start("fleet", "run", str(top / "fleet.yaml"), *fleet, "--control", f"{place['FLEET']}/control.sock")
        wait_until(lambda: any(Path(place["CDI"]).glob("*.json")), "the claim is prepared")
        wait_until(lambda: state.exists() and '"b"' in state.read_text(), "the pods run")
        wait_until(lambda: any(Path(place["FLEET"]).rglob("kubelet_internal_*")), "the fleet runs")
        pages = ("--html", f"{place['FILE']}/report.html", "--svg", f"{place['FILE']}/picture.svg")
        run(umask, "doctor", "--root", place["ROOT"], "--save", place["RECORD"], *pages)
        run(umask, "checkpoint", "convert", str(checkpoint), "--to", "1", "-o", f"{place['FILE']}/converted")
        run(umask, "checkpoint", "repair", str(checkpoint), f"{place['FILE']}/repaired")
        made = made_in(top)
    return made, {str(path.relative_to(top)) for path in given}
