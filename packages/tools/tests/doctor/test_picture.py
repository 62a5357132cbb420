"""The picture of a report: which devices have cells, and what is folded. No text or size breaks the picture."""

import itertools
import re
from collections.abc import Iterable
from html import escape
from xml.etree import ElementTree as ET

import pytest
from attrs import evolve
from devicecore_tools.doctor.account.precedence import OwnerState
from devicecore_tools.doctor.findings.finding import NodeFinding
from devicecore_tools.doctor.findings.report import DeviceRow, NodeReport
from devicecore_tools.doctor.look.values import Source
from devicecore_tools.doctor.show.drawing import STYLE, svg
from devicecore_tools.doctor.show.page import MAX_FINDINGS, page
from devicecore_tools.doctor.show.picture import MAX_CELLS, MAX_GROUPS, NodePicture, picture
from hypothesis import example, given
from hypothesis import strategies as st
from tests.browser import contrast
from tests.doctor import nodes
from tests.doctor.nodes import CLEAN, GPU, PLANTS, report_of

from devicecore.domain.checkpoint import CheckpointData

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "</style><script>alert(1)</script>\"'&<img src=x onerror=alert(1)>\x1b[31m\u202e\n\ud800]]>"


def parsed(image: str) -> ET.Element:
    return ET.fromstring(image)  # noqa: S314 - the text is ours, and the untrusted parts in it are what is being tested


def drawn(of: NodeReport) -> tuple[str, str]:
    """Return the page and the picture of a report."""
    shown = picture(of)
    return page(of, shown), svg(of, shown)


def row(number: int, resource: str = GPU, numa_nodes: tuple[int, ...] | None = (0,), **more: str) -> DeviceRow:
    return DeviceRow(
        resource,
        f"dev-{number}",
        numa_nodes,
        more.get("health", "Healthy"),
        more.get("owner", "free"),
        more.get("uid", ""),
        more.get("container", ""),
        (Source.CHECKPOINT,),
        OwnerState(more.get("state", "live")),
    )


def made_of(rows: Iterable[DeviceRow], *findings: NodeFinding) -> NodeReport:
    return NodeReport("", (), tuple(rows), findings, is_enough=True)


def finding(number: int, *devices: str, resource: str = GPU) -> NodeFinding:
    return NodeFinding("x", "title", "Sentence.", (), "Next.", "Confirm.", "https://x", resource, devices, "", number)


def labels(shown: NodePicture) -> list[str]:
    return [cell.label for cell in shown.cells]


def test_devices_are_in_boxes_of_their_numa_nodes() -> None:
    rows = [row(0, numa_nodes=(1,)), row(1), row(2, numa_nodes=(0, 1)), row(3, numa_nodes=()), row(4, numa_nodes=None)]
    shown = picture(made_of(rows))
    assert [box.title for box in shown.boxes] == [
        "NUMA node 0",
        "NUMA node 1",
        "NUMA nodes 0, 1",
        "No NUMA node",
        "NUMA node unknown",
    ]


def test_a_cell_says_in_words_what_its_color_and_pattern_show() -> None:
    look = nodes.held_unhealthy(nodes.of_a_pod_that_is_gone(nodes.two_owners(CLEAN)))
    stale = labels(picture(report_of(nodes.without(look, "pod_resources"))))
    assert f"gpu-7 of {GPU}, NUMA node 1, Healthy, held by uid-gone container main, stale" in stale
    said = labels(picture(report_of(look)))
    assert f"gpu-1 of {GPU}, NUMA node 1, Healthy, held by default/serve container main, live" in said
    assert "nic-2 of example.com/nic, no NUMA node, Healthy, free" in said
    assert (
        "nic-0 of example.com/nic, no NUMA node, Healthy, held by default/train container main, live and "
        "default/serve container main, live; finding 1"
    ) in said
    found = "nic-1 of example.com/nic, no NUMA node, Unhealthy, held by default/static container proxy, live; finding 2"
    assert found in said


