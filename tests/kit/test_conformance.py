"""Every check of `devicecore conformance` fails on a plugin with just that fault, and on no other.

Those about a kubelet's life are in a file of their own, so that two workers share the time.
"""

import socket
import sys
from pathlib import Path

import pytest

from devicecore import conformance
from devicecore.conformance import CHECKS
from devicecore.conformance.peer import PluginConnection
from tests.kit.faults import BY_NAME, FAULTS, LIFE_FAULTS, NAMES, PLUGIN, QUICK, check_that_it_is_found


@pytest.mark.parametrize(("fault", "failing", "names"), FAULTS, ids=[fault for fault, _, _ in FAULTS])
def test_a_fault_is_found(fault: str, failing: str, names: list[str], short_path: Path) -> None:
    check_that_it_is_found(fault, failing, names, short_path)


def test_every_check_has_a_fault_that_it_finds() -> None:
    found = {name for _, failing, _ in [*FAULTS, *LIFE_FAULTS] for name in failing.split()}
    assert found == set(NAMES)


def test_every_check_says_what_it_does_and_why() -> None:
    for check in CHECKS:
        assert check.done.endswith("."), check.name
        assert check.expected, check.name
        assert "api.proto" in check.clause or "kubernetes.io" in check.clause or "kubelet" in check.clause, check.name


def test_a_shell_that_keeps_the_signal_for_itself_is_named() -> None:
    command = ["sh", "-c", f"{sys.executable} {PLUGIN} {{dir}} & wait"]
    checks = [BY_NAME[name] for name in (NAMES[0], "ends-on-sigterm")]
    report = conformance.run(command, settings=QUICK, checks=checks)
    assert "what it had started still runs: a shell" in report.result("ends-on-sigterm").came


def test_why_a_socket_cannot_be_reached_is_said(short_path: Path) -> None:
    def why(name: str) -> str:
        connection = PluginConnection(str(short_path / name), lambda: None)
        try:
            return connection.why_not()
        finally:
            connection.close()

    assert why("none") == f"there is no {short_path}/none"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short_path / "dead"))
        assert why("dead") == f"nobody listens on {short_path}/dead"
        dead.listen()
        assert "does not speak gRPC, or does not answer" in why("dead")
    (short_path / "loop").symlink_to("loop")
    assert "loop cannot be connected to: Too many levels of symbolic links" in why("loop")
