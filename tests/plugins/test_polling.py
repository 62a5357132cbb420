"""Plugins that poll their devices."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Queue

import pytest
from attrs import evolve
from devicecore_tools.testing.kubelet import MemoryKubelet

from devicecore import ContainerAllocateResponse, Device, DeviceId, Health, NumaNode, resource_name
from devicecore.plugins.directory import DirectoryPlugin
from devicecore.plugins.polling import PollingPlugin
from devicecore.runtime import background
from tests.adapters.peers import deep_tree, wait_until

CHIP = resource_name("acme.io/chip")


class Chips(PollingPlugin):
    resource = CHIP
    poll_interval = 0.01

    def __init__(self) -> None:
        self.found = [Device(DeviceId("c0")), Device(DeviceId("c1"))]
        self.problem: Exception | None = None

    def devices(self) -> Sequence[Device]:
        if self.problem is not None:
            raise self.problem
        return list(self.found)

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        return ContainerAllocateResponse()


def test_a_change_of_health_or_topology_is_reported_and_nothing_else(memory_kubelet: MemoryKubelet) -> None:
    chips = Chips()
    reports: list[None] = []
    end = chips.subscribe(lambda: reports.append(None))
    served = memory_kubelet.serve(chips)
    memory_kubelet.wait_for_counts(CHIP, 2)
    assert reports == []
    chips.found[1] = evolve(chips.found[1], health=Health.UNHEALTHY)
    memory_kubelet.wait_for_device(CHIP, "c1", Health.UNHEALTHY)
    chips.found[0] = evolve(chips.found[0], topology=(NumaNode(1),))
    wait_until(lambda: memory_kubelet.devices(CHIP)[0].topology == (NumaNode(1),), "the topology is reported")
    end()
    served.stop()


class SlowChips(Chips):
    """A plugin in which each poll except the first waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.looking: Queue[threading.Thread] = Queue()
        self.go_on = threading.Event()

    def devices(self) -> Sequence[Device]:
        if threading.current_thread() is not threading.main_thread():
            self.looking.put(threading.current_thread())
            self.go_on.wait(60)
        return super().devices()


def test_a_poll_that_is_under_way_when_the_subscription_ends_reports_nothing() -> None:
    chips = SlowChips()
    reports: list[None] = []
    end = chips.subscribe(lambda: reports.append(None))
    thread = chips.looking.get(timeout=60)
    end()
    chips.found.pop()
    chips.go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert reports == []


def test_a_poll_that_fails_is_logged_and_the_next_ones_go_on(
    memory_kubelet: MemoryKubelet, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "FIRST_PAUSE", 0.01)
    chips = Chips()
    served = memory_kubelet.serve(chips)
    memory_kubelet.wait_for_counts(CHIP, 2)
    chips.problem = OSError("the bus is gone")
    wait_until(lambda: [r for r in caplog.records if r.levelno == logging.ERROR], "it is logged")
    chips.found.pop()
    chips.problem = None
    memory_kubelet.wait_for_counts(CHIP, 1)
    served.stop()


def test_a_deep_tree_does_not_end_a_directory_plugin(memory_kubelet: MemoryKubelet, tmp_path: Path) -> None:
    with deep_tree(tmp_path):
        served = memory_kubelet.serve(DirectoryPlugin(CHIP, tmp_path, poll_interval=0.01))
        (tmp_path / "d" / "d" / "chip").touch()
        memory_kubelet.wait_for_counts(CHIP, 1)
        assert [device.id for device in memory_kubelet.devices(CHIP)] == ["d/d/chip"]
        served.stop()
