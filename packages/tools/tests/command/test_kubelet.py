"""`devicecore kubelet`: its options, its output, and how it ends."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.node_server import NodeServer

from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices

Run = Callable[..., "subprocess.CompletedProcess[str]"]

GPU = "acme.io/gpu"


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


SERVED = "--root {root} --kubeconfig {root}/config --register-node"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param("", "Missing option '--root'.", id="no root"),
        pytest.param("--root {root}/missing", "Directory '{root}/missing' does not exist.", id="missing root"),
        pytest.param("--root {root} --manifests {root}/no", "Directory '{root}/no' does not exist.", id="no manifests"),
        pytest.param("--root {root} --manifests {root}/.", "name a directory other than --root", id="one for both"),
        pytest.param(
            "--root {root} --numa-nodes 0,x", "'0,x' is not a list of numbers such as 0,1 or 0-3.", id="numa nodes"
        ),
        pytest.param(
            "--root {root} --numa-nodes 1,1", "name at least one node, and each node once.", id="numa node twice"
        ),
        pytest.param("--root {root} --topology-manager-policy best", "'best' is not one of 'none', ", id="policy"),
        pytest.param("--root {root} --topology-manager-scope all", "'all' is not one of 'container', ", id="scope"),
        pytest.param(
            "--root {root} --topology-manager-policy-options max-allowable-numa-nodes=4", "least 8, got 4", id="options"
        ),
        pytest.param(
            "--root {root} --numa-nodes 0-8 --topology-manager-policy restricted",
            "expected at most 8 NUMA nodes (max-allowable-numa-nodes), got 9",
            id="many numa nodes",
        ),
        pytest.param(
            "--root {root} --numa-nodes 71,72 --topology-manager-policy-options prefer-closest-numa-nodes=true",
            "This machine does not say how far apart NUMA nodes 71,72 are",
            id="no distances",
        ),
        pytest.param("--root {root} --numa-distances 10,20/20", "is not a square matrix of numbers", id="distances"),
        pytest.param("--root {root} --metrics-port {port}", "cannot serve metrics on 127.0.0.1:{port}: ", id="port"),
        pytest.param("--root {root} --kubeconfig {root}/no", "cannot use kubeconfig '{root}/no': ", id="kubeconfig"),
        pytest.param("--root {root} --kubeconfig {root}/broken", "cannot use kubeconfig ", id="broken kubeconfig"),
        pytest.param("--root {root} --kubeconfig x --in-cluster", "cannot be used together.", id="two API servers"),
        pytest.param("--root {root} --context x", "--context needs --kubeconfig.", id="context alone"),
        pytest.param("--root {root} --cpu 4", "--cpu needs --register-node.", id="cpu alone"),
        pytest.param("--root {root} --no-default-taint", "--no-default-taint needs --register-node.", id="taint alone"),
        pytest.param("--root {root} --resync 5", "--resync needs --kubeconfig or --in-cluster.", id="resync alone"),
        pytest.param("--root {root} --delete-removed", "--delete-removed needs --kubeconfig", id="removed alone"),
        pytest.param("--root {root} --in-cluster", "there is no service account in /var/run/", id="no cluster"),
        pytest.param("--root {root} --node-name Up --kubeconfig {root}/config", "got 'Up'", id="name"),
        pytest.param(SERVED + " --node-name {label}", "--node-name: expected at most 63 letters", id="long name"),
        pytest.param(SERVED + " --cpu -3", "--cpu: expected 0 or more, got -3", id="negative"),
        pytest.param(SERVED + " --taint a=b:NoExecute --taint a:NoExecute", "each key once for each e", id="taint"),
        pytest.param("--root {root}/pods/../{long}", "does not exist.", id="long root"),
        pytest.param("--root {root} --wat", "No such option '--wat'.", id="flag"),
    ],
)
def test_unusable_options_give_one_sentence_and_status_2(
    devicecore: Run, root: Path, busy_port: int, arguments: str, complaint: str
) -> None:
    (root / "broken").write_text("{")
    filled = {"root": root, "port": busy_port, "long": "x" * 100, "label": "x" * 64}
    run = devicecore("kubelet", *(word.format(**filled) for word in arguments.split()))
    assert run.returncode == 2
    said = [line for line in run.stderr.splitlines() if line.startswith("devicecore")]
    assert len(said) == 1
    assert complaint.format(**filled) in said[0]
    assert "Traceback" not in run.stderr


def test_a_root_that_has_a_kubelet_is_refused(devicecore: Run, root: Path) -> None:
    transport = GrpcUnixTransport(root / "device-plugins")
    transport.start(lambda _: None)
    run = devicecore("kubelet", "--root", str(root), "--once")
    transport.stop()
    assert run.returncode == 2
    assert "belongs to another running kubelet" in run.stderr


def test_a_directory_that_others_may_write_is_refused_unless_it_is_allowed(devicecore: Run, root: Path) -> None:
    arguments = ("kubelet", "--root", str(root), "--once", "--wait", "0")
    places = [root / name for name in (".", "device-plugins", "plugins_registry", "pod-resources")]
    for place in places:
        place.mkdir(exist_ok=True)
        mode = place.stat().st_mode
        place.chmod(0o777)
        run = devicecore(*arguments)
        assert (run.returncode, "allow it with --allow-shared-directory" in run.stderr) == (2, True)
        place.chmod(mode)
    for place in places:
        place.chmod(0o777)
    assert devicecore(*arguments, "--allow-shared-directory").returncode == 0


def test_once_prints_the_state_when_everything_has_settled(devicecore: Run, root: Path) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: 2}}}]},
    }
    (root / "pods" / "train.json").write_text(json.dumps(pod))
    plugin = SimulatedPlugin(GPU, simulated_devices("gpu", 4, numa_nodes=[0, 1]))
    arguments = ("kubelet", "--root", str(root), "--manifests", str(root / "pods"), "--once")
    with serve_plugin(plugin, root / "device-plugins", poll_interval=0.1):
        run = devicecore(*arguments, "--json", "--node-name", "n1")
        assert run.returncode == 0, run.stderr
        state = json.loads(run.stdout)
        assert (state["node"], state["settled"], state["problems"]) == ("n1", True, [])
        assert (state["capacity"], state["allocatable"]) == ({GPU: 4}, {GPU: 4})
        (told,) = state["pods"]
        assert (told["name"], told["phase"], told["reason"]) == ("train", "Running", None)
        given = told["containers"]["main"]
        assert given["devices"] == {GPU: ["gpu-0", "gpu-1"]}
        assert given["environment"] == {"ACME_IO_GPU_DEVICES": "gpu-0,gpu-1"}
        assert [device["numa"] for device in state["resources"][GPU]["devices"]] == [[0], [1], [0], [1]]
        assert json.loads((root / "node.json").read_text())["allocatable"] == {GPU: 4}
        run = devicecore(*arguments)
        assert run.returncode == 0
        assert "default/train" in run.stdout
        assert "pod default/train: Running" in run.stderr


def test_once_reports_failure_if_a_pod_does_not_run(devicecore: Run, root: Path) -> None:
    for name, limits in {"bad": "{acme.io/gpu: x}", "good": "{acme.io/gpu: 1}"}.items():
        (root / "pods" / f"{name}.yaml").write_text(
            f"{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}},\n"
            f"spec: {{containers: [{{name: main, resources: {{limits: {limits}}}}}]}}}}"
        )
    arguments = ("--root", str(root), "--manifests", str(root / "pods"), "--once", "--json", "--wait", "0.5")
    run = devicecore("kubelet", *arguments)
    assert run.returncode == 1
    state = json.loads(run.stdout)
    assert not state["settled"]
    assert [pod["reason"] for pod in state["pods"]] == [f"no plugin has registered {GPU}"]
    assert [problem["line"] for problem in state["problems"]] == [2]
    said = (
        "devicecore kubelet: the state has not settled: still waiting for pod default/good: no plugin has registered "
        f"{GPU}\n"
    )
    assert run.stderr.endswith(said)


def test_once_on_a_node_that_waits_for_nothing_succeeds_however_short_the_wait(devicecore: Run, root: Path) -> None:
    run = devicecore("kubelet", "--root", str(root), "--manifests", str(root / "pods"), "--once", "--wait", "0")
    assert (run.returncode, "settled" in run.stderr) == (0, False)


def test_once_fails_if_the_status_is_not_published(devicecore: Run, root: Path) -> None:
    with NodeServer() as server:
        kubeconfig = server.config(root)
        arguments = ["kubelet", "--root", str(root), "--node-name", "missing", "--once", "--wait", "1"]
        publishing = ("--context", "devicecore", "--beside-kubelet", "--patch", "apply")
        arguments += ["--kubeconfig", str(kubeconfig), *publishing]
        run = devicecore(*arguments, "--json")
        assert run.returncode == 1
        assert "there is no node 'missing'" in json.loads(run.stdout)["sink_problem"]
        server.add_node("missing", {})
        assert devicecore(*arguments).returncode == 0
