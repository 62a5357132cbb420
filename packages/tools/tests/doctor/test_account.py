"""What doctor must check on a node: it never reports as sound anything that it has not seen.

The nodes in `data/unaccounted_nodes` come from a real kubelet 1.37.2 with a fake runtime. Earlier releases found no
problem on most of these nodes, although no pod could start there.
"""

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_UNIX
from socket import socket as unix_socket
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import urlparse

import pytest
from attrs import evolve
from devicecore_tools.command.main import main
from devicecore_tools.doctor.account.entries import Kind, entries, seconds_to_settle
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.findings.report import report
from devicecore_tools.doctor.look.values import (
    Look,
    MachineSeen,
    NodeSeen,
    PreparedDeviceSeen,
    Reading,
    SocketsSeen,
    StateFileSeen,
)
from devicecore_tools.doctor.reading.node import NodeSources
from devicecore_tools.testing.api_server import LocalApiServer
from tests.doctor import nodes
from tests.doctor.nodes import CLEAN

Capsys = pytest.CaptureFixture[str]
DATA = Path(__file__).parent.parent / "data" / "unaccounted_nodes"
NODES: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}
SAID = {
    "cdi-device-that-the-runtime-does-not-know": (3, "CDI device that was given to a container but that no file"),
    "devices-on-a-numa-node-that-is-not-there": (3, "devices on NUMA node 7, which the machine may not have"),
    "memory-manager-reserved-memory-changed": (1, "kubelet-gone"),
    "plugin-answers-allocate-after-40-seconds": (1, "the kubelet has not admitted it in more than 10 s"),
    "plugin-answers-allocate-with-nothing": (
        1,
        "The plugin's answer to Allocate contains no response for the container",
    ),
    "plugin-in-crash-loop": (1, "plugin-gone"),
    "plugin-of-another-api-version": (1, "the API version is not v1beta1"),
    "plugin-with-bad-resource-name": (1, "the resource name is invalid"),
    "same-id-listed-twice": (1, "lists gpu-0 more than once"),
    "slices-of-a-former-node-name": (1, "has no ResourceSlice for this node"),
}


def written(root: Path, files: dict[str, Any]) -> Path:
    root.mkdir()
    for file, content in files.items():
        (root / file).write_text(content if isinstance(content, str) else json.dumps(content))
    return root


@pytest.mark.parametrize("name", NODES)
def test_a_node_on_which_a_pod_does_not_start_is_not_called_sound(name: str, tmp_path: Path, capsys: Capsys) -> None:
    status, words = SAID[name]
    assert main(["doctor", "--root", str(written(tmp_path / "node", NODES[name])), "--json"]) == status
    printed = capsys.readouterr().out
    assert words in printed
    assert json.loads(printed)["is_sound"] is False


def test_damaged_files_of_resized_pods_keep_a_kubelet_from_starting(tmp_path: Path, capsys: Capsys) -> None:
    files = {"allocated_pods_state": '{"data":"{","checksum":1}', "pod_status_manager_state": '{"allocations":{}}"x"'}
    root = written(tmp_path / "node", files)
    assert main(["doctor", "--root", str(root), "--json"]) == 1
    briefs = [one["brief"] for one in json.loads(capsys.readouterr().out)["findings"]]
    assert briefs == [f"a kubelet cannot start with its {file}" for file in files]


@pytest.mark.parametrize(
    ("version", "files"),
    [
        ("v1.37.2", ["allocated_pods_state", "actuated_pods_state"]),
        ("v1.32.1", ["pod_status_manager_state"]),
        ("", ["allocated_pods_state", "actuated_pods_state", "pod_status_manager_state"]),
    ],
)
def test_a_kubelet_reads_the_files_of_its_version(version: str, files: list[str]) -> None:
    names = ["allocated_pods_state", "actuated_pods_state", "pod_status_manager_state"]
    look = nodes.with_node(CLEAN, evolve(nodes.node_of(CLEAN), kubelet_version=version))
    damaged = tuple(StateFileSeen(one, "it is not JSON") for one in names)
    found = nodes.report_of(evolve(look, state_files=Reading.of("root", damaged))).findings
    assert [one.brief for one in found] == [f"a kubelet cannot start with its {file}" for file in files]


