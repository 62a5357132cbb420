"""Lists everything on a node that must be judged, and everything that cannot be judged because a source is missing.

Law: only items in the list can be called sound, and nothing is left out because a source is missing. The missing
source becomes an entry itself, with the reason. Images, networks and the runtime are not listed.
"""

from collections.abc import Collection, Iterator
from enum import Enum

from attrs import frozen

from devicecore.domain.model import Health
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.doctor.account.dra import DriverPresence
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.account.plugins import is_driver, is_of_others
from devicecore_tools.doctor.account.precedence import KubeletNow, OwnerState, believed_file
from devicecore_tools.doctor.look.names import by_number, name, names
from devicecore_tools.doctor.look.values import (
    CLAIM,
    NO_DIRECTORY,
    NO_FILE,
    NO_FILES,
    NOT_GIVEN,
    NOT_RECORDED,
    NOT_STARTED,
    PLUGINS_PREFIX,
    AllocatedClaimSeen,
    ClaimsSeen,
    Device,
    EventSeen,
    Look,
    PodSeen,
    Source,
    grouped,
)

TO_END = 20.0
"""A pod ends at most this many seconds after its grace period, unless something blocks it."""

TO_ADMIT = 10.0
"""Seconds within which a kubelet admits a pod that was bound to its node, unless the admission of another pod hangs."""


class Kind(Enum):
    """The kind of an entry, by its name in JSON."""

    SOURCE = "sources"
    PLUGIN = "plugins"
    DRIVER = "drivers"
    RESOURCE = "resources"
    POD = "pods"
    DEVICE = "held devices"
    CDI = "CDI devices"
    CLAIM = "claims"
    FILE = "state files"
    CONDITION = "conditions"


@frozen
class Entry:
    """One thing to judge.

    Attributes:
        kind: what kind of thing it is.
        name: the name that identifies the thing among those of its kind.
        hole: why it is unknown whether the thing is sound, as the end of a sentence, or an empty string if it is known.
        resource: the resource or driver whose findings also apply to the thing.
    """

    kind: Kind
    name: str
    hole: str = ""
    resource: str = ""


def entries(facts: Facts) -> Iterator[Entry]:
    """Yield everything in a `Look` that must be checked."""
    yield from _sources(facts)
    yield from _plugins(facts)
    yield from _drivers(facts)
    yield from _resources(facts)
    yield from _pods(facts)
    yield from _devices(facts)
    yield from _claims(facts)
    yield from _cdi(facts)
    yield from _files(facts)
    yield from _conditions(facts)
    yield from _numa_nodes(facts)


_OPTIONAL = (
    (Source.PLUGINS, "a device that no pod can get because of how its plugin lists it"),
    (Source.CDI, "a CDI device that two files define, or that no file defines"),
    (Source.HEALTH, "a driver's unhealthy device"),
    (Source.EVENTS, "an event that says why a pod does not start"),
)
"""Sources that are read only if an option or an API server provides them.

Such a source counts as missing only if it should have been read.
"""


