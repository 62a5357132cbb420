"""The content of a node's picture: boxes for NUMA nodes, with groups for resources and cells for devices.

Laws: equal reports give equal pictures. Each device of the report has a cell or is counted as folded. In each group,
devices without a finding are folded before those with a finding. A picture has at most `MAX_CELLS` cells and
`MAX_GROUPS` groups, no matter how many devices there are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain, groupby, islice
from operator import sub

from attrs import astuple, frozen

from devicecore.domain.model import Health
from devicecore.domain.text import counted
from devicecore_tools.doctor.account.precedence import OwnerState
from devicecore_tools.doctor.findings.finding import NodeFinding
from devicecore_tools.doctor.findings.report import FREE, NOBODY, UNKNOWN, DeviceRow, NodeReport
from devicecore_tools.doctor.look.values import grouped

MAX_CELLS = 2_000
"""The maximum number of cells in a picture."""

MAX_GROUPS = 200
"""The maximum number of groups (resources on a NUMA node) in a picture."""

_GROUP_LIMITS = (
    400,
    200,
    100,
    48,
    16,
    10,
)  # cells per group: the first limit that keeps the total within MAX_CELLS
_FOLDED = 200  # at most this many cells in a group that has more devices than the limit
_COLORS = 8
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@frozen
class Tally:
    """Counts of devices, which are `held`, `free`, `none` (not held and not usable) or `unknown` (no source says)."""

    devices: int = 0
    held: int = 0
    free: int = 0
    none: int = 0
    unknown: int = 0
    unhealthy: int = 0

    def __sub__(self, other: "Tally") -> "Tally":
        return Tally(*map(sub, astuple(self), astuple(other)))

    @classmethod
    def sum(cls, tallies: Iterable["Tally"]) -> "Tally":
        """Return the sum of these tallies."""
        return cls(*map(sum, zip(*map(astuple, (cls(), *tallies)), strict=True)))

    @property
    def text(self) -> str:
        """Text such as `8 devices: 3 held, 5 free, 1 not healthy`."""
        parts = (
            (self.held, "held"),
            (self.free, "free"),
            (self.none, "not held and not usable"),
            (self.unknown, "with an unknown owner"),
            (self.unhealthy, "not healthy"),
        )
        counts = ", ".join(f"{number:,} {what}" for number, what in parts if number)
        return counted(self.devices, "device") + (f": {counts}" if counts else "")


@frozen
class OwnerMark:
    """A pod in the picture, with its letters and a color number, counted from 1. Colors repeat, but letters do not."""

    owner: str
    letters: str
    color: int


class CellKind(StrEnum):
    """The kind of a device's holder. The values are CSS class names in the drawing."""

    HELD = "held"
    FREE = FREE
    NONE = NOBODY
    UNKNOWN = UNKNOWN


UNHELD = {CellKind.FREE: "free", CellKind.NONE: "not held", CellKind.UNKNOWN: "owner unknown"}
"""What is shown for a device without a known holder."""


@frozen
class Cell:
    """One device. `number` is the index of its first row in the report, and `findings` are its findings' numbers."""

    number: int
    rows: tuple[DeviceRow, ...]
    findings: tuple[int, ...] = ()
    marks: tuple[OwnerMark, ...] = ()

    @property
    def kind(self) -> CellKind:
        """The kind of the device's holder: `held`, `free`, `none` or `unknown`."""
        return kind_of(self.rows[0])

    @property
    def label(self) -> str:
        """Everything that is known about the device, in a sentence."""
        row = self.rows[0]
        holders = " and ".join(f"{one.owner} container {one.container}, {one.state.value}" for one in self.rows)
        owner = f"held by {holders}" if self.kind is CellKind.HELD else UNHELD[self.kind]
        found = f"; finding {', '.join(map(str, self.findings))}" if self.findings else ""
        return f"{row.device} of {row.resource}, {place_of(row.numa_nodes)}, {row.health}, {owner}{found}"


@frozen
class Group:
    """The devices of one resource in one box. `folded` counts the devices without a cell."""

    resource: str
    tally: Tally
    cells: tuple[Cell, ...]
    folded: Tally
    findings: tuple[NodeFinding, ...] = ()


