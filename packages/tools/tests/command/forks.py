"""`devicecore` in forks of one process that has imported it, because starting Python a hundred times takes long.

A fork has streams, an environment, signals and an exit status of its own. Only the imported modules are shared.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from devicecore_tools.command.commands import PLACES
from devicecore_tools.command.main import main

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "pytest",  # which a fork would import if it is the main module
        *(place.partition(":")[0] for place in PLACES.values()),
        "devicecore_tools.node.assembly",  # which imports gRPC, but does not use it, so that a fork may
        "devicecore.domain.checkpoint",
        "devicecore.wire.conversion",
        "devicecore.system.documents",
        __name__,
    ]
)


def run_in_fork(arguments: Sequence[str], stdin: str, timeout: float) -> "subprocess.CompletedProcess[str]":
    """Run `devicecore` to its end.

    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout` seconds.
    """
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / name for name in ("stdin", "stdout", "stderr")]
        for path in paths:
            path.write_text(stdin if path.name == "stdin" else "")
        process = _FORKS.Process(target=_run, args=(arguments, paths, Path.cwd(), dict(os.environ)))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), timeout)
        status = process.exitcode
        process.close()
        return subprocess.CompletedProcess(arguments, status, *(path.read_text() for path in paths[1:]))


def _run(arguments: Sequence[str], paths: Sequence[Path], directory: Path, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    for number, path in enumerate(paths):
        file = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))  # noqa: SIM115 - as Python opens them
    sys.exit(main(list(arguments)))
