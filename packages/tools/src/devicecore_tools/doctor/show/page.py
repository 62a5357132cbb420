"""Shows the report on a node as one page: the picture, the findings, and the content of both as text.

Laws: equal reports give equal bytes. The page loads nothing, and its policy lets a browser run and apply only what the
page itself contains. Every untrusted string is escaped and bounded. Every device, finding and source on the page is
also shown as text, with the values of the JSON document. Anything left out is counted.
"""

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import islice

from devicecore.domain.text import counted
from devicecore_tools.doctor.findings.finding import NodeFinding
from devicecore_tools.doctor.findings.report import NodeReport
from devicecore_tools.doctor.show.drawing import DEFINITIONS, STYLE, WIDTH, content_of, headline, key_of, signs, text_of
from devicecore_tools.doctor.show.picture import Box, Cell, NodePicture, kind_of, place_of

MAX_FINDINGS = 200
"""The maximum number of findings on a page. The page says how many findings it leaves out."""

_MAX_DEVICES = 40  # how many devices of a finding are named one by one
_MAX_OWNERS = 200  # the maximum number of pods in the legend
# with more cells, Tab reaches only the first cell of each group, and the arrow keys reach the others
_MAX_TAB_STOPS = 200
_MAX_VALUE = 300  # the maximum number of characters in a cell

_FILES = files(__package__)
_STYLE = STYLE + _FILES.joinpath("page.css").read_text(encoding="utf-8")
_SCRIPT = _FILES.joinpath("page.js").read_text(encoding="utf-8")


def page(report: NodeReport, shown: NodePicture) -> str:
    """Return the whole page for a report and its picture."""
    policy = (
        f"default-src 'none'; style-src '{_hash(_STYLE)}'; script-src '{_hash(_SCRIPT)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = text_of(headline(report), 120)
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
        f'<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n'
    )
    parts = (
        head,
        *_header(report, shown),
        "<main>\n",
        *_boxes(shown),
        *_findings(report, shown),
        *_devices(report, shown),
        *_folded(report, shown),
        *_sources(report),
        _FOOT,
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n",
    )
    return "".join(parts)


_FOOT = (
    '</main>\n<footer><p class="quiet">Made by <code>devicecore doctor --html</code>. A device whose owner is not '
    "certain is shown as unknown, never as free.</p></footer>\n"
    '<aside id="detail" aria-label="Details of the device" hidden>'
    '<button type="button" id="close">Close (Esc)</button><h2>Details</h2><div id="detail-body"></div></aside>\n'
)


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _header(report: NodeReport, shown: NodePicture) -> Iterator[str]:
    count = len(report.findings)
    chip = (
        f'<span class="chip bad">{counted(count, "finding")}</span>'
        if count
        else '<span class="chip good">no findings</span>'
        if report.is_enough
        else '<span class="chip bad">not enough input</span>'
    )
    yield (
        f'<header>\n<h1>{text_of(headline(report), 120)}</h1>\n<p class="sum">{chip}{escape(shown.tally.text)}.</p>\n'
    )
    if folded := shown.folded.devices:
        yield (
            f"<p><strong>{counted(folded, 'device')} {'is' if folded == 1 else 'are'} folded</strong>: "
            "counted below, without a cell of their own. <code>devicecore doctor --json</code> lists them.</p>\n"
        )
    yield (
        '<nav aria-label="Parts of the page"><a href="#picture">Picture</a><a href="#findings">Findings</a>'
        '<a href="#all">All devices</a><a href="#sources">Sources</a></nav>\n</header>\n'
    )


# --- picture ----------------------------------------------------------------------------------------------------------


def _boxes(shown: NodePicture) -> Iterator[str]:
    yield (
        f'<svg class="hatch" width="0" height="0" aria-hidden="true" focusable="false">{DEFINITIONS}</svg>\n'
        '<section aria-labelledby="picture"><h2 id="picture">Devices by NUMA node</h2>\n'
    )
    if not shown.boxes:
        yield "<p>No source names a device.</p>\n"
    else:
        yield (
            '<p class="quiet">Each cell is a device. Point at it, or move to it with Tab and the arrow keys, to see '
            "its details; Enter leads to its row in the table.</p>\n"
        )
    if shown.of_node:
        of_node = "".join(
            f'<li><b class="number">{one.number}</b> <a href="#finding-{one.number}">{text_of(one.title)}</a></li>'
            for one in shown.of_node[:_MAX_DEVICES]
            if one.number <= MAX_FINDINGS
        )
        yield f'<div class="card whole"><h3>The node as a whole</h3><ul>{of_node}</ul></div>\n'
    stops = _tab_stops(shown)
    yield '<div class="boxes">\n'
    for number, box in enumerate(shown.boxes):
        yield from _box(box, number, stops)
    yield from _legend(shown)
    yield "</div>\n"
    if shown.further.devices:
        yield f"<p>Folded, because there are too many resources and NUMA nodes: {escape(shown.further.text)}.</p>\n"
    yield "</section>\n"


