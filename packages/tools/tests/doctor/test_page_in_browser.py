"""The page in a browser: its text matches the JSON document, it loads nothing, and the keyboard reaches every cell."""

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from devicecore_tools.doctor.findings.report import NodeReport
from devicecore_tools.doctor.look.values import Look
from devicecore_tools.doctor.show.drawing import svg
from devicecore_tools.doctor.show.page import page
from devicecore_tools.doctor.show.picture import picture
from tests.browser import Browser
from tests.doctor import nodes
from tests.doctor.nodes import CLEAN, PLANTS, report_of
from tests.doctor.test_picture import EVIL, finding, made_of, row

from devicecore.domain.text import foreign_text
from devicecore.system.json_values import to_json

pytestmark = pytest.mark.slow

IN_TABLE = "[...document.querySelectorAll('#devices tbody tr')].map(r => [...r.cells].map(c => c.innerText.trim()))"
IN_SOURCES = (
    "[...document.querySelectorAll('[aria-labelledby=sources] tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
)
IN_FINDINGS = """[...document.querySelectorAll('.finding')].map(one => {
  const text = name => [...one.querySelectorAll('.' + name)].map(part => part.innerText);
  return {code: one.dataset.code, title: one.querySelector('h3').lastChild.textContent, sentence: text('sentence')[0],
    evidence: text('evidence'), next: text('next')[0], confirm: text('confirm')[0], issue: text('issue')[0],
    measured: text('measured')[0] || ''}
})"""
LABEL = "document.activeElement.getAttribute('aria-label') || ''"
DETAILS = "document.getElementById('detail').hidden ? '' : document.getElementById('detail-body').innerText"


def planted(*codes: str) -> Look:
    look = CLEAN
    for code in codes:
        look = PLANTS[code](look)
    return look


ILL = planted("two-owners", "held-unhealthy", "unhealthy", "plugin-late", "cdi-duplicate", "list-near-limit")


def shown(browser: Browser, directory: Path, of: NodeReport, *, scheme: str = "light") -> str:
    """Open the page of a report and return its address."""
    file = directory / "page.html"
    file.write_text(page(of, picture(of)), encoding="utf-8")
    browser.open(file.as_uri(), scheme=scheme)
    return file.as_uri()


def test_the_text_of_the_page_is_that_of_the_json_document(browser: Browser, tmp_path: Path) -> None:
    of = report_of(ILL)
    document: dict[str, Any] = json.loads(json.dumps(to_json(of)))
    shown(browser, tmp_path, of)
    assert [cells[:-1] for cells in browser.run(IN_TABLE)] == [
        [
            one["resource"],
            one["device"],
            "unknown" if one["numa_nodes"] is None else ", ".join(map(str, one["numa_nodes"])) or "none",
            one["health"],
            one["owner"],
            one["pod_uid"],
            one["container"],
            ", ".join(one["sources"]),
            one["state"],
        ]
        for one in document["devices"]
    ]
    assert browser.run(IN_FINDINGS) == [
        {
            **{name: one[name] for name in ("code", "title", "sentence", "next", "confirm", "issue", "measured")},
            "evidence": [f"{evidence['source']}: {evidence['text']}" for evidence in one["evidence"]],
        }
        for one in document["findings"]
    ]
    assert browser.run(IN_SOURCES) == [
        [one["source"], one["place"], "yes" if one["was_read"] else "no", one["problem"], "; ".join(one["notes"])]
        for one in document["sources"]
    ]


@pytest.mark.parametrize("look", [CLEAN, ILL, nodes.without(CLEAN, "checkpoint", "pod_resources", "plugins")])
def test_the_page_loads_nothing_and_the_console_has_no_complaint(browser: Browser, tmp_path: Path, look: Look) -> None:
    address = shown(browser, tmp_path, report_of(look))
    browser.press("Tab", 8)
    assert browser.complaints == []
    assert [one for one in browser.requests if not one.startswith("data:")] == [address]


def test_text_from_outside_is_text_in_the_browser(browser: Browser, tmp_path: Path) -> None:
    """Foreign text never becomes an element. It is shown unchanged, except that unprintable characters are escaped."""
    evil = evolve(row(0, EVIL, owner=EVIL, uid=EVIL, container=EVIL), device=EVIL, health=EVIL)
    of = evolve(made_of([evil], evolve(finding(1, EVIL, resource=EVIL), sentence=EVIL)), name=EVIL)
    shown(browser, tmp_path, of)
    browser.press("Tab", 5)
    assert (browser.complaints, len(browser.requests)) == ([], 1)
    assert browser.run("[document.scripts.length, document.images.length]") == [1, 0]
    text = foreign_text(EVIL)
    assert browser.run("document.title") == f"Devices of {text}"
    assert browser.run(IN_FINDINGS)[0]["sentence"] == text
    assert {text} < set(browser.run(IN_TABLE)[0])
    assert text in browser.run(DETAILS)


