"""The live view of a fleet: nodes as rows, devices as cells.

Law: a view is a function of values and a size. A view has no more lines than the size allows.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from devicecore_tools.command.kubelet.view import FREE, HELD, UNHEALTHY, UNKNOWN, fitted, log_section
from rich.text import Text

from devicecore.domain.text import foreign_text
from devicecore_fleet.fleet.views import DeviceCell, NodeView, ProviderView, Totals

_LOG_LINES = 6
_MAX_CELLS = 32  # the maximum number of devices of a plugin that are drawn; if there are more, only counts are shown
_MAX_NAME = 40
_MAX_ROWS = 1_000
_SQUARES = {
    DeviceCell.FREE: (FREE, ""),
    DeviceCell.HELD: (HELD, "bold cyan"),
    DeviceCell.UNHEALTHY: (UNHEALTHY, "red"),
    DeviceCell.LOST: (UNHEALTHY, "bold cyan"),
}
_STATES = {"up": "", "down": "red", "refused": "red", "separated": "yellow"}
_UNITS = ("line", "node", "log line")


def render_fleet(
    totals: Totals, nodes: Sequence[NodeView], log_lines: Sequence[str], width: int, height: int | None
) -> Text:
    """Draw a fleet.

    Args:
        totals: the totals of all nodes.
        nodes: the nodes to draw.
        log_lines: lines from the log, the latest one last.
        width: the number of columns.
        height: the maximum number of lines, or None for no limit.
    """
    sections = [[*_summary(totals)], [*_rows(nodes)], [*log_section(log_lines, _LOG_LINES)]]
    lines = [line for section in sections for line in section]
    if height is not None and len(lines) > height:
        lines = fitted(sections, height, _UNITS)
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def _summary(totals: Totals) -> Iterator[Text]:
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(totals.nodes.items(), reverse=True))
    pods = ", ".join(f"{count:,} {phase}" for phase, count in sorted(totals.pods.items(), reverse=True)) or "none"
    yield Text.assemble(("nodes", "bold"), f"  {states}   ", ("pods", "bold"), f"  {pods}")
    for name in dict.fromkeys(name for name, _ in totals.devices):
        counts = ", ".join(
            f"{totals.devices[name, cell]:,} {cell.value}" for cell in DeviceCell if (name, cell) in totals.devices
        )
        yield Text.assemble(f"  {foreign_text(name)}  ", (counts, "dim"))


def _rows(nodes: Sequence[NodeView]) -> Iterator[Text]:
    shown: tuple[str, ...] | None = None
    column = min(max((len(node.name) for node in nodes), default=0), _MAX_NAME)
    for node in islice(nodes, _MAX_ROWS):
        if (providers := tuple(one.name for one in node.providers)) != shown:
            shown = providers
            yield Text(" " * (column + 2) + "  ".join(map(foreign_text, providers)), style="dim")
        name = Text(foreign_text(node.name), style=_STATES[node.state])
        name.truncate(column, overflow="ellipsis", pad=True)
        cells = Text("  ").join(map(_cells, node.providers))
        pods = ", ".join(f"{count} {phase}" for phase, count in sorted(node.pods.items(), reverse=True))
        state = "" if node.state == "up" else f"{node.state}  "
        yield Text.assemble(name, "  ", cells, "  ", (state, _STATES[node.state]), (pods, "dim"))


def _cells(provider: ProviderView) -> Text:
    cells = Text(style="" if provider.is_there else "dim")
    if len(provider.devices) > _MAX_CELLS:
        held = sum(cell in (DeviceCell.HELD, DeviceCell.LOST) for _, cell in provider.devices)
        cells.append(f"{held} of {len(provider.devices)}")
    else:
        for _, cell in provider.devices:
            square, style = _SQUARES[cell]
            cells.append(square if provider.is_there or cell is not DeviceCell.FREE else UNKNOWN, style)
    cells.pad_right(max(0, len(provider.name) - cells.cell_len))
    return cells
