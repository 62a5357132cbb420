"""Decides which source is trusted. Only this module decides between sources that differ or are missing.

Laws:
1. The kubelet's current answer (pod resources) takes precedence over its last write (the checkpoint). A healthy
   device is one that a plugin or the kubelet lists now. The checkpoint's lists count only if no kubelet has answered,
   or if its answer may omit the devices.
2. An empty answer proves nothing. A kubelet that lists none of the pods that are running here has just started.
3. A running pod holds what it requests. If no source names its devices, no device of that resource is free.
4. A device is free only if every source that could name a holder was read, is sound, and names none.
5. Nothing in a file with a wrong checksum is trusted.

The reason for this order: the kubelet writes its checkpoint when a plugin reports or a container gets devices, and
never when a pod ends, a plugin ends or the kubelet starts. An entry that the kubelet no longer lists therefore normally
belongs to a pod that has ended; if neither the kubelet nor the file has an entry, the record is lost.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cached_property, lru_cache
from typing import cast

from attrs import evolve, field, frozen

from devicecore.domain.checkpoint import CheckpointData, FileVerdict, allocation_of
from devicecore.domain.ledger import Allocation
from devicecore.domain.model import ContainerKey, Health, ResourceName, is_extended_resource
from devicecore_tools.doctor.look.values import (
    CLAIM,
    NOBODY_LISTENS,
    CheckpointSeen,
    Look,
    PluginSeen,
    PodResourcesSeen,
    PodSeen,
    Source,
    grouped,
)


class KubeletNow(Enum):
    """What is known about the kubelet's process.

    `STOPPED` means that no process listens on the kubelet's sockets, and `SILENT` that the kubelet does not answer or,
    according to the Node, does not report to the API server.
    """

    ANSWERS = "answers"
    STARTING = "starting"
    SILENT = "silent"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


class OwnerState(Enum):
    """How certain it is that a container holds a device, or that none does."""

    LIVE = "live"
    STALE = "stale"
    UNKNOWN = "unknown"


@frozen
class Owner:
    """A container that holds devices of one resource, as far as the sources show. Empty strings mean unknown.

    `pod` is the owner's pod from the list of pods, or None if the list lacks the pod.
    """

    uid: str
    namespace: str
    name: str
    container: str
    sources: tuple[Source, ...]
    state: OwnerState
    pod: PodSeen | None = field(default=None, eq=False)

    @cached_property
    def identity(self) -> str:
        """A key that distinguishes this owner's pod from others."""
        return f"{self.namespace}/{self.name}" if self.name else self.uid

    def is_of_another_pod(self, other: "Owner") -> bool:
        """Return whether another owner's pod is certainly a different pod."""
        if self.pod is not None and self.pod is other.pod:
            return False
        if self.uid and other.uid:
            return self.uid != other.uid
        return bool(self.name and other.name) and self.identity != other.identity

    @property
    def is_reusable(self) -> bool:
        """Whether the container is known to be an init container that terminates."""
        return self.pod is not None and self.container in self.pod.reusable


_Devices = Mapping[str, tuple[int, ...]]


@frozen
class AllocationSeen:
    """The devices of one resource that an owner holds, with their NUMA nodes."""

    owner: Owner
    resource: str
    devices: _Devices


# --- what each source is trusted for ---------------------------------------------------------------------------------


def believed_file(look: Look) -> CheckpointSeen | None:
    """Return the checkpoint if it is sound (law 5)."""
    seen = look.checkpoint.value
    return seen if seen is not None and seen.verdict.verdict is FileVerdict.OK else None


