"""`devicecore plugin simulated`: a real process, with a transport in place of the kubelet."""

import os
import queue
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devicecore_tools.command.main import main
from tests.forks import Fork

from devicecore.adapters.grpc_unix import GrpcUnixTransport
from devicecore.domain.events import DevicesReported, Event
from devicecore.domain.model import DeviceId, Health
from devicecore.plugins.simulated import simulated_devices

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

SOON = 60.0  # seconds; a busy machine needs several


class Kubelet:
    """Records what plugins report."""

    def __init__(self, directory: Path) -> None:
        self.transport = GrpcUnixTransport(directory)
        self._events: queue.Queue[Event] = queue.Queue()

    def start(self) -> None:
        self.transport.start(self._events.put)

    def report(self) -> DevicesReported:
        """Return the next list of devices."""
        while True:
            event = self._events.get(timeout=SOON)
            if isinstance(event, DevicesReported):
                return event


@pytest.fixture
def kubelet(directory: Path) -> Iterator[Kubelet]:
    """A kubelet that is not started yet."""
    kubelet = Kubelet(directory)
    yield kubelet
    kubelet.transport.stop()


@pytest.fixture
def devicecore_process() -> Iterator[Start]:
    """Yield a function that starts `devicecore` with its arguments. At the end, all these processes are killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
        process = Fork(
            arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=1, env={**os.environ, **environment}
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        with process:  # waits for the process, and closes its pipes
            pass


@pytest.fixture
def start(devicecore_process: Start, directory: Path) -> Start:
    """Return a function that starts a simulated plugin in `directory`, unless its arguments name another directory."""

    def start(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
        return devicecore_process("plugin", "simulated", "--socket-dir", str(directory), *arguments, **environment)

    return start


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """Return the first line of the plugin's log that contains `text`."""
    assert process.stderr is not None
    return next(line for line in process.stderr if text in line)


def tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")


def test_the_simulated_plugin_lists_the_given_devices(kubelet: Kubelet, start: Start) -> None:
    """The count, the rotation over NUMA nodes and the health match the command line."""
    kubelet.start()
    start("--resource", "example.com/gpu", "--count", "3", "--numa-nodes", "0,1", "--unhealthy", "2")
    report = kubelet.report()
    assert report.plugin.resource == "example.com/gpu"
    assert [(device.id, device.health, device.numa_nodes) for device in report.devices] == [
        ("gpu-0", Health.HEALTHY, (0,)),
        ("gpu-1", Health.HEALTHY, (1,)),
        ("gpu-2", Health.UNHEALTHY, (0,)),
    ]


def test_the_environment_may_name_the_resource(kubelet: Kubelet, start: Start, directory: Path) -> None:
    """The variable `resourcename` names the resource if the command line does not; --endpoint names the socket."""
    kubelet.start()
    start("--endpoint", "rdma.sock", resourcename="example.com/rdma")
    report = kubelet.report()
    assert (report.plugin.resource, len(report.devices)) == ("example.com/rdma", 10)
    assert report.plugin.socket == str(directory / "rdma.sock")


@pytest.mark.parametrize(("options", "variable"), [((), "EXAMPLE_COM_GPU_DEVICES"), (("--variable", "GPUS"), "GPUS")])
def test_a_container_finds_its_devices(kubelet: Kubelet, start: Start, options: tuple[str, ...], variable: str) -> None:
    """Allocate answers with one environment variable that names the devices."""
    kubelet.start()
    start("--resource", "example.com/gpu", *options)
    plugin = kubelet.report().plugin
    receipt = kubelet.transport.allocate(plugin, [DeviceId("gpu-1"), DeviceId("gpu-4")])
    assert kubelet.transport.read(receipt).envs == {variable: "gpu-1,gpu-4"}


def test_it_waits_for_the_kubelet(kubelet: Kubelet, start: Start) -> None:
    """A plugin may start before the kubelet."""
    plugin = start("--resource", "example.com/gpu")
    read_until(plugin, "cannot register")
    kubelet.start()
    assert len(kubelet.report().devices) == 10


def test_it_waits_for_the_directory_of_the_kubelet(start: Start, directory: Path) -> None:
    """A plugin that starts before the kubelet on a new node finds no directory."""
    later = directory / "later"
    plugin = start("--resource", "example.com/gpu", "--socket-dir", str(later))
    assert "there is no such directory: a kubelet creates it" in read_until(plugin, "cannot register")
    kubelet = Kubelet(later)
    kubelet.start()
    assert len(kubelet.report().devices) == 10
    kubelet.transport.stop()


