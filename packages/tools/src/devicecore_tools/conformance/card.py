"""A report as a score card: one HTML page, and a badge as SVG.

Law: the page is complete in itself. It loads nothing, has no scripts, and every text in it is escaped, so a plugin
cannot put anything into it but text.
"""

import base64
import hashlib
from collections.abc import Iterator
from datetime import date
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

from attrs import define, field

from devicecore.domain.text import counted, foreign_text
from devicecore_tools.conformance.model import Report, Result, Severity, Verdict
from devicecore_tools.conformance.reports import WORDS, count_of, crashes, summary

_MAX_TEXT = 4000  # characters of one text
_SEVERITY_CELL = 2
_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --page: #fff; --line: #c9d1d9; --quiet: #57606a; --box: #f3f5f7;
  --good: #116329; --bad: #a40e26; --open: #7d4e00; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0d1117; --line: #3d444d; --quiet: #9198a1;
  --box: #161b22; --good: #56d364; --bad: #ff8e85; --open: #e3b341; } }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif; color: var(--text);
  background: var(--page); overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; }
dt, caption, .sentence { color: var(--quiet); }
dd { margin: 0; }
table { width: 100%; border-collapse: collapse; }
caption { text-align: left; padding-bottom: .5rem; }
thead th { overflow-wrap: normal; }
th, td { text-align: left; vertical-align: top; padding: .5rem .75rem .5rem 0; border-top: 1px solid var(--line); }
td:nth-child(-n + 2) { white-space: nowrap; overflow-wrap: normal; }
tbody th { font-weight: normal; width: 40%; }
p { margin: 0; }
.name, pre { font-family: ui-monospace, monospace; }
pre { padding: .75rem; background: var(--box); white-space: pre-wrap; }
.passed { color: var(--good); } .failed { color: var(--bad); font-weight: bold; } .skipped { color: var(--open); }
""".strip()
_POLICY = "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"


def as_page(report: Report, day: date) -> str:
    """Return the report as one HTML page. `day` is the day of the run."""
    style = _tag("style")
    style.text = _STYLE  # not through `_tag`, because HTML does not escape inside a style
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    title = f"Conformance of {report.subject}"
    head = _tag(
        "head",
        _tag("meta", charset="utf-8"),
        _tag("meta", http_equiv="Content-Security-Policy", content=_POLICY.format(digest)),
        _tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _tag("title", title),
        style,
    )
    facts = (_tag(name, text) for pair in _facts(report, day) for name, text in zip(("dt", "dd"), pair, strict=True))
    main = _tag(
        "main",
        _tag("h1", title),
        _tag("p", summary(report), class_=_outcome(report)),
        _tag("dl", *facts),
        _table(report),
        *_output(report),
    )
    page = _tag("html", head, _tag("body", main), lang="en")
    return "<!doctype html>\n" + ET.tostring(page, encoding="unicode", method="html") + "\n"


def _outcome(report: Report) -> str:
    """Return the class of the whole report: `skipped` stands for a failure that is not of severity must."""
    if report.cannot_run or not report.passed or not count_of(report, Verdict.PASSED):
        return "failed"
    return "skipped" if any(result.severity is Severity.SHOULD for result in report.failures) else "passed"


def _facts(report: Report, day: date) -> Iterator[tuple[str, str]]:
    yield "Kind", report.kind
    if report.release:
        yield "Release", report.release
    if report.command:
        yield "Command", report.command
    if report.tool:
        yield "devicecore", report.tool
    yield "Date", day.isoformat()
    for name, value in report.facts.items():
        words = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        if words:
            yield name.replace("_", " ").capitalize().replace("Api", "API"), words


def _table(report: Report) -> ET.Element:
    titles = ("Result", "Severity", "Check", "What happened")
    return _tag(
        "table",
        _tag("caption", f"All {counted(len(report.results), 'check')}, first those that failed"),
        _tag("thead", _tag("tr", *(_tag("th", title, scope="col") for title in titles))),
        _tag("tbody", *map(_row, sorted(report.results, key=_urgency))),
    )


def _urgency(result: Result) -> tuple[bool, int]:
    return not result.failed, list(Severity).index(result.severity) if result.failed else 0


def _row(result: Result) -> ET.Element:
    link = _tag("a", result.name, href=f"#{result.name}", class_="name")
    check = _tag("th", _tag("p", link), _tag("p", result.done, class_="sentence"), scope="row")
    happened = [_tag("p", result.actual)]
    if result.failed:
        happened += [_tag("p", f"Expected: {result.expected}"), _tag("p", f"Because: {result.clause}")]
    word = _tag("td", WORDS[result.verdict], class_=result.verdict.value)
    return _tag("tr", word, _tag("td", result.severity.value), check, _tag("td", *happened), id=result.name)


def _output(report: Report) -> Iterator[ET.Element]:
    for sentence, printed in crashes(report):
        yield _tag("h2", f"The {report.kind} ended by itself: {sentence}")
        lines = _tag("pre")
        lines.text = printed
        yield lines
    if (report.failures or report.cannot_run) and report.output:
        yield _tag("h2", f"The last output of the {report.kind}")
        lines = _tag("pre")
        lines.text = "\n".join(foreign_text(line, _MAX_TEXT) for line in report.output.splitlines())
        yield lines


# --- two cards ------------------------------------------------------------------------------------------------------


@define
class _Rows(HTMLParser):
    """The verdict and the severity of each check on a card."""

    found: dict[str, tuple[str, str]] = field(factory=dict)
    _check: str = ""
    _cells: int = 0

    def __attrs_post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self._check, self._cells = dict(attrs).get("id") or "", 0
        elif tag == "td" and self._check:
            self._cells += 1
            if self._cells == 1:
                self.found[self._check] = (dict(attrs).get("class") or "", "")

    def handle_data(self, data: str) -> None:
        if self._check and self._cells == _SEVERITY_CELL and not self.found[self._check][1]:
            self.found[self._check] = (self.found[self._check][0], data)


def differences(old: str, new: str) -> list[tuple[str, str, str, str]]:
    """Return name, severity, and the verdicts on both cards of each check that they judge differently.

    A check that is not on a card has the verdict `not made` there.
    """
    cards = []
    for page in (old, new):
        rows = _Rows()
        rows.feed(page)
        cards.append(rows.found)
    nothing = ("not made", "")
    first, second = cards
    names = sorted({*first, *second})
    compared = [(name, first.get(name, nothing), second.get(name, nothing)) for name in names]
    return [
        (name, after[1] or before[1], before[0], after[0]) for name, before, after in compared if before[0] != after[0]
    ]


# --- the badge --------------------------------------------------------------------------------------------------------

_COLOURS = {"passed": "#116329", "failed": "#a40e26", "skipped": "#7d4e00"}  # white text has a contrast above 6 to 1
_LETTER = 6.2  # pixels of a letter, on average
_MAX_RELEASE = 40  # characters


def as_badge(report: Report, day: date) -> str:
    """Return a badge as SVG, which names the release, and in its title the day. `day` is the day of the run."""
    release = f"{foreign_text(report.release, _MAX_RELEASE)}: " if report.release else ""
    left, right = f"{report.kind} conformance", f"{release}{_score(report)}"
    widths = [round(len(text) * _LETTER + 12) for text in (left, right)]
    svg = _tag(
        "svg",
        _tag("title", f"{summary(report)}; {day.isoformat()}"),
        _tag("rect", width=str(sum(widths)), height="20", rx="3", fill="#3d444d"),
        _tag("path", d=_right_box(*widths), fill=_COLOURS[_outcome(report)]),
        *(_label(text, start, width) for text, start, width in zip((left, right), (0, widths[0]), widths, strict=True)),
        xmlns="http://www.w3.org/2000/svg",
        width=str(sum(widths)),
        height="20",
        role="img",
        aria_label=f"{left}: {right}",
    )
    return ET.tostring(svg, encoding="unicode") + "\n"


def _score(report: Report) -> str:
    """A skipped check is not a passed one, so it is counted apart."""
    if report.cannot_run:
        return "could not be run"
    counts = [f"{count_of(report, Verdict.PASSED)} passed"]
    if report.failures:
        counts.append(f"{len(report.failures)} failed")
    if skipped := count_of(report, Verdict.SKIPPED):
        counts.append(f"{skipped} skipped")
    return ", ".join(counts)


def _right_box(left: int, right: int) -> str:
    """Return a rectangle from `left`, with round corners at its right."""
    return f"M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1 -3 3h-{right - 3}z"


def _label(text: str, start: int, width: int) -> ET.Element:
    return _tag(
        "text",
        text,
        x=str(start + 6),
        y="14",
        textLength=str(width - 12),
        fill="#fff",
        font_family="Verdana, DejaVu Sans, sans-serif",
        font_size="11",
    )


# --- markup -----------------------------------------------------------------------------------------------------------


def _tag(name: str, /, *content: ET.Element | str, **attributes: str) -> ET.Element:
    """Return an element. A text from outside is made printable here, and escaped when the element is written."""
    named = {key.rstrip("_").replace("_", "-"): foreign_text(value, _MAX_TEXT) for key, value in attributes.items()}
    element = ET.Element(name, named)
    for part in content:
        if isinstance(part, str):
            element.text = (element.text or "") + foreign_text(part, _MAX_TEXT)
        else:
            element.append(part)
    return element