@frozen
class Box:
    """The devices on the same NUMA nodes, which `title` names."""

    title: str
    tally: Tally
    groups: tuple[Group, ...]


@frozen
class NodePicture:
    """A picture of a report.

    Attributes:
        boxes: the boxes, by NUMA nodes.
        owners: the pods of all cells, in order of appearance.
        further: the devices whose groups are not in the picture because there are too many groups.
        of_node: the findings that no group in the picture shows.
        tally: all devices of the report.
    """

    boxes: tuple[Box, ...]
    owners: tuple[OwnerMark, ...]
    further: Tally
    of_node: tuple[NodeFinding, ...]
    tally: Tally

    @property
    def cells(self) -> Iterator[Cell]:
        """All cells, in order."""
        return (cell for box in self.boxes for group in box.groups for cell in group.cells)

    @property
    def folded(self) -> Tally:
        """All devices without a cell."""
        return Tally.sum((self.further, *(group.folded for box in self.boxes for group in box.groups)))


def place_of(numa_nodes: tuple[int, ...] | None) -> str:
    """Return `NUMA node 0`, `NUMA nodes 0, 1`, `no NUMA node` or `NUMA node unknown`."""
    if numa_nodes is None:
        return "NUMA node unknown"
    if not numa_nodes:
        return "no NUMA node"
    listed = ", ".join(map(str, numa_nodes[:_MAX_NODES])) + (", ..." if len(numa_nodes) > _MAX_NODES else "")
    return f"NUMA node {listed}" if len(numa_nodes) == 1 else f"NUMA nodes {listed}"


_MAX_NODES = 12  # the maximum length of a list of numbers

_Devices = list[tuple[int, tuple[DeviceRow, ...]]]
_Place = tuple[int, tuple[int, ...]]


def picture(report: NodeReport) -> NodePicture:
    """Return the picture of a report."""
    found = _Findings(report.findings)
    groups = _grouped(report.devices)
    shown = sorted(groups, key=lambda key: (not found.has_group(key[1]), key))[:MAX_GROUPS]
    limit = _limit([len(groups[key]) for key in shown])
    marks = _Marks()
    boxes = []
    for place, keys in groupby(sorted(shown), key=lambda key: key[0]):
        of_box = tuple(_group(key[1], groups[key], limit, found, marks) for key in keys)
        boxes.append(Box(_title(place), Tally.sum(group.tally for group in of_box), of_box))
    further = Tally.sum(_tally(groups[key]) for key in sorted(groups.keys() - set(shown)))
    everything = Tally.sum((further, *(box.tally for box in boxes)))
    return NodePicture(tuple(boxes), marks.all, further, found.rest(boxes), everything)


def _grouped(rows: Sequence[DeviceRow]) -> dict[tuple[_Place, str], _Devices]:
    """Return the devices by place and resource. All rows of a device must be adjacent in `rows`."""
    groups: dict[tuple[_Place, str], _Devices] = {}
    number = 0
    while number < len(rows):
        row, end = rows[number], number + 1
        while end < len(rows) and rows[end].device == row.device and rows[end].resource == row.resource:
            end += 1
        groups.setdefault((_place(row.numa_nodes), row.resource), []).append((number, tuple(rows[number:end])))
        number = end
    return groups


def _place(numa_nodes: tuple[int, ...] | None) -> _Place:
    """Return a sort key: a single NUMA node comes first, then several nodes, then none, then unknown nodes."""
    if numa_nodes is None:
        return 3, ()
    return (0 if len(numa_nodes) == 1 else 1 if numa_nodes else 2), numa_nodes


_UNKNOWN_PLACE = 3


def _title(place: _Place) -> str:
    text = place_of(None if place[0] == _UNKNOWN_PLACE else place[1])
    return text[0].upper() + text[1:]


def _limit(sizes: Sequence[int]) -> int:
    """Return the maximum number of cells per group, so that all groups together have at most `MAX_CELLS`."""
    fitting = (limit for limit in _GROUP_LIMITS if sum(min(size, limit) for size in sizes) <= MAX_CELLS)
    return next(fitting, _GROUP_LIMITS[-1])