def test_pods_have_different_letters_where_colors_repeat() -> None:
    rows = [row(number, owner=f"pod-{number}", container="c") for number in range(60)]
    marks = picture(made_of(rows)).owners
    assert [mark.letters for mark in marks[:27:26]] == ["A", "AA"]
    assert len({mark.letters for mark in marks}) == 60
    assert {mark.color for mark in marks} == set(range(1, 9))


def test_containers_of_one_pod_have_one_mark() -> None:
    rows = [row(0, owner="p", uid="u", container="a"), row(0, owner="p", uid="u", container="b")]
    (cell,) = picture(made_of(rows)).cells
    assert len(cell.marks) == 1


def test_a_pod_that_is_called_free_is_a_holder() -> None:
    (cell,) = picture(made_of([row(0, owner="free", uid="free")])).cells
    assert (cell.kind, cell.label.count("held by free")) == ("held", 1)


@pytest.mark.parametrize("code", PLANTS)
def test_each_finding_is_beside_its_devices_or_with_the_node(code: str) -> None:
    of = report_of(PLANTS[code](CLEAN))
    shown = picture(of)
    beside = [one for box in shown.boxes for group in box.groups for one in group.findings]
    assert {one.number for one in (*beside, *shown.of_node)} == {one.number for one in of.findings}
    for text in drawn(of):
        assert escape(of.findings[0].title) in text


# --- folding ----------------------------------------------------------------------------------------------------------

SIZES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 900)), max_size=8)


@given(SIZES)
@example([(number, 60) for number in range(40)])
@example([(0, 401)])
@example([(0, 400)])
def test_each_device_has_a_cell_or_is_counted_as_folded(sizes: list[tuple[int, int]]) -> None:
    rows = [
        row(number, f"example.com/r{place}", numa_nodes=(node,))
        for place, (node, size) in enumerate(sizes)
        for number in range(size)
    ]
    shown = picture(made_of(rows))
    cells = list(shown.cells)
    assert len(cells) <= MAX_CELLS
    assert len(cells) + shown.folded.devices == shown.tally.devices == len(rows)
    assert shown.folded.devices == 0 or len(rows) > 400


def test_a_folded_group_shows_devices_with_findings_first_then_unusual_ones() -> None:
    rows = [row(number) for number in range(1_000)]
    rows[998] = row(998, health="Unhealthy")
    rows[999] = row(999, owner="p", container="c", state="stale")
    found = finding(1, *(f"dev-{number}" for number in range(500, 540)))
    cells = [cell.rows[0].device for cell in picture(made_of(rows, found)).cells]
    assert len(cells) == 200
    assert {"dev-998", "dev-999", *found.devices} <= set(cells)


def test_a_resource_with_findings_is_not_among_those_left_out() -> None:
    rows = [row(0, f"example.com/r{number:04}") for number in range(1_000)]
    shown = picture(made_of(rows, finding(1, "dev-0", resource="example.com/r0999")))
    assert sum(len(box.groups) for box in shown.boxes) == MAX_GROUPS
    assert labels(shown)[-1].startswith("dev-0 of example.com/r0999")
    assert shown.further.devices == 800


def test_fifty_thousand_devices_make_a_page_of_bounded_size_that_says_what_is_folded() -> None:
    rows = [
        row(number, f"example.com/r{place}", owner=f"pod-{number}", container="c", uid=f"uid-{number}")
        for place in range(250)
        for number in range(200)
    ]
    findings = [finding(number, "dev-1", resource="example.com/r1") for number in range(1, 1_001)]
    of = made_of(rows, *findings)
    text, image = drawn(of)
    assert len(text) < 3_000_000
    assert len(image) < 1_500_000
    assert "<strong>48,000 devices are folded</strong>" in text
    assert "folded, without cells: 48,000 devices: 48,000 held<" in image
    assert ">devicecore doctor --json lists them<" in image
    assert f"{1_000 - MAX_FINDINGS} further findings" in text
    counted = re.findall(r"<td>([\d,]+)</td></tr>", text.partition("Folded devices")[2])
    assert sum(int(count.replace(",", "")) for count in counted) == 48_000


