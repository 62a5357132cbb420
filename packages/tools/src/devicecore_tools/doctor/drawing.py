"""The picture of a node as SVG: as one file, or in parts for a page.

Laws: equal pictures give equal bytes. Everything that a colour shows is also in a text or a shape. Every text from
outside is escaped and bounded. The result loads nothing and runs nothing.
"""

from collections.abc import Collection, Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise

from devicecore.domain.model import Health
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.doctor.findings import NodeFinding, names
from devicecore_tools.doctor.picture import Cell, Group, NodePicture, OwnerMark, Tally
from devicecore_tools.doctor.report import NodeReport

WIDTH = 584
"""Pixels of what a box holds."""

_PADDING, _GAP = 20, 8
_FULL = (131, 56, 4)  # width and height of a cell with three lines of text, and how many stand side by side
_SMALL = (52, 26, 10)
_MAX_FULL_CELLS = 48  # of a group; if it has more, its cells have one line of text
_NOTE_COLUMNS = 82  # characters that fit beside a finding's number
_MAX_NOTES = 6
_MAX_LEGEND = 48
_PAGE_WIDTH = 2 * (WIDTH + 2 * _PADDING) + 3 * 24

STYLE = files("devicecore_tools.doctor").joinpath("picture.css").read_text(encoding="utf-8")
"""The style sheet of the picture, for light and dark."""

DEFINITIONS = (
    '<defs><pattern id="sick" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="lines" d="M0 0V7"/></pattern></defs>'
)
"""What the style sheet refers to by `url(#...)`: it has to be in the document once."""


def text_of(text: str, limit: int = 1_000) -> str:
    """A text from outside for HTML and SVG: escaped, bounded, printable."""
    return escape(foreign_text(text, limit))


def svg(report: NodeReport, picture: NodePicture) -> str:
    """The picture of a report as one SVG file."""
    top = 78.0
    above, height = _notes(picture.of_node, top)
    top = height + (8 if above else 0)
    bottoms = [top, top]
    boxes = []
    for box in picture.boxes:
        column = int(bottoms[1] < bottoms[0])
        x, y = 24 + column * (WIDTH + 2 * _PADDING + 24), bottoms[column]
        content, inner = content_of(box.groups)
        tall = inner + 56
        boxes.append(
            f'<g transform="translate({x} {_n(y)})"><rect class="box" width="{WIDTH + 2 * _PADDING}" '
            f'height="{_n(tall)}" rx="12"/><text class="t" x="{_PADDING}" y="30">{text_of(box.title, 120)}</text>'
            f'<text class="m e" x="{WIDTH + _PADDING}" y="30">{escape(_short(box.tally.text, 70))}</text>'
            f'<g transform="translate({_PADDING} 46)">{content}</g></g>'
        )
        bottoms[column] = y + tall + 24
    legend, bottom = _legend(picture, max(bottoms))
    title = summary(report, picture)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_PAGE_WIDTH} {_n(bottom)}" width="{_PAGE_WIDTH}" '
        f'height="{_n(bottom)}" role="group" aria-label="{escape(title)}" lang="en"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style>{DEFINITIONS}"
        f'<rect class="back" width="{_PAGE_WIDTH}" height="{_n(bottom)}"/>'
        f'<text class="h" x="24" y="42">{text_of(headline(report), 90)}</text>'
        f'<text class="m" x="24" y="64">{escape(title)}</text>'
        f"{above}{''.join(boxes)}{legend}</svg>\n"
    )


def headline(report: NodeReport) -> str:
    """The title: the node whose devices are shown."""
    return f"Devices of {report.name}" if report.name else "Devices of this node"


def summary(report: NodeReport, picture: NodePicture) -> str:
    """Counts of devices and findings, and what is folded, in a sentence."""
    folded = picture.folded.devices
    found = counted(len(report.findings), "finding") if report.findings else "no findings"
    more = f"; {counted(folded, 'device')} folded" if folded else ""
    return f"{picture.tally.text}; {found}{more}"