def test_the_policy_stops_scripts_styles_and_requests_that_are_not_its_own(browser: Browser, tmp_path: Path) -> None:
    of = report_of(CLEAN)
    bad = '<script>document.title = "forged"</script><img src="http://127.0.0.1:9/x">'
    file = tmp_path / "page.html"
    file.write_text(page(of, picture(of)).replace("</main>", f"{bad}</main>"), encoding="utf-8")
    browser.open(file.as_uri())
    assert browser.run("document.title") == "Devices of n1"
    assert len([one for one in browser.complaints if "Content Security Policy" in one]) == 2


def test_tab_reaches_every_cell_and_shows_its_details(browser: Browser, tmp_path: Path) -> None:
    of = report_of(ILL)
    shown(browser, tmp_path, of)
    seen = {}
    for _ in range(60):
        browser.press("Tab")
        if browser.run("document.activeElement.matches('.cell')"):
            seen[browser.run(LABEL)] = browser.run(DETAILS)
    assert [name.rpartition(": ")[2] for name in seen] == [cell.label for cell in picture(of).cells]
    for label, details in seen.items():
        assert label.partition(" ")[0] in details.split("\n")
    both = next(details for label, details in seen.items() if label.startswith("nic-0"))
    assert "default/train" in both
    assert "default/serve" in both


def test_arrow_keys_move_between_cells_and_enter_leads_to_the_row(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path, report_of(CLEAN))
    browser.run("document.querySelector('.cell').focus()")
    places = []
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "End", "ArrowLeft", "Home"):
        browser.press(key)
        places.append(browser.run(LABEL).partition(" ")[0])
    assert places == ["gpu-2", "gpu-3", "gpu-2", "rdma-0", "nic-3", "gpu-0"]
    browser.press("Enter")
    assert browser.run("document.querySelector(':target').innerText").split()[:2] == ["example.com/gpu", "gpu-0"]
    browser.press("Escape")
    assert browser.run(DETAILS) == ""


def test_the_details_do_not_cover_the_cell_in_focus(browser: Browser, tmp_path: Path) -> None:
    of = report_of(ILL)
    shown(browser, tmp_path, of)
    covered = """[...document.querySelectorAll('.cell')].filter(cell => {
      cell.focus();
      const one = cell.getBoundingClientRect(), other = document.getElementById('detail').getBoundingClientRect();
      return other.width === 0 || one.left < other.right && one.right > other.left && one.top < other.bottom
        && one.bottom > other.top;
    }).map(cell => cell.getAttribute('aria-label'))"""
    assert browser.run(covered) == []


def test_focus_is_visible(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path, report_of(CLEAN))
    width = "getComputedStyle(document.querySelector('.cell rect')).strokeWidth"
    before = browser.run(width)
    browser.press("Tab", 5)
    assert browser.run("document.activeElement.matches('.cell:focus-visible')")
    assert (before, browser.run(width)) == ("1.25px", "4px")


def test_the_mouse_shows_details(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path, report_of(CLEAN))
    browser.point_at('.cell[aria-label^="gpu-1 "]')
    assert "default/serve" in browser.run(DETAILS)


@pytest.mark.parametrize(("scheme", "color"), [("light", "rgb(244, 246, 248)"), ("dark", "rgb(13, 17, 23)")])
def test_light_and_dark_follow_the_reader(browser: Browser, tmp_path: Path, scheme: str, color: str) -> None:
    shown(browser, tmp_path, report_of(CLEAN), scheme=scheme)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == color
    image = tmp_path / "picture.svg"
    of = report_of(CLEAN)
    image.write_text(svg(of, picture(of)), encoding="utf-8")
    browser.open(image.as_uri(), scheme=scheme)
    assert browser.run("getComputedStyle(document.querySelector('.back')).fill") == color
    assert (browser.complaints, browser.requests) == ([], [image.as_uri()])


