"""`kubectl devicecore`: commands that query the cluster of the user's kubeconfig."""

import json
import tomllib
from pathlib import Path

import pytest
from devicecore_tools.command.kubectl import main
from devicecore_tools.testing.api_server import LocalApiServer
from tests.command.test_nodes import GPU, node, pod

Capsys = pytest.CaptureFixture[str]


def test_each_command_queries_the_cluster_in_the_users_kubeconfig(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devicecore_tools.doctor.reading.node.DEFAULT_ROOT", str(tmp_path / "no-kubelet"))
    manifest = tmp_path / "pod.yaml"
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: "1"}}}
    spec = {"containers": [container], "tolerations": [{"operator": "Exists"}]}  # the Nodes are not Ready
    new = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new"}, "spec": spec}
    manifest.write_text(json.dumps(new))
    with LocalApiServer() as api:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        for one in (node("n1", 4, 0), node("n2", 4, 4), pod("held", "n2", 1)):
            api.create(one)
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "config")))
        said = {}
        for words in (
            ["nodes"],
            ["doctor", "--patience", "0"],
            ["doctor", "n1", "--patience", "0"],
            ["doctor", "nope", "--json"],
            ["why", "0/2 nodes are available: 2 Insufficient example.com/gpu."],
            ["fits", str(manifest)],
        ):
            status = main(words)
            said[" ".join(words[:2])] = status, "".join(capsys.readouterr())
    assert said["nodes"][1].splitlines()[1].split()[:3] == ["n1", GPU, "0"]
    assert said["doctor --patience"][0] == 1
    assert said["doctor --patience"][1].startswith("1 of 2 nodes has findings")
    assert said["doctor n1"][1].startswith("n1: 1 finding")
    problem = "--node-name: there is no node 'nope' (nodes \"nope\" not found)"
    assert said["doctor nope"] == (2, f"devicecore doctor: {problem}\n")
    assert said["why 0/2 nodes are available: 2 Insufficient example.com/gpu."][0] == 0
    assert said[f"fits {manifest}"] == (0, said[f"fits {manifest}"][1])
    assert "n2" in said[f"fits {manifest}"][1].partition("\n")[0]
    assert "not checked  the kubelet's topology policy, assumed to be none: " in said[f"fits {manifest}"][1]


def test_sources_that_are_named_are_not_replaced(tmp_path: Path, capsys: Capsys) -> None:
    assert main(["doctor", "--root", str(tmp_path)]) == 2
    assert "no device was seen" in capsys.readouterr().err
    assert main(["nodes", "--kubeconfig", str(tmp_path / "missing")]) == 2
    assert "there is no kubeconfig" in capsys.readouterr().err


def test_other_commands_are_those_of_devicecore_alone(capsys: Capsys) -> None:
    assert main(["kubelet"]) == 2
    assert "expected one of doctor, fits, nodes, why, got 'kubelet'" in capsys.readouterr().err
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.count("Usage: kubectl devicecore COMMAND") == 2
    assert main(["why", "--help"]) == 0


def test_kubectl_finds_the_command_by_its_name() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["kubectl-devicecore"] == f"{main.__module__}:{main.__name__}"