@frozen
class Pods:
    """The pods in the list of pods, and which of them have started on this node.

    Attributes:
        was_read: whether the list was read.
        why_incomplete: why a pod that is not in the list may still exist, or an empty string if such a pod is gone.
        by_uid: all pods by each UID that a kubelet may know them by.
        by_name: all pods by namespace and name.
        here: the pods that a kubelet has admitted on this node and that have not ended.
        perhaps_here: the pods whose node or phase is unknown.
    """

    was_read: bool
    why_incomplete: str
    by_uid: Mapping[str, PodSeen]
    by_name: Mapping[tuple[str, str], PodSeen]
    here: tuple[PodSeen, ...]
    perhaps_here: tuple[PodSeen, ...]

    @property
    def is_complete(self) -> bool:
        """Whether a pod that is missing from the list is gone."""
        return not self.why_incomplete

    @property
    def doubt(self) -> str:
        """A sentence that says why the list may be incomplete. Only an API server's answer is certainly complete."""
        return f"the list of pods may be incomplete: {self.why_incomplete}"

    def told_unhealthy(self, *, of_claims: bool) -> Iterator[tuple[PodSeen, str, str, list[str]]]:
        """Yield the unhealthy devices in statuses, with the pod, the container, the resource or claim, and the ids."""
        for pod in self.here:
            for (container, resource), devices in pod.statuses.items():
                told = [device for device, health in devices.items() if health == Health.UNHEALTHY.value]
                if told and resource.startswith(CLAIM) is of_claims:
                    yield pod, container, resource, told

    @classmethod
    def of(cls, look: Look) -> "Pods":
        """Return the pods in a `Look`."""
        pods, api = look.pods.value or (), look.pod_resources.value
        by_name = {pod.place: pod for pod in pods}
        listed = api.pods if api else frozenset()
        node = _node_name(look, [by_name[one].node for one in listed if one in by_name])
        here, perhaps = [], []
        for place, pod in by_name.items():
            begun = _has_begun(pod)
            is_here = (not pod.node or pod.node == node) if node else (place in listed or not pod.node)
            if begun and is_here:
                here.append(pod)
            elif begun is not False and (is_here or not node):
                perhaps.append(pod)
        return cls(
            was_read=look.pods.value is not None,
            why_incomplete=_why_incomplete(look),
            by_uid={str(uid): pod for pod in pods for uid in (*pod.other_uids, pod.pod.uid)},
            by_name=by_name,
            here=tuple(here),
            perhaps_here=tuple(perhaps),
        )


def why_incomplete(pods: Collection[PodSeen], holders: Collection[str], *, is_of_file: bool = True) -> str:
    """Return why a list of pods may be missing pods on a checkpoint's node, or an empty string if it is complete.

    A list does not say whether it was requested with a namespace or a selector, so that must be inferred from its pods.
    If pods were listed across all namespaces, at least one node should have pods from two namespaces: every node in a
    cluster runs system pods, and at least one also runs other pods. If pods were not selected by labels, they should
    have no label in common.

    Args:
        pods: the list.
        holders: the UIDs of the pods in the checkpoint.
        is_of_file: whether a user supplied the list, which may then be limited to a namespace or a selector.
    """
    if not pods:
        return "it is empty"
    namespaces = grouped((pod.node, pod.pod.namespace) for pod in pods)
    if is_of_file and all(len({*of_node}) == 1 for of_node in namespaces.values()):
        where = " of each node" if len(namespaces) > 1 else ""
        return f"it contains the pods of only one namespace{where}, as without -A"
    if is_of_file and (common := set.intersection(*({*pod.labels} for pod in pods))):
        return f"each of its pods has the label {'='.join(min(common))}, as if chosen by a selector"
    named = any(not {str(pod.pod.uid), *pod.other_uids}.isdisjoint(holders) for pod in pods)
    return "it contains none of the pods that the checkpoint names" if holders and not named else ""


def _why_incomplete(look: Look) -> str:
    api, file, pods, node = look.pod_resources.value, believed_file(look), look.pods.value, look.node.value
    if pods is None:
        return f"it was not read: {look.pods.problem}"
    listed = api.pods if api else frozenset()
    if not listed <= {pod.place for pod in pods}:
        return "it lacks pods that the kubelet lists"
    bound = {pod.node for pod in pods if pod.node}
    if node is not None and node.name and bound and node.name not in bound:
        return "it has no pod on this Node"
    holders = {one.pod_uid for one in (file.data.entries if file and file.data else ()) or ()}
    both_list_none = api is not None and not pods and (look.pods.is_whole or look.pods.is_recorded)
    if listed or both_list_none or (look.pods.is_whole and (pods or not holders)):
        return ""
    return why_incomplete(pods, holders, is_of_file=not look.pods.is_recorded)


