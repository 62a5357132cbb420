"""Checks of DRA drivers and claims, and of plugins' devices that a ResourceClaim holds.

Law: a holder does not count if its pod is known to be gone.
"""

from collections.abc import Iterator

from devicecore.domain.text import counted, foreign_text
from devicecore_tools.doctor.account.claims import ClaimedHardware, SameDevice
from devicecore_tools.doctor.account.dra import DraDevices, DriverPresence, registered_drivers
from devicecore_tools.doctor.account.precedence import Holders, KubeletNow, Lists, OwnerState, Pods
from devicecore_tools.doctor.findings.finding import Evidence, Found, as_told, described
from devicecore_tools.doctor.look.names import by_number, devices_of, name, names
from devicecore_tools.doctor.look.values import CLAIM, EventSeen, Look, PodSeen, Source, grouped

_MAX_MESSAGE = 300  # the maximum number of characters of an event that are shown
_UNTIL_RESTART = (
    "The running kubelet still knows the claim, and writes the file when it next prepares or releases one. If the "
    "kubelet restarts before then, it forgets the claim: containers cannot start again, and no driver is called to "
    "release the claim."
)


def plugin_and_claim(holders: Holders, claimed: ClaimedHardware) -> Iterator[Found]:
    """Find containers that hold a plugin's device although the device is also prepared for a ResourceClaim."""
    if not claimed:
        return
    seen: set[tuple[str, str]] = set()
    for allocation in holders.allocations:
        owner = allocation.owner
        if owner.state is OwnerState.STALE:
            continue
        for device in allocation.devices:
            same = claimed.find(allocation.resource, device)
            if same is None or (allocation.resource, device) in seen:
                continue
            seen.add((allocation.resource, device))
            holder = described(owner)
            sentence = (
                f"Device {name(device)} of {allocation.resource} belongs to {holder}, and also to ResourceClaim "
                f"{name(same.prepared.claim)}, for which {same.prepared.driver} has prepared it: {same.because}."
            )
            evidence = (Evidence(owner.sources[0], f"{holder}: {name(device)}"), *_of_claim(same))
            yield Found(sentence, evidence, allocation.resource, (device,), pods=(owner.identity,))


def offered_and_claimed(holders: Holders, lists: Lists, claimed: ClaimedHardware) -> Iterator[Found]:
    """Find devices that a plugin offers and no container holds, but that are prepared for a ResourceClaim."""
    if not claimed:
        return
    for resource in lists.resources:
        for device in lists.devices[resource]:
            if resource not in lists.is_confirmed | lists.left_out or device not in lists.healthy[resource]:
                continue
            if device in holders.in_use.get(resource, ()):
                continue
            same = claimed.find(resource, device)
            if same is not None:
                sentence = (
                    f"The plugin for {resource} offers device {name(device)}, which {same.prepared.driver} has "
                    f"prepared for ResourceClaim {name(same.prepared.claim)}: {same.because}."
                )
                source = Source.PLUGINS if resource in lists.listed else lists.source
                evidence = (Evidence(source, f"{name(device)} is healthy"), *_of_claim(same))
                yield Found(sentence, evidence, resource, (device,))


def driver_gone(kubelet: KubeletNow, dra: DraDevices) -> Iterator[Found]:
    """Find drivers that are not registered although pods use or await their devices, or slices list the devices.

    Also find the registration sockets that other drivers have left behind.
    """
    if kubelet in {KubeletNow.STARTING, KubeletNow.STOPPED}:
        return  # a kubelet that has just started registers each driver within seconds
    for socket in dra.left:
        sentence = (
            f"A driver exited and left its registration socket {name(socket)} behind. No source names any of its "
            "devices."
        )
        yield Found(sentence, (Evidence(Source.SOCKETS, "no process listens there"),), next=_LEFT)
    waiting_for = grouped((driver, pod.identity) for pod, claims in dra.waiting for driver in dra.drivers_of(claims))
    for driver, state in dra.drivers.items():
        if state is not DriverPresence.GONE:
            continue
        pods, devices = _used(dra, driver)
        waiting = waiting_for.get(driver, [])
        if not (pods or devices or waiting):
            continue
        holds = (
            f" {counted(len(pods), 'pod')} {by_number(pods, 'holds', 'hold')} its devices ({names(pods)}), and each "
            "claim's last pod cannot end while the driver is gone."
            if pods
            else ""
        )
        waits = f" {counted(len(waiting), 'pod')} cannot start ({names(waiting)})." if waiting else ""
        sentence = f"DRA driver {name(driver)} {dra.why_gone(driver)}: no process listens at its sockets.{holds}{waits}"
        evidence = [Evidence(Source.SOCKETS, "no process listens at a registration socket of the driver")]
        if devices:
            evidence.append(Evidence(Source.SLICES, f"{devices_of(devices, driver)} still published"))
        yield Found(sentence, tuple(evidence), driver, devices, pods=(*pods, *waiting))


