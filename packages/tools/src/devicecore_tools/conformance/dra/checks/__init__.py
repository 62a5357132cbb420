"""The checks for DRA drivers: one module for each group, and modules for watches that only one group needs.

Law: the checks run in the order of `ORDER`. An event listed in `ORDER` starts at that point, so that the wait for it
overlaps with the following checks; any other event happens at the first of its checks.
"""

from collections.abc import Iterator
from types import ModuleType

from devicecore_tools.conformance.dra.checks import (
    cdi,
    changes,
    health,
    prepare,
    process,
    registration,
    rolling_update,
    situations,
    slices,
    state,
    unprepare,
    whole_run,
)
from devicecore_tools.conformance.dra.checks.events import (
    CORRUPTION,
    CORRUPTION_ALONE,
    KILL,
    KILL_ALONE,
    KUBELET_RESTART,
    LATE_API_SERVER,
    LOSS,
    OUTAGE,
    QUIET,
    REBOOT,
    REGISTRATION,
    TERM,
)
from devicecore_tools.conformance.dra.steps import DriverCheck, Moment, Occurrence


def _made(*modules: ModuleType, when: tuple[Moment | Occurrence, ...]) -> Iterator[DriverCheck]:
    """Yield the modules' checks that run at one of these stages, in module order, then in line order."""
    for one in (one for module in modules for one in vars(module).get("CHECKS", vars(module).values())):
        if isinstance(one, DriverCheck) and one.when in when:
            yield one


# The order is: the checks of what the driver reports on startup, the checks with restarts, and a quiet time. The
# kubelet restarts after the quiet time, because a publisher may not notice the loss of slices that it has just written.
# The checks without restarts then fill the time until the slices are back. Checks that only wait are between those that
# prepare claims, because clients of Kubernetes' Go library save up some of the requests that they may send per second.
ORDER: tuple[DriverCheck | Occurrence, ...] = (
    *_made(registration, slices, prepare, unprepare, when=(Moment.START,)),
    *_made(situations, registration, cdi, prepare, unprepare, when=(KILL,)),
    *_made(unprepare, when=(KILL_ALONE,)),
    *_made(situations, prepare, unprepare, slices, when=(REBOOT,)),
    *_made(situations, when=(CORRUPTION_ALONE,)),
    *_made(state, situations, when=(CORRUPTION,)),  # the exits of a driver that does not start count for the first
    *_made(situations, unprepare, when=(LOSS,)),
    *_made(situations, when=(REGISTRATION,)),
    *_made(state, when=(Moment.CALM,)),
    *_made(situations, slices, health, process, when=(QUIET,)),
    KUBELET_RESTART,
    *_made(prepare, unprepare, registration, cdi, health, process, rolling_update, when=(Moment.CALM,)),
    *_made(cdi, registration, slices, when=(KUBELET_RESTART,)),
    *_made(slices, when=(KILL,)),  # a publisher may check its slices half a minute after it starts
    *_made(changes, when=(changes.CHANGE,)),
    *_made(situations, health, when=(OUTAGE,)),
    *_made(situations, slices, when=(LATE_API_SERVER,)),
    *_made(situations, slices, registration, process, rolling_update, when=(Moment.END, TERM)),
    *_made(slices, when=(Moment.CALM,)),  # the slowest
    *_made(whole_run, when=(Moment.END,)),
)

CHECKS: tuple[DriverCheck, ...] = tuple(item for item in ORDER if isinstance(item, DriverCheck))
"""All checks, in the order in which they run."""

CORE: tuple[DriverCheck, ...] = tuple(check for check in CHECKS if check.is_core)
"""The checks in a default run."""