def _sources(facts: Facts) -> Iterator[Entry]:
    """Yield what may be missed because a source was not read, with the reason."""
    look = facts.look
    local = (
        (Source.CHECKPOINT, "a checkpoint entry that is wrong"),
        (Source.SOCKETS, "a plugin or driver that hangs or has ended"),
        (Source.POD_RESOURCES, "what the kubelet allocates to which container"),
        (Source.CLAIMS, "a ResourceClaim that is prepared incorrectly"),
    )
    of_server = (
        (Source.PODS, "a pod that waits, was refused or runs without its devices"),
        (Source.NODE, "a condition, taint or device count of the Node"),
    )
    published = (Source.SLICES, "a driver that publishes devices of this node, or should")
    allocated = (Source.ALLOCATIONS, "a ResourceClaim that has lost its devices")
    wanted = [*(() if look.is_of_server else local), *of_server, published]
    has_claims = bool(facts.dra.drivers) or any(pod.all_claims for pod in bound_here(facts))
    if look.is_of_server or has_claims or look.allocations.was_refused:
        wanted.append(allocated)
    for source, what in _OPTIONAL:
        was_asked = has_claims or look.readings[source].problem != NOT_RECORDED
        wanted += [(source, what)] if look.readings[source].was_refused and was_asked else []
    for source, what in wanted:
        reading = look.readings[source]
        problem = reading.problem or ("" if reading.value is not None else NOT_GIVEN)
        if source is Source.POD_RESOURCES and facts.kubelet in {KubeletNow.STOPPED, KubeletNow.SILENT}:
            problem = ""  # a finding reports this
        why = f": {problem}" if look.is_of_server else ""  # a report on one node lists its sources with the reasons
        yield Entry(
            Kind.SOURCE, source.value, f"{what}, because the source {source.value} was not read{why}" if problem else ""
        )
    api = look.pod_resources.value
    if api is not None and api.allocatable is None and not look.pod_resources.notes:
        hole = "a device that the kubelet gives to no pod, because the kubelet does not offer GetAllocatableResources"
        yield Entry(Kind.SOURCE, "allocatable", hole)
    read = {source: one for source, one in look.readings.items() if one.value is not None}
    for source, reading in read.items():
        notes = reading.notes if source is not Source.STATE_FILES else ()
        for note in notes:
            if not note.startswith((NO_DIRECTORY, NO_FILE)):
                yield Entry(Kind.SOURCE, source.value, f"an unread part of {source.value}: {note}")
    if look.pods.value is not None and facts.pods.why_incomplete and not look.is_of_server:
        is_of_file = not (look.pods.is_whole or look.pods.is_recorded)
        hint = "; --kubeconfig always reads all pods" if is_of_file else ""
        missed = f"a pod that is not in the list of pods: {facts.pods.why_incomplete}{hint}"
        yield Entry(Kind.SOURCE, "all pods", missed)


def _plugins(facts: Facts) -> Iterator[Entry]:
    look, lists = facts.look, facts.lists
    sockets = look.sockets.value
    if sockets is None:
        return
    places = (
        *((one, "device-plugins/") for one in sockets.plugins),
        *((one, "plugins_registry/") for one in sockets.registry),
    )
    kubelet_made = sockets.made.get("device-plugins/kubelet.sock")
    for socket, prefix in places:
        if prefix == "plugins_registry/" and is_driver(socket):
            continue
        serving = next((of for plugin, of in lists.served_by if plugin.socket == socket), ())
        resource = serving[0] if len(serving) == 1 else ""
        hole = ""
        made = sockets.made.get(prefix + socket)
        if sockets.served.get(prefix + socket) is None:
            hole = f"whether a process listens at {name(socket)}, because `doctor` did not try to connect"
        elif len(serving) > 1:
            hole = f"which resource the plugin at {name(socket)} serves: its ids are those of {names(serving)}"
        elif _is_young(made, kubelet_made, look.taken):
            hole = f"whether the plugin at {name(socket)} keeps running: it has just recreated its socket on its own"
        yield Entry(Kind.PLUGIN, socket, hole, resource)
    living = sum(1 for one in sockets.plugins if sockets.served.get(PLUGINS_PREFIX + one))
    yield Entry(Kind.SOURCE, "registration", _registration(facts, living))


def _registration(facts: Facts, living: int) -> str:
    """Return what is unknown about the registration of plugins, or an empty string."""
    look, node = facts.look, facts.look.node.value
    sockets = look.sockets.value
    if facts.kubelet is not KubeletNow.ANSWERS or sockets is None:
        return ""
    if not sockets.kubelet or sockets.served.get(KUBELET_SOCKET) is False:
        why = (
            "no process listens at its registration socket"
            if sockets.kubelet
            else "its registration socket does not exist"
        )
        return f"whether plugins can register: the kubelet answers, but {why} ({KUBELET_SOCKET})"
    known = {*facts.lists.resources, *(node.capacity if node else ())}
    if look.plugins.value is None and living > len(known):
        return (
            f"whether each plugin is registered: there are {counted(living, 'live plugin socket')}, and the kubelet "
            f"knows {counted(len(known), 'resource')}; --plugins asks each plugin for its list"
        )
    return ""


