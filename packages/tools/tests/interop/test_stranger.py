"""The kubelet for tests, and the conformance checks, with a plugin that does not use devicecore."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from devicecore_tools.conformance import Verdict
from devicecore_tools.conformance.device_plugin import Settings, run
from devicecore_tools.testing.kubelet import Kubelet
from devicecore_tools.testing.process import PluginProcess

from devicecore import DeviceSpec, Health, Mount

NPU = "stranger.org/npu"
PLUGIN = Path(__file__).with_name("stranger_plugin.py")


@pytest.fixture
def stranger(plugin_process: Callable[..., PluginProcess], stubs: Path) -> PluginProcess:
    return plugin_process(sys.executable, PLUGIN, environment={"PYTHONPATH": str(stubs)})


def test_its_devices_are_listed_and_allocated(kubelet: Kubelet, stranger: PluginProcess) -> None:
    assert [device.id for device in kubelet.wait_for_resource(NPU)] == ["n0", "n1", "n2", "n3"]
    pod = kubelet.admit({NPU: 2})
    assert pod.devices(NPU) == ("n0", "n1")
    assert pod.envs == {"NPUS": "n0,n1"}
    assert pod.mounts == (Mount("/lib/npu", "/opt/npu", read_only=True),)
    assert pod.device_nodes == tuple(DeviceSpec(f"/dev/{name}", f"/dev/{name}") for name in ("npu0", "npu1", "npuctl"))
    assert pod.annotations == {"stranger/npus": "2"}
    assert pod.cdi_devices == ("stranger.org/npu=n0", "stranger.org/npu=n1")
    assert [call.method for call in kubelet.calls] == ["GetPreferredAllocation", "Allocate"]
    stranger.wait_for_output("allocate")  # raises an error unless the plugin prints this


def test_an_unhealthy_device_is_not_allocated(kubelet: Kubelet, stranger: PluginProcess) -> None:
    kubelet.wait_for_counts(NPU, 4)
    (kubelet.directory / "bad").touch()
    kubelet.wait_for_device(NPU, "n1", Health.UNHEALTHY)
    kubelet.wait_for_counts(NPU, 4, 3)
    assert kubelet.admit({NPU: 3}).devices() == ("n0", "n2", "n3")
    assert stranger.status is None


@pytest.mark.parametrize("wipe", [True, False])
def test_it_registers_again_and_pods_keep_devices(kubelet: Kubelet, stranger: PluginProcess, *, wipe: bool) -> None:
    kubelet.wait_for_resource(NPU)
    pod = kubelet.admit({NPU: 1})
    kubelet.restart(wipe=wipe)
    kubelet.wait_for_registration(NPU, 2)
    kubelet.wait_for_counts(NPU, 4)
    assert pod.devices() == ("n0",)
    assert kubelet.admit({NPU: 1}).devices() == ("n1",)
    stranger.terminate()
    assert stranger.wait() == 0


@pytest.mark.slow
def test_it_passes_every_check(stubs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(stubs))
    sick = tmp_path / "provoke.sh"
    sick.write_text('touch "$DEVICE_PLUGIN_PATH/bad"\n')
    patience = Settings(timeout=60, returning=60, noticing=60, grace=60, restarting=0.3, away=2, refusing=4)
    settings = evolve(patience, resource=NPU, provoke_health=f"sh {sick}")
    report = run([sys.executable, PLUGIN], settings=settings)
    assert [(result.name, result.actual) for result in report.failures] == []
    assert report.subject == f"{NPU}, 4 devices"
    skipped = {result.name for result in report.results if result.verdict is Verdict.SKIPPED}
    assert skipped == {
        "allocates-a-device-that-has-recovered",
        "answers-pre-start-container",
        "answers-notify-registration-status",
        "gives-each-variable-once",
        "gives-existing-device-nodes",
        "gives-nothing-that-has-vanished",
        "keeps-its-numa-nodes",
        "keeps-the-mounts-of-other-containers",
        "keeps-the-files-of-other-containers",
        "keeps-what-it-has-mounted",
        "lists-each-device-for-one-resource",
        "mounts-existing-paths",
        "pre-starts-after-a-kill",
        "pre-starts-after-a-kubelet-restart",
        "pre-starts-after-sigterm",
        "pre-starts-while-a-device-is-sick",
        "prints-no-secrets",
        "reports-the-health-of-each-copy",
        "returns-with-all-its-resources",
        "starts-containers-at-the-same-time",
        "numbers-numa-nodes-from-zero",
        "reports-a-recovery-of-health",
        "reports-a-later-change-of-health",
    }