def test_many_numa_nodes_of_one_device_do_not_make_a_long_title() -> None:
    shown = picture(made_of([row(0, numa_nodes=tuple(range(1_000)))]))
    assert len(shown.boxes[0].title) < 80


# --- the written files ----------------------------------------------------------------------------------------------


def test_equal_reports_give_equal_bytes() -> None:
    look = nodes.two_owners(CLEAN)
    assert drawn(report_of(look)) == drawn(report_of(look))


@pytest.mark.parametrize("code", PLANTS)
def test_the_picture_is_well_formed_and_each_cell_has_a_title(code: str) -> None:
    tree = parsed(drawn(report_of(PLANTS[code](CLEAN)))[1])
    cells = [one for one in tree.iter(f"{SVG}g") if one.get("class") == "cell"]
    assert cells
    assert all(cell.get("tabindex") == "0" and cell.findtext(f"{SVG}title") for cell in cells)
    assert {one.tag.removeprefix(SVG) for one in tree.iter()} <= {
        *("svg", "title", "style", "defs", "pattern", "path", "rect", "text", "g")
    }


@given(st.text(), st.text(min_size=1))
@example(EVIL, EVIL)
@example("", "x" * 5_000)
@example("free", "unknown")
def test_no_text_from_outside_adds_anything_to_page_or_picture(device: str, owner: str) -> None:
    one = evolve(row(0), resource=owner, device=device, owner=owner, pod_uid=owner, container=device, health=device)
    found = evolve(finding(1, device, resource=owner), sentence=owner, title=device)
    of = evolve(made_of([one], found), name=owner)
    text, image = drawn(of)
    assert [element.tag for element in parsed(image).iter() if element.tag.endswith("script")] == []
    for written in (text, image):
        body = written.partition("</style>")[2].rpartition("<script>")[0] or written.partition("</style>")[2]
        assert "<script" not in body
        assert "<img" not in body
        assert all(line.isprintable() for line in written.split("\n"))
    assert len(text) < 60_000


def test_a_file_with_hostile_text_in_every_place_gives_a_page() -> None:
    data = CheckpointData(None, {EVIL: (EVIL, "x" * 50_000)})
    of = report_of(nodes.with_file(CLEAN, evolve(nodes.file_of(CLEAN), data=data)))
    text, image = drawn(of)
    assert text.count("<script>") == 1
    assert parsed(image).tag == f"{SVG}svg"


@pytest.mark.parametrize("is_dark", [False, True])
def test_texts_and_edges_have_the_contrast_that_wcag_asks_for(is_dark: bool) -> None:
    light, _, dark = STYLE.partition("@media")
    style = dark if is_dark else light
    fills = dict(re.findall(r"\.([\w]+)\{fill:(#\w+)[;}]", style))
    edges = dict(re.findall(r"\.([\w]+)\{fill:#\w+;stroke:(#\w+)", style))
    (plain,) = re.findall(r"text\{[^}]*fill:(#\w+)\}", style)[:1]
    edges |= dict.fromkeys(("none", "unknown"), edges.get("none") or edges["unknown"])
    fills |= dict.fromkeys(("none", "unknown"), fills.get("none") or fills["unknown"])
    cells = [f"o{number}" for number in range(1, 9)] + ["free", "none", "unknown", "held"]
    for text, cell in itertools.product((plain, fills["m"], fills["w"]), cells):
        if cell != "held":  # a bar without text on it
            assert contrast(text, fills[cell]) >= 4.5, (text, cell)
    for cell in cells:
        assert contrast(edges[cell], fills["box"]) >= 3, cell
    assert contrast(plain, fills["back"]) >= 4.5