def _node_name(look: Look, of_listed: list[str]) -> str:
    """Return this node's name: from the Node, from the pods that the kubelet lists, or the only name that occurs."""
    if look.node.value is not None and look.node.value.name:
        return look.node.value.name
    names = {name for name in of_listed if name} or {pod.node for pod in look.pods.value or () if pod.node}
    return names.pop() if len(names) == 1 else ""


def _has_begun(pod: PodSeen) -> bool | None:
    """Return whether the pod was admitted and has not ended, or None if its phase does not show that."""
    match pod.phase:
        case "Running":
            return True
        case "Pending":
            return pod.is_acknowledged
        case "Succeeded" | "Failed":
            return False
        case _:
            return None


def kubelet_state(look: Look, pods: Pods) -> KubeletNow:
    """Return what the kubelet is doing, according to its sockets and its answer."""
    api, sockets = look.pod_resources.value, look.sockets.value
    if api is not None:
        expected = [one.place for one in pods.here if not one.is_deleting]
        is_of_here = api.pods <= pods.by_name.keys()  # if False, the list of pods is from a different node or time
        lists_none = is_of_here and expected and api.pods.isdisjoint(expected)
        return KubeletNow.STARTING if lists_none else KubeletNow.ANSWERS
    served = [sockets.served[name] for name in KUBELET_SOCKETS if name in sockets.served] if sockets else []
    if not any(served) and (served or look.pod_resources.problem == NOBODY_LISTENS):
        return KubeletNow.STOPPED
    return KubeletNow.SILENT if look.is_unheard or TOO_LATE in look.pod_resources.problem else KubeletNow.UNKNOWN


TOO_LATE = "DEADLINE_EXCEEDED"
"""The reason for a missing value contains this text if a process listens but does not answer in time."""

POD_RESOURCES_SOCKET = "pod-resources/kubelet.sock"
KUBELET_SOCKETS = ("device-plugins/kubelet.sock", POD_RESOURCES_SOCKET)
"""The sockets at which a kubelet listens, relative to its root directory."""


# --- holders ----------------------------------------------------------------------------------------------------------


@frozen
class Missing:
    """A container that requests more devices than the kubelet and its checkpoint name."""

    pod: PodSeen
    container: str
    resource: str
    requested: int
    named: int
    is_certain: bool


@frozen
class Holders:
    """Who holds which device.

    Attributes:
        entries: the allocations in the checkpoint, by container and resource.
        allocations: every allocation that a source names: first those in the checkpoint, then those that are only in
            the kubelet's answer, then those that are only in a pod's status.
        by_device: the owners of each device, by resource.
        shared: the devices of each resource that have more than one owner.
        in_use: the devices of each resource that owners hold, in order. Owners whose pods are gone do not count.
        missing: the containers that request more devices than the kubelet and its checkpoint name.
    """

    entries: Mapping[tuple[ContainerKey, ResourceName], Allocation]
    allocations: tuple[AllocationSeen, ...]
    by_device: Mapping[str, Mapping[str, tuple[Owner, ...]]]
    shared: Mapping[str, Mapping[str, tuple[Owner, ...]]]
    in_use: Mapping[str, AbstractSet[str]]
    missing: tuple[Missing, ...]

    @classmethod
    def of(cls, look: Look, pods: Pods, kubelet: KubeletNow) -> "Holders":
        """Return the holders according to a `Look`."""
        file = believed_file(look)
        written = map(allocation_of, (file.data.entries if file and file.data else None) or ())
        entries = {(one.key, one.resource): one for one in written}
        allocations = tuple(_allocations(look, pods, kubelet, entries.values()))
        by_device: dict[str, dict[str, tuple[Owner, ...]]] = {}
        shared: dict[str, dict[str, tuple[Owner, ...]]] = {}
        in_use: dict[str, dict[str, None]] = {}
        for one in allocations:
            owners = by_device.setdefault(one.resource, {})
            twice = {device: (*owners[device], one.owner) for device in one.devices.keys() & owners.keys()}
            owners.update(dict.fromkeys(one.devices, (one.owner,)))
            if twice:
                owners.update(twice)
                shared.setdefault(one.resource, {}).update(twice)
            if one.owner.state is not OwnerState.STALE:
                in_use.setdefault(one.resource, {}).update(dict.fromkeys(one.devices))
        return cls(
            entries=entries,
            allocations=allocations,
            by_device=by_device,
            shared=shared,
            in_use={resource: devices.keys() for resource, devices in in_use.items()},
            missing=tuple(_missing(look, pods, allocations)),
        )

    @cached_property
    def live(self) -> Mapping[str, Mapping[str, None]]:
        """The devices of each resource that certainly have a holder, in order."""
        found: dict[str, dict[str, None]] = {}
        for one in self.allocations:
            if one.owner.state is OwnerState.LIVE:
                found.setdefault(one.resource, {}).update(dict.fromkeys(one.devices))
        return found


