"""The report on a node as text: the verdict first, then the findings, the devices, and the sources.

Laws: the verdict, and a list of the findings if there are several, come before everything else. On a terminal, all text
except links is wrapped or cut to the terminal's width; elsewhere, no line is wrapped.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from devicecore.domain.text import counted, foreign_text
from devicecore_tools.command.output import console_on, fold
from devicecore_tools.doctor.findings.finding import NodeFinding
from devicecore_tools.doctor.findings.report import FREE, NOBODY, UNKNOWN, DeviceRow, NodeReport
from devicecore_tools.doctor.look.names import names
from devicecore_tools.doctor.look.values import Source, grouped

_MAX_CELL = 120  # the maximum number of characters of a cell in the table
_MAX_BRIEF = 160  # the maximum number of characters of a finding in the verdict
_MAX_PROSE = 120  # the width of prose on a wide terminal, in columns
_FEW = 3  # up to this many similar devices without a holder get their own rows
_HEADINGS = ("RESOURCE", "DEVICE", "NUMA", "HEALTH", "OWNER", "STATE", "SOURCE")
_SPARE = (6, 2)  # columns that are omitted on a narrow terminal: SOURCE, NUMA
# how a source's problem begins if the sources are from two nodes
_OF_ANOTHER = re.compile(r"Node \S* ?is (a different machine from|not the Node of) ")
_SKIPPED = "it is skipped, because"  # the note on a source whose library is not installed, as in devicecore.pyz
_OF_THE_NODE = {Source.PODS, Source.NODE}  # these are meaningful even if no source names a device
_LEAST = 4  # the minimum width to which a cell is truncated, in columns
_KINDS = {FREE: "free", NOBODY: "not held and not usable", UNKNOWN: "with an unknown holder"}


def says_something(report: NodeReport) -> bool:
    """Return whether anything was read about the node's devices, its pods or its Node object."""
    return report.is_enough or bool(_OF_THE_NODE & {one.source for one in report.sources if one.was_read})


def show(report: NodeReport) -> None:
    """Print a report."""
    width = console_on(sys.stdout).width
    sys.stdout.write("\n".join([*lines_of(report, width), ""]))


def lines_of(report: NodeReport, width: int) -> Iterator[str]:
    """Yield the lines of a report, with all text except links wrapped or cut to `width` columns."""
    yield from folded("", verdict(report), 2, width)
    if len(report.findings) > 1:
        yield from (cut(f"{one.number}. {one.brief}", width) for one in report.findings)
    for finding in report.findings:
        yield ""
        yield from finding_lines(finding, width)
    for one in report.not_ruled_out:
        yield ""
        yield from folded("not ruled out: ", one, 15, width)
    yield from ("", "Devices", *_devices(report.devices, width))
    if report.pinned:
        rows = [(one.resource, one.what, f"{one.owner} {one.container}", one.state.value) for one in report.pinned]
        yield from ("", "CPUs and memory", *_table(("RESOURCE", "WHAT", "OWNER", "STATE"), rows, width))
    yield from ("", "Sources", *_sources(report, width))


def verdict(report: NodeReport) -> str:
    """Summarize the report in one line: what is wrong, and how many devices are held and free."""
    name = foreign_text(report.name) or "this node"
    if report.findings:
        first, *others = report.findings
        more = f", and {len(others):,} more" if others else ""
        said = f"{counted(len(report.findings), 'finding')}: {foreign_text(first.brief, _MAX_BRIEF)}{more}"
    elif report.is_forbidden:
        said = "nothing could be read: run the command as root"
    elif report.no_node:
        said = foreign_text(report.no_node)
    elif not any(one.was_read for one in report.sources):
        said = "nothing was read"
    elif not says_something(report):
        said = "nothing that belongs to a kubelet was read"
    else:
        said = "nothing wrong" if report.is_sound else "no problem was found, but not everything was examined"
    mixed = next((f"; {one.problem}" for one in report.sources if _OF_ANOTHER.match(one.problem)), "")
    skipped = next(
        (one for one in report.sources if one.source is Source.POD_RESOURCES and _SKIPPED in one.problem), None
    )
    unasked = "; the kubelet was not queried, because grpcio is not installed, so no device is known to be free"
    return f"{name}: {said}{_counts(report.devices)}{unasked if skipped else ''}{mixed}"


