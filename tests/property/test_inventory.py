"""The laws of `domain/inventory.py`.

"An event from one plugin instance never changes what another instance reported. A resource is served by the instance
that registered last. If that instance disconnects, the instance that registered last among those still connected serves
the resource with its own devices."
"""

from collections.abc import Sequence

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from devicecore.domain.checks import received
from devicecore.domain.device_set import DeviceIndex
from devicecore.domain.errors import PluginAlreadyConnectedError
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered
from devicecore.domain.inventory import GRACE_PERIOD, DeviceReport, Inventory, Phase, Resource
from devicecore.domain.model import Device, Health, NumaNode, PluginId, PluginOptions, ResourceName
from devicecore.testing.strategies import RESOURCES, device_lists, plugin_events

GPU, RDMA = RESOURCES
NOBODY = PluginId(GPU, "nobody.sock", 1000)


def after(events: Sequence[Event], *, now: float = 0.0, inventory: Inventory | None = None) -> Inventory:
    """Return an inventory after `events`, all of which happen at `now`."""
    inventory = Inventory() if inventory is None else inventory
    for event in events:
        match event:
            case PluginRegistered(plugin, options):
                inventory = inventory.connect(plugin, options)
            case DevicesReported(plugin, devices):
                inventory = inventory.report(plugin, devices)
            case PluginLost(plugin):
                inventory = inventory.disconnect(plugin, now)
            case _:
                pass
    return inventory


@define
class NaiveResource:
    """A resource's live instances in order, each with its last list, and the devices that count at the moment."""

    live: dict[PluginId, tuple[Device, ...] | None] = field(factory=dict)
    believed: tuple[Device, ...] | None = None

    def hear(self, event: Event) -> None:
        match event:
            case PluginRegistered(plugin, _):
                self.live[plugin] = None
            case DevicesReported(plugin, devices) if plugin in self.live:
                self.live[plugin] = tuple(devices)
            case PluginLost(plugin) if plugin in self.live:
                del self.live[plugin]
            case _:
                return
        latest = [devices for devices in self.live.values() if devices is not None]
        self.believed = latest[-1] if latest else self.believed
        if self.believed and not self.live:
            self.believed = tuple(received(Device, one.id, Health.UNHEALTHY, one.topology) for one in self.believed)


@given(plugin_events(max_size=12))
def test_an_inventory_says_what_counting_the_events_says(events: tuple[Event, ...]) -> None:
    """The latest instance counts, and then the previous one. Events from vanished instances change nothing."""
    naive = {resource: NaiveResource() for resource in RESOURCES}
    for event in events:
        assert isinstance(event, PluginRegistered | DevicesReported | PluginLost)
        naive[event.plugin.resource].hear(event)
    inventory = after(events)
    for name, expected in naive.items():
        resource = inventory.resources.get(name, Resource(name))
        assert [plugin.id for plugin in resource.plugins] == list(expected.live)
        assert not expected.live or (resource.plugin and resource.plugin.id == list(expected.live)[-1])
        report = inventory.current_report(name)
        assert (report is None) == (expected.believed is None)
        if report is not None:
            believed = expected.believed or ()
            assert report.healthy == {device.id for device in believed if device.health is Health.HEALTHY}
            assert report.unhealthy == {device.id for device in believed if device.health is Health.UNHEALTHY}
            assert report.devices.keys() == {device.id for device in believed}


@given(plugin_events(max_size=12))
def test_an_event_of_one_instance_never_changes_another(events: tuple[Event, ...]) -> None:
    """The event changes neither the report and options of other instances nor other resources."""
    inventory = Inventory()
    for event in events:
        assert isinstance(event, PluginRegistered | DevicesReported | PluginLost)
        changed = after([event], inventory=inventory)
        for name, resource in inventory.resources.items():
            others = [plugin for plugin in resource.plugins if plugin.id != event.plugin]
            assert [plugin for plugin in changed.resources[name].plugins if plugin.id != event.plugin] == others
            if name != event.plugin.resource:
                assert changed.resources[name] is resource
        inventory = changed


@given(plugin_events(max_size=10), device_lists())
def test_events_of_an_instance_that_is_gone_are_ignored(events: tuple[Event, ...], devices: tuple[Device, ...]) -> None:
    """A late disconnect, a late list, and those of an unknown instance change nothing."""
    inventory = after(events)
    live = {plugin.id for resource in inventory.resources.values() for plugin in resource.plugins}
    seen = {event.plugin for event in events if isinstance(event, PluginRegistered)}
    for plugin in (seen | {NOBODY}) - live:
        assert inventory.disconnect(plugin, now=1.0) is inventory
        assert inventory.report(plugin, devices) is inventory


@given(plugin_events(max_size=10))
def test_a_heartbeat_changes_nothing(events: tuple[Event, ...]) -> None:
    """An equal list changes nothing, from any instance."""
    inventory = after(events)
    for resource in inventory.resources.values():
        for plugin in resource.plugins:
            if plugin.report is not None:
                again = inventory.report(plugin.id, plugin.report.devices.values())
                assert again == inventory
                assert again.status() == inventory.status()


