"""Draws the picture of a node as SVG, in one file or in parts for a page.

Laws: equal pictures give equal bytes. Everything that a color shows is also shown by text or a shape. Every untrusted
string is escaped and bounded. The result loads and runs nothing. No label is wider than its cell, in any font that is
not wider than DejaVu Sans.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise

from devicecore.domain.model import Health
from devicecore.domain.text import counted, foreign_text, shortened
from devicecore_tools.doctor.account.precedence import OwnerState
from devicecore_tools.doctor.findings.finding import NodeFinding
from devicecore_tools.doctor.findings.report import NodeReport
from devicecore_tools.doctor.look.names import names
from devicecore_tools.doctor.show.picture import UNHELD, Cell, CellKind, Group, NodePicture, OwnerMark, Tally

WIDTH = 552
"""The width of a box's content, in pixels: two boxes fit side by side into a window of 1,280 pixels."""

_PADDING, _GAP, _MARGIN = 20, 8, 24
_FULL = (178, 60, 3)  # width and height of a cell with three lines of text, and the number of cells per row
_SMALL = (85, 28, 6)
_FULL_CUTS, _SMALL_CUTS = (23, 41), (22,)  # y coordinates at which the color of the next pod starts
_HATCH = 10  # pixels at the left of an unhealthy cell
_INSET = 8  # pixels between the edge of a cell and its text
_MAX_FULL_CELLS = 48  # in a group with more cells, each cell has only one line of text
_MAX_NOTES = 6
_MAX_LEGEND = 48
_KEY_COLUMNS = 2
_PAGE_WIDTH = WIDTH + 2 * _PADDING + 2 * _MARGIN  # a picture of this width is shown in a README without scaling
_LINE = 16  # the height of a line in pixels

STYLE = files(__package__).joinpath("picture.css").read_text(encoding="utf-8")
"""The style sheet of the picture, for light and dark color schemes."""

DEFINITIONS = (
    '<defs><pattern id="sick" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="lines" d="M0 0V7"/></pattern></defs>'
)
"""The definitions that the style sheet references with `url(#...)`. A document must contain the definitions once."""


def text_of(text: str, limit: int = 1_000) -> str:
    """Escape an untrusted string for HTML and SVG, limit its length, and make it printable."""
    return escape(foreign_text(text, limit))


def svg(report: NodeReport, picture: NodePicture) -> str:
    """Return the picture of a report as one SVG file."""
    title = summary(report, picture)
    above, top = _lines(title, 62.0, x=_MARGIN, style="m", room=_PAGE_WIDTH - 2 * _MARGIN)
    notes, top = _notes(picture.of_node, top + 4, x=_MARGIN)
    top += 8
    boxes = []
    for box in picture.boxes:
        heading, height = _heading(box.title, box.tally.text, "t", _PADDING, 30)
        content, inner = content_of(box.groups)
        height += 16
        boxes.append(
            f'<g transform="translate({_MARGIN} {_n(top)})"><rect class="box" width="{WIDTH + 2 * _PADDING}" '
            f'height="{_n(height + inner)}" rx="12"/>{heading}'
            f'<g transform="translate({_PADDING} {_n(height)})">{content}</g></g>'
        )
        top += height + inner + 20
    legend, bottom = _legend(picture, top)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_PAGE_WIDTH} {_n(bottom)}" width="{_PAGE_WIDTH}" '
        f'height="{_n(bottom)}" role="group" aria-label="{escape(title)}" lang="en"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style>{DEFINITIONS}"
        f'<rect class="back" width="{_PAGE_WIDTH}" height="{_n(bottom)}"/>'
        f'<text class="h" x="{_MARGIN}" y="40">'
        f"{_fitted(headline(report), _PAGE_WIDTH - 2 * _MARGIN, 22)}</text>"
        f"{above}{notes}{''.join(boxes)}{legend}</svg>\n"
    )


def headline(report: NodeReport) -> str:
    """Return the title, which names the node whose devices are shown."""
    return f"Devices of {report.name}" if report.name else "Devices of this node"


def summary(report: NodeReport, picture: NodePicture) -> str:
    """Return a sentence with the counts of devices, findings and folded devices."""
    folded = picture.folded.devices
    found = counted(len(report.findings), "finding") if report.findings else "no findings"
    more = f"; {counted(folded, 'device')} folded" if folded else ""
    return f"{picture.tally.text}; {found}{more}"