def api_omits(look: Look, owner: Owner) -> bool:
    """Return whether the pod-resources API never lists this container (kubelet.md 10.2)."""
    api = look.pod_resources.value
    if owner.pod is None or api is None:
        return False
    if api.version == "v1":
        return owner.is_reusable
    return all(owner.container != one.name for one in owner.pod.pod.containers)


def _allocations(
    look: Look, pods: Pods, kubelet: KubeletNow, entries: Iterable[Allocation]
) -> Iterator[AllocationSeen]:
    written = [_written(one) for one in entries]
    in_api = _ApiAllocations(look.pod_resources.value, pods.by_name)
    answered = [in_api.match(one, pods.by_uid.get(one.owner.uid)) for one in written]
    # If the kubelet confirms one of a pod's entries, the pod's name is known, which its other entries need too.
    named = {
        one.owner.uid: next(iter(places.values())) for one, places in zip(written, answered, strict=True) if places
    }
    result = []
    for one, places in zip(written, answered, strict=True):
        owner, (both, rest) = one.owner, _parts(one.devices, places.keys())
        if both:
            sources = (Source.CHECKPOINT, Source.POD_RESOURCES)
            pod, place = pods.by_uid.get(owner.uid), next(iter(places.values()))
            # Until their next allocation, kubelets up to 1.33 also list pods that have ended.
            state = OwnerState.STALE if pod is not None and pod.has_ended else OwnerState.LIVE
            confirmed = Owner(owner.uid, *place, owner.container, sources, state, pod)
            result.append(AllocationSeen(confirmed, one.resource, both))
        if rest or not one.devices:
            only = _only_in_the_file(look, pods, kubelet, owner, named.get(owner.uid))
            result.append(AllocationSeen(only, one.resource, rest))
    result += in_api.unmatched()
    yield from result
    yield from _only_in_a_status(pods, result)


def _written(entry: Allocation) -> AllocationSeen:
    owner = Owner(str(entry.key.pod), "", "", entry.key.container, (Source.CHECKPOINT,), OwnerState.UNKNOWN)
    # a cast, because calling a NewType 50,000 times takes a long time
    devices = cast("Mapping[str, tuple[int, ...]]", entry.numa_nodes)
    return AllocationSeen(owner, str(entry.resource), devices)


def _parts(devices: _Devices, places: AbstractSet[str]) -> tuple[_Devices, _Devices]:
    """Return the devices that are also in the kubelet's answer, and those that are only in the checkpoint."""
    if len(places) == len(devices):
        return devices, {}
    both = {device: numa_nodes for device, numa_nodes in devices.items() if device in places}
    return both, {device: numa_nodes for device, numa_nodes in devices.items() if device not in places}


def _only_in_the_file(
    look: Look, pods: Pods, kubelet: KubeletNow, owner: Owner, place: tuple[str, str] | None
) -> Owner:
    """Return an owner that the kubelet's answer does not name.

    `place` is the namespace and name of the owner's pod, if known.
    """
    api, pod = look.pod_resources.value, pods.by_uid.get(owner.uid)
    if pod is None:
        if pods.is_complete or (not pods.was_read and api is not None and api.pods and place is None):
            return evolve(owner, state=OwnerState.STALE)
        return evolve(owner, namespace=place[0], name=place[1], state=OwnerState.LIVE) if place else owner
    named = evolve(owner, namespace=pod.pod.namespace, name=pod.pod.name, pod=pod)
    if pod.has_ended:
        return evolve(named, state=OwnerState.STALE)
    both = (Source.CHECKPOINT, Source.PODS)
    if api is None or kubelet is KubeletNow.STARTING or api_omits(look, named):
        return evolve(named, sources=both, state=OwnerState.LIVE)
    return evolve(named, sources=both)


