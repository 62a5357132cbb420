"""The conformance checks for device plugins.

`CHECKS` has every check, with its severity and the rule from which it follows. `run` runs them over a plugin.
"""

from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest
from devicecore_tools.conformance.device_plugin.run import run
from devicecore_tools.conformance.device_plugin.settings import Settings
from devicecore_tools.conformance.device_plugin.suite import CHECKS

__all__ = ["CHECKS", "PluginUnderTest", "Settings", "run"]
