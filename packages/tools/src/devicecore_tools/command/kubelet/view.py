"""The live view of `devicecore kubelet`: devices by resource and NUMA node, pods, claims, problems and the log.

Law: a view is a function of a state and a size. A view never has more lines than the size allows, and if there is room,
it says how much it leaves out.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from string import ascii_letters, digits

from attrs import frozen
from rich.cells import cell_len
from rich.text import Text

from devicecore.domain.model import Container, NumaNode, PodUid, ResourceName
from devicecore.domain.text import counted, foreign_text, shortened
from devicecore_tools.node.state import (
    RUNNING,
    ClaimedDevice,
    ClaimStage,
    ClaimState,
    ContainerClaimState,
    DeviceState,
    KubeletState,
    PodState,
)

_COLORS = ("cyan", "magenta", "yellow", "blue", "bright_green", "bright_cyan", "bright_magenta", "bright_blue")
_MARKS = ascii_letters + digits
HELD, FREE, UNHEALTHY, UNKNOWN = "#", "·", "✗", "?"
"""How a device is drawn: held by a pod that has no letter, free, unhealthy, or listed by no plugin."""

_GROUP = 8  # a space follows each group of this many devices
_MAX_NAME = 253  # the maximum number of characters of a pod's or container's name


@frozen
class _Detail:
    """How much is drawn: device lines per row (None for all), whether each container has a line, and log lines.

    `device_lines` is never 1, because a second line is needed to count the devices that are not drawn.
    """

    device_lines: int | None
    containers: bool
    log_lines: int


_DETAILS = (
    _Detail(None, containers=True, log_lines=8),
    _Detail(None, containers=True, log_lines=4),
    _Detail(None, containers=False, log_lines=4),
    _Detail(4, containers=False, log_lines=3),
    _Detail(2, containers=False, log_lines=2),
)
_UNITS = ("line", "pod", "claim", "problem", "log line")  # what each line of a section shows, by section
_LEAST = _Detail(0, containers=False, log_lines=1)


@frozen
class _Owner:
    """How a pod is drawn."""

    name: str
    mark: str
    style: str


def render(state: KubeletState, node_name: str, log_lines: Sequence[str], width: int, height: int | None) -> Text:
    """Draw a state in lines of at most `width` columns.

    There are at most `height` lines; None means no limit. If not everything fits, containers, log lines, devices and
    finally other lines are left out step by step, and a line says how many. The latest of `log_lines` is the last.
    """
    owners = _owners(state.pods)
    drawing = _Drawing(state, node_name, log_lines, owners, width)
    for detail in _DETAILS:
        # One more line than fits is enough to show that not all lines fit. Further lines are not drawn, because there
        # may be 40,000.
        lines = [*islice(chain.from_iterable(drawing.sections(detail)), None if height is None else height + 1)]
        if height is None or len(lines) <= height:
            break
    else:
        lines = fitted([[*section] for section in drawing.sections(_LEAST)], height or 0, _UNITS)
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def _owners(pods: Iterable[PodState]) -> dict[PodUid, _Owner]:
    owners = {}
    for at, state in enumerate(pods):
        mark = _MARKS[at] if at < len(_MARKS) else HELD
        name = foreign_text(state.name, _MAX_NAME)
        owners[state.pod.uid] = _Owner(name, mark, f"bold {_COLORS[at % len(_COLORS)]}")
    return owners


def fitted(sections: Sequence[list[Text]], height: int, units: Sequence[str]) -> list[Text]:
    """Cut sections to `height` lines in total, the longest sections first, and return the lines.

    `units` says for each section what one line shows.
    """
    left, room = height, dict.fromkeys(range(len(sections)), 0)
    for still, at in enumerate(sorted(room, key=lambda at: len(sections[at]))):
        room[at] = min(len(sections[at]), left // (len(sections) - still))
        left -= room[at]
    return [line for at, section in enumerate(sections) for line in _cut(section, room[at], units[at])]


def _cut(lines: list[Text], room: int, unit: str) -> list[Text]:
    if len(lines) <= room:
        return lines
    if room == 0:
        return []
    hidden = len(lines) - room + 1
    return [*lines[: room - 1], Text(f"  ... and {hidden} more {unit}{'s' * (hidden > 1)}", style="dim")]


@frozen
class _Drawing:
    state: KubeletState
    node_name: str
    log_lines: Sequence[str]
    owners: Mapping[PodUid, _Owner]
    width: int

    def sections(self, detail: _Detail) -> list[Iterator[Text]]:
        """Return the lines of each section: devices, pods, claims, problems, the log."""
        return [
            self._devices(detail),
            self._pods(detail),
            self._claims(),
            self._problems(),
            log_section(self.log_lines, detail.log_lines),
        ]

    # --- devices ------------------------------------------------------------------------------------------------------

    def _devices(self, detail: _Detail) -> Iterator[Text]:
        title = Text(f"devices of {foreign_text(self.node_name, _MAX_NAME)}", style="bold")
        legend = Text(f"{FREE} free  {UNHEALTHY} unhealthy  {UNKNOWN} listed by no plugin  a letter: held by that pod")
        legend.stylize("dim")
        if title.cell_len + legend.cell_len + 3 <= self.width:
            yield Text.assemble(title, "   ", legend)
        else:
            yield title
            yield legend
        for name in self.state.resources:
            yield from self._resource(name, detail)
        if not self.state.resources:
            yield Text("no plugin has registered yet", style="dim")

    def _resource(self, name: ResourceName, detail: _Detail) -> Iterator[Text]:
        known = self.state.node.inventory.resources.get(name)
        rows: dict[tuple[NumaNode, ...], list[DeviceState]] = {}
        devices = self.state.devices(name)
        for device in devices:
            rows.setdefault(device.numa_nodes, []).append(device)
        label = Text(foreign_text(name, _MAX_NAME))
        if known is None or not known.plugins:
            label.append(" has no plugin", style="red")
        for numa_nodes, row in sorted(rows.items()) or [((), [])]:
            where = f"  NUMA {','.join(map(str, numa_nodes))}" if numa_nodes else ""
            note = ", not drawn" if row and detail.device_lines == 0 else ""
            yield Text.assemble(label, foreign_text(where), "  ", (_counts(row) + note, "dim"))
            yield from self._squares(row, detail.device_lines)
        unhealthy = [self._named(device) for device in devices if device.health == "Unhealthy"]
        if unhealthy:
            yield Text(listed("  unhealthy: ", unhealthy, self.width), style="red")

    def _squares(self, row: Sequence[DeviceState], max_lines: int | None) -> Iterator[Text]:
        groups = max(1, (self.width - 2) // (_GROUP + 1))
        per_line = groups * _GROUP
        shown = len(row)
        if max_lines is not None and shown > max_lines * per_line:
            shown = max(0, max_lines - 1) * per_line
        for start in range(0, shown, per_line):
            drawn = Text(" ")
            for at, device in enumerate(row[start : start + per_line]):
                drawn.append(" " if at % _GROUP == 0 else "")
                drawn.append(*self._square(device))
            yield drawn
        if 0 < shown < len(row):
            yield Text(f"  ... and {len(row) - shown:,} more: {_counts(row[shown:])}", style="dim")

    def _square(self, device: DeviceState) -> tuple[str, str]:
        owner = self.owners.get(device.owners[0].pod) if device.owners else None
        style = owner.style if owner else "bold white" if device.owners else ""
        if device.health == "Unhealthy":
            return UNHEALTHY, style or "red"
        if device.health == "Unknown":
            return UNKNOWN, style
        if not device.owners:
            return FREE, style
        return owner.mark if owner else HELD, style

    def _named(self, device: DeviceState) -> str:
        id_ = foreign_text(device.id, 80)
        if not device.owners:
            return id_
        owner = self.owners.get(device.owners[0].pod)
        return f"{id_} (held by {owner.name if owner else 'a pod without a manifest'})"

    # --- pods ---------------------------------------------------------------------------------------------------------

    def _pods(self, detail: _Detail) -> Iterator[Text]:
        pods = self.state.pods
        if not pods:
            return
        phases = Counter(pod.phase for pod in pods)
        counts = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items(), reverse=True))
        yield Text.assemble(("pods", "bold"), (f"  {counts}", "dim"))
        column = min(self._longest_name, self.width // 3)
        for pod in pods:
            owner = self.owners[pod.pod.uid]
            name = Text(shortened(owner.name, column, cell_len), style=owner.style)
            name.pad_right(column - name.cell_len)
            start = Text.assemble((f"{owner.mark} ", owner.style), name, "  ")
            for holds in self._holdings(pod, detail, self.width - column - 4):
                yield Text.assemble(start, holds)
                start = Text(" " * (column + 4))

    @cached_property
    def _longest_name(self) -> int:
        return max(cell_len(owner.name) for owner in self.owners.values())

    def _holdings(self, pod: PodState, detail: _Detail, room: int) -> Iterator[Text]:
        if pod.phase != RUNNING:
            yield Text(f"{pod.phase}: {foreign_text(pod.reason)}", style="yellow")
            return
        held = self.state.node.ledger.allocations.get(pod.pod.uid, ())
        if not detail.containers:
            total = Counter[str]()
            for one in held:
                total[one.resource] += len(one.device_ids)
            for claim in {claim.claim for one in pod.pod.in_start_order for claim in self._claims_of(pod, one)}:
                total[f"claim {claim}"] = 1
            counts = [f"{count} {foreign_text(name)}" for name, count in sorted(total.items())]
            yield Text(", ".join(counts) or "no devices")
            return
        for container in pod.pod.in_start_order:
            name = foreign_text(container.name, _MAX_NAME)
            mine = [
                (foreign_text(one.resource), [foreign_text(device, 80) for device in one.devices])
                for one in held
                if one.key.container == container.name
            ]
            mine += [
                (f"claim {foreign_text(one.claim, _MAX_NAME)}", [*map(_place, one.devices)])
                for one in self._claims_of(pod, container)
            ]
            if not mine:
                yield Text.assemble(name, ("  no devices", "dim"))
            for what, devices in mine:
                yield Text(listed(f"{name}  {what}: ", devices, room))

    def _claims_of(self, pod: PodState, container: Container) -> Sequence[ContainerClaimState]:
        return self.state.dra.of_container(pod.pod.key(container))

    # --- claims -------------------------------------------------------------------------------------------------------

    def _claims(self) -> Iterator[Text]:
        claims, drivers = self.state.dra.claims, self.state.dra.drivers
        if not claims and not drivers:
            return
        phases = Counter(claim.phase for claim in claims)
        counts = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items(), reverse=True)) or "none"
        names = [
            foreign_text(driver.name, _MAX_NAME) + ("" if driver.is_connected else " (not connected)")
            for driver in drivers
        ]
        title = f"claims  {counts}   drivers: "
        yield Text.assemble(
            ("claims", "bold"), (listed(title, names or ["none"], self.width).removeprefix("claims"), "dim")
        )
        for claim in claims:
            yield self._claim(claim)

    def _claim(self, claim: ClaimState) -> Text:
        known = [self.owners[uid] for uid in claim.pods if uid in self.owners]
        start = Text("".join(owner.mark for owner in known[:8]) + " ", style=known[0].style if known else "")
        key = shortened(foreign_text(claim.key, _MAX_NAME), self.width // 2, cell_len)
        start.append(f"{key}  ", style="default")
        if claim.phase is not ClaimStage.PREPARED:
            reason = claim.reason and f": {foreign_text(claim.reason)}"
            return Text.assemble(start, (f"{claim.phase}{reason}", "yellow"))
        room = self.width - start.cell_len
        return Text.assemble(
            start, listed("", [f"{foreign_text(one.driver, 80)} {_place(one)}" for one in claim.devices], room)
        )

    def _problems(self) -> Iterator[Text]:
        if self.state.sink_problem:
            yield Text(f"the node's status is not published: {foreign_text(self.state.sink_problem)}", style="red")
        if self.state.problems:
            yield Text(f"{counted(len(self.state.problems), 'manifest')} cannot be used", style="bold red")
        for problem in self.state.problems:
            yield Text(foreign_text(str(problem)), style="red")


def log_section(log_lines: Sequence[str], count: int) -> Iterator[Text]:
    """Yield a title and the last lines of the log, if there are any."""
    if log_lines:
        yield Text("log", style="bold")
    for line in log_lines[-count:]:
        yield Text(foreign_text(line), style="dim")


def _place(device: ClaimedDevice) -> str:
    """Return the name of a claim's device, followed by its health if the device is unhealthy."""
    name = foreign_text(f"{device.pool}/{device.name}", 80)
    if device.health != "Unhealthy":
        return name
    message = device.message and f": {foreign_text(device.message, 80)}"
    return f"{name} (unhealthy{message})"


def _counts(devices: Sequence[DeviceState]) -> str:
    """Return the numbers of free, held and unhealthy devices.

    A device that is held and unhealthy counts in both numbers.
    """
    free = sum(device.health == "Healthy" and not device.owners for device in devices)
    counts = {
        "free": free,
        "held": sum(bool(device.owners) for device in devices),
        "unhealthy": sum(device.health == "Unhealthy" for device in devices),
        "listed by no plugin": sum(device.health == "Unknown" for device in devices),
    }
    texts = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count or what == "free")
    return f"{texts} of {len(devices):,}"


def listed(start: str, items: Sequence[str], width: int) -> str:
    """Return `start` and as many of `items` as fit into `width` columns, followed by the number of items left out."""
    text, fitting = start, f"{start}{len(items)} more" if items else start
    for shown, item in enumerate(items, 1):  # render only as many as fit, because there may be 300,000
        text += f", {item}" if shown > 1 else item
        if cell_len(text) > width:
            break
        left = len(items) - shown
        summed = f"{text} and {left} more" if left else text
        if cell_len(summed) <= width:
            fitting = summed
    return fitting
