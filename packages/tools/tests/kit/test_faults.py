"""`devicecore conformance faults` lists the injected faults, and runs each as a separate program."""

import ctypes
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.conformance import Check, Severity
from devicecore_tools.conformance.device_plugin import CHECKS, Settings
from devicecore_tools.conformance.device_plugin import run as run_plugin
from devicecore_tools.conformance.dra import CHECKS as DRA_CHECKS
from devicecore_tools.conformance.dra import CORE, run
from devicecore_tools.conformance.faults import DRIVER, DRIVER_KIND, PLUGIN, PLUGIN_KIND, find, planted
from devicecore_tools.testing.process import PluginProcess
from tests.conformance.harness import QUICK
from tests.kit.test_command import conformance

from tests.adapters.peers import wait_until

RUN = [sys.executable, "-m", "devicecore_tools", "conformance", "faults", "--run"]


def test_every_fault_has_a_name_of_its_own_and_names_checks() -> None:
    known = {PLUGIN_KIND: {one.name for one in CHECKS}, DRIVER_KIND: {one.name for one in DRA_CHECKS}}
    assert len({one.name for one in planted()}) == len(planted())
    for one in planted():
        assert known[one.kind].issuperset(one.checks), one


def test_each_must_has_a_fault_that_fails_it_by_default() -> None:
    found = {name for one in planted() for name in one.checks}
    every: list[Check[Any]] = [*CHECKS, *DRA_CHECKS]
    musts = {one.name for one in every if one.severity is Severity.MUST}
    assert musts <= found
    assert musts <= {one.name for one in CHECKS} | {one.name for one in CORE}


def test_the_list_says_which_checks_find_a_fault_and_whether_by_default() -> None:
    rows = {row["name"]: row for row in json.loads(conformance("--json", kind="faults").stdout)}
    assert rows["takes-one-device"]["checks"] == ["prepares-a-claim-of-two-devices"]
    assert rows["takes-one-device"]["by_default"]
    assert not rows["missing-library"]["by_default"]
    assert rows["never-sick"]["options"][0] == "--provoke-health"
    lines = conformance("--kind", "plugin", kind="faults").stdout.splitlines()
    assert all(line.startswith(PLUGIN_KIND) for line in lines)


def test_a_faulty_driver_runs_as_a_test_kits_command() -> None:
    check = find("takes-one-device").checks[0]
    report = run([*RUN, "takes-one-device"], settings=QUICK, checks=[one for one in CORE if one.name == check])
    assert [one.name for one in report.failures] == [check]


def test_a_faulty_plugin_runs_as_a_test_kits_command() -> None:
    report = run_plugin([*RUN, "twice"], settings=Settings(), checks=[*CHECKS[:1], *CHECKS[8:9]])
    assert [one.name for one in report.failures] == ["lists-unique-ids"]


@pytest.mark.parametrize(
    ("name", "text"), [("none", "there is no such fault"), ("twice", "expected DEVICE_PLUGIN_PATH")]
)
def test_what_cannot_be_run_gets_a_sentence(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEVICE_PLUGIN_PATH", raising=False)
    ended = conformance("--run", name, kind="faults")
    assert ended.returncode == 2
    assert text in ended.stderr


def end_through_another_thread(process: PluginProcess) -> int:
    """Send SIGTERM to a thread other than the main thread. Return the exit status."""
    threads = {int(one.name) for one in Path(f"/proc/{process.pid}/task").iterdir()} - {process.pid}
    assert ctypes.CDLL(None, use_errno=True).tgkill(process.pid, min(threads), signal.SIGTERM) == 0
    return process.wait()


def test_a_plugin_ends_even_if_the_signal_does_not_wake_its_main_thread(tmp_path: Path) -> None:
    with PluginProcess([sys.executable, str(PLUGIN), "{dir}"], tmp_path) as process:
        process.wait_for_output("fault: none")
        wait_until((tmp_path / "chip.sock").exists, "the plugin serves")
        assert end_through_another_thread(process) == 0


def test_a_driver_ends_even_if_the_signal_does_not_wake_its_main_thread(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps({"clusters": [{"cluster": {"server": "http://127.0.0.1:9"}}]}))
    names = ("CDI_ROOT", "KUBELET_PLUGINS_DIRECTORY_PATH", "KUBELET_REGISTRAR_DIRECTORY_PATH")
    environment = {"NODE_NAME": "node", "KUBECONFIG": str(config), **dict.fromkeys(names, str(tmp_path))}
    command = [sys.executable, str(DRIVER), find("takes-one-device").place]
    with PluginProcess(command, tmp_path, environment=environment) as process:
        wait_until(lambda: list(tmp_path.glob("*-reg.sock")), "the driver serves")
        assert end_through_another_thread(process) == 0
