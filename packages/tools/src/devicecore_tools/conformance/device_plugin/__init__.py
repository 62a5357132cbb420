"""The conformance checks for device plugins.

`CHECKS` lists every check, with its severity and the rule it follows from. `run` runs the checks on a plugin.
"""

from devicecore_tools.conformance.device_plugin.plugin import PluginUnderTest
from devicecore_tools.conformance.device_plugin.run import run
from devicecore_tools.conformance.device_plugin.settings import Settings
from devicecore_tools.conformance.device_plugin.suite import CHECKS

__all__ = ["CHECKS", "PluginUnderTest", "Settings", "run"]
