"""`NodeEngine`: pods from manifests that appear and disappear, and the device manager."""

import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.command.node import GPU, NIC, PATIENCE, Node

from devicecore.adapters.memory import MemoryStore
from devicecore.adapters.pod_resources import list_pods
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.model import Container, Device, DeviceId, Health, PluginOptions, Pod, PodUid
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices


class CountingPlugin(SimulatedPlugin):
    """A plugin that counts its Allocate calls, and can be told to refuse them or to leave them unanswered."""

    def __init__(self, resource: str, devices: Sequence[Device]) -> None:
        super().__init__(resource, devices)
        self.calls = 0
        self.refuses = False
        self.answers = threading.Event()
        self.answers.set()

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        self.calls += 1
        self.answers.wait(PATIENCE)
        if self.refuses:
            raise ValueError("not today")
        return super().allocate(devices)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        yield node


def test_whatever_is_awaited_is_named(tmp_path: Path) -> None:
    store = MemoryStore()
    with Node(tmp_path, store) as node:
        node.transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 2)))
        node.manager.admit(Pod(PodUid("u"), name="p", containers=(Container("main", {GPU: 1}),)))
    with Node(tmp_path, store) as node:
        node.write("train")
        awaited = f"the plugin for {GPU}, which was registered before the restart"
        assert node.engine.state().waits_for == (awaited, "the manifests, which have not been read")
        state = node.wait_for_phases(train="Running")
        while state.waits_for != (awaited,):  # until the manifests count as read, and no release is in progress
            state = node.turn()


def test_a_pod_whose_containers_cannot_start_is_listed_with_its_devices(node: Node) -> None:
    class Stubborn(SimulatedPlugin):
        options = PluginOptions(pre_start_required=True)

        def pre_start_container(self, devices: object) -> None:
            raise ValueError("not today")

    node.transport.connect(Stubborn(GPU, simulated_devices("gpu", 2)))
    node.write("train", gpu=1)
    node.turn()
    while "cannot start" not in (pod := node.turn().pods[0]).reason:
        pass
    assert pod.phase == "Pending"
    assert re.fullmatch("container main cannot start: .* not today", pod.reason)
    (listed,) = list_pods(node.engine.snapshot()).pod_resources
    assert [list(device.device_ids) for device in listed.containers[0].devices] == [["gpu-0"]]


def test_forty_pods_that_wait_for_a_stopped_plugin_delay_no_other_plugins_pod(node: Node) -> None:
    hung = CountingPlugin(GPU, simulated_devices("gpu", 40))
    hung.answers.clear()
    node.transport.connect(hung)
    node.transport.connect(SimulatedPlugin(NIC, simulated_devices("nic", 1)))
    for number in range(40):
        node.write(f"hung-{number}", gpu=1)
    while not hung.calls:
        node.turn()
    node.write("other", nic=1)
    node.wait_for_phases(other="Running")
    assert hung.calls == 1
    hung.answers.set()
    assert node.wait_until_settled().is_good


def test_the_plugin_is_called_once_for_each_of_thirty_refused_pods(node: Node) -> None:
    plugin = CountingPlugin(GPU, simulated_devices("gpu", 30))
    plugin.refuses = True
    node.transport.connect(plugin)
    for number in range(30):
        node.write(f"refused-{number}", gpu=1)
    state = node.wait_until_settled()
    assert {pod.reason for pod in state.pods} == {"not today"}
    assert plugin.calls == 30
    for _ in range(20):
        node.engine.tick()
        node.turn()
    node.wait_until_settled()
    assert plugin.calls == 30


@pytest.mark.parametrize("change", ["another list", "another instance", "a device that is freed"])
def test_a_refused_pod_is_tried_again_after_a_change_that_may_alter_the_answer(node: Node, change: str) -> None:
    plugin = CountingPlugin(GPU, simulated_devices("gpu", 4))
    connection = node.transport.connect(plugin)
    node.write("holder", gpu=1)
    node.wait_for_phases(holder="Running")
    plugin.refuses = True
    node.write("refused", gpu=1)
    node.wait_until_settled()
    plugin.refuses = False
    if change == "another list":
        plugin.set_devices(simulated_devices("gpu", 5))
    elif change == "another instance":
        connection.disconnect()
        node.transport.connect(plugin)
    else:
        (node.manifests / "holder.yaml").unlink()
    node.wait_for_phases(refused="Running")