# --- boxes ------------------------------------------------------------------------------------------------------------


def content_of(groups: Sequence[Group], stops: Collection[int] | None = None) -> tuple[str, float]:
    """Return the content of a box, and its height in pixels.

    If `stops` is given, the content is for a page: cells are links to the rows of the table, and Tab reaches the cells
    whose numbers are in `stops`.
    """
    parts, y = [], 0.0
    for group in groups:
        text, y = _group(group, y, stops, with_counts=len(groups) > 1)
        parts.append(text)
    return "".join(parts), y


def _group(group: Group, y: float, stops: Collection[int] | None, *, with_counts: bool) -> tuple[str, float]:
    heading, y = _heading(group.resource, group.tally.text if with_counts else "", "g", 0, y + 12)
    parts = [heading]
    y += 10
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
        # The accessible name starts with the visible text, so that users with voice control can say what they see.
        return (
            f'<a class="cell" href="#d{cell.number}" data-rows="{rows}" tabindex="{stop}" '
            f'aria-label="{_visible(inside)}: {label}" transform="translate({at})">{inside}</a>'
        )
    return f'<g class="cell" role="img" tabindex="0" transform="translate({at})"><title>{label}</title>{inside}</g>'


def _visible(inside: str) -> str:
    """Return the visible text of a drawing, without its markup."""
    return " ".join(re.sub("<[^>]*>", " ", inside).split())


def _full_cell(cell: Cell) -> str:
    width, height, _ = _FULL
    x = _INSET + (_HATCH if _is_sick(cell) else 0)
    room = width - x - _INSET
    badges, left = [], float(width)
    for place, number in enumerate(cell.findings[:2]):
        text = str(number) if len(cell.findings) <= 2 or not place else "+"
        left -= _badge_width(text) + 3
        badges.append(_badge(left + _badge_width(text) / 2, 12, text))
    style = "w" if _is_sick(cell) else "m"
    lines = (
        f'<text class="d" x="{x}" y="17">{_fitted(cell.rows[0].device, left - x - 4, _BOLD_13)}</text>',
        f'<text x="{x}" y="36">{_owner(cell, room)}</text>',
        f'<text class="{style}" x="{x}" y="53">{_fitted(_condition(cell), room, _BOLD_12)}</text>',
    )
    return "\n".join((*_shape(cell, width, height, 7, _FULL_CUTS), *lines, *badges))


def _small_cell(cell: Cell) -> str:
    width, height, _ = _SMALL
    x = _HATCH if _is_sick(cell) else 0
    letters = "+".join(mark.letters for mark in cell.marks) or ("?" if cell.kind is CellKind.UNKNOWN else cell.kind)
    sign = "\u2715" if _is_sick(cell) else ""
    edge = f'<rect class="ring" width="{width}" height="{height}" rx="5"/>' if cell.findings else ""
    number = f" #{cell.findings[0]}" if cell.findings else ""
    text = _fitted(f"{sign}{letters}{number}", width - x - 4)
    shape = "".join(_shape(cell, width, height, 5, _SMALL_CUTS))
    return f'{shape}{edge}<text class="c" x="{(width + x) // 2}" y="17">{text}</text>'


def _shape(cell: Cell, width: int, height: int, radius: int, cuts: Sequence[int]) -> Iterator[str]:
    """Yield the rectangles of a cell, with a colored band for each holder, but at most one per line of text."""
    stale = " stale" if all(row.state is OwnerState.STALE for row in cell.rows) else ""
    classes = [f"o{mark.color}{stale}" for mark in cell.marks[: len(cuts) + 1]] or [cell.kind]
    edges = [0, *cuts[: len(classes) - 1], height]
    for style, (top, bottom) in zip(classes, pairwise(edges), strict=True):
        y = f' y="{top}"' if top else ""
        yield f'<rect class="{style}"{y} width="{width}" height="{bottom - top}" rx="{radius}"/>'
    if _is_sick(cell):
        yield f'<rect class="sick" x="1" y="1" width="{_HATCH}" height="{height - 2}" rx="{radius}"/>'


def _is_sick(cell: Cell) -> bool:
    return cell.rows[0].health not in _NOT_SICK