def test_a_screen_reader_is_given_names_headings_and_tables(browser: Browser, tmp_path: Path) -> None:
    of = report_of(ILL)
    shown(browser, tmp_path, of)
    named = browser.accessible_names()
    links = [name for role, name in named if role == "link"]
    assert {cell.label for cell in picture(of).cells} <= {name.rpartition(": ")[2] for name in links}
    assert all(links)
    headings = [name for role, name in named if role == "heading"]
    assert headings[:2] == ["Devices of n1", "Devices by NUMA node"]
    assert {"Findings", "All devices", "Sources", "NUMA node 0"} <= set(headings)
    assert len([name for role, name in named if role == "table"]) == 2
    assert {name for role, name in named if role == "columnheader"} >= {"Device", "Owner", "State"}
    assert links[:4] == ["Picture", "Findings", "All devices", "Sources"]
    assert browser.run("[document.documentElement.lang, document.title]") == ["en", "Devices of n1"]
    ids = browser.run("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))


def test_nothing_is_wider_than_the_window_of_a_phone(browser: Browser, tmp_path: Path) -> None:
    of = report_of(ILL)
    file = tmp_path / "page.html"
    file.write_text(page(of, picture(of)), encoding="utf-8")
    browser.open(file.as_uri(), size=(390, 800))
    assert browser.run("document.documentElement.scrollWidth") == 390


def test_a_page_of_many_devices_stays_usable(browser: Browser, tmp_path: Path) -> None:
    """Tab stops once in each group, and the arrow keys move within the group."""
    of = made_of(row(number, f"example.com/r{place}") for place in range(250) for number in range(20))
    shown(browser, tmp_path, of)
    assert browser.run("document.querySelectorAll('.cell').length") == 2_000
    assert browser.run("document.querySelectorAll('.cell[tabindex=\"0\"]').length") == 200
    browser.run("document.querySelector('.cell').focus()")
    browser.press("ArrowRight")
    assert browser.run(LABEL).startswith("dev-1 ")
    assert "3,000 devices are folded" in browser.run("document.querySelector('header').innerText")
    assert browser.complaints == []


def crowded() -> NodeReport:
    """Full and small cells with long names, some of them with two owners, several findings or bad health."""
    rows = []
    for number in range(90):
        resource, of = ("nvidia.com/mig-1g.10gb.shared", "MIG-GPU-8f6e1c3e-WWMM") if number < 20 else ("a.io/rdma", "m")
        owner = f"team-a/llama-70b-pretraining-worker-{number}-MWQ9c" if number % 3 else "free"
        uid = f"uid-{number}" if number % 3 else ""
        health = "Unhealthy" if number % 5 == 1 else "Healthy"
        rows.append(evolve(row(0, resource, owner=owner, health=health, uid=uid), device=f"{of}-{number:03d}/0"))
        if number % 20 == 1:
            rows.append(evolve(rows[-1], owner="default/second", pod_uid="second"))
    found = [
        finding(number, *(one.device for one in rows[first::2]), resource=rows[first].resource)
        for number, first in ((1, 0), (12, 1), (13, 1), (14, 40), (15, 41))
    ]
    return evolve(made_of(rows, *found), name="ip-10-132-44-201.eu-central-1.compute.internal")


SPILT = """[...document.querySelectorAll('.cell')].filter(cell => {
  const boxes = list => [...cell.querySelectorAll(list)].map(one => one.getBoundingClientRect());
  const [badges, texts] = [boxes('.badge'), boxes('text')];
  const edges = boxes(':scope > rect:not(.badge):not(.ring):not(.sick)');
  const meet = (one, other) => one.left < other.right && one.right > other.left && one.top < other.bottom - 2
    && one.bottom > other.top + 2;
  return texts.some(one => one.left < edges[0].left || one.right > edges[0].right)
    || boxes('text:not(.c)').some(one => badges.some(badge => meet(one, badge)))
    || badges.some((one, place) => badges.slice(place + 1).some(other => meet(one, other)));
}).map(cell => cell.textContent)"""


@pytest.mark.parametrize("of", [crowded(), report_of(ILL)], ids=["crowded", "ill"])
def test_no_label_is_wider_than_its_cell_or_under_a_number(browser: Browser, tmp_path: Path, of: NodeReport) -> None:
    shown(browser, tmp_path, of)
    assert browser.run(SPILT) == []
    image = tmp_path / "picture.svg"
    image.write_text(svg(of, picture(of)), encoding="utf-8")
    browser.open(image.as_uri())
    assert browser.run(SPILT) == []
    assert browser.run("document.documentElement.width.baseVal.value") <= 830, "a README would scale it down"


def test_names_of_cells_and_findings_contain_the_text_that_is_seen(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path, crowded())
    unsaid = """[...document.querySelectorAll('.node a')].filter(link => {
      const seen = link.textContent.trim().replace(/\\s+/g, ' ');
      return !seen || !link.getAttribute('aria-label').includes(seen);
    }).map(link => link.textContent)"""
    assert browser.run(unsaid) == []


def test_no_two_landmarks_have_the_same_role_and_name(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path, crowded())
    named = [one for one in browser.accessible_names() if one[0] in {"region", "navigation", "complementary"}]
    assert {("region", "All devices"), ("region", "Sources")} <= set(named)
    assert len(named) == len(set(named))


@pytest.mark.parametrize("width", [390, 830, 1280, 1920])
def test_no_word_of_a_table_head_is_broken_at_any_width(browser: Browser, tmp_path: Path, width: int) -> None:
    of = crowded()
    file = tmp_path / "page.html"
    file.write_text(page(of, picture(of)), encoding="utf-8")
    browser.open(file.as_uri(), size=(width, 900))
    broken = """[...document.querySelectorAll('thead th')].filter(head => {
      const range = document.createRange();
      range.selectNodeContents(head);
      return range.getClientRects().length > 1;
    }).map(head => head.textContent)"""
    assert browser.run(broken) == []
    assert browser.run("document.documentElement.scrollWidth") == width


def test_boxes_fill_both_halves_of_a_window_of_1280_pixels(browser: Browser, tmp_path: Path) -> None:
    of = crowded()
    file = tmp_path / "page.html"
    file.write_text(page(of, picture(of)), encoding="utf-8")
    browser.open(file.as_uri(), size=(1280, 900))
    edges = "[...document.querySelectorAll('.boxes > *')].map(one => one.getBoundingClientRect().right)"
    assert max(browser.run(edges)) > 1200
    assert min(browser.run(edges)) < 640
