"""A report as text for people, as JSON for programs, and as JUnit XML for CI systems.

Law: all three formats contain the same results.
"""

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as ET

from cattrs import Converter

from devicecore.domain.text import counted, foreign_text
from devicecore_tools.conformance.model import MAX_ACTUAL, Check, Report, Result, Severity, Verdict, some

WORDS = {Verdict.PASSED: "ok", Verdict.FAILED: "FAIL", Verdict.SKIPPED: "n/a", Verdict.UNDECIDED: "open"}
"""The first word of a result's line, by verdict."""

MAX_LINE = 300
"""The maximum length of a sentence in a table. The full sentence is below the table."""

NAME_WIDTH = 40
"""The width of the name column."""

_CONVERTER = Converter()


def head(result: Result) -> str:
    """Return the start of a result's line: verdict, severity and name."""
    return f"{WORDS[result.verdict]:<4}  {result.severity.value:<6}  {result.name:<{NAME_WIDTH}}"


def explanation(result: Result) -> Iterator[tuple[str, str]]:
    """Yield what the subject's author needs to know about a failure, as pairs of label and text."""
    texts = {"done:": result.done, "expected:": result.expected, "actual:": result.actual, "because:": result.clause}
    yield from ((label, foreign_text(text, MAX_ACTUAL)) for label, text in texts.items())


def crashes(report: Report, check: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield a sentence and the output for each exit of the subject, or only for those during one check.

    Repetitions within the same check are left out, and so are exits without a crash that printed at most one line.
    """
    for one in {(each.how, each.during): each for each in report.exits}.values():
        if check in (None, one.during) and (one.is_crash or "\n" in one.output.strip()):
            when = f"during {one.during}" if one.during else "while no check was running"
            yield f"{foreign_text(one.how, MAX_LINE)} ({when})", "\n".join(map(foreign_text, one.output.splitlines()))


def summary(report: Report) -> str:
    """Return the last line of the report."""
    musts = sum(result.severity is Severity.MUST for result in report.failures)
    counts = counts_of(report)
    parts = [f"{number} {word.replace('_', ' ')}" for word, number in counts.items() if word != "checks"]
    parts[1] = f"{parts[1]} ({musts} of severity must)" if report.failures else "none failed"
    first = (
        f"{report.subject}: {counted(counts['checks'], 'check')}: {', '.join(parts)}, in {report.seconds:.1f} seconds"
    )
    undecided = [result.name for result in report.undecided if result.severity is Severity.MUST]
    if undecided:
        what = "1 'must' check was" if len(undecided) == 1 else f"{len(undecided)} 'must' checks were"
        first = f"{first}; {what} not decided, so this run did not pass: {some(undecided)}"
    stray = sum(one.is_crash and not one.during for one in report.exits)
    crashed = () if not stray else (f"the {report.kind} crashed {counted(stray, 'time')} while no check was running",)
    nothing = () if report.made_any else ("no check was run, so this run has failed",)
    return "; ".join([first, *report.notes, *crashed, *nothing])


def count_of(report: Report, verdict: Verdict) -> int:
    """Return how many checks ended with this verdict."""
    return sum(result.verdict is verdict for result in report.results)


def counts_of(report: Report) -> dict[str, int]:
    """Return the number of checks, and how many of them ended with each verdict.

    The numbers for the verdicts add up to the number of checks.
    """
    words = {
        "passed": Verdict.PASSED,
        "failed": Verdict.FAILED,
        "not_decided": Verdict.UNDECIDED,
        "not_applicable": Verdict.SKIPPED,
    }
    return {"checks": len(report.results)} | {word: count_of(report, verdict) for word, verdict in words.items()}


def as_document(report: Report) -> dict[str, object]:
    """Return the report as JSON-compatible values."""
    return {
        "kind": report.kind,
        "subject": report.subject,
        "release": report.release,
        "command": report.command,
        "devicecore": report.tool,
        **report.facts,
        "passed": report.passed,
        "counts": counts_of(report),
        "not_made": report.not_made,
        "cannot_run": report.cannot_run,
        "notes": list(report.notes),
        "seconds": round(report.seconds, 3),
        "checks": [
            {**_CONVERTER.unstructure(result), "applies": result.applies, "seconds": round(result.seconds, 3)}
            for result in report.results
        ],
        "exits": _CONVERTER.unstructure(report.exits),
        "output": report.output,
    }


def check_document(check: Check[Any]) -> dict[str, object]:
    """Return a check as JSON-compatible values."""
    document: dict[str, object] = _CONVERTER.unstructure(check, unstructure_as=Check)
    del document["look"], document["needs"]
    return document


def as_junit(report: Report) -> str:
    """Return the report as JUnit XML.

    A failed "should" or "info" check is reported as `skipped`, because it must not fail a build. A "must" check that
    was not decided is an error.

    XML cannot represent control characters, not even escaped, so every text is made printable.
    """
    failures = [result for result in report.failures if result.severity is Severity.MUST]
    undecided = [result for result in report.undecided if result.severity is Severity.MUST]
    others = len(failures) + len(undecided)
    skipped = sum(result.verdict is not Verdict.PASSED for result in report.results) - others
    suite = ET.Element(
        "testsuite",
        name="devicecore conformance",
        tests=str(len(report.results)),
        failures=str(len(failures)),
        errors=str(len(undecided)),
        skipped=str(skipped),
        time=f"{report.seconds:.3f}",
    )
    for result in report.results:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"conformance.{result.severity.value}",
            name=foreign_text(result.name),
            time=f"{result.seconds:.3f}",
        )
        if result in failures:
            failure = ET.SubElement(case, "failure", message=foreign_text(result.actual, MAX_ACTUAL))
            printed = [line for pair in crashes(report, result.name) for line in ("", *pair)]
            failure.text = "\n".join([*(f"{label:<9} {text}" for label, text in explanation(result)), *printed])
        elif result in undecided:
            ET.SubElement(case, "error", message=f"not decided: {foreign_text(result.actual, MAX_ACTUAL)}")
        elif result.verdict is not Verdict.PASSED:
            prefix = f"{result.severity.value}, failed: " if result.failed else ""
            ET.SubElement(case, "skipped", message=prefix + foreign_text(result.actual, MAX_ACTUAL))
    stray = [line for pair in crashes(report, "") for line in (*pair, "")]
    ET.SubElement(suite, "system-out").text = "\n".join([*stray, *map(foreign_text, report.output.splitlines())])
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"