def _only_in_a_status(pods: Pods, known: list[AllocationSeen]) -> Iterator[AllocationSeen]:
    """Yield the devices in a pod's status, if no other source names devices of that container and resource."""
    named = {(one.owner.pod.key, one.owner.container, one.resource) for one in known if one.owner.pod is not None}
    for pod in (*pods.here, *pods.perhaps_here):
        for (container, resource), devices in pod.statuses.items():
            if (pod.key, container, resource) not in named and not resource.startswith(CLAIM):
                owner = Owner(str(pod.pod.uid), *pod.place, container, (Source.PODS,), OwnerState.UNKNOWN, pod)
                yield AllocationSeen(owner, resource, dict.fromkeys(devices, ()))


def _missing(look: Look, pods: Pods, allocations: tuple[AllocationSeen, ...]) -> Iterator[Missing]:
    """Yield the containers that request more devices than the kubelet and its checkpoint name (law 3).

    A result is certain only if the checkpoint is sound and the kubelet, if it answered, lists the pod.
    """
    named: Counter[tuple[tuple[str, str, str], str, str]] = Counter()
    for one in allocations:
        if one.owner.pod is not None and one.owner.sources != (Source.PODS,):
            named[one.owner.pod.key, one.owner.container, one.resource] += len(one.devices)
    api, file, sockets = look.pod_resources.value, believed_file(look), look.sockets.value
    has_kubelet = sockets is not None and sockets.kubelet
    here = {pod.key for pod in pods.here}
    for pod in (*pods.here, *pods.perhaps_here):
        was_listed = pod.place in api.pods if api else has_kubelet
        for container in pod.pod.in_start_order:
            for resource, requested in container.limits.items():
                if not is_requested(pod, container.name, resource, requested):
                    continue
                count = named[pod.key, container.name, resource]
                if count < requested:
                    ends = container.name in pod.reusable
                    is_certain = bool(pod.key in here and file and was_listed and not ends)
                    yield Missing(pod, container.name, resource, requested, count, is_certain)


def is_requested(pod: PodSeen, container: str, resource: str, size: int) -> bool:
    """Return whether a container's limit requests devices from a device plugin."""
    return bool(size) and (container, resource) not in pod.pod.claimed and _is_of_plugins(resource)


_is_of_plugins = lru_cache(maxsize=256)(is_extended_resource)  # all pods request the same few resources


_Place = tuple[str, str]  # namespace and name of a pod


class _ApiAllocations:
    """The allocations in the kubelet's answer, and which of them are also in the checkpoint."""

    def __init__(self, api: PodResourcesSeen | None, pods: Mapping[_Place, PodSeen]) -> None:
        self._pods = pods
        self._holdings = api.holdings if api else ()
        self._rest = [set(one.devices) for one in self._holdings]  # the devices that have not been matched yet
        self._by_place: dict[tuple[_Place, str, str], list[int]] = {}
        for number, one in enumerate(self._holdings):
            self._by_place.setdefault(((one.namespace, one.pod), one.container, one.resource), []).append(number)

    @cached_property
    def _of_any_pod(self) -> Mapping[tuple[str, str, str], deque[int]]:
        """The indexes of the allocations that contain a device, for entries whose UID no source names.

        Allocations of pods whose UID is known are left out.
        """
        found: dict[tuple[str, str, str], deque[int]] = {}
        for number, one in enumerate(self._holdings):
            if (one.namespace, one.pod) not in self._pods:
                for device in one.devices:
                    found.setdefault((one.container, one.resource, device), deque()).append(number)
        return found

    def match(self, entry: AllocationSeen, pod: PodSeen | None) -> dict[str, _Place]:
        """Return the devices of an entry that are also in the answer, each with its pod's namespace and name."""
        container, resource, devices = entry.owner.container, entry.resource, entry.devices
        numbers: Sequence[int] = ()
        if pod is not None:
            numbers = self._by_place.get((pod.place, container, resource), ())
            if len(numbers) == 1 and self._rest[numbers[0]] == devices.keys():  # nearly always the case
                self._rest[numbers[0]].clear()
                return dict.fromkeys(devices, pod.place)
        places = {}
        for device in devices:
            candidates = iter(numbers) if pod is not None else self._left(container, resource, device)
            number = next((one for one in candidates if device in self._rest[one]), None)
            if number is not None:
                self._rest[number].discard(device)
                places[device] = self._holdings[number].namespace, self._holdings[number].pod
        return places

    def _left(self, container: str, resource: str, device: str) -> Iterator[int]:
        """Yield the allocations that contain a device and whose pods' UIDs are unknown.

        An allocation is not yielded twice, because its device has been matched by then.
        """
        waiting = self._of_any_pod.get((container, resource, device))
        while waiting:
            yield waiting.popleft()

    def unmatched(self) -> Iterator[AllocationSeen]:
        """Yield the allocations that only the pod-resources API names."""
        for holding, left in zip(self._holdings, self._rest, strict=True):
            if left:
                rest = {device: nodes for device, nodes in holding.devices.items() if device in left}
                pod = self._pods.get((holding.namespace, holding.pod))
                uid = str(pod.pod.uid) if pod else ""
                state, sources = OwnerState.LIVE, (Source.POD_RESOURCES,)
                owner = Owner(uid, holding.namespace, holding.pod, holding.container, sources, state, pod)
                yield AllocationSeen(owner, holding.resource, rest)