_LEFT = (
    "The kubelet has deleted the driver's ResourceSlices, so no pod that requests its devices is scheduled to this "
    "node. If the driver was removed on purpose, only the socket is left."
)
_OF_A_STRANGER = (
    "The kubelet can neither prepare nor release the driver's claims. No source names the driver or any of its devices."
)
_NO_ANSWER = Evidence(Source.SOCKETS, "a process listens but does not answer GetInfo")


def driver_silent(kubelet: KubeletNow, dra: DraDevices) -> Iterator[Found]:
    """Find drivers that listen at their socket without answering, and drivers that a kubelet cannot call."""
    if kubelet is KubeletNow.STOPPED:
        return
    for driver, why in dra.unusable.items():
        pods, devices = _used(dra, driver)
        sentence = f"DRA driver {name(driver)} answers at its registration socket, but no kubelet can call it: {why}."
        evidence = Evidence(Source.SOCKETS, f"{name(driver)}: {why}")
        brief = f"DRA driver {driver} cannot be called"
        yield Found(sentence, (evidence,), driver, devices, pods=pods, brief=brief)
    for driver, state in dra.drivers.items():
        if state is not DriverPresence.SILENT:
            continue
        pods, devices = _used(dra, driver)
        holds = f" {counted(len(pods), 'pod')} {by_number(pods, 'holds', 'hold')} its devices ({names(pods)})."
        sentence = f"DRA driver {name(driver)} does not answer at its registration socket.{holds * bool(pods)}"
        yield Found(sentence, (_NO_ANSWER,), driver, devices, pods=pods)
    for socket in dra.silent:
        yield Found(f"The driver at {name(socket)} does not answer.", (_NO_ANSWER,), next=_OF_A_STRANGER)


