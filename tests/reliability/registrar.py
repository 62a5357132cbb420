"""A plugin that registers repeatedly, in four ways.

In turn, the plugin registers the same socket again, a new socket at the same path, a new socket at another path (after
which the old instance disconnects), and a socket that does not exist. `python -m tests.reliability.registrar DIRECTORY
N` prints how often each answer came, and serves the plugin until the program's input ends.
"""

import json
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.adapters.peers import RawPlugin, register

RESOURCE = "acme.io/storm"


def main(directory: str, number: str) -> None:
    """Register `number` times."""
    place, answers = Path(directory), Counter[str]()
    plugin, name = RawPlugin(place / "0.sock", ["d0"]), "0.sock"
    with ExitStack() as last:
        for call in range(int(number)):
            match call % 4:
                case 1:
                    plugin.stop()
                    plugin = RawPlugin(place / name, ["d0"])
                case 2:
                    old, name = plugin, f"{call}.sock"
                    plugin = RawPlugin(place / name, ["d0"])
                    last.callback(old.stop)
                case _:
                    pass
            answer = register(place, "missing.sock" if call % 4 == 3 else name, RESOURCE)
            answers[f"{call % 4} {answer[0].name} {answer[1].partition('.sock')[0].partition('/')[0]}"] += 1
            last.close()
        print(json.dumps(answers), flush=True)  # noqa: T201 - what the storm reads
        sys.stdin.read()
        plugin.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
