"""`devicecore doctor --all-nodes`: the reports on all nodes combined into one.

Laws: the verdict comes first, then one line for each kind of finding, worst first. Equal findings are printed once,
with the nodes that have them. A node counts as healthy only if nothing is left undecided.
"""

from collections.abc import Iterator, Sequence

from attrs import frozen

from devicecore.domain.text import counted, foreign_text
from devicecore_tools.command.node_report import FORMAT, cut, document_of, finding_lines, folded
from devicecore_tools.doctor.findings.checks import BY_CODE, CHECKS
from devicecore_tools.doctor.findings.finding import Keeps, NodeFinding
from devicecore_tools.doctor.findings.report import NodeReport
from devicecore_tools.doctor.look.names import by_number, names
from devicecore_tools.doctor.look.values import grouped

_IN_VERDICT = 3  # how many kinds of findings the verdict names
_SCOPE = "Only the API server was queried. Run doctor on a node to see its sockets, files and devices."
_WEIGHT = {Keeps.ALL: 0, Keeps.OF_RESOURCE: 1, Keeps.NO_OTHERS: 2}
_ORDER = {check.code: number for number, check in enumerate(CHECKS)}


@frozen
class _Common:
    """A finding, and the nodes that have the same finding, even if different pods and devices are affected there."""

    finding: NodeFinding
    nodes: tuple[str, ...]

    @property
    def rank(self) -> tuple[int, int, int]:
        """The sort key: findings that keep the most pods from running come first, then findings on the most nodes."""
        return _WEIGHT[BY_CODE[self.finding.code].keeps], -len(self.nodes), _ORDER[self.finding.code]


def _common(reports: Sequence[NodeReport]) -> list[_Common]:
    found = grouped(
        ((one.code, one.resource, one.brief), (report.name, one)) for report in reports for one in report.findings
    )
    common = [_Common(of[0][1], tuple(dict.fromkeys(node for node, _ in of))) for of in found.values()]
    return sorted(common, key=lambda one: one.rank)


def verdict_of_all(reports: Sequence[NodeReport]) -> str:
    """Summarize the reports in one line: how many nodes have findings, and which findings are worst."""
    wrong = sum(1 for one in reports if one.findings)
    unsure = sum(1 for one in reports if not one.findings and not one.is_sound)
    if not reports:
        return "the API server has no nodes"
    total = counted(len(reports), "node")
    if wrong:
        common = _common(reports)
        worst = [f"{foreign_text(one.finding.brief, 100)} on {_on(one.nodes)}" for one in common[:_IN_VERDICT]]
        more = [f"and {len(common) - _IN_VERDICT:,} more kinds"] if len(common) > _IN_VERDICT else []
        return f"{wrong:,} of {total} {'has' if wrong == 1 else 'have'} findings: {', '.join([*worst, *more])}"
    if unsure:
        return f"{total}: no problem was found, but not everything was examined on {unsure:,} of them"
    return f"{total}: nothing wrong"


def _on(nodes: Sequence[str]) -> str:
    return foreign_text(nodes[0], 100) if len(nodes) == 1 else f"{len(nodes):,} ({names(nodes)})"


def lines_of_all(reports: Sequence[NodeReport], width: int) -> Iterator[str]:
    """Yield the lines of the reports. Long texts are folded or cut to `width` columns."""
    yield from folded("", verdict_of_all(reports), 2, width)
    common = _common(reports)
    if len(common) > 1:
        for number, one in enumerate(common, start=1):
            yield cut(f"{number}. {counted(len(one.nodes), 'node')}: {one.finding.brief} ({names(one.nodes)})", width)
    healthy = sum(1 for one in reports if one.is_sound)
    if common or healthy < len(reports):
        yield f"{counted(healthy, 'node')} without findings, on which everything was examined"
    for number, one in enumerate(common, start=1):
        yield ""
        yield from finding_lines(one.finding, width, number)
        yield from folded("   nodes:    ", f"{len(one.nodes):,} ({names(one.nodes)})", 13, width)
    holes = grouped((hole, report.name) for report in reports for hole in report.not_ruled_out)
    shown = sorted(holes.items(), key=lambda one: -len(one[1]))
    for hole, nodes in shown[:_MAX_HOLES]:
        yield ""
        yield from folded("not ruled out: ", f"{hole} (on {_on(nodes)})", 15, width)
    if len(shown) > _MAX_HOLES:
        rest = {node for _, nodes in shown[_MAX_HOLES:] for node in nodes}
        more = len(shown) - _MAX_HOLES
        yield ""
        yield f"not ruled out: {more:,} more {by_number(shown[_MAX_HOLES:], 'thing', 'things')} on {_on([*rest])}"
    yield ""
    yield from folded("", _SCOPE, 0, width)


_MAX_HOLES = 10  # how many problems that are not ruled out are shown


def document_of_all(reports: Sequence[NodeReport], of_several: NodeReport) -> dict[str, object]:
    """Return the reports as JSON. `of_several` contains the devices in slices that do not name a node."""
    counts = {
        "nodes": len(reports),
        "with_findings": sum(1 for one in reports if one.findings),
        "not_all_seen": sum(1 for one in reports if not one.findings and not one.is_sound),
        "sound": sum(1 for one in reports if one.is_sound),
    }
    return {
        "format": FORMAT,
        "verdict": verdict_of_all(reports),
        "is_sound": bool(reports) and all(one.is_sound for one in reports),
        "counts": counts,
        "findings": [
            {"code": one.finding.code, "resource": one.finding.resource, "brief": one.finding.brief, "nodes": one.nodes}
            for one in _common(reports)
        ],
        "nodes": [document_of(one) for one in reports],
        "devices_of_several_nodes": document_of(of_several)["devices"],
    }
