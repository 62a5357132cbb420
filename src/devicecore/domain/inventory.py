"""What a node's plugins currently report: their devices, and the health of these devices.

Law: an event from one plugin instance never changes what another instance reported. A resource is served by the
instance that registered last. If that instance disconnects, the instance that registered last among those still
connected serves the resource with its own devices.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property

from attrs import evolve, field, frozen

from devicecore.domain.capacity import NodeStatus
from devicecore.domain.checks import expected
from devicecore.domain.device_list import DeviceList, DevicesById
from devicecore.domain.device_set import DeviceIndex, DeviceSet
from devicecore.domain.errors import PluginAlreadyConnectedError
from devicecore.domain.model import Device, DeviceId, Health, NumaNode, PluginId, PluginOptions, ResourceName
from devicecore.domain.text import counted, foreign_text

GRACE_PERIOD = 300.0
"""The number of seconds for which a disconnected plugin's devices count as capacity (kubelet: 5 minutes)."""


@frozen(repr=False, slots=False)  # with slots, cached properties need a slow `__getattr__`
class DeviceReport:
    """One complete list of devices (kubelet: `allDevices`, `healthyDevices`, `unhealthyDevices` of one resource).

    An id that is listed twice with different health is in both sets, as in a kubelet; `devices` has its last entry.
    """

    devices: DevicesById
    healthy: DeviceSet
    unhealthy: DeviceSet

    @classmethod
    def of(cls, devices: Iterable[Device], index: DeviceIndex | None = None) -> "DeviceReport":
        """Return the report for a plugin's device list.

        The report's sets use `index` if `index` contains all ids, otherwise an extended index.
        """
        listed = DeviceList.of(devices)
        by_id = listed.by_id
        index = index or DeviceIndex.of(by_id)
        absent = [device for device in index.ids if device not in by_id.states]
        if len(absent) + len(by_id) != len(index.ids):
            return cls.of(listed, index.covering(by_id))
        unhealthy = index.select(listed.ids_of(Health.UNHEALTHY))
        if unhealthy and len(by_id) != len(listed):  # an id is listed twice, perhaps with different health
            healthy = index.select(listed.ids_of(Health.HEALTHY))
        else:  # most devices are healthy, so subtracting the unhealthy devices is faster
            healthy = index.all - index.select(absent) - unhealthy
        return cls(by_id, healthy, unhealthy)

    def repeats(self, devices: Sequence[Device]) -> bool:
        """Return whether `devices` repeats the list of this report. Plugins repeat their list as a heartbeat."""
        if len(self.devices) != len(devices):
            return False
        mine, listed = self.devices.states, DeviceList.of(devices)
        return tuple(mine) == listed.ids and tuple(mine.values()) == listed.states

    def __repr__(self) -> str:
        return f"<DeviceReport: {counted(len(self.devices), 'device')}, {len(self.healthy):,} healthy>"

    @property
    def index(self) -> DeviceIndex:
        """The index that all sets of this report use."""
        return self.healthy.index

    @cached_property
    def healthy_ids(self) -> tuple[DeviceId, ...]:
        """The healthy devices, in natural order, as a checkpoint lists them."""
        return tuple(self.healthy)

    @cached_property
    def by_numa_node(self) -> Mapping[NumaNode, DeviceSet]:
        """The healthy and unhealthy devices on each NUMA node that has devices, in the order of the node numbers."""
        ids: dict[NumaNode, list[DeviceId]] = {}
        for device, (_, topology) in self.devices.states.items():
            for numa_node in topology or ():
                ids.setdefault(numa_node, []).append(device)
        return {numa_node: self.index.select(ids[numa_node]) for numa_node in sorted(ids)}

    @cached_property
    def numa_node_sizes(self) -> tuple[tuple[NumaNode, int], ...] | None:
        """The number of devices on each NUMA node, or None if a device is on several nodes: it would count twice."""
        sizes = tuple([(numa_node, len(devices)) for numa_node, devices in self.by_numa_node.items()])
        return sizes if sum([size for _, size in sizes]) == len(self.touching(self.by_numa_node)) else None

    @property
    def has_topology(self) -> bool:
        """Whether any device, healthy or not, is attached to a NUMA node (kubelet: `deviceHasTopologyAlignment`)."""
        return bool(self.by_numa_node)

    def touching(self, numa_nodes: Iterable[NumaNode]) -> DeviceSet:
        """Return the devices attached to at least one of `numa_nodes`."""
        touched = DeviceSet(self.index)
        for numa_node in numa_nodes:
            touched = touched | self.by_numa_node.get(numa_node, touched)
        return touched

    def all_unhealthy(self) -> "DeviceReport":
        """Return this report with all devices unhealthy. `devices` keeps the reported health (kubelet.md 3.5)."""
        return evolve(self, healthy=DeviceSet(self.index), unhealthy=self.healthy | self.unhealthy)


