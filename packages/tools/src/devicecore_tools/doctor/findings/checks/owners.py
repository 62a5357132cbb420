"""Checks of the containers that hold devices.

Law: nothing is reported about a holder if a source that was not read could explain the problem.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from devicecore.domain.checkpoint import FileVerdict
from devicecore.domain.text import counted
from devicecore_tools.doctor.account.dra import DraDevices
from devicecore_tools.doctor.account.entries import TO_END
from devicecore_tools.doctor.account.precedence import Holders, Lists, Owner, OwnerState, Pods, api_omits
from devicecore_tools.doctor.findings.finding import Evidence, Found, described
from devicecore_tools.doctor.look.names import by_number, devices_of, name, names
from devicecore_tools.doctor.look.values import Look, Source, grouped


def request_without_device(look: Look, holders: Holders, lists: Lists) -> Iterator[Found]:
    """Find running pods that request more devices than the kubelet and its checkpoint name."""
    node = look.node.value
    by_resource = grouped((one.resource, one) for one in holders.missing if one.is_certain)
    for resource, missing in by_resource.items():
        # perhaps no device plugin serves a resource without known devices
        had_devices = node is not None and node.allocatable.get(resource) == 0
        if resource not in lists.devices and not had_devices:
            continue
        pods = list(dict.fromkeys(one.pod.identity for one in missing))
        requests = names([f"{one.pod.identity} {one.requested - one.named:,}" for one in missing])
        sentence = (
            f"{counted(len(pods), 'pod')} that {by_number(pods, 'runs', 'run')} here "
            f"{by_number(pods, 'requests', 'request')} devices of {resource} that the kubelet has no record of: "
            f"{requests}. Either the kubelet has lost the record, so it can give the devices that these pods use to "
            "other pods, or it admitted the pods before it knew the resource, so they run without devices."
        )
        first = missing[0]
        text = f"{name(first.pod.identity)}, container {name(first.container)} requests {first.requested:,}"
        evidence = [Evidence(Source.PODS, text), Evidence(Source.CHECKPOINT, f"names {first.named:,} of them")]
        if look.pod_resources.value is not None:
            evidence.append(Evidence(Source.POD_RESOURCES, f"lists the pod with {first.named:,} of them"))
        yield Found(sentence, tuple(evidence), resource, pods=tuple(pods))


def two_owners(look: Look, holders: Holders, dra: DraDevices) -> Iterator[Found]:
    """Find devices that are held by two pods, or by two containers in a pod that cannot share them."""
    shared = grouped(
        ((resource, tuple(one for one in owners if one.state is not OwnerState.STALE)), device)
        for resource, of_device in holders.shared.items()
        for device, owners in of_device.items()
    )
    for (resource, owners), devices in shared.items():
        if len(owners) < 2 or not _share_a_source(owners) or not _exclude_each_other(owners):
            continue
        belong = by_number(devices, "belongs", "belong")
        sentence = f"{devices_of(devices, resource)} {belong} to {' and to '.join(map(described, owners))}."
        evidence = tuple(
            Evidence(source, f"{described(owner)}: {names(devices)}")
            for owner in owners
            for source in owner.sources[:1]
        )
        yield Found(
            sentence, evidence, resource, tuple(devices), pods=tuple(dict.fromkeys(one.identity for one in owners))
        )

    yield from _of_two_claims(look, dra)


def _of_two_claims(look: Look, dra: DraDevices) -> Iterator[Found]:
    """Find drivers' devices that pods use through two claims that, on the API server, each have the whole device."""
    whole = {
        (one.claim, device)
        for one in look.allocations.value or ()
        for device in {*one.devices} - one.only_watched - one.shared
    }
    for key, one in dra.devices.items():
        driver, _, device = key
        live = [owner for owner in one.owners if owner.state is OwnerState.LIVE]
        users = {
            claim: owners
            for claim in one.claims
            if (claim, key) in whole
            and (owners := [of for of in live if of.pod and claim in of.pod.claims.get(of.container, ())])
        }
        if len(users) > 1:
            holding = [f"{described(of[0])} through ResourceClaim {name(claim)}" for claim, of in users.items()]
            sentence = f"{devices_of([device], driver)} belongs to {' and to '.join(holding)}."
            evidence = tuple(Evidence(of[0].sources[0], text) for of, text in zip(users.values(), holding, strict=True))
            at_server = Evidence(Source.ALLOCATIONS, f"{names([*users])} each have the whole device")
            identities = dict.fromkeys(owner.identity for of in users.values() for owner in of)
            yield Found(sentence, (*evidence, at_server), driver, (device,), pods=(*identities,))


