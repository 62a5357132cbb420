"""Checks of devices that a plugin serves and that a ResourceClaim holds.

Law: a holder whose pod is known to be gone does not count.
"""

from collections.abc import Iterator

from devicecore_tools.doctor.claims import SameDevice
from devicecore_tools.doctor.facts import Facts, OwnerState
from devicecore_tools.doctor.findings import Evidence, Found, name
from devicecore_tools.doctor.look import Source


def plugin_and_claim(facts: Facts) -> Iterator[Found]:
    """A container holds a device of a plugin that is prepared for a ResourceClaim as well."""
    seen: set[tuple[str, str]] = set()
    for allocation in facts.allocations:
        owner = allocation.owner
        if owner.state is OwnerState.STALE:
            continue
        for device in allocation.devices:
            same = facts.claimed(allocation.resource, device)
            if same is None or (allocation.resource, device) in seen:
                continue
            seen.add((allocation.resource, device))
            holder = f"container {name(owner.container)} of pod {name(owner.identity)}"
            sentence = (
                f"Device {name(device)} of {allocation.resource} belongs to {holder}, and to ResourceClaim "
                f"{name(same.prepared.claim)}, for which {same.prepared.driver} has prepared it: {same.because}."
            )
            evidence = (Evidence(owner.sources[0], f"{holder}: {name(device)}"), *_of_claim(same))
            yield Found(sentence, evidence, allocation.resource, (device,))


def offered_and_claimed(facts: Facts) -> Iterator[Found]:
    """A plugin offers a device that no container holds, and that is prepared for a ResourceClaim."""
    for resource in facts.resources:
        healthy = facts.healthy.get(resource, frozenset())
        for device in map(str, facts.devices(resource)):
            if device not in healthy or device in facts.in_use.get(resource, ()):
                continue
            same = facts.claimed(resource, device)
            if same is not None:
                sentence = (
                    f"The plugin of {resource} offers device {name(device)}, which {same.prepared.driver} has prepared "
                    f"for ResourceClaim {name(same.prepared.claim)}: {same.because}."
                )
                source = Source.PLUGINS if resource in facts.listed else Source.CHECKPOINT
                if source is Source.CHECKPOINT and resource not in facts.registered:
                    source = Source.POD_RESOURCES
                yield Found(
                    sentence, (Evidence(source, f"{name(device)} is healthy"), *_of_claim(same)), resource, (device,)
                )


def _of_claim(same: SameDevice) -> tuple[Evidence, ...]:
    prepared = same.prepared
    text = f"claim {name(prepared.claim)}: {name(f'{prepared.driver}/{prepared.pool}/{prepared.device}')}"
    return tuple(Evidence(source, text) for source in same.sources)
