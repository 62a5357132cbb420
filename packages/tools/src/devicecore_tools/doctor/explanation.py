"""Why a pod does not run: what the kubelet or the scheduler says, explained, with what is known of the node.

Law: the explanation of a sentence is the same for every node. Every statement about the node comes from its sources.
"""

import json
from collections.abc import Iterable

from attrs import frozen

from devicecore.domain.model import Health, Pod
from devicecore_tools.doctor.facts import Facts
from devicecore_tools.doctor.findings import NodeFinding
from devicecore_tools.doctor.messages import NEXT, Match, find
from devicecore_tools.doctor.pasted import find_all
from devicecore_tools.doctor.precedence import Lists, OwnerState
from devicecore_tools.doctor.report import FREE, UNKNOWN, DeviceRow, check, report
from devicecore_tools.doctor.scheduler import NEXT as SCHEDULED_NEXT
from devicecore_tools.doctor.scheduler import Unscheduled, find_unscheduled

_SCHEDULER = "scheduler"
_DECIDES_ON_DEVICES = ("device manager", "topology manager", "device, CPU or memory manager", _SCHEDULER, "predicates")
_OF_THE_NODE = {"kubelet-gone", "kubelet-cannot-start", "kubelet-starting"}  # findings that concern each pod


@frozen
class ResourceNow:
    """How many devices of a resource there are now. A number is None if the sources do not show it."""

    resource: str
    listed: int | None
    healthy: int | None
    held: int
    held_by_pods_that_are_gone: int
    free: int | None


@frozen
class Explanation:
    """A refusal in words, and what the node's sources say of the resources that it is about.

    `values` are what the kubelet wrote into the sentence: the numbers, the resource, the container.
    """

    text: str
    id: str
    manager: str
    because: str
    next: str
    change: str
    issues: tuple[str, ...]
    values: tuple[tuple[str, str], ...]
    resources: tuple[ResourceNow, ...] = ()
    devices: tuple[DeviceRow, ...] = ()

    @property
    def concerns_devices(self) -> bool:
        """Whether a trial on the node's devices can say more."""
        return self.manager in _DECIDES_ON_DEVICES


def explain(text: str, pod: Pod | None = None, facts: Facts | None = None) -> tuple[Explanation, ...]:
    """Explain each sentence in a text with which a kubelet refuses a pod, or else those of the scheduler.

    Args:
        text: a pod's status message, the message of an event, or that of a waiting container; also with what
            `kubectl` or a log prints around it.
        pod: the pod that was refused, if it is known: many sentences do not name the resource.
        facts: what the sources of the node say, if they were read.
    """
    refusals = find_all(text)
    if not refusals or all(found.message.is_last_resort for found in refusals):
        scheduler = tuple(_unscheduled(found, facts) for found in find_unscheduled(text))
        if scheduler:
            return scheduler
    return tuple(_explained(found, pod, facts) for found in refusals)


def concerning(pod: Pod, facts: Facts) -> tuple[NodeFinding, ...]:
    """Return what is wrong on the node and keeps this pod from starting, running or ending."""
    identity = f"{pod.namespace}/{pod.name}"
    wanted = {resource for container in pod.in_start_order for resource, size in container.limits.items() if size}
    found = check(facts)
    return tuple(
        one
        for one in found
        if identity in one.pods or one.code in _OF_THE_NODE or (one.code == "plugin-gone" and one.resource in wanted)
    )


def _unscheduled(found: Unscheduled, facts: Facts | None) -> Explanation:
    now, rows = _seen(found.resources, facts)
    id_, values = "SC-01", tuple(("resource", name) for name in found.resources)
    return Explanation(found.text, id_, _SCHEDULER, found.because, SCHEDULED_NEXT, found.change, (), values, now, rows)


def _explained(found: Match, pod: Pod | None, facts: Facts | None) -> Explanation:
    inner = _of_resize(found) or found
    names = _resources(inner, pod, facts)
    now, rows = _seen(names, facts)
    return Explanation(
        found.text,
        found.message.id,
        found.message.manager,
        found.because if inner is found else f"{found.because} {inner.because}",
        NEXT[found.message.next],
        inner.change,
        inner.message.issues,
        tuple(sorted({**found.values, **inner.values}.items())),
        now,
        rows,
    )


def _of_resize(found: Match) -> Match | None:
    """Return the refusal inside of the event of a resize."""
    try:
        error = json.loads(f"{{{found.values.get('json', '')}}}").get("error")
    except (ValueError, RecursionError):
        return None
    return find(error) if isinstance(error, str) else None


def _resources(found: Match, pod: Pod | None, facts: Facts | None) -> tuple[str, ...]:
    """Return the resource that the sentence names, or else those of the node that the pod asks for."""
    if "resource" in found.values:
        return (found.values["resource"],)
    if pod is None or found.message.manager not in _DECIDES_ON_DEVICES:
        return ()
    asked = {resource for container in pod.in_start_order for resource, size in container.limits.items() if size}
    return tuple(sorted(asked.intersection(facts.lists.resources if facts else asked)))


def _seen(names: Iterable[str], facts: Facts | None) -> tuple[tuple[ResourceNow, ...], tuple[DeviceRow, ...]]:
    """Return what the sources say of resources now, and the rows of their devices, if they know any device."""
    if facts is None or not facts.look.is_enough:
        return (), ()
    rows = tuple(row for row in report(facts, ()).devices if row.resource in names)
    return tuple(_now(name, facts.lists, rows) for name in names), rows


def _now(resource: str, lists: Lists, rows: Iterable[DeviceRow]) -> ResourceNow:
    mine = [row for row in rows if row.resource == resource]
    healths = {row.device: row.health for row in mine}
    held = {row.device for row in mine if row.container}
    gone = {row.device for row in mine if row.container and row.state is OwnerState.STALE}
    is_told = lists.allocatable is not None or resource in lists.is_confirmed
    healthy = list(healths.values()).count(Health.HEALTHY.value)
    # An answer of the pod-resources API without allocatable devices has only those that are held.
    is_listed = lists.allocatable is not None or resource in lists.registered or resource in lists.listed
    free = len([row for row in mine if row.owner == FREE])
    is_free_known = is_listed and all(row.owner != UNKNOWN for row in mine)
    return ResourceNow(
        resource,
        len(healths) if is_listed else None,
        healthy if is_told and "unknown" not in healths.values() else None,
        len(held),
        len(gone),
        free if is_free_known else None,
    )
