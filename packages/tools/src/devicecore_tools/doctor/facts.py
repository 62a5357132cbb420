"""What the sources of one look say together: which container holds which device, and what is known of each.

Laws: a holder that no second source confirms is `unknown`, not `live`. A device is `free` only if the checkpoint
and the pod-resources API were both read and neither names a holder.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cached_property

from attrs import evolve, field, frozen

from devicecore.domain.checkpoint import CheckpointData, FileVerdict, allocation_of
from devicecore.domain.ledger import Ledger
from devicecore.domain.model import NO_TOPOLOGY, DeviceId, Health
from devicecore_tools.doctor.claims import ClaimedHardware, SameDevice
from devicecore_tools.doctor.look import CheckpointSeen, Look, PluginSeen, PodResourcesSeen, PodSeen, Source


class OwnerState(Enum):
    """How certain it is that a container holds a device, or that no container does."""

    LIVE = "live"
    STALE = "stale"
    UNKNOWN = "unknown"


@frozen
class Owner:
    """A container that holds devices of one resource, as far as the sources say. Empty texts are not known.

    `pod` is what the pods source says of the owner's pod.
    """

    uid: str
    namespace: str
    name: str
    container: str
    sources: tuple[Source, ...]
    state: OwnerState
    pod: PodSeen | None = field(default=None, eq=False)

    @property
    def identity(self) -> str:
        """What distinguishes this owner's pod from others."""
        return f"{self.namespace}/{self.name}" if self.name else self.uid

    def is_of_another_pod(self, other: "Owner") -> bool:
        """Whether the other owner's pod is certainly another one."""
        if self.pod is not None and self.pod is other.pod:
            return False
        if self.uid and other.uid:
            return self.uid != other.uid
        return bool(self.name and other.name) and self.identity != other.identity

    @property
    def is_reusable(self) -> bool:
        """Whether the container is known to be an init container that ends."""
        return self.pod is not None and self.container in self.pod.reusable


@frozen
class AllocationSeen:
    """The devices of one resource that an owner holds, with their NUMA nodes."""

    owner: Owner
    resource: str
    devices: Mapping[str, tuple[int, ...]]


