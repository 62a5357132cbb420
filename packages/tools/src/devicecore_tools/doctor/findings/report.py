"""The report on a node: its sources, its devices and its problems.

Laws: each device that a source names has a row. A finding is reported only if it lasts: later `Look`s must show it with
the same evidence.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice

from attrs import evolve, field, frozen

from devicecore.domain.device_set import in_natural_order, natural_key
from devicecore.domain.model import DeviceId, Health
from devicecore.domain.text import foreign_text, listed
from devicecore_tools.budget import Budget
from devicecore_tools.doctor.account.dra import DraDevice, DraDevices, DriverPresence
from devicecore_tools.doctor.account.entries import Kind, entries
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.account.precedence import KubeletNow, OwnerState, believed_file
from devicecore_tools.doctor.findings.checks import BY_CODE, CHECKS
from devicecore_tools.doctor.findings.finding import Keeps, NodeFinding
from devicecore_tools.doctor.look.formats import kubelet_version, why_old
from devicecore_tools.doctor.look.names import by_number, names
from devicecore_tools.doctor.look.values import NO_NODE, Source, grouped

FREE = "free"
"""The owner shown for a device that, according to every relevant source, is not held and can be given to a pod."""

NOBODY = "none"
"""The owner shown for a device that no container holds and no pod can get.

For example, the device is unhealthy or tainted, or its plugin hangs.
"""

UNKNOWN = "unknown"
"""The text for a value that no source provides."""

_FORBIDDEN = "Permission denied"  # the text of EACCES
_NO_KUBELET = "Nothing until a kubelet is running again. Then: "


@frozen
class SourceLine:
    """One source: whether it was read, and if not, why. `notes` name the parts that could not be read."""

    source: Source
    place: str
    was_read: bool
    problem: str
    notes: tuple[str, ...]


@frozen
class Counted:
    """How many objects of a kind are sound, are named by findings, or could not be judged."""

    sound: int = 0
    wrong: int = 0
    not_ruled_out: int = 0


@frozen
class DeviceRow:
    """One device and one of its holders. A device with two holders has two rows.

    Attributes:
        resource: a plugin's resource, or a DRA driver's name.
        device: the id of a plugin's device, or the name of a driver's device.
        pool: the pool of a driver's device, or an empty string for a plugin's device.
        note: further facts about the holder, or about the previous holder.
        numa_nodes: the NUMA nodes, or None if no source names them.
        health: `Healthy`, `Unhealthy`, `not listed`, or `unknown`.
        owner: `free`, `none`, `unknown`, `claim` and a ResourceClaim, or a pod: its namespace and name, or its UID if
            they are unknown.
        container: the container, or an empty string if no container holds the device.
        sources: the sources that name the holder, or the device if it has no holder.
        state: whether the holder, or its absence, is certain.
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
    pool: str = ""
    note: str = ""

    @property
    def is_held(self) -> bool:
        """Whether a container holds the device.

        The owner alone does not show this, because a pod's UID may be any string.
        """
        return bool(self.container or self.pod_uid) or self.owner not in {FREE, NOBODY, UNKNOWN}


@frozen
class PinnedRow:
    """A container's exclusive CPUs, or its memory on NUMA nodes.

    Attributes:
        resource: `cpu`, `memory` or huge pages.
        what: the numbers of the CPUs, or the amount of memory on each NUMA node.
        owner: the pod: its namespace and name, or its UID if they are unknown.
        state: whether the pod still exists.
    """

    resource: str
    what: str
    owner: str
    pod_uid: str
    container: str
    state: OwnerState