_NOT_SICK = (Health.HEALTHY.value, "unknown")


def _owner(cell: Cell, room: float) -> str:
    if cell.kind is not CellKind.HELD:
        return UNHELD[cell.kind]
    if len(cell.marks) > 1:
        return _fitted(f"{' and '.join(mark.letters for mark in cell.marks)}: {len(cell.marks)} pods", room)
    (mark,) = cell.marks
    return f"{mark.letters} {_fitted(mark.owner.rpartition('/')[2], room - _wide(f'{mark.letters} '))}"


def _condition(cell: Cell) -> str:
    """Return the health of a device and, unless its holder is unknown, how certain the holder is."""
    row = cell.rows[0]
    sign = {"Healthy": "", "unknown": "health "}.get(row.health, "\u2715 ")
    return f"{sign}{row.health}, {row.state.value}" if cell.kind is not CellKind.UNKNOWN else f"{sign}{row.health}"


def _folded(folded: Tally, y: float) -> tuple[str, float]:
    """Return a bar that shows the folded devices, with their counts."""
    parts, x = [], 0.0
    for kind in CellKind:
        share = round(WIDTH * getattr(folded, kind) / folded.devices, 1)
        if share:
            parts.append(f'<rect class="{kind}" x="{_n(x)}" y="{_n(y)}" width="{_n(share)}" height="14"/>')
            x += share
    text, y = _lines(f"Folded: {folded.text}", y + 30, style="m")
    return f'<g class="bar">{"".join(parts)}</g>{text}', y


def _notes(findings: Sequence[NodeFinding], y: float, *, x: int, in_page: bool = False) -> tuple[str, float]:
    """Draw findings, each with its number, its title and its devices. Also return the position of the next line."""
    parts = []
    for finding in findings[:_MAX_NOTES]:
        what = f": {names(finding.devices)}" if finding.devices else ""
        words, end = _lines(f"{finding.title}{what}", y + 14, x=x + 30, room=WIDTH - 30)
        note = f"{_badge(x + 12, y + 10, str(finding.number))}\n{words}"
        link = f'<a href="#finding-{finding.number}" aria-label="Finding {_visible(note)}">{note}</a>'
        parts.append(link if in_page else note)
        y = end - 6
    if len(findings) > _MAX_NOTES:
        more = counted(len(findings) - _MAX_NOTES, "further finding")
        parts.append(f'<text class="m" x="{x}" y="{_n(y + 14)}">and {more}</text>')
        y += 23
    return "".join(parts), y


def _badge(x: float, y: float, text: str) -> str:
    width = _badge_width(text)
    return (
        f'<rect class="badge" x="{_n(x - width / 2)}" y="{_n(y - 9)}" width="{_n(width)}" height="18" rx="9"/>'
        f'<text class="c" x="{_n(x)}" y="{_n(y + 4)}">{text}</text>'
    )


def _badge_width(text: str) -> float:
    return max(18, _wide(text, _BOLD_12) + 4)


# --- legend -----------------------------------------------------------------------------------------------------------


