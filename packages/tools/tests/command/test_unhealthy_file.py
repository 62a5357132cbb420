"""The file of unhealthy devices, as a kubelet mounts and replaces it."""

from pathlib import Path
from queue import SimpleQueue

import pytest
from devicecore_tools.command.dra_driver import _Offered
from devicecore_tools.command.plugin import _Commands
from devicecore_tools.command.unhealthy_file import UnhealthyFile

from devicecore.adapters.memory_dra import MemoryClaims
from devicecore.domain.dra.health import DraHealth
from devicecore.domain.model import Health
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.plugins.simulated_driver import SimulatedDriver, counters, published

_TIMEOUT = 10.0


def test_a_change_of_a_mounted_configmap_is_seen(tmp_path: Path) -> None:
    """A kubelet mounts a ConfigMap's key as a link into a linked directory, and replaces the directory's link."""
    for number, text in enumerate(("gpu-1 # broken\n", "2\ngpu-1\n")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "node-1").write_text(text)
    (tmp_path / "data").symlink_to("0")
    (tmp_path / "node-1").symlink_to("data/node-1")
    seen: SimpleQueue[frozenset[str]] = SimpleQueue()

    def apply(words: frozenset[str]) -> str:
        seen.put(words)
        return ""

    UnhealthyFile(str(tmp_path / "node-1"), apply).follow()
    assert seen.get(timeout=_TIMEOUT) == {"gpu-1"}
    (tmp_path / "new").symlink_to("1")
    (tmp_path / "new").rename(tmp_path / "data")
    assert seen.get(timeout=_TIMEOUT) == {"gpu-1", "2"}
    (tmp_path / "node-1").unlink()
    assert seen.get(timeout=_TIMEOUT) == frozenset()


def test_a_file_that_does_not_exist_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A ConfigMap may be created later, but a name is more often misspelled."""
    caplog.set_level("INFO")
    UnhealthyFile(str(tmp_path / "gone"), lambda _: "unhealthy: none").follow()
    assert caplog.messages == [f"{tmp_path / 'gone'}: there is no such file yet; unhealthy: none"]


def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = UnhealthyFile(str(tmp_path), lambda _: "")
    file._look()  # noqa: SLF001 - as the thread does each second
    file._look()  # noqa: SLF001 - as above
    assert caplog.messages == [f"{tmp_path} cannot be read: Is a directory"]


def test_a_plugin_makes_exactly_the_named_devices_unhealthy() -> None:
    plugin = SimulatedPlugin("example.com/gpu", simulated_devices("gpu", 3, unhealthy=(0,)))
    commands = _Commands(plugin, "gpu")
    assert commands.make_unhealthy(frozenset({"gpu-1", "2"})) == "unhealthy: gpu-1, gpu-2"
    assert [one.health for one in plugin.devices()] == [Health.HEALTHY, Health.UNHEALTHY, Health.UNHEALTHY]
    said = commands.make_unhealthy(frozenset({"gpu-9"}))
    assert said == "unhealthy: none; there is no device gpu-9: the 3 devices are gpu-0 to gpu-2"
    assert {one.health for one in plugin.devices()} == {Health.HEALTHY}


def test_a_driver_makes_a_device_unhealthy_with_its_parts(tmp_path: Path) -> None:
    driver = SimulatedDriver("gpu.example.com", "node-1", (), MemoryClaims(), state_directory=tmp_path)
    reports: list[dict[str, DraHealth]] = []
    offered = _Offered(
        driver, lambda rows: reports.append({one.device: one.health for one in rows}), lambda _devices: None, parts=2
    )
    offered.show(2, frozenset())
    assert offered.make_unhealthy(frozenset({"dev-1", "mig"})) == (
        "unhealthy: dev-1; there is no device mig: the driver has 2 devices, numbered from 0"
    )
    unhealthy = [name for name, health in reports[-1].items() if health is DraHealth.UNHEALTHY]
    assert unhealthy == ["dev-1", "dev-1-part-0", "dev-1-part-1"]
    assert driver.devices == ("dev-0", "dev-0-part-0", "dev-0-part-1", *unhealthy)


def test_a_device_and_its_parts_consume_the_same_counters() -> None:
    rows = {one.name: one.as_json() for one in published(["dev-0"], parts=7)}
    consumed = {
        name: row["consumesCounters"][0]["counters"]["parts"]["value"]  # type: ignore[index]  # JSON
        for name, row in rows.items()
    }
    assert consumed == {"dev-0": "7", **{f"dev-0-part-{number}": "1" for number in range(7)}}
    assert counters(["dev-0"], 7) == ({"name": "dev-0-counters", "counters": {"parts": {"value": "7"}}},)
    assert counters(["dev-0"], 0) == ()
