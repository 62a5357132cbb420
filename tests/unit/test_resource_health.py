"""Resource health and its notifications, against the kubelet's cases (kubelet.md 10.4)."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field

from devicecore import Admitted, Container, Device, DeviceId, DeviceManager, Health, Pod, PodUid
from devicecore.adapters.memory import MemoryConnection, MemoryPods, MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.checkpoint import CheckpointWriter
from devicecore.domain.health import allocated_resources_status, changed_health
from devicecore.domain.inventory import DeviceReport, Inventory
from devicecore.domain.ledger import Allocation, Ledger
from devicecore.domain.model import ContainerKey, PluginId, PluginOptions, Receipt, ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.domain.notifications import Allocated, HealthChanged, Notification, Released
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.ports.store import CheckpointStore
from devicecore.testing.faults import DISK_FULL, FaultyStore, Script
from tests.recorded import cases

GPU = ResourceName("acme.io/gpu")
ROWS = {row["id"]: row for row in cases("resource_health")}
STATUS_ROWS = [name for name, row in ROWS.items() if "expected" in row]


def allocation(pod: str, resource: str, *devices: str, container: str = "c") -> Allocation:
    key = ContainerKey(PodUid(pod), container)
    return Allocation(key, ResourceName(resource), {DeviceId(device): () for device in devices}, Receipt(b""))


def report(*devices: tuple[str, str]) -> DeviceReport:
    return DeviceReport.of(Device(DeviceId(id_), Health.parse(health)) for id_, health in devices)


@pytest.mark.parametrize("name", STATUS_ROWS)
def test_the_status_of_allocated_resources_is_the_kubelets(name: str) -> None:
    row = ROWS[name]
    ledger = Ledger.of(
        allocation(held["pod"], held["resource"], *held["devices"]["0"], container=held["container"])
        for held in row["stored"]
    )
    inventory = Inventory()
    for resource, devices in row["reported"].items():
        plugin = PluginId(ResourceName(resource), "p.sock", 1)
        listed = [Device(DeviceId(one["id"]), Health.parse(one["health"])) for one in devices]
        inventory = inventory.connect(plugin, PluginOptions()).report(plugin, listed)
    pod = Pod(PodUid(row["stored"][0]["pod"]), containers=tuple(map(Container, row["container_statuses"])))
    assert {
        container: [
            {
                "name": one.resource,
                "resources": [{"resourceID": id_, "health": health.value} for id_, health in one.devices.items()],
            }
            for one in found
        ]
        for container, found in allocated_resources_status(NodeState(inventory, ledger), pod).items()
    } == row["expected"]


def changed(device: str, health: Health, *pods: str) -> HealthChanged:
    return HealthChanged(ResourceName(GPU), DeviceId(device), health, tuple(map(PodUid, pods)))


def test_a_device_with_two_owners_names_both_pods() -> None:
    ledger = Ledger.of([allocation("a", GPU, "dev0"), allocation("b", GPU, "dev0", "dev1")])
    after = report(("dev0", "Unhealthy"), ("dev1", "Healthy"))
    found = changed_health(GPU, report(("dev0", "Healthy"), ("dev1", "Healthy")), after, ledger)
    assert found == (changed("dev0", Health.UNHEALTHY, "a", "b"),)


def test_the_notifications_match_the_kubelets_channel() -> None:
    """This is the kubelet's TestFeatureGateResourceHealthStatus, except that no message is ever dropped here."""
    ledger = Ledger.of(allocation(f"pod{n}", GPU, f"dev{n}") for n in range(50))
    before = report(*((f"dev{n}", "Healthy") for n in range(50)))
    for _ in range(50):
        after = report(("dev1", "Healthy"))
        assert changed_health(GPU, before, after, ledger) == ()
        before = after
    notified: list[HealthChanged] = []
    for n in range(50):
        after = report((f"dev{n}", "Unhealthy"))
        notified += changed_health(GPU, before, after, ledger)
        before = after
    assert notified == [changed(f"dev{n}", Health.UNHEALTHY, f"pod{n}") for n in range(50)]


def test_only_holders_of_the_devices_of_this_resource_are_notified() -> None:
    """Up to 1.36, a kubelet compares only ids (kubernetes#140323; the case is in pod_devices.json)."""
    ledger = Ledger.of([allocation("a", GPU, "dev0"), allocation("b", "acme.io/nic", "dev0")])
    assert changed_health(GPU, None, report(("dev0", "Unhealthy")), ledger) == (changed("dev0", Health.UNHEALTHY, "a"),)
    assert changed_health(GPU, report(("dev0", "Healthy")), None, ledger) == ()


# --- the stream -------------------------------------------------------------------------------------------------------


@define
class Log:
    """An observer that records each notification with the store's content at that time."""

    store: CheckpointStore
    records: list[tuple[Notification, bytes | None]] = field(factory=list)

    def __call__(self, notification: Notification) -> None:
        self.records.append((notification, self.store.load()))

    @property
    def notifications(self) -> list[Notification]:
        return [notification for notification, _ in self.records]


@define
class Setup:
    """An in-memory manager with an observer."""

    plugin: SimulatedPlugin = field(factory=lambda: SimulatedPlugin(GPU, simulated_devices("gpu", 4)))
    store: CheckpointStore = field(factory=MemoryStore)
    pods: MemoryPods | None = None

    def start(self, *observers: Callable[[Notification], None]) -> tuple[DeviceManager, MemoryConnection, Log]:
        log = Log(self.store)
        transport = MemoryTransport()
        manager = DeviceManager(transport, self.store, MemorySink(), pods=self.pods, observers=(*observers, log))
        manager.start()
        return manager, transport.connect(self.plugin), log


