"""CDI files, as accepted, refused and resolved by the Go library that container runtimes use."""

import json
from pathlib import Path
from typing import Any

import pytest

from devicecore.system.cdi import UnresolvableError, names_in, problems_of, read_spec, resolve

Json = dict[str, Any]


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
        spec({"deviceNodes": [{"path": "/dev/x", "permissions": "none"}]}),
        spec(devices=[{"name": 0, "containerEdits": {"env": ["A=1"]}}]),
        f"{json.dumps(spec())}\n---\nanother document\n",
        'cdiVersion: "0.5.0"\nkind: example.com/chip\ndevices:\n- name: "0"\n  containerEdits:\n    env: [A=1]\n',
    ],
)
def test_anything_the_library_accepts_is_accepted(tmp_path: Path, content: object) -> None:
    assert problems(tmp_path / "x.yaml", content) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "it is empty"),
        ("{", "expected"),
        ("[]", "expected an object"),
        ({}, "required field missing @ $.cdiVersion"),
        (spec(cdiVersion="0.2.0"), "cdiVersion is '0.2.0', expected one of 0.3.0"),
        (spec(cdiVersion=1.0), "cdiVersion is '1.0', expected one of 0.3.0"),
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
        (spec({"deviceNodes": [{"path": "/dev/x", "major": -1}]}), "expected no negative numbers"),
        (spec({"deviceNodes": [None]}), "expected an object"),
        (spec({"mounts": [{"hostPath": "/a", "containerPath": ""}]}), "needs both paths"),
        (spec({"intelRdt": {"schemata": []}}, cdiVersion="1.0.0"), "needs 1.1.0"),
        ('{"kind": "a/b", "kind": "a/b"}', "it has the key 'kind' twice"),
        (spec(devices=[{"name": "x"}] * 20_001), "expected at most 20,000 devices, got 20,001"),
        (spec({"hooks": [{"hookName": "start", "path": "/x"}]}), "a hook is called 'start'"),
        (spec({"hooks": [{"hookName": "poststop", "path": ""}]}), "the hook poststop has no path"),
        (spec({"netDevices": [{"hostInterfaceName": "a", "name": ""}]}), "a network device needs both names"),
        (spec({"intelRdt": {"closID": "a/b"}}), "the closID 'a/b' is not valid"),
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
    assert [*names_in(low), *names_in(high)] == [name]
    (high / "x.json").write_text(json.dumps(spec()))
    (low / "y.yaml").write_text(json.dumps(spec()))
    with pytest.raises(UnresolvableError, match=r"x.json and y.yaml both define example.com/chip=chip0"):
        resolve(name, (low, high))
    with pytest.raises(UnresolvableError, match=r"no valid file in .* defines example.com/chip=chip9"):
        resolve("example.com/chip=chip9", (low, high))
