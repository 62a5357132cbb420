"""Kubernetes' own programs, as built by `make peers`, and the processes that run them.

Law: after `Program.stop`, none of the program's processes remain, and its output can still be read.
"""

import ctypes
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

from attrs import define, field, frozen

from tools.make_peers import default_version, problem_of, program

T = TypeVar("T")

_GRACE = 10.0  # seconds within which a program must end after SIGTERM
_PORTS = range(15_000, 30_000)
_LOOK_AGAIN = 0.1  # seconds between polls of something that sends no event


class RealClusterError(Exception):
    """Part of a real cluster is missing or does not work as expected."""


class EndedError(RealClusterError):
    """A program has exited on its own."""


@frozen
class Programs:
    """The programs that `make peers` builds for one version of Kubernetes.

    Attributes:
        version: the version of Kubernetes, such as `1.37.2`.
    """

    version: str

    @classmethod
    def built(cls) -> Self:
        """Return the programs for the default version, or for the version in the environment variable KUBERNETES."""
        return cls(os.environ.get("KUBERNETES") or default_version())

    def check(self, names: Iterable[str]) -> None:
        """Raise RealClusterError if one of the programs is missing, or older than its sources."""
        if problems := [problem for name in names if (problem := problem_of(name, self.version))]:
            go = "" if shutil.which("go") else " `make peers` needs Go, which is not on PATH: https://go.dev/dl/"
            raise RealClusterError(f"{'; '.join(problems)}. Run `make peers` first.{go}")

    def path(self, name: str) -> str:
        """Return the path of a program. Raise RealClusterError if the program is missing, or older than its sources."""
        self.check([name])
        return str(program(name, self.version))


def free_port() -> int:
    """Return a free port on the loopback address.

    The port is not in the kernel's ephemeral range, because another program could get such a port before the intended
    program starts.
    """
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_for(expected: str, look: Callable[[], T | None], timeout: float = 60.0) -> T:
    """Call `look` until it returns a truthy value, and return that value.

    Raises RealClusterError after `timeout` seconds. The message contains `expected`, and the OSError of the last call,
    if any.
    """
    end, problem = time.monotonic() + timeout, ""
    while True:
        try:
            if found := look():
                return found
            problem = ""
        except OSError as error:
            problem = f": {error}"
        if time.monotonic() > end:
            raise RealClusterError(f"expected {expected} within {timeout:g} s{problem}")
        time.sleep(_LOOK_AGAIN)


_libc = ctypes.CDLL(None, use_errno=True)
_SET_PARENT_DEATH_SIGNAL = 1  # an option of prctl(2)


def _end_with_parent() -> None:
    """Make the kernel end this process when its parent ends.

    Otherwise, a run or a pytest worker that is killed would leave whole control planes behind.
    """
    _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)


@define
class Program:
    """A process that can be started, stopped, killed, paused and started again, and whose output is appended to a file.

    Attributes:
        name: the program's name in errors and in the log.
        command: the program and its arguments.
        directory: the directory that contains the program's output and its working directory.
        environment: additional environment variables.
    """

    name: str
    command: Sequence[str]
    directory: Path
    environment: Mapping[str, str] = field(factory=dict)
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def log(self) -> Path:
        """The file with the program's output."""
        return self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """The process id. Raises RealClusterError if the program was not started."""
        if self._process is None:
            raise RealClusterError(f"{self.name} was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the program. Do nothing if the program is already running."""
        if self.is_running:
            return
        work = self.directory / f"{self.name}.work"  # a kubelet removes files from its working directory
        work.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            output.write(f"$ {shlex.join(self.command)}\n".encode())
            output.flush()
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=work,
                env={**os.environ, **self.environment},
                start_new_session=True,  # so that only we pass on Ctrl-C, and the children end with the program
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it only makes a system call
            )

    def stop(self, grace: float = _GRACE) -> None:
        """End the program with SIGTERM, and with SIGKILL after `grace` seconds.

        Do nothing if the program is not running.
        """
        if self._process is None:
            return
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        self.kill()

    def kill(self) -> None:
        """End the program and its children with SIGKILL."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def pause(self) -> None:
        """Freeze the program, and wait until all of its threads have stopped. Its connections stay open."""
        self.signal(signal.SIGSTOP)
        with suppress(ChildProcessError):  # the program has ended
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let the program continue after `pause`."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def last_output(self, lines: int = 15) -> str:
        """Return the last lines that the program printed."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def wait_for(self, expected: str, look: Callable[[], T | None], timeout: float = 60.0) -> T:
        """Wait like the function `wait_for`, but raise RealClusterError at once if the program has ended."""

        def still() -> T | None:
            if not self.is_running:
                raise EndedError(f"{self.name} has ended; expected {expected}:\n{self.last_output()}")
            return look()

        try:
            return wait_for(expected, still, timeout)
        except EndedError:
            raise
        except RealClusterError as error:
            raise RealClusterError(f"{error}; {self.name} printed:\n{self.last_output()}") from error