def pod(name: str, *sizes: int) -> Pod:
    containers = tuple(Container(f"c{n}", {GPU: size}) for n, size in enumerate(sizes))
    return Pod(PodUid(name), name=name, containers=containers)


def held(manager: DeviceManager, name: str) -> tuple[Allocation, ...]:
    return manager.state.ledger.allocations[PodUid(name)]


def test_observers_get_allocations_after_the_save_and_releases_before_it() -> None:
    manager, _, log = Setup().start()
    assert isinstance(manager.admit(pod("a", 1, 2)), Admitted)
    first, second = held(manager, "a")
    with_it = CheckpointWriter().file(manager.state)
    manager.evict([PodUid("a"), PodUid("stranger")])
    manager.evict([PodUid("a")])
    assert log.records == [
        (Allocated(PodUid("a"), first), with_it),
        (Allocated(PodUid("a"), second), with_it),
        (Released(PodUid("a"), first), with_it),
        (Released(PodUid("a"), second), with_it),
    ]
    assert log.store.load() != with_it


def test_restored_allocations_are_notified_again_and_then_released() -> None:
    setup = Setup()
    manager, _, _ = setup.start()
    manager.admit(pod("a", 1))
    manager.admit(pod("b", 1))
    (of_a,), (of_b,) = held(manager, "a"), held(manager, "b")
    setup.pods = MemoryPods(active={PodUid("b")})
    manager, _, log = setup.start()
    assert log.notifications[:2] == [Allocated(PodUid("a"), of_a), Allocated(PodUid("b"), of_b)]
    manager.update_allocated_devices()
    assert log.notifications[-1] == Released(PodUid("a"), of_a)


def test_a_refused_pod_is_not_notified_and_a_repeated_one_is_notified_once() -> None:
    manager, _, log = Setup().start()
    manager.admit(pod("a", 3))
    manager.admit(pod("a", 3))
    manager.admit(pod("b", 1, 1))
    assert [one.pod for one in log.notifications if isinstance(one, Allocated)] == ["a"]


def test_observers_are_not_notified_of_an_allocation_that_is_not_saved() -> None:
    script = Script()
    script.always("save", DISK_FULL)
    manager, _, log = Setup(store=FaultyStore(MemoryStore(), script)).start()
    assert not isinstance(manager.admit(pod("a", 1)), Admitted)
    assert log.notifications == []


def test_a_pod_evicted_while_it_is_admitted_ends_as_released() -> None:
    """The eviction comes between the commit and the notification, but the last notification tells the truth."""
    managers: list[DeviceManager] = []

    def evict(notification: Notification) -> None:
        if isinstance(notification, Allocated):
            other = threading.Thread(target=lambda: managers[0].evict([notification.pod]))
            other.start()
            other.join()  # if a lock were held, this call would never end

    manager, _, log = Setup().start(evict)
    managers.append(manager)
    manager.admit(pod("a", 1))
    assert isinstance(log.notifications[-1], Released)
    assert log.notifications[-1].pod == "a"


def test_the_pods_whose_devices_change_their_health_are_named() -> None:
    manager, connection, log = Setup().start()
    manager.admit(pod("a", 2))
    manager.admit(pod("b", 1))
    log.records.clear()
    plugin: Any = connection.plugin
    plugin.set_health("gpu-3", Health.UNHEALTHY)  # no pod holds this device
    connection.report()
    assert log.notifications == []
    plugin.set_health("gpu-1", Health.UNHEALTHY)
    assert log.notifications == [changed("gpu-1", Health.UNHEALTHY, "a")]
    status = allocated_resources_status(manager.state, pod("a", 2))
    assert [health for one in status["c0"] for health in one.devices.values()] == [Health.HEALTHY, Health.UNHEALTHY]
    log.records.clear()
    connection.disconnect()
    assert log.notifications == []  # a plugin that disconnects says nothing about its devices
    assert allocated_resources_status(manager.state, pod("a", 2)) == status


def test_after_a_restart_the_first_list_is_notified() -> None:
    setup = Setup()
    manager, _, _ = setup.start()
    manager.admit(pod("a", 1))
    _, _, log = setup.start()
    assert log.notifications[1:] == [changed("gpu-0", Health.HEALTHY, "a")]


def test_init_containers_have_no_status() -> None:
    node = NodeState(Inventory(), Ledger.of([allocation("a", GPU, "gpu-0", container="setup")]))
    assert allocated_resources_status(node, Pod(PodUid("a"), init_containers=(Container("setup"),))) == {}


def test_a_pod_admitted_while_others_are_released_is_released_with_them() -> None:
    """An observer admits the pod `late` when `a` is released, and the same eviction then releases `late`, too."""
    managers: list[DeviceManager] = []

    def admit(notification: Notification) -> None:
        if isinstance(notification, Released) and notification.pod == "a":
            managers[0].admit(pod("late", 2))

    manager, _, log = Setup().start(admit)
    managers.append(manager)
    manager.admit(pod("a", 1))
    manager.evict([PodUid("a"), PodUid("late")])
    ends = [one for one in log.notifications if isinstance(one, Released)]
    assert [(one.pod, len(one.allocation.device_ids)) for one in ends] == [("a", 1), ("late", 2)]
    assert not manager.state.ledger.allocations