def _tab_stops(shown: NodePicture) -> frozenset[int]:
    """Return the cells that Tab reaches."""
    cells = [cell.number for cell in shown.cells]
    if len(cells) <= _MAX_TAB_STOPS:
        return frozenset(cells)
    return frozenset(group.cells[0].number for box in shown.boxes for group in box.groups if group.cells)


def _box(box: Box, number: int, stops: frozenset[int]) -> Iterator[str]:
    content, height = content_of(box.groups, stops)
    yield (
        f'<section class="node" aria-labelledby="box-{number}"><header><h3 id="box-{number}">{text_of(box.title)}</h3>'
        f'<span class="quiet">{escape(box.tally.text)}</span></header><div class="wide">'
        f'<svg width="{WIDTH + 8}" height="{height:.0f}" viewBox="-4 -2 {WIDTH + 8} {height:.0f}" role="group" '
        f'aria-label="Devices, {text_of(box.title)}">{content}</svg></div></section>\n'
    )


def _legend(shown: NodePicture) -> Iterator[str]:
    if not shown.boxes:
        return
    pods = ((key_of(mark), f"{mark.letters}: {mark.owner}") for mark in shown.owners[:_MAX_OWNERS])
    keys = "".join(
        f'<li><svg width="38" height="26" viewBox="-2 -2 38 26" aria-hidden="true">{sign}</svg>'
        f"<span>{text_of(text, _MAX_VALUE)}</span></li>\n"
        for sign, text in (*pods, *signs())
    )
    rest = len(shown.owners) - _MAX_OWNERS
    more = f'<p class="quiet">and {counted(rest, "more pod")}</p>\n' if rest > 0 else ""
    yield (
        f'<section class="card legend" aria-labelledby="legend"><h3 id="legend">Legend</h3>\n'
        f'<ul class="keys">\n{keys}</ul>\n{more}</section>\n'
    )


# --- text -------------------------------------------------------------------------------------------------------------


def _findings(report: NodeReport, shown: NodePicture) -> Iterator[str]:
    yield '<section aria-labelledby="findings"><h2 id="findings">Findings</h2>\n'
    if not report.findings:
        yield "<p>none</p>\n"
    rows: dict[tuple[str, str], Cell] = {(cell.rows[0].resource, cell.rows[0].device): cell for cell in shown.cells}
    for finding in report.findings[:MAX_FINDINGS]:
        yield from _finding(finding, rows)
    if (rest := len(report.findings) - MAX_FINDINGS) > 0:
        yield f"<p>{counted(rest, 'further finding')}: <code>devicecore doctor --json</code> lists them.</p>\n"
    yield "</section>\n"


def _finding(finding: NodeFinding, rows: dict[tuple[str, str], Cell]) -> Iterator[str]:
    number = finding.number
    yield (
        f'<article class="finding" id="finding-{number}" data-code="{finding.code}" aria-labelledby="title-{number}">'
        f'<h3 id="title-{number}"><b class="number">{number}</b>{text_of(finding.title)}</h3>\n'
        f'<p class="sentence">{_long(finding.sentence)}</p>\n<dl>'
    )
    for evidence in finding.evidence:
        yield f'<dt>evidence</dt><dd class="evidence">{evidence.source.value}: {_long(evidence.text)}</dd>\n'
    if finding.measured:
        yield f'<dt>measured</dt><dd class="measured">{_long(finding.measured)}</dd>\n'
    yield (
        f'<dt>next</dt><dd class="next">{_long(finding.next)}</dd>\n'
        f'<dt>do</dt><dd class="do">{_long(finding.do)}</dd>\n'
        f'<dt>confirm</dt><dd class="confirm">{_long(finding.confirm)}</dd>\n'
        f'<dt>see</dt><dd class="issue"><a href="{escape(finding.issue)}" rel="noreferrer">{escape(finding.issue)}'
        "</a></dd>\n"
    )
    if finding.devices:
        links = []
        for device in islice(finding.devices, _MAX_DEVICES):
            cell, text = rows.get((finding.resource, device)), text_of(device, _MAX_VALUE)
            links.append(f'<a href="#d{cell.number}">{text}</a>' if cell else text)
        rest = len(finding.devices) - _MAX_DEVICES
        more = f" and {rest:,} more" if rest > 0 else ""
        yield f'<dt>devices</dt><dd class="devices">{", ".join(links)}{more}</dd>\n'
    yield "</dl></article>\n"


