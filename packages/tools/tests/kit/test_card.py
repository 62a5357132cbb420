"""The scorecard: a page that any browser shows without loading anything, and its badge."""

import json
import re
from datetime import date
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from attrs import evolve
from devicecore_tools.conformance import Report, Result, Severity, Verdict
from devicecore_tools.conformance.card import as_badge, as_page
from devicecore_tools.conformance.faults import PLUGIN
from devicecore_tools.conformance.model import Exit
from tests.browser import Browser, contrast, luminance
from tests.kit.test_command import conformance

DAY = date(2026, 11, 21)
EXIT = Exit(7, "it exited early with status 2", "panic: no chip\n\ngoroutine 1", is_crash=True, during="two")
HOSTILE = '</title></style><script>alert(1)</script><img src="https://example.com/x.png"> &amp; \x1b[31m\u202e\ud800\0'


def result(name: str, verdict: Verdict = Verdict.PASSED, severity: Severity = Severity.MUST, text: str = "") -> Result:
    return Result(name, severity, verdict, f"{name} is done", f"{name} is expected", text or "it was so", "rule", 0.25)


def report(*results: Result) -> Report:
    return Report(subject="example.com/chip, 3 devices", results=results, seconds=1.5, facts={"api_version": "v1beta1"})


REPORT = report(
    result("one"),
    result("two", Verdict.FAILED),
    result("three", Verdict.FAILED, Severity.SHOULD),
    result("four", Verdict.SKIPPED, Severity.INFO),
)


def test_two_cards_are_compared_check_by_check(tmp_path: Path) -> None:
    worse = (result("four", Verdict.FAILED, Severity.INFO), result("one", Verdict.FAILED))
    later = evolve(report(*worse, result("two"), result("five")), release="2.0")
    cards = [written(tmp_path, as_page(one, DAY), f"{number}.html") for number, one in enumerate((REPORT, later))]
    ran = conformance(*cards, kind="compare")
    assert ran.returncode == 1, ran.stderr
    old, new, *lines = ran.stdout.splitlines()
    assert old == "old: Conformance of example.com/chip, 3 devices"
    assert new == "new: Conformance of example.com/chip, 3 devices, release 2.0"
    assert [line.split() for line in lines] == [
        ["must", "one", "passed", "->", "failed"],
        ["info", "four", "skipped", "->", "failed"],
        ["must", "two", "failed", "->", "passed"],
        ["must", "five", "not", "made", "->", "passed"],
        ["should", "three", "failed", "->", "not", "made"],
    ]
    cards.append(written(tmp_path, as_page(report(result("two", Verdict.FAILED)), DAY), "less.html"))
    less = conformance(cards[0], cards[2], kind="compare")
    assert (less.returncode, less.stdout.splitlines()[2].split()) == (1, ["must", "one", "passed", "->", "not", "made"])
    same = conformance(cards[0], cards[0], kind="compare").stdout
    assert same == f"{old}\n{old.replace('old', 'new')}\nno check has a different verdict\n"
    none = conformance(cards[0], written(tmp_path, "<testsuite/>", "junit.xml"), kind="compare")
    assert (none.returncode, "junit.xml: expected a scorecard" in none.stderr) == (2, True)
    other = "<title>Devices of node-1</title><h1>Devices of node-1</h1>"
    none = conformance(cards[0], written(tmp_path, other, "doctor.html"), kind="compare")
    assert (none.returncode, "doctor.html: expected a scorecard" in none.stderr) == (2, True)


def test_a_card_lists_failures_first_and_says_what_was_run() -> None:
    page = as_page(evolve(REPORT, command="./chip {dir}", tool="1.0", exits=(EXIT,)), DAY)
    assert re.findall(r'<tr id="(\w+)">', page) == ["two", "three", "one", "four"]
    for text in ("./chip {dir}", '<a href="#two" class="name">', "panic: no chip", "goroutine 1"):
        assert text in page


def written(directory: Path, text: str, name: str = "card.html") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_browser_shows_every_check_and_loads_nothing_else(browser: Browser, tmp_path: Path) -> None:
    page = written(tmp_path, as_page(evolve(REPORT, release="v1.2.3", output="first\nsecond"), DAY))
    browser.open(page.as_uri())
    assert browser.requests == [page.as_uri()]
    assert browser.complaints == []
    rows = browser.run("[...document.querySelectorAll('tbody tr')].map(row => [...row.cells].map(it => it.innerText))")
    explained = "it was so\n\nExpected: {0} is expected\n\nBecause: rule"
    assert rows == [
        ["FAIL", "must", "two\n\ntwo is done", explained.format("two")],
        ["FAIL", "should", "three\n\nthree is done", explained.format("three")],
        ["ok", "must", "one\n\none is done", "it was so"],
        ["n/a", "info", "four\n\nfour is done", "it was so"],
    ]
    facts = browser.run("document.querySelector('dl').innerText").splitlines()
    assert [text for text in facts if text] == [
        *("Kind", "device plugin", "Release", "v1.2.3", "Date", "2026-11-21", "API version", "v1beta1")
    ]
    assert browser.run("document.querySelector('pre').innerText") == "first\nsecond"
    line = browser.run("document.querySelector('main > p').innerText")
    assert line.startswith("example.com/chip, 3 devices: 4 checks: 1 passed, ")


