"""Compare admission times of this tree and another commit: `python benchmarks/compare.py OTHER_TREE`.

The two are measured alternately. OTHER_TREE is a work tree with its own environment: `git worktree add --detach
OTHER_TREE COMMIT`, then `make .venv/.dev` in it. Bytecodes are counted, because other programs do not affect them, and
times are CPU times.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).parent
PARTS = (
    ("domain/checkpoint/", "text of the checkpoint"),
    ("domain/", "values and choice of devices"),
    ("runtime/", "turns, commits, runs"),
    ("manager", "order of effects"),  # a package or a module
    ("adapters/", "the file"),
    ("system/", "the file"),
)

Trace = Callable[[FrameType, str, Any], Any]


def part_of(filename: str, source: str) -> str:
    """Return the part of devicecore that a function belongs to. A function that attrs generated names its class."""
    generated = "<attrs generated methods devicecore."
    if filename.startswith(generated):
        filename = filename.removeprefix(generated).replace(".", "/")
    elif filename.startswith(source):
        filename = filename.removeprefix(source)
    return next((part for start, part in PARTS if filename.startswith(start)), "caller and the rest")


def serve(tree: Path, pods: int) -> None:
    """Read the number of admissions from stdin, run them timed or counted, and print the result."""
    sys.path.insert(0, str(tree / "benchmarks"))
    from workload import Size, running  # noqa: PLC0415 - that of the tree

    source = f"{tree}/src/devicecore/"
    counts: Counter[str] = Counter()

    def trace(frame: FrameType, _event: str, _argument: object) -> Trace:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        part = part_of(frame.f_code.co_filename, source)

        def count(_frame: FrameType, event: str, _argument: object) -> Trace:
            counts[part] += event == "opcode"
            return count

        return count

    with running(Size(pods, 10 * pods)) as bench:

        def admit(*, counted: bool) -> float:
            newcomer = bench.newcomer()
            bench.pods.active[newcomer.uid] = None
            began = time.process_time_ns()
            sys.settrace(trace if counted else None)
            bench.admit(newcomer)
            sys.settrace(None)
            took = time.process_time_ns() - began
            bench.forget(newcomer.uid)
            bench.manager.update_allocated_devices()
            return took / 1000

        for _ in range(300):  # to warm up
            admit(counted=False)
        for line in sys.stdin:
            number = int(line)
            if number:
                print(json.dumps([admit(counted=False) for _ in range(number)]), flush=True)
            else:
                counts.clear()
                admit(counted=True)
                print(json.dumps(counts), flush=True)


class Tree:
    """One tree, measured in its own process."""

    def __init__(self, tree: Path, pods: int) -> None:
        command = [str(tree / ".venv" / "bin" / "python"), __file__, str(tree), "--serve", str(pods)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.times: list[float] = []

    def ask(self, number: int) -> Any:  # noqa: ANN401 - JSON
        assert self._process.stdin
        assert self._process.stdout
        print(number, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def microseconds(self) -> tuple[float, float]:
        """Return the minimum and the tenth percentile."""
        return min(self.times), statistics.quantiles(self.times, n=10)[0]


def compare(other: Path, pods: int, rounds: int) -> None:
    """Print one row of the tables for each number of pods."""
    before, now = Tree(other, pods), Tree(HERE.parent, pods)
    counts = before.ask(0), now.ask(0)
    for number in range(rounds):
        for tree in (before, now) if number % 2 else (now, before):
            tree.times += tree.ask(100)
    ratios = [new / old - 1 for old, new in zip(before.microseconds(), now.microseconds(), strict=True)]
    times = " | ".join("{1:.0f}, {0:.0f}".format(*tree.microseconds()) for tree in (before, now))
    print(f"| {pods:,} / {10 * pods:,} | {times} | {ratios[1]:+.0%}, {ratios[0]:+.0%} |")
    for part in dict.fromkeys(part for _, part in PARTS) | {"caller and the rest": None}:
        print(f"    {part:30} {counts[0].get(part, 0):6} {counts[1].get(part, 0):6}")
    totals = [sum(of_tree.values()) for of_tree in counts]
    print(f"    {'all bytecodes':30} {totals[0]:6} {totals[1]:6}  {totals[1] / totals[0]:.3f} x")
    for tree in (before, now):
        tree.end()


def main() -> None:
    """Compare the trees at three sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--rounds", type=int, default=20, help="of 100 admissions in each tree")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.tree.absolute(), options.serve)
        return
    if not (options.tree / ".venv" / "bin" / "python").exists():
        parser.error(f"{options.tree} has no environment: run `make .venv/.dev` in it")
    print("| pods / devices | before: tenth percentile, least (us) | now | |")
    for pods in (10, 100, 1000):
        compare(options.tree.absolute(), pods, options.rounds)


if __name__ == "__main__":
    main()