@pytest.mark.parametrize(
    "words",
    [
        "plugin simulated --resource example.com/gpu --socket-dir {missing}",
        "plugin directory --resource example.com/gpu --socket-dir {missing} {there}",
        "dra-driver simulated --name g.io --node n --registry {missing} --manifests {there} --plugin-dir {there}",
    ],
)
def test_nothing_is_said_to_be_served_in_a_missing_directory(
    devicecore_process: Start, directory: Path, words: str
) -> None:
    missing = directory / "missing"
    process = devicecore_process(*words.format(missing=missing, there=directory).split())
    assert f"waiting for {missing} before serving " in read_until(process, "serving")


@pytest.mark.parametrize("variables", ["DEVICE_PLUGIN_PATH KUBELET_SOCKET", "DEVICE_PLUGIN_PATH", "KUBELET_SOCKET"])
def test_the_environment_may_name_the_place(
    devicecore_process: Start, kubelet: Kubelet, directory: Path, variables: str
) -> None:
    """`DEVICE_PLUGIN_PATH` and `KUBELET_SOCKET` are what `devicecore conformance` sets."""
    kubelet.start()
    values = {"DEVICE_PLUGIN_PATH": str(directory), "KUBELET_SOCKET": str(directory / "kubelet.sock")}
    named = {name: values[name] for name in variables.split()}
    devicecore_process("plugin", "simulated", "--resource", "example.com/gpu", **named)
    assert kubelet.report().plugin.socket.startswith(f"{directory}/")


def test_a_directory_on_the_command_line_outdoes_variables(kubelet: Kubelet, start: Start, directory: Path) -> None:
    """A variable that was exported for another kubelet changes nothing."""
    kubelet.start()
    start("--resource", "example.com/gpu", DEVICE_PLUGIN_PATH="/nowhere", KUBELET_SOCKET="/nowhere/kubelet.sock")
    assert kubelet.report().plugin.socket.startswith(f"{directory}/")


def test_numa_nodes_may_be_ranges(kubelet: Kubelet, start: Start) -> None:
    """`0-2,7` means 0, 1, 2 and 7."""
    kubelet.start()
    start("--resource", "example.com/gpu", "--count", "5", "--numa-nodes", "0-2,7")
    assert [device.numa_nodes for device in kubelet.report().devices] == [(0,), (1,), (2,), (7,), (0,)]


def test_devices_are_named_as_simulated_devices_names_them(kubelet: Kubelet, start: Start) -> None:
    """The ids start with the part of the resource's name after the slash, or with the value of `--prefix`."""
    kubelet.start()
    start("--resource", "example.com/gpu", "--count", "2")
    assert [device.id for device in kubelet.report().devices] == [device.id for device in simulated_devices("gpu", 2)]
    start("--resource", "example.com/other", "--count", "1", "--prefix", "GPU-aa")
    assert [device.id for device in kubelet.report().devices] == ["GPU-aa-0"]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("options", [(), ("--commands",), ("--unhealthy-file", "none")], ids=["", "commands", "file"])
def test_a_signal_ends_it_and_nothing_is_left(
    kubelet: Kubelet, start: Start, directory: Path, ending: signal.Signals, options: tuple[str, ...]
) -> None:
    """SIGTERM and SIGINT end the plugin with status 0, and its socket is removed.

    A thread that starts before signals are blocked would receive the signal, which would then end the process.
    """
    kubelet.start()
    plugin = start("--resource", "example.com/gpu", *options)
    socket = Path(kubelet.report().plugin.socket)
    assert socket.is_socket()
    plugin.send_signal(ending)
    assert plugin.wait(SOON) == 0
    assert [path for path in directory.iterdir() if path.is_socket()] == [directory / "kubelet.sock"]


