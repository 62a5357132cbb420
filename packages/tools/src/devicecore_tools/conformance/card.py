"""A report as a scorecard: one HTML page and an SVG badge.

Law: the page is self-contained. It loads nothing, has no scripts, and escapes all text, so a plugin can add nothing but
text.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import date
from html import escape, unescape

from devicecore.domain.text import counted, foreign_text
from devicecore_tools.conformance.model import Report, Result, Severity
from devicecore_tools.conformance.reports import WORDS, counts_of, crashes, summary

_MAX_TEXT = 4000  # characters per string
NOT_MADE = "not made"
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
.passed { color: var(--good); } .failed { color: var(--bad); font-weight: bold; }
.skipped, .undecided { color: var(--open); }
""".strip()
_POLICY = "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body><main><h1>{title}</h1><p class="{outcome}">{summary}</p>
<dl>{facts}</dl>
<table><caption>All {number}, failures first</caption>
<thead><tr><th scope="col">Result</th><th scope="col">Severity</th><th scope="col">Check</th>\
<th scope="col">What happened</th></tr></thead>
<tbody>
{rows}
</tbody></table>
{output}</main></body></html>
"""
_ROW = """<tr id="{name}"><td class="{verdict}">{word}</td><td>{severity}</td><th scope="row">\
<p><a href="#{name}" class="name">{name}</a></p><p class="sentence">{done}</p></th><td>{happened}</td></tr>"""
_TITLE, _RELEASE = re.compile("<h1>(Conformance of [^<]*)</h1>"), re.compile("<dt>Release</dt><dd>([^<]*)</dd>")
_ROWS = re.compile(r'<tr id="([^"]*)"><td class="([^"]*)">[^<]*</td><td>([^<]*)</td>')


def as_page(report: Report, day: date) -> str:
    """Return the report as one HTML page. `day` is the day of the run."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    return _PAGE.format(
        policy=_POLICY.format(digest),
        title=_text(f"Conformance of {report.subject}"),
        style=_STYLE,
        outcome=_outcome(report),
        summary=_text(summary(report)),
        facts="".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in _facts(report, day)),
        number=counted(len(report.results), "check"),
        rows="\n".join(map(_row, sorted(report.results, key=_urgency))),
        output="".join(f"<h2>{_text(title)}</h2><pre>{lines}</pre>\n" for title, lines in _output(report)),
    )


def _text(text: str) -> str:
    """Return an untrusted string made safe for HTML and SVG: printable, bounded and escaped."""
    return escape(foreign_text(text, _MAX_TEXT))


def _outcome(report: Report) -> str:
    """Return the CSS class for the whole report: `skipped` if the report passed although a "should" check failed."""
    if report.cannot_run or not report.passed or not counts_of(report)["passed"]:
        return "failed"
    return "skipped" if any(result.severity is Severity.SHOULD for result in report.failures) else "passed"


def _facts(report: Report, day: date) -> Iterator[tuple[str, str]]:
    facts = {"Kind": report.kind, "Release": report.release, "Command": report.command, "devicecore": report.tool}
    yield from ((name, value) for name, value in {**facts, "Date": day.isoformat()}.items() if value)
    for name, value in report.facts.items():
        if words := ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value):
            yield name.replace("_", " ").capitalize().replace("Api", "API"), words


def _urgency(result: Result) -> tuple[bool, int]:
    return not result.failed, list(Severity).index(result.severity) if result.failed else 0


def _row(result: Result) -> str:
    happened = [result.actual]
    if result.failed:
        happened += [f"Expected: {result.expected}", f"Because: {result.clause}"]
    return _ROW.format(
        name=_text(result.name),
        verdict=result.verdict.value,
        word=WORDS[result.verdict],
        severity=result.severity.value,
        done=_text(result.done),
        happened="".join(f"<p>{_text(text)}</p>" for text in happened),
    )


def _output(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the output before the exits in `crashes`, and the last output of a failed run, each with a title."""
    for sentence, printed in crashes(report):
        yield f"The {report.kind} exited on its own: {sentence}", _lines(printed.splitlines())
    if (report.failures or report.cannot_run) and report.output:
        yield f"The last output of the {report.kind}", _lines(report.output.splitlines())


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(map(_text, lines))


def title_of(page: str) -> str:
    """Return the subject and its release as shown on the card, or an empty string if the page is not a card."""
    title, release = (found[1] if (found := one.search(page)) else "" for one in (_TITLE, _RELEASE))
    return unescape(title) + (f", release {unescape(release)}" if release else "")


def differences(old: str, new: str) -> list[tuple[str, str, str, str]]:
    """Return the checks with different verdicts on the two cards, worst first: name, severity and both verdicts.

    A check that is not on a card has the verdict `NOT_MADE` there.
    """
    before, after = ({name: (verdict, severity) for name, verdict, severity in _ROWS.findall(of)} for of in (old, new))
    nothing = (NOT_MADE, "")
    rows = [(name, before.get(name, nothing), after.get(name, nothing)) for name in sorted({*before, *after})]
    changed = [(name, now[1] or was[1], was[0], now[0]) for name, was, now in rows if was[0] != now[0]]
    return sorted(changed, key=_rank)


def _rank(change: tuple[str, str, str, str]) -> tuple[bool, ...]:
    _, severity, was, now = change
    return now != "failed", (severity, now) != ("must", NOT_MADE), NOT_MADE in (was, now), severity != "must"


# --- the badge --------------------------------------------------------------------------------------------------------

_COLORS = {"passed": "#116329", "failed": "#a40e26", "skipped": "#7d4e00"}  # contrast with white text is above 6 to 1
_LETTER = 6.2  # pixels per letter, on average
_MAX_RELEASE = 40  # characters
_BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{label}">\
<title>{title}</title><rect width="{width}" height="20" rx="3" fill="#3d444d" />\
<path d="M{left} 0h{inner}a3 3 0 0 1 3 3v14a3 3 0 0 1 -3 3h-{inner}z" fill="{color}" />{texts}</svg>
"""  # the path is a rectangle from `left`, with rounded corners on the right
_LABEL = """<text x="{start}" y="14" textLength="{width}" fill="#fff" font-family="Verdana, DejaVu Sans, sans-serif" \
font-size="11">{text}</text>"""


def as_badge(report: Report, day: date) -> str:
    """Return an SVG badge that names the release. The badge's title contains `day`, the day of the run."""
    release = f"{foreign_text(report.release, _MAX_RELEASE)}: " if report.release else ""
    texts = (f"{report.kind} conformance", f"{release}{_score(report)}")
    left, right = (round(len(text) * _LETTER + 12) for text in texts)
    labels = zip((6, left + 6), (left - 12, right - 12), texts, strict=True)
    return _BADGE.format(
        width=left + right,
        label=_text(": ".join(texts)),
        title=_text(f"{summary(report)}; {day.isoformat()}"),
        left=left,
        inner=right - 3,
        color=_COLORS[_outcome(report)],
        texts="".join(_LABEL.format(start=start, width=width, text=_text(text)) for start, width, text in labels),
    )


def _score(report: Report) -> str:
    """Return the counts for the badge. A check that was not run did not pass, so it is counted separately."""
    if report.cannot_run:
        return "could not be run"
    counts = counts_of(report)
    del counts["checks"]
    return ", ".join(
        f"{number} {word}".replace("_", " ") for word, number in counts.items() if number or word == "passed"
    )