def _used(dra: DraDevices, driver: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the pods that hold a driver's devices, and the devices that the driver has published for this node."""
    pods = tuple(dict.fromkeys(one.identity for one in dra.holding(driver)))
    return pods, tuple(key[2] for key, one in dra.by_driver.get(driver, {}).items() if one.is_own)


def pod_waits_for_claim(dra: DraDevices) -> Iterator[Found]:
    """Find pods that are bound to this node and wait because a claim cannot be prepared."""
    for pod, claims in dra.waiting:
        event = dra.last_event.get(pod.place)
        gone = [one for one in dra.drivers_of(claims) if _prepares_nothing(dra, one)]
        if event is not None and event.pod_uid in {"", str(pod.pod.uid)}:
            told = Evidence(Source.EVENTS, f"{event.reason}: {foreign_text(event.message, _MAX_MESSAGE)}")
            yield _waits(pod, claims, foreign_text(_cause(event), _MAX_MESSAGE), told)
        elif gone:
            problem = f"DRA driver {gone[0]} {dra.why_gone(gone[0])}"
            where = "no answer at the" if dra.drivers[gone[0]] is DriverPresence.SILENT else "no"
            said = dra.unusable.get(gone[0]) or f"{where} registration socket of {name(gone[0])}"
            yield _waits(pod, claims, problem, Evidence(Source.SOCKETS, said))


def _prepares_nothing(dra: DraDevices, driver: str) -> bool:
    return dra.drivers.get(driver, DriverPresence.UNKNOWN).prepares_nothing


def claim_without_record(look: Look, kubelet: KubeletNow, pods: Pods) -> Iterator[Found]:
    """Find running pods with a ResourceClaim that the kubelet or its claims file does not list for them."""
    file, api = look.claims.value, look.pod_resources.value
    if file is None or file.problem or not (api is not None or kubelet is KubeletNow.STOPPED):
        return
    if api is not None and (api.version != "v1" or kubelet is not KubeletNow.ANSWERS):
        return
    listed = {(one.namespace, one.pod, f"{one.namespace}/{one.claim}") for one in api.claimed} if api else set()
    for pod in pods.here:
        if pod.phase != "Running" or pod.is_deleting or (api is not None and pod.place not in api.pods):
            continue
        for claim in pod.all_claims:
            is_listed = (*pod.place, claim) in listed
            if pod.pod.uid in file.pods.get(claim, ()) or (is_listed and claim in file.pods):
                continue
            who = (
                ("the kubelet's file has no record of the claim")
                if is_listed
                else "the kubelet has no record of the claim for this pod"
            )
            sentence = f"Pod {name(pod.identity)} runs with ResourceClaim {name(claim)}, but {who}."
            evidence = [Evidence(Source.PODS, f"{name(pod.identity)} runs and uses {name(claim)}")]
            evidence.append(Evidence(Source.CLAIMS, "no entry for the claim names this pod"))
            if api is not None:
                said = f"lists the pod {'with' if is_listed else 'without'} the claim"
                evidence.append(Evidence(Source.POD_RESOURCES, said))
            next_ = _UNTIL_RESTART if is_listed else ""
            yield Found(sentence, tuple(evidence), pods=(pod.identity,), next=next_)


def claim_taken_away(look: Look, kubelet: KubeletNow, pods: Pods) -> Iterator[Found]:
    """Find running pods whose ResourceClaim on the API server is gone, or no longer gives them their devices."""
    if kubelet is not KubeletNow.ANSWERS or look.pod_resources.value is None:
        return
    at_server = {one.claim: one for one in look.allocations.value or ()}
    uids, node = look.claims.value.uids if look.claims.value else {}, look.node.value
    held = grouped(((one.namespace, one.pod, one.claim), one.key) for one in look.claimed)
    for (namespace, of_pod, of_claim), devices in held.items():
        claim = f"{namespace}/{of_claim}"
        pod, known = pods.by_name.get((namespace, of_pod)), at_server.get(claim)
        if pod is None or pod.phase != "Running" or pod.is_deleting:
            continue
        # A driver's answer may not use the allocation's device names, so only the drivers are compared.
        allocated = {driver for driver, *_ in known.devices} if known else ()
        lost = [device for driver, _, device in sorted(set(devices)) if driver not in allocated]
        if known is None:
            if not look.allocations.is_whole:
                continue  # the claim's namespace may not have been read
            what = "is no longer on the API server"
        elif known.uid and uids.get(claim) not in (None, "", known.uid):
            what = "was deleted and replaced by a different one with the same name"
        elif node is not None and node.name and known.nodes and node.name not in known.nodes:
            what = f"is allocated for a different node ({names(known.nodes)})"
        elif lost:
            what = f"does not have {counted(len(lost), 'device')} that the pod uses ({names(lost)})"
        elif known.pods is not None and pod.pod.uid not in known.pods:
            what = "is not reserved for the pod"
        else:
            continue
        sentence = f"Pod {name(pod.identity)} runs with ResourceClaim {name(claim)}, which {what}."
        evidence = (
            Evidence(Source.POD_RESOURCES, f"{name(pod.identity)} holds {names([one[2] for one in devices])}"),
            Evidence(Source.ALLOCATIONS, f"{name(claim)} {what}"),
        )
        yield Found(sentence, evidence, devices[0][0], tuple(lost), pods=(pod.identity,))


def _waits(pod: PodSeen, claims: tuple[str, ...], why: str, evidence: Evidence) -> Found:
    what = f"{by_number(claims, 'ResourceClaim', 'ResourceClaims')} {', '.join(map(name, claims))}"
    sentence = f"Pod {name(pod.identity)} waits, because its {what} cannot be prepared: {why}."
    begun = Evidence(Source.PODS, f"{name(pod.identity)} is Pending on this node")
    return Found(sentence, (evidence, begun), pods=(pod.identity,))


def _cause(event: EventSeen) -> str:
    return (
        event.message.removeprefix("Failed to prepare dynamic resources: ")
        .removeprefix("prepare dynamic resources: ")
        .rstrip(".")
    )


def pod_cannot_end(look: Look, pods: Pods, dra: DraDevices) -> Iterator[Found]:
    """Find terminating pods that cannot end because the driver that must release their claims cannot be called."""
    prepared = look.claims.value
    if prepared is None or prepared.problem:
        return
    for pod in pods.here:
        if not pod.is_deleting:
            continue
        for claim, uids in prepared.pods.items():
            gone = [one for one in prepared.drivers.get(claim, ()) if _prepares_nothing(dra, one)]
            if [*uids] == [pod.pod.uid] and gone:  # if another pod uses the claim, the kubelet calls no driver
                sentence = (
                    f"Pod {name(pod.identity)} is being deleted and cannot end: DRA driver {name(gone[0])}, which has "
                    f"to release the pod's ResourceClaim {name(claim)}, {dra.why_gone(gone[0])}."
                )
                evidence = (
                    Evidence(Source.PODS, f"{name(pod.identity)} has a deletionTimestamp"),
                    Evidence(Source.CLAIMS, f"{name(claim)} is prepared for the pod"),
                )
                yield Found(sentence, evidence, gone[0], pods=(pod.identity,))


def claimed_device_unhealthy(look: Look, pods: Pods, dra: DraDevices) -> Iterator[Found]:
    """Find containers that hold a device that its driver reports as unhealthy."""
    for (driver, pool, device), one in dra.devices.items():
        owners = [owner for owner in one.owners if owner.state is OwnerState.LIVE]
        if one.health == "Unhealthy" and owners:
            holding = list(dict.fromkeys(owner.identity for owner in owners))
            sentence = (
                f"Device {name(device)} of {driver} is unhealthy, and {counted(len(holding), 'pod')} "
                f"{by_number(holding, 'holds', 'hold')} it ({names(holding)}) "
                f"through ResourceClaim {names(one.claims)}."
            )
            source = Source.HEALTH if (look.health.value or {}).get((driver, pool, device)) else Source.PODS
            evidence = (
                Evidence(source, f"{name(f'{driver}/{pool}/{device}')}: Unhealthy"),
                Evidence(owners[0].sources[0], f"{name(holding[0])} holds it"),
            )
            yield Found(sentence, evidence, driver, (device,), pods=tuple(holding))
    if look.claims.value is None and look.pod_resources.value is None:
        for pod, container, claim, told in pods.told_unhealthy(of_claims=True):
            what = f"{counted(len(told), 'device')} of claim {name(claim.removeprefix(CLAIM))} ({names(told)})"
            yield as_told(pod, container, f"{what}, not healthy", "", told)


def device_tainted(look: Look, dra: DraDevices) -> Iterator[Found]:
    """Find devices of this node that claims cannot get because of a taint from a driver or a DeviceTaintRule."""
    tainted = grouped(((one.driver, one.taint), one) for one in look.slices.value or () if one.taint and one.is_own)
    for (driver, taint), devices in tainted.items():
        owners = [owner for one in devices for owner in dra.devices[one.key].owners if owner.state is OwnerState.LIVE]
        holding = tuple(dict.fromkeys(owner.identity for owner in owners))
        holds = f" {counted(len(holding), 'pod')} {by_number(holding, 'holds', 'hold')} some ({names(holding)})."
        what = devices_of([one.device for one in devices], driver)
        text = foreign_text(taint, _MAX_MESSAGE)
        sentence = f"Claims that do not tolerate the taint {text} cannot get {what}.{holds if holding else ''}"
        evidence = (Evidence(Source.SLICES, f"{names([one.device for one in devices])}: {text}"),)
        yield Found(sentence, evidence, driver, tuple(one.device for one in devices), pods=holding)


def two_claims(look: Look, dra: DraDevices) -> Iterator[Found]:
    """Find devices of this node that are allocated to two ResourceClaims although they cannot be shared."""
    having = grouped(
        (key, one.claim)
        for one in look.allocations.value or ()
        for key in one.devices
        if key not in one.only_watched and key not in one.shared
    )
    for key, claims in having.items():
        # a device that two claims have prepared has two owners, which is a separate finding
        if len(claims) > 1 and key in dra.devices and len(dra.devices[key].claims) < 2:
            pods = tuple(dict.fromkeys(owner.identity for owner in dra.devices[key].owners))
            sentence = (
                f"Device {name(key[2])} of {key[0]} is allocated to {len(claims)} ResourceClaims ({names(claims)})."
            )
            evidence = (Evidence(Source.ALLOCATIONS, f"{name('/'.join(key))}: {names(claims)}"),)
            yield Found(sentence, evidence, key[0], (key[2],), pods=pods)


def slices_missing(look: Look, dra: DraDevices) -> Iterator[Found]:
    """Find running drivers that have no ResourceSlices for this node."""
    if look.slices.value is None:
        return
    published = {one.driver for one in look.slices.value}
    local = {one.claim for one in look.allocations.value or () if one.is_local}
    registered = {*registered_drivers(look)}
    for driver, state in dra.drivers.items():
        used = [key[2] for key, one in dra.by_driver.get(driver, {}).items() if not local.isdisjoint(one.claims)]
        if state is not DriverPresence.ALIVE or driver in published or not (used or driver in registered):
            continue
        in_use = f" {len(used):,} of its devices {by_number(used, 'is', 'are')} in use ({names(used)})."
        others = look.elsewhere.get(driver, ())
        of_others = f" Its slices name other nodes ({names(others)})." if others else ""
        sentence = (
            f"DRA driver {name(driver)} is running but has no ResourceSlice for this node, so the scheduler allocates "
            f"none of its devices.{in_use if used else ''}{of_others}"
        )
        evidence = (
            Evidence(Source.SLICES, "none from this driver"),
            Evidence(Source.SOCKETS, "a process listens at its registration socket"),
        )
        yield Found(sentence, evidence, driver, tuple(used), next="" if used else _NEVER_PUBLISHED)


_NEVER_PUBLISHED = (
    "No pod that requests the driver's devices is scheduled to this node. The driver may run with a different node "
    "name, may have found no device, or may lack permission to write ResourceSlices ('forbidden' in its log)."
)


def held_not_published(look: Look, dra: DraDevices) -> Iterator[Found]:
    """Find containers that hold a device that its driver no longer publishes in the device's pool."""
    published = look.slices.value or ()
    whole = {one.key[:2] for one in published if one.is_own and one.is_usable is not None}
    known = {one.key for one in published}
    for driver, devices in dra.by_driver.items():
        held = {
            key[2]: [owner for owner in one.owners if owner.state is OwnerState.LIVE]
            for key, one in devices.items()
            if key not in known and key[:2] in whole and dra.drivers.get(driver) is not DriverPresence.GONE
        }
        lost = [device for device, owners in held.items() if owners]
        if lost:
            pods = tuple(dict.fromkeys(owner.identity for owners in held.values() for owner in owners))
            hold = f"{counted(len(pods), 'pod')} {by_number(pods, 'holds', 'hold')}"
            sentence = f"{hold} {devices_of(lost, driver)} ({names(pods)}), which the driver no longer publishes."
            there = [key[2] for key in known if key[0] == driver]
            evidence = (
                Evidence(Source.SLICES, f"{devices_of(there, driver)} published"),
                Evidence(held[lost[0]][0].sources[0], f"{described(held[lost[0]][0])}: {names(lost)}"),
            )
            yield Found(sentence, evidence, driver, tuple(lost), pods=pods)


def _of_claim(same: SameDevice) -> tuple[Evidence, ...]:
    prepared = same.prepared
    text = f"claim {name(prepared.claim)}: {name(f'{prepared.driver}/{prepared.pool}/{prepared.device}')}"
    return tuple(Evidence(source, text) for source in same.sources)
