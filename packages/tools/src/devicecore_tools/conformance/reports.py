"""A report as text for people, as JSON for programs, and as JUnit XML for CI systems.

Law: all three have the same results.
"""

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as ET

from cattrs import Converter

from devicecore.domain.text import counted, foreign_text
from devicecore_tools.conformance.model import MAX_ACTUAL, Check, Report, Result, Severity, Verdict, some

WORDS = {Verdict.PASSED: "ok", Verdict.FAILED: "FAIL", Verdict.SKIPPED: "skip"}
"""How a result begins."""

_CONVERTER = Converter()


def head(result: Result) -> str:
    """Return the beginning of a result's line: verdict, severity and name."""
    return f"{WORDS[result.verdict]:<4}  {result.severity.value:<6}  {result.name:<40}"


def explanation(result: Result) -> Iterator[tuple[str, str]]:
    """Yield what the author of the subject needs to know about a failure, as pairs of label and text."""
    texts = {"done:": result.done, "expected:": result.expected, "actual:": result.actual, "because:": result.clause}
    yield from ((label, foreign_text(text, MAX_ACTUAL)) for label, text in texts.items())


def summary(report: Report) -> str:
    """Return the last line of the report."""
    musts = sum(result.severity is Severity.MUST for result in report.failures)
    failed = f"{len(report.failures)} failed ({musts} of severity must)" if report.failures else "none failed"
    passed, skipped = counted(count_of(report, Verdict.PASSED), "check"), count_of(report, Verdict.SKIPPED)
    first = f"{report.subject}: {passed} passed, {failed}, {skipped} skipped, in {report.seconds:.1f} seconds"
    late = [result.name for result in report.out_of_time if result.severity is Severity.MUST]
    if late:
        number = counted(len(late), "check")
        problem = f"no time was left for {number} of severity must, so this run has not passed: {some(late)}"
        first = f"{first}; {problem}"
    nothing = () if report.made_any else ("no check was made, so this run has failed",)
    return "; ".join([first, *report.notes, *nothing])


def count_of(report: Report, verdict: Verdict) -> int:
    """Return how many checks ended so."""
    return sum(result.verdict is verdict for result in report.results)


def as_document(report: Report) -> dict[str, object]:
    """Return the report as values that JSON can hold."""
    return {
        "kind": report.kind,
        "subject": report.subject,
        "release": report.release,
        **report.facts,
        "passed": report.passed,
        "not_made": report.not_made,
        "cannot_run": report.cannot_run,
        "notes": list(report.notes),
        "seconds": round(report.seconds, 3),
        "checks": [_as_document(result) for result in report.results],
        "output": report.output,
    }


def _as_document(result: Result) -> dict[str, object]:
    return {**_CONVERTER.unstructure(result), "seconds": round(result.seconds, 3)}


def check_document(check: Check[Any]) -> dict[str, object]:
    """Return a check as values that JSON can hold."""
    document: dict[str, object] = _CONVERTER.unstructure(check)
    del document["look"], document["needs"]
    return document


def as_junit(report: Report) -> str:
    """Return the report as JUnit XML. A failed should- or info-check is `skipped` there, because it fails no build.

    XML cannot hold control characters, not even escaped, so every text is made printable.
    """
    failures = [result for result in report.failures if result.severity is Severity.MUST]
    skipped = sum(result.verdict is not Verdict.PASSED for result in report.results) - len(failures)
    suite = ET.Element(
        "testsuite",
        name="devicecore conformance",
        tests=str(len(report.results)),
        failures=str(len(failures)),
        errors="0",
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
            failure.text = "\n".join(f"{label:<9} {text}" for label, text in explanation(result))
        elif result.verdict is not Verdict.PASSED:
            prefix = f"{result.severity.value}, failed: " if result.failed else ""
            ET.SubElement(case, "skipped", message=prefix + foreign_text(result.actual, MAX_ACTUAL))
    ET.SubElement(suite, "system-out").text = "\n".join(map(foreign_text, report.output.splitlines()))
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"
