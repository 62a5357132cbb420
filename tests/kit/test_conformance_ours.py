"""What `serve_plugin` serves passes every check, whether it registers or waits to be found."""

import sys
from concurrent.futures import ThreadPoolExecutor

from devicecore import conformance
from devicecore.conformance import Report, Verdict
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


def put_to_the_checks(way: str) -> Report:
    command = [sys.executable, "-c", OURS, way, "{dir}"]
    return conformance.run(command, settings=QUICK, registry=way == "registry")


def test_ours_pass_everything() -> None:
    with ThreadPoolExecutor() as both:  # they are waiting most of the time
        registering, waiting = both.map(put_to_the_checks, ("directory", "registry"))
    for report in (registering, waiting):
        assert {result.check.name: result.came for result in report.results if result.failed} == {}
        assert (report.resource, report.devices) == ("example.com/gpu", 10)
    # Simulated devices have no device nodes, no preferences, and nothing provokes their health.
    assert sum(result.verdict is Verdict.SKIPPED for result in waiting.results) == 7