def _legend(picture: NodePicture, y: float) -> tuple[str, float]:
    parts = [f'<text class="t" x="{_MARGIN}" y="{_n(y + 16)}">Legend</text>']
    y += 30
    keys = [*((key_of(mark), mark.owner) for mark in picture.owners[:_MAX_LEGEND]), *signs()]
    for place, (inside, label) in enumerate(keys):
        row, column = divmod(place, _KEY_COLUMNS)
        wide = (_PAGE_WIDTH - 2 * _MARGIN) // _KEY_COLUMNS
        at = f"{_MARGIN + column * wide} {_n(y + row * 30)}"
        text = _fitted(label, wide - 50)
        parts.append(f'<g class="key" transform="translate({at})">{inside}<text x="42" y="16">{text}</text></g>')
    y += -(-len(keys) // _KEY_COLUMNS) * 30
    rest = [f"{len(picture.owners) - _MAX_LEGEND:,} more pods"] if len(picture.owners) > _MAX_LEGEND else []
    if picture.folded.devices:
        rest += [f"folded, without cells: {picture.folded.text}", "devicecore doctor --json lists them"]
    for line in rest:
        text, y = _lines(line, y + 14, x=_MARGIN, style="m", room=_PAGE_WIDTH - 2 * _MARGIN)
        parts.append(text)
    return "".join(parts), y + 20


def key_of(mark: OwnerMark) -> str:
    """Draw a box of 34 by 22 pixels with a pod's color and letters."""
    return (
        f'<rect class="o{mark.color}" width="34" height="22" rx="5"/>'
        f'<text class="c d" x="17" y="15">{mark.letters}</text>'
    )


def signs() -> tuple[tuple[str, str], ...]:
    """Return the signs in the picture that do not stand for pods, with their meanings."""
    sick = (
        '<rect class="none" width="34" height="22" rx="5"/>'
        '<rect class="sick" x="1" y="1" width="10" height="20" rx="5"/>'
        '<text class="c w" x="22" y="15">\u2715</text>'
    )
    return (
        ('<rect class="free" width="34" height="22" rx="5"/>', "free"),
        ('<rect class="unknown" width="34" height="22" rx="5"/>', "owner unknown"),
        (sick, "hatched: not healthy or not listed"),
        ('<rect class="held stale" width="34" height="22" rx="5"/>', "dashed: its pod is gone (stale)"),
        (_badge(17, 11, "1"), "number of a finding"),
    )


# --- text -------------------------------------------------------------------------------------------------------------


def _n(number: float) -> str:
    """Return a number without superfluous digits."""
    return f"{number:.1f}".removesuffix(".0")


def _heading(title: str, counts: str, style: str, x: float, y: float) -> tuple[str, float]:
    """Draw a title with its counts at the right, or below it if there is no space.

    Also return the last line's position.
    """
    size = 15 if style == "t" else _BOLD_13
    end = ""
    text = f'<text class="{style}" x="{_n(x)}" y="{_n(y)}">{_fitted(title, WIDTH, size)}</text>'
    if counts:
        y += _LINE if _wide(title, size) + _wide(counts) + 12 > WIDTH else 0
        end = f'<text class="m e" x="{_n(x + WIDTH)}" y="{_n(y)}">{_fitted(counts, WIDTH)}</text>'
    return text + end, y


def _lines(text: str, y: float, *, x: float = 0, style: str = "", room: float = WIDTH) -> tuple[str, float]:
    """Draw at most three lines of an untrusted string. Also return the position of the next line."""
    kind = f' class="{style}"' if style else ""
    lines = _wrapped(text, room)
    drawn = (
        f'<text{kind} x="{_n(x)}" y="{_n(y + _LINE * place)}">{escape(line)}</text>' for place, line in enumerate(lines)
    )
    return "\n".join(drawn), y + _LINE * len(lines)


_BOLD_12, _BOLD_13, _REGULAR = (
    12.0,
    13.0,
    0.9 * 12,
)  # font sizes in pixels; regular letters are narrower than bold letters


def _wide(text: str, size: float = _REGULAR) -> float:
    return sum(map(_width_of, text)) * size


def _width_of(letter: str) -> float:
    """Return the width of a character in bold DejaVu Sans, a wide font, relative to the font size."""
    if letter in _NARROW:
        return 0.5
    if letter in _WIDE or not letter.isascii():
        return 1.12
    return 0.88 if letter.isupper() or letter in _SIGNS else 0.72


_NARROW, _SIGNS, _WIDE = " !'(),-./:;I[]fijlrt|", "&#+=<>~^", "%@MWmw"


def _fitted(text: str, room: float, size: float = _REGULAR) -> str:
    """Return an untrusted string, escaped and truncated to `room` pixels."""
    return escape(shortened(foreign_text(text, 400), room / size, _width_of))


def _wrapped(text: str, room: float) -> list[str]:
    """Wrap a string into at most three lines."""
    words = foreign_text(text, 600).split()
    lines = [""]
    while words and len(lines) <= _MAX_LINES:
        piece = shortened(words[0], room / _REGULAR, _width_of)
        longer = f"{lines[-1]} {piece}".strip()
        if lines[-1] and _wide(longer) > room:
            if len(lines) == _MAX_LINES:
                lines[-1] = shortened(" ".join((lines[-1], *words)), room / _REGULAR, _width_of)
                break
            lines.append(piece)
        else:
            lines[-1] = longer
        words.pop(0)
    return lines


_MAX_LINES = 3
