"""Claim files: how to recognize them, how two of them differ, and what cannot be right in one.

Laws: a file does not differ from itself. The order of claims, pods and drivers makes no difference.
"""

import re
from collections.abc import Iterable, Iterator

from attrs import frozen

from devicecore.domain.checkpoint.go_json import Object, parse
from devicecore.domain.dra.model import PreparedDevice
from devicecore.domain.dra.state_file import ClaimEntry
from devicecore.domain.errors import MalformedCheckpointError
from devicecore.domain.text import counted

_FIRST_FIELD = re.compile(rb'\s*\{\s*"Data"\s*:\s*(["{])')


@frozen
class ChangedClaim:
    """A claim that is in both files, with different pods or devices. Devices are written as `driver: pool/device`."""

    claim: str
    uid: str
    added_pods: tuple[str, ...] = ()
    removed_pods: tuple[str, ...] = ()
    added_devices: tuple[str, ...] = ()
    removed_devices: tuple[str, ...] = ()


@frozen
class StateDifference:
    """The claims that are in only one file, as `namespace/name (UID)`, and the claims that differ."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[ChangedClaim, ...] = ()


def is_file_of_claims(blob: bytes) -> bool | None:
    """Return whether a file contains claims rather than plugin devices, or None if its content does not show which.

    In a claim file, `Data` is a string; in a checkpoint, it is an object.
    """
    if first := _FIRST_FIELD.match(blob):  # in nearly all cases, this decides without parsing the whole file
        return first[1] == b'"'
    try:
        document = parse(blob)
    except MalformedCheckpointError:
        return None
    if not isinstance(document, Object):
        return None
    fields = {name.lower(): value for name, value in document}
    if "data" in fields and fields["data"] is not None:
        return isinstance(fields["data"], str)
    return True if isinstance(fields.get("entries"), list) else None


def claim_of(entry: ClaimEntry) -> str:
    """Return the name of the claim in an entry, as `namespace/name`."""
    return f"{entry.namespace}/{entry.name}"


def named_device(driver: str, device: PreparedDevice) -> str:
    """Format a device as its driver returned it: `driver: pool/device`, then its share, requests and CDI names."""
    what = f"{driver}: {device.pool}/{device.name}" if device.pool or device.name else f"{driver}: CDI names only"
    share = f" share {device.share_id}" if device.share_id else ""
    requests = f" for {', '.join(device.requests)}" if device.requests else ""
    return f"{what}{share}{requests}" + (f" as {', '.join(device.cdi_ids)}" if device.cdi_ids else "")


def state_difference(before: Iterable[ClaimEntry], after: Iterable[ClaimEntry]) -> StateDifference:
    """Return the differences between the entries of two files.

    If a claim has several entries, the last entry counts.
    """
    old, new = ({(claim_of(entry), entry.uid): entry for entry in entries} for entries in (before, after))
    both = sorted(old.keys() & new.keys())
    changed = ((key, _changes(old[key], new[key], *key)) for key in both)
    return StateDifference(
        tuple(f"{claim} ({uid})" for claim, uid in sorted(new.keys() - old.keys())),
        tuple(f"{claim} ({uid})" for claim, uid in sorted(old.keys() - new.keys())),
        tuple(one for key, one in changed if one != ChangedClaim(*key)),
    )


def claim_warnings(entries: Iterable[ClaimEntry]) -> Iterator[str]:
    """Yield warnings about claims with several entries, claims without pods, and devices in several claims."""
    holders: dict[tuple[str, str, str, str], dict[str, None]] = {}
    seen: dict[str, int] = {}
    for entry in entries:
        claim = claim_of(entry)
        seen[claim] = seen.get(claim, 0) + 1
        if not entry.pods:
            yield f"no pod uses claim {claim}, and a kubelet never releases such a claim"
        for driver, device in _devices(entry):
            if device.pool or device.name:
                key = (driver, device.pool, device.name, device.share_id or "")
                holders.setdefault(key, {})[claim] = None
    for claim, count in seen.items():
        if count > 1:
            yield f"claim {claim} has {count} entries, and a kubelet reads only the last"
    for (driver, pool, name, share), claims in holders.items():
        if len(claims) > 1:
            which = f"share {share} of device {pool}/{name}" if share else f"device {pool}/{name}"
            listed = ", ".join(claims)
            yield f"{counted(len(claims), 'claim')} have {which} of {driver}, which only admin access allows: {listed}"


def _changes(old: ClaimEntry, new: ClaimEntry, claim: str, uid: str) -> ChangedClaim:
    pods = frozenset(old.pods or ()), frozenset(new.pods or ())
    devices = frozenset(_listed(old)), frozenset(_listed(new))
    return ChangedClaim(
        claim,
        uid,
        tuple(sorted(pods[1] - pods[0])),
        tuple(sorted(pods[0] - pods[1])),
        tuple(sorted(devices[1] - devices[0])),
        tuple(sorted(devices[0] - devices[1])),
    )


def _listed(entry: ClaimEntry) -> Iterator[str]:
    for driver, devices in (entry.drivers or {}).items():
        yield from (named_device(driver, device) for device in devices or ())
        if not devices:
            yield f"{driver}: no devices"


def _devices(entry: ClaimEntry) -> Iterator[tuple[str, PreparedDevice]]:
    for driver, devices in (entry.drivers or {}).items():
        yield from ((driver, device) for device in devices or ())