def seconds_to_settle(look: Look) -> float:
    """Return the number of seconds after which all plugins' sockets are old enough to count as stable."""
    sockets = look.sockets.value
    made = sockets.made if sockets else {}
    own = [time for path, time in made.items() if path.startswith(PLUGINS_PREFIX) and path != KUBELET_SOCKET]
    kubelet, now = made.get(KUBELET_SOCKET), look.taken
    if kubelet is None or now is None:
        return 0.0
    return max((_YOUNG - (now - one) for one in own if _is_young(one, kubelet, now)), default=0.0)


def _is_young(made: float | None, kubelet_made: float | None, taken: float | None) -> bool:
    """Return whether a plugin has just created its socket, although the kubelet has not just started."""
    if made is None or kubelet_made is None or taken is None:
        return False
    return 0 <= taken - made < _YOUNG and taken - kubelet_made > 2 * _YOUNG


KUBELET_SOCKET = f"{PLUGINS_PREFIX}kubelet.sock"
_YOUNG = 15.0  # seconds: a plugin that crashes repeatedly is first restarted after 10 s


def _drivers(facts: Facts) -> Iterator[Entry]:
    published = facts.look.slices.value or ()
    of_driver = grouped((one.driver, one) for one in published)
    for driver, state in facts.dra.drivers.items():
        is_unknown = state is DriverPresence.UNKNOWN and not facts.look.is_of_server
        hole = f"whether DRA driver {name(driver)} is running: no socket certainly belongs to it" if is_unknown else ""
        problems = grouped((one.pool_problem, one.pool) for one in of_driver.get(driver, ()))
        for problem, pools in problems.items():
            if problem and not hole:
                what = f"pool {names(tuple(dict.fromkeys(pools)))} of DRA driver {name(driver)}"
                hole = f"whether claims get devices of {what}: {problem}"
        yield Entry(Kind.DRIVER, driver, hole, driver)
    for socket in facts.dra.unasked:
        yield Entry(
            Kind.DRIVER,
            socket,
            f"which driver listens at {name(socket)}, and what it publishes: the socket was not queried",
        )
    for remark, devices in grouped((one.remark, one.device) for one in published if one.is_own and one.remark).items():
        hole = (
            f"what the taint {foreign_text(remark, 200)} means for {counted(len(devices), 'device')} ({names(devices)})"
        )
        yield Entry(Kind.DEVICE, devices[0], hole)
    for driver, of in facts.dra.by_driver.items():
        sick = [key[2] for key, one in of.items() if one.health == Health.UNHEALTHY.value and not one.owners]
        if sick:
            said = f"{driver} says that {names(sick)} {by_number(sick, 'is', 'are')} unhealthy"
            hole = (
                f"whether pods that get devices of {name(driver)} can use them: {said}, but a scheduler allocates them"
            )
            yield Entry(Kind.DEVICE, sick[0], hole, driver)


def _resources(facts: Facts) -> Iterator[Entry]:
    """Yield each resource that the Node, the kubelet, its file, a plugin or a pod names."""
    node, lists = facts.look.node.value, facts.lists
    counted = {**node.capacity, **node.allocatable} if node else {}
    for resource in dict.fromkeys((*counted, *lists.resources)):
        hole = ""
        if node is not None and resource in node.capacity:
            capacity, allocatable = node.capacity[resource], node.allocatable.get(resource, 0)
            if not capacity and not allocatable:
                hole = f"why there are 0 of {name(resource)}: its plugin is gone, or lists no devices"
            elif capacity > allocatable:
                hole = f"which {capacity - allocatable:,} of {capacity:,} {name(resource)} are not allocatable, and why"
        is_open = resource in facts.not_free and not is_of_others(facts.look, lists, resource)
        if is_open and not hole and resource not in lists.left_out:
            hole = f"which devices of {name(resource)} are free: {facts.not_free[resource]}"
        yield Entry(Kind.RESOURCE, resource, hole, resource)


def bound_here(facts: Facts) -> Iterator[PodSeen]:
    """Yield the pods that are bound to this node, including those that wait, were refused or have ended."""
    node = facts.look.node.value
    here = {one.key for one in (*facts.pods.here, *facts.pods.perhaps_here)}
    for pod in facts.pods.by_name.values():
        if pod.key in here or (pod.node and node is not None and pod.node == node.name):
            yield pod