def test_the_page_of_a_run_has_what_its_json_has(browser: Browser, tmp_path: Path) -> None:
    card = tmp_path / "card.html"
    arguments = ("--json", "--card", card, "--only", "lists-*", "--only", "gives-nodes-by-id")
    ran = conformance(*arguments, "--", "python3", PLUGIN, "{dir}", "by-position")
    assert ran.stdout, ran
    checks = json.loads(ran.stdout)["checks"]
    browser.open(card.as_uri())
    rows = browser.run("[...document.querySelectorAll('tbody tr')].map(row => row.innerText)")
    assert len(rows) == len(checks) >= 6
    for row, check in zip(rows, checks, strict=True):
        assert {check["severity"], check["name"], check["done"], check["actual"]} <= set(re.split(r"[\t\n]+", row))
    assert 'aria-label="device plugin conformance: ' in card.with_suffix(".svg").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(browser: Browser, tmp_path: Path, scheme: str) -> None:
    browser.open(written(tmp_path, as_page(evolve(REPORT, output="x"), DAY)).as_uri(), scheme=scheme)
    colors = browser.run(
        "[...document.querySelectorAll('h1, p, dt, dd, caption, th, td, pre')].map(it => [getComputedStyle(it).color,"
        " getComputedStyle(it.tagName === 'PRE' ? it : document.body).backgroundColor])"
    )
    ratios = [contrast(text, ground) for text, ground in colors]
    assert len(ratios) > 20
    assert min(ratios) >= 4.5
    assert (luminance(colors[0][1]) > 0.5) == (scheme == "light")


def test_a_narrow_window_needs_no_sideways_scrolling(browser: Browser, tmp_path: Path) -> None:
    long = evolve(REPORT, results=(*REPORT.results, result("long", Verdict.FAILED, text="/dev/" + "x" * 500)))
    browser.open(written(tmp_path, as_page(long, DAY)).as_uri(), size=(400, 800))
    assert browser.run("document.documentElement.scrollWidth") <= 400


def test_a_screen_reader_finds_title_headers_and_caption(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, as_page(REPORT, DAY)).as_uri())
    assert browser.run("document.title") == "Conformance of example.com/chip, 3 devices"
    assert browser.run("document.documentElement.lang") == "en"
    named = browser.accessible_names()
    headers = [name for role, name in named if role == "columnheader"]
    assert headers == ["Result", "Severity", "Check", "What happened"]
    assert [name.split()[0] for role, name in named if role == "rowheader"] == ["two", "three", "one", "four"]
    assert ("table", "All 4 checks, failures first") in named


def test_text_from_outside_stays_text(browser: Browser, tmp_path: Path) -> None:
    failed = result("name", Verdict.FAILED, text=HOSTILE)
    hostile = evolve(
        report(failed), subject=HOSTILE, release=HOSTILE, notes=(HOSTILE,), facts={HOSTILE: [HOSTILE]}, output=HOSTILE
    )
    page, badge = written(tmp_path, as_page(hostile, DAY)), written(tmp_path, as_badge(hostile, DAY), "badge.svg")
    browser.open(page.as_uri())
    assert browser.requests == [page.as_uri()]
    assert browser.complaints == []
    assert browser.run("document.querySelectorAll('script, img').length") == 0
    assert browser.run("document.body.innerText.match(/<script>alert\\(1\\)<.script>/g).length") >= 5
    assert set("\x1b\u202e\ud800\x00").isdisjoint(page.read_text() + badge.read_text())
    browser.open(badge.as_uri())
    assert browser.requests == [badge.as_uri()]
    assert browser.complaints == []
    assert browser.run("document.querySelectorAll('script, img').length") == 0


def test_a_policy_forbids_anything_injected_into_a_page(browser: Browser, tmp_path: Path) -> None:
    added = '<img src="data:,"><script>document.title = "changed"</script><style>body { color: red }</style></main>'
    page = written(tmp_path, as_page(REPORT, DAY).replace("</main>", added))
    browser.open(page.as_uri())
    assert len([text for text in browser.complaints if "Content Security Policy" in text]) == 3
    assert browser.run("document.title") != "changed"


@pytest.mark.parametrize(
    ("results", "color", "text"),
    [
        ([result("a"), result("b")], "#116329", "2 passed"),
        ([result("a"), result("b", Verdict.FAILED)], "#a40e26", "1 passed, 1 failed"),
        ([result("a"), result("b", Verdict.FAILED, Severity.SHOULD)], "#7d4e00", "1 passed, 1 failed"),
        ([result("a"), result("b", Verdict.FAILED, Severity.INFO)], "#116329", "1 passed, 1 failed"),
        ([result("a"), result("b", Verdict.SKIPPED, Severity.SHOULD)], "#116329", "1 passed, 1 not applicable"),
        ([result("a"), result("b", Verdict.SKIPPED)], "#116329", "1 passed, 1 not applicable"),
        ([result("a"), result("b", Verdict.UNDECIDED)], "#a40e26", "1 passed, 1 not decided"),
        ([result("a", Verdict.SKIPPED)], "#a40e26", "0 passed, 1 not applicable"),
    ],
)
def test_a_badge_counts_failed_checks_and_checks_not_run(results: list[Result], color: str, text: str) -> None:
    badge = ET.fromstring(as_badge(report(*results), DAY))  # noqa: S314 - this test made it
    assert badge.get("aria-label") == f"device plugin conformance: {text}"
    assert color in {part.get("fill") for part in badge}
    assert "2026-11-21" in (badge[0].text or "")


def test_a_badge_names_the_release_and_what_could_not_be_run() -> None:
    badge = as_badge(evolve(report(), release="v1.2.3", cannot_run=True), DAY)
    assert ">v1.2.3: could not be run</text>" in badge


def test_the_page_must_not_have_the_name_of_its_badge(tmp_path: Path) -> None:
    ran = conformance("--card", tmp_path / "card.svg", "--", "true")
    assert (ran.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "expected the name of an HTML page" in ran.stderr
