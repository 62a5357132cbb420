"""Untrusted text is put into every input of `devicecore kubelet`, and every output is searched for it."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from devicecore_tools.testing.api_server import Answer, LocalApiServer
from tests.command.terminal import Terminal
from tests.forks import Fork

from devicecore.adapters.grpc_unix import serve_plugin
from devicecore.domain.checks import received
from devicecore.domain.container_options import ContainerAllocateResponse, DeviceSpec, Mount
from devicecore.domain.model import Device, DeviceId, PluginOptions
from devicecore.plugins.simulated import SimulatedPlugin

Run = Callable[..., "subprocess.CompletedProcess[str]"]

PATIENCE = 60.0  # seconds for something that takes one or two seconds
TITLE = "\x1b]0;owned\x07"  # sets the title of a terminal
SHORT = f"{TITLE}\nFORGED\r\u202e"
LONG = SHORT + "x" * 2_000_000
MAX_OUTPUT = 2_000_000  # bytes


class Hostile(SimulatedPlugin):
    """Has device ids with control characters, and returns responses full of untrusted text."""

    def __init__(self, resource: str) -> None:
        super().__init__(resource, [Device(DeviceId(f"{SHORT}{number}")) for number in range(4)])

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        return ContainerAllocateResponse(
            envs={SHORT: SHORT + "x" * 150_000, **{f"{number}": SHORT for number in range(2_000)}},
            mounts=(received(Mount, SHORT, SHORT, False),),  # noqa: FBT003 - a Python plugin could not produce it
            devices=(received(DeviceSpec, SHORT, SHORT, SHORT),),
            annotations={SHORT: SHORT},
            cdi_devices=(SHORT,),
        )


class Refusing(Hostile):
    """Refuses everything, with two megabytes of text."""

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        raise ValueError(LONG)


class NotStarting(Hostile):
    """Prevents every container from starting, with a two-megabyte message."""

    options = PluginOptions(pre_start_required=True)

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        return ContainerAllocateResponse()

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        raise ValueError(LONG)


@pytest.fixture
def kubeconfig(directory: Path) -> Iterator[Path]:
    """Yield a kubeconfig for an API server that refuses everything with a long text."""
    refusal = {"kind": "Status", "message": LONG, "reason": SHORT, "code": 403}
    with LocalApiServer() as server:
        server.inject(Answer(403, refusal), times=None)
        yield server.kubeconfig(directory / "kubeconfig")


def write_manifests(directory: Path) -> None:
    """Write pods for the three plugins, and files with a mistake in every place that an error mentions."""

    def pod(limits: object, name: object, *, kind: str = "Pod", container_name: str = "main", uid: str = "") -> str:
        container = {"name": container_name, "resources": {"limits": limits}}
        metadata = {"name": name, "uid": uid or str(name)[:20]}
        return json.dumps({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": {"containers": [container]}})

    for name in ("given", "refused", "starts"):
        (directory / f"{name}.json").write_text(pod({f"acme.io/{name}": 1}, name))
    long = "x" * 300_000
    (directory / "kind.json").write_text(pod({}, "kind", kind=SHORT + long))
    (directory / "limit.json").write_text(pod({"acme.io/given": SHORT + long}, "limit"))
    (directory / "resource.json").write_text(pod({SHORT + long: 1}, "resource"))
    (directory / "name.json").write_text(pod({}, SHORT + long))
    (directory / "container.json").write_text(pod({}, "container", container_name=SHORT + long))
    (directory / "uid.json").write_text(pod({}, "uid", uid=SHORT + long))
    (directory / "yaml.yaml").write_text(f'a: "\\e]0;owned\\a\n{long}')
    (directory / SHORT.replace("/", "")).write_text("{")


def assert_harmless(output: bytes, where: str) -> None:
    text = output.decode(errors="replace")
    assert TITLE[:4] not in text, where
    assert "\u202e" not in text, where
    assert not [line for line in text.splitlines() if line.startswith("FORGED")], where
    assert len(output) < MAX_OUTPUT, (where, len(output))


def test_untrusted_text_is_bounded_and_escaped_in_all_output(
    devicecore: Run, directory: Path, kubeconfig: Path
) -> None:
    root = directory
    (root / "device-plugins").mkdir(0o750)
    (root / "pods").mkdir()
    write_manifests(root / "pods")
    arguments = ["kubelet", "--root", str(root), "--manifests", str(root / "pods"), "--node-name", "n"]
    api = ["--kubeconfig", str(kubeconfig)]
    plugins = (Hostile("acme.io/given"), Refusing("acme.io/refused"), NotStarting("acme.io/starts"))
    served = [serve_plugin(plugin, root / "device-plugins", poll_interval=0.1) for plugin in plugins]
    log, lines = root / "log", root / "lines"
    with log.open("wb") as stderr, lines.open("wb") as stdout:
        process = Fork((*arguments, *api, "--json"), stdout=stdout, stderr=stderr)
        words = ("given: Running", "refused: Pending", "start: ")
        wait_until(lambda: all(word in log.read_text() for word in words), log)
        wait_until(lambda: (state := last_line(lines)) is not None and state["sink_problem"], log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in (0, -signal.SIGALRM)  # SIGALRM if the machine is busy for 5 s
    with closing(Terminal(arguments, 100, 50)) as terminal:
        screen = terminal.read_until("(?s)cannot start.*manifests cannot be used").encode()
    for one in served:
        one.stop()
    once = devicecore(*arguments, "--once", "--wait", "0")
    shown = devicecore("checkpoint", "show", str(root))
    outputs = {
        "log": log.read_bytes(),
        "--json": lines.read_bytes(),
        "state.json": (root / "state.json").read_bytes(),
        "live view": screen,
        "--once": once.stdout.encode() + once.stderr.encode(),
    }
    for where, output in outputs.items():
        assert b"owned" in output, where  # the text is present, but harmless
        assert_harmless(output, where)
    assert TITLE not in shown.stdout
    assert "Traceback" not in log.read_text()


def wait_until(condition: Callable[[], object], log: Path | None = None) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, log.read_text()[-3000:] if log else ""
        time.sleep(0.05)


def last_line(path: Path) -> dict[str, object] | None:
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    state: dict[str, object] | None = json.loads(whole[-1]) if whole else None
    return state