@frozen
class NodeReport:
    """The state of a node's devices, and the node's problems.

    Attributes:
        name: the name of the Node object, or an empty string if unknown.
        sources: the sources, read or not.
        devices: one row for each device and holder.
        findings: the problems.
        is_enough: whether anything is known about devices.
        not_ruled_out: further problems that are possible because a source is missing, the most likely ones first.
        account: how many objects of each kind were examined, with the results.
        pinned: the exclusive CPUs and NUMA-local memory of containers.
    """

    name: str
    sources: tuple[SourceLine, ...]
    devices: tuple[DeviceRow, ...]
    findings: tuple[NodeFinding, ...]
    is_enough: bool
    not_ruled_out: tuple[str, ...] = ()
    account: Mapping[str, Counted] = field(factory=dict)
    pinned: tuple[PinnedRow, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether every object was judged, and no problem was found."""
        return self.is_enough and not (self.findings or self.not_ruled_out)

    @property
    def no_node(self) -> str:
        """The API server's answer that it has no Node with the given name, if no other source says anything either."""
        if self.is_enough or self.findings or self.devices:
            return ""
        return next((one.problem for one in self.sources if one.problem.startswith(NO_NODE)), "")

    @property
    def is_forbidden(self) -> bool:
        """Whether this user lacks permission to read one of the kubelet's sources."""
        return not self.is_enough and any(_FORBIDDEN in one.problem for one in self.sources)


def _filled(command: str, node: str, pods: Sequence[str]) -> str:
    """Put the names of the node and of the finding's only pod into a command."""
    if len(pods) == 1 and (pod := _POD_NAME.fullmatch(pods[0])):
        command = re.sub(r"\bPOD\b", f"{pod[2]} -n {pod[1]}", command)
    return re.sub(r"\bNODE\b", node, command)


_POD_NAME = re.compile(r"([a-z0-9-]{1,63})/([a-z0-9.-]{1,253})")  # checked because it is put into a command


def check(facts: Facts, budget: Budget | None = None) -> tuple[NodeFinding, ...]:
    """Return the findings in one `Look`, without numbers. Their commands contain the node's name if a source gives it.

    When the budget is spent, the remaining checks do not run, and `report` names them.
    """
    node = facts.look.node.value
    named = {node.name} if node and node.name else {one.node for one in facts.look.pods.value or () if one.node}
    name = named.pop() if len(named) == 1 else ""
    # checked because the name is inserted into a command
    name = name if re.fullmatch(r"[a-z0-9.-]{1,253}", name) else "NODE"
    is_stopped = facts.kubelet is KubeletNow.STOPPED
    return tuple(
        NodeFinding(
            one.code,
            one.title,
            found.sentence,
            found.evidence,
            _NO_KUBELET * (is_stopped and not one.code.startswith("kubelet-")) + (found.next or one.next),
            _filled(one.confirm, name, found.pods),
            one.issue,
            found.resource,
            found.devices,
            found.measured,
            pods=found.pods,
            do=_filled(found.do or one.do, name, found.pods),
            says=found.says,
            brief=found.brief
            or (f"{one.title} ({foreign_text(found.resource, 100)})" if found.resource else one.title),
        )
        for one in CHECKS
        if budget is None or not budget.skips(one.code)
        for found in facts.ask(one.find)
    )


def still_wrong(before: Iterable[NodeFinding], now: Iterable[NodeFinding]) -> tuple[NodeFinding, ...]:
    """Return the findings of `now` that an earlier `Look` also showed.

    The evidence must be the same, unless the check has `is_one`.
    """
    known = {_lasting(finding) for finding in before}
    return tuple(finding for finding in now if _lasting(finding) in known)


def _lasting(finding: NodeFinding) -> object:
    """Return the part of a finding that must stay the same from one `Look` to the next."""
    return finding.code if BY_CODE[finding.code].is_one else finding


def patience(findings: Iterable[NodeFinding]) -> float:
    """Return how many seconds findings must last before all of them are certain."""
    return max((BY_CODE[finding.code].patience for finding in findings), default=0.0)


@frozen
class Watched:
    """The findings from the latest of several `Look`s, and how long each has been unchanged.

    Law: a finding that changes between two `Look`s is kept, and its time starts over.

    Attributes:
        findings: the findings from the latest `Look`.
        at: the time of that `Look`, as a timestamp from a monotonic clock.
        since: when each finding first appeared with its current evidence.
        patience: how many seconds each finding must last, or None for the default of its kind.
    """

    findings: tuple[NodeFinding, ...]
    at: float
    patience: float | None
    since: Mapping[object, float]

    @classmethod
    def first(cls, findings: tuple[NodeFinding, ...], at: float, patience: float | None) -> "Watched":
        """Start with the findings from the first `Look`."""
        return cls(findings, at, patience, {_lasting(one): at for one in findings})

    def then(self, findings: tuple[NodeFinding, ...], at: float) -> "Watched":
        """Return the findings after one more `Look`."""
        since = {_lasting(one): self.since.get(_lasting(one), at) for one in findings}
        return evolve(self, findings=findings, at=at, since=since)

    def rest(self, finding: NodeFinding) -> float | None:
        """Return the seconds to wait until a finding has lasted long enough, or None if no further `Look` is needed."""
        since = self.since[_lasting(finding)]
        needed = BY_CODE[finding.code].patience if self.patience is None else self.patience
        rest = since + needed - self.at
        return max(0.0, rest) if rest > 0 or since == self.at else None

    @property
    def confirmed(self) -> tuple[NodeFinding, ...]:
        """The findings that have lasted long enough."""
        return tuple(one for one in self.findings if self.rest(one) is None)

    @property
    def changing(self) -> tuple[NodeFinding, ...]:
        """The findings that have not lasted long enough."""
        return tuple(one for one in self.findings if self.rest(one) is not None)


def report(
    facts: Facts,
    findings: Iterable[NodeFinding],
    changing: Iterable[NodeFinding] = (),
    budget: Budget | None = None,
) -> NodeReport:
    """Return the report on a `Look`: the confirmed findings, and those that kept changing.

    If the budget is spent, the report names the checks that did not run, and the findings that no later `Look`
    confirmed.
    """
    spent = budget.spent() if budget else ""
    again = (
        f"was not searched for again, because {spent}" if spent else "the evidence changed from one reading to the next"
    )
    sources = tuple(
        SourceLine(source, reading.place, reading.value is not None, reading.problem, reading.notes)
        for source, reading in facts.look.readings.items()
    )
    numbered = tuple(evolve(finding, number=number) for number, finding in enumerate(findings, start=1))
    node = facts.look.node.value
    name = node.name if node else ""
    unsteady = [f"{one.brief}: this was found, but {again}" for one in changing]
    if budget and budget.skipped:
        unsteady.append(f"what {listed([*budget.skipped], _MAX_HOLES)} would find, because {spent}")
    account, seen, unread = _account(facts, numbered)
    not_ruled_out = tuple(dict.fromkeys((*unsteady, *seen, *_not_ruled_out(facts), *unread)))
    rows = tuple(_rows(facts))
    is_enough = facts.look.is_enough or (facts.look.is_of_server and node is not None)
    return NodeReport(name, sources, rows, numbered, is_enough, not_ruled_out, account, tuple(_pinned(facts)))


def _pinned(facts: Facts) -> Iterator[PinnedRow]:
    """Yield containers' CPUs and memory according to the state files of the CPU manager and the memory manager."""
    pods = facts.pods
    here = {uid for one in (*pods.here, *pods.perhaps_here) for uid in (str(one.pod.uid), *one.other_uids)}
    for one in (held for file in facts.look.state_files.value or () for held in file.held):
        pod = pods.by_uid.get(one.pod_uid)
        if one.pod_uid in here:
            state = OwnerState.LIVE
        else:
            state = OwnerState.STALE if pods.is_complete or pod is not None else OwnerState.UNKNOWN
        owner = one.pod_uid if pod is None else pod.identity
        yield PinnedRow(one.resource, one.what, owner, one.pod_uid, one.container, state)


def _account(facts: Facts, findings: Collection[NodeFinding]) -> tuple[dict[str, Counted], list[str], list[str]]:
    """Return the results for the objects of each kind, and the problems that are not ruled out.

    An object that was seen but cannot be judged is more likely to be a problem than an object that an unread source
    might contain. Therefore the two kinds are separate.
    """
    named = {one.resource for one in findings if one.resource}
    devices = {(one.resource, device) for one in findings for device in one.devices}
    pods = {pod for one in findings for pod in one.pods}
    texts = " ".join(one.sentence for one in findings)
    told = {*texts.split(), *re.findall(r"'([^']*)'", texts)}
    all_stop = any(BY_CODE[one.code].keeps is Keeps.ALL for one in findings)
    counts: dict[str, Counted] = {}
    holes: dict[str, list[str]] = {}
    for entry in entries(facts):
        before = counts.get(entry.kind.value, Counted())
        match entry.kind:
            case Kind.POD:
                is_wrong = entry.name in pods or bool(entry.hole and all_stop)
            case Kind.DEVICE | Kind.CDI:
                is_wrong = (entry.resource, entry.name) in devices
            case Kind.RESOURCE | Kind.DRIVER:
                is_wrong = entry.resource in named
            case Kind.SOURCE:
                is_wrong = False
            case _:
                is_wrong = entry.resource in named or entry.name in told
        if is_wrong:
            counts[entry.kind.value] = evolve(before, wrong=before.wrong + 1)
        elif entry.hole:
            counts[entry.kind.value] = evolve(before, not_ruled_out=before.not_ruled_out + 1)
            holes.setdefault(entry.kind.value, []).append(entry.hole)
        else:
            counts[entry.kind.value] = evolve(before, sound=before.sound + 1)
    unread = holes.pop(Kind.SOURCE.value, [])
    seen = [hole for kind, of_kind in holes.items() for hole in _first(kind, of_kind)]
    return counts, seen, [*_first(Kind.SOURCE.value, unread)]


def _first(kind: str, holes: Collection[str]) -> Iterator[str]:
    """Yield sentences about the first objects of a kind that could not be checked, and the number of the others."""
    yield from dict.fromkeys(islice(holes, _MAX_HOLES))
    more = len(holes) - _MAX_HOLES
    if more > 0:
        yield f"problems of {more:,} more {kind.removesuffix('s') if more == 1 else kind}"


_MAX_HOLES = 5  # the maximum number of objects of a kind that are named individually


def _not_ruled_out(facts: Facts) -> Iterator[str]:
    if facts.look.is_of_server:
        return  # any other problem can be seen only on the node
    if facts.claimed.missing:
        yield f"a plugin's device that also belongs to a ResourceClaim, because {facts.claimed.missing}"
    elif facts.claimed.unidentified and facts.lists.resources:
        same = "a plugin's device of the same vendor, or with a PCI address as id, that also belongs to a ResourceClaim"
        yield f"{same}, because {facts.claimed.unidentified}"
    certain = {(one.pod.identity, one.resource) for one in facts.holders.missing if one.is_certain}
    here = {one.key for one in facts.pods.here}
    for missing in facts.holders.missing:
        is_certain = (missing.pod.identity, missing.resource) in certain
        if not is_certain and missing.pod.key in here and missing.container not in missing.pod.reusable:
            named = (
                "no source names its devices" if not missing.named else f"the sources name {missing.named:,} of them"
            )
            yield (
                f"pod {foreign_text(missing.pod.identity)} runs without the {missing.requested:,} of "
                f"{foreign_text(missing.resource, 100)} that it requests, because {named}"
            )
    file = believed_file(facts.look)
    if file and why_old(file.verdict) and kubelet_version(facts.look) is None:
        yield f"that the kubelet cannot read the checkpoint, because its version is not known: {why_old(file.verdict)}"
    if "" in facts.not_free and facts.lists.resources:
        yield f"a container that holds a device for which no holder is listed, because {facts.not_free['']}"
    if facts.dra.why_not_free and facts.dra.devices:
        yield f"a claim that has a driver's device for which no holder is listed, because {facts.dra.why_not_free}"


def _rows(facts: Facts) -> Iterator[DeviceRow]:
    lists, holders = facts.lists, facts.holders
    lost = grouped((one.resource, one.pod.identity) for one in holders.missing if one.is_certain)
    losers = {resource: _Losers.of(pods) for resource, pods in lost.items()}
    for resource in lists.resources:
        numa_nodes, owners_of = facts.numa_nodes.get(resource, {}), holders.by_device.get(resource, {})
        healthy = lists.certainly_healthy(resource)  # most devices of a large node are healthy
        for device in in_natural_order([*map(DeviceId, lists.devices[resource])]):
            health = Health.HEALTHY.value if device in healthy else lists.health(resource, device, holders)
            what = numa_nodes.get(device), health
            owners = owners_of.get(device, ())
            if all(one.state is OwnerState.STALE for one in owners):
                row = _without_owner(facts, resource, device, *what)
                if not owners or row.owner != UNKNOWN:  # the kubelet has released devices that its file still names
                    if owners and owners[-1].pod is None and not owners[-1].name:  # no source lists the pod
                        uid = foreign_text(owners[-1].uid, 100)
                        row = evolve(row, note=f"last held by pod {uid}, whose container may still run")
                    yield row
                    continue
            for owner in owners:
                who = owner.identity, owner.uid, owner.container
                note = f"one of {len(owners)} holders" if len(owners) > 1 else "init container" * owner.is_reusable
                if not note and resource in losers:
                    note = losers[resource].note(owner.identity)
                yield DeviceRow(resource, device, *what, *who, owner.sources, owner.state, note=note)
    for (driver, pool, name), claimed in facts.dra.devices.items():
        yield from _of_driver(facts.dra, driver, pool, name, claimed)


@frozen
class _Losers:
    """Finds pods whose devices the kubelet no longer has on record, so other pods may have received them."""

    pods: frozenset[str]
    first: tuple[str, ...]

    @classmethod
    def of(cls, pods: Iterable[str]) -> "_Losers":
        known = frozenset(pods)
        return cls(known, tuple(nsmallest(_MAX_HOLES + 1, known, key=natural_key)))

    def note(self, owner: str) -> str:
        """Return a note that names the pods that may use a device that another pod holds, or an empty string."""
        shown = [pod for pod in self.first if pod != owner][:_MAX_HOLES]
        more = len(self.pods - {owner}) - len(shown)
        return f"{names(shown)}{f' and {more:,} more' * (more > 0)} may also use it" if shown else ""


def _without_owner(
    facts: Facts, resource: str, device: str, numa_nodes: tuple[int, ...] | None, health: str
) -> DeviceRow:
    lists = facts.lists
    listed: tuple[tuple[Source, Mapping[str, Collection[str]]], ...] = (
        (Source.CHECKPOINT, lists.in_file),
        (Source.POD_RESOURCES, lists.allocatable or {}),
        (Source.PLUGINS, lists.listed),
    )
    sources = tuple([source for source, devices in listed if device in devices.get(resource, ())])
    owner, state = UNKNOWN, OwnerState.UNKNOWN
    if (same := facts.claimed.find(resource, device)) is not None:
        owner, state, sources = (
            f"claim {same.prepared.claim}",
            OwnerState.LIVE,
            tuple(dict.fromkeys((*sources, *same.sources))),
        )
    elif "" not in facts.not_free and resource not in facts.not_free and not facts.claimed.perhaps(resource, device):
        is_given = health == Health.HEALTHY.value and lists.kubelet_has(resource, device)
        is_given = is_given and resource not in facts.hanging and not facts.look.unwritable
        if is_given or not _may_be_left_out(facts, resource, device):
            owner, state = FREE if is_given else NOBODY, OwnerState.LIVE
    return DeviceRow(resource, device, numa_nodes, health, owner, "", "", sources, state)


def _may_be_left_out(facts: Facts, resource: str, device: str) -> bool:
    """Return whether a device may be on no NUMA node. The kubelet omits such a device from its answer."""
    lists, node = facts.lists, facts.look.node.value
    answered = (lists.allocatable or {}).get(resource, {})
    if not answered or device in answered or resource in lists.listed or device not in lists.in_file.get(resource, ()):
        return False
    number = node.allocatable.get(resource) if node else None
    return number is None or number > len(answered)


def _of_driver(dra: DraDevices, driver: str, pool: str, name: str, claimed: DraDevice) -> Iterator[DeviceRow]:
    numa = claimed.numa_nodes
    note = f"one of {len(claimed.owners)} holders" if len(claimed.owners) > 1 else ""
    for owner in claimed.owners:
        who = owner.identity, owner.uid, owner.container
        yield DeviceRow(driver, name, numa, claimed.health, *who, owner.sources, owner.state, pool, note)
    if claimed.owners:
        return
    what = by_number(claimed.watchers, "claim", "claims")
    watched = f"watched through {what} {', '.join(claimed.watchers)}" if claimed.watchers else ""
    owner_text, state = UNKNOWN, OwnerState.UNKNOWN
    if claims := (*claimed.claims, *claimed.pending):
        owner_text, state = f"claim {claims[0]}", OwnerState.LIVE
    elif (
        not dra.why_not_free and dra.drivers.get(driver) is not DriverPresence.UNKNOWN and claimed.has_room is not None
    ):
        can_prepare = dra.drivers.get(driver) in {DriverPresence.ALIVE, DriverPresence.NOT_NEEDED}
        is_given = can_prepare and claimed.has_room and not claimed.is_tainted
        owner_text, state = FREE if is_given else NOBODY, OwnerState.LIVE
    yield DeviceRow(driver, name, numa, claimed.health, owner_text, "", "", claimed.sources, state, pool, watched)
