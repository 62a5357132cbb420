"""The kubelet for tests, in memory and over sockets, as a plugin author uses it."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from devicecore_tools.testing.kubelet import BaseKubelet, Kubelet, MemoryKubelet, PodRefusedError, WaitTimeoutError
from devicecore_tools.testing.process import CannotRunError, ExitedEarlyError, NotPrintedError, StillRunningError

from devicecore import Container, Health, PluginOptions, Pod, PodUid
from devicecore.adapters.grpc_unix import serve_plugin
from devicecore.domain.errors import (
    DirectoryError,
    DirectoryInUseError,
    InvalidResourceNameError,
    SocketPathTooLongError,
)
from devicecore.domain.events import PluginLost
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from tests.adapters.peers import register

GPU = "example.com/gpu"
SIMULATED = (sys.executable, *f"-m devicecore_tools plugin simulated --socket-dir {{dir}} --resource {GPU}".split())


def gpus(count: int = 4) -> SimulatedPlugin:
    return SimulatedPlugin(GPU, simulated_devices("gpu", count), "GPUS")


def serve(kubelet: BaseKubelet, plugin: SimulatedPlugin) -> None:
    """Serve a plugin, and wait until the kubelet has received its list."""
    kubelet.serve(plugin)
    kubelet.wait_for_resource(GPU)


@pytest.fixture(params=[MemoryKubelet, Kubelet])
def any_kubelet(request: pytest.FixtureRequest) -> Iterator[BaseKubelet]:
    with request.param() as kubelet:
        yield kubelet


class TestBothKubelets:
    def test_a_plugin_is_listed_with_its_devices(self, any_kubelet: BaseKubelet) -> None:
        any_kubelet.serve(gpus(2))
        assert [device.id for device in any_kubelet.wait_for_resource(GPU)] == ["gpu-0", "gpu-1"]
        any_kubelet.wait_for_counts(GPU, 2)
        assert (any_kubelet.counts(GPU), any_kubelet.registrations(GPU)) == ((2, 2), 1)

    def test_a_misspelled_name_is_refused_instead_of_finding_nothing(self, any_kubelet: BaseKubelet) -> None:
        serve(any_kubelet, gpus())
        pod = any_kubelet.admit({GPU: 1})
        with pytest.raises(ValueError, match=r"expected 'Allocate' or 'GetPreferredAllocation' or .*, got 'Alocate'"):
            any_kubelet.calls_of("Alocate")
        with pytest.raises(
            ValueError, match=r"devices: resource: expected 'example\.com/gpu', got 'example\.com/gpux'"
        ):
            pod.devices("example.com/gpux")
        for look in (
            *(any_kubelet.lists, any_kubelet.registrations, any_kubelet.counts),
            *(any_kubelet.devices, any_kubelet.plugin),
        ):
            with pytest.raises(InvalidResourceNameError):
                look("gpu")

    def test_a_pod_gets_the_answer_of_its_plugin(self, any_kubelet: BaseKubelet) -> None:
        serve(any_kubelet, gpus())
        pod = any_kubelet.admit({GPU: 2})
        assert pod.devices() == pod.devices(GPU) == ("gpu-0", "gpu-1")
        assert pod.envs == {"GPUS": "gpu-0,gpu-1"}
        assert (pod.mounts, pod.device_nodes, pod.annotations, pod.cdi_devices) == ((), (), {}, ())
        (call,) = any_kubelet.calls
        assert (call.method, call.devices) == ("Allocate", ("gpu-0", "gpu-1"))
        assert call.answer == any_kubelet.calls_of("Allocate")[0].answer
        pod.delete()
        assert pod.devices() == ()
        assert any_kubelet.admit({GPU: 1}).devices() == ("gpu-0",)

    def test_a_pod_may_have_several_containers(self, any_kubelet: BaseKubelet) -> None:
        serve(any_kubelet, gpus())
        containers = (Container("a", {GPU: 1}), Container("b", {GPU: 2}))
        pod = any_kubelet.admit(Pod(PodUid("u1"), name="trainer", containers=containers))
        assert (pod.devices(), pod.devices(container="b")) == (("gpu-0",), ("gpu-1", "gpu-2"))
        assert pod.options("b").envs == {"GPUS": "gpu-1,gpu-2"}

    def test_a_refusal_has_the_reason(self, any_kubelet: BaseKubelet) -> None:
        serve(any_kubelet, gpus(2))
        with pytest.raises(PodRefusedError, match=r"pod pod-1 was not admitted: .*Requested: 3, Available: 2"):
            any_kubelet.admit({GPU: 3})

    def test_a_plugin_that_requires_it_is_called_before_each_start(self, any_kubelet: BaseKubelet) -> None:
        plugin = gpus()
        plugin.options = PluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
        serve(any_kubelet, plugin)
        pod = any_kubelet.admit({GPU: 1})
        assert pod.start() == pod.start() == pod.options()
        assert [call.method for call in any_kubelet.calls] == [
            "GetPreferredAllocation", "Allocate", "PreStartContainer", "PreStartContainer",
        ]  # fmt: skip  # as a table

    def test_a_test_can_wait_for_a_change_of_health(self, any_kubelet: BaseKubelet) -> None:
        plugin = gpus(2)
        any_kubelet.serve(plugin)
        any_kubelet.wait_for_device(GPU, "gpu-1")
        plugin.set_health("gpu-1", Health.UNHEALTHY)
        assert any_kubelet.wait_for_device(GPU, "gpu-1", Health.UNHEALTHY).id == "gpu-1"
        any_kubelet.wait_for_counts(GPU, 2, 1)
        assert [len(devices) for devices in any_kubelet.lists(GPU)] == [2, 2]

    @pytest.mark.parametrize("checkpoint", [True, False])
    def test_a_restart_restores_the_checkpoint(self, any_kubelet: BaseKubelet, *, checkpoint: bool) -> None:
        serve(any_kubelet, gpus())
        pod = any_kubelet.admit({GPU: 2})
        any_kubelet.restart(checkpoint=checkpoint)
        any_kubelet.wait_for_registration(GPU, 2)
        any_kubelet.wait_for_resource(GPU)
        assert pod.devices() == (("gpu-0", "gpu-1") if checkpoint else ())

    def test_a_disconnected_plugin_registers_again(self, any_kubelet: BaseKubelet) -> None:
        serve(any_kubelet, gpus())
        for number in (2, 3, 4):
            any_kubelet.drop_stream(GPU)
            any_kubelet.wait_for_registration(GPU, number)  # the plugin's stream may not have started yet
            any_kubelet.drop_stream("example.com/unknown")
        any_kubelet.wait_for_resource(GPU)
        assert sum(isinstance(event, PluginLost) for event in any_kubelet.events) == 3

    def test_the_clock_can_be_moved_forward(self, any_kubelet: BaseKubelet) -> None:
        served = any_kubelet.serve(gpus(2))
        any_kubelet.wait_for_counts(GPU, 2)
        served.stop()
        served.stop()
        any_kubelet.wait_until_gone(GPU)
        any_kubelet.advance(299)
        assert any_kubelet.counts(GPU) == (2, 0)
        any_kubelet.advance(2)
        assert any_kubelet.counts(GPU) == (0, 0)

    def test_the_error_of_a_wait_says_what_the_kubelet_saw(self, any_kubelet: BaseKubelet) -> None:
        with pytest.raises(WaitTimeoutError) as nothing:
            any_kubelet.wait_for_resource(GPU, timeout=0)
        assert str(nothing.value).startswith(
            "expected a plugin for example.com/gpu with a list of devices within 0 s; "
        )
        assert "no resource is registered; no plugin has called Register" in str(nothing.value)
        served = any_kubelet.serve(gpus(20))
        any_kubelet.wait_for_counts(GPU, 20)
        with pytest.raises(TimeoutError) as other:
            any_kubelet.wait_for_device(GPU, "gpu-1", Health.UNHEALTHY, timeout=0.01)
        waited = "expected device gpu-1 of example.com/gpu with health Unhealthy within 0.01 s; the kubelet saw: "
        assert str(other.value).startswith(waited)
        counts = "capacity 20, allocatable 20, a plugin is connected and has sent its list, healthy: gpu-0, "
        assert counts in str(other.value)
        assert "and 12 more, unhealthy: none" in str(other.value)
        served.stop()
        any_kubelet.wait_until_gone(GPU)
        any_kubelet.stop()
        with pytest.raises(WaitTimeoutError, match=r"the last plugin has disconnected, .*; the kubelet is stopped"):
            any_kubelet.wait_for_device(GPU, "gpu-1", timeout=0)

    def test_an_invalid_resource_name_is_an_error_at_once(self, any_kubelet: BaseKubelet) -> None:
        with pytest.raises(InvalidResourceNameError):
            any_kubelet.wait_for_resource("gpu")

    def test_a_wait_looks_again_without_an_event(self, any_kubelet: BaseKubelet) -> None:
        looks = iter((False, False, True))
        assert any_kubelet.wait_until("a third look", lambda: next(looks), timeout=10)

    def test_it_can_be_stopped_and_started_again(self, any_kubelet: BaseKubelet) -> None:
        serve(any_kubelet, gpus())
        any_kubelet.stop()
        any_kubelet.stop()
        any_kubelet.restart()
        any_kubelet.wait_for_registration(GPU, 2)

    def test_it_can_be_closed_twice(self, any_kubelet: BaseKubelet) -> None:
        any_kubelet.serve(gpus())
        any_kubelet.close()


class TestOverSockets:
    def test_a_plugin_can_be_a_process(self, kubelet: Kubelet) -> None:
        process = kubelet.run_plugin(*SIMULATED, "--count", "2")
        kubelet.wait_for_counts(GPU, 2)
        assert "serving 2 devices" in process.wait_for_output("serving")
        assert "running" in repr(process)
        process.terminate()
        assert process.wait() == 0
        kubelet.wait_until_gone(GPU)
        assert kubelet.plugin_sockets() == ()
        assert "status 0" in repr(process)

    def test_a_wait_ends_with_the_output_of_a_plugin_that_exits(self, kubelet: Kubelet) -> None:
        kubelet.run_plugin("sh", "-c", "echo no such chip; exit 3")
        with pytest.raises(ExitedEarlyError) as ended:
            kubelet.wait_for_resource(GPU)
        assert "exited early with status 3, last output: no such chip" in str(ended.value)

    def test_a_wait_ends_with_the_signal_that_killed_the_plugin(self, kubelet: Kubelet) -> None:
        kubelet.run_plugin("sh", "-c", "kill -SEGV $$")
        with pytest.raises(ExitedEarlyError, match="was ended by SIGSEGV, it printed nothing"):
            kubelet.wait_for_resource(GPU)

    def test_the_command_gets_the_paths_of_the_kubelet(self, kubelet: Kubelet) -> None:
        script = 'echo "[$1] [$2] [$DEVICE_PLUGIN_PATH] [$KUBELET_SOCKET] [$MORE]"'
        command = ("sh", "-c", script, "-", "{dir}", "--socket={socket}")
        process = kubelet.run_plugin(*command, environment={"MORE": "x"}, cwd="/")
        line = process.wait_for_output("[")
        where = kubelet.directory
        assert line == f"[{where}] [--socket={where}/kubelet.sock] [{where}] [{where}/kubelet.sock] [x]"

    def test_a_command_that_cannot_be_run_is_one_sentence(self, kubelet: Kubelet) -> None:
        with pytest.raises(CannotRunError, match="cannot run `/no/such/plugin -v`: No such file or directory"):
            kubelet.run_plugin("/no/such/plugin", "-v")

    @pytest.mark.parametrize(
        ("program", "advice"),
        [
            ("my-plugin", "in this directory, write ./my-plugin"),
            ("/dev", "It is a directory; name"),
            ("sub/data", "chmod \\+x, or write its interpreter"),
            ("sub/text", "add a #! line"),
        ],
    )
    def test_a_program_that_is_not_found_gets_advice(
        self, kubelet: Kubelet, program: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("my-plugin").touch(mode=0o755)
        Path("sub").mkdir()
        Path("sub/data").touch(mode=0o644)
        Path("sub/text").touch(mode=0o755)
        with pytest.raises(CannotRunError, match=advice):
            kubelet.run_plugin(program)

    def test_a_wait_for_a_process_has_a_timeout(self, kubelet: Kubelet) -> None:
        process = kubelet.run_plugin("sh", "-c", "echo here; sleep 60")
        process.wait_for_output("here")
        with pytest.raises(NotPrintedError, match=r"the plugin to print 'there' within 0.01 s, last output: here"):
            process.wait_for_output("there", timeout=0.01)
        with pytest.raises(StillRunningError, match=r"to exit within 0.01 s; it is still running, last output: here"):
            process.wait(timeout=0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        with pytest.raises(ExitedEarlyError):
            process.wait_for_output("there")
        assert process.failure is None

    def test_a_process_that_ignores_sigterm_is_killed_with_its_children(self, kubelet: Kubelet) -> None:
        process = kubelet.run_plugin("sh", "-c", "trap '' TERM; sh -c 'echo $$; while :; do sleep 60; done'")
        child = int(process.wait_for_output(""))
        process.stop(grace=0.1)
        assert process.status == -signal.SIGKILL
        state = Path(f"/proc/{child}/stat")
        # the process has ended, but its parent has not waited for it yet
        assert not state.exists() or ") Z " in state.read_text()

    def test_a_frozen_plugin_answers_late(self, kubelet: Kubelet) -> None:
        process = kubelet.run_plugin(*SIMULATED)
        kubelet.wait_for_resource(GPU)
        process.pause()
        kubelet.drop_stream(GPU)
        kubelet.wait_until_gone(GPU)
        process.resume()
        kubelet.wait_for_registration(GPU, 2)

    def test_processor_time_covers_the_whole_process_tree(self, kubelet: Kubelet) -> None:
        script = "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done'; sleep 60"
        process = kubelet.run_plugin("sh", "-c", script)
        before = process.cpu_seconds
        process.wait_for_output("done", timeout=30)
        assert process.cpu_seconds > before

    def test_the_plugin_watchers_directory_may_be_a_string(self, tmp_path: Path) -> None:
        with Kubelet(registry=str(tmp_path)) as kubelet:
            assert kubelet.registry == tmp_path

    def test_a_plugin_can_use_the_plugin_watcher(self, kubelet: Kubelet) -> None:
        with serve_plugin(gpus(2), registry=kubelet.registry) as served:
            kubelet.wait_for_counts(GPU, 2)
            served.wait_registered(timeout=60)
            pod = kubelet.admit({GPU: 1})
            kubelet.restart()
            assert served.socket == str(kubelet.registry / Path(served.socket).name)
            kubelet.wait_for_registration(GPU, 2)
            kubelet.wait_for_counts(GPU, 2)
            assert (pod.devices(), kubelet.admit({GPU: 1}).devices()) == (("gpu-0",), ("gpu-1",))
        kubelet.wait_until_gone(GPU)

    def test_kubelet_sock_can_be_deleted_and_made_again(self, kubelet: Kubelet) -> None:
        serve(kubelet, gpus())
        (socket,) = kubelet.plugin_sockets()
        inode = (kubelet.directory / socket).stat().st_ino
        kubelet.remove_socket()
        assert not kubelet.socket.exists()
        assert kubelet.admit({GPU: 1}).devices() == ("gpu-0",)
        kubelet.recreate_socket()
        assert (kubelet.directory / socket).stat().st_ino == inode
        kubelet.wait_for_registration(GPU, 2)
        assert (kubelet.directory / socket).stat().st_ino == inode

    def test_a_restart_deletes_the_sockets_of_plugins(self, kubelet: Kubelet) -> None:
        (kubelet.directory / "stale.txt").touch()
        process = kubelet.run_plugin(*SIMULATED)
        kubelet.wait_for_resource(GPU)
        process.kill()
        assert len(kubelet.plugin_sockets()) == 1
        kubelet.restart(checkpoint=False)
        assert kubelet.plugin_sockets() == ()
        assert (kubelet.directory / "stale.txt").exists()
        assert "no plugin has called Register again" in kubelet.describe()

    def test_a_refused_registration_is_in_the_error(self, kubelet: Kubelet) -> None:
        register(kubelet.directory, "missing.sock", GPU)
        with pytest.raises(WaitTimeoutError) as waited:
            kubelet.wait_for_resource(GPU, timeout=0.1)
        assert "no resource is registered; 1 call to Register without success" in str(waited.value)
        assert "last warnings: registration of example.com/gpu at missing.sock refused: " in str(waited.value)

    def test_the_output_of_a_plugin_is_in_the_error(self, kubelet: Kubelet) -> None:
        kubelet.run_plugin("sh", "-c", "echo warming up; sleep 60").wait_for_output("warming")
        with pytest.raises(WaitTimeoutError, match=r"last output of process [0-9]+: warming up"):
            kubelet.wait_for_resource(GPU, timeout=0)

    def test_a_directory_can_be_chosen(self, kubelet: Kubelet, tmp_path: Path) -> None:
        busy = Kubelet(kubelet.directory)
        with pytest.raises(DirectoryInUseError, match="belongs to another running kubelet"), busy:
            pass
        long = Kubelet(tmp_path / ("x" * 100))
        with pytest.raises(SocketPathTooLongError, match="choose a directory with a shorter name"), long:
            pass
        with pytest.raises(DirectoryError), Kubelet("/proc/nothing"):
            pass
        assert kubelet.checkpoint.parent == kubelet.directory
