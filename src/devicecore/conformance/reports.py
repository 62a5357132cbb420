"""A report for people, for programs, and for CI systems.

Law: all three say the same.
"""

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from devicecore.conformance.model import Report, Result, Severity, Verdict

_WORDS = {Verdict.PASSED: "ok", Verdict.FAILED: "FAIL", Verdict.SKIPPED: "skip"}
_CONTROL = {code: "\N{REPLACEMENT CHARACTER}" for code in range(32) if chr(code) not in "\t\n\r"}


def line(result: Result) -> str:
    """One line for one result."""
    check = result.check
    return f"{_WORDS[result.verdict]:<4}  {check.severity.value:<6}  {check.name:<40}  {_one_line(result.came)}"


def explanation(result: Result) -> Iterator[str]:
    """What somebody needs who wants to do something about a failure, line by line."""
    check = result.check
    yield f"{check.name} ({check.severity.value})"
    yield f"  done:      {check.done}"
    yield f"  expected:  {check.expected}"
    yield f"  came:      {_one_line(result.came)}"
    yield f"  because:   {check.clause}"


def summary(report: Report) -> str:
    """The end of the report, in a sentence."""
    count = dict.fromkeys(Verdict, 0)
    for result in report.results:
        count[result.verdict] += 1
    musts = sum(result.failed and result.check.severity is Severity.MUST for result in report.results)
    failed = f"{count[Verdict.FAILED]} failed ({musts} of them must-checks)" if count[Verdict.FAILED] else "none failed"
    others = f"; not tested, but with --resource: {', '.join(report.others)}" if report.others else ""
    return (
        f"{report.resource or 'no resource'}, {report.devices} devices: {count[Verdict.PASSED]} checks passed, "
        f"{failed}, {count[Verdict.SKIPPED]} skipped, in {report.seconds:.1f} seconds{others}"
    )


def as_document(report: Report) -> dict[str, object]:
    """The report as JSON can hold it."""
    return {
        "resource": report.resource,
        "others": list(report.others),
        "devices": report.devices,
        "passed": report.passed,
        "seconds": round(report.seconds, 3),
        "checks": [
            {
                "name": result.check.name,
                "severity": result.check.severity.value,
                "verdict": result.verdict.value,
                "done": result.check.done,
                "expected": result.check.expected,
                "came": result.came,
                "clause": result.check.clause,
                "seconds": round(result.seconds, 3),
            }
            for result in report.results
        ],
        "output": report.output,
    }


def as_junit(report: Report) -> str:
    """The report as JUnit XML. A should- or info-check that fails is `skipped` there: it fails no build."""
    failures = [result for result in report.results if result.failed and result.check.severity is Severity.MUST]
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
        check = result.check
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"conformance.{check.severity.value}",
            name=check.name,
            time=f"{result.seconds:.3f}",
        )
        if result in failures:
            failure = ET.SubElement(case, "failure", message=_printable(_one_line(result.came)))
            failure.text = _printable("\n".join(explanation(result)))
        elif result.verdict is not Verdict.PASSED:
            prefix = f"{check.severity.value}, failed: " if result.failed else ""
            ET.SubElement(case, "skipped", message=_printable(prefix + _one_line(result.came)))
    ET.SubElement(suite, "system-out").text = _printable(report.output)
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _one_line(text: str) -> str:
    return " | ".join(part.strip() for part in text.splitlines() if part.strip())


def _printable(text: str) -> str:
    return text.translate(_CONTROL)  # XML has no way to write these
