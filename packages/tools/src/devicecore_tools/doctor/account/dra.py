"""The devices of DRA drivers: which exist, who holds them, and which drivers are gone.

Laws: a device is free only if every source that could name a holder was read: the kubelet's answer and its file, and
the slices and ResourceClaims from the API server. A driver counts as gone only if no registration socket can belong to
it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property

from attrs import field, frozen

from devicecore.domain.model import Health
from devicecore_tools.doctor.account.plugins import is_driver
from devicecore_tools.doctor.account.precedence import KubeletNow, Owner, OwnerState, Pods
from devicecore_tools.doctor.look.values import (
    REGISTRY_PREFIX,
    ClaimedDeviceSeen,
    Device,
    EventSeen,
    Look,
    PodSeen,
    PublishedDeviceSeen,
    SocketsSeen,
    Source,
    grouped,
)

Left = Mapping[tuple[str, str], int]
"""What is left of a pool's counters."""

_OF_HELPER = "dra-"  # sockets of the helper from Kubernetes 1.37, whose names contain a hash, not the driver's name
_DRIVER = "DRAPlugin"  # the type that a driver reports
_OF_STORAGE = re.compile(r"(^|[.-])csi[.-]")  # sockets of CSI drivers, which exist on each node


class DriverPresence(Enum):
    """Whether a driver can be registered with the kubelet, according to the plugin watcher's sockets."""

    ALIVE = "alive"
    GONE = "gone"
    SILENT = "silent"
    UNUSABLE = "unusable"
    UNKNOWN = "unknown"
    NOT_NEEDED = "not needed"

    @property
    def prepares_nothing(self) -> bool:
        """Whether the driver certainly cannot prepare or release claims now."""
        return self in {DriverPresence.GONE, DriverPresence.SILENT, DriverPresence.UNUSABLE}


@frozen
class DraDevice:
    """A driver's device: who holds it, for which claims, and its health as the kubelet last recorded it.

    `pending` names the claims to which the device is allocated on the API server, but which the kubelet has not
    prepared yet. `watchers` are the claims with only admin access to the device, which leaves it available. `is_own`
    says whether this node's driver published the device. `has_room` says whether the device's pool has enough left for
    a claim on this node to get the device, or is None if unknown.
    """

    owners: tuple[Owner, ...] = ()
    claims: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    health: str = "unknown"
    sources: tuple[Source, ...] = ()
    numa_nodes: tuple[int, ...] | None = None
    is_tainted: bool = False
    is_own: bool = False
    has_room: bool | None = True
    watchers: tuple[str, ...] = ()


