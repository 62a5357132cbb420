"""Explains why a pod does not run, from the kubelet's or scheduler's message and the facts about the node.

Law: the explanation of a message is the same for every node. Every statement about the node comes from the node's
sources.
"""

import json
from collections.abc import Container, Iterable, Iterator

from attrs import frozen

from devicecore.domain.model import Health, Pod
from devicecore.domain.text import foreign_text
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.account.plugins import WhyAbsent
from devicecore_tools.doctor.account.precedence import OwnerState
from devicecore_tools.doctor.account.schedulable import repels
from devicecore_tools.doctor.findings.checks import BY_CODE
from devicecore_tools.doctor.findings.finding import Keeps, NodeFinding
from devicecore_tools.doctor.findings.report import FREE, UNKNOWN, DeviceRow, check, report
from devicecore_tools.doctor.pod.messages import NEXT, Match, find
from devicecore_tools.doctor.pod.others import Foreign, find_foreign
from devicecore_tools.doctor.pod.pasted import parted, warnings_in
from devicecore_tools.doctor.pod.scheduler import NodesSeen, Unscheduled, find_unscheduled

_SCHEDULER = "scheduler"
_DECIDES_ON_DEVICES = ("device manager", "topology manager", "device, CPU or memory manager", _SCHEDULER, "predicates")
_PINS = ("CPU manager", "memory manager")
_UNSERVED = "could not find the requested resource"
_ASK_VERSIONS = (
    "kubectl api-versions lists which versions of resource.k8s.io the API server serves: use a kubelet and a driver "
    "that support one of them, or make the API server serve their version (--runtime-config)."
)


@frozen
class ResourceNow:
    """The current device counts of a resource. A count is None if the sources do not show it.

    `absent` is the reason why the kubelet has no devices of the resource, or an empty string if it has some.
    """

    resource: str
    listed: int | None
    healthy: int | None
    held: int
    held_by_pods_that_are_gone: int
    free: int | None
    absent: str = ""


@frozen
class Explanation:
    """An explained refusal, with the facts from the node's sources about the resources concerned.

    `values` are the variable parts of the kubelet's message: the numbers, the resource, the container.
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
        """Whether a trial with the node's devices can add to the explanation."""
        return self.manager in _DECIDES_ON_DEVICES

    @property
    def concerns_pinning(self) -> bool:
        """Whether a trial with the node's CPU manager and memory manager can add to the explanation."""
        return self.manager in _PINS


def explain(
    text: str, pod: Pod | None = None, facts: Facts | None = None, nodes: NodesSeen | None = None
) -> tuple[Explanation, ...]:
    """Explain each refusal by a kubelet in pasted text, and each message from the scheduler and other programs.

    Refusals that match only catch-all rows of the table are explained if the text has no other message.

    Args:
        text: the message from a pod's status, an event or a waiting container, or lines of a kubelet's log. Surrounding
            output of `kubectl` or a log is ignored.
        pod: the refused pod, if known, because many messages do not name the resource.
        facts: the facts from the node's sources, if they were read.
        nodes: the Nodes of the cluster, if they were read.
    """
    refusals, rest = parted(text)
    is_refused = any(not found.message.is_last_resort for found in refusals)
    explained = tuple(_explained(found, pod, facts) for found in refusals) if is_refused else ()
    explained += tuple(_of_others(rest, facts, nodes, is_refused=is_refused))
    if not explained:
        return tuple(_explained(found, pod, facts) for found in refusals)
    return explained + tuple(_unknown(rest)) if len(text.splitlines()) > 1 else explained


def _of_others(text: str, facts: Facts | None, nodes: NodesSeen | None, *, is_refused: bool) -> Iterator[Explanation]:
    """Explain messages from the scheduler and other programs.

    If the text contains a refusal, lines of a kubelet's log are skipped, because they only repeat why the pod was
    refused.
    """
    if text:
        node = facts.look.node.value if facts else None
        if nodes is None and node is not None:
            both = ((name, (count, node.allocatable.get(name, 0))) for name, count in node.capacity.items())
            nodes = {node.name or "of the sources": dict(both)}
        absent = {name: one.because for name, one in facts.absent.items()} if facts else {}
        yield from (_unscheduled(found, facts) for found in find_unscheduled(text, nodes, absent))
        for found in find_foreign(text):
            if not (is_refused and found.is_of_log):
                yield _foreign(found, facts)


def _unknown(text: str) -> Iterator[Explanation]:
    """Yield an explanation for each warning from an unknown program, so that no warning is dropped."""
    for reason, message in warnings_in(text):
        if not any(find_unscheduled(message)) and not any(find_foreign(f"{reason} {message}")):
            because = (
                "devicecore does not know which program writes this message, so the message is repeated unchanged."
            )
            shown = foreign_text(f"{reason}: {message}", _MAX_UNKNOWN)
            yield Explanation(shown, "unknown", "another program", because, "", "Find out who sent the event.", (), ())


_MAX_UNKNOWN = 600  # the maximum length of a message that is repeated