# --- the list ---------------------------------------------------------------------------------------------------------


SOUND = evolve(
    CLEAN,
    allocations=Reading.of("claims.json", ()),
    state_files=Reading.of("root", (StateFileSeen("cpu_manager_state"),)),
    machine=MachineSeen("m", "b", (0, 1)),
)
"""A node that was read completely, with nothing left to check."""


def holes_in(look: Look) -> list[str]:
    return [one.hole for one in entries(Facts(look)) if one.hole]


def test_each_kind_of_object_is_counted() -> None:
    account = nodes.report_of(SOUND).account
    assert {kind: (one.wrong, one.not_ruled_out) for kind, one in account.items()} == dict.fromkeys(account, (0, 0))
    assert account["plugins"].sound == 2
    assert account["resources"].sound == 2
    assert account["pods"].sound == 3
    assert account["held devices"].sound == 5
    assert account["state files"].sound == 1


def test_each_source_that_is_cut_off_leaves_something() -> None:
    assert nodes.report_of(SOUND).is_sound
    for source in ("checkpoint", "sockets", "pod_resources", "pods", "node", "claims", "slices", "allocations"):
        left = nodes.report_of(nodes.without(SOUND, source))
        assert not left.is_sound, source


def test_anything_a_finding_names_is_not_ruled_out() -> None:
    look = nodes.listed_twice(SOUND)
    node = nodes.node_of(look)
    fewer = {**node.allocatable, nodes.NIC: 3}
    look = nodes.with_node(look, evolve(node, allocatable=fewer))
    assert any("are not allocatable" in one for one in holes_in(look))
    assert not any("are not allocatable" in one for one in nodes.report_of(look).not_ruled_out)


def test_a_plugin_that_has_just_started_is_not_called_stable() -> None:
    sockets = SOUND.sockets.value or SocketsSeen()
    made = {"device-plugins/kubelet.sock": 1_000.0, "device-plugins/gpu.sock": 9_995.0}
    look = evolve(SOUND, sockets=Reading.of("plugins", evolve(sockets, made=made)), taken=10_000.0)
    (hole,) = holes_in(look)
    assert hole.startswith("whether the plugin at 'gpu.sock' keeps running")
    assert holes_in(evolve(look, taken=10_100.0)) == []
    with_kubelet = {**made, "device-plugins/kubelet.sock": 9_990.0}
    assert holes_in(evolve(look, sockets=Reading.of("plugins", evolve(sockets, made=with_kubelet)))) == []


def test_a_plugin_that_keeps_exiting_is_found_while_it_is_watched(tmp_path: Path) -> None:
    """A plugin that is replaced hours later is not counted, and a restart of the kubelet clears the count."""

    def make(socket: str, at: float) -> None:
        place = (tmp_path / "device-plugins" / socket).resolve()  # with .., the path may be too long for a socket
        place.unlink(missing_ok=True)
        with closing(unix_socket(AF_UNIX)) as made:
            made.bind(str(place))
        os.utime(place, (at, at))

    (tmp_path / "device-plugins").mkdir()
    (tmp_path / "pod-resources").mkdir()
    sources = NodeSources(root=str(tmp_path), plugins=False)
    make("../pod-resources/kubelet.sock", 999.0)
    for at, socket in ((1_000.0, "kubelet.sock"), (1_000.0, "old.sock"), (9_000.0, "gpu.sock")):
        make(socket, at)
    assert seconds_to_settle(evolve(sources.look(), taken=9_005.0)) == 10.0
    make("old.sock", 9_006.0)
    make("gpu.sock", 9_012.0)
    look = sources.look()
    assert look.sockets.value is not None
    assert look.sockets.value.remade == {"device-plugins/gpu.sock"}
    assert "plugin-restarts" in [one.code for one in nodes.report_of(look).findings]
    # A starting kubelet creates its two sockets one after the other, and doctor may read in between.
    for at, socket in ((9_014.0, "../pod-resources/kubelet.sock"), (9_014.5, "kubelet.sock")):
        make(socket, at)
        assert (sources.look().sockets.value or look.sockets.value).remade == frozenset()


