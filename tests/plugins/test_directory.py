"""`DirectoryPlugin`: each file below a folder is a device, unless its path cannot be a device id."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from devicecore_tools.testing.kubelet import Kubelet, MemoryKubelet, PodRefusedError
from devicecore_tools.testing.process import PluginProcess

from devicecore import Mount
from devicecore.domain.errors import InvalidResourceNameError
from devicecore.domain.model import DeviceId
from devicecore.plugins import responses
from devicecore.plugins.directory import DirectoryPlugin

GOPHER = "example.com/gopher"


def ids(devices: object) -> list[str]:
    assert isinstance(devices, tuple | list)
    return [device.id for device in devices]


def test_files_are_devices_however_deep_they_lie(tmp_path: Path) -> None:
    (tmp_path / "team" / "a").mkdir(parents=True)
    for name in ("rob", "brad", "team/a/ken"):
        (tmp_path / name).touch()
    assert ids(DirectoryPlugin(GOPHER, tmp_path).devices()) == ["brad", "rob", "team/a/ken"]


def test_a_missing_folder_has_no_devices(tmp_path: Path) -> None:
    assert ids(DirectoryPlugin(GOPHER, tmp_path / "missing").devices()) == []


def test_a_name_that_is_not_an_id_is_left_out_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("x" * 63, "x" * 64, "two\nlines", os.fsdecode(b"\xff")):
        (tmp_path / name).touch()
    plugin = DirectoryPlugin(GOPHER, tmp_path)
    assert ids(plugin.devices()) == ids(plugin.devices()) == ["x" * 63]
    assert len(caplog.records) == 3


def test_an_invalid_resource_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidResourceNameError):
        DirectoryPlugin("gopher", tmp_path)


def test_files_that_appear_and_disappear_are_reported(memory_kubelet: MemoryKubelet, tmp_path: Path) -> None:
    (tmp_path / "rob").touch()
    served = memory_kubelet.serve(DirectoryPlugin(GOPHER, tmp_path, poll_interval=0.01))
    memory_kubelet.wait_for_counts(GOPHER, 1)
    (tmp_path / "brad").touch()
    memory_kubelet.wait_for_device(GOPHER, "brad")
    (tmp_path / "rob").unlink()
    memory_kubelet.wait_for_counts(GOPHER, 1)
    assert ids(memory_kubelet.devices(GOPHER)) == ["brad"]
    served.stop()


def test_a_container_gets_what_the_answer_function_returns(memory_kubelet: MemoryKubelet, tmp_path: Path) -> None:
    (tmp_path / "rob").touch()
    memory_kubelet.serve(DirectoryPlugin(GOPHER, tmp_path, lambda files: responses.mounts(files, "/etc/g", "/gophers")))
    assert memory_kubelet.admit({GOPHER: 1}).mounts == (Mount("/gophers/rob", "/etc/g/rob", read_only=True),)


def test_a_vanished_file_is_refused(memory_kubelet: MemoryKubelet, tmp_path: Path) -> None:
    """Until the next poll after the file's deletion, the kubelet may still request the device."""
    (tmp_path / "rob").touch()
    memory_kubelet.serve(DirectoryPlugin(GOPHER, tmp_path, poll_interval=60))
    (tmp_path / "rob").unlink()
    with pytest.raises(PodRefusedError, match=r"request for example.com/gopher: unknown device: rob"):
        memory_kubelet.admit({GOPHER: 1})


def test_the_command_serves_a_folder(
    kubelet: Kubelet, plugin_process: Callable[..., PluginProcess], tmp_path: Path
) -> None:
    (tmp_path / "rob").touch()
    words = f"-m devicecore_tools plugin directory --resource {GOPHER} --variable GOPHERS --mount /gophers".split()
    plugin = plugin_process(sys.executable, *words, "--socket-dir", "{dir}", tmp_path)
    kubelet.wait_for_device(GOPHER, "rob")
    (tmp_path / "brad").touch()
    kubelet.wait_for_device(GOPHER, "brad")
    pod = kubelet.admit({GOPHER: 2})
    assert pod.envs == {"GOPHERS": "brad,rob"}
    assert pod.mounts[0] == Mount("/gophers/brad", f"{tmp_path}/brad", read_only=True)
    plugin.terminate()
    assert plugin.wait() == 0
    assert kubelet.plugin_sockets() == ()


def test_the_ids_are_valid_for_a_kubelet(memory_kubelet: MemoryKubelet, tmp_path: Path) -> None:
    (tmp_path / "ein Gerät").touch()
    memory_kubelet.serve(DirectoryPlugin(GOPHER, tmp_path))
    assert memory_kubelet.admit({GOPHER: 1}).devices() == (DeviceId("ein Gerät"),)