def age(pod: PodSeen, taken: float | None) -> float | None:
    """Return how many seconds ago a pod was bound to its node or created, or None if unknown."""
    since = pod.made_at if pod.bound_at is None else pod.bound_at
    return None if since is None or taken is None else taken - since


def _pods(facts: Facts) -> Iterator[Entry]:
    for pod in bound_here(facts):
        yield Entry(Kind.POD, pod.identity, _why_unknown(facts, pod))


def _why_unknown(facts: Facts, pod: PodSeen) -> str:
    """Return what is unknown about a pod, or an empty string if it is running, has ended, or says why it waits."""
    who = f"pod {name(pod.identity)}"
    if pod.phase in {"", "Unknown"} or pod.said[0] == "NodeLost":
        return f"whether {who} runs: its phase is {pod.phase or 'unknown'} {foreign_text(pod.said[0], 100)}".rstrip()
    doubts = (_why_stopped(pod, who), _why_not_ended(facts, pod, who), _told_otherwise(facts, pod))
    return next(filter(None, (*doubts, _why_waiting(facts, pod, who))), "")


def _why_stopped(pod: PodSeen, who: str) -> str:
    """Return what a kubelet or a runtime did to a pod with devices although the pod is not at fault, or ""."""
    if not pod.asks_for_devices:
        return ""
    if pod.phase == "Failed" and pod.said[0] in _ENDED_BY_KUBELET:
        said = foreign_text(": ".join(filter(None, pod.said)), 300).rstrip(".")
        return f"whether more pods with devices, like {who}, are terminated here: {said}"
    for container, (reason, message) in pod.waiting.items():
        if reason in NOT_STARTED:
            said = foreign_text(f"{reason}: {message}", 300).rstrip(".")
            return f"whether container {name(container)} of {who} does not start because of its devices: {said}"
    return ""


def _why_not_ended(facts: Facts, pod: PodSeen, who: str) -> str:
    taken = facts.look.taken
    is_late = pod.is_deleting and pod.ends_by is not None and taken is not None and taken - pod.ends_by > TO_END
    return f"why {who} has not ended: its grace period is over" if is_late and not pod.has_ended else ""


def _why_waiting(facts: Facts, pod: PodSeen, who: str) -> str:
    if pod.phase != "Pending" or pod.is_deleting:
        return ""
    if not pod.is_acknowledged:
        return f"whether the kubelet admits {who}, which was sent to this node"
    if any(reason not in _BEGINNING for reason, _ in pod.waiting.values()):
        return ""  # the status shows what the pod waits for: an image, a ConfigMap, or something that a check covers
    late, failed = age(pod, facts.look.taken), _failure(facts, pod)
    if not pod.asks_for_devices and (pod.has_sandbox or not (failed or _lacks_sandbox(facts, pod, late))):
        return ""  # the kubelet may be pulling a large image
    said = f"{failed.reason}: {foreign_text(failed.message, 300).rstrip('.')}" if failed else _NOT_SAID
    return "" if late is not None and late < TO_ADMIT else f"why {who} does not start: {said}"


def _failure(facts: Facts, pod: PodSeen) -> EventSeen | None:
    """Return the last event that says why a pod does not start."""
    about = facts.look.events_of_pods.get(pod.place, ())
    failed = [one for one in about if one.reason in _FAILURES and one.pod_uid in ("", str(pod.pod.uid))]
    return max(failed, key=lambda one: one.last, default=None)


def without_sandbox(facts: Facts) -> Iterator[tuple[PodSeen, EventSeen]]:
    """Yield this node's pods for which the runtime cannot create a sandbox, each with the event that says why."""
    for pod in bound_here(facts):
        failed = _failure(facts, pod) if pod.phase == "Pending" and not pod.has_sandbox else None
        if failed is not None and failed.reason == _NO_SANDBOX:
            yield pod, failed


def _lacks_sandbox(facts: Facts, pod: PodSeen, late: float | None) -> bool:
    """Return whether a pod has had no sandbox for a long time, and no events were read that might say why."""
    return pod.lacks_sandbox and facts.look.events.value is None and late is not None and late > _TO_BEGIN


_NO_SANDBOX = "FailedCreatePodSandBox"
_FAILURES = frozenset({_NO_SANDBOX, "FailedPrepareDynamicResources"})
_NOT_SAID = "its status does not show why"
_TO_BEGIN = 60.0  # seconds until a pod has its volumes and its network


