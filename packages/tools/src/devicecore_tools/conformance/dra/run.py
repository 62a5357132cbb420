"""Runs the checks over a DRA driver.

Law: after a run, no process, socket, mount or file of it is left.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from attrs import evolve, frozen

from devicecore.domain.text import counted, foreign_text
from devicecore_tools.conformance.dra.checks import CHECKS, CORE, ORDER
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.environment import Environment
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from devicecore_tools.conformance.dra.steps import IMPOSSIBLE, Occurrence, TwoParts
from devicecore_tools.conformance.model import Check, Failure, Report, Result, impossible
from devicecore_tools.conformance.processes import orphans_come_here
from devicecore_tools.conformance.runner import run_checks
from devicecore_tools.testing.api_server.versions import RESOURCE_VERSIONS, version_of


def run(
    command: Sequence[str],
    *,
    settings: DriverTestSettings | None = None,
    checks: Iterable[Check[DriverUnderTest]] = CORE,
    on_ready: Callable[[Environment], None] = lambda _: None,
    on_result: Callable[[Result], None] = lambda _: None,
) -> Report:
    """Run checks over a DRA driver and return the report.

    Args:
        command: starts the driver. Placeholders such as `{kubeconfig}` are replaced, see `Environment.placeholders`.
        settings: how to test it.
        checks: the checks to make. They are made in the order of `CHECKS`.
        on_ready: called when the surroundings of the driver are there, before it is started.
        on_result: called with each result, except those of checks that were not made.

    Raises:
        CannotRunError: the program does not exist or may not be run.
        OSError: a directory cannot be made.
    """
    settings = settings or DriverTestSettings()
    ordered = _in_order(checks)
    wanted = {check.name for check in ordered}
    looks = tuple(one.look for one in CHECKS if one.name in wanted and isinstance(one.look, TwoParts))
    began = time.monotonic()
    with orphans_come_here(), Environment(settings) as environment:
        on_ready(environment)
        driver = DriverUnderTest(environment, command, settings, looks)
        try:
            driver.kubelet.start()
            driver.start()
            with driver.in_time():
                results, not_made = run_checks(ordered, driver, on_result=on_result)
        finally:
            driver.stop()
        return _report(driver, results, not_made, time.monotonic() - began)


@frozen(eq=False)
class _Guarded:
    """The `look` of a check, with the events that begin before it, and with the end of its claims after it."""

    look: Callable[[DriverUnderTest], str]
    events: tuple[Occurrence, ...]

    def __call__(self, driver: DriverUnderTest) -> str:
        for event in self.events:
            driver.steps.begin(event)
        try:
            driver.notice_exit()
            driver.require_time()
            return self.look(driver)
        except Failure:
            driver.require_time()  # otherwise it may have failed because the run has ended its calls
            raise
        except IMPOSSIBLE as error:
            raise impossible(error) from error
        finally:
            driver.clean_up()


def _in_order(checks: Iterable[Check[DriverUnderTest]]) -> list[Check[DriverUnderTest]]:
    """Return the checks in the order in which they are made."""
    wanted = {check.name for check in checks}
    ordered: list[Check[DriverUnderTest]] = []
    events: list[Occurrence] = []
    for item in ORDER:
        if isinstance(item, Occurrence):
            events.append(item)
        elif item.name in wanted:
            ordered.append(evolve(item, look=_Guarded(item.look, tuple(events))))
            events = []
    return ordered


def _report(driver: DriverUnderTest, results: tuple[Result, ...], not_made: str, seconds: float) -> Report:
    name = foreign_text(driver.known_name)
    devices = driver.device_count
    asked = {version_of(one) for one in driver.api.requests if one.resource}
    versions = [version for version in RESOURCE_VERSIONS if version in asked]
    notes = []
    if versions and RESOURCE_VERSIONS[0] not in versions:
        notes.append(
            f"it uses resource.k8s.io/{versions[0]}, which API servers since Kubernetes 1.34 serve only if they are "
            "configured to"
        )
    if name and not devices:
        notes.append("it has published no devices, so most checks could not be made")
    if driver.exits:
        notes.append(f"the driver ended by itself {counted(len(driver.exits), 'time')}")
    return Report(
        kind="DRA driver",
        subject=f"{name}, {counted(devices, 'device')}" if name else "no driver",
        facts={"driver": name, "devices": devices, "resource_versions": versions, "exits": driver.exits},
        notes=tuple(notes),
        results=results,
        not_made=not_made,
        cannot_run=bool(driver.exits) and not driver.was_seen,
        seconds=seconds,
        output=driver.output,
    )
