"""The checks of `devicecore conformance`: what is expected of a device plugin, whatever it is written in.

`checks` has every check, each with its severity and the sentence of the API it follows from; `run` puts a plugin to
them. Like all that talks gRPC, this package is imported by those who need it and not by `devicecore.testing`.
"""

from devicecore.conformance.checks import CHECKS
from devicecore.conformance.model import Check, Report, Result, Severity, Verdict, check
from devicecore.conformance.runner import run
from devicecore.conformance.subject import Settings, Subject

__all__ = ["CHECKS", "Check", "Report", "Result", "Settings", "Severity", "Subject", "Verdict", "check", "run"]
