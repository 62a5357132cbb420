"""`devicecore demo`: the real command runs all steps once."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.demo.cluster import Cluster, schedule
from devicecore_tools.command.demo.scenario import NATIVE, describe
from devicecore_tools.command.demo.steps import StepRun
from rich.console import Console

from devicecore.domain.model import Container, Pod, PodUid
from tests.recorded import share

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Json = Any  # the command's output, whose structure these tests check

FIRST, SECOND = "172.21.0.16", "172.21.0.12"
GPU, RDMA = "example.com/gpu", "example.com/rdma"


class DemoRun:
    """One run: its status, its steps by name, and what was left in its temporary directory."""

    def __init__(self, ran: "subprocess.CompletedProcess[str]", directory: Path) -> None:
        self.status = ran.returncode
        self.steps: dict[str, Json] = {step["name"]: step for step in json.loads(ran.stdout)}
        self.progress = ran.stderr
        self.left = left_by(directory)

    def counts(self, step: str, node: str, resource: str) -> tuple[int | None, int | None]:
        """Return the capacity and the allocatable that a step shows."""
        status = self.steps[step]["nodes"][node]
        return status["capacity"].get(resource), status["allocatable"].get(resource)


def left_by(directory: Path) -> list[str]:
    """Return the paths in `directory`, and the command lines of processes that contain its path."""
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    mentions = [command.decode() for command in commands if os.fsencode(directory) in command]
    return [*map(str, directory.iterdir()), *mentions]


@pytest.fixture(scope="module")
def demo(devicecore: Run) -> Iterator[DemoRun]:
    """The one run that most tests examine."""
    with tempfile.TemporaryDirectory(prefix="dc-") as directory:
        yield DemoRun(devicecore("demo", "--json", TMPDIR=directory), Path(directory))


def test_every_step_passes(demo: DemoRun) -> None:
    """All steps succeed, with at least one check each, and the status is 0."""
    assert demo.status == 0
    assert len(demo.steps) == 17
    assert [name for name, step in demo.steps.items() if not step["ok"] or not step["checks"]] == []


def test_progress_goes_to_stderr(demo: DemoRun) -> None:
    """With --json, stderr has the title of each step, and one more line."""
    titles = [line.partition("  ")[2] for line in demo.progress.splitlines()]
    assert titles[:-1] == [step["title"] for step in demo.steps.values()]


def test_a_plugin_brings_devices_to_its_node_only(demo: DemoRun) -> None:
    """Capacity and allocatable become 10, and resources that belong to no plugin stay the same."""
    assert demo.counts("two_nodes", FIRST, GPU) == (None, None)
    assert demo.counts("a_plugin_registers", FIRST, GPU) == (10, 10)
    assert demo.counts("a_plugin_registers", SECOND, GPU) == (None, None)
    before, after = (demo.steps[step]["nodes"][FIRST]["capacity"] for step in ("two_nodes", "a_plugin_registers"))
    assert after == {**before, GPU: 10}


def test_the_pending_pod_waits_for_the_second_node(demo: DemoRun) -> None:
    """The demo's scheduler uses kube-scheduler's wording, and the pod runs on the node where the next plugin starts."""
    pending = demo.steps["a_pod_is_pending"]
    assert pending["message"] == "0/2 nodes are available: 2 Insufficient example.com/gpu."
    landed = demo.steps["the_pending_pod_lands"]
    assert (landed["pod"], landed["node"]) == (pending["pod"], SECOND)


def test_a_container_of_two_resources_finds_both_in_its_environment(demo: DemoRun) -> None:
    """Each resource has its own environment variable, which lists the container's devices."""
    step = demo.steps["a_pod_takes_both"]
    environment = step["containers"]["testpod-gpu2-rdma10"]["environment"]
    counts = {name: len(value.split(",")) for name, value in environment.items()}
    assert counts == {f"NVIDIA_VISIBLE_DEVICES/{GPU}": 2, f"NVIDIA_VISIBLE_DEVICES/{RDMA}": 10}


def test_no_device_has_two_owners(demo: DemoRun) -> None:
    """The containers on the first node hold ten GPUs, and no two of them share one."""
    first = demo.steps["the_kubelet_restarts"]["containers"]
    gpus = [device for given in first.values() for device in given["devices"][GPU]]
    assert (len(gpus), len(set(gpus))) == (10, 10)


def test_the_checkpoint_is_sound(demo: DemoRun) -> None:
    """The checkpoint has format 2, and its checksum matches its data."""
    step = demo.steps["the_checkpoint"]
    assert (step["verdict"], step["format"], step["entries"]) == ("ok", 2, 3)
    assert step["stored"] == step["computed"]


def test_a_restart_loses_nothing(demo: DemoRun) -> None:
    """After the kubelet restarts, containers have the devices that they were given when they started."""
    after = demo.steps["the_kubelet_restarts"]["containers"]
    for step in ("a_pod_runs", "a_pod_takes_both"):
        for container, given in demo.steps[step]["containers"].items():
            assert after[container] == given


def test_capacity_outlives_its_plugin(demo: DemoRun) -> None:
    """Without the plugin, allocatable is 0 and capacity is unchanged. An unhealthy device lowers allocatable by one."""
    steps = ("a_plugin_dies", "it_comes_back", "a_device_turns_unhealthy")
    assert [demo.counts(step, FIRST, GPU) for step in steps] == [(10, 0), (10, 10), (10, 9)]


