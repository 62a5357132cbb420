"""Runs the checks against a DRA driver.

Law: after a run, no process of the driver is running, and no file or socket that the run has created remains.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from attrs import evolve, frozen

from devicecore.domain.text import counted, foreign_text
from devicecore.system.arguments import checks_arguments
from devicecore_tools.conformance.dra.checks import CHECKS, CORE, ORDER
from devicecore_tools.conformance.dra.checks.call_watch import CallWatch
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.environment import Environment
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from devicecore_tools.conformance.dra.steps import IMPOSSIBLE, Occurrence, Steps, TwoParts
from devicecore_tools.conformance.model import (
    Check,
    Failure,
    Report,
    Result,
    Severity,
    Skip,
    Undecided,
    impossible,
)
from devicecore_tools.conformance.processes import guarded, note_of_wrong_command, orphans_come_here
from devicecore_tools.conformance.runner import run_checks
from devicecore_tools.testing.api_server.versions import RESOURCE_VERSIONS, version_of

RENEWED = (
    "; afterwards the check's devices could not be prepared for another claim, so the driver got fresh directories"
)
"""Added to the sentence of a passed check if the driver did not release the check's devices."""

_OF_CLAIMS = {"prepare", "unprepare", "cdi", "state", "situations"}  # groups
_WHOLE_RUN = "whole run"  # a group
_MAX_TRIED = 4  # the maximum number of claims whose devices are tried after a check


@checks_arguments("checks")
def run(
    command: Sequence[str],
    *,
    settings: DriverTestSettings | None = None,
    checks: Iterable[Check[DriverUnderTest]] = CORE,
    on_ready: Callable[[Environment], None] = lambda _: None,
    on_result: Callable[[Result], None] = lambda _: None,
) -> Report:
    """Run checks against a DRA driver and return the report.

    Args:
        command: starts the driver. Placeholders such as `{kubeconfig}` are replaced; see `Environment.placeholders`.
        settings: how to test the driver.
        checks: the checks to run. The checks run in the order of `CHECKS`.
        on_ready: called when the driver's environment is ready, before the driver starts.
        on_result: called with each result, except those of checks that were never started.

    Raises:
        CannotRunError: the program does not exist or is not executable.
        OSError: a directory cannot be created.
    """
    settings = settings or DriverTestSettings()
    wanted = {check.name for check in checks}
    looks = tuple(one.look for one in CHECKS if one.name in wanted and isinstance(one.look, TwoParts))
    began = time.monotonic()
    with orphans_come_here(), Environment(settings) as environment, guarded(environment.marker):
        on_ready(environment)
        driver = DriverUnderTest(environment, command, settings)
        driver.calls.observer = CallWatch(driver)
        try:
            driver.kubelet.start()
            driver.process.start()
            with driver.process.in_time():
                results, not_made = run_checks(
                    _in_order(wanted, Steps(driver, looks)),
                    driver,
                    on_result=on_result,
                    excuses_load=settings.excuses_load,
                    waits=lambda: driver.process.waits,
                )
        finally:
            driver.process.stop()
        return _report(driver, results, not_made, time.monotonic() - began)


