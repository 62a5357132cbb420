"""The command, run as a process of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def devicecore() -> Run:
    """Run `devicecore` to its end; `stdin` is its input, and what is given by name its environment."""

    def run(*arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "devicecore", *arguments]
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
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="dc-") as directory:
        yield Path(directory)
