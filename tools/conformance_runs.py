"""Run `devicecore conformance` on a program as a user would, for the tools that compare many programs."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def report_of(
    kind: str,
    options: Sequence[str],
    program: Sequence[str],
    *,
    within: Sequence[str] = (),
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any] | None:
    """Run the checks on a program.

    Args:
        kind: `plugin` or `driver`.
        options: options of `devicecore conformance KIND`.
        program: the command that starts the plugin or driver.
        within: a command that wraps the checks, such as one that creates a namespace.
        directory: the working directory, by default the current one.
        environment: all environment variables of the checks, by default those of this process.

    Returns:
        The report, or None if the checks printed the reason for its absence to stderr.
    """
    checks = [sys.executable, "-m", "devicecore_tools", "conformance", kind, "--json", *options, "--", *program]
    ran = subprocess.run([*within, *checks], check=False, stdout=subprocess.PIPE, cwd=directory, env=environment)
    try:
        report: dict[str, Any] = json.loads(ran.stdout)
    except ValueError:
        return None
    return report