@given(plugin_events(max_size=10))
def test_a_live_instance_on_the_same_socket_keeps_its_place(events: tuple[Event, ...]) -> None:
    """The socket of a live instance cannot be registered again, but that of an instance that is gone can."""
    inventory = after(events)
    for resource in inventory.resources.values():
        for plugin in resource.plugins:
            newcomer = PluginId(resource.name, plugin.id.socket, 1000)
            with pytest.raises(PluginAlreadyConnectedError):
                inventory.connect(newcomer, PluginOptions())
            freed = inventory.disconnect(plugin.id, now=0.0).connect(newcomer, PluginOptions())
            assert [known.id for known in freed.resources[resource.name].plugins][-1] == newcomer


@given(plugin_events(max_size=10), st.floats(0, 1000), st.floats(0, 1000))
def test_a_resource_outlives_plugins_by_the_grace_period(events: tuple[Event, ...], gone: float, later: float) -> None:
    """Capacity stays and allocatable is 0 until the grace period is over. Then the resource is removed, once."""
    inventory = after(events, now=gone)
    abandoned = sorted(name for name, resource in inventory.resources.items() if not resource.plugins)
    for name in abandoned:
        report = inventory.current_report(name)
        assert report is None or not report.healthy
    removed, left = inventory.expire(gone + later)
    if gone + later - gone > GRACE_PERIOD:
        assert list(removed) == [name for name in abandoned if inventory.current_report(name) is not None]
        assert left.resources.keys() == inventory.resources.keys() - set(abandoned)
    else:
        assert removed == ()
        assert left is inventory
    assert left.expire(gone + later) == ((), left)
    assert all(left.resources[name] is inventory.resources[name] for name in left.resources)


@given(plugin_events(max_size=10))
def test_losing_a_plugin_never_changes_capacity(events: tuple[Event, ...]) -> None:
    """The devices of a lost plugin still count as capacity. Only a list changes their number."""
    inventory = after(events)
    for resource in inventory.resources.values():
        if len(resource.plugins) == 1:
            lost = inventory.disconnect(resource.plugins[0].id, now=0.0)
            assert lost.status().capacity == inventory.status().capacity
            assert lost.status().allocatable.get(resource.name, 0) == 0


@given(plugin_events(max_size=10, lists=device_lists(unique=False)))
def test_allocatable_is_part_of_capacity(events: tuple[Event, ...]) -> None:
    """Allocatable and capacity have the same resources, and 0 <= allocatable <= capacity.

    A list may have a device twice.
    """
    status = after(events).status()
    assert status.allocatable.keys() == status.capacity.keys()
    assert all(0 <= status.allocatable[name] <= status.capacity[name] for name in status.capacity)


@given(st.sets(st.sampled_from(RESOURCES)), plugin_events(max_size=10))
def test_what_is_expected_never_hides_what_is_there(expected: set[ResourceName], events: tuple[Event, ...]) -> None:
    """Expected resources are awaited, and have no devices, until a plugin reports a list.

    The report is then the same as for a resource that was not expected.
    """
    awaiting = Inventory().expect(expected, now=0.0)
    assert all(resource.awaited for resource in awaiting.resources.values())
    assert awaiting.status().capacity == dict.fromkeys(expected, 0)
    reported = {event.plugin.resource for event in events if isinstance(event, DevicesReported)}
    heard, alone = after(events, inventory=awaiting), after(events)
    for name, resource in heard.resources.items():
        assert resource.awaited == (name in expected and alone.current_report(name) is None)
        if name in reported and not resource.awaited:
            assert resource.report == alone.current_report(name)


@given(device_lists(unique=False), device_lists())
def test_a_report_is_the_same_on_any_index(devices: tuple[Device, ...], others: tuple[Device, ...]) -> None:
    index = DeviceIndex.of([device.id for device in others])
    report = DeviceReport.of(devices, index)
    assert report == DeviceReport.of(devices)
    assert report.healthy.index is report.unhealthy.index
    assert (report.index is index) == index.knows([device.id for device in devices])


@given(device_lists(unique=False))
def test_a_report_is_its_list(devices: tuple[Device, ...]) -> None:
    """Every listed device is known, as healthy or unhealthy if any mention says so, on the last mention's nodes."""
    report = DeviceReport.of(devices)
    assert report.devices == {device.id: device for device in devices}
    assert report.healthy == {device.id for device in devices if device.health is Health.HEALTHY}
    assert report.unhealthy == {device.id for device in devices if device.health is Health.UNHEALTHY}
    nodes = {node for device in report.devices.values() for node in device.numa_nodes}
    assert list(report.by_numa_node) == sorted(nodes)
    assert report.has_topology == bool(nodes)
    for node in (*nodes, NumaNode(99)):
        on_it = {device.id for device in report.devices.values() if node in device.numa_nodes}
        assert report.touching([node]) == on_it == report.by_numa_node.get(node, set())
    assert report.touching(nodes) == {device.id for device in report.devices.values() if device.numa_nodes}


@given(plugin_events(), st.booleans())
def test_a_phase_says_what_the_fields_say(events: Sequence[Event], expected: bool) -> None:
    """A resource is awaited, registered until the first list, served while a plugin is connected, and then gone."""
    before = Inventory().expect(RESOURCES, now=0.0) if expected else Inventory()
    for resource in after(events, inventory=before).resources.values():
        assert (resource.phase is Phase.AWAITED) == resource.awaited
        assert (resource.phase is Phase.REGISTERED) == (resource.report is None)
        if resource.phase in {Phase.SERVED, Phase.GONE}:
            assert (resource.phase is Phase.SERVED) == bool(resource.plugins)