def _told_otherwise(facts: Facts, pod: PodSeen) -> str:
    """Return the first thing in a pod's status that the kubelet's lists contradict, or an empty string."""
    if facts.kubelet is not KubeletNow.ANSWERS or pod.has_ended:
        return ""
    for (container, resource), devices in pod.statuses.items():
        if resource.startswith(CLAIM):
            sick = [device for device, told in devices.items() if told == Health.UNHEALTHY.value]
            if sick and not facts.dra.has_unhealthy:
                what = f"{names(sick)} of claim {name(resource.removeprefix(CLAIM))}"
                return f"whether {what} is healthy: the status of {pod.identity} says {Health.UNHEALTHY.value}"
            continue
        for device, told in devices.items():
            owners = facts.holders.by_device.get(resource, {}).get(device, ())
            if told != Health.HEALTHY.value and facts.lists.health(resource, device, facts.holders) == "Healthy":
                return (
                    f"whether {name(device)} of {name(resource)} is healthy: the status of {pod.identity} says {told}"
                )
            if all(pod.identity != one.identity for one in owners):
                return (
                    f"whether container {name(container)} of pod {name(pod.identity)} holds {name(device)} of "
                    f"{name(resource)}: only the pod's status says so"
                )
    return ""


_ENDED_BY_KUBELET = frozenset({"Evicted", "Preempting", "Terminated", "Shutdown", "NodeShutdown"})
_BEGINNING = frozenset({"", "ContainerCreating", "PodInitializing"})


def _numa_nodes(facts: Facts) -> Iterator[Entry]:
    """Yield the devices' NUMA nodes with suspiciously high numbers, if the machine's NUMA nodes are unknown."""
    if facts.look.machine is None:
        named = {node for devices in facts.numa_nodes.values() for nodes in devices.values() for node in nodes}
        odd = sorted(node for node in named if node > len(named))
        if odd:
            shown = ", ".join(map(str, odd[:8]))
            yield Entry(Kind.SOURCE, "machine", f"devices on NUMA node {shown}, which the machine may not have")


def _devices(facts: Facts) -> Iterator[Entry]:
    for resource, devices in facts.holders.by_device.items():
        for device, owners in devices.items():
            living = [one for one in owners if one.state is not OwnerState.STALE]
            unsure = living and all(one.state is OwnerState.UNKNOWN for one in living)
            if living:
                holder = f"container {name(living[0].container)} of pod {name(living[0].identity)}"
                hole = f"whether {holder} still holds devices of {name(resource)}" if unsure else ""
                yield Entry(Kind.DEVICE, device, "" if facts.look.is_of_server else hole, resource)


def _claims(facts: Facts) -> Iterator[Entry]:
    """Yield each claim that is prepared here, or that has devices of this node according to the API server."""
    prepared, allocations = facts.look.claims.value or ClaimsSeen(), facts.look.allocations.value or ()
    at_server = {one.claim: one for one in allocations if any(key in facts.dra.devices for key in one.devices)}
    of_claim = grouped((one.claim, one.key) for one in prepared.devices)
    for claim in dict.fromkeys((*prepared.pods, *at_server)):
        devices, uids, known = of_claim.get(claim, []), prepared.pods.get(claim, ()), at_server.get(claim)
        remarks = known.remarks if known else ()
        holes = (
            _why_not_released(facts, claim, uids),
            _why_unhealthy(facts, claim, devices),
            _other_devices(claim, devices, known),
            *(
                f"whether {name(key[2])} of ResourceClaim {name(claim)} works: its driver says {said}"
                for key, said in remarks
            ),
            _why_kept(facts, known) if known and not uids else "",
        )
        yield Entry(Kind.CLAIM, claim, next(filter(None, holes), ""))


def _why_not_released(facts: Facts, claim: str, uids: Collection[str]) -> str:
    if not uids or not facts.pods.is_complete or any(uid in facts.pods.by_uid for uid in uids):
        return ""
    return f"whether ResourceClaim {name(claim)} is released: it is prepared, and its pods are gone"


