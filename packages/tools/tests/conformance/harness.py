"""Runs checks on the correct driver and on faulty ones."""

import faulthandler
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from devicecore_tools.conformance import Check, Report, Severity, Verdict
from devicecore_tools.conformance.dra import CHECKS, DriverTestSettings, DriverUnderTest, run
from devicecore_tools.conformance.dra.steps import TwoParts
from devicecore_tools.conformance.faults import DRIVER, classes_of
from devicecore_tools.conformance.faults.good_driver import GoodDriver
from devicecore_tools.conformance.processes import orphans_come_here

NOT_MADE = {Verdict.SKIPPED, Verdict.UNDECIDED}
BY_NAME = {check.name: check for check in CHECKS}
QUICK = DriverTestSettings(starting=60, returning=60, republishing=60, quiet=3.0, outage=3.0, seed=1, budget=1000)
IS_STORM = bool(os.environ.get("STORM"))
TRIES_ALL_FAULTS = IS_STORM or bool(os.environ.get("FAULTS"))
SLOW = {
    "waits-for-a-late-kubelet",
    "waits-for-a-late-api-server",
    "leaves-slices-of-others-alone",
    "survives-a-refused-registration",
    "publishes-despite-conflicts",
    "survives-a-failed-write",
    "ends-during-a-call",
    "goes-on-after-a-pause",
    "leaves-a-newer-instance-alone-when-it-ends",
    "stays-while-the-api-server-is-away",
    "survives-a-second-start",
    "waits-between-connections-to-the-api-server",
    "prepares-after-cancelled-calls",
    "late-prepare-leaves-nothing",
    "prepares-with-a-slow-api-server",
    "unprepares-with-a-slow-api-server",
    "survives-prepare-and-unprepare-at-the-same-time",
    "survives-a-kill-at-any-moment",
    "prepares-one-claim-in-several-calls-at-once",
    "prepares-claims-at-the-same-time",
    "unprepares-at-the-same-time",
    "unprepares-after-a-failed-prepare",
    "unprepares-the-claims-of-a-pod",
    "answers-get-info-again",
    "keeps-nodes-apart",
}
"""Checks that take a second or more, or that find faults that appear only if calls come in a certain order.

On drivers with other faults, only `make storm` runs them. The same is true of checks that need a restart or do not run
by default, and of the checks in most other groups.
"""

Fault = type[GoodDriver]
_AT_ONCE = 4  # drivers


def faults_of(group: str) -> list[Fault]:
    """Return the faulty drivers for a group of checks."""
    return [member for member in classes_of(group) if member.fails]


def faults_to_try(group: str) -> list[Fault]:
    """Return one fault for each check of the default run, or all faults with FAULTS=1.

    Trying a fault takes a second or two.
    """
    faults = faults_of(group)
    if TRIES_ALL_FAULTS:
        return faults
    first = {name: fault for fault in reversed(faults) for name in fault.fails if BY_NAME[name].is_core}
    return [fault for fault in faults if fault in first.values()]


def share_of(names: Sequence[str], fault: str) -> Sequence[str]:
    """Return one in 24 of the checks that must not fail. The fault's name determines which ones.

    Running all of them on each faulty program took more CPU time than the rest of `make test`.
    """
    return names[zlib.crc32(fault.encode()) % 24 :: 24]