def test_a_claim_brings_a_device_into_its_container(demo: DemoRun) -> None:
    """The runtime gets one CDI name.

    The CDI file for this name sets the variable for the device that was allocated to the claim.
    """
    step = demo.steps["a_claim_is_prepared"]
    (name,) = step["cdi_devices"]
    assert step["allocated"] == f"chip.example.com/{FIRST}/dev-0"
    assert name.startswith("chip.example.com/device=")
    assert step["environment"] == [f"SIMULATED_DEVICE_DEV_0={FIRST}/dev-0"]


def test_nothing_is_left_behind(demo: DemoRun) -> None:
    """Nothing is left, according to both the command and our own check."""
    end = demo.steps["nothing_is_left"]
    assert (end["processes"], end["sockets"], end["directories"]) == ([-9, 0, 0, 0, 0], [], [])
    assert demo.left == []


@pytest.mark.parametrize("width", [100, 80, 70, 60, 40])
def test_two_nodes_are_side_by_side_where_there_is_room(width: int) -> None:
    """On a narrower terminal, the nodes are printed below each other, and nothing is wider than the terminal."""
    console = Console(width=width, file=None, force_terminal=False, highlight=False)
    with Cluster(NATIVE) as cluster, console.capture() as capture:
        first, second = cluster.nodes
        first.start()
        second.start()
        StepRun(cluster, console).show_both(describe(first), describe(second))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    names = [line.split() for line in lines if "Name:" in line]
    beside = ["Name:", FIRST, "Name:", SECOND]
    assert names == ([beside] if width >= 80 else [beside[:2], beside[2:]])


def test_a_step_that_fails_says_why(devicecore: Run, directory: Path, tmp_path: Path) -> None:
    """If no plugin can start, the status is 1.

    The output says which step failed, what it expected, what it got, and why.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'plugin' in sys.orig_argv: os.write(2, b'no plugins today\\n'); os._exit(3)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    demo = DemoRun(ran := devicecore("demo", "--json", TMPDIR=str(directory), PYTHONPATH=path), directory)
    (failed,) = (step for step in demo.steps.values() if not step["ok"])
    assert (demo.status, demo.left, len(demo.steps)) == (1, [], 2)
    assert (failed["name"], failed["expected"], failed["actual"]) == ("a_plugin_registers", [10, 10], [None, None])
    assert ran.stderr.endswith("no plugins today\ndevicecore demo: step a_plugin_registers failed\n")


@pytest.mark.slow
@pytest.mark.parametrize("ending", share([signal.SIGTERM, signal.SIGINT], of=2))
def test_a_signal_ends_it_and_nothing_is_left(directory: Path, ending: signal.Signals) -> None:
    """On a signal during a step, the demo removes its files, then exits with status 128 plus the signal's number."""
    command = [sys.executable, "-m", "devicecore_tools", "demo"]
    environment = {**os.environ, "TMPDIR": str(directory)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        next(line for line in process.stdout if line.startswith(" 5/17"))
        process.send_signal(ending)
        assert process.stderr.read() == f"devicecore demo: ended by {ending.name}; nothing is left behind\n"
    assert (process.returncode, left_by(directory)) == (128 + ending, [])


def test_a_long_temporary_path_leaves_room_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the name of the machine's temporary directory is too long, the cluster uses a different one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 60)))
    with Cluster({}) as cluster:
        assert len(os.fsencode(cluster.root)) < 60
    assert not cluster.root.exists()


def test_the_scheduler_counts_what_each_node_lacks() -> None:
    """Reasons are counted over all nodes and sorted, as in kube-scheduler's own sentence."""
    rdma = {"capacity": {RDMA: 4}, "allocatable": {RDMA: 4}}
    pod = Pod(PodUid("uid"), containers=(Container("main", {GPU: 1, RDMA: 2, "cpu": 9}),))
    with Cluster({"one": {"capacity": {}, "allocatable": {}}, "two": rdma}) as cluster:
        assert schedule(pod, cluster.nodes) == f"0/2 nodes are available: 1 Insufficient {RDMA}, 2 Insufficient {GPU}."


@pytest.mark.slow
def test_people_read_it_on_80_columns_and_can_keep_the_files(devicecore: Run, directory: Path) -> None:
    """If piped, the output has no colors and no long lines, and every sentence is complete.

    With `--keep`, no process or socket is left, and the commands that the demo prints work.
    """
    ran = devicecore("demo", "--keep", TMPDIR=str(directory))
    assert (ran.returncode, ran.stderr, "\x1b" in ran.stdout) == (0, "", False)
    assert [line for line in ran.stdout.splitlines() if len(line) > 80 and str(directory) not in line] == []
    assert "0/2 nodes are available: 2 Insufficient example.com/gpu.\n" in ran.stdout
    (root,) = directory.iterdir()
    assert left_by(directory) == [str(root)]
    assert [path for path in root.rglob("*") if path.is_socket()] == []
    (command,) = (line.split() for line in ran.stdout.splitlines() if line.endswith(f"/{FIRST}"))
    shown = devicecore(*command[1:])
    assert (shown.returncode, "pod 94c13838-fbba-11e9-ba9e-525400d54f7e" in shown.stdout) == (0, True)
    assert f"rm -r {root}" in ran.stdout