@frozen
class DraDevices:
    """What is known about drivers and claims.

    Attributes:
        devices: every device that a source names, by driver, pool and name.
        drivers: the state of each driver that a source names.
        why_not_free: why no device can count as free, or an empty string if devices can count as free.
        allocated: for each claim on the API server, the drivers of its devices, or none if the claim is not allocated.
        waiting: the admitted pods that wait, without a sandbox, for claims to be prepared, with these claims.
        last_event: by namespace and name, each pod's last event that says why its claims are not prepared.
        ended: the drivers that have left their registration sockets behind. A kubelet counts these drivers as
            registered.
        silent: the registration sockets of drivers that do not answer and that no other source names.
        left: the registration sockets that have no process and whose drivers no source names any longer.
        unasked: the registration sockets that were not called and whose drivers no other source names.
        unusable: why a kubelet cannot call a driver that answers at its registration socket.
    """

    devices: Mapping[Device, DraDevice]
    drivers: Mapping[str, DriverPresence]
    why_not_free: str
    allocated: Mapping[str, tuple[str, ...]]
    waiting: tuple[tuple[PodSeen, tuple[str, ...]], ...]
    last_event: Mapping[tuple[str, str], EventSeen] = field(factory=dict)
    ended: frozenset[str] = frozenset()
    silent: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()
    unusable: Mapping[str, str] = field(factory=dict)

    @classmethod
    def of(cls, look: Look, kubelet: KubeletNow, pods: Pods) -> "DraDevices":
        """Return what a `Look` shows about drivers and claims."""
        prepared = look.claims.value
        drivers = {one.driver for one in look.slices.value or () if one.needs_driver}
        drivers |= set(registered_drivers(look))
        if prepared:
            for of_claim in prepared.drivers.values():
                drivers.update(of_claim)
        allocated = {
            one.claim: tuple({device[0]: None for device in one.devices}) for one in look.allocations.value or ()
        }
        waiting = []
        of_claims, entered = (prepared.pods, prepared.unanswered) if prepared else ({}, {})
        last_event = dict(_last_events(look.events.value or ()))
        if prepared is None or not prepared.problem:
            for pod in pods.here:
                uid = pod.pod.uid
                missing = tuple(one for one in pod.all_claims if uid not in of_claims.get(one, ()) or entered.get(one))
                told = prepared is not None or pod.place in last_event
                if missing and told and pod.phase == "Pending" and not pod.has_sandbox:
                    waiting.append((pod, missing))
                    drivers.update(driver for claim in missing for driver in allocated.get(claim, ()))
        states, ended, unusable = _driver_states(look, drivers)
        states = {**{one.driver: DriverPresence.NOT_NEEDED for one in look.slices.value or ()}, **states}
        return cls(
            dict(_devices(look, pods)),
            states,
            _why_not_free(look, kubelet, pods),
            allocated,
            tuple(waiting),
            last_event,
            ended,
            tuple(_silent_strangers(look, states)),
            tuple(_left_by_strangers(look, states)),
            tuple(_unasked_strangers(look, states)),
            unusable,
        )

    def drivers_of(self, claims: Iterable[str]) -> tuple[str, ...]:
        """Return the drivers of allocated claims, without duplicates."""
        return tuple(dict.fromkeys(driver for claim in claims for driver in self.allocated.get(claim, ())))

    def why_gone(self, driver: str) -> str:
        """Return what is known about a driver that is gone or silent, phrased as the end of a sentence."""
        if self.drivers.get(driver) is DriverPresence.SILENT:
            return "does not answer"
        if driver in self.unusable:
            return f"cannot be called: {self.unusable[driver]}"
        return "has exited" if driver in self.ended else "is not registered with the kubelet"

    @cached_property
    def has_unhealthy(self) -> bool:
        """Whether any driver's device is known to be unhealthy."""
        return any(one.health == Health.UNHEALTHY.value for one in self.devices.values())

    @cached_property
    def by_driver(self) -> Mapping[str, Mapping[Device, DraDevice]]:
        """The devices of each driver."""
        found: dict[str, dict[Device, DraDevice]] = {}
        for key, one in self.devices.items():
            found.setdefault(key[0], {})[key] = one
        return found

    def holding(self, driver: str) -> tuple[Owner, ...]:
        """Return the containers that hold devices of a driver, except those whose pods are gone."""
        owners = (owner for one in self.by_driver.get(driver, {}).values() for owner in one.owners)
        return tuple(dict.fromkeys(owner for owner in owners if owner.state is not OwnerState.STALE))


def registered_drivers(look: Look) -> Iterator[str]:
    """Return the names of the drivers that have answered at their registration sockets."""
    named = look.sockets.value.named if look.sockets.value else {}
    return (said for kind, said in named.values() if kind == _DRIVER and said)


def _last_events(events: Iterable[EventSeen]) -> Iterator[tuple[tuple[str, str], EventSeen]]:
    for event in sorted(events, key=lambda one: one.last):
        if event.reason == "FailedPrepareDynamicResources":
            yield (event.namespace, event.pod), event


