"""All checks for device plugins, in the order in which they run.

Law: checks that review the whole run come after all checks that restart something, and the plugin's shutdown comes
last.
"""

from devicecore_tools.conformance.device_plugin.checks import ALONE
from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest
from devicecore_tools.conformance.device_plugin.situations import CHECKS as CELLS
from devicecore_tools.conformance.device_plugin.situations import KUBELET_RESTART
from devicecore_tools.conformance.model import Check

_FIRST_OF_HEALTH = next(number for number, one in enumerate(ALONE) if "health" in one.name and "known" not in one.name)

_EARLY, _LATER = ALONE[:_FIRST_OF_HEALTH], ALONE[_FIRST_OF_HEALTH:]
_AFTER_A_RESTART = (
    "registers-once-after-a-kubelet-restart",
    "returns-after-many-restarts",
    "waits-for-a-late-kubelet",
    "ends-on-sigterm-without-a-kubelet",
)
"""Checks that run after the first restarts of the kubelet. The last two start a new process."""

CHECKS: tuple[Check[PluginUnderTest], ...] = (
    *(one for one in _EARLY if one.name not in _AFTER_A_RESTART),
    *CELLS[KUBELET_RESTART],
    *(one for name in _AFTER_A_RESTART for one in _EARLY if one.name == name),
    *(one for event, cells in CELLS.items() if event is not KUBELET_RESTART for one in cells),
    *_LATER,
)
"""All checks.

Later checks have more lasting effects: streams end, processes are killed, health may stay changed, and
finally the plugin exits.
"""

LAST: tuple[str, ...] = (
    "does-not-grow-with-time",
    "returns-with-all-its-resources",
    "lists-devices-soon",
    "repeats-few-lists",
    "keeps-its-ids",
    "keeps-its-answers",
    "keeps-its-preferences",
    "keeps-its-devices",
    "keeps-its-numa-nodes",
    "ends-no-stream",
    "gives-nothing-that-has-vanished",
    "prints-no-secrets",
    "stays-up",
    "ends-on-sigterm",
    "removes-its-socket",
    "keeps-what-it-has-mounted",
)
"""The names of the checks that review the whole run, and of those that stop the plugin."""