def _long(text: str) -> str:
    return text_of(text, 4_000)


def _devices(report: NodeReport, shown: NodePicture) -> Iterator[str]:
    if not report.devices:
        return
    cells = list(shown.cells)
    folded = f"; {counted(shown.folded.devices, 'further device')} folded" if shown.folded.devices else ""
    caption = f"The {counted(len(cells), 'device')} in the picture{folded}. A device with two owners has two rows."
    rows = (text for cell in sorted(cells, key=lambda one: one.number) for text in _rows(cell))
    yield from _table("all", "All devices", caption, _HEADS, rows, attributes=' id="devices"')


def _table(
    id_: str, title: str, caption: str, heads: Iterable[str], rows: Iterable[str], *, attributes: str = ""
) -> Iterator[str]:
    """Yield the HTML of a section with a table. A table wider than the page can be scrolled with the keyboard."""
    columns = "".join(f'<th scope="col">{head}</th>' for head in heads)
    yield (
        f'<section><h2 id="{id_}">{title}</h2>\n<div class="card wide" role="region" '
        f'aria-labelledby="{id_}" tabindex="0"><table{attributes}><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{columns}</tr></thead>\n<tbody>\n"
    )
    yield from rows
    yield "</tbody></table></div></section>\n"


_HEADS = ("Resource", "Device", "NUMA nodes", "Health", "Owner", "Pod UID", "Container", "Sources", "State", "Findings")


def _rows(cell: Cell) -> Iterator[str]:
    links = ", ".join(
        f'<a href="#finding-{number}">{number}</a>' if number <= MAX_FINDINGS else str(number)
        for number in cell.findings
    )
    for number, row in enumerate(cell.rows, start=cell.number):
        values = (
            row.device,
            _numa_nodes(row.numa_nodes),
            row.health,
            row.owner,
            row.pod_uid,
            row.container,
            ", ".join(source.value for source in row.sources),
            row.state.value,
        )
        rest = "".join(f"<td>{text_of(value, _MAX_VALUE)}</td>" for value in values[1:])
        yield (
            f'<tr id="d{number}"><td>{text_of(row.resource, 320)}</td>'
            f'<th scope="row">{text_of(row.device, _MAX_VALUE)}</th>{rest}<td>{links}</td></tr>\n'
        )


def _numa_nodes(numa_nodes: tuple[int, ...] | None) -> str:
    if numa_nodes is None:
        return "unknown"
    return ", ".join(map(str, numa_nodes)) or "none"


def _folded(report: NodeReport, shown: NodePicture) -> Iterator[str]:
    """Yield the HTML of the folded devices as a table of counts."""
    if not shown.folded.devices:
        return
    seen = {(cell.rows[0].resource, cell.rows[0].device) for cell in shown.cells}
    folded = {key: row for row in report.devices if (key := (row.resource, row.device)) not in seen}
    counts = Counter(
        (row.resource, row.numa_nodes, row.health, kind_of(row), row.state.value) for row in folded.values()
    )
    named = Counter({(key[0], place_of(key[1]), *key[2:]): count for key, count in counts.items()})
    listed = sorted(named.items())[:_MAX_COUNTS]
    rest = len(folded) - sum(count for _, count in listed)
    others = f" {counted(rest, 'device')} of kinds that are not listed here." if rest else ""
    heads = ("Resource", "NUMA nodes", "Health", "Owner", "State", "Devices")
    rows = (
        f"<tr>{''.join(f'<td>{text_of(value, 320)}</td>' for value in kind)}<td>{count:,}</td></tr>\n"
        for kind, count in listed
    )
    yield from _table("folded", "Folded devices", f"{shown.folded.text}.{others}", heads, rows)


_MAX_COUNTS = 500  # the maximum number of rows


def _sources(report: NodeReport) -> Iterator[str]:
    rows = (
        f'<tr><th scope="row">{line.source.value}</th><td>{_long(line.place)}</td>'
        f"<td>{'yes' if line.was_read else 'no'}</td><td>{_long(line.problem)}</td>"
        f"<td>{_long('; '.join(line.notes))}</td></tr>\n"
        for line in report.sources
    )
    caption = "The sources that were read, and why the others were not."
    yield from _table("sources", "Sources", caption, ("Source", "Place", "Read", "Problem", "Notes"), rows)