@frozen
class Facts:
    """One look, joined."""

    look: Look

    @property
    def file(self) -> CheckpointSeen | None:
        """The checkpoint, unless there is none."""
        seen = self.look.checkpoint.value
        return None if seen is None or seen.verdict.verdict is FileVerdict.ABSENT else seen

    @property
    def data(self) -> CheckpointData | None:
        """What could be read of the checkpoint, whether or not its checksum is right."""
        return self.file.data if self.file else None

    @property
    def api(self) -> PodResourcesSeen | None:
        """The answers of the pod-resources API."""
        return self.look.pod_resources.value

    @cached_property
    def registered(self) -> Mapping[str, tuple[str, ...]]:
        """The healthy devices of each resource, as the checkpoint lists them."""
        listed = self.data.registered_devices if self.data else None
        return {resource: devices or () for resource, devices in (listed or {}).items()}

    @cached_property
    def allocatable(self) -> Mapping[str, Mapping[str, tuple[int, ...]]]:
        """The healthy devices of each resource, as the pod-resources API lists them."""
        return (self.api.allocatable if self.api else None) or {}

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """Every resource that the checkpoint, the pod-resources API or a plugin names, sorted."""
        named = {*self.registered, *self.allocatable, *(allocation.resource for allocation in self.allocations)}
        return tuple(sorted(named | {resource for of_plugin in self.served_by for resource in of_plugin[1]}))

    # --- pods ---------------------------------------------------------------------------------------------------------

    @cached_property
    def pods(self) -> Mapping[str, PodSeen]:
        """The pods by each UID that a kubelet may know them by."""
        pods = self.look.pods.value or ()
        return {str(uid): pod for pod in pods for uid in (*pod.other_uids, pod.pod.uid)}

    @cached_property
    def pods_by_name(self) -> Mapping[tuple[str, str], PodSeen]:
        """The pods by namespace and name."""
        return {(pod.pod.namespace, pod.pod.name): pod for pod in self.look.pods.value or ()}

    @cached_property
    def pods_are_complete(self) -> bool:
        """Whether a pod that the pods source does not name is gone.

        If it lacks a pod that the kubelet lists, it is the list of one namespace or of another time.
        """
        if self.look.pods.value is None:
            return False
        return self.api is None or self.api.pods <= self.pods_by_name.keys()

    # --- holders ------------------------------------------------------------------------------------------------------

    @cached_property
    def ledger(self) -> Ledger:
        """The allocations of the checkpoint."""
        return Ledger.of(map(allocation_of, (self.data.entries if self.data else None) or ()))

    @cached_property
    def allocations(self) -> tuple[AllocationSeen, ...]:
        """Every allocation that a source names: first those of the checkpoint, then those that only the API has."""
        listed = [
            (
                Owner(str(one.key.pod), "", "", one.key.container, (Source.CHECKPOINT,), OwnerState.UNKNOWN),
                str(one.resource),
                {str(device): tuple(map(int, numa_nodes)) for device, numa_nodes in one.numa_nodes.items()},
            )
            for one in self.ledger
        ]
        in_api = _ApiAllocations(self.api)
        confirmed = [
            in_api.match(owner, resource, devices, self.pods.get(owner.uid)) for owner, resource, devices in listed
        ]
        alive = {
            owner.uid: next(iter(places.values()))
            for (owner, _, _), places in zip(listed, confirmed, strict=True)
            if places
        }
        result = []
        for (owner, resource, devices), places in zip(listed, confirmed, strict=True):
            both = {device: numa_nodes for device, numa_nodes in devices.items() if device in places}
            rest = {device: numa_nodes for device, numa_nodes in devices.items() if device not in places}
            if both:
                place = next(iter(places.values()))
                named = evolve(owner, namespace=place[0], name=place[1], pod=self._pod_of(owner.uid, place))
                sources = (Source.CHECKPOINT, Source.POD_RESOURCES)
                result.append(AllocationSeen(evolve(named, sources=sources, state=OwnerState.LIVE), resource, both))
            if rest or not devices:
                result.append(AllocationSeen(self._only_in_the_file(owner, alive.get(owner.uid)), resource, rest))
        return (*result, *in_api.unmatched(self.pods_by_name))

    def _pod_of(self, uid: str, place: tuple[str, str]) -> PodSeen | None:
        return self.pods.get(uid) or self.pods_by_name.get(place)

    def _only_in_the_file(self, owner: Owner, place: tuple[str, str] | None) -> Owner:
        """An owner that the kubelet's answer does not name. `place` is its pod's name, if another container has it."""
        pod = self.pods.get(owner.uid)
        if pod is None:
            if self.pods_are_complete:
                return evolve(owner, state=OwnerState.STALE)
            return evolve(owner, namespace=place[0], name=place[1], state=OwnerState.LIVE) if place else owner
        named = evolve(owner, namespace=pod.pod.namespace, name=pod.pod.name, pod=pod)
        if pod.has_ended:
            return evolve(named, state=OwnerState.STALE)
        both = (Source.CHECKPOINT, Source.PODS)
        if self.api is None or self.api_omits(named):
            return evolve(named, sources=both, state=OwnerState.LIVE)
        return evolve(named, sources=both)

    def api_omits(self, owner: Owner) -> bool:
        """Whether the pod-resources API never lists this container (kubelet.md 10.2)."""
        if owner.pod is None or self.api is None:
            return False
        if self.api.version == "v1":
            return owner.is_reusable
        return all(owner.container != one.name for one in owner.pod.pod.containers)

    @cached_property
    def holders(self) -> Mapping[tuple[str, str], tuple[Owner, ...]]:
        """The owners of each (resource, device)."""
        found: dict[tuple[str, str], list[Owner]] = {}
        for allocation in self.allocations:
            for device in allocation.devices:
                found.setdefault((allocation.resource, device), []).append(allocation.owner)
        return {key: tuple(owners) for key, owners in found.items()}

    @cached_property
    def in_use(self) -> Mapping[str, AbstractSet[str]]:
        """The devices of each resource that owners hold, in order, without owners whose pods are known to be gone."""
        found: dict[str, dict[str, None]] = {}
        for allocation in self.allocations:
            if allocation.owner.state is not OwnerState.STALE:
                found.setdefault(allocation.resource, {}).update(dict.fromkeys(allocation.devices))
        return {resource: devices.keys() for resource, devices in found.items()}

    @property
    def holders_are_known(self) -> bool:
        """Whether all holders of plugins' devices are known: both sources that name them were read, and are sound."""
        return self.api is not None and self.file is not None and self.file.verdict.verdict is FileVerdict.OK

    @property
    def claims_missing(self) -> str:
        """Why it is not known which devices of plugins ResourceClaims hold; empty if it is known."""
        return self._claimed_hardware.missing

    # --- claims -------------------------------------------------------------------------------------------------------

    @cached_property
    def _claimed_hardware(self) -> ClaimedHardware:
        return ClaimedHardware(self.look)

    @cached_property
    def _cdi_of(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """The CDI names that plugins gave for a single device, by resource and device."""
        receipts = {(one.key, one.resource): one.cdi_devices for one in self.file.receipts} if self.file else {}
        return {
            (str(one.resource), str(device)): receipts[one.key, one.resource]
            for one in self.ledger
            if (one.key, one.resource) in receipts and len(one.numa_nodes) == 1
            for device in one.numa_nodes
        }

    def claimed(self, resource: str, device: str) -> SameDevice | None:
        """The device of a ResourceClaim that is the same as this one of a plugin; None if none is known."""
        return self._claimed_hardware.find(resource, device, self._cdi_of.get((resource, device), ()))

    # --- plugins ------------------------------------------------------------------------------------------------------

    @cached_property
    def served_by(self) -> tuple[tuple[PluginSeen, tuple[str, ...]], ...]:
        """Each plugin that answered, with the resources that its devices belong to.

        No call of the API returns a plugin's resource, so the ids are compared: the resource that shares most ids with
        the list is meant, or several if they share the same number.
        """
        known: dict[str, dict[str, None]] = {}
        by_resource = [
            *self.registered.items(),
            *self.allocatable.items(),
            *((one.resource, one.devices) for one in self.allocations),
        ]
        for resource, ids in by_resource:
            for device in ids:
                known.setdefault(device, {})[resource] = None
        return tuple((plugin, _resources_of(plugin, known)) for plugin in self.look.plugins.value or ())

    @cached_property
    def sockets_of(self) -> Mapping[str, tuple[str, ...]]:
        """The sockets of the plugins that may serve each resource."""
        found: dict[str, list[str]] = {}
        for plugin, resources in self.served_by:
            for resource in resources:
                found.setdefault(resource, []).append(plugin.socket)
        return {resource: tuple(sockets) for resource, sockets in found.items()}

    @cached_property
    def listed(self) -> Mapping[str, Mapping[str, Health]]:
        """The devices that plugins listed, by resource, where it is certain which resource a plugin serves."""
        found: dict[str, dict[str, Health]] = {}
        for plugin, resources in self.served_by:
            if len(resources) == 1 and plugin.devices:
                health = {str(device): state[0] for device, state in plugin.devices.by_id.states.items()}
                found.setdefault(resources[0], {}).update(health)
        return found

    # --- devices ------------------------------------------------------------------------------------------------------

    @cached_property
    def healthy(self) -> Mapping[str, frozenset[str]]:
        """The healthy devices of each resource, from the plugins, else from kubelet and checkpoint."""
        found = {
            resource: {*self.registered.get(resource, ()), *self.allocatable.get(resource, ())}
            for resource in self.resources
        }
        for resource, devices in self.listed.items():
            found[resource] = {device for device, health in devices.items() if health is Health.HEALTHY}
        return {resource: frozenset(devices) for resource, devices in found.items()}

    @cached_property
    def healthy_in_file(self) -> Mapping[str, frozenset[str]]:
        """The healthy devices of each resource, as the checkpoint lists them, as sets."""
        return {resource: frozenset(devices) for resource, devices in self.registered.items()}

    def devices(self, resource: str) -> list[DeviceId]:
        """Every device of a resource that any source names."""
        return [DeviceId(device) for device in self._devices.get(resource, ())]

    @cached_property
    def _devices(self) -> Mapping[str, dict[str, None]]:
        found: dict[str, dict[str, None]] = {resource: {} for resource in self.resources}
        for by_resource in (self.registered, self.allocatable, self.listed):
            for resource, devices in by_resource.items():
                found[resource].update(dict.fromkeys(devices))
        for allocation in self.allocations:
            found[allocation.resource].update(dict.fromkeys(allocation.devices))
        return found

    @cached_property
    def numa_nodes(self) -> Mapping[tuple[str, str], tuple[int, ...]]:
        """The NUMA nodes of each (resource, device) for which a source names them; empty if it has none."""
        found: dict[tuple[str, str], tuple[int, ...]] = {}
        for allocation in self.allocations:
            resource, devices = allocation.resource, allocation.devices
            found.update({(resource, device): numa_nodes for device, numa_nodes in devices.items()})
        for resource, devices in self.allocatable.items():
            found.update({(resource, device): numa_nodes for device, numa_nodes in devices.items()})
        for plugin, resources in self.served_by:
            if len(resources) == 1 and plugin.devices:
                for device, (_, topology) in plugin.devices.by_id.states.items():
                    found[resources[0], str(device)] = tuple(map(int, topology or ()))
        none = int(NO_TOPOLOGY)
        return {
            key: tuple([one for one in nodes if one != none]) if none in nodes else nodes
            for key, nodes in found.items()
        }

    @cached_property
    def all_numa_nodes(self) -> frozenset[int]:
        """Every NUMA node that any source names."""
        named = [allocation.devices.values() for allocation in self.allocations] + [
            devices.values() for devices in self.allocatable.values()
        ]
        found = {node for topologies in named for nodes in topologies for node in nodes}
        for plugin in self.look.plugins.value or ():
            found |= {
                int(node) for _, nodes in (plugin.devices.states if plugin.devices else ()) for node in nodes or ()
            }
        return frozenset(found - {NO_TOPOLOGY})


def _resources_of(plugin: PluginSeen, known: Mapping[str, Mapping[str, None]]) -> tuple[str, ...]:
    if plugin.resource:
        return (plugin.resource,)
    shared: dict[str, int] = {}
    for device in plugin.devices.ids if plugin.devices else ():
        for resource in known.get(device, ()):
            shared[resource] = shared.get(resource, 0) + 1
    most = max(shared.values(), default=0)
    return tuple(sorted(resource for resource, count in shared.items() if count == most))


_Place = tuple[str, str]  # namespace and name of a pod


class _ApiAllocations:
    """The holdings of the pod-resources API, and which of them the checkpoint has too."""

    def __init__(self, api: PodResourcesSeen | None) -> None:
        self._holdings = api.holdings if api else ()
        self._matched: list[set[str]] = [set() for _ in self._holdings]
        # The numbers of the holdings of a device, for any pod (None) and for each. A number is taken from both once.
        self._waiting: dict[tuple[_Place | None, str, str, str], deque[int]] = {}
        for number, holding in enumerate(self._holdings):
            for device in holding.devices:
                for place in (None, (holding.namespace, holding.pod)):
                    key = place, holding.container, holding.resource, device
                    self._waiting.setdefault(key, deque()).append(number)

    def match(
        self, owner: Owner, resource: str, devices: Mapping[str, tuple[int, ...]], pod: PodSeen | None
    ) -> dict[str, tuple[str, str]]:
        """The devices of an entry that the answer has too, each with namespace and name of its pod."""
        wanted = None if pod is None else (pod.pod.namespace, pod.pod.name)
        places = {}
        for device in devices:
            waiting = self._waiting.get((wanted, owner.container, resource, device))
            while waiting and device not in places:
                number = waiting.popleft()
                if device not in self._matched[number]:
                    self._matched[number].add(device)
                    places[device] = self._holdings[number].namespace, self._holdings[number].pod
        return places

    def unmatched(self, pods: Mapping[tuple[str, str], PodSeen]) -> Iterator[AllocationSeen]:
        """The holdings that only the pod-resources API names."""
        for holding, matched in zip(self._holdings, self._matched, strict=True):
            rest = {device: nodes for device, nodes in holding.devices.items() if device not in matched}
            if rest:
                pod = pods.get((holding.namespace, holding.pod))
                uid = str(pod.pod.uid) if pod else ""
                state, sources = OwnerState.LIVE, (Source.POD_RESOURCES,)
                owner = Owner(uid, holding.namespace, holding.pod, holding.container, sources, state, pod)
                yield AllocationSeen(owner, holding.resource, rest)