def _why_not_free(look: Look, kubelet: KubeletNow, pods: Pods) -> str:
    if look.pod_resources.value is None or look.pod_resources.value.version != "v1":
        return f"the kubelet's answer was not read: {look.pod_resources.problem or 'it does not serve v1'}"
    if kubelet is not KubeletNow.ANSWERS:
        return "the kubelet has just started, and lists no pods yet"
    if look.claims.value is None or look.claims.value.problem:
        return "the kubelet's claims file (dra_manager_state) was not read, or is damaged"
    for what, reading in (("ResourceSlices", look.slices), ("ResourceClaims from the API server", look.allocations)):
        if reading.value is None:
            return f"the {what} were not read: {reading.problem}"
    if not pods.is_complete:
        return pods.doubt
    known = {one.claim for one in look.allocations.value or () if one.devices}
    lost = sorted({f"{one.namespace}/{one.claim}" for one in look.pod_resources.value.claimed} - known)
    return (
        f"the ResourceClaims from the API server lack the devices of {lost[0]}, which the kubelet lists" if lost else ""
    )


def _devices(look: Look, pods: Pods) -> Iterator[tuple[Device, DraDevice]]:
    file, health = look.claims.value, look.health.value or {}
    prepared = file.devices if file and not file.problem else ()
    watched = {(one.claim, key) for one in look.allocations.value or () for key in one.only_watched}
    in_api = grouped((one.key, one) for one in look.claimed if (f"{one.namespace}/{one.claim}", one.key) not in watched)
    in_file = grouped((one.key, one.claim) for one in prepared if (one.claim, one.key) not in watched)
    watchers = grouped((key, claim) for claim, key in sorted(watched))
    cdi = {one.key: one.cdi_devices[0] for one in prepared if one.cdi_devices}
    allocated = grouped(
        (key, one.claim) for one in look.allocations.value or () for key in one.devices if key not in one.only_watched
    )
    published = {one.key: one for one in look.slices.value or ()}
    left = _left(published, allocated, {*allocated, *in_api, *in_file})
    here = {key[:2] for key in (*published, *in_api, *in_file)}
    for key in sorted({*published, *in_api, *in_file, *(key for key in allocated if key[:2] in here)}):
        listed = in_api.get(key, ())
        claims = dict.fromkeys((*in_file.get(key, ()), *(f"{one.namespace}/{one.claim}" for one in listed)))
        owners = tuple(_owners(look, pods, listed, in_file.get(key, ())))
        places = ((Source.SLICES, published), (Source.ALLOCATIONS, allocated))
        one = published.get(key, PublishedDeviceSeen(*key))
        # a kubelet clears the health when the driver exits
        told = health.get(key, "" if look.health.value is None else "unknown")
        yield (
            key,
            DraDevice(
                owners,
                tuple(claims),
                tuple(claim for claim in dict.fromkeys(allocated.get(key, ())) if claim not in claims),
                told or _told(owners, (cdi.get(key, ""), "/".join(key))),
                tuple(source for source, names in places if key in names),
                one.numa_nodes,
                bool(one.taint),
                key in published and one.is_own,
                one.is_usable and _has_room(one, *left.get(key[:2], ({}, {}))),
                tuple(watchers.get(key, ())),
            ),
        )


def _left(
    published: Mapping[Device, PublishedDeviceSeen], taken: Iterable[Device], used: Iterable[Device]
) -> Mapping[tuple[str, str], tuple[Left, Left]]:
    """Return, for each pool, what is left of its counters next to the devices in `used`, and next to those in `taken`.

    Some of the devices in `used` may only be watched, which leaves them available.
    """
    in_use, gone = (grouped((key[:2], key[2]) for key in keys) for keys in (used, taken))
    pools = {key[:2]: one.counters for key, one in published.items() if one.counters}
    return {key: (of.beside(in_use.get(key, ())), of.beside(gone.get(key, ()))) for key, of in pools.items()}


