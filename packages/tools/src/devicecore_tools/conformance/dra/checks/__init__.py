"""The checks for DRA drivers, one module for each group, and the watches that one group alone needs.

Law: the order below is that in which checks are made. An event in it begins there, so that its wait overlaps with the
checks that follow; the other events happen at the first of their checks.
"""

from devicecore_tools.conformance.dra.checks import (
    cdi,
    health,
    prepare,
    process,
    registration,
    rolling_update,
    slices,
    state,
    unprepare,
)
from devicecore_tools.conformance.dra.checks.events import KUBELET_RESTART
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.steps import Occurrence
from devicecore_tools.conformance.model import Check

# First what the driver says at its start; then what needs restarts; then a quiet time. The kubelet's restart comes
# after it, because a publisher may not notice the loss of slices that it wrote just now, and the checks without
# restarts pass the time until the slices are back.
ORDER: tuple[Check[DriverUnderTest] | Occurrence, ...] = (
    *registration.AT_START,
    *slices.AT_START,
    *prepare.AT_START,
    *unprepare.AT_START,
    *registration.AFTER_A_KILL,
    *slices.AFTER_A_KILL,
    *cdi.AFTER_A_KILL,
    *prepare.ACROSS_A_KILL,
    *unprepare.ACROSS_A_KILL,
    *prepare.ACROSS_A_REBOOT,
    *unprepare.ACROSS_A_REBOOT,
    *state.ACROSS_A_CORRUPTION,
    *unprepare.ACROSS_A_LOSS,
    *state.KILLS,
    *slices.WHILE_QUIET,
    *health.WHILE_QUIET,
    *process.WHILE_QUIET,
    KUBELET_RESTART,
    *registration.CALM,
    *prepare.CALM,
    *unprepare.CALM,
    *cdi.CALM,
    *health.CALM,
    *process.CALM,
    *rolling_update.CALM,
    *registration.AFTER_A_KUBELET_RESTART,
    *slices.AFTER_A_WIPE,
    *slices.AT_THE_END,
    *registration.AT_THE_END,
    *process.AT_THE_END,
    *rolling_update.AT_THE_END,
    *slices.LAST,
)

CHECKS: tuple[Check[DriverUnderTest], ...] = tuple(item for item in ORDER if isinstance(item, Check))
"""All checks, in the order in which they are made."""

CORE: tuple[Check[DriverUnderTest], ...] = tuple(check for check in CHECKS if check.is_core)
"""The checks of a run by default."""
