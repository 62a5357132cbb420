"""Compares devicecore's answers with those of Kubernetes' own code, on new random cases: `make oracle`."""

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random, SystemRandom

from attrs import frozen

from tests.oracle.asking import Json, Oracle, OracleError, Verdict, first
from tests.oracle.kinds import KINDS, too_often
from tests.oracle.smaller import smaller
from tools.make_peers import PeersError, build, default_version, program

CHUNK = 25


@frozen
class Result:
    """The comparison of one case whose answers differ."""

    number: int
    cause: str | None
    lines: Sequence[str]


@frozen
class Part:
    """The result of comparing `count` cases: those that differ, and the numbers of compared steps and of all steps."""

    count: int
    results: Sequence[Result]
    compared: int
    steps: int


SMALLER = 20  # seconds for minimizing a case
PATIENCE = 30  # seconds; a case that takes longer counts as a difference


def compare(path: Path, kind: str, seed: str, numbers: range, until: float, patience: float) -> Part:
    """Compare the cases of a kind that have these numbers, until a deadline."""
    found, count, compared, steps = list[Result](), 0, 0, 0
    with Oracle(path) as oracle:
        for number in numbers:
            if time.time() > until:
                break
            with _limited(patience, _repetition(kind, seed, number)):
                verdict = _verdict(kind, seed, number, oracle)
            count += 1
            compared, steps = compared + verdict.steps[0], steps + verdict.steps[1]
            if verdict.cause != "":
                found.append(Result(number, verdict.cause, first(verdict.lines)))
    return Part(count, found, compared, steps)


def _verdict(kind: str, seed: str, number: int, oracle: Oracle) -> Verdict:
    """Compare one case. An exception in our code counts as a difference, so that the case is reported."""
    try:
        return KINDS[kind].judge(KINDS[kind].case(Random(f"{seed}-{kind}-{number}")), oracle)
    except OracleError:
        raise
    except Exception as error:  # noqa: BLE001 - any fault of ours
        places = traceback.extract_tb(error.__traceback__)[-3:]
        return Verdict(None, [f"{type(error).__name__}: {error}", *(f"{one.filename}:{one.lineno}" for one in places)])


@contextmanager
def _limited(seconds: float, name: str) -> Iterator[None]:
    """End the process if the work in the `with` statement takes too long.

    Raising an exception would not do: the code that hangs could catch it.
    """

    def end(*_: object) -> None:
        print(f"  {name}\n    has not ended after {seconds:g} s", flush=True)
        os._exit(1)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _made_smaller(path: Path, kind: str, seed: str, number: int) -> Json:
    """Return a case whose answers differ, reduced to the parts that cause the difference."""
    with Oracle(path) as oracle:
        case = KINDS[kind].case(Random(f"{seed}-{kind}-{number}"))
        has_panicked = "panic" in str(KINDS[kind].judge(case, oracle).lines)

        def differs(one: Json) -> bool:
            verdict = KINDS[kind].judge(one, oracle)
            # A reduced case may be impossible, and make Kubernetes' code panic.
            return verdict.cause is None and ("panic" in str(verdict.lines)) == has_panicked

        return smaller(case, differs, time.time() + SMALLER)


def _repetition(kind: str, seed: str, number: int) -> str:
    """Return a case's number and the command that repeats the case."""
    return f"case {number}: make oracle KIND={kind} SEED={seed} CASE={number}"


def chunks(cases: range) -> Iterator[range]:
    """Split the cases into parts, so that all CPUs are busy."""
    return (cases[start : start + CHUNK] for start in range(0, len(cases), CHUNK))


def run(options: argparse.Namespace) -> int:
    """Compare all kinds, and return the exit status."""
    path = program("oracle", options.kubernetes)
    numbers = range(options.cases) if options.case is None else range(options.case, options.case + 1)
    print(f"== Kubernetes {options.kubernetes}, seed {options.seed}")
    is_wrong, rows = False, list[str]()
    for kind in options.kinds:
        start = time.time()
        until = start + options.seconds / len(options.kinds) if options.seconds else float("inf")
        total, compared, steps, causes, unknown = 0, 0, 0, Counter[str](), list[Result]()
        with ProcessPoolExecutor(options.processes) as pool:
            ask = partial(compare, path, kind, options.seed, until=until, patience=options.patience)
            parts = [pool.submit(ask, part) for part in chunks(numbers)]
            for part in as_completed(parts):
                try:
                    done = part.result()
                except BrokenProcessPool:  # a case took too long; its process has printed its name
                    is_wrong = True
                    break
                total, compared, steps = total + done.count, compared + done.compared, steps + done.steps
                causes.update(one.cause for one in done.results if one.cause)
                unknown += [one for one in done.results if one.cause is None]
                if unknown and options.until_found:
                    pool.shutdown(wait=False, cancel_futures=True)
                    break
        known = "".join(f", {number:,} {cause}" for cause, number in sorted(causes.items()))
        agreed = total - sum(causes.values()) - len(unknown)
        share = f", {compared / steps:.1%} of the steps compared" if steps > total else ""
        print(
            f"{kind}: {total:,} cases: {agreed:,} agree{known}, {len(unknown):,} unknown{share} "
            f"({time.time() - start:.0f} s)"
        )
        often = list(too_often(causes, total))
        print(*(f"  {one}" for one in often), sep="\n", end="\n" * bool(often))
        for one in sorted(unknown, key=lambda result: result.number)[:5]:
            print(f"  {_repetition(kind, options.seed, one.number)}")
            print(*(f"    {line}" for line in one.lines), sep="\n")
        if unknown and not options.until_found:
            print(f"  Kubernetes: {KINDS[kind].function}")
            print(f"  case {min(one.number for one in unknown)}, minimized:")
            print(f"    {json.dumps(_made_smaller(path, kind, options.seed, min(one.number for one in unknown)))}")
        rows.append(f"| {options.kubernetes} | {kind} | {total:,} | {agreed:,} | {known.removeprefix(', ') or '-'} |")
        is_wrong |= bool(unknown or often) or not total
    if options.table:
        print("\n| Kubernetes | kind | cases | agree | other answers, by cause |\n|---|---|---|---|---|")
        print(*rows, sep="\n")
    return 1 if is_wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, build the oracle, compare, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__.partition("\n")[0])
    parser.add_argument("--kubernetes", default=default_version(), metavar="VERSION", help="(%(default)s)")
    parser.add_argument("--kind", action="append", dest="kinds", choices=KINDS, help="compare only this kind")
    parser.add_argument("--cases", type=int, default=1_000, help="number of cases of each kind (%(default)s)")
    parser.add_argument("--seed", default="", help="the seed that an earlier run printed (default: a new seed)")
    parser.add_argument("--case", type=int, help="compare only the case with this number")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this many seconds, even if cases are left")
    parser.add_argument("--until-found", action="store_true", help="stop at the first difference without a known cause")
    parser.add_argument("--table", action="store_true", help="print rows for the table in docs/support.md at the end")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for each case (%(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    options.kinds = options.kinds or list(KINDS)
    options.seed = options.seed or f"{SystemRandom().getrandbits(32):08x}"
    try:
        build(options.kubernetes, ["oracle"])
    except PeersError as error:
        print(f"make oracle: {error}", file=sys.stderr)
        return error.status
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
