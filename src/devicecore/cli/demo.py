"""`devicecore demo`: the whole story on this machine, with real sockets and real processes."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from devicecore.cli.output import complain, console_on, json_option, print_json

_ENDING = (signal.SIGINT, signal.SIGTERM)


@click.command()
@json_option
def demo(*, as_json: bool) -> int:
    """See the device manager at work: nodes, plugins, pods, a restart, a crash.

    Two nodes are set up in a temporary directory, with device plugins in processes of their own. Every step says what
    should come of it, and sees whether it did. It takes a few seconds, and leaves nothing behind.

    Exit status 0 if everything came out as told, 1 if not. With --json, the steps are printed at the end, and their
    names on standard error while they last:

    $ devicecore demo --json | jq '.[] | {name, ok}'
    """
    from devicecore.cli.cluster import Cluster
    from devicecore.cli.stage import play
    from devicecore.cli.story import NATIVE, STORY

    began = time.monotonic()
    console = console_on(sys.stderr if as_json else sys.stdout)
    with _interruptible(), Cluster(NATIVE) as cluster:
        records = play(STORY, cluster, console, silent=as_json)
        log = cluster.last_words()
    if as_json:
        print_json(records)
    if not all(record["ok"] for record in records):
        sys.stderr.write(log)
        complain("devicecore demo", f"step {records[-1]['name']} did not come out as told")
        return 1
    seconds = time.monotonic() - began
    end = f"All {len(STORY)} steps came out as told, in {seconds:.1f} seconds."
    console.print(end if as_json else f"\n{end}", style="bold")
    return 0


class _Ended(BaseException):
    """A signal wants the demo to end."""


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let the first SIGINT or SIGTERM raise, wherever we are, and no other: what comes then is the clearing away."""

    def end(number: int, _: FrameType | None) -> None:
        for ending in _ENDING:
            signal.signal(ending, signal.SIG_IGN)
        raise _Ended(number)

    before = {ending: signal.signal(ending, end) for ending in _ENDING}
    try:
        yield
    except _Ended as ended:
        number = signal.Signals(ended.args[0])
        complain("devicecore demo", f"ended by {number.name}, and nothing is left behind")
        sys.exit(128 + number)
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)
