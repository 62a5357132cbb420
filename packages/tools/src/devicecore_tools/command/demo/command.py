"""The command `devicecore demo`.

Law: no matter how the demo ends, it leaves no process behind, and no file except with `--keep`.
"""

import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import click

from devicecore_tools.command.options import json_option
from devicecore_tools.command.output import complain, console_on, print_json
from devicecore_tools.command.signals import Signals

if TYPE_CHECKING:
    from rich.console import Console

    from devicecore_tools.command.demo.cluster import Cluster


@click.command(short_help="See the device manager at work on this machine.")
@json_option
@click.option("--keep", is_flag=True, help="Keep the files of the two nodes, so that you can inspect them.")
def demo(*, as_json: bool, keep: bool) -> int:
    """See the device manager at work on this machine.

    The demo sets up two nodes in a temporary directory, with device plugins and a DRA driver in separate processes.
    Every step says what it expects, and checks it. The demo takes a few seconds and leaves nothing behind, unless you
    give --keep: then the checkpoint, the status and the log of both nodes are kept.

    The exit status is 0 if every check passed, else 1. With --json, the steps are printed at the end, and their titles
    on standard error while they run:

    \b
    $ devicecore demo --json | jq '.[] | {name, ok}'
    """
    from devicecore_tools.command.demo.cluster import Cluster
    from devicecore_tools.command.demo.scenario import NATIVE, STEPS, nothing_is_left
    from devicecore_tools.command.demo.steps import run_steps

    began = time.monotonic()
    console = console_on(sys.stderr if as_json else sys.stdout)
    steps = [step for step in STEPS if not keep or step is not nothing_is_left]
    try:
        with Signals() as signals, Cluster(NATIVE, keep=keep, check_signals=partial(_check, signals)) as cluster:
            records = run_steps(steps, cluster, console, silent=as_json)
            log = cluster.last_log_lines()
    except _Ended as ended:
        complain("devicecore demo", f"{ended}; nothing is left behind")
        return 128 + signal.Signals[str(ended).rpartition(" ")[2]]
    if as_json:
        print_json(records)
    if not all(record["ok"] for record in records):
        sys.stderr.write(log)
        complain("devicecore demo", f"step {records[-1]['name']} failed")
        return 1
    end = f"All {len(steps)} steps passed in {time.monotonic() - began:.1f} s."
    console.print(end if as_json else f"\n{end}", style="bold")
    if keep:
        _print_where(cluster, console)
    return 0


def _print_where(cluster: "Cluster", console: "Console") -> None:
    """Say where the nodes' files are, and how to inspect them."""
    lines = [f"The plugins and nodes are stopped. Their files are in {cluster.root}:"]
    lines += [f"  devicecore checkpoint show {node.directory}" for node in cluster.nodes]
    lines += [f"  cat {cluster.root}/*.json", f"  less {cluster.log}", f"  rm -r {cluster.root}"]
    console.print("\n".join(lines), soft_wrap=True)


class _Ended(BaseException):
    """A signal tells the demo to stop."""


def _check(signals: Signals) -> None:
    if signals.ended_by is not None:
        raise _Ended(signals.ended_by)