def mostly_slow(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return parameters of a test. Mark them as slow, except for the first and every eighth after it.

    A test of a fault takes up to half a second of CPU time and many seconds of waiting, and most of that is the same
    for all faults: starting the program, the run, and reading /proc.
    """
    return [pytest.param(*case, marks=pytest.mark.slow if number % 8 else ()) for number, case in enumerate(cases)]


def fault_test(*groups: str) -> Callable[..., None]:
    """Return a test of the faulty drivers for these groups of checks."""
    faults = [fault for group in groups for fault in faults_to_try(group)]

    @pytest.mark.parametrize("fault", mostly_slow((one,) for one in faults), ids=[one.__name__ for one in faults])
    def test_a_fault_is_found(fault: Fault, findings: "Findings") -> None:
        findings.assert_found(fault)

    return test_a_fault_is_found


def run_on(
    fault: Fault | None, checks: Iterable[Check[DriverUnderTest]], stubs: Path | None, settings: DriverTestSettings
) -> Report:
    """Run checks on a faulty driver, or on the good one, with the generated modules in `stubs` if that is set."""
    command = [sys.executable, str(DRIVER)]
    if fault is not None:
        command.append(f"{fault.__module__.rpartition('.')[2]}:{fault.__name__}")
    environment: dict[str, str] = {} if stubs is None else {"STUBS": str(stubs)}
    words: tuple[str, ...] = ()
    if fault is not None:
        environment |= fault.environment
        words = fault.options
    provoked = dict(zip([word[2:].replace("-", "_") for word in words[::2]], words[1::2], strict=True))
    settings = evolve(settings, **provoked)  # type: ignore[arg-type]  # they are fields that are strings
    return run(command, settings=evolve(settings, environment=environment), checks=checks)


def checks_for(fault: Fault) -> list[Check[DriverUnderTest]]:
    """Return the checks for a faulty driver: those about its fault, and some quick ones.

    With FAULTS=1, the result contains all quick checks in the related groups. In `make storm`, it contains all checks.
    """
    groups = {BY_NAME[name].group for name in fault.fails}

    def is_made(check: Check[DriverUnderTest]) -> bool:
        is_near = check.group in {"registration", "slices", "whole run", *groups}
        is_quick = check.is_core and not isinstance(check.look, TwoParts) and check.name not in SLOW
        return is_quick and is_near

    if IS_STORM:
        return list(CHECKS)
    own = {*fault.fails, *fault.must_not_fail}
    others = [check.name for check in CHECKS if is_made(check) and check.name not in own]
    made = {*own, *(others if TRIES_ALL_FAULTS else share_of(others, fault.__name__))}
    return [check for check in CHECKS if check.name in made]


class Findings:
    """Checks faulty drivers and keeps the reports.

    The drivers are checked concurrently because the checks spend most of their time waiting.
    """

    def __init__(self, faults: Iterable[Fault], stubs: Path | None) -> None:
        self._ending = ExitStack()
        # otherwise, this process would stop adopting orphans when the first run ends
        self._ending.enter_context(orphans_come_here())
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._reports = {
            fault: self._pool.submit(report_on, fault, stubs if number % 2 else None)
            for number, fault in enumerate(faults)
        }

    def close(self) -> None:
        """Wait for the runs in progress, and cancel the others."""
        self._pool.shutdown(cancel_futures=True)
        self._ending.close()

    def assert_found(self, fault: Fault) -> None:
        """Assert that the checks for this fault fail, and no others except those in `breaks_too`."""
        if IS_STORM:
            faulthandler.cancel_dump_traceback_later()  # running all checks on a driver takes minutes
        report = self._reports[fault].result()
        failed = {result.name: result.actual for result in report.failures}
        seen = "\n".join(f"{result.verdict.value} {result.name}: {result.actual}" for result in report.results)
        assert set(fault.fails) == set(failed) - set(fault.breaks_too), f"{seen}\n{report.output}"
        assert all(failed.values())
        severities = [BY_NAME[name].severity for name in failed]
        assert report.passed == (Severity.MUST not in severities)


def report_on(fault: Fault, stubs: Path | None) -> Report:
    """Run the checks on a faulty driver."""
    settings = evolve(QUICK, **fault.settings)
    return run_on(fault, checks_for(fault), stubs, settings)


def assert_all_pass(report: Report, *skipped: str) -> None:
    """Assert that no check failed, and that only the checks in `skipped` were not run."""
    failed = {result.name: result.actual for result in report.failures}
    assert not failed, f"{failed}\n{report.output}"
    left_out = {result.name: result.actual for result in report.results if result.verdict in NOT_MADE}
    assert set(left_out) == set(skipped), left_out