_NOTHING = DeviceReport.of(())


@frozen
class Plugin:
    """One plugin instance: its options, and its last report, which is None before its first list."""

    id: PluginId
    options: PluginOptions
    report: DeviceReport | None = None


class Phase(Enum):
    """The states of a resource from the registration of its first plugin to the end of its grace period."""

    AWAITED = "registered before a restart, and not reported since"
    REGISTERED = "a plugin has registered, but none has sent a list"
    SERVED = "a plugin is connected and has sent its list"
    GONE = "the last plugin has disconnected, and the grace period is running"


@frozen(repr=False)
class Resource:
    """One resource of the node.

    `plugins` are the connected instances, in order of registration. `report` is the current list: until a plugin's
    first list, it is None, or empty if the resource was known before a restart. `stopped` is the plugin that
    disconnected last, and `gone_since` is the time of the disconnection, or of the restart if no plugin has registered
    since (monotonic seconds); both are None while a plugin is connected. `awaited` is whether the resource was known
    before a restart and no plugin has reported it since. `plugin` is the connected instance that registered last, or if
    no instance is connected, the instance that disconnected last.
    """

    name: ResourceName
    plugins: tuple[Plugin, ...] = ()
    report: DeviceReport | None = None
    stopped: Plugin | None = None
    gone_since: float | None = None
    awaited: bool = False
    # computed once, because each admission needs it twice
    plugin: Plugin | None = field(init=False, eq=False, repr=False)

    def __repr__(self) -> str:
        return f"<Resource {foreign_text(self.name, 100)}: {self.phase.value}, {self.report!r}>"

    @plugin.default
    def _plugin(self) -> Plugin | None:
        return self.plugins[-1] if self.plugins else self.stopped

    @property
    def phase(self) -> Phase:
        """The phase of the resource, which follows from the other fields."""
        if self.awaited:
            return Phase.AWAITED
        if self.report is None:
            return Phase.REGISTERED
        return Phase.SERVED if self.plugins else Phase.GONE

    def expired(self, now: float) -> bool:
        """Return whether the resource has been without a plugin for longer than the grace period."""
        return not self.plugins and (self.gone_since is None or now - self.gone_since > GRACE_PERIOD)


