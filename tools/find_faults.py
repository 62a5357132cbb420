"""Write docs/maintain/found-faults.md: which injected faults the conformance checks find, and which checks find them.

`make found` runs every program of `devicecore conformance faults` under `devicecore conformance`, as a user would:
first with the default checks, and then with the program's checks that run only with `--full`. No test verifies the
page, because the runs take many minutes.
"""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

from devicecore_tools.conformance import Severity
from devicecore_tools.conformance.device_plugin import CHECKS
from devicecore_tools.conformance.dra import CHECKS as DRA_CHECKS
from devicecore_tools.conformance.faults import DRIVER_KIND, PLUGIN_KIND, Planted, planted

from tools.conformance_runs import report_of

PAGE = Path(__file__).parent.parent / "docs" / "maintain" / "found-faults.md"
UNKNOWING = "\n## Faults injected by someone who did not know the checks\n"
"""The heading of the first section that is written by hand; `find_subjects` prints the tables in it."""
AT_ONCE = 6  # programs checked at the same time; most of a run is spent waiting
DEFAULT, FULL = "default", "--full"
GROUPS = WITH_MUST, WITHOUT_MUST, HABIT = (
    'with a "must" fault',
    'without a "must" fault',
    "with unusual but valid behavior",
)
COMMANDS = {PLUGIN_KIND: "plugin", DRIVER_KIND: "driver"}
SEVERITIES = {
    kind: {check.name: check.severity for check in checks}
    for kind, checks in ((PLUGIN_KIND, CHECKS), (DRIVER_KIND, DRA_CHECKS))
}
IN_FULL = {
    kind: {check.name for check in checks if not check.is_core}
    for kind, checks in ((PLUGIN_KIND, CHECKS), (DRIVER_KIND, DRA_CHECKS))
}

INTRODUCTION = """\
# Which injected faults are found

For maintainers of the conformance checks. `make found` writes this page: it runs each program of
`devicecore conformance faults` under `devicecore conformance`, with the same time limits that users get. If a program's
fault names checks that the default run leaves out, these checks run with `--full --only`. A fault counts as found if
every check that it names fails. A fault also names the checks that cannot pass while the fault is present; such checks
do not count as other failures. On a busy machine, a check that fails for lack of time is reported as undecided, so run
`make found` on an idle machine.
"""


class Finding(NamedTuple):
    """What a run found in a program.

    Attributes:
        fault: the program with the fault.
        run: which checks ran, `DEFAULT` or `FULL`.
        missed: the checks that the fault names but that did not fail.
        others: the other checks that failed.
        undecided: the checks with the verdict `undecided`.
        seconds: how long the run took.
    """

    fault: Planted
    run: str
    missed: tuple[str, ...]
    others: tuple[str, ...]
    undecided: tuple[str, ...]
    seconds: float


def main(arguments: Sequence[str]) -> int:
    """Write the page. The first argument, if any, is the number of programs to run at once."""
    at_once = int(arguments[0]) if arguments else AT_ONCE
    findings: list[Finding] = []
    for run in (DEFAULT, FULL):
        mine = [one for one in planted() if run == DEFAULT or IN_FULL[one.kind].intersection(one.checks)]
        with ThreadPoolExecutor(at_once) as pool:
            for found in pool.map(lambda fault, run=run: find(fault, run), mine):
                findings.append(found)
                print(f"{run:<7}  {found.seconds:5.0f} s  {found.fault.name:<40}  {said(found)}", flush=True)
        _, heading, others = PAGE.read_text(encoding="utf-8").partition(UNKNOWING)
        PAGE.write_text("\n".join([INTRODUCTION, *page(findings)]) + heading + others, encoding="utf-8")
    return 0


def find(fault: Planted, run: str) -> Finding:
    """Run the checks on a program."""
    wanted = wanted_in(fault, run)
    only = [FULL, *(word for name in wanted for word in ("--only", name))] if run == FULL else []
    report = report_of(COMMANDS[fault.kind], [*only, *fault.options], fault.program())
    if report is None:
        return Finding(fault, run, tuple(wanted), (), (), 0.0)
    failed = {one["name"] for one in report["checks"] if one["verdict"] == "failed"}
    undecided = tuple(one["name"] for one in report["checks"] if one["verdict"] == "undecided")
    others = failed - set(fault.checks) - set(fault.breaks_too)
    return Finding(fault, run, tuple(sorted(set(wanted) - failed)), tuple(sorted(others)), undecided, report["seconds"])


def wanted_in(fault: Planted, run: str) -> list[str]:
    """Return those checks named by a fault that are expected to fail in this run."""
    return [name for name in fault.checks if (name in IN_FULL[fault.kind]) == (run == FULL)]


def said(found: Finding) -> str:
    """Return, in a few words, how the verdicts of a run differ from those expected for the fault."""
    parts = [f"not found by {', '.join(found.missed)}"] if found.missed else []
    parts += [f"also {', '.join(found.others)}"] if found.others else []
    parts += [f"not decided: {', '.join(found.undecided)}"] if found.undecided else []
    return "; ".join(parts) or "as expected"


def page(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the lines of the page that show the results."""
    yield "| programs | checks | number | all named checks failed | and no others | longest run |"
    yield "|---|---|---|---|---|---|"
    for kind, run, group in product(COMMANDS, (DEFAULT, FULL), GROUPS):
        mine = [one for one in findings if (one.fault.kind, one.run, group_of(one)) == (kind, run, group)]
        if mine:
            found = [one for one in mine if not one.missed]
            alone = sum(not one.others for one in found)
            longest = max(one.seconds for one in mine)
            yield f"| {kind}s {group} | {run} | {len(mine)} | {len(found)} | {alone} | {longest:.0f} s |"
    odd = [one for one in findings if one.missed or one.others]
    if odd:
        yield "\nThese faults were not found by exactly the checks that they name:\n"
        yield "| program | checks | what |\n|---|---|---|"
        yield from (f"| `{one.fault.name}` | {one.run} | {said(one)} |" for one in odd)
    yield ""


def group_of(found: Finding) -> str | None:
    """Return the group in `GROUPS` of a program, or None if no check is expected to fail in this run."""
    if not found.fault.checks:
        return HABIT
    severities = {SEVERITIES[found.fault.kind][name] for name in wanted_in(found.fault, found.run)}
    if Severity.MUST in severities:
        return WITH_MUST
    return WITHOUT_MUST if severities else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