def concerning(
    pod: Pod | None, facts: Facts, resources: Iterable[str] = (), telling: Container[str] = ()
) -> tuple[NodeFinding, ...]:
    """Return the node's problems that keep this pod, or a pod that requests these resources, from running.

    `telling` contains the codes of additional findings that are returned if they concern one of these resources.
    """
    identity = f"{pod.namespace}/{pod.name}" if pod else ""
    wanted = {name for one in pod.in_start_order for name, size in one.limits.items() if size} if pod else set()
    wanted.update(resources)
    return tuple(
        one
        for one in check(facts)
        if (identity and identity in one.pods)
        or BY_CODE[one.code].keeps is Keeps.ALL
        or ((BY_CODE[one.code].keeps is Keeps.OF_RESOURCE or one.code in telling) and one.resource in wanted)
    )


_MAY_LIST = {WhyAbsent.SICK, WhyAbsent.UNKNOWN}  # in these cases, the plugin may list unhealthy devices


def _foreign(found: Foreign, facts: Facts | None) -> Explanation:
    names = (found.resource,) if found.resource else ()
    now, rows = _seen(names, facts)
    values = tuple(("resource", name) for name in names)
    return Explanation(found.text, found.id, found.who, found.because, "", found.change, (), values, now, rows)


def _unscheduled(found: Unscheduled, facts: Facts | None) -> Explanation:
    now, rows = _seen(found.resources, facts)
    values = tuple(("resource", name) for name in found.resources)
    because = found.because + (_taints(facts) if facts and "taint" in found.because else "")
    return Explanation(found.text, found.id, _SCHEDULER, because, found.next, found.change, (), values, now, rows)


def _taints(facts: Facts) -> str:
    """Return a sentence about the Node's taints that repel pods, or an empty string."""
    node = facts.look.node.value
    taints = [foreign_text(str(one), 300) for one in node.taints if repels(one)] if node is not None else []
    return f" Node {foreign_text(node.name)} has {', '.join(taints)}." if node is not None and taints else ""


def _explained(found: Match, pod: Pod | None, facts: Facts | None) -> Explanation:
    inner = _of_resize(found) or _of_update(found) or found
    names = _resources(inner, pod, facts)
    now, rows = _seen(names, facts)
    return Explanation(
        found.text,
        found.message.id,
        found.message.manager,
        found.because if inner is found else f"{found.because} {inner.because}",
        NEXT[found.message.next],
        _ASK_VERSIONS if _UNSERVED in found.values.get("cause", "") else inner.change,
        inner.message.issues,
        tuple(sorted({**found.values, **inner.values}.items())),
        now,
        rows,
    )


def _of_update(found: Match) -> Match | None:
    """Return the device manager's refusal that a message from a kubelet before 1.29 contains."""
    if found.message.id != "PR-05":
        return None
    inner = find(f"Allocate failed due to {found.values.get('cause', '')}, which is unexpected")
    return None if inner is None or inner.message.is_last_resort else inner


def _of_resize(found: Match) -> Match | None:
    """Return the refusal that the event of a resize contains."""
    try:
        error = json.loads(f"{{{found.values.get('json', '')}}}").get("error")
    except (ValueError, RecursionError):
        return None
    return find(error) if isinstance(error, str) else None


def _resources(found: Match, pod: Pod | None, facts: Facts | None) -> tuple[str, ...]:
    """Return the resource that the message names, or otherwise the node's resources that the pod requests."""
    if "resource" in found.values:
        return (found.values["resource"],)
    if pod is None or found.message.manager not in _DECIDES_ON_DEVICES:
        return ()
    asked = {resource for container in pod.in_start_order for resource, size in container.limits.items() if size}
    return tuple(sorted(asked.intersection(facts.lists.resources if facts else asked)))


def _seen(names: Iterable[str], facts: Facts | None) -> tuple[tuple[ResourceNow, ...], tuple[DeviceRow, ...]]:
    """Return the current counts of resources from the sources, and the rows of their devices, if any are known."""
    if facts is None or not facts.look.is_enough:
        return (), ()
    rows = tuple(row for row in report(facts, ()).devices if row.resource in names)
    return tuple(_now(name, facts, rows) for name in names), rows


def _now(resource: str, facts: Facts, rows: Iterable[DeviceRow]) -> ResourceNow:
    lists, absent = facts.lists, facts.absent.get(resource)
    mine = [row for row in rows if row.resource == resource]
    healths = {row.device: row.health for row in mine}
    held = {row.device for row in mine if row.container}
    gone = {row.device for row in mine if row.container and row.state is OwnerState.STALE}
    is_told = lists.allocatable is not None or resource in lists.is_confirmed
    healthy = list(healths.values()).count(Health.HEALTHY.value)
    # Without allocatable devices, the pod-resources API lists only devices that are held.
    is_listed = lists.allocatable is not None or resource in lists.registered or resource in lists.listed
    free = len([row for row in mine if row.owner == FREE])
    is_free_known = is_listed and all(row.owner != UNKNOWN for row in mine)
    listed = {*lists.listed.get(resource, ()), *(lists.allocatable or {}).get(resource, ())}
    listed.update(() if absent else lists.registered.get(resource, ()))
    if resource in lists.listed or not facts.look.plugins.value:
        listed.update(one for one, health in healths.items() if health == Health.UNHEALTHY.value and not absent)
    return ResourceNow(
        resource,
        len(listed) if is_listed and (absent is None or absent.why not in _MAY_LIST) else None,
        healthy if is_told and "unknown" not in healths.values() else None,
        len(held),
        len(gone),
        free if is_free_known else None,
        absent.because if absent else "",
    )