def _group(resource: str, devices: _Devices, limit: int, found: "_Findings", marks: "_Marks") -> Group:
    tally = _tally(devices)
    shown, folded = devices, Tally()
    if len(devices) > limit:
        shown = _most_important(devices, min(limit, _FOLDED), found)
        folded = tally - _tally(shown)
    cells = tuple(Cell(number, rows, found.of_device(rows[0]), marks.of(rows)) for number, rows in shown)
    return Group(resource, tally, cells, folded, found.of_group(resource, devices))


def _most_important(devices: _Devices, count: int, found: "_Findings") -> _Devices:
    """Return the most important devices, in their original order.

    Devices with findings count most, then devices with stale holders, then unhealthy devices.
    """
    ranks: tuple[_Devices, ...] = ([], [], [], [])
    for device in devices:
        row = device[1][0]
        if found.of_device(row):
            ranks[0].append(device)
        elif any(one.state is OwnerState.STALE for one in device[1]):
            ranks[1].append(device)
        else:
            ranks[2 if row.health != _HEALTHY else 3].append(device)
    return sorted(islice(chain(*ranks), count))


def kind_of(row: DeviceRow) -> CellKind:
    """Return the kind of a row's holder."""
    return CellKind.HELD if row.is_held else CellKind(row.owner)


def _tally(devices: _Devices) -> Tally:
    kinds = Counter(kind_of(rows[0]) for _, rows in devices)
    healths = Counter(rows[0].health for _, rows in devices)
    unhealthy = len(devices) - healths[_HEALTHY] - healths[UNKNOWN]
    held, free, none, unknown = (kinds[kind] for kind in CellKind)
    return Tally(len(devices), held, free, none, unknown, unhealthy)


_HEALTHY = Health.HEALTHY.value


class _Findings:
    """The findings, by the subject that they concern."""

    def __init__(self, findings: Sequence[NodeFinding]) -> None:
        self._all = findings
        self._by_device = grouped(((one.resource, device), one.number) for one in findings for device in one.devices)
        self._by_resource = grouped((one.resource, one) for one in findings if one.resource)

    def has_group(self, resource: str) -> bool:
        return resource in self._by_resource

    def of_device(self, row: DeviceRow) -> tuple[int, ...]:
        return tuple(self._by_device.get((row.resource, row.device), ()))

    def of_group(self, resource: str, devices: _Devices) -> tuple[NodeFinding, ...]:
        """Return the findings about a group's devices, and those about the resource as a whole."""
        numbers = {number for _, rows in devices for number in self.of_device(rows[0])}
        return tuple(one for one in self._by_resource.get(resource, ()) if one.number in numbers or not one.devices)

    def rest(self, boxes: Iterable[Box]) -> tuple[NodeFinding, ...]:
        """Return the findings that no group shows."""
        shown = {one.number for box in boxes for group in box.groups for one in group.findings}
        return tuple(one for one in self._all if one.number not in shown)


class _Marks:
    """The marks of the pods encountered so far."""

    def __init__(self) -> None:
        self._marks: dict[str, OwnerMark] = {}

    @property
    def all(self) -> tuple[OwnerMark, ...]:
        return tuple(self._marks.values())

    def of(self, rows: Iterable[DeviceRow]) -> tuple[OwnerMark, ...]:
        """Return one mark for each pod that holds a device, in order."""
        return tuple({key: self._mark(key, row.owner) for row in rows if (key := _pod(row))}.values())

    def _mark(self, key: str, owner: str) -> OwnerMark:
        if key not in self._marks:
            number = len(self._marks)
            self._marks[key] = OwnerMark(owner, _letters(number), number % _COLORS + 1)
        return self._marks[key]


def _pod(row: DeviceRow) -> str:
    return (row.pod_uid or row.owner or "?") if kind_of(row) is CellKind.HELD else ""


def _letters(number: int) -> str:
    """Return the letters for a number: A to Z, then AA, AB and so on."""
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, len(_LETTERS))
        letters = _LETTERS[rest] + letters
    return letters