def test_more_items_than_a_reader_wants_are_counted() -> None:
    unknown = tuple(nodes.pod(f"odd-{number}", "main", phase="") for number in range(9))
    shown = nodes.report_of(nodes.with_pods(SOUND, *nodes.pods_of(SOUND), *unknown)).not_ruled_out
    found = [one for one in shown if "its phase" in one or "more pods" in one]
    assert found[0] == "whether pod 'default/odd-0' runs: its phase is unknown"
    assert found[-1] == "problems of 4 more pods"


def test_a_pod_that_waits_without_a_reason_is_named() -> None:
    waits = nodes.container_cannot_start(SOUND)
    (stuck,) = (one for one in nodes.pods_of(waits) if one.pod.name == "stuck")
    silent = evolve(stuck, waiting={"main": ("ContainerCreating", "")}, made_at=0.0)
    look = evolve(nodes.with_pods(SOUND, *nodes.pods_of(SOUND), silent), taken=100.0)
    (hole,) = [one.hole for one in entries(Facts(look)) if one.kind is Kind.POD and one.hole]
    assert hole == "why pod 'default/stuck' does not start: its status does not show why"
    outside = evolve(silent, waiting={"main": ("ImagePullBackOff", "no such image")})
    assert holes_in(evolve(nodes.with_pods(SOUND, *nodes.pods_of(SOUND), outside), taken=100.0)) == []


def test_a_cdi_device_of_a_claim_is_not_ruled_out_if_cdi_files_cannot_be_read() -> None:
    prepared = PreparedDeviceSeen("default/tpu", "tpu.other.org", "n1", "tpu-0", cdi_devices=("tpu.other.org/tpu=0",))
    look = evolve(nodes.with_prepared(SOUND, prepared, "uid-serve"), cdi=Reading("/etc/cdi", problem="denied"))
    assert "tpu.other.org/tpu=0" in [one.name for one in entries(Facts(look)) if one.kind is Kind.CDI and one.hole]


def test_a_user_who_may_not_read_anything_is_advised_to_be_root() -> None:
    denied: dict[str, Any] = {
        source: Reading("/var/lib/kubelet", problem="Permission denied")
        for source in ("checkpoint", "sockets", "pod_resources", "claims", "state_files")
    }
    said = report(Facts(Look(**denied)), ())
    assert (said.is_forbidden, said.is_sound) == (True, False)


def test_only_the_api_servers_data_is_judged_for_a_node_elsewhere() -> None:
    away: Any = Reading(problem="it is on the node: run doctor there")
    names = ("checkpoint", "sockets", "pod_resources", "plugins", "cdi", "claims", "health", "state_files")
    node = NodeSeen("n1", ready="True", capacity={nodes.GPU: 8}, allocatable={nodes.GPU: 8})
    local = dict.fromkeys(names, away)
    none: Any = Reading.of("API server", ())
    of_server = {"pods": evolve(none, is_whole=True), "slices": none, "allocations": none, "events": none}
    look = Look(**local, **of_server, node=Reading.of("API server", node))
    assert report(Facts(look), ()).is_sound
    assert not report(Facts(nodes.with_node(look, evolve(node, allocatable={nodes.GPU: 7}))), ()).is_sound
    for source in of_server.keys() - {"events"} | {"node"}:
        assert not report(Facts(nodes.without(look, source)), ()).is_sound, source


# --- an API server that refuses requests ------------------------------------------------------------------------------


