"""The live view: a function of a state and a size."""

from collections import UserList
from collections.abc import Iterator, Mapping

import pytest
from devicecore_tools.command.kubelet.view import listed, render
from devicecore_tools.node.state import KubeletState, PodState

from devicecore.adapters.manifests import ManifestError
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.admission import Admitted
from devicecore.domain.model import Container, Pod, PodUid
from devicecore.manager import DeviceManager
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices

GPU, NIC = "acme.io/gpu", "acme.io/nic"


class Node:
    """A manager with plugins in memory."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()
        self.manager = DeviceManager(self.transport, MemoryStore(), MemorySink())
        self.pods: list[PodState] = []

    def admit(self, name: str, limits: Mapping[str, int]) -> None:
        pod = Pod(PodUid(f"uid-{name}"), name=name, containers=(Container("main", limits),))
        verdict = self.manager.admit(pod)
        phase, reason = ("Running", "") if isinstance(verdict, Admitted) else ("Pending", str(verdict))
        self.pods.append(PodState(pod, phase, reason))

    def state(self, *problems: ManifestError) -> KubeletState:
        return KubeletState(self.manager.state, tuple(self.pods), problems)


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    with node.manager:
        yield node


def lines(state: KubeletState, *events: str, width: int = 100, height: int | None = None) -> list[str]:
    drawn = render(state, "node-1", events, width, height).plain.split("\n")
    assert height is None or len(drawn) <= height
    assert [line for line in drawn if len(line) > width] == []
    return drawn


def test_a_node_without_plugins_says_so(node: Node) -> None:
    assert "no plugin has registered yet" in lines(node.state())


def test_devices_owners_health_pods_problems_and_events_are_shown(node: Node) -> None:
    gpus = SimulatedPlugin(GPU, simulated_devices("gpu", 6, numa_nodes=[0, 1], unhealthy=[5]))
    connection = node.transport.connect(gpus)
    node.admit("train", {GPU: 2})
    node.admit("late", {GPU: 9})
    text = lines(node.state(ManifestError("bad.yaml", 3, "spec", "no")), "something happened")
    for line in (
        "acme.io/gpu  NUMA 0  2 free, 1 held of 3",
        "  a··",
        "acme.io/gpu  NUMA 1  1 free, 1 held, 1 unhealthy of 3",
        "  a·✗",
        "  unhealthy: gpu-5",
        "pods  1 Running, 1 Pending",
        "a default/train  main  acme.io/gpu: gpu-0, gpu-1",
        "1 manifest cannot be used",
        "bad.yaml:3: spec: no",
        "something happened",
    ):
        assert line in text, text
    assert any(line.startswith("b default/late   Pending: requested number of devices") for line in text)
    gpus.set_devices(())
    connection.disconnect()
    gone = lines(node.state())
    assert "acme.io/gpu has no plugin  0 free, 2 held, 2 listed by no plugin of 2" in gone
    assert "  ??" in gone


def test_two_times_64_devices_and_12_pods_fit_on_80_by_24(node: Node) -> None:
    devices = simulated_devices("gpu", 128, numa_nodes=[0, 1], unhealthy=[3, 120])
    node.transport.connect(SimulatedPlugin(GPU, devices))
    for number in range(12):
        node.admit(f"pod-{number}", {GPU: 5})
    text = lines(node.state(), *(f"event {number}" for number in range(8)), width=80, height=24)
    drawn = "".join(line for line in text if line.startswith("  ") and set(line) & set("·✗"))
    assert len(drawn.replace(" ", "")) == 128
    assert [line[0] for line in text if " default/pod-" in line] == list("abcdefghijkl")
    assert any(line.startswith("  unhealthy: gpu-3, gpu-120") for line in text)
    assert not any("more" in line for line in text)
    assert "event 7" in text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60), (20, 4), (1, 1)])
def test_what_does_not_fit_is_summarised_with_its_number(node: Node, width: int, height: int) -> None:
    node.transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 3000, numa_nodes=[0, 1], unhealthy=[7])))
    for number in range(60):
        node.admit(f"pod-{number}", {GPU: 2})
    text = lines(node.state(), "event", width=width, height=height)
    if width >= 40:
        assert sum("more" in line for line in text) >= 1
    if width >= 80:
        assert any("acme.io/gpu  NUMA 0  1,439 free, 61 held of 1,500" in line for line in text)
        assert any("unhealthy: gpu-7" in line for line in text)


class Counted(UserList[str]):
    """A list that counts how many of its items are read."""

    read = 0

    def __iter__(self) -> Iterator[str]:
        for item in self.data:
            self.read += 1
            yield item


def test_of_many_unhealthy_devices_no_more_are_read_than_fit() -> None:
    """A view of 10,000 unhealthy devices used to take 15 seconds, during which the kubelet did nothing else."""
    devices = Counted(f"gpu-{number}" for number in range(10_000))
    assert listed("unhealthy: ", devices, 40) == "unhealthy: gpu-0, gpu-1 and 9998 more"
    assert devices.read < 10
    assert listed("unhealthy: ", devices[:3], 31) == "unhealthy: gpu-0, gpu-1, gpu-2"
    assert listed("unhealthy: ", devices, 1) == "unhealthy: 10000 more"
    assert listed("unhealthy: ", [], 40) == "unhealthy: "


def test_more_than_eight_owners_have_different_letters(node: Node) -> None:
    node.transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 20)))
    for number in range(20):
        node.admit(f"pod-{number}", {GPU: 1})
    assert "  abcdefgh ijklmnop qrst" in lines(node.state())


def test_an_unhealthy_device_is_named_with_the_pod_that_holds_it(node: Node) -> None:
    plugin = SimulatedPlugin(GPU, simulated_devices("gpu", 300))
    node.transport.connect(plugin)
    node.admit("train", {GPU: 1})
    plugin.set_devices(simulated_devices("gpu", 300, unhealthy=range(200)))
    (named,) = (line for line in lines(node.state(), width=80) if "unhealthy: " in line)
    assert named.startswith("  unhealthy: gpu-0 (held by default/train), gpu-1, ")
    assert named.endswith(" more")


def test_untrusted_text_moves_no_cursor_and_fills_no_screen(node: Node) -> None:
    evil = "\x1b[2J\n" + "x" * 1_000_000
    node.transport.connect(SimulatedPlugin(GPU, simulated_devices(evil, 2, unhealthy=[1])))
    node.admit(evil, {GPU: 1})
    node.pods.append(PodState(Pod(PodUid("u"), name=evil), "Pending", evil))
    text = lines(node.state(ManifestError(evil, 1, evil, evil)), evil)
    assert "\x1b" not in "".join(text)
    assert len("".join(text)) < 10_000


def test_pods_of_one_job_are_distinguishable_at_80_columns(node: Node) -> None:
    node.transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 16)))
    for number in range(12):
        node.admit(f"llama-70b-pretraining-worker-{number}", {GPU: 1})
    names = [line[2:28] for line in lines(node.state(), width=80) if "\u2026" in line[2:28]]
    assert len(set(names)) == 12
    assert names[11] == "default/l\u2026aining-worker-11"
