"""All checks for device plugins, in the order in which they run.

Law: checks that review the whole run come after all checks that restart something, and the plugin's shutdown comes
last.
"""

from devicecore_tools.conformance.device_plugin.checks import ALONE
from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest
from devicecore_tools.conformance.device_plugin.situations import CHECKS as CELLS
from devicecore_tools.conformance.model import Check

_FIRST_OF_HEALTH = next(number for number, one in enumerate(ALONE) if "health" in one.name and "known" not in one.name)

CHECKS: tuple[Check[PluginUnderTest], ...] = (*ALONE[:_FIRST_OF_HEALTH], *CELLS, *ALONE[_FIRST_OF_HEALTH:])
"""All checks.

Later checks have more lasting effects: streams end, health may stay changed, and finally the plugin exits.
"""

LAST: tuple[str, ...] = (
    "does-not-grow-with-time",
    "returns-with-all-its-resources",
    "lists-devices-soon",
    "keeps-its-ids",
    "keeps-its-answers",
    "keeps-its-preferences",
    "keeps-its-devices",
    "keeps-its-numa-nodes",
    "stays-up",
    "ends-on-sigterm",
    "removes-its-socket",
    "keeps-what-it-has-mounted",
)
"""The names of the checks that review the whole run, and of those that stop the plugin."""