# --- devices ----------------------------------------------------------------------------------------------------------


_HEALTHY = Health.HEALTHY.value


@frozen
class Lists:
    """Which devices exist, and which of them are healthy.

    Attributes:
        registered: the healthy devices of each resource in the checkpoint, in its order.
        in_file: the devices in `registered`, as sets.
        allocatable: the healthy devices of each resource in the kubelet's answer, or None if the kubelet was not
            queried.
        listed: the devices that plugins listed, by resource, if it is certain which resource a plugin serves.
        served_by: each plugin that answered, with the resources that its devices belong to.
        left_out: the resources without devices in the kubelet's answer although the Node counts devices from the file.
            Either their devices are on no NUMA node, so that the answer omits them, or their plugin has just ended.
        healthy: the healthy devices of each resource according to the best source (law 1).
        is_confirmed: the resources for which a live source reports the health.
        devices: every device of each resource that any source names, in the order of the sources.
    """

    registered: Mapping[str, tuple[str, ...]]
    in_file: Mapping[str, AbstractSet[str]]
    allocatable: Mapping[str, Mapping[str, tuple[int, ...]]] | None
    listed: Mapping[str, Mapping[str, Health]]
    served_by: tuple[tuple[PluginSeen, tuple[str, ...]], ...]
    left_out: AbstractSet[str]
    healthy: Mapping[str, AbstractSet[str]]
    is_confirmed: AbstractSet[str]
    devices: Mapping[str, Mapping[str, None]]

    @classmethod
    def of(cls, look: Look, holders: Holders) -> "Lists":
        """Return the lists according to a `Look`."""
        file, api = believed_file(look), look.pod_resources.value
        data: CheckpointData | None = file.data if file else None
        of_file = (data.registered_devices if data else None) or {}
        registered = {resource: devices or () for resource, devices in of_file.items()}
        allocatable = api.allocatable if api else None
        served_by = _served_by(look, registered, allocatable or {}, holders)
        listed: dict[str, dict[str, Health]] = {}
        for plugin, resources in served_by:
            if len(resources) == 1 and plugin.devices:
                states = zip(plugin.devices.ids, plugin.devices.states, strict=True)
                of_plugin = listed.setdefault(resources[0], {})
                for device, (
                    health,
                    _,
                ) in states:  # the kubelet allocates an id that is listed both as healthy and as unhealthy
                    if of_plugin.get(device) is not Health.HEALTHY:
                        of_plugin[device] = health
        held = dict.fromkeys(one.resource for one in holders.allocations)
        served = {resource: None for _, resources in served_by for resource in resources}
        names = sorted({**dict.fromkeys(registered), **dict.fromkeys(allocatable or {}), **held, **served})
        left_out, healthy, confirmed = _healthy(look, names, registered, listed)
        devices: dict[str, dict[str, None]] = {name: {} for name in names}
        for by_resource in (registered, allocatable or {}, listed):
            for resource, ids in by_resource.items():
                devices[resource].update(dict.fromkeys(ids))
        for one in holders.allocations:
            devices[one.resource].update(dict.fromkeys(one.devices))
        return cls(
            registered=registered,
            in_file={resource: frozenset(ids) for resource, ids in registered.items()},
            allocatable=allocatable,
            listed=listed,
            served_by=served_by,
            left_out=left_out,
            healthy=healthy,
            is_confirmed=confirmed,
            devices=devices,
        )

    @property
    def resources(self) -> tuple[str, ...]:
        """Every resource that the checkpoint, the pod-resources API, a pod's status or a plugin names, sorted."""
        return tuple(self.devices)

    @property
    def source(self) -> Source:
        """The source of the kubelet's healthy devices: its answer, or if there is none, its file."""
        return Source.CHECKPOINT if self.allocatable is None else Source.POD_RESOURCES

    @property
    def known_to_kubelet(self) -> Mapping[str, Collection[str]]:
        """The healthy devices of each resource according to `source`."""
        return self.registered if self.allocatable is None else self.allocatable

    @cached_property
    def sockets_of(self) -> Mapping[str, tuple[str, ...]]:
        """The sockets of the plugins that may serve each resource."""
        found = grouped((resource, plugin.socket) for plugin, resources in self.served_by for resource in resources)
        return {resource: tuple(sockets) for resource, sockets in found.items()}

    @cached_property
    def differing(self) -> Mapping[str, tuple[PluginSeen, ...]]:
        """The plugins of each resource that several plugins serve with different devices."""
        of = grouped((of[0], plugin) for plugin, of in self.served_by if len(of) == 1 and plugin.devices)
        return {
            name: tuple(all_)
            for name, all_ in of.items()
            if len({frozenset(one.devices.ids) for one in all_ if one.devices}) > 1
        }

    def health(self, resource: str, device: str, holders: Holders) -> str:
        """Return a device's health from the best source: `Healthy`, `Unhealthy`, `not listed` or `unknown`."""
        if resource in self.listed:
            state = self.listed[resource].get(device)
            return state.value if state else "not listed"
        if resource not in self.is_confirmed:
            return "unknown"
        if device in self.healthy[resource]:
            return _HEALTHY
        pods = (one.pod for one in holders.by_device.get(resource, {}).get(device, ()) if one.pod is not None)
        told = {health for pod in pods for one, health in pod.told_health(resource) if one == device}
        return Health.UNHEALTHY.value if Health.UNHEALTHY.value in told else "unknown"

    def certainly_healthy(self, resource: str) -> AbstractSet[str]:
        """Return the devices for which `health` returns `Healthy`."""
        return self.healthy[resource] if resource in self.is_confirmed else frozenset()

    def kubelet_has(self, resource: str, device: str) -> bool:
        """Return whether the live kubelet counts a device as healthy.

        The kubelet's answer omits devices on no NUMA node.
        """
        if self.allocatable is not None and device in self.allocatable.get(resource, ()):
            return True
        if self.listed.get(resource, {}).get(device) is not Health.HEALTHY or device not in self.in_file.get(
            resource, ()
        ):
            return False
        return self.allocatable is None or device in self._on_no_node.get(resource, ())

    @cached_property
    def _on_no_node(self) -> Mapping[str, AbstractSet[str]]:
        """The devices that are on no NUMA node according to their plugin.

        The kubelet's answer omits such devices.
        """
        return {
            resources[0]: {str(id_) for id_, state in plugin.devices.by_id.states.items() if state[1] == ()}
            for plugin, resources in self.served_by
            if len(resources) == 1 and plugin.devices
        }