@frozen(eq=False)
class _Guarded:
    """The `look` of a check, together with the events that start before it and the cleanup of its claims after it.

    If the driver then does not prepare another claim for the same devices, the driver gets fresh directories. If the
    driver's calls are slow, the devices are tried only after failures.
    """

    check: Check[DriverUnderTest]
    events: tuple[Occurrence, ...]
    steps: Steps

    def __call__(self, driver: DriverUnderTest) -> str:
        if self.check.group == _WHOLE_RUN:  # the check only reads what was observed
            return self.check.look(driver)
        driver.process.require_time()  # otherwise, events and cleanups for all checks would take longer than the run
        exits = len(driver.process.exits)
        driver.calls.used.clear()
        driver.calls.observer.begins_check(self.check.name, self.check.group)
        problem: Failure | Skip | None = None
        sentence = ""
        try:
            try:
                sentence = self._look(driver)
            except (Failure, Skip) as error:
                problem = error
            except IMPOSSIBLE as error:
                problem = impossible(error)
            if isinstance(problem, Skip):
                problem = self._end_of(driver) or problem
            if problem is not None:
                driver.process.require_time()  # otherwise, the check may have failed because the run canceled its calls
                if driver.process.is_leaving or isinstance(problem, Failure):
                    driver.process.wait_for_exit()
            is_whole = not driver.calls.observer.is_paused  # a driver may prepare nothing while its state is damaged
            if is_whole and (isinstance(problem, Failure) or (problem is None and driver.calls.are_quick)):
                sentence += RENEWED if _restore(driver) else ""
            driver.calls.observer.ends_check(is_failed=isinstance(problem, Failure))
        finally:
            driver.calls.clean_up()
            driver.process.notice_exit()
            driver.process.blame(self.check.name)
        if problem is not None:
            # A check that could not run because of a crash fails, and the crash counts as reported.
            problem = driver.process.with_exits(self.check.name, problem, exits)
            if isinstance(problem, Failure):
                driver.process.reported.update(one.pid for one in driver.process.exits[exits:])
            raise problem
        driver.process.require_no_crash(self.check.name, sentence, exits)
        return sentence

    def _end_of(self, driver: DriverUnderTest) -> Failure | None:
        """If the driver, which has worked before, has exited on its own and no longer registers, return a failure.

        The driver gets fresh directories, so that the other checks find a working driver.
        """
        exits = [one for one in driver.process.exits if one.pid not in driver.process.reported]
        if not exits or not driver.calls.habits.prepares or driver.kubelet.newest is not None:
            return None
        driver.process.reported.update(one.pid for one in exits)
        self.steps.abandon("the driver no longer started, and got fresh directories")
        with suppress(Skip):  # no time is left
            driver.renew()
        return Failure(f"the driver exited, and did not register again: {exits[-1]}")

    def _look(self, driver: DriverUnderTest) -> str:
        for event in self.events:
            self.steps.begin(event)
        driver.process.notice_exit()
        driver.process.require_time()
        if self.check.severity is not Severity.MUST and self.check.group in _OF_CLAIMS and driver.calls.are_slow:
            raise Undecided(_why_fewer(driver))
        driver.calls.catch_up()
        look = self.check.look
        return self.steps.finish(look) if isinstance(look, TwoParts) else look(driver)


def _why_fewer(driver: DriverUnderTest) -> str:
    took = counted(round(driver.calls.fastest, 1), "second")
    return f"the driver needs {took} to prepare a claim, so only 'must' checks use claims"


def _restore(driver: DriverUnderTest) -> bool:
    """Make sure that later checks can use this check's devices. Return whether the driver got fresh directories."""
    driver.calls.clean_up()
    driver.calls.catch_up()
    used = {tuple(one.key for one in claim.devices): claim for claim in driver.calls.used if claim.devices}
    with suppress(Skip, *IMPOSSIBLE):  # for example, no time is left, which the next check reports
        kept = next((one for one in list(used.values())[-_MAX_TRIED:] if not driver.calls.works(one)), None)
        problem = driver.calls.why_not
        if kept is not None and problem is not None and not problem.is_late:
            driver.calls.observer.keeps_devices([kept], f"for another claim, {problem}")
        if driver.claims.held or kept is not None:
            return driver.renew()
    return False


def _in_order(wanted: Collection[str], steps: Steps) -> list[Check[DriverUnderTest]]:
    """Return the checks with these names, in the order in which they run."""
    ordered: list[Check[DriverUnderTest]] = []
    events: list[Occurrence] = []
    for item in ORDER:
        if isinstance(item, Occurrence):
            events.append(item)
        elif item.name in wanted:
            ordered.append(evolve(item, look=_Guarded(item, tuple(events), steps)))
            events = []
    return ordered


def _report(driver: DriverUnderTest, results: tuple[Result, ...], not_made: str, seconds: float) -> Report:
    name, exits = foreign_text(driver.registration.known_name), tuple(driver.process.exits)
    devices = driver.slices.device_count
    asked = {version_of(one) for one in driver.api.requests if one.resource}
    versions = [version for version in RESOURCE_VERSIONS if version in asked]
    notes = []
    if versions and RESOURCE_VERSIONS[0] not in versions:
        notes.append(
            f"the driver uses resource.k8s.io/{versions[0]}, which API servers from Kubernetes 1.34 on serve only if "
            "configured to"
        )
    if name and not devices:
        notes.append("the driver has not published any devices, so most checks could not be run")
    if driver.calls.are_slow:
        notes.append(f"{_why_fewer(driver)}; --budget gives the checks more time")
    problem = driver.seen.change.problem
    if problem:
        notes.append(note_of_wrong_command("--provoke-devices", problem))
    if exits:
        notes.append(f"the driver exited on its own {counted(len(exits), 'time')}")
    return Report(
        kind="DRA driver",
        subject=f"{name}, {counted(devices, 'device')}" if name else "no driver",
        facts={"driver": name, "devices": devices, "resource_versions": versions},
        notes=tuple(notes),
        results=results,
        not_made=not_made,
        cannot_run=bool(exits) and not driver.registration.was_seen,
        wrong_usage=bool(problem),
        seconds=seconds,
        output=driver.process.output,
        exits=exits,
    )
