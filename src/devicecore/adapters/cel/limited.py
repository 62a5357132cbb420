"""Evaluation of CEL expressions in a process with limits.

Laws: an expression takes at most `MAX_MEMORY` bytes and `MAX_SECONDS` of processor time, or it is a `SelectorError`.
The process ends with the one that has started it, and nothing of it is left behind.

Most expressions compare attributes, and cannot take more than a small multiple of their length: they need no process
(`is_harmless`).
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import Lock

from devicecore.domain.allocation import Features, PoolDevice, SelectorError

MAX_MEMORY = 100 * 1024 * 1024
"""Bytes that one expression may take, beyond the library itself."""

MAX_SECONDS = 5
"""Seconds of processor time for one expression, with which Kubernetes evaluates about as much as its limit of cost."""

GIVEN_UP = f"it takes more than {MAX_MEMORY // 1024**2} MiB of memory or {MAX_SECONDS} s, and was given up"

_HARMLESS = frozenset(
    (
        *("has", "size", "contains", "startsWith", "endsWith", "matches", "in", "dyn", "type"),
        *("quantity", "isQuantity", "semver", "isSemver", "compareTo", "isGreaterThan", "isLessThan"),
        *("add", "sub", "sign", "isInteger", "asInteger", "asApproximateFloat", "major", "minor", "patch"),
        *("bool", "bytes", "double", "duration", "int", "string", "timestamp", "uint"),
        *("orValue", "or", "hasValue", "value", "of", "none", "ofNonZeroValue"),
        *("lowerAscii", "upperAscii", "trim", "substring", "charAt", "indexOf", "lastIndexOf"),
        *("ip", "isIP", "cidr", "isCIDR", "containsIP", "containsCIDR", "family", "masked", "prefixLength"),
    )
)
"""Functions whose results are not longer than their arguments."""
_MAX_PATTERNS = 4
"""Regular expressions of an expression that needs no process: each may take some megabytes."""
_MAX_HARMLESS = 2_000
"""Tokens of an expression that needs no process."""


def is_harmless(tokens: Sequence[str]) -> bool:
    """Return whether an expression cannot take much memory or time: it has no loops, and makes nothing long."""
    if len(tokens) > _MAX_HARMLESS or tokens.count("matches") > _MAX_PATTERNS:
        return False
    calls = (name for name, following in pairwise(tokens) if following == "(")
    return all(name in _HARMLESS or not name.isidentifier() for name in calls)


_PROGRAM = "devicecore.adapters.cel.evaluator"
READY = b"ready"
"""What the process says when it can be asked."""


class NoProcessError(SelectorError):
    """The process could not be started, so that nothing is known of the expression."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the process that evaluates such expressions did not start: {reason}", at_run_time=False)


class LimitedProcess:
    """A process that evaluates expressions one by one. It is started when it is needed, and again after it has died."""

    def __init__(self, features: Features, *, max_seconds: int = MAX_SECONDS) -> None:
        self._arguments = f"list_attributes={features.list_attributes}, max_seconds={max_seconds}"
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ender: Callable[[], object] = _nothing

    def ask(self, expression: str, device: PoolDevice | None) -> bool:
        """Return the value of an expression for a device. Without a device it is only compiled, and the result is true.

        Raises:
            SelectorError: it is not valid, it has no value, or it would take too much.
        """
        # What else a device has, such as functions, need not be known there.
        small = device and PoolDevice(device.key, device.attributes, device.capacity, is_shared=device.is_shared)
        with self._lock:
            is_new = self._process is None
            answer = self._answer((expression, small))
            if answer is None and not is_new:
                answer = self._answer((expression, small))  # what it did before may have taken the memory
        if answer is None:
            raise SelectorError(GIVEN_UP)
        value, problem, at_run_time = answer
        if problem:
            raise SelectorError(problem, at_run_time=at_run_time)
        return value

    def _answer(self, question: object) -> tuple[bool, str, bool] | None:
        """Return what the process answers. It is None if that has died, or has no memory left.

        Raises NoProcessError if it cannot be started, and SelectorError if the question takes too much time.
        """
        process = self._process or self._start()
        try:
            answer = _exchange(process, question)
        except (OSError, EOFError, pickle.UnpicklingError):
            self._end()
            if process.returncode == -signal.SIGXCPU:
                raise SelectorError(GIVEN_UP) from None
            return None
        except BaseException:
            self._end()  # an answer may be on its way that nobody waits for
            raise
        if answer[1] == GIVEN_UP:
            self._end()
            return None
        return answer

    def _start(self) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join(one for one in sys.path if one)
        try:
            process = subprocess.Popen(  # noqa: S603 - this Python
                [sys.executable, "-P", "-c", f"from {_PROGRAM} import serve; serve({self._arguments})"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # a Ctrl-C is for the process that asks
            )
        except OSError as error:
            raise NoProcessError(str(error)) from None
        self._process, self._ender = process, weakref.finalize(self, _end_process, process)
        try:
            is_ready = process.stdout is not None and process.stdout.read(len(READY)) == READY
        except BaseException:
            self._end()
            raise
        if not is_ready:
            self._end()
            reason = f"{sys.executable} ended"
            raise NoProcessError(reason)
        return process

    def _end(self) -> None:
        self._process = None
        self._ender()


def _end_process(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()


def _nothing() -> None:
    """End no process, because there is none."""


def _exchange(process: "subprocess.Popen[bytes]", question: object) -> tuple[bool, str, bool]:
    questions, answers = process.stdin, process.stdout
    if questions is None or answers is None:
        raise EOFError
    pickle.dump(question, questions)
    questions.flush()
    answer: tuple[bool, str, bool] = pickle.load(answers)  # noqa: S301 - of the own process
    return answer
