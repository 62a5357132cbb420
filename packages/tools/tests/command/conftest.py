"""The command, run as a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forks import Fork

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def devicecore() -> Run:
    """Run `devicecore` to its end; `stdin` is its input, and what is given by name its environment.

    A command with an environment is started anew, because some variables matter only when Python starts.
    """

    def run(*arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
        if not environment:
            with Fork(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                try:
                    output, errors = process.communicate(stdin, timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise
            return subprocess.CompletedProcess(arguments, process.returncode, output, errors)
        command = [sys.executable, "-m", "devicecore_tools", *arguments]
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def root(directory: Path) -> Path:
    """A directory with those of plugins and of pods."""
    (directory / "device-plugins").mkdir(0o750)
    (directory / "pods").mkdir()
    return directory