def _why_unhealthy(facts: Facts, claim: str, devices: Collection[Device]) -> str:
    told = facts.look.health.value or {}
    unsure = [key[2] for key in devices if told.get(key) == "Unknown"]
    said = (
        f"whether {names(unsure)} of ResourceClaim {name(claim)} is healthy: the driver has not reported the health "
        "recently"
    )
    return said if unsure else ""


def _other_devices(claim: str, prepared: Collection[Device], known: AllocatedClaimSeen | None) -> str:
    """Return a sentence that names devices that a driver has prepared instead of those allocated on the API server.

    A driver may prepare more devices than the claim has, such as the parts of a device.
    """
    allocated = known.devices if known else ()
    drivers = {key[0] for key in prepared}
    missing = [key[2] for key in allocated if key[0] in drivers and key not in prepared]
    others = [key[2] for key in prepared if key not in allocated]
    if not (missing and others):
        return ""
    what = f"ResourceClaim {name(claim)} has {names(missing)}, but its driver has prepared {names(others)}"
    return f"which devices a claim's pods use: {what}"


def _why_kept(facts: Facts, claim: AllocatedClaimSeen) -> str:
    """Return what is unknown about a claim that keeps devices although no pod here uses it, or ""."""
    taken, pods = facts.look.taken, claim.pods
    if taken is None or not pods or not facts.pods.is_complete or not facts.look.pods.is_whole_or_recorded:
        return ""
    is_old = claim.allocated_at is not None and taken - claim.allocated_at > _TO_BIND
    if not (is_old or claim.is_deleting) or any(uid in facts.pods.by_uid for uid in pods):
        return ""
    deleted = "is being deleted, and " if claim.is_deleting else ""
    kept = names([key[2] for key in claim.devices])
    said = f"{deleted}is reserved for pods that are not here"
    return f"whether {kept} can be given to other pods: ResourceClaim {name(claim.claim)} has it, and {said}"


_TO_BIND = 900.0  # seconds: a scheduler waits up to ten minutes before it binds the pod, and clocks may differ


def _cdi(facts: Facts) -> Iterator[Entry]:
    cdi, file = facts.look.cdi, believed_file(facts.look)
    given = {(device, str(one.resource)): None for one in (file.receipts if file else ()) for device in one.cdi_devices}
    prepared = facts.look.claims.value
    if cdi.value is not None or cdi.place:  # handwritten records of nodes with drivers have no CDI files
        given |= {(id_, one.driver): None for one in (prepared.devices if prepared else ()) for id_ in one.cdi_devices}
    why = cdi.problem if cdi.value is None else "" if cdi.value.is_complete else "not all CDI files could be read"
    for device, resource in given:
        hole = f"a CDI device that was given to a container but that no file defines: {why}" if why else ""
        yield Entry(Kind.CDI, device, hole, resource)


def _files(facts: Facts) -> Iterator[Entry]:
    reading = facts.look.state_files
    if facts.look.is_of_server:
        return
    for one in reading.value or ():
        yield Entry(Kind.FILE, one.name)
    unread = reading.notes if reading.value is not None else (reading.problem,)
    for note in unread:
        if note and note != NO_FILES:
            yield Entry(Kind.FILE, "", f"a state file with which a kubelet cannot start: {note}")


def _conditions(facts: Facts) -> Iterator[Entry]:
    node, taken = facts.look.node.value, facts.look.taken
    if node is not None:
        if (
            node.heard_at is not None
            and taken is not None
            and taken - node.heard_at > _TO_REPORT
            and not node.is_silent
        ):
            ago = f"{(taken - node.heard_at) / 60:,.0f} minutes"
            yield Entry(Kind.CONDITION, "Ready", f"whether the Node's status, which is {ago} old, is still true")
        hole = (
            "" if node.ready or not facts.look.is_of_server else "whether the Node is Ready: it has no such condition"
        )
        yield Entry(Kind.CONDITION, "Ready", hole)
        for condition, said in node.unsettled.items():
            text = foreign_text(said, 300)
            yield Entry(Kind.CONDITION, condition, f"a device fault behind the Node's {name(condition)}: {text}")
        yield from (Entry(Kind.CONDITION, one) for one in (*node.pressures, *map(str, node.taints)))


_TO_REPORT = 600.0  # seconds: a kubelet writes a Node's status every 5 minutes if nothing changes