def _counts(rows: Sequence[DeviceRow]) -> str:
    """Return a phrase with the numbers of devices that are held, free, and neither."""
    if not rows:
        return ""
    held = [row for row in rows if row.is_held]
    pods = {row.pod_uid or row.owner for row in held if row.container}
    kinds = Counter(row.owner for row in rows if not row.is_held)
    devices = {(row.resource, row.pool, row.device) for row in held}
    holding = f"{counted(len(pods), 'pod')} hold{'s' * (len(pods) == 1)} {counted(len(devices), 'device')}"
    parts = [holding if pods else f"{len(devices)} held"]
    parts += [f"{kinds[kind]:,} {what}" for kind, what in _KINDS.items() if kinds[kind] or kind == FREE]
    return f"; {', '.join(parts)}"


FORMAT = 2
"""The version of the JSON format that `doctor --json` prints (docs/doctor-json.md)."""


def document_of(report: NodeReport) -> dict[str, object]:
    """Return a report as JSON, with its verdict and counts first."""
    from devicecore.system.json_values import to_json

    kinds = Counter(row.owner for row in report.devices if not row.is_held)
    held = {(row.resource, row.pool, row.device) for row in report.devices if row.is_held}
    counts = {
        "findings": len(report.findings),
        "not_ruled_out": len(report.not_ruled_out),
        "held": len(held),
        "free": kinds[FREE],
        "not_usable": kinds[NOBODY],
        "unknown": kinds[UNKNOWN],
    }
    fields: dict[str, object] = to_json(report)
    return {"format": FORMAT, "verdict": verdict(report), "is_sound": report.is_sound, "counts": counts, **fields}


def finding_lines(finding: NodeFinding, width: int, place: int = 0) -> Iterator[str]:
    """Yield a complete finding, with its own number or its position among the findings of all nodes."""
    number = f"{place or finding.number}. "
    yield from folded(number, finding.sentence, len(number), width)
    for evidence in finding.evidence:
        yield from folded("   evidence: ", f"{evidence.source.value}: {evidence.text}", 13, width)
    if finding.measured:
        yield f"   measured: {finding.measured}"
    yield from folded("   next:     ", finding.next, 13, width)
    yield from folded("   do:       ", finding.do, 13, width)
    yield from folded("   confirm:  ", finding.confirm, 13, width)
    yield f"   see:      {finding.issue}"


def folded(start: str, text: str, indent: int, width: int) -> list[str]:
    """Return `start` and `text`, wrapped, with all lines but the first indented."""
    is_terminal = sys.stdout.isatty()
    room = (min(width, _MAX_PROSE) if is_terminal else width) - indent
    first, *rest = fold(foreign_text(text, 4_000), room).split("\n")
    return [start + first, *(" " * indent + line for line in rest)]


def cut(text: str, width: int) -> str:
    """Return a string with its control characters escaped, truncated to a width."""
    text = foreign_text(text, 4_000)
    return text if len(text) <= width else f"{text[: width - 1]}\u2026"


# --- devices ----------------------------------------------------------------------------------------------------------


def _devices(rows: Sequence[DeviceRow], width: int) -> Iterator[str]:
    """Yield a table of the held or unusual devices, and below it the number of each resource's other devices."""
    if not rows:
        yield "  no source names a device"
        return
    shown: list[DeviceRow] = []
    others: list[str] = []
    for resource, of_resource in groupby(rows, key=lambda one: one.resource):
        alike: dict[tuple[object, ...], list[DeviceRow]] = {}
        for row in of_resource:
            if row.is_held:
                shown.append(row)
            else:
                alike.setdefault(_alike(row), []).append(row)
        for of_kind in alike.values():
            if len(of_kind) <= _FEW and of_kind[0].owner != FREE:
                shown += of_kind
            else:
                others.append(_together(resource, of_kind))
    yield from _table(_HEADINGS, map(_cells, shown), width, _SPARE) if shown else ()
    yield from (line for other in others for line in folded("  ", other, 4, width))


