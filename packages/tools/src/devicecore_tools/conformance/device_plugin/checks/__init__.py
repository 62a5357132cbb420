"""The checks for device plugins that are not in the table of situations: one module for each group.

Law: a check tests one thing. The checks run in the order of the modules in `ALONE`, and in each module from top to
bottom. To add a check, write a function at the right place in its module.
"""

from devicecore_tools.conformance.device_plugin.checks import (
    allocate,
    ending,
    health,
    optional_calls,
    registration,
    restarts,
)
from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest
from devicecore_tools.conformance.model import Check

ALONE: tuple[Check[PluginUnderTest], ...] = tuple(
    one
    for module in (registration, allocate, optional_calls, restarts, health, ending)
    for one in vars(module).values()
    if isinstance(one, Check)
)
"""The checks that are not in the table of situations."""