def pod_does_not_end(look: Look, pods: Pods, holders: Holders) -> Iterator[Found]:
    """Find terminating pods that still hold devices although their grace period is over."""
    held: dict[str, dict[str, list[str]]] = {}
    for one in holders.allocations:
        if one.owner.state is OwnerState.LIVE:
            held.setdefault(one.owner.identity, {}).setdefault(one.resource, []).extend(one.devices)
    for pod in pods.here:
        late = 0.0 if look.taken is None or pod.ends_by is None else look.taken - pod.ends_by
        if late < TO_END or pod.identity not in held or pod.all_claims:
            continue
        for resource, devices in sorted(held[pod.identity].items()):
            what = devices_of(devices, resource)
            sentence = f"Pod {name(pod.identity)} should have ended, but still holds {what}."
            evidence = (Evidence(Source.PODS, f"the deletionTimestamp of {name(pod.identity)} has passed"),)
            yield Found(sentence, evidence, resource, tuple(devices), pods=(pod.identity,), measured=f"{late:.0f} s")


def sources_disagree(look: Look, holders: Holders, lists: Lists) -> Iterator[Found]:
    """Find devices for which the kubelet's answer and its checkpoint name different holders."""
    file, api = look.checkpoint.value, look.pod_resources.value
    if api is None or file is None or file.verdict.verdict not in {FileVerdict.OK, FileVerdict.ABSENT}:
        return
    for allocation in holders.allocations:
        owner = allocation.owner
        if owner.sources == (Source.POD_RESOURCES,):
            what = devices_of([*allocation.devices], allocation.resource)
            is_absent = file.data is None
            and_ = "there is no checkpoint" if is_absent else "the checkpoint does not"
            sentence = f"The kubelet lists {what} for {described(owner)}, but {and_}."
            missing = "there is no such file" if is_absent else "no such entry"
            in_api = Evidence(Source.POD_RESOURCES, f"{described(owner)}: {names([*allocation.devices])}")
            evidence = (in_api, Evidence(Source.CHECKPOINT, missing))
            next_ = _FORGETS if is_absent else ""
            yield Found(sentence, evidence, allocation.resource, tuple(allocation.devices), next=next_)
        elif allocation.resource in lists.left_out:
            continue  # the answer omits this resource's devices
        elif allocation.devices and _is_missing_in_the_answer(look, owner):
            what = devices_of([*allocation.devices], allocation.resource)
            sentence = f"The checkpoint gives {what} to {described(owner)}, but the kubelet lists no such container."
            entry = f"pod {name(owner.uid)}, container {name(owner.container)}: {names([*allocation.devices])}"
            in_api = Evidence(Source.POD_RESOURCES, "no container with these devices")
            evidence = (Evidence(Source.CHECKPOINT, entry), in_api)
            yield Found(sentence, evidence, allocation.resource, tuple(allocation.devices))


_FORGETS = (
    "The kubelet writes the file when it next allocates devices or a plugin reports. If the kubelet restarts before "
    "then, it starts without any allocation, so devices that containers use may be allocated again."
)


def _is_missing_in_the_answer(look: Look, owner: Owner) -> bool:
    """Return whether the kubelet lists an entry's pod, and should therefore also list the entry's container."""
    api = look.pod_resources.value
    if Source.CHECKPOINT not in owner.sources or owner.state is not OwnerState.UNKNOWN or owner.pod is None:
        return False
    return api is not None and (owner.namespace, owner.name) in api.pods and not api_omits(look, owner)


def _share_a_source(owners: Sequence[Owner]) -> bool:
    """Return whether one source names all owners.

    Sources that were read at different times may name two successive pods.
    """
    return bool(set.intersection(*({*one.sources} for one in owners)) & {Source.CHECKPOINT, Source.POD_RESOURCES})


def _exclude_each_other(owners: tuple[Owner, ...]) -> bool:
    """Return whether these owners cannot share one device (kubelet.md 5.2)."""
    pods = {(id(one.pod), one.uid, one.identity): one for one in owners}  # many containers may belong to one pod
    if any(one.is_of_another_pod(other) for one, other in combinations(pods.values(), 2)):
        return True
    pod = owners[0].pod
    if pod is None:
        return False  # one of the containers may be an init container that has ended
    return sum(not owner.is_reusable for owner in owners) > 1
