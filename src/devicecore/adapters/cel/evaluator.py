"""The program that evaluates expressions within limits, in its own process (see `limited`).

Law: the program answers one question after another, and exits when no process is left to ask questions.
"""

import fcntl
import os
import pickle
import resource
import select
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from devicecore.adapters.cel import CelSelectors
from devicecore.adapters.cel.limited import GIVEN_UP, LENGTH, MAX_MEMORY, READY
from devicecore.domain.allocation import Features, PoolDevice, SelectorError


def serve(watched: int, *, list_attributes: bool, max_seconds: int) -> None:
    """Report that all imports are done, and answer questions from standard input until its end.

    Nothing is ever written to the pipe `watched`, which closes when the asking process has ended.
    """
    _end_with(watched)
    selects = CelSelectors(Features(list_attributes=list_attributes), is_limited=False)
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if used := _data_of_process():
        resource.setrlimit(resource.RLIMIT_DATA, (used + MAX_MEMORY, used + MAX_MEMORY))
    answers.write(READY)
    answers.flush()
    while (question := _next(questions)) is not None:
        spent = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(spent.ru_utime + spent.ru_stime) + max_seconds  # the limit is in whole seconds, so round down
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        answer = pickle.dumps(_answer(selects, *question))
        answers.write(len(answer).to_bytes(LENGTH, "big") + answer)
        answers.flush()


def _end_with(watched: int) -> None:
    """Make the kernel end this process when the other end of a pipe is closed.

    No Python code runs here while an expression is evaluated, so this process could not notice that the asking process
    has ended. Instead, the kernel sends SIGIO to the pipe's owner, and SIGIO ends a process that does not handle the
    signal.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(watched, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(watched, fcntl.F_SETFL, fcntl.fcntl(watched, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([watched], [], [], 0)[0]:  # the other process ended before this request reached the kernel
        sys.exit()


def _next(questions: BinaryIO) -> tuple[str, PoolDevice | None] | None:
    try:
        question: tuple[str, PoolDevice | None] = pickle.load(questions)  # noqa: S301 - see above
    except (EOFError, OSError):
        return None
    return question


def _answer(selects: CelSelectors, expression: str, device: PoolDevice | None) -> tuple[bool, str, bool]:
    """Return the value of an expression, the error or "", and whether the error occurred during evaluation."""
    try:
        if device is None:
            selects.check(expression)
            return True, "", False
        return selects(expression, device), "", False
    except SelectorError as error:
        return False, error.problem, error.at_run_time
    except MemoryError:
        return False, GIVEN_UP, True


def _data_of_process() -> int:
    """Return the number of bytes of this process that count toward the limit, or 0 if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)
