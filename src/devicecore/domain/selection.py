"""Which devices a container gets.

Law: nothing here calls anybody. When only the plugin can say which devices go well together, the question comes back
as a value, at most once, and whatever the plugin answers, the container gets exactly as many devices as it asked for,
each of them free or lent by its own pod. Among equals the natural order of the ids decides.
"""

from collections.abc import Collection, Iterable

from attrs import frozen

from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import (
    ChangedRequestError,
    DevicesNoLongerHealthyError,
    EndpointNotFoundError,
    NoHealthyDevicesError,
    NotEnoughDevicesError,
    UnregisteredDeviceError,
)
from devicecore.domain.inventory import DeviceReport, Inventory
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import ContainerKey, DeviceId, NumaNode, Pod, ResourceName

_NONE = DeviceSet()


@frozen
class ResourceRequest:
    """What one container asks of one resource.

    `affinity` are the NUMA nodes the topology policy settled on, None if it has no opinion. `already_running` says that
    the container runs from before a restart while not all pods are known yet: it is left alone (kubelet.md 4.5).
    """

    key: ContainerKey
    resource: ResourceName
    size: int
    affinity: Collection[NumaNode] | None = None
    already_running: bool = False


@frozen
class Chosen:
    """The devices to reserve; empty if the container needs none or has them already."""

    devices: DeviceSet


@frozen
class AskPlugin:
    """The plugin is to be asked which `size` of `candidates`, among them all of `must_include`, it would give away.

    `eligible` are the candidates still to choose from, `fallbacks` where to take from, in turn, what the plugin's
    answer leaves open.
    """

    candidates: DeviceSet
    must_include: DeviceSet
    size: int
    eligible: DeviceSet
    fallbacks: tuple[DeviceSet, ...]

    def answer(self, preferred: Iterable[DeviceId]) -> Chosen:
        """Settle with what the plugin said: its preference first, in its order; what it may not decide is dropped."""
        missing = self.size - len(self.must_include)
        welcome = dict.fromkeys(device for device in preferred if device in self.eligible)
        chosen = self.eligible.index.select(list(welcome)[:missing])
        return Chosen(_fill(self.must_include | chosen, self.size, *self.fallbacks))


Decision = Chosen | AskPlugin


def devices_to_allocate(
    request: ResourceRequest, inventory: Inventory, ledger: Ledger, reusable: DeviceSet = _NONE
) -> Decision:
    """Choose devices for a container (kubelet: `devicesToAllocate`, kubelet.md 5.4).

    `reusable` are devices that an init container of the same pod lends (see `reusable_devices`).

    Raises:
        ChangedRequestError: the container holds another number of devices than it asks for now.
        UnregisteredDeviceError: no plugin has registered the resource.
        NoHealthyDevicesError: none of its devices is healthy.
        DevicesNoLongerHealthyError: a device the container holds is no longer healthy.
        NotEnoughDevicesError: too few healthy devices are free.
        EndpointNotFoundError: no plugin instance is known that could be asked.
    """
    allocation = ledger.allocation(request.key, request.resource)
    if allocation and len(allocation.numa_nodes) != request.size:
        key, held = request.key, len(allocation.numa_nodes)
        raise ChangedRequestError(key.pod, key.container, request.resource, held=held, requested=request.size)
    if request.already_running:
        return Chosen(_NONE)
    # Health comes before "nothing needed" on purpose: after a reboot a pod must not start without its plugin (#109595).
    report = inventory.current_report(request.resource)
    if report is None:
        raise UnregisteredDeviceError(request.resource)
    if not report.healthy:
        raise NoHealthyDevicesError(request.resource)
    if allocation and not allocation.devices <= report.healthy:
        raise DevicesNoLongerHealthyError(request.resource)
    if allocation or not request.size:
        return Chosen(_NONE)
    taken = reusable.take(request.size)
    if len(taken) == request.size:
        return Chosen(taken)
    return _choose(request, inventory, report, taken, report.healthy - ledger.in_use(request.resource))


def _choose(
    request: ResourceRequest, inventory: Inventory, report: DeviceReport, taken: DeviceSet, available: DeviceSet
) -> Decision:
    """Choose what is missing beside `taken` from `available`: aligned devices first, the plugin's preference next."""
    needed = request.size - len(taken)
    if len(available) < needed:
        raise NotEnoughDevicesError(request.resource, requested=needed, available=len(available))
    aligned, unaligned, no_affinity = filter_by_affinity(report, request.affinity, available)
    if needed == len(aligned):
        return Chosen(taken | aligned)
    plugin = inventory.resources[request.resource].plugin
    if plugin is None:
        raise EndpointNotFoundError(request.resource)
    if not plugin.options.get_preferred_allocation_available:
        return Chosen(_fill(taken, request.size, aligned, unaligned, no_affinity))
    if needed < len(aligned):
        return AskPlugin(aligned | taken, taken, request.size, eligible=aligned, fallbacks=(aligned,))
    taken |= aligned
    rest = available - aligned
    return AskPlugin(available | taken, taken, request.size, eligible=rest, fallbacks=(unaligned, no_affinity))


def filter_by_affinity(
    report: DeviceReport, affinity: Collection[NumaNode] | None, available: DeviceSet
) -> tuple[DeviceSet, DeviceSet, DeviceSet]:
    """Split `available` into aligned, unaligned and without affinity (kubelet: `filterByAffinity`, kubelet.md 5.6)."""
    if affinity is None or not report.has_topology:
        return _NONE, _NONE, available
    aligned = available & report.touching(affinity)
    attached = available & report.touching(node for node in report.by_numa_node if node >= 0)
    return aligned, attached - aligned, available - attached


def reusable_devices(pod: Pod, key: ContainerKey, resource: ResourceName, ledger: Ledger) -> DeviceSet:
    """What earlier containers of the pod lend to one of its containers (kubelet: `devicesToReuse`, kubelet.md 5.2).

    Init containers that end lend what they hold; what a sidecar or an app container holds is no longer lent.
    """
    held = ledger.held_by(key.pod, resource)
    if not held:
        return _NONE
    lent = kept = _NONE
    is_before = True
    for container in pod.in_start_order:
        if container.name == key.container:
            is_before = False
        elif not pod.is_reusable(container):
            kept |= held.get(container.name, _NONE)
        elif is_before:
            lent |= held.get(container.name, _NONE)
    return lent - kept - ledger.shared_by_error(resource)


def _fill(taken: DeviceSet, size: int, *tiers: DeviceSet) -> DeviceSet:
    for tier in tiers:
        if tier and (missing := size - len(taken)) > 0:
            taken |= (tier - taken).take(missing)
    return taken
