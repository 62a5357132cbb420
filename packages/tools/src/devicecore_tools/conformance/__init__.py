"""Conformance checks, which test whether a running device plugin or DRA driver does what Kubernetes expects.

`model`, `runner` and `reports` run and report checks for any subject. `device_plugin` contains the checks for device
plugins, and `dra` those for DRA drivers. These two packages need gRPC, so this package imports neither of them.
"""

from devicecore_tools.conformance.model import Abort, Check, Failure, Report, Result, Severity, Skip, Verdict, check
from devicecore_tools.conformance.runner import run_checks

__all__ = ["Abort", "Check", "Failure", "Report", "Result", "Severity", "Skip", "Verdict", "check", "run_checks"]
