"""Evaluation of CEL expressions in a process with limits.

Laws: evaluating an expression takes at most `MAX_MEMORY` bytes, `MAX_SECONDS` of CPU time and `MAX_WAIT` seconds, or
raises a `SelectorError`. The process exits when its parent exits, even if the parent is killed, and leaves nothing
behind. A fork of the parent starts its own evaluating process, and never ends the parent's evaluating process.

Most expressions only compare attributes, and cannot need more memory than a small multiple of their length. Such
expressions need no separate process (`is_harmless`).
"""

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import Lock

from devicecore.domain.allocation import Features, PoolDevice, SelectorError

MAX_MEMORY = 100 * 1024 * 1024
"""Bytes that one expression may use, in addition to those of the library itself."""

MAX_SECONDS = 5
"""Seconds of CPU time for one expression, roughly what Kubernetes' cost limit allows."""

MAX_WAIT = 30.0
"""Seconds to wait for an answer: a process that is stopped or gets no CPU time uses none of its `MAX_SECONDS`."""

GIVEN_UP = f"its evaluation took more than {MAX_MEMORY // 1024**2} MiB of memory or {MAX_SECONDS} s, and was abandoned"

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
"""Functions whose results are short, or not much longer than their arguments."""
_MAX_PATTERNS = 4
"""The maximum number of regular expressions in an expression that needs no process: each may take a few megabytes."""
_MAX_HARMLESS = 2_000
"""The maximum number of tokens in an expression that needs no separate process."""


def is_harmless(tokens: Sequence[str]) -> bool:
    """Return whether an expression has no loops and creates no long values, and so cannot need much memory or time."""
    if len(tokens) > _MAX_HARMLESS or tokens.count("matches") > _MAX_PATTERNS:
        return False
    calls = (name for name, following in pairwise(tokens) if following == "(")
    return all(name in _HARMLESS or not name.isidentifier() for name in calls)


_PROGRAM = "devicecore.adapters.cel.evaluator"
READY = b"ready"
"""The process sends this when it is ready."""

LENGTH = 8
"""The size in bytes of the number that precedes an answer and gives the answer's length."""


class NoProcessError(SelectorError):
    """The process could not be started, so nothing is known about the expression."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the process that evaluates expensive expressions did not start: {reason}", at_run_time=False)


class LimitedProcess:
    """A process that evaluates expressions one by one. The process is started on demand, and restarted if it dies."""

    def __init__(self, features: Features, *, max_seconds: int = MAX_SECONDS) -> None:
        self._arguments = f"list_attributes={features.list_attributes}, max_seconds={max_seconds}"
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ender: Callable[[], object] = _nothing
        _instances.add(self)

    def ask(self, expression: str, device: PoolDevice | None) -> bool:
        """Return the value of an expression for a device.

        Without a device, the expression is only compiled, and the result is true.

        Raises:
            SelectorError: the expression is not valid, has no value, or would take too much memory or time.
        """
        # The evaluating process does not need the device's other fields, such as functions.
        small = device and PoolDevice(device.key, device.attributes, device.capacity, is_shared=device.is_shared)
        with self._lock:
            is_new = self._process is None
            answer = self._answer((expression, small))
            if answer is None and not is_new:
                answer = self._answer((expression, small))  # earlier questions may have used up the memory
        if answer is None:
            raise SelectorError(GIVEN_UP)
        value, problem, at_run_time = answer
        if problem:
            raise SelectorError(problem, at_run_time=at_run_time)
        return value

    def forget(self) -> None:
        """Abandon the process in a fork. Otherwise, parent and child would read each other's answers from one pipe.

        Another thread, which does not exist in the child, may have held the lock while the parent forked.
        """
        self._lock = Lock()
        if self._process is not None:
            self._end()

    def _answer(self, question: object) -> tuple[bool, str, bool] | None:
        """Return the process's answer, or None if the process has died or is out of memory.

        Raises NoProcessError if the process cannot be started, and SelectorError if the question takes too much time.
        """
        process = self._process or self._start()
        try:
            answer = _exchange(process, question)
        except TimeoutError:
            self._end()
            raise SelectorError(GIVEN_UP) from None
        except (OSError, EOFError, pickle.UnpicklingError):
            self._end()
            if process.returncode == -signal.SIGXCPU:
                raise SelectorError(GIVEN_UP) from None
            return None
        except BaseException:
            self._end()  # an answer that no one is waiting for any longer may be on its way
            raise
        if answer[1] == GIVEN_UP:
            self._end()
            return None
        return answer

    def _start(self) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join(one for one in sys.path if one)
        ends: tuple[int, ...] = ()
        try:
            ends = watched, held = os.pipe()
            process = subprocess.Popen(  # noqa: S603 - this Python
                [sys.executable, "-P", "-c", f"from {_PROGRAM} import serve; serve({watched}, {self._arguments})"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=(watched,),
                start_new_session=True,  # Ctrl-C is meant for the asking process
            )
        except OSError as error:
            for end in ends:
                os.close(end)
            raise NoProcessError(str(error)) from None
        os.close(watched)
        self._process, self._ender = process, weakref.finalize(self, _end_process, process, held, os.getpid())
        try:
            is_ready = _read(process, len(READY)) == READY
        except (EOFError, OSError):
            is_ready = False
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


_instances: "weakref.WeakSet[LimitedProcess]" = weakref.WeakSet()


def _forget_all() -> None:
    for one in list(_instances):
        one.forget()


os.register_at_fork(after_in_child=_forget_all)


def _end_process(process: "subprocess.Popen[bytes]", held: int, parent: int) -> None:
    """Close our ends of the pipes, and end `process` if it is a child of this process."""
    is_own = parent == os.getpid()
    if is_own:
        process.kill()
    with contextlib.suppress(OSError):
        os.close(held)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if is_own:
        process.wait()
    else:
        process.returncode = 0  # in a fork, the process is not our child, so we cannot wait for it


def _nothing() -> None:
    """Do nothing, because there is no process to end."""


def _exchange(process: "subprocess.Popen[bytes]", question: object) -> tuple[bool, str, bool]:
    """Ask a question and return the answer. Raises EOFError or OSError if no answer comes."""
    if process.stdin is None:
        raise EOFError
    pickle.dump(question, process.stdin)
    process.stdin.flush()
    size = int.from_bytes(_read(process, LENGTH), "big")
    answer: tuple[bool, str, bool] = pickle.loads(_read(process, size))  # noqa: S301 - of the own process
    return answer


def _read(process: "subprocess.Popen[bytes]", size: int) -> bytes:
    """Return the next `size` bytes. Raises EOFError if fewer bytes come, and TimeoutError after `MAX_WAIT`."""
    if process.stdout is None:
        raise EOFError
    descriptor, deadline, found = process.stdout.fileno(), time.monotonic() + MAX_WAIT, b""
    ready = select.poll()  # not `select.select`, which refuses descriptors above 1,023
    ready.register(descriptor, select.POLLIN)
    while len(found) < size:
        if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        part = os.read(descriptor, size - len(found))
        if not part:
            raise EOFError
        found += part
    return found
