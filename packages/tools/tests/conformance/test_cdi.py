"""A driver with a fault in its CDI files fails the check for it, and no other check; and what a valid file is."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.conformance.dra.cdi import UnresolvableError, problems_of, read_spec, resolve
from devicecore_tools.conformance.dra.checks.directory_watch import written_in
from devicecore_tools.conformance.faults.drivers.habits import HasTwoPools, TakesTheOtherPool
from tests.conformance.harness import BY_NAME, QUICK, assert_all_pass, fault_test, run_on

Json = dict[str, Any]


test_a_fault_is_found = fault_test("cdi")


def test_devices_of_one_name_in_two_pools_are_told_apart() -> None:
    check = BY_NAME["makes-cdi-devices-of-the-allocated-device"]
    assert_all_pass(run_on(HasTwoPools, [check], None, QUICK))
    (failed,) = run_on(TakesTheOtherPool, [check], None, QUICK).failures
    assert re.search(r"those of \S+-0/chip-0 have the pciBusID of \S+-1/chip-0", failed.actual)


def test_files_that_are_written_in_a_directory_are_noticed(tmp_path: Path) -> None:
    with written_in(tmp_path) as names:
        (tmp_path / "a").write_text("text", encoding="utf-8")
        (tmp_path / "empty").touch()
    assert names == {"a"}
    with pytest.raises(FileNotFoundError, match="none"), written_in(tmp_path / "none"):
        pass


def spec(edits: Json | None = None, **changes: object) -> Json:
    device = {"name": "chip0", "containerEdits": edits if edits is not None else {"env": ["A=1"]}}
    return {"cdiVersion": "1.1.0", "kind": "example.com/chip", "devices": [device], **changes}


def problems(path: Path, content: object) -> list[str]:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    try:
        return list(problems_of(read_spec(path)))
    except ValueError as error:
        return [str(error)]


@pytest.mark.parametrize(
    "content",
    [
        spec(),
        spec(cdiVersion="v0.3.0"),
        spec(containerEdits=None, annotations={"a": "b"}),
        spec({"env": ["A="], "deviceNodes": [{"path": "/dev/x", "type": "c", "permissions": "rw", "fileMode": 438}]}),
        spec({"mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"], "type": "bind"}]}),
        spec(
            {"hooks": [{"hookName": "createContainer", "path": "/bin/x", "args": ["x"], "env": ["A=1"], "timeout": 1}]}
        ),
        spec({"netDevices": [{"hostInterfaceName": "eth1", "name": "eth0"}], "additionalGids": [44]}),
        spec({"intelRdt": {"closID": "x", "enableMonitoring": True}}),
        'cdiVersion: "0.5.0"\nkind: example.com/chip\ndevices:\n- name: "0"\n  containerEdits:\n    env: [A=1]\n',
    ],
)
def test_what_the_library_accepts_is_no_problem(tmp_path: Path, content: object) -> None:
    assert problems(tmp_path / "x.yaml", content) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "it is empty"),
        ("{", "expected"),
        ("[]", "expected an object"),
        ({}, "required field missing @ $.cdiVersion"),
        (spec(cdiVersion="0.2.0"), "cdiVersion is '0.2.0', expected one of 0.3.0"),
        (spec(cdiVersion=1.0), "expected str, got 1.0 @ $.cdiVersion"),
        (spec(kind="chip"), "kind is 'chip', expected vendor/class"),
        (spec(devices=[]), "it has no devices"),
        (spec(devices=spec()["devices"] * 2), "two devices are called 'chip0'"),
        (spec({}), "the device 'chip0' has no containerEdits"),
        (spec({"volumes": []}), "volumes"),
        (spec({"env": ["A"]}), "the variable 'A' is not NAME=value"),
        (spec({"env": ["=A"]}), "the variable '=A' is not NAME=value"),
        (spec({"deviceNodes": [{"path": ""}]}), "a device node has no path"),
        (spec({"deviceNodes": [{"path": "/dev/x", "type": "d"}]}), "has the type 'd'"),
        (spec({"deviceNodes": [{"path": "/dev/x", "permissions": "rx"}]}), "has the permissions 'rx'"),
        (spec({"mounts": [{"hostPath": "/a", "containerPath": ""}]}), "needs both paths"),
        (spec({"hooks": [{"hookName": "start", "path": "/x"}]}), "a hook is called 'start'"),
        (spec({"hooks": [{"hookName": "poststop", "path": ""}]}), "the hook poststop has no path"),
        (spec({"netDevices": [{"hostInterfaceName": "a", "name": ""}]}), "a network device needs both names"),
        (spec({"intelRdt": {"closID": "a/b"}}), "closID is 'a/b'"),
        (spec({"mounts": [{"hostPath": "/", "containerPath": "/", "type": "bind"}]}, cdiVersion="0.3.0"), "needs 0.4"),
        (spec({"deviceNodes": [{"path": "/x", "hostPath": "/y"}]}, cdiVersion="0.4.0"), "needs 0.5.0"),
        (spec(kind="example.com/chip.v1", cdiVersion="0.5.0"), "needs 0.6.0"),
        (spec({"additionalGids": [1]}, cdiVersion="0.6.0"), "needs 0.7.0"),
        (spec({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}, cdiVersion="1.0.0"), "needs 1.1.0"),
    ],
)
def test_what_the_library_refuses_is_a_problem(tmp_path: Path, content: object, problem: str) -> None:
    found = problems(tmp_path / "x.json", content)
    assert len(found) == 1
    assert problem in found[0]


def test_a_name_is_resolved_in_the_directory_of_the_highest_priority(tmp_path: Path) -> None:
    low, high = tmp_path / "etc", tmp_path / "run"
    for directory, value in ((low, "low"), (high, "high")):
        directory.mkdir()
        (directory / "x.json").write_text(json.dumps(spec({"env": [f"A={value}"]}, containerEdits={"env": ["ALL=1"]})))
    name = "example.com/chip=chip0"
    assert resolve(name, (low, high)).env == ("ALL=1", "A=high")
    (high / "x.json").write_text("broken")
    assert resolve(name, (low, high)).env == ("ALL=1", "A=low")
    (low / "y.yaml").write_text(json.dumps(spec()))
    with pytest.raises(UnresolvableError, match=r"x.json and y.yaml both have example.com/chip=chip0"):
        resolve(name, (low, high))
    with pytest.raises(UnresolvableError, match=r"no valid file in .* has example.com/chip=chip9"):
        resolve("example.com/chip=chip9", (low, high))