@frozen(repr=False)
class Inventory:
    """All resources of a node that plugins have registered, now or within the grace period.

    `former` contains the last reports of expired resources.
    """

    resources: Mapping[ResourceName, Resource] = field(factory=dict)
    former: Mapping[ResourceName, DeviceReport] = field(factory=dict)

    def __repr__(self) -> str:
        devices = sum(len(resource.report.devices) for resource in self.resources.values() if resource.report)
        return f"<Inventory: {counted(devices, 'device')} of {counted(len(self.resources), 'resource')}>"

    def current_report(self, name: ResourceName) -> DeviceReport | None:
        """Return a resource's current report, or None if the resource has expired or no plugin has ever sent a list."""
        resource = self.resources.get(name)
        return resource.report if resource else None

    def last_report(self, name: ResourceName) -> DeviceReport | None:
        """Return a resource's current report, or the last one before it expired, or None (kubelet.md 3.6).

        Containers may still hold devices of an expired resource.

        Raises TypeError if `name` is not a string but, for example, a plugin.
        """
        if not isinstance(name, str):
            raise TypeError(expected("Inventory.last_report", "the name of a resource, such as example.com/gpu", name))
        return self.current_report(name) or self.former.get(name)

    def connect(self, id_: PluginId, options: PluginOptions) -> "Inventory":
        """Make a newly registered plugin instance serve its resource (kubelet: `PluginConnected`).

        The devices do not change until the instance sends its first list. Raises PluginAlreadyConnectedError if another
        instance is connected over the same socket.
        """
        resource = self.resources.get(id_.resource, Resource(id_.resource))
        if any(plugin.id.socket == id_.socket for plugin in resource.plugins):
            raise PluginAlreadyConnectedError(id_.resource, id_.socket)
        plugins = (*resource.plugins, Plugin(id_, options))
        return self._with(evolve(resource, plugins=plugins, stopped=None, gone_since=None))

    def report(self, id_: PluginId, devices: Iterable[Device], index: DeviceIndex | None = None) -> "Inventory":
        """Replace a plugin instance's list. If the instance is not connected, nothing changes."""
        resource = self.resources.get(id_.resource)
        if resource is None or not any(plugin.id == id_ for plugin in resource.plugins):
            return self
        report = DeviceReport.of(devices, index)
        plugins = tuple(evolve(plugin, report=report) if plugin.id == id_ else plugin for plugin in resource.plugins)
        return self._with(evolve(resource, plugins=plugins, report=_current_list(plugins, report), awaited=False))

    def is_repeated(self, id_: PluginId, devices: Sequence[Device]) -> bool:
        """Return whether `devices` is a repetition of the current list by the instance that serves the resource."""
        resource = self.resources.get(id_.resource)
        if resource is None or resource.report is None or not resource.plugins or resource.awaited:
            return False
        plugin = resource.plugins[-1]
        return plugin.id == id_ and plugin.report is resource.report and resource.report.repeats(devices)

    def disconnect(self, id_: PluginId, now: float) -> "Inventory":
        """Remove a plugin instance that has disconnected (kubelet: `PluginDisconnected`), if it was connected.

        If it was the last connected instance, the devices become unhealthy and the grace period starts at `now`
        (monotonic seconds).
        """
        resource = self.resources.get(id_.resource, Resource(id_.resource))
        plugins = tuple(plugin for plugin in resource.plugins if plugin.id != id_)
        if len(plugins) == len(resource.plugins):
            return self
        if plugins:
            return self._with(evolve(resource, plugins=plugins, report=_current_list(plugins, resource.report)))
        report = resource.report and resource.report.all_unhealthy()
        return self._with(evolve(resource, plugins=(), report=report, stopped=resource.plugin, gone_since=now))

    def expect(self, names: Iterable[ResourceName], now: float) -> "Inventory":
        """Add the resources that were registered before a restart (kubelet.md 4.4).

        The resources have no devices until a plugin reports some. The grace period of these resources starts at `now`
        (monotonic seconds).
        """
        restored = {name: Resource(name, report=_NOTHING, gone_since=now, awaited=True) for name in names}
        return evolve(self, resources={**restored, **self.resources})

    def expire(self, now: float) -> tuple[tuple[ResourceName, ...], "Inventory"]:
        """Remove the resources that are expired at `now`, in monotonic seconds (kubelet.md 3.6).

        Return the sorted names of the removed resources that had a report, and the new inventory.
        """
        live = {name: resource for name, resource in self.resources.items() if not resource.expired(now)}
        if len(live) == len(self.resources):
            return (), self
        removed = {name: gone.report for name, gone in self.resources.items() if gone.report and name not in live}
        return tuple(sorted(removed)), Inventory(live, {**self.former, **removed})

    def status(self) -> NodeStatus:
        """Return the capacity and allocatable of every registered resource (kubelet: `GetCapacity`)."""
        reports = {name: resource.report for name, resource in sorted(self.resources.items())}
        return NodeStatus(
            capacity={name: len(report.healthy) + len(report.unhealthy) for name, report in reports.items() if report},
            allocatable={name: len(report.healthy) for name, report in reports.items() if report},
        )

    def _with(self, resource: Resource) -> "Inventory":
        return evolve(self, resources={**self.resources, resource.name: resource})


def _current_list(plugins: tuple[Plugin, ...], before: DeviceReport | None) -> DeviceReport | None:
    """Return the list of the instance that registered last among those that have sent a list, or else `before`."""
    return next((plugin.report for plugin in reversed(plugins) if plugin.report is not None), before)
