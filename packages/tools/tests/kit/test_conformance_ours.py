"""A plugin that devicecore serves fails no check, with Register and with the plugin watcher."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from devicecore_tools.conformance import Report, Verdict
from devicecore_tools.conformance.device_plugin import run
from tests.kit.faults import QUICK

OURS = """
import sys
from devicecore import PluginOptions
from devicecore.adapters.grpc_unix import run_plugin
from devicecore.plugins.simulated import SimulatedPlugin

plugin = SimulatedPlugin("example.com/gpu")
plugin.options = PluginOptions(pre_start_required=True)
run_plugin(plugin, **{sys.argv[1]: sys.argv[2]})
"""


def run_checks_on(argument: str) -> Report:
    command = [sys.executable, "-c", OURS, argument, "{dir}"]
    return run(command, settings=QUICK, registry=argument == "registry")


@pytest.mark.slow
def test_our_plugins_pass_every_check() -> None:
    with ThreadPoolExecutor() as both:  # concurrently, because both runs spend most of their time waiting
        registering, watched = both.map(run_checks_on, ("directory", "registry"))
    for report in (registering, watched):
        assert {result.name: result.actual for result in report.failures} == {}
        assert report.subject == "example.com/gpu, 10 devices"
    # Simulated devices have no device nodes, no preferences, and no command that changes their health. The plugin
    # watcher considers each socket a plugin.
    assert sum(result.verdict is Verdict.SKIPPED for result in watched.results) == 51