def test_it_obeys_standard_input(kubelet: Kubelet, start: Start) -> None:
    """A line changes the health of one device, by id or by number."""
    kubelet.start()
    plugin = start("--resource", "example.com/gpu", "--count", "2", "--commands")
    seen = [kubelet.report()]
    for line in ("unhealthy example.com/gpu-1", "healthy 1", "unhealthy gpu-1"):
        tell(plugin, line)
        seen.append(kubelet.report())
    health = [report.devices[1].health for report in seen]
    assert health == [Health.HEALTHY, Health.UNHEALTHY, Health.HEALTHY, Health.UNHEALTHY]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("unhealthy 7", "there is no device gpu-7: the 2 devices are gpu-0 to gpu-1"),
        ("sick 1", "expected `healthy ID` or `unhealthy ID`, got 'sick 1'"),
        ("healthy", "expected `healthy ID`"),
    ],
)
def test_a_line_that_makes_no_sense_changes_nothing(start: Start, line: str, answer: str) -> None:
    """The log says what is wrong with the line, and the next line is executed."""
    plugin = start("--resource", "example.com/gpu", "--count", "2", "--commands")
    tell(plugin, line)
    assert answer in read_until(plugin, answer)
    tell(plugin, "unhealthy 1")
    assert read_until(plugin, "gpu-1 is unhealthy")


def test_it_ends_with_its_input(start: Start, directory: Path) -> None:
    """With `--commands`, the plugin exits when the program that started it exits, and the log says why."""
    plugin = start("--resource", "example.com/gpu", "--commands")
    read_until(plugin, "serving")
    assert plugin.stdin is not None
    plugin.stdin.close()
    assert "ended because standard input was closed" in read_until(plugin, "ended")
    assert (plugin.wait(SOON), list(directory.iterdir())) == (0, [])


def test_a_folder_that_cannot_be_read_is_named(devicecore_process: Start, directory: Path) -> None:
    """The plugin waits for the folder, and says so."""
    folder = directory / "folder"
    options = ("--resource", "example.com/g", "--socket-dir", str(directory))
    plugin = devicecore_process("plugin", "directory", *options, str(folder))
    assert f" {folder} cannot be read, so there are no devices until it can be: No such" in read_until(plugin, "no d")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("", "Missing option '--resource'."),
        ("--resource gpu", "'gpu' is not an extended resource: expected a domain, a slash and a name, such as exam"),
        ("--resource a.b/c --count -1", "-1 is not in the range 0<=x<=1000000"),
        ("--resource a.b/c --numa-nodes 0,-1", "'0,-1' is not a list of numbers such as 0,1 or 0-3."),
        ("--resource a.b/c --count 3 --unhealthy 3", "--unhealthy 3: there are only 3 devices, numbered from 0."),
        ("--resource a.b/c --count 1 --unhealthy 0-1", "--unhealthy 1: there is only 1 device, numbered from 0."),
        ("--resource a.b/c --numa-nodes 3-1", "'3-1' is not a list of numbers such as 0,1 or 0-3."),
        ("--resource a.b/c --numa-nodes 0-999999999", "lists more than 10000 numbers."),
        ("--resource a.b/c --endpoint ../c.sock", 'the endpoint "../c.sock" is refused: it is not the name of a file'),
        ("--resource a.b/c --endpoint kubelet.sock", 'the endpoint "kubelet.sock" is refused: it is the kubelet'),
        ("--resource a.b/c --socket-dir /dev/null", "cannot use directory '/dev/null': it is not a directory"),
        ("--resource a.b/c --kubelet-socket /tmp", "--kubelet-socket: /tmp is a directory; expected a socket, such as"),
        (f"--resource a.b/c --kubelet-socket {__file__}", "test_plugin.py is a file; expected a socket, such as"),
        (f"--resource a.b/c --socket-dir /tmp/{'x' * 100}", "more than the 107 a unix socket can have"),
    ],
)
def test_impossible_values_give_one_sentence_and_status_2(devicecore: Run, arguments: str, sentence: str) -> None:
    """With wrong usage or an unusable directory, the plugin exits before it serves anything."""
    ran = devicecore("plugin", "simulated", *arguments.split())
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
    assert sentence in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--mount files", "--mount: expected an absolute path in the container, got 'files'."),
        ("--registry a --socket-dir b", "--registry and --socket-dir or --kubelet-socket cannot be used together."),
    ],
)
def test_impossible_values_for_files_are_refused(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugin", "directory", "--resource", "a.b/c", "/dev", *arguments.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_the_kubelets_socket_in_place_of_its_directory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEVICE_PLUGIN_PATH", str(tmp_path / "kubelet.sock"))
    assert main(["plugin", "simulated", "--resource", "example.com/gpu"]) == 2
    assert f"it is the path of a socket; expected its directory, {tmp_path}" in capsys.readouterr().err
