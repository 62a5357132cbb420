"""`devicecore fleet` as a process that is killed and restarted, its commands, and its view."""

import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from devicecore_fleet.command import control
from devicecore_fleet.command.control import FleetSocket, FleetSocketError, send_command
from devicecore_fleet.command.view import render_fleet
from devicecore_fleet.fleet.views import DeviceCell, NodeView, ProviderView, Totals
from devicecore_tools.command.main import main
from devicecore_tools.testing.api_server import LocalApiServer
from tests.forks import Fork

from devicecore import DeviceId
from devicecore.adapters.pod_resources import PodResourcesClient

Run = Callable[..., tuple[int, str, str]]

FILE = """
nodes:
- name: a
  plugins: [{resource: example.com/gpu, devices: 4}]
- name: b
  directory: {DIRECTORY}
  plugins: [{resource: example.com/gpu, devices: 2}]
"""


@contextmanager
def fleet(file: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    with Fork(("fleet", str(file), *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def pod(server: LocalApiServer, name: str, node: str) -> None:
    container = {"name": "main", "image": "none", "resources": {"limits": {"example.com/gpu": "1"}}}
    body = {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}
    server.create({"kind": "Pod", "apiVersion": "v1", **body})


def has_devices(server: LocalApiServer, node: str) -> bool:
    """Return whether the Node shows devices to a scheduler."""
    found = [one for one in server.objects("Node") if one["metadata"]["name"] == node]
    return bool(found) and found[0]["status"]["allocatable"].get("example.com/gpu", "0") != "0"


def runs(server: LocalApiServer, *names: str) -> Callable[[], bool]:
    return lambda: all(server.get("Pod", name)["status"].get("phase") == "Running" for name in names)


def held(server: LocalApiServer) -> list[str]:
    """Return the devices of node a in the pods' statuses."""
    rows = [
        (one["spec"]["nodeName"], row)
        for one in server.objects("Pod")
        for status in one["status"].get("containerStatuses", ())
        for row in status.get("allocatedResourcesStatus", ())
    ]
    return sorted(one["resourceID"] for node, row in rows if node == "a" for one in row["resources"])


def test_a_fleet_that_is_killed_goes_on_with_real_sockets_and_doubles_nothing(tmp_path: Path, directory: Path) -> None:
    file, root, control = tmp_path / "fleet.yaml", tmp_path / "root", directory / "s"
    root.mkdir()
    file.write_text(FILE.replace("{DIRECTORY}", str(directory / "b")))
    with LocalApiServer() as server:
        options = (
            *("--kubeconfig", str(server.kubeconfig(tmp_path / "config"))),
            *("--root", str(root), "--control", str(control), "--json"),
        )
        with fleet(file, *options) as process:
            server.wait_for(lambda: has_devices(server, "a") and has_devices(server, "b"))
            for name in ("p0", "p1"):
                pod(server, name, "a")
            pod(server, "q0", "b")
            server.wait_for(runs(server, "p0", "p1", "q0"))
            with PodResourcesClient(directory / "b" / "pod-resources" / "kubelet.sock") as client:
                (listed,) = client.list().pod_resources
            assert [device.device_ids for device in listed.containers[0].devices] in ([["gpu-0"]], [["gpu-1"]])
            for shared in (options[:4], (*options[:2], *options[4:])):
                asked = len(server.requests)
                with fleet(file, *shared) as second:
                    _, log = second.communicate(timeout=60)
                assert (second.returncode, log.count("another fleet is already running")) == (2, 1)
                seen = {(one.verb, one.resource) for one in server.requests[asked:]}
                assert not seen & {("get", "nodes"), ("create", "nodes"), ("watch", "pods")}, (
                    "the second began too early"
                )
            process.kill()
        server.delete("Pod", "p0")
        pod(server, "p2", "a")
        with fleet(file, *options) as process:
            server.wait_for(runs(server, "p1", "p2", "q0"))
            server.wait_for(lambda: len(server.objects("Pod")) == 3)
            assert len(set(held(server))) == len(held(server)) == 2
            said, obeyed = send_command(control, "*", ["unhealthy", "gpu-1"])
            assert (said, obeyed) == (["node a: gpu-1 is unhealthy", "node b: gpu-1 is unhealthy"], 2)
            assert process.stdout
            lines = (json.loads(line) for line in process.stdout)
            shown = next(line for line in lines if "unhealthy" in line["devices"]["example.com/gpu"].get("gpu-1", ""))
            assert shown["state"] == "up"
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
            assert process.returncode == 0
            assert "ended by SIGTERM" in log
        assert not control.exists()


def test_a_fleet_without_a_terminal_reads_its_file_again_at_sighup(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("nodes: [{name: a}]")
    with LocalApiServer() as server:
        words = ("fleet", str(file), "--kubeconfig", str(server.kubeconfig(tmp_path / "config")))
        with Fork(words, start_new_session=True, stderr=subprocess.PIPE) as process:
            try:
                server.wait_for(lambda: server.objects("Node"))
                file.write_text("nodes: [{name: a}, {name: b}]")
                process.send_signal(signal.SIGHUP)
                server.wait_for(lambda: len(server.objects("Node")) == 2)
                file.write_text("nodes: []")
                process.send_signal(signal.SIGHUP)
                assert process.stderr
                assert any("nothing was changed, because the file cannot be read" in line for line in process.stderr)
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=60) == 0
            finally:
                process.kill()


def test_a_fleet_tells_its_service_manager_that_it_is_ready_alive_and_ends(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("nodes: [{name: a}]")
    with LocalApiServer() as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(f"\0{tmp_path}/notify")
        channel.settimeout(60)
        words = ("fleet", str(file), "--kubeconfig", str(server.kubeconfig(tmp_path / "config")))
        env = {**os.environ, "NOTIFY_SOCKET": f"@{tmp_path}/notify", "WATCHDOG_USEC": "3000000"}
        with Fork(words, env=env, stderr=subprocess.DEVNULL) as process:
            try:
                assert [channel.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
                process.send_signal(signal.SIGTERM)
                while (message := channel.recv(100)) == b"WATCHDOG=1":
                    pass
                assert message == b"STOPPING=1"
                assert process.wait(timeout=60) == 0
            finally:
                process.kill()


def test_a_second_fleet_is_refused_by_name_and_one_after_a_kill_has_its_nodes_at_once(tmp_path: Path) -> None:
    """None of the three fleets has a `--root`, so only the Lease distinguishes them."""
    file = tmp_path / "fleet.yaml"
    file.write_text("nodes: [{name: a, plugins: [{resource: example.com/gpu, devices: 4}]}]")
    with LocalApiServer() as server:
        options = ("--kubeconfig", str(server.kubeconfig(tmp_path / "config")))

        def holder() -> str:
            (lease,) = server.objects("Lease", "kube-node-lease")
            return str(lease["spec"].get("holderIdentity"))

        with fleet(file, *options) as first:
            server.wait_for(lambda: has_devices(server, "a"))
            pod(server, "p0", "a")
            server.wait_for(runs(server, "p0"))
            server.wait_for(lambda: bool(server.objects("Lease", "kube-node-lease")))  # created after the Node
            before, whose = server.objects("Node") + server.objects("Pod"), holder()
            with fleet(file, *options) as second:
                assert second.stderr
                said = next(line for line in second.stderr if "refused" in line)
            assert f"node a is refused: its Lease is held by {whose}, another devicecore process" in said
            assert server.objects("Node") + server.objects("Pod") == before
            assert holder() == whose
            first.kill()
            first.wait()
        with fleet(file, *options):
            server.wait_for(lambda: holder() != whose)
            pod(server, "p1", "a")
            server.wait_for(runs(server, "p0", "p1"))
        assert len(set(held(server))) == len(held(server)) == 2


def test_commands_go_to_one_fleet_by_its_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders: list[tuple[str, Sequence[str]]] = []

    def order(nodes: str, words: Sequence[str]) -> tuple[Sequence[str], int]:
        orders.append((nodes, words))
        return ["said \x1b[31m"], 1 if words == ["heal"] else 0

    path = tmp_path / "s"
    with FleetSocket(path, order):
        assert main(["fleet", "do", "--control", str(path), "a*", "heal"]) == 0
        assert main(["fleet", "do", "--control", str(path), "a*", "unhealthy", "x"]) == 1
        assert "\x1b" not in capsys.readouterr().out
        with pytest.raises(FleetSocketError, match="another fleet is already running"):
            FleetSocket(path, order).start()
    assert orders == [("a*", ["heal"]), ("a*", ["unhealthy", "x"])]
    assert main(["fleet", "do", "--control", str(path), "a*", "heal"]) == 2
    path.touch()
    assert main(["fleet", "do", "--control", str(path), "a*", "heal"]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"devicecore fleet do: no fleet answers at {path}: it is not a socket"
    ]


def test_a_client_that_sends_byte_after_byte_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PATIENCE", 0.1)
    monkeypatch.setattr(control, "MAX_REQUEST", 60)
    path = tmp_path / "s"
    with FleetSocket(path, lambda _nodes, _words: (["x"], 1)), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        sent = 0
        while sent < control.MAX_REQUEST and not select.select([client], [], [], 0.05)[0]:
            sent += client.send(b" ")
        assert sent < control.MAX_REQUEST


def test_a_fleet_outside_of_a_pod_never_takes_the_kubeconfig_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("nodes: [{name: a}]")
    with LocalApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "config")))
        with fleet(file, "--in-cluster") as process:
            _, log = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "expected the service account of a pod" in log
        assert not server.requests


def test_a_shape_is_printed_to_start_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "shapes"]) == 0
    assert "dgx-h100" in capsys.readouterr().out.split()
    assert main(["fleet", "shapes", "--json"]) == 0
    assert "dgx-h100" in json.loads(capsys.readouterr().out)
    assert main(["fleet", "shapes", "mig", "--json"]) == 2
    assert main(["fleet", "shapes", "mig"]) == 0
    assert "sharedCounters" in capsys.readouterr().out
    assert main(["fleet", "shapes", "cray"]) == 2