# --- boxes ------------------------------------------------------------------------------------------------------------


def content_of(groups: Sequence[Group], stops: Collection[int] | None = None) -> tuple[str, float]:
    """What a box holds, and its height in pixels.

    If `stops` is given, the content is for a page: cells are links to the rows of the table, and Tab reaches the cells
    whose numbers are in `stops`.
    """
    parts, y = [], 0.0
    for group in groups:
        text, y = _group(group, y, stops, with_counts=len(groups) > 1)
        parts.append(text)
    return "".join(parts), y


def _group(group: Group, y: float, stops: Collection[int] | None, *, with_counts: bool) -> tuple[str, float]:
    parts = [
        f'<text class="g" x="0" y="{_n(y + 12)}">{escape(_short(group.resource, 44))}</text>',
        f'<text class="m e" x="{WIDTH}" y="{_n(y + 12)}">{escape(_short(group.tally.text, 60))}</text>'
        if with_counts
        else "",
    ]
    y += 22
    is_full = len(group.cells) <= _MAX_FULL_CELLS
    width, height, columns = _FULL if is_full else _SMALL
    step = (WIDTH + _GAP - columns * (width + _GAP)) / max(columns - 1, 1) + width + _GAP
    for place, cell in enumerate(group.cells):
        row, column = divmod(place, columns)
        inside = _full_cell(cell) if is_full else _small_cell(cell)
        at = f"{_n(column * step)} {_n(y + row * (height + _GAP))}"
        parts.append(_around(cell, at, inside, stops))
    y += -(-len(group.cells) // columns) * (height + _GAP)
    if group.folded.devices:
        text, y = _folded(group.folded, y)
        parts.append(text)
    notes, y = _notes(group.findings, y, x=0, in_page=stops is not None)
    return "".join((*parts, notes)), y + 12


def _around(cell: Cell, at: str, inside: str, stops: Collection[int] | None) -> str:
    label = text_of(cell.label, 400)
    if stops is not None:
        stop = 0 if cell.number in stops else -1
        rows = " ".join(f"d{cell.number + place}" for place in range(len(cell.rows)))
        return (
            f'<a class="cell" href="#d{cell.number}" data-rows="{rows}" tabindex="{stop}" aria-label="{label}" '
            f'transform="translate({at})">{inside}</a>'
        )
    return f'<g class="cell" role="img" tabindex="0" transform="translate({at})"><title>{label}</title>{inside}</g>'


def _full_cell(cell: Cell) -> str:
    width, height, _ = _FULL
    row = cell.rows[0]
    limit = 16 - (3 if cell.findings else 0)
    parts = [*_shape(cell, width, height, 7)]
    parts.append(f'<text class="d" x="8" y="18">{escape(_middle(row.device, limit))}</text>')
    parts.append(f'<text x="8" y="33">{escape(_owner(cell, 20))}</text>')
    is_sick = row.health not in _NOT_SICK
    style = "w" if is_sick else "m"
    parts.append(f'<text class="{style}" x="8" y="48">{escape(_short(_condition(cell), 20))}</text>')
    for place, number in enumerate(cell.findings[:2]):
        x = width - 11 - place * 16
        text = str(number) if len(cell.findings) <= 2 or not place else "+"  # noqa: PLR2004 - as many as shown
        parts.append(_badge(x, 12, text))
    return "".join(parts)


def _small_cell(cell: Cell) -> str:
    width, height, _ = _SMALL
    letters = "+".join(mark.letters for mark in cell.marks) or {"unknown": "?"}.get(cell.kind, cell.kind)
    sign = "\u2715" if cell.rows[0].health not in _NOT_SICK else ""
    edge = f'<rect class="ring" width="{width}" height="{height}" rx="5"/>' if cell.findings else ""
    number = f" #{cell.findings[0]}" if cell.findings else ""
    text = escape(_short(f"{sign}{letters}{number}", 9))
    return f'{"".join(_shape(cell, width, height, 5))}{edge}<text class="c" x="{width // 2}" y="17">{text}</text>'


def _shape(cell: Cell, width: int, height: int, radius: int) -> Iterator[str]:
    """The rectangle of a cell; side by side if two pods hold the device."""
    stale = " stale" if all(row.state.value == "stale" for row in cell.rows) else ""
    classes = [f"o{mark.colour}{stale}" for mark in cell.marks] or [cell.kind]
    edges = [round(width * part / len(classes), 1) for part in range(len(classes) + 1)]
    for style, (left, right) in zip(classes, pairwise(edges), strict=True):
        yield f'<rect class="{style}" x="{_n(left)}" width="{_n(right - left)}" height="{height}" rx="{radius}"/>'
    if cell.rows[0].health not in _NOT_SICK:
        yield f'<rect class="sick" width="{width}" height="{height}" rx="{radius}"/>'


_NOT_SICK = (Health.HEALTHY.value, "unknown")


def _owner(cell: Cell, limit: int) -> str:
    if cell.kind != "held":
        return {"none": "not held", "unknown": "owner unknown"}.get(cell.kind, cell.kind)
    if len(cell.marks) > 1:
        return _short(f"{' and '.join(mark.letters for mark in cell.marks)}: {len(cell.marks)} pods", limit)
    (mark,) = cell.marks
    return f"{mark.letters} {_middle(mark.owner.rpartition('/')[2], limit - len(mark.letters) - 1)}"


def _condition(cell: Cell) -> str:
    """Health and certainty of a device."""
    row = cell.rows[0]
    sign = {"Healthy": "", "unknown": "health "}.get(row.health, "\u2715 ")
    return f"{sign}{row.health}, {row.state.value}" if cell.kind != "unknown" else f"{sign}{row.health}"


def _folded(folded: Tally, y: float) -> tuple[str, float]:
    """A bar of what is folded, and its counts."""
    parts, x = [], 0.0
    for kind in ("held", "free", "none", "unknown"):
        share = round(WIDTH * getattr(folded, kind) / folded.devices, 1)
        if share:
            parts.append(f'<rect class="{kind}" x="{_n(x)}" y="{_n(y)}" width="{_n(share)}" height="14"/>')
            x += share
    lines = [
        f'<text class="m" x="0" y="{_n(y + 30 + 15 * place)}">{escape(line)}</text>'
        for place, line in enumerate(_wrapped(f"Folded: {folded.text}", 92))
    ]
    return f'<g class="bar">{"".join(parts)}</g>{"".join(lines)}', y + 26 + 15 * len(lines)


def _notes(findings: Sequence[NodeFinding], y: float, *, x: int = 24, in_page: bool = False) -> tuple[str, float]:
    """The findings beside what they are about: number, title and devices."""
    parts = []
    for finding in findings[:_MAX_NOTES]:
        what = f": {names(finding.devices)}" if finding.devices else ""
        lines = _wrapped(f"{finding.title}{what}", _NOTE_COLUMNS)
        words = "".join(
            f'<text x="{x + 26}" y="{_n(y + 14 + 15 * place)}">{escape(line)}</text>'
            for place, line in enumerate(lines)
        )
        note = f"{_badge(x + 10, y + 10, str(finding.number))}{words}"
        link = f'<a href="#finding-{finding.number}" aria-label="Finding {finding.number}: '
        parts.append(f'{link}{text_of(finding.title + what, 400)}">{note}</a>' if in_page else note)
        y += 8 + 15 * len(lines)
    if len(findings) > _MAX_NOTES:
        more = counted(len(findings) - _MAX_NOTES, "further finding")
        parts.append(f'<text class="m" x="{x}" y="{_n(y + 14)}">and {more}</text>')
        y += 23
    return "".join(parts), y


def _badge(x: float, y: float, text: str) -> str:
    width = 18 + max(len(text) - 2, 0) * 7
    return (
        f'<rect class="badge" x="{_n(x - width / 2)}" y="{_n(y - 9)}" width="{width}" height="18" rx="9"/>'
        f'<text class="c" x="{_n(x)}" y="{_n(y + 4)}">{text}</text>'
    )


# --- legend -----------------------------------------------------------------------------------------------------------


def _legend(picture: NodePicture, y: float) -> tuple[str, float]:
    parts = [f'<text class="t" x="24" y="{_n(y + 16)}">Legend</text>']
    y += 30
    keys = [*(_key(mark) for mark in picture.owners[:_MAX_LEGEND]), *signs()]
    for place, (inside, label) in enumerate(keys):
        row, column = divmod(place, 4)
        at = f"{24 + column * 315} {_n(y + row * 30)}"
        parts.append(
            f'<g class="key" transform="translate({at})">{inside}<text x="42" y="16">{escape(label)}</text></g>'
        )
    y += -(-len(keys) // 4) * 30
    rest = [f"{len(picture.owners) - _MAX_LEGEND:,} more pods"] if len(picture.owners) > _MAX_LEGEND else []
    if picture.folded.devices:
        rest.append(f"folded, without cells: {picture.folded.text}; devicecore doctor --json lists them")
    for line in rest:
        parts.append(f'<text class="m" x="24" y="{_n(y + 14)}">{escape(_short(line, 180))}</text>')
        y += 20
    return "".join(parts), y + 20


def _key(mark: OwnerMark) -> tuple[str, str]:
    return key_of(mark), _middle(mark.owner, 40)


def key_of(mark: OwnerMark) -> str:
    """A pod's colour and letters, 34 by 22 pixels."""
    return (
        f'<rect class="o{mark.colour}" width="34" height="22" rx="5"/>'
        f'<text class="c d" x="17" y="15">{mark.letters}</text>'
    )


def signs() -> tuple[tuple[str, str], ...]:
    """What the other signs of the picture mean."""
    sick = (
        '<rect class="none" width="34" height="22" rx="5"/><rect class="sick" width="34" height="22" rx="5"/>'
        '<text class="c w" x="17" y="15">\u2715</text>'
    )
    return (
        ('<rect class="free" width="34" height="22" rx="5"/>', "free"),
        ('<rect class="unknown" width="34" height="22" rx="5"/>', "owner unknown"),
        (sick, "hatched: not healthy, or not listed"),
        ('<rect class="held stale" width="34" height="22" rx="5"/>', "dashed edge: its pod is gone (stale)"),
        (_badge(17, 11, "1"), "number of a finding"),
    )


# --- text -------------------------------------------------------------------------------------------------------------


def _n(number: float) -> str:
    """A number without superfluous digits."""
    return f"{number:.1f}".removesuffix(".0")


def _short(text: str, limit: int) -> str:
    text = foreign_text(text, 400)
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"


def _middle(text: str, limit: int) -> str:
    """A name without its middle, because ids differ most at their ends."""
    text = foreign_text(text, 400)
    if len(text) <= limit:
        return text
    tail = limit * 2 // 3
    return f"{text[: limit - tail - 1]}\u2026{text[-tail:]}"


def _wrapped(text: str, columns: int) -> list[str]:
    """At most three lines."""
    lines = [""]
    for word in foreign_text(text, 600).split():
        piece = _middle(word, columns)
        if lines[-1] and len(lines[-1]) + 1 + len(piece) > columns:
            lines.append(piece)
        else:
            lines[-1] = f"{lines[-1]} {piece}".strip()
    return lines if len(lines) <= _MAX_LINES else [*lines[: _MAX_LINES - 1], _short(" ".join(lines[2:]), columns)]


_MAX_LINES = 3
