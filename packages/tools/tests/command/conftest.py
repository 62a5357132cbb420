"""Runs the command, in a separate process if necessary."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from devicecore_tools.command.main import main
from tests.forks import Fork

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def run_here(arguments: Sequence[str], stdin: str = "") -> "subprocess.CompletedProcess[str]":
    """Run `devicecore` in this process."""
    raw = {"stdin": BytesIO(stdin.encode()), "stdout": BytesIO(), "stderr": BytesIO()}
    with pytest.MonkeyPatch.context() as patched:
        for name, stream in raw.items():
            patched.setattr(sys, name, TextIOWrapper(stream, "utf-8", write_through=True))
        try:
            status = main(arguments)
        except SystemExit as error:
            status = int(error.code or 0)
        output, errors = (raw[name].getvalue().decode() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(arguments, status, output, errors)


@pytest.fixture(scope="session")
def devicecore() -> Run:
    """Return a function that runs `devicecore`.

    The function's argument `stdin` is the input, and its keyword arguments are environment variables. `devicecore
    checkpoint` runs in this process, because it only reads files and prints. A command with environment variables runs
    in a new process, because some variables matter only when Python starts.
    """

    def run(*arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
        if not environment and arguments[:1] == ("checkpoint",):
            return run_here(arguments, stdin)
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
    """A directory that contains the directories of plugins and pods."""
    (directory / "device-plugins").mkdir(0o750)
    (directory / "pods").mkdir()
    return directory
