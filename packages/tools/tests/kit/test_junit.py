"""JUnit XML as CI systems read it: the rules of the schema that Jenkins publishes (junit-10.xsd)."""

from xml.etree import ElementTree as ET

import pytest
from attrs import evolve
from devicecore_tools.conformance import Report, Result, Severity, Verdict
from devicecore_tools.conformance.model import Exit
from devicecore_tools.conformance.reports import as_junit, summary

# For each element: its required attributes, its optional attributes, and its children.
RULES = {
    "testsuites": ("", "name time tests failures disabled errors", "testsuite"),
    "testsuite": (
        "name tests",
        "failures errors time disabled skipped timestamp hostname id package",
        "properties testcase system-out system-err",
    ),
    "testcase": ("name", "assertions time classname status", "skipped error failure system-out system-err"),
    "failure": ("", "type message", ""),
    "skipped": ("", "type message", ""),
    "system-out": ("", "", ""),
}
HOSTILE = "]]> <failure/> \x00\x08\x1b[31m\ud800\ufffe\u202e \U0001f600 & \" ' \x85"


def problems(element: ET.Element) -> list[str]:
    """Return the violations of the schema in an element and its descendants."""
    required, optional, children = map(str.split, RULES[element.tag])
    found = [f"{element.tag} has no {name}" for name in required if name not in element.attrib]
    found += [f"{element.tag} has {name}" for name in element.attrib if name not in required + optional]
    found += [f"{element.tag} has <{child.tag}>" for child in element if child.tag not in children]
    found += [f"time is {element.get('time')}" for _ in "1" if float(element.get("time", "0")) < 0]
    return found + [problem for child in element if child.tag in RULES for problem in problems(child)]


def report(text: str) -> Report:
    results = tuple(
        Result(f"{verdict.value}-{severity.value}", severity, verdict, text, text, text, text, 0.00049)
        for verdict in Verdict
        for severity in Severity
    )
    return Report(subject=text, release=text, notes=(text,), results=results, seconds=3600.5, output=f"{text}\n{text}")


@pytest.mark.parametrize("text", ["plain", "", HOSTILE])
def test_the_report_keeps_the_schema_with_any_text(text: str) -> None:
    suites = ET.fromstring(as_junit(report(text)).encode())  # noqa: S314 - this test made it
    assert (suites.tag, problems(suites)) == ("testsuites", [])
    (suite,) = suites
    cases = suite.findall("testcase")
    for attribute, path in (("tests", "."), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(attribute, "")) == sum(case.find(path) is not None for case in cases), attribute
    assert suite.get("time") == "3600.500"


def test_only_a_failed_check_of_severity_must_fails_a_build() -> None:
    suites = ET.fromstring(as_junit(report("text")).encode())  # noqa: S314 - this test made it
    assert [case.get("name") for case in suites.iter("testcase") if case.find("failure") is not None] == ["failed-must"]
    skipped = {case.get("name"): case[0].get("message") for case in suites.iter("testcase") if len(case)}
    assert skipped["failed-should"] == "should, failed: text"
    assert skipped["skipped-must"] == "text"


def test_a_crash_is_reported_with_its_check_or_beside_the_checks() -> None:
    crash = Exit(1, "it was ended by SIGSEGV", "panic: no chip\n\x00goroutine 1", is_crash=True)
    found = evolve(report("text"), exits=(evolve(crash, during="failed-must"), crash))
    (suite,) = ET.fromstring(as_junit(found))  # noqa: S314 - this test made it
    (failure,) = suite.iter("failure")
    assert "it was ended by SIGSEGV (during failed-must)\npanic: no chip\n\\x00goroutine 1" in str(failure.text)
    said = str(suite.findtext("system-out"))
    assert said.startswith("it was ended by SIGSEGV (while no check was running)\npanic: ")
    assert "the device plugin crashed 1 time while no check was running" in summary(found)


def test_an_empty_run_is_a_suite_without_cases() -> None:
    suites = ET.fromstring(as_junit(Report(subject="x", results=(), seconds=0.0)).encode())  # noqa: S314 - as above
    assert problems(suites) == []
    assert suites[0].get("tests") == "0"


def test_the_rules_find_what_the_schema_forbids() -> None:
    wrong = ET.fromstring('<testsuites><testsuite name="x"><testcase time="1"><p/></testcase></testsuite></testsuites>')  # noqa: S314 - ours
    assert problems(wrong) == ["testsuite has no tests", "testcase has no name", "testcase has <p>"]
