"""The fixtures in the pytest run of a user who has installed only devicecore and pytest."""

import subprocess
import sys
from pathlib import Path

import pytest

THEIRS = """
import sys

from devicecore import ContainerAllocateResponse, Device, DeviceId, DevicePlugin, resource_name


class Gophers(DevicePlugin):
    resource = resource_name("example.com/gopher")

    def devices(self):
        return [Device(DeviceId("brad")), Device(DeviceId("rob"))]

    def allocate(self, devices):
        return ContainerAllocateResponse(envs={"GOPHERS": ",".join(devices)})


def test_loading_the_fixtures_did_not_load_grpc(request):
    assert "devicecore_tools.testing.pytest_plugin" in sys.modules
    assert "grpc" not in sys.modules or request.config.getoption("numprocesses", None)


def test_in_memory(memory_kubelet):
    memory_kubelet.serve(Gophers())
    assert memory_kubelet.admit({"example.com/gopher": 2}).envs == {"GOPHERS": "brad,rob"}


def test_over_a_socket(kubelet):
    kubelet.serve(Gophers())
    kubelet.wait_for_counts("example.com/gopher", 2)
    assert kubelet.admit({"example.com/gopher": 1}).envs == {"GOPHERS": "brad"}


def test_a_process(kubelet, plugin_process):
    plugin = plugin_process(
        *(sys.executable, "-m", "devicecore_tools", "plugin", "simulated"),
        *("--resource", "example.com/gpu", "--socket-dir", "{dir}"),
    )
    kubelet.wait_for_counts("example.com/gpu", 10)
    plugin.terminate()
    kubelet.wait_until_gone("example.com/gpu")


def test_a_driver_in_memory(memory_dra_kubelet):
    memory_dra_kubelet.publish("gpu.example.com", "a")
    assert memory_dra_kubelet.claim("gpu.example.com").allocation[0].device == "a"


def test_a_driver_in_a_process(dra_kubelet, driver_process, api_server):
    process = driver_process("sh", "-c", "echo $NODE_NAME {node} $KUBECONFIG; sleep 60")
    assert process.wait_for_output("node-1") == f"node-1 node-1 {dra_kubelet.kubeconfig}"
    assert api_server.objects("Node")
"""
LATE = """
def test_late(plugin_process, kubelet):
    plugin_process("sh", "-c", "echo I have no license; exit 3")
    kubelet.wait_for_resource("example.com/gpu")
"""


# A run that hangs, as one in several hundred did, writes the stacks of all threads in all its processes, and exits.
STACKS = """
import faulthandler, os

stacks = open(f"stacks-{os.getpid()}", "w")
faulthandler.dump_traceback_later(80, exit=True, file=stacks)
"""


def pytest_run(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run pytest in `folder`, with warnings as errors."""
    (folder / "conftest.py").write_text(STACKS)
    plugins = [
        "-pno:cacheprovider",
        "-pno:hypothesispytest",
        "-pno:pytest_cov",
        "-pno:anyio",
    ]  # pytest starts faster without these plugins
    command = [sys.executable, "-m", "pytest", "-W", "error", *plugins, *options]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    stacks = "".join(path.read_text() for path in sorted(folder.glob("stacks-*")))
    if stacks:
        pytest.fail(f"{ran.stdout}\n{stacks}", pytrace=False)
    return ran


def test_the_fixtures_are_there_and_their_errors_are_sentences(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    (tmp_path / "test_z_late.py").write_text(LATE)
    ran = pytest_run(tmp_path)
    assert (ran.returncode, ran.stderr) == (1, ""), ran.stdout
    assert "1 failed, 6 passed" in ran.stdout
    assert "exited early with status 3, last output: I have no license" in ran.stdout
    assert "devicecore/testing/kubelet.py" not in ran.stdout  # the traceback ends at the failing line in the test


@pytest.mark.slow
def test_they_work_in_parallel(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    ran = pytest_run(tmp_path, "-n", "2", "-k", "not process")
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert "4 passed" in ran.stdout