class _Server(BaseHTTPRequestHandler):
    """Serves three Nodes, but refuses requests whose path ends in `refused`."""

    protocol_version = "HTTP/1.1"
    refused: ClassVar[str] = ""

    def do_GET(self) -> None:
        path = urlparse(self.path).path
        ready = {"type": "Ready", "status": "True"}
        counts = {"acme.io/gpu": "4"}
        status = {"capacity": counts, "allocatable": counts, "conditions": [ready]}
        items = [{"kind": "Node", "metadata": {"name": f"n{one}", "uid": f"u{one}"}, "status": status} for one in "123"]
        body: Any = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []}
        if path.endswith("/nodes"):
            body["items"] = items
        elif "/nodes/" in path:
            body = items[0]
        code = 403 if self.refused and self.refused in path.split("/") else 200
        if code != 200:
            body = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no"}
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def server(directory: Path, refused: str) -> Iterator[str]:
    handler = type("_Refusing", (_Server,), {"refused": refused})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        (config := directory / "config").write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{http.server_port}"}}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )
        try:
            yield str(config)
        finally:
            http.shutdown()
            thread.join()


KINDS = ("nodes", "pods", "resourceslices", "resourceclaims")


@pytest.mark.parametrize("refused", ["", *KINDS])
@pytest.mark.parametrize("of", [["--all-nodes"], ["--node-name", "n1"]])
def test_no_refused_source_leaves_the_output_and_status_of_a_sound_node(
    refused: str, of: list[str], tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devicecore_tools.doctor.reading.node.DEFAULT_ROOT", str(tmp_path / "no-kubelet"))
    with server(tmp_path, refused) as config:
        status = main(["doctor", "--kubeconfig", config, *of, "--patience", "0"])
    printed = capsys.readouterr()
    first = printed.out.partition("\n")[0]
    if not refused:
        assert (status, "nothing wrong" in first and "not all" not in first) == (0, True), printed.out
        return
    assert status in ({2, 3} if refused == "nodes" else {3})
    assert "nothing wrong" not in first or "not everything" in first
    assert "forbidden" in printed.out + printed.err


def test_equal_findings_of_many_nodes_are_printed_once_and_the_worst_first(tmp_path: Path, capsys: Capsys) -> None:
    gpu = "example.com/gpu"
    with LocalApiServer() as api:
        for number in range(12):
            is_ready = {"type": "Ready", "status": "False" if number == 7 else "True", "reason": "r", "message": "m"}
            status = {
                "capacity": {gpu: "2"},
                "allocatable": {gpu: "0" if number < 5 else "2"},
                "conditions": [is_ready],
            }
            api.create({"kind": "Node", "metadata": {"name": f"n{number}"}, "status": status})
        config = str(api.kubeconfig(tmp_path / "config"))
        assert main(["doctor", "--all-nodes", "--kubeconfig", config, "--patience", "0"]) == 1
        text = capsys.readouterr().out
        main(["doctor", "--all-nodes", "--kubeconfig", config, "--patience", "0", "--json"])
    verdict, first, second, healthy, *_ = text.splitlines()
    assert verdict.startswith(
        "6 of 12 nodes have findings: the Node is not Ready, although its kubelet is running on n7, "
    )
    assert f"there is no device of {gpu} on 5 (n0, n1, n2, n3, n4)" in verdict
    assert (first[:9], second[:10]) == ("1. 1 node", "2. 5 nodes")
    assert healthy == "6 nodes without findings, on which everything was examined"
    document = json.loads(capsys.readouterr().out)
    assert document["counts"] == {"nodes": 12, "with_findings": 6, "not_all_seen": 0, "sound": 6}
    assert [one["nodes"] for one in document["findings"]] == [["n7"], ["n0", "n1", "n2", "n3", "n4"]]


@pytest.mark.parametrize(
    "file", ["listing.txt", "node.json", "pods.json", "pod-resources-list.json", "resourceslices.json"]
)
@pytest.mark.parametrize("name", ["nodes/01-healthy", "nodes/14-dra-healthy", "troubles/a_driver_is_killed"])
def test_a_recorded_node_without_a_source_is_not_called_sound(name: str, file: str, tmp_path: Path) -> None:
    """If no slices were read, nothing shows that a driver that has exited had published devices."""
    files = json.loads((DATA.parent / f"{name}.json").read_text())
    root = written(tmp_path / "node", {one: of for one, of in files.items() if one not in {file, "truth.json"}})
    assert main(["doctor", "--root", str(root), "--json"]) != 0