def _has_room(one: PublishedDeviceSeen, beside_used: Left, beside_taken: Left) -> bool | None:
    """Return whether a pool's counters have enough left for a device, or None if unknown."""
    if one.counters is None or one.counters.suffice(one.device, beside_used):
        return True
    return None if one.counters.suffice(one.device, beside_taken) else False


def _told(owners: Iterable[Owner], names: tuple[str, ...]) -> str:
    """Return a device's health from the status of its holder, which lists devices by first CDI name or full name."""
    told = {
        health
        for owner in owners
        if owner.pod is not None
        for name in names
        for health in owner.pod.told_of_claims.get(name, ())
    }
    return told.pop() if len(told) == 1 else "unknown"


def _owners(look: Look, pods: Pods, listed: Iterable[ClaimedDeviceSeen], claims: Iterable[str]) -> Iterator[Owner]:
    """Yield the containers that hold a device: first those in the kubelet's answer, then those in its file."""
    prepared = look.claims.value
    names = set()
    for one in listed:
        pod = pods.by_name.get((one.namespace, one.pod))
        in_file = prepared is not None and f"{one.namespace}/{one.claim}" in prepared.pods
        sources = (*((Source.CLAIMS,) if in_file else ()), Source.POD_RESOURCES)
        uid = str(pod.pod.uid) if pod else ""
        names.add((one.namespace, one.pod))
        yield Owner(uid, one.namespace, one.pod, one.container, sources, OwnerState.LIVE, pod)
    for claim in claims:
        unread = [name for name in names if name[0] == claim.partition("/")[0] and name not in pods.by_name]
        uids = prepared.pods.get(claim, ()) if prepared else ()
        are_listed = len(unread) >= sum(uid not in pods.by_uid for uid in uids)
        for uid in uids:
            found = pods.by_uid.get(uid)
            if found is None:
                if are_listed:
                    continue  # the kubelet lists at least as many unknown pods as its file, so they are the same
                state = OwnerState.STALE if pods.is_complete else OwnerState.UNKNOWN
                yield Owner(uid, "", "", "", (Source.CLAIMS,), state)
            elif found.place not in names:
                state = OwnerState.STALE if found.has_ended else OwnerState.LIVE
                for container in [name for name, of in found.claims.items() if claim in of] or [""]:
                    yield Owner(uid, *found.place, container, (Source.CLAIMS, Source.PODS), state, found)


def _driver_states(
    look: Look, drivers: Iterable[str]
) -> tuple[Mapping[str, DriverPresence], frozenset[str], Mapping[str, str]]:
    """Return each driver's state, the drivers that exited and left a socket, and why other drivers cannot be called.

    A socket belongs to the driver that its process names. If the process was not queried, the socket is
    attributed to the driver whose name is a prefix of the socket's name. If there is no such driver, the socket may
    belong to any driver, because a kubelet accepts sockets with any name. A kubelet forgets the health of a driver's
    devices when the driver exits.
    """
    known = sorted(drivers)
    sockets = look.sockets.value
    if sockets is None or not sockets.kubelet:
        return dict.fromkeys(known, DriverPresence.UNKNOWN), frozenset(), {}
    own: dict[str, list[bool | None]] = {driver: [] for driver in known}
    anybodys, silent, unusable = [], set[str](), dict[str, str]()
    for name in sockets.registry:
        path = f"{REGISTRY_PREFIX}{name}"
        served = sockets.served.get(path)
        kind, said = sockets.named.get(path, ("", ""))
        base = name.rpartition("/")[2]
        driver = said if kind else next((one for one in _prefixes(base) if one in own), "")
        if driver in own and kind in {"", _DRIVER}:
            own[driver].append(served and path not in sockets.silent and path not in sockets.unusable)
            unusable |= {driver: sockets.unusable[path]} if served and path in sockets.unusable else {}
            silent.update({driver} if path in sockets.silent else ())
        elif not kind and not _OF_STORAGE.search(base) and served is not False:
            anybodys.append(path)
    for driver, _, _ in (key for key, told in (look.health.value or {}).items() if told not in {"", "unknown"}):
        if not own.get(driver, [True]) and driver not in unusable:
            own[driver].append(True)
    missing = [driver for driver, of in own.items() if not of]
    if len(missing) == len(anybodys) == 1 and _is_silent_driver(sockets, anybodys[0]):
        silent.update(missing)
    states = {driver: _state(of, anybodys=bool(anybodys)) for driver, of in own.items()}
    states |= {one: DriverPresence.SILENT for one in silent if states[one] is not DriverPresence.ALIVE}
    unusable = {one: why for one, why in unusable.items() if states[one] is DriverPresence.GONE}
    states |= dict.fromkeys(unusable, DriverPresence.UNUSABLE)
    ended = {one for one, state in states.items() if state is DriverPresence.GONE and own[one]}
    return states, frozenset(ended), unusable