def test_a_change_of_another_resource_causes_no_new_attempt(node: Node) -> None:
    plugin = CountingPlugin(GPU, simulated_devices("gpu", 4))
    plugin.refuses = True
    node.transport.connect(plugin)
    node.write("refused", gpu=1)
    node.wait_until_settled()
    node.transport.connect(SimulatedPlugin(NIC, simulated_devices("nic", 1)))
    node.write("other", nic=1)
    node.wait_for_phases(other="Running")
    node.wait_until_settled()
    assert plugin.calls == 1


def test_a_pod_that_does_not_fit_runs_as_soon_as_enough_is_free(node: Node) -> None:
    plugin = CountingPlugin(GPU, simulated_devices("gpu", 4))
    node.transport.connect(plugin)
    for name in ("a", "b"):
        node.write(name, gpu=2)
    node.wait_for_phases(a="Running", b="Running")
    node.write("big", gpu=4)
    state = node.wait_until_settled()
    assert "requested number of devices unavailable" in state.pods[-1].reason
    (node.manifests / "a.yaml").unlink()
    assert node.wait_until_settled().pods[-1].phase == "Pending"
    (node.manifests / "b.yaml").unlink()
    node.wait_for_phases(big="Running")
    assert plugin.calls == 3


def test_a_changed_pod_of_the_same_uid_is_released_before_it_is_admitted_again(node: Node) -> None:
    node.transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 2)))
    text = (
        "{{apiVersion: v1, kind: Pod, metadata: {{name: a, uid: u}},\n"
        "spec: {{containers: [{{name: main, resources: {{limits: {{acme.io/gpu: {count}}}}}}}]}}}}"
    )
    for count in (1, 2, 1):
        (node.manifests / "a.yaml").write_text(text.format(count=count))
        node.turn()
        node.wait_for_phases(a="Running")
        node.wait_until_settled()
        assert len(node.manager.state.ledger.in_use(GPU)) == count  # type: ignore[arg-type] # a name we know


def test_pods_are_in_natural_order(node: Node) -> None:
    for name in ("a10", "a9", "b", "a1"):
        node.write(name)
    state = node.wait_until_settled()
    assert [pod.name for pod in state.pods] == ["default/a1", "default/a9", "default/a10", "default/b"]


def test_a_disk_that_hangs_delays_no_pod_without_devices(tmp_path: Path) -> None:
    class HangingStore(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.works = threading.Event()
            self.works.set()

        def save(self, blob: bytes) -> None:
            self.works.wait(PATIENCE)
            super().save(blob)

    store = HangingStore()
    with Node(tmp_path, store) as node:
        node.transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 2)))
        node.write("holder", gpu=1)
        node.wait_for_phases(holder="Running")
        store.works.clear()
        (node.manifests / "holder.yaml").unlink()
        node.turn()
        node.engine.tick()
        node.write("plain")
        node.wait_for_phases(plain="Running")
        (node.manifests / "plain.yaml").unlink()
        node.turn()
        node.write("plain")  # the new pod has the same UID, so it waits until the earlier pod is released
        node.wait_for_phases(plain="Running")
        store.works.set()
        node.wait_until_settled()


@pytest.mark.parametrize("changes", [1, 2, 3, 4, 5, 8])
def test_the_version_differs_after_any_number_of_changes(changes: int, node: Node) -> None:
    """New values may have the same `id` as earlier values that no longer exist."""
    plugin = SimulatedPlugin(GPU, simulated_devices("gpu", 8))
    node.transport.connect(plugin)
    for turn in range(40):
        version, seen = node.engine.version, node.manager.status
        assert node.engine.version == version
        for change in range(changes):
            healthy = (turn + 3 + change) % 7
            plugin.set_devices(
                Device(DeviceId(f"gpu-{number}"), Health.HEALTHY if number < healthy else Health.UNHEALTHY)
                for number in range(8)
            )
        assert node.manager.status == seen or node.engine.version != version
