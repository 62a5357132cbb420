"""Conformance checks: what Kubernetes expects of a device plugin, tested against a running one in any language.

`model`, `runner` and `reports` know checks, results and reports of anything. `device_plugin` has the checks for device
plugins and runs them. It needs gRPC, so neither this package nor `devicecore.testing` imports it.
"""

from devicecore.conformance.model import Abort, Check, Failure, Report, Result, Severity, Skip, Verdict, check
from devicecore.conformance.runner import run_checks

__all__ = ["Abort", "Check", "Failure", "Report", "Result", "Severity", "Skip", "Verdict", "check", "run_checks"]