def _alike(row: DeviceRow) -> tuple[object, ...]:
    return row.pool, row.health, row.owner, row.state, row.sources, row.note


def _together(resource: str, rows: Sequence[DeviceRow]) -> str:
    row = rows[0]
    health = "" if row.health in {"Healthy", UNKNOWN} else f", {row.health}"
    in_pool = f" of pool {foreign_text(row.pool, 100)}" if row.pool else ""
    note = f"; {foreign_text(row.note, 400)}" if row.note else ""
    kind = _KINDS.get(row.owner, row.owner)
    what = f"{len(rows):,} {kind}{in_pool}{health} ({names([one.device for one in rows])}){note}"
    return f"{foreign_text(resource, 100)}: {what}"


def _table(
    headings: tuple[str, ...], rows: Iterable[tuple[str, ...]], width: int, spare: Iterable[int] = ()
) -> list[str]:
    """Return the lines of a table. A narrow terminal omits the columns `spare`."""
    cells = [headings, *rows]
    kept = list(range(len(headings)))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for column in spare:
        if sum(widths[one] + 2 for one in kept) > width:
            kept.remove(column)
    while (over := sum(widths[one] + 2 for one in kept) - width) > 0:
        widest = max(kept, key=lambda one: widths[one])
        if widths[widest] <= _LEAST:
            break
        widths[widest] = max(_LEAST, widths[widest] - over)
    lines = []
    for row in cells:
        texts = [cut(row[one], widths[one]) for one in kept]
        padded = (f"  {text:<{widths[one]}}" for text, one in zip(texts, kept, strict=True))
        lines.append("".join(padded).rstrip())
    return lines


def _cells(row: DeviceRow) -> tuple[str, ...]:
    owner = f"{row.owner} {row.container}" if row.container else row.owner
    owner += f" ({row.note})" if row.note else ""
    certain = row.state.value, _sources_of(row.sources)
    texts = (row.resource, row.device, _numa_nodes(row.numa_nodes), row.health, owner, *certain)
    together = "".join(texts)
    if len(together) <= _MAX_CELL and together.isprintable():  # a shortcut that applies to nearly all rows
        return texts
    return tuple(foreign_text(text, _MAX_CELL) for text in texts)


@lru_cache(maxsize=256)  # thousands of rows have the same few values
def _numa_nodes(numa_nodes: tuple[int, ...] | None) -> str:
    return "unknown" if numa_nodes is None else ",".join(map(str, numa_nodes[:8])) or "-"


@lru_cache(maxsize=256)
def _sources_of(sources: tuple[Source, ...]) -> str:
    return ",".join(source.value for source in sources) or "-"


# --- sources ----------------------------------------------------------------------------------------------------------


def _sources(report: NodeReport, width: int) -> Iterator[str]:
    """Yield a line that names the sources that were read, then a line for each other source, with the reason."""
    places = grouped((_directory(line.place), line.source.value) for line in report.sources if line.was_read)
    if places:
        read = [f"{', '.join(sources)} ({foreign_text(place)})" for place, sources in places.items()]
        yield from folded("  read: ", "; ".join(read), 8, width)
    for line in report.sources:
        if not line.was_read:
            said = f"{line.source.value}: {where(line.problem, line.place)}"
            yield from folded("  not read: ", said, 12, width)
        for note in line.notes:
            yield from folded("  note: ", f"{line.source.value}: {note}", 8, width)


def where(problem: str, place: str) -> str:
    """Return a problem with its location, unless it already starts with the location."""
    return problem if not place or place in problem else f"{problem} ({place})"


def _directory(place: str) -> str:
    """Return a file's directory, or any other place unchanged. Most sources are files in the same directory."""
    path = Path(place)
    return str(path.parent) if path.suffix or path.is_file() else place