def _healthy(
    look: Look,
    names: Iterable[str],
    registered: Mapping[str, Collection[str]],
    listed: Mapping[str, Mapping[str, Health]],
) -> tuple[AbstractSet[str], Mapping[str, AbstractSet[str]], AbstractSet[str]]:
    """Return the fields `left_out`, `healthy` and `is_confirmed` of `Lists`."""
    api, node = look.pod_resources.value, look.node.value
    allocatable = api.allocatable if api else None
    healthy: dict[str, AbstractSet[str]] = {}
    left_out, confirmed = set(), set()
    for name in names:
        published, in_file = node.allocatable.get(name) if node else None, registered.get(name, ())
        if name in listed:
            healthy[name] = {device for device, state in listed[name].items() if state is Health.HEALTHY}
        elif api and _is_left_out(api, name, published or 0, in_file):
            left_out.add(name)
            healthy[name] = frozenset(in_file)
            continue
        elif allocatable is not None:
            healthy[name] = allocatable.get(name, {}).keys()
        else:
            healthy[name] = frozenset(() if published == 0 else in_file)
        if name in listed or allocatable is not None or published == len(in_file):
            confirmed.add(name)
    return left_out, healthy, confirmed


def _is_left_out(api: PodResourcesSeen, resource: str, published: int, registered: Collection[str]) -> bool:
    """Return whether the kubelet may have devices of a resource although its answer lists none."""
    if api.allocatable is None or api.allocatable.get(resource) or not published:
        return False
    return published == len(registered) and all(one.resource != resource for one in api.holdings)


