"""The report on a node: its sources, its devices, and what is wrong.

Laws: each device that a source names has a row. A finding is reported only if each look has it with the same evidence.
"""

from collections.abc import Iterable, Iterator

from attrs import evolve, frozen

from devicecore.domain.device_set import in_natural_order
from devicecore.domain.model import Health
from devicecore_tools.doctor.checks import CHECKS
from devicecore_tools.doctor.facts import Facts, OwnerState
from devicecore_tools.doctor.findings import NodeFinding
from devicecore_tools.doctor.look import Source

FREE = "free"
"""The owner of a healthy device that no container holds, as far as two sources agree."""

NOBODY = "none"
"""The owner of a device that no container holds and that is not healthy, so that it cannot be allocated."""

UNKNOWN = "unknown"
"""The text for a value that no source names."""


@frozen
class SourceLine:
    """One source: what was read, and why not if it was not. `notes` name what could not be read of it."""

    source: Source
    place: str
    was_read: bool
    problem: str
    notes: tuple[str, ...]


@frozen
class DeviceRow:
    """One device and one holder of it; a device with two holders has two rows.

    Attributes:
        numa_nodes: None if no source says.
        health: `Healthy`, `Unhealthy`, `not listed`, or `unknown`.
        owner: `free`, `none`, `unknown`, `claim` and a ResourceClaim, or what is known of the pod: namespace and name,
            else its UID.
        container: empty if no container holds the device.
        sources: which sources name the holder, or the device if it has none.
        state: whether the holder, or that there is none, is certain.
    """

    resource: str
    device: str
    numa_nodes: tuple[int, ...] | None
    health: str
    owner: str
    pod_uid: str
    container: str
    sources: tuple[Source, ...]
    state: OwnerState

    @property
    def is_held(self) -> bool:
        """Whether a container holds the device. A pod may have any UID, so the owner alone is not enough."""
        return bool(self.container or self.pod_uid) or self.owner not in {FREE, NOBODY, UNKNOWN}


@frozen
class NodeReport:
    """What is known of a node's devices, and what is wrong.

    `name` is that of the Node object, empty if it is not known. `not_ruled_out` says what may be wrong besides, because
    a source is missing.
    """

    name: str
    sources: tuple[SourceLine, ...]
    devices: tuple[DeviceRow, ...]
    findings: tuple[NodeFinding, ...]
    is_enough: bool
    not_ruled_out: tuple[str, ...] = ()


def check(facts: Facts) -> tuple[NodeFinding, ...]:
    """Everything that is wrong in one look, without numbers."""
    return tuple(
        NodeFinding(
            one.code,
            one.title,
            found.sentence,
            found.evidence,
            found.next or one.next,
            one.confirm,
            one.issue,
            found.resource,
            found.devices,
            found.measured,
        )
        for one in CHECKS
        for found in one.find(facts)
    )


def still_wrong(before: Iterable[NodeFinding], now: Iterable[NodeFinding]) -> tuple[NodeFinding, ...]:
    """The findings of `now` that an earlier look had too, with the same evidence."""
    known = set(before)
    return tuple(finding for finding in now if finding in known)


def patience(findings: Iterable[NodeFinding]) -> float:
    """Seconds for which each of `findings` has to last, before all of them are certain."""
    of_code = {one.code: one.patience for one in CHECKS}
    return max((of_code[finding.code] for finding in findings), default=0.0)


def report(facts: Facts, findings: Iterable[NodeFinding]) -> NodeReport:
    """The report of a look, with the findings that were confirmed."""
    sources = tuple(
        SourceLine(source, reading.place, reading.value is not None, reading.problem, reading.notes)
        for source, reading in facts.look.readings.items()
    )
    numbered = tuple(evolve(finding, number=number) for number, finding in enumerate(findings, start=1))
    node = facts.look.node.value
    missing = facts.claims_missing if facts.look.is_enough else ""
    not_ruled_out = (f"a device of a plugin that belongs to a ResourceClaim too, because {missing}",) if missing else ()
    name = node.name if node else ""
    return NodeReport(name, sources, tuple(_rows(facts)), numbered, facts.look.is_enough, not_ruled_out)


def _rows(facts: Facts) -> Iterator[DeviceRow]:
    for resource in facts.resources:
        for device in in_natural_order(facts.devices(resource)):
            key = resource, device
            what = facts.numa_nodes.get(key), _health(facts, resource, device)
            owners = facts.holders.get(key)
            if not owners:
                yield _without_owner(facts, resource, device, *what)
            for owner in owners or ():
                who = owner.identity, owner.uid, owner.container
                yield DeviceRow(resource, device, *what, *who, owner.sources, owner.state)


def _without_owner(
    facts: Facts, resource: str, device: str, numa_nodes: tuple[int, ...] | None, health: str
) -> DeviceRow:
    listed = (
        (Source.CHECKPOINT, facts.healthy_in_file),
        (Source.POD_RESOURCES, facts.allocatable),
        (Source.PLUGINS, facts.listed),
    )
    sources = tuple([source for source, devices in listed if device in devices.get(resource, ())])
    owner, state = UNKNOWN, OwnerState.UNKNOWN
    if (same := facts.claimed(resource, device)) is not None:
        owner, state, sources = f"claim {same.prepared.claim}", OwnerState.LIVE, (*sources, *same.sources)
    elif facts.holders_are_known and not facts.claims_missing:
        owner, state = FREE if health == Health.HEALTHY.value else NOBODY, OwnerState.LIVE
    return DeviceRow(resource, device, numa_nodes, health, owner, "", "", sources, state)


def _health(facts: Facts, resource: str, device: str) -> str:
    listed = facts.listed.get(resource)
    if listed is not None:
        health = listed.get(device)
        return health.value if health else "not listed"
    return Health.HEALTHY.value if device in facts.healthy.get(resource, ()) else UNKNOWN
