"""Checks of the containers that hold devices.

Law: a holder is not reported if a source that was not read could explain it.
"""

from collections.abc import Iterator
from itertools import combinations

from devicecore.domain.text import counted
from devicecore_tools.doctor.facts import AllocationSeen, Facts, Owner, OwnerState
from devicecore_tools.doctor.findings import Evidence, Found, devices_of, name, names
from devicecore_tools.doctor.look import Source


def owner_without_pod(facts: Facts) -> Iterator[Found]:
    """The checkpoint names a holder whose pod does not exist."""
    if not facts.pods_are_complete:
        return
    for allocation in _in_the_file(facts):
        owner = allocation.owner
        if owner.uid not in facts.pods:
            sentence = (
                f"The pod with UID {name(owner.uid)} does not exist, but the checkpoint gives its container "
                f"{name(owner.container)} {devices_of([*allocation.devices], allocation.resource)}."
            )
            existing = counted(len(facts.look.pods.value or ()), "pod")
            evidence = (_in_checkpoint(allocation), Evidence(Source.PODS, f"{existing}, none of them with this UID"))
            yield Found(sentence, evidence, allocation.resource, tuple(allocation.devices))


def two_owners(facts: Facts) -> Iterator[Found]:
    """Two pods hold one device, or two containers of a pod do that cannot share."""
    shared: dict[tuple[str, tuple[Owner, ...]], list[str]] = {}
    for (resource, device), owners in facts.holders.items():
        if len(owners) > 1 and _exclude_each_other(owners):
            shared.setdefault((resource, owners), []).append(device)
    for (resource, owners), devices in shared.items():
        sentence = f"{devices_of(devices, resource)} {_belong(devices)} {' and to '.join(map(_described, owners))}."
        evidence = tuple(
            Evidence(source, f"{_described(owner)}: {names(devices)}")
            for owner in owners
            for source in owner.sources[:1]
        )
        yield Found(sentence, evidence, resource, tuple(devices))


def sources_disagree(facts: Facts) -> Iterator[Found]:
    """The kubelet's answer and its checkpoint name different holders."""
    if facts.api is None or facts.look.checkpoint.value is None:
        return
    file = facts.file
    if file is not None and file.data is None:
        return  # nothing of it can be read, which is a finding of its own
    alive = {one.owner.uid for one in facts.allocations if Source.POD_RESOURCES in one.owner.sources}
    for allocation in facts.allocations:
        owner = allocation.owner
        what = devices_of([*allocation.devices], allocation.resource)
        in_api = Evidence(Source.POD_RESOURCES, f"{_described(owner)}: {names([*allocation.devices])}")
        if owner.sources == (Source.POD_RESOURCES,):
            sentence = f"The kubelet lists {what} for {_described(owner)}, and the checkpoint does not."
            missing = "there is no checkpoint" if file is None else "no such entry"
            evidence = (in_api, Evidence(Source.CHECKPOINT, missing))
            yield Found(sentence, evidence, allocation.resource, tuple(allocation.devices))
        elif allocation.devices and _is_missing_in_the_answer(facts, owner, alive):
            sentence = f"The checkpoint gives {what} to {_described(owner)}, and the kubelet lists no such container."
            evidence = (_in_checkpoint(allocation), Evidence(Source.POD_RESOURCES, "no container with these devices"))
            following = "" if owner.pod else _FREED_OR_INIT
            yield Found(sentence, evidence, allocation.resource, tuple(allocation.devices), next=following)


_FREED_OR_INIT = (
    "If the pod has ended, the kubelet frees the devices when it next admits a pod that asks for devices. If the "
    "container is an init container, this is normal: the kubelet never lists those. Read the pods too, to tell."
)


def _is_missing_in_the_answer(facts: Facts, owner: Owner, alive: set[str]) -> bool:
    """Whether the kubelet should list an owner that only the checkpoint names, as far as can be known."""
    if Source.POD_RESOURCES in owner.sources or owner.state is not OwnerState.UNKNOWN:
        return False
    if owner.pod is not None:
        return not facts.api_omits(owner)
    return owner.uid not in alive and facts.look.pods.value is None


def _exclude_each_other(owners: tuple[Owner, ...]) -> bool:
    """Whether these owners may not hold one device together (kubelet.md 5.2)."""
    pods = {(id(one.pod), one.uid, one.identity): one for one in owners}  # many containers may be of one pod
    if any(one.is_of_another_pod(other) for one, other in combinations(pods.values(), 2)):
        return True
    pod = owners[0].pod
    if pod is None:
        return False  # one of them may be an init container that has ended
    return sum(not owner.is_reusable for owner in owners) > 1


def _in_the_file(facts: Facts) -> Iterator[AllocationSeen]:
    for allocation in facts.allocations:
        if Source.CHECKPOINT in allocation.owner.sources and allocation.devices:
            yield allocation


def _in_checkpoint(allocation: AllocationSeen) -> Evidence:
    owner = allocation.owner
    text = f"pod {name(owner.uid)}, container {name(owner.container)}: {names([*allocation.devices])}"
    return Evidence(Source.CHECKPOINT, text)


def _belong(devices: list[str]) -> str:
    return "belongs to" if len(devices) == 1 else "belong to"


def _described(owner: Owner) -> str:
    pod = f"{owner.namespace}/{owner.name}" if owner.name else owner.uid
    return f"container {name(owner.container)} of pod {name(pod)}"