def _silent_strangers(look: Look, drivers: Mapping[str, DriverPresence]) -> Iterator[str]:
    sockets = look.sockets.value or SocketsSeen()
    for path in sockets.silent:
        base = path.rpartition("/")[2]
        is_known = any(one in drivers for one in _prefixes(base)) or DriverPresence.SILENT in drivers.values()
        if path.startswith(REGISTRY_PREFIX) and is_driver(base) and not (is_known or _OF_STORAGE.search(base)):
            yield path.removeprefix(REGISTRY_PREFIX)


def _unasked_strangers(look: Look, drivers: Mapping[str, DriverPresence]) -> Iterator[str]:
    sockets = look.sockets.value or SocketsSeen()
    for name in sockets.registry:
        path, base = REGISTRY_PREFIX + name, name.rpartition("/")[2]
        is_known = path in sockets.named or path in sockets.silent or any(one in drivers for one in _prefixes(base))
        if sockets.served.get(path) and is_driver(base) and not (is_known or _OF_STORAGE.search(base)):
            yield name


def _left_by_strangers(look: Look, drivers: Mapping[str, DriverPresence]) -> Iterator[str]:
    """Yield the dead sockets of drivers that no source names any longer, because a kubelet has deleted their slices.

    A process that listens on a socket but has not reported its name may be a new instance of a driver.
    """
    sockets = look.sockets.value or SocketsSeen()
    watched = {path: served for path, served in sockets.served.items() if path.startswith(REGISTRY_PREFIX)}
    drivers_of_devices = [path for path in watched if not _OF_STORAGE.search(path.rpartition("/")[2])]
    known = {*drivers, *(name for kind, name in sockets.named.values() if kind == _DRIVER)}
    if look.slices.value is None or any(watched[one] and one not in sockets.named for one in drivers_of_devices):
        return
    for path in drivers_of_devices:
        base = path.rpartition("/")[2]
        is_known = base.startswith(_OF_HELPER) or any(one in known for one in _prefixes(base))
        if not watched[path] and is_driver(base) and not is_known:
            yield path.removeprefix(REGISTRY_PREFIX)


def _is_silent_driver(sockets: SocketsSeen, path: str) -> bool:
    """Return whether a socket certainly belongs to a driver whose process does not answer."""
    return path in sockets.silent and path.removeprefix(REGISTRY_PREFIX).startswith(_OF_HELPER)


def _prefixes(name: str) -> Iterator[str]:
    """Yield the possible driver names in a socket's name: `<driver>[-<more>]-reg.sock` or `<driver>.sock`."""
    yield name.removesuffix(".sock")
    while "-" in name:
        name = name.rpartition("-")[0]
        yield name


def _state(served: list[bool | None], *, anybodys: bool) -> DriverPresence:
    if True in served:
        return DriverPresence.ALIVE
    return DriverPresence.UNKNOWN if anybodys or None in served else DriverPresence.GONE
