"""The Lease of a Node, as a kubelet creates and renews it, and the holder of an existing Lease.

Law: a Lease counts as ours only if devicecore created it, and the holder is this process, has ended, or does not renew
it.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum

from devicecore_fleet.cluster.words.patches import Json

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
RENEW_SECONDS = 10

_PREFIX = "devicecore"


class Held(Enum):
    """The kind of a Lease's holder."""

    BY_US = "this process, or a devicecore process that has ended or has not renewed it in time"
    UNKNOWN = "another devicecore process that may have ended"
    BY_OTHERS = "someone else"


def holder(node: str, process: str) -> str:
    """Return the holder identity for a node's Lease. A kubelet's identity is only the node's name."""
    return f"{_PREFIX}/{node}/{process}"


def held(found: Json, node: str, process: str, has_ended: Callable[[str], bool | None], now: datetime) -> Held:
    """Return the kind of an existing Lease's holder.

    Args:
        found: the existing Lease.
        node: the name of the node.
        process: the identity of this process.
        has_ended: returns whether another process has ended, or None if this is unknown.
        now: the time.
    """
    name = str((found.get("spec") or {}).get("holderIdentity") or "")
    prefix, _, other = name.rpartition("/")
    if prefix != f"{_PREFIX}/{node}":
        return Held.BY_OTHERS
    if other == process:
        return Held.BY_US
    is_over = has_ended(other)
    if is_over is None and seconds_left(found, now) > 0:
        return Held.UNKNOWN
    return Held.BY_OTHERS if is_over is False else Held.BY_US


def holder_of(found: Json, node: str) -> str:
    """Return a sentence about the holder of a Lease that is not ours."""
    name = str((found.get("spec") or {}).get("holderIdentity") or "")
    kind = "another devicecore process" if name.startswith(f"{_PREFIX}/{node}/") else "as if by a kubelet"
    return f"its Lease is held by {name or 'nobody'}, {kind}"


def seconds_left(found: Json, now: datetime) -> float:
    """Return how many seconds a Lease lasts without a renewal.

    A Lease that has expired lasts 0 s, and no Lease lasts longer than a new one.
    """
    try:
        until = datetime.fromisoformat(found["spec"]["renewTime"]) + timedelta(seconds=LEASE_SECONDS)
        return min(max(0.0, (until - now).total_seconds()), LEASE_SECONDS)
    except (KeyError, TypeError, ValueError, OverflowError):  # the Lease has no valid time
        return 0.0


def lease(node: str, process: str, uid: str | None, now: datetime, before: Json | None = None) -> Json:
    """Return the Lease to create, or, as a replacement for `before`, that Lease with this holder and a new time.

    Args:
        node: the name of the node.
        process: the identity of the process that holds the Lease.
        uid: the UID of the Node, which owns the Lease, or None if the Node does not exist yet.
        now: when the Lease is renewed.
        before: the existing Lease.
    """
    renewed: Json = before or {
        "kind": "Lease",
        "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": node, "namespace": LEASE_NAMESPACE},
    }
    metadata, time = dict(renewed["metadata"]), now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if uid is not None and not metadata.get("ownerReferences"):
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]
    spec = {
        **(renewed.get("spec") or {}),
        "holderIdentity": holder(node, process),
        "leaseDurationSeconds": LEASE_SECONDS,
    }
    return {**renewed, "metadata": metadata, "spec": {**spec, "renewTime": time}}
