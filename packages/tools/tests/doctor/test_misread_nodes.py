"""Nodes of a real kubelet 1.36.2 that were once misread: what doctor must say about them, and what it must not say."""

import json
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from devicecore_tools.command.main import main
from devicecore_tools.doctor.look.values import NodeSeen, PodResourcesSeen
from devicecore_tools.doctor.reading.machine import this_machine, why_another_machine, why_other_pods
from devicecore_tools.doctor.reading.node import NodeSources
from tests.doctor.nodes import pod

from devicecore.adapters.grpc_unix import serve_plugin
from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices

Capsys = pytest.CaptureFixture[str]
DATA = Path(__file__).parent.parent / "data" / "misread_nodes"


def written(directory: Path, name: str) -> Path:
    """Write a recorded node as a directory, and return the directory's path."""
    root = directory / name
    root.mkdir()
    for file, content in json.loads((DATA / f"{name}.json").read_text()).items():
        (root / file).write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def findings(capsys: Capsys, root: Path) -> tuple[int, dict[str, Any]]:
    status = main(["doctor", "--root", str(root), "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, document


def asked(capsys: Capsys, root: Path, resource: str = "", /, **spec: object) -> tuple[int, str]:
    """Run `fits` with a pod that requests one device or a claim, and return the exit status and the output."""
    limits = {"limits": {resource: "1"}} if resource else {"claims": [{"name": "c"}]}
    spec = {"containers": [{"name": "main", "image": "i", "resources": limits}], **spec}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": "team-54"}, "spec": spec}
    (file := root.with_name("probe.json")).write_text(json.dumps(document))
    status = main(["fits", str(file), "--root", str(root)])
    return status, " ".join(capsys.readouterr().out.split())


def test_a_dead_plugin_is_gone_and_a_live_one_lists_nothing(tmp_path: Path, capsys: Capsys) -> None:
    """One plugin's socket is dead, and the plugin of each other resource listens on its own socket."""
    root = written(tmp_path, "dead-plugin-beside-an-empty-list")
    _, document = findings(capsys, root)
    (found,) = document["findings"]
    assert (found["code"], found["resource"]) == ("plugin-gone", "acme.io/gpu")
    assert "no process listens at gpu-06af1d6d.sock" in found["sentence"]
    status, said = asked(capsys, root, "acme.io/gpu")
    assert (status, "the plugin for acme.io/gpu is missing" in said) == (1, True)
    status, said = asked(capsys, root, "acme.io/mig-1g.10gb")
    assert (status, "the plugin for acme.io/mig-1g.10gb lists no devices" in said) == (1, True)


def test_without_the_dead_socket_neither_plugin_is_called_anything(tmp_path: Path, capsys: Capsys) -> None:
    """All sockets are live, so any of them may belong to either plugin."""
    root = written(tmp_path, "dead-plugin-beside-an-empty-list")
    listing = (root / "listing.txt").read_text()
    (root / "listing.txt").write_text(listing.replace("no listener", "listener"))
    for resource in ("acme.io/gpu", "acme.io/mig-1g.10gb"):
        _, said = asked(capsys, root, resource)
        assert "the kubelet has no healthy device of" in said
        assert "its plugin is gone, " in said


@pytest.mark.parametrize("ready", ["Unknown", "False"])
def test_a_node_that_is_not_ready_is_found_with_its_message(ready: str, tmp_path: Path, capsys: Capsys) -> None:
    root = written(tmp_path, "node-not-ready")
    node = (root / "node.json").read_text()
    (root / "node.json").write_text(node.replace('"Unknown"', f'"{ready}"'))
    status, document = findings(capsys, root)
    assert (status, [one["code"] for one in document["findings"]]) == (1, ["node-not-ready"])
    assert "Kubelet stopped posting node status" in document["findings"][0]["sentence"]
    status, said = asked(capsys, root, "acme.io/gpu")
    assert (status, "the Node is not Ready" in said, "fits if the Node becomes Ready" in said) == (1, True, True)


def test_a_checkpoint_that_was_not_looked_for_is_not_missing(tmp_path: Path, capsys: Capsys) -> None:
    root = written(tmp_path, "other-root-directory")
    _, document = findings(capsys, root)
    assert document["findings"] == []
    assert {row["owner"] for row in document["devices"]} == {"team-43/train", "unknown"}
    (checkpoint,) = (one for one in document["sources"] if one["source"] == "checkpoint")
    assert checkpoint["problem"].startswith("not looked for")
    (root / "listing.txt").write_text("$ ls -la device-plugins\n")  # the listing shows that the directory existed
    _, document = findings(capsys, root)
    assert [one["code"] for one in document["findings"]] == ["sources-disagree"]


def test_a_driver_may_register_at_a_socket_with_any_name(tmp_path: Path, capsys: Capsys) -> None:
    root = written(tmp_path, "driver-with-its-own-socket-name")
    _, document = findings(capsys, root)
    assert document["findings"] == []
    spec: dict[str, object] = {"resourceClaims": [{"name": "c", "resourceClaimName": "kone"}]}
    assert asked(capsys, root, **spec)[0] == 0
    (root / "dra_health_state").unlink()  # without this file, nothing shows which driver the socket belongs to
    _, document = findings(capsys, root)
    assert document["findings"] == []
    assert {row["owner"] for row in document["devices"]} == {"team-54/p1", "unknown"}
    listing = (root / "listing.txt").read_text()
    for said in ("DRAPlugin other.example.com", "CSIPlugin gpu.example.com"):
        named = listing.replace("reg.sock  listener", f"reg.sock  listener, says {said}")
        (root / "listing.txt").write_text(named)
        _, document = findings(capsys, root)
        assert [one["code"] for one in document["findings"]][:1] == ["driver-gone"]


def test_a_held_device_that_is_no_longer_published_is_found(tmp_path: Path, capsys: Capsys) -> None:
    _, document = findings(capsys, written(tmp_path, "driver-publishes-fewer"))
    (found,) = document["findings"]
    assert (found["code"], found["devices"], found["pods"]) == (
        "held-not-published",
        ["dev-2", "dev-3"],
        ["team-46/p3"],
    )


def test_a_machine_is_known_by_its_first_file_that_says_something(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("none", "empty", "machine-id", "other")]
    for file, text in zip(files[1:], ("", " machine-a\n", "machine-b"), strict=True):
        Path(file).write_text(text)
    assert this_machine(files, files[3]) == ("machine-a", "machine-b")
    assert this_machine(files[:2], files[0]) == ("", "")


def test_a_node_of_another_machine_is_not_this_one() -> None:
    here = "machine-a", "boot-a"
    theirs = NodeSeen("node-b", machine=("machine-b", "boot-b"))
    assert "Node node-b is a different machine" in why_another_machine(theirs, here)
    restarted = NodeSeen("node-a", ready="True", machine=("machine-a", "boot-of-yesterday"))
    in_a_container = NodeSeen("node-b", ready="True", machine=("machine-b", "boot-b"))
    assert not why_another_machine(restarted, here)
    assert why_another_machine(in_a_container, ("", "boot-a"))
    assert not why_another_machine(NodeSeen("node-b"), here)


def test_another_nodes_pods_are_not_this_kubelets_pods() -> None:
    theirs = (pod("on-b"),)
    assert "lists pod default/on-a" in why_other_pods(
        "b", theirs, PodResourcesSeen("v1", frozenset({("default", "on-a")}))
    )
    assert not why_other_pods("b", theirs, PodResourcesSeen("v1", frozenset({("default", "on-b")})))
    assert not why_other_pods("b", theirs, PodResourcesSeen("v1"))  # a kubelet that has just started lists no pods


def test_a_node_file_of_another_machine_is_not_read(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "device-plugins").mkdir()
    info = {"machineID": "other", "bootID": "other"}
    node = {"kind": "Node", "metadata": {"name": "b"}, "status": {"nodeInfo": info, "conditions": []}}
    node["status"] = {"nodeInfo": info, "conditions": [{"type": "Ready", "status": "True"}]}
    (tmp_path / "node.json").write_text(json.dumps(node))
    look = NodeSources(root=str(tmp_path), node=str(tmp_path / "node.json")).look()
    assert (look.node.value, "is a different machine from this one" in look.node.problem) == (None, True)
    main(["doctor", "--root", str(tmp_path), "--node", str(tmp_path / "node.json")])
    assert "Node b is a different machine from this one" in capsys.readouterr().out.partition("\n")[0]


def test_each_process_on_a_live_node_is_asked_who_it_is(tmp_path: Path, capsys: Capsys) -> None:
    """A record keeps the processes' answers. A silent plugin blocks every pod that requests its devices."""
    with TemporaryDirectory() as root:  # the path of a socket has to be short
        ask_each_process(Path(root), tmp_path, capsys)


def ask_each_process(root: Path, tmp_path: Path, capsys: Capsys) -> None:
    plugins, registry = root / "device-plugins", root / "plugins_registry"
    for directory in (plugins, registry):
        directory.mkdir(mode=0o750, parents=True)
    data = CheckpointData((), {"example.com/gpu": ("gpu-0",)})
    (plugins / "kubelet_internal_checkpoint").write_bytes(encode(data))
    plugin = SimulatedPlugin("example.com/nic", simulated_devices("nic", 1))
    with (
        serve_plugin(plugin, registry=registry, poll_interval=0.1) as running,
        socket.socket(socket.AF_UNIX) as silent,
        socket.socket(socket.AF_UNIX) as dead,
    ):
        for one, name in ((silent, "gpu.sock"), (dead, "dead.sock")):
            one.bind(str(plugins / name))
        silent.listen()
        sources = NodeSources(root=str(root), plugin_timeout=0.5)
        look = sources.look()
        options = ["fits", str(tmp_path / "pod.json"), "--root", str(root)]
        limits = {"limits": {"example.com/gpu": "1"}}
        spec = {"containers": [{"name": "main", "resources": limits}]}
        pod_ = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": "d"}, "spec": spec}
        (tmp_path / "pod.json").write_text(json.dumps(pod_))
        status = main(options)
        name = f"plugins_registry/{Path(running.socket).name}"
    assert look.sockets.value is not None
    assert look.sockets.value.named == {name: ("DevicePlugin", "example.com/nic")}
    problem = {"device-plugins/gpu.sock": "no answer to GetDevicePluginOptions within 0.5 s"}
    assert look.sockets.value.silent == problem
    assert (status, "it hangs, and after the first pod that requests" in " ".join(capsys.readouterr().out.split())) == (
        1,
        True,
    )
    sources.save(str(tmp_path / "saved"), look)
    again = NodeSources(root=str(tmp_path / "saved")).look().sockets.value
    assert again is not None
    assert (again.named, again.silent) == (look.sockets.value.named, problem)
    main(["doctor", "--root", str(tmp_path / "saved"), "--json"])
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["code"], found["resource"]) == ("plugin-silent", "example.com/gpu")
    unasked = NodeSources(root=str(root), plugins=False).look().sockets.value
    assert unasked is not None
    assert (unasked.named, unasked.silent) == ({}, {})


REFUSED = [
    ({"containers": [{"name": "m", "resources": {"requests": {"a.b/gpu": "1"}}}]}, "1 of a.b/gpu but has no limit"),
    (
        {"containers": [{"name": "m", "resources": {"requests": {"a.b/gpu": "1"}, "limits": {"a.b/gpu": "2"}}}]},
        "has a limit of 2",
    ),
    (
        {
            "resourceClaims": [{"name": "c", "source": {"resourceClaimName": "one"}}],
            "containers": [{"name": "m", "resources": {"claims": [{"name": "c"}]}}],
        },
        "before Kubernetes 1.31, they were in the field source",
    ),
]


@pytest.mark.parametrize(("spec", "why"), REFUSED)
def test_a_pod_that_an_api_server_refuses_fits_nowhere(
    spec: dict[str, Any], why: str, tmp_path: Path, capsys: Capsys
) -> None:
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    (tmp_path / "pod.json").write_text(json.dumps(document))
    (tmp_path / "node.json").write_text('{"name": "n", "devices": [{"resource": "a.b/gpu", "device": "gpu-0"}]}')
    assert main(["fits", str(tmp_path / "pod.json"), "--node", str(tmp_path / "node.json")]) == 1
    assert why in " ".join(capsys.readouterr().out.split())


def test_more_devices_are_held_than_the_node_has(tmp_path: Path, capsys: Capsys) -> None:
    """A plugin was restarted with a different list, and the pods keep devices that are no longer listed."""
    resource = "example.com/vf"
    pods, entries = [], []
    for number in range(3):
        limits = {"limits": {resource: "1"}}
        spec = {"nodeName": "n1", "containers": [{"name": "main", "resources": limits}]}
        metadata = {"name": f"rank-{number}", "namespace": "default", "uid": f"uid-{number}"}
        pods.append({"metadata": metadata, "spec": spec, "status": {"phase": "Running", "startTime": "2026-11-26"}})
        entries.append(PodDevicesEntry(f"uid-{number}", "main", resource, {0: (f"vf-{number}",)}, b""))
    counts = {"capacity": {resource: "1"}, "allocatable": {resource: "1"}}
    node = {"kind": "Node", "metadata": {"name": "n1"}, "status": counts}
    (root := tmp_path / "root").mkdir()
    (root / "pods.json").write_text(json.dumps({"kind": "PodList", "items": pods}))
    (root / "node.json").write_text(json.dumps(node))
    (root / "kubelet_internal_checkpoint").write_bytes(encode(CheckpointData(tuple(entries), {resource: ("vf-7",)})))
    _, document = findings(capsys, root)
    assert "over-allocated" in [one["code"] for one in document["findings"]]
    status, said = asked(capsys, root, resource)
    assert (status, f"pods hold 3 devices of {resource}, but the Node has 1" in said) == (1, True)


def test_a_device_that_is_only_watched_is_free_and_the_last_holder_of_another_is_named(
    tmp_path: Path, capsys: Capsys
) -> None:
    root = written(tmp_path, "driver-with-its-own-socket-name")
    claims = json.loads((root / "resourceclaims.json").read_text())
    for one in claims["items"]:
        for result in one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ()):
            result["adminAccess"] = True
    (root / "resourceclaims.json").write_text(json.dumps(claims))
    _, document = findings(capsys, root)
    rows = {row["device"]: (row["owner"], row["note"]) for row in document["devices"]}
    assert rows["dev-0"] == ("free", "watched through claim team-54/k1")
    root = written(tmp_path, "node-not-ready")
    for name in ("pods.json", "pod-resources-list.json"):
        document = json.loads((root / name).read_text())
        document["items" if name == "pods.json" else "pod_resources"] = []
        (root / name).write_text(json.dumps(document))
    proxy = {"metadata": {"name": "proxy", "namespace": "kube-system", "uid": "u"}, "status": {"phase": "Running"}}
    (root / "pods.json").write_text(json.dumps({"kind": "PodList", "items": [proxy]}))
    listed = {"pod_resources": [{"name": "proxy", "namespace": "kube-system"}]}
    (root / "pod-resources-list.json").write_text(json.dumps(listed))
    _, document = findings(capsys, root)
    notes = {row["device"]: row["note"] for row in document["devices"] if row["note"]}
    assert notes.keys() == {"gpu-2", "gpu-3"}
    assert all(note.endswith("whose container may still run") for note in notes.values())