def _served_by(
    look: Look,
    registered: Mapping[str, tuple[str, ...]],
    allocatable: Mapping[str, Mapping[str, tuple[int, ...]]],
    holders: Holders,
) -> tuple[tuple[PluginSeen, tuple[str, ...]], ...]:
    """Return each plugin that answered, with its resources.

    No API call returns a plugin's resource, so the ids are compared: the plugin serves the resource that shares the
    most ids with its list, or one of several resources that share equally many. If no resource shares an id, but only
    one plugin and one resource with the same number of devices are left, these belong together.
    """
    plugins = look.plugins.value or ()
    if not plugins:
        return ()
    known: dict[str, dict[str, None]] = {}
    by_resource = [
        *registered.items(),
        *allocatable.items(),
        *((one.resource, one.devices) for one in holders.allocations),
    ]
    for resource, ids in by_resource:
        for device in ids:
            known.setdefault(device, {})[resource] = None
    found = {plugin.socket: _resources_of(plugin, known) for plugin in plugins}
    node = look.node.value
    served = {resource for resources in found.values() for resource in resources}
    left = [one for one, devices in registered.items() if not devices and one not in served]
    unknown = [one for one in plugins if one.devices and not found[one.socket]]
    if (
        node is not None
        and len(left) == len(unknown) == 1
        and node.capacity.get(left[0]) == len(unknown[0].devices or ())
    ):
        found[unknown[0].socket] = (left[0],)  # none of the plugin's devices was ever healthy, so no source names any
    return tuple((plugin, found[plugin.socket]) for plugin in plugins)


def _resources_of(plugin: PluginSeen, known: Mapping[str, Mapping[str, None]]) -> tuple[str, ...]:
    if plugin.resource:
        return (plugin.resource,)
    shared: dict[str, int] = {}
    if plugin.devices:
        for device in plugin.devices.ids:
            for resource in known.get(device, ()):
                shared[resource] = shared.get(resource, 0) + 1
    most = max(shared.values(), default=0)
    return tuple(sorted(resource for resource, count in shared.items() if count == most))


# --- free devices -----------------------------------------------------------------------------------------------------


def why_not_free(look: Look, kubelet: KubeletNow, pods: Pods, holders: Holders, lists: Lists) -> Mapping[str, str]:
    """Return, by resource, why none of its devices can count as free. An empty name means every resource (law 4)."""
    file = look.checkpoint.value
    if look.pod_resources.value is None:
        return {"": f"the kubelet's answer was not read: {look.pod_resources.problem}"}
    if file is None or file.verdict.verdict is not FileVerdict.OK:
        return {"": f"the checkpoint was not read: {file.verdict.problem if file else look.checkpoint.problem}"}
    if not pods.was_read:
        return {
            "": f"the pods, which may use devices that the kubelet has forgotten, were not read: {look.pods.problem}"
        }
    if not pods.is_complete:
        return {"": pods.doubt}
    if kubelet is KubeletNow.STARTING:
        return {"": "the kubelet has just started, and lists no pods yet"}
    unsaid = [one for one in lists.devices if lists.allocatable is None and one not in lists.listed]
    return {
        **dict.fromkeys(unsaid, "neither the kubelet nor a plugin has listed its devices"),
        **dict.fromkeys(lists.left_out, "the kubelet's answer lists none of its devices, but the Node counts some"),
        **{
            one.resource: f"no record lists all the devices that pod {one.pod.identity} requests"
            for one in holders.missing
        },
    }