def test_the_view_shows_what_fits_and_says_what_it_leaves_out() -> None:
    cells = tuple((DeviceId(f"gpu-{number}"), cell) for number, cell in enumerate(DeviceCell))
    providers = (ProviderView("example.com/gpu", is_there=True, devices=cells),)
    nodes = [NodeView(f"n-{number:03}", number != 2, number == 1, providers, {"Running": 2}) for number in range(100)]
    lines = render_fleet(Totals.of(nodes), nodes, ["node n-001 \x1b is separated"], 70, 12).plain.split("\n")
    assert len(lines) == 12
    assert lines[0] == "nodes  98 up, 1 separated, 1 down   pods  200 Running"
    assert lines[1] == "  example.com/gpu  100 free, 100 held, 100 unhealthy, 100 held and unhealthy"[:69] + "…"
    assert [line.split() for line in lines[3:6]] == [
        ["n-000", "·#✗✗", "2", "Running"],
        ["n-001", "·#✗✗", "separated", "2", "Running"],
        ["n-002", "·#✗✗", "down", "2", "Running"],
    ]
    assert any("more nodes" in line for line in lines)
    gone = [NodeView("n", is_up=True, is_cut=False, providers=(ProviderView("d", is_there=False, devices=cells),))]
    assert "?#✗✗" in render_fleet(Totals.of(gone), gone, (), 70, None).plain
    assert "\x1b" not in "".join(lines)


def test_a_misspelled_command_is_corrected_unless_a_file_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fleet", "shape"]) == 2
    assert "there is neither a command nor a file 'shape'. Did you mean 'shapes'?" in capsys.readouterr().err
    assert main(["fleet", "stop"]) == 2
    assert "neither a command nor a file 'stop'. The commands are do, run, shapes." in capsys.readouterr().err
    Path("shape").write_text(FILE, encoding="utf-8")
    assert main(["fleet", "shape"]) == 2
    assert "devicecore fleet run: name the API server" in capsys.readouterr().err


def test_the_name_of_a_shape_in_place_of_a_file_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "dgx-h100", "--kubeconfig", os.devnull]) == 2
    said = capsys.readouterr().err
    assert (
        "expected a file, got dgx-h100, the name of a shape. To write its file, run: devicecore fleet shapes " in said
    )


def test_a_context_without_a_kubeconfig_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.yaml").write_text(FILE, encoding="utf-8")
    assert main(["fleet", "run", str(tmp_path / "fleet.yaml"), "--in-cluster", "--context", "prod"]) == 2
    assert "--context needs --kubeconfig." in capsys.readouterr().err
