"""The options that say how a node's topology manager is configured, for commands that try a pod on a node."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from devicecore.node_report import Facts
    from devicecore.trial import TrialNode

P = ParamSpec("P")
R = TypeVar("R")

_MAX_NUMA_NODES = 1024  # Linux has no more
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


def _numbers(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...]:
    """The numbers of a list such as 0-3 or 0,2."""
    found: dict[int, None] = {}
    for part in (text or "").split(",") if text else ():
        matched = _RANGE.fullmatch(part.strip())
        if matched is None:
            message = f"expected numbers such as 0-3 or 0,2, got {part!r}"
            raise click.BadParameter(message)
        first, last = int(matched[1]), int(matched[2] or matched[1])
        found |= dict.fromkeys(range(first, min(last, _MAX_NUMA_NODES) + 1))
    return tuple(found)


_OPTIONS = (
    click.option(
        "--topology-policy",
        type=click.Choice(("none", "best-effort", "restricted", "single-numa-node")),
        default="none",
        show_default=True,
        help="The kubelet's topologyManagerPolicy.",
    ),
    click.option(
        "--topology-scope",
        type=click.Choice(("container", "pod")),
        default="container",
        show_default=True,
        help="The kubelet's topologyManagerScope.",
    ),
    click.option(
        "--numa-nodes",
        metavar="LIST",
        callback=_numbers,
        help="The machine's NUMA nodes, such as 0-3 or 0,2. Default: those that devices are attached to.",
    ),
)


def topology_options(command: Callable[P, R]) -> Callable[P, R]:
    """Give a command the options that `node_for_trial` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def node_for_trial(
    name: str, facts: "Facts", topology_policy: str, topology_scope: str, numa_nodes: tuple[int, ...]
) -> "TrialNode":
    """The node that sources describe, with the topology manager that the options describe."""
    from devicecore.domain.topology import Policy, Scope
    from devicecore.trial import trial_node

    return trial_node(name, facts, Policy(topology_policy), Scope(topology_scope), numa_nodes)
