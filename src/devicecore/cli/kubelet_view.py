"""The live view of `devicecore kubelet`: devices by resource and NUMA node, pods, and what happened last.

Law: a view is a function of what there is to see. It asks nobody anything.
"""

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from devicecore.cli.output import printable
from devicecore.cli.standin import RUNNING, PodState, State
from devicecore.domain.model import ContainerKey, NumaNode, Pod, PodUid, ResourceName

_COLOURS = ("cyan", "magenta", "yellow", "blue", "bright_green", "bright_red", "bright_cyan", "bright_magenta")
_MOST_DEVICES = 128  # of one resource on one NUMA node that are drawn one by one


@frozen
class _Row:
    """The devices of one resource on one NUMA node."""

    squares: Text
    free: int
    healthy: int
    count: int


def render(state: State, name: str, events: Iterable[str]) -> RenderableType:
    """Draw it."""
    colours = {pod.pod.uid: _COLOURS[at % len(_COLOURS)] for at, pod in enumerate(state.pods)}
    parts: list[RenderableType] = [_devices(state, name, colours)]
    if state.pods:
        parts.append(_pods(state, colours))
    if state.problems:
        problems = Text("\n".join(printable(str(problem)) for problem in state.problems), style="red")
        parts.append(Panel(problems, title="manifests that cannot be used", title_align="left", border_style="red"))
    happened = Text("\n".join(map(printable, events)), style="dim")
    if happened:
        parts.append(Panel(happened, title="what happened", title_align="left", border_style="dim"))
    return Group(*parts)


def _devices(state: State, name: str, colours: Mapping[PodUid, str]) -> Table:
    table = Table(
        title=f"devices of {printable(name)}",
        title_justify="left",
        title_style="bold",
        caption="■ held, in its pod's colour   □ free   ✗ unhealthy   ? held, and reported by nobody",
        caption_justify="left",
        expand=True,
    )
    for column, settings in {
        "resource": {"no_wrap": True},
        "NUMA": {"justify": "right"},
        "devices": {"ratio": 1},
        "free": {"justify": "right"},
        "healthy": {"justify": "right"},
        "all": {"justify": "right"},
    }.items():
        table.add_column(column, **settings)  # type: ignore[arg-type] # mypy takes all values for one type
    known = state.node.inventory.resources
    for resource in sorted({*known, *state.node.ledger.resources}):
        served = bool(known[resource].plugins) if resource in known else False
        label = Text(printable(resource)) if served else Text.assemble(printable(resource), (" no plugin", "red"))
        for nodes, row in _rows(state, resource, colours).items():
            numa = ",".join(map(str, nodes)) or "-"
            table.add_row(label, numa, row.squares, str(row.free), str(row.healthy), str(row.count))
            label = Text()
    if not table.rows:
        table.add_row(Text("no plugin has registered yet", style="dim"), "", "", "", "", "")
    return table


def _rows(state: State, resource: ResourceName, colours: Mapping[PodUid, str]) -> dict[tuple[NumaNode, ...], _Row]:
    """The rows of one resource; at least one, so that a resource without devices is seen."""
    by_nodes: dict[tuple[NumaNode, ...], list[tuple[str, str]]] = {}
    free: dict[tuple[NumaNode, ...], int] = {}
    for _, health, nodes, owners in state.devices(resource):
        colour = colours.get(owners[0].pod, "white") if owners else "white"
        square = {"Healthy": "■" if owners else "□", "Unhealthy": "✗", "Unknown": "?"}[health]
        style = "red" if health == "Unhealthy" and not owners else colour
        by_nodes.setdefault(nodes, []).append((square, f"bold {style}" if owners else style))
        free[nodes] = free.get(nodes, 0) + (square == "□")
    return {
        nodes: _Row(
            _squares(squares),
            free.get(nodes, 0),
            sum(square in "■□" for square, _ in squares),
            len(squares),
        )
        for nodes, squares in sorted(by_nodes.items() or {(): list[tuple[str, str]]()}.items())
    }


def _squares(squares: Sequence[tuple[str, str]]) -> Text:
    text = Text()
    for square, style in squares[:_MOST_DEVICES]:
        text.append(square, style)
        text.append(" ")
    if len(squares) > _MOST_DEVICES:
        text.append(f"and {len(squares) - _MOST_DEVICES} more", "dim")
    return text


def _pods(state: State, colours: Mapping[PodUid, str]) -> Table:
    table = Table(title="pods", title_justify="left", title_style="bold", expand=True)
    for column in ("pod", "container", "holds"):
        table.add_column(column, overflow="fold", ratio=3 if column == "holds" else 1)
    for pod in state.pods:
        label = Text(printable(f"{pod.pod.namespace}/{pod.pod.name}"), style=f"bold {colours[pod.pod.uid]}")
        for container, holds in _holdings(state, pod):
            table.add_row(label, container, holds)
            label = Text()
    return table


def _holdings(state: State, pod: PodState) -> Iterable[tuple[str, Text]]:
    if pod.phase != RUNNING:
        yield "", Text(f"{pod.phase}: {printable(pod.reason)}", style="yellow")
        return
    for container in pod.pod.in_start_order:
        held = _held(state, pod.pod, container.name)
        yield printable(container.name), held or Text("no devices", style="dim")


def _held(state: State, pod: Pod, container: str) -> Text:
    held = state.node.ledger.of_container(ContainerKey(pod.uid, container))
    return Text("\n".join(printable(f"{one.resource}: {', '.join(one.devices)}") for one in held))
