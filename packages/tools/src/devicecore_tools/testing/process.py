"""A device plugin in any language, as a separate process.

Law: the output of the process is kept, and after `stop` no process, thread or pipe of its session remains.
"""

import errno
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import Signals
from typing import IO

from attrs import frozen

from devicecore.domain.checks import expected, items
from devicecore.domain.errors import DeviceCoreError
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore.system.arguments import checks_arguments
from devicecore.system.environment import inherited_environment

POD_UID = "11111111-1111-4111-8111-111111111111"
"""The default UID of the pod in which a DRA driver supposedly runs."""

DRIVER_VARIABLES: Mapping[str, str] = {
    "KUBECONFIG": "{kubeconfig}",
    "NODE_NAME": "{node}",
    "CDI_ROOT": "{cdi}",
    "KUBELET_PLUGINS_DIRECTORY_PATH": "{plugins}",
    "KUBELET_REGISTRAR_DIRECTORY_PATH": "{registry}",
}
"""Environment variables of a DRA driver. The last three variables are for Go drivers based on the example driver."""

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_CRASH = re.compile(rf"panic:|fatal error:|SIG[A-Z]+: |F[01]\d[0-3]\d |{re.escape(_TRACEBACK)}")
_LINES_KEPT = 1000
_MAX_KEPT = 1_000_000  # maximum total length of the stored lines
_LINES_SHOWN = 15
_MAX_SHOWN = 20_000  # maximum length of `last_output`
_MAX_LINE = 65_536  # bytes; longer lines are stored in parts
_FREEZING = 30.0  # seconds for the threads of a process to stop, on a busy machine, too
_LAST_OUTPUT = 1.0  # seconds to read the last output of the process if one of its daemons keeps the pipe open
_TICKS = os.sysconf("SC_CLK_TCK")


class PluginProcessError(DeviceCoreError):
    """A plugin's process could not be started, or did not behave as expected."""


@frozen
class CannotRunError(PluginProcessError):
    """The command cannot be run. `cause` is the operating system's reason."""

    command: tuple[str, ...]
    cause: str

    def __str__(self) -> str:
        return f"cannot run `{shlex.join(self.command)}`: {self.cause}{_hint(self.command, self.cause)}"


def _hint(command: Sequence[str], cause: str) -> str:
    """Return advice for a command that cannot be run as it is written, or an empty string."""
    program = command[0] if command else ""
    if len(command) == 1 and len(program.split()) > 1:
        return ". It is a single word that contains spaces: pass each word as a separate argument"
    if Path(program).is_dir():
        return ". It is a directory; name the program in it"
    if program and "/" not in program and Path(program).is_file():
        return f". To run the file in this directory, write ./{program}"
    if Path(program).is_file() and cause in _NOT_A_PROGRAM:
        return f". {_NOT_A_PROGRAM[cause]}"
    return ""


_NOT_A_PROGRAM = {
    os.strerror(errno.EACCES): "Make the file executable with chmod +x, or write its interpreter first, such as python",
    os.strerror(errno.ENOEXEC): "Write its interpreter first, such as python, or add a #! line to the file",
}


@frozen
class ExitedEarlyError(PluginProcessError):
    """The plugin's process exited on its own. `status` is its exit status, or the negated signal number."""

    command: tuple[str, ...]
    status: int
    output: str

    @property
    def how(self) -> str:
        """How the process ended: `exited early with status 1`, or `was ended by SIGSEGV`."""
        if self.status < 0:
            return f"was ended by {_signal_name(-self.status)}"
        return f"exited early with status {self.status}"

    def __str__(self) -> str:
        return f"`{shlex.join(self.command)}` {self.how}, {_last(self.output)}"


def _last(output: str) -> str:
    return f"last output: {output}" if output else "it printed nothing"


@frozen
class StillRunningError(PluginProcessError, TimeoutError):
    """The plugin's process did not exit in time. `timeout` is in seconds."""

    command: tuple[str, ...]
    timeout: float
    output: str

    def __str__(self) -> str:
        wanted = f"expected `{shlex.join(self.command)}` to exit within {self.timeout:g} s"
        return f"{wanted}; it is still running, {_last(self.output)}"


@frozen
class NotPrintedError(PluginProcessError, TimeoutError):
    """The plugin's process did not print the expected text in time. `timeout` is in seconds."""

    text: str
    timeout: float
    output: str

    def __str__(self) -> str:
        return f"expected the plugin to print {self.text!r} within {self.timeout:g} s, {_last(self.output)}"


class PluginProcess(HasLifecycle):
    """A command that runs from `start` to `stop`. Its status and output can still be read afterwards.

    `start` raises `CannotRunError` if the program does not exist or is not executable. A second start does nothing,
    even if the process has exited on its own.

    In the command, `{dir}` is replaced by `directory`, and `{socket}` by the kubelet's socket there. The environment
    variables `DEVICE_PLUGIN_PATH` and `KUBELET_SOCKET` are set to the same paths.

    Args:
        command: the program and its arguments.
        directory: the kubelet's socket directory.
        placeholders: other strings to replace in the command, with their replacements.
        environment: additional environment variables.
        cwd: the working directory of the process.
        keep_open: file descriptors that the process inherits with the same numbers.
        changed: called from another thread after new output and when the process has exited.
    """

    @checks_arguments("command")
    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        directory: str | os.PathLike[str],
        *,
        placeholders: Mapping[str, str] = {},
        environment: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        keep_open: Sequence[int] = (),
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        where = str(directory)
        socket = str(Path(where) / "kubelet.sock")
        texts = {"{dir}": where, "{socket}": socket, **placeholders}
        for word in items(command, "command"):
            if not isinstance(word, str | os.PathLike):
                raise TypeError(expected("command", "a program and its arguments, each a string", word))
        self.command: tuple[str, ...] = tuple(with_texts(os.fspath(word), texts) for word in command)
        self._changed = changed
        self._cwd = cwd
        own = {"DEVICE_PLUGIN_PATH": where, "KUBELET_SOCKET": socket, **(environment or {})}
        self._environment = {**inherited_environment(), **own}
        self._keep_open = tuple(keep_open)
        self._lifecycle = Lifecycle(f"`{shlex.join(self.command)}`")
        self._lines: deque[str] = deque()
        self._kept = self._printed = 0
        self._changes = threading.Condition()
        self._ended = threading.Event()
        self._expected_to_end = False
        self._popen: subprocess.Popen[bytes] | None = None
        self._threads: list[threading.Thread] = []

    @checks_arguments()
    def stop(self, grace: float = 5.0) -> None:
        """Stop the process with SIGTERM and, after `grace` seconds, with SIGKILL. A second stop does nothing.

        A daemon that has left the process's session keeps running. The thread that reads the daemon's output ends when
        the daemon does.

        Raises:
            CalledFromInsideError: the caller is inside `changed`.
        """
        self._lifecycle.stop(partial(self._end, grace))

    def _begin(self) -> None:
        self._lines.clear()
        self._kept = 0
        self._ended.clear()
        self._expected_to_end = False
        # assigned before the process exists, so that `_end` finds it even after an interrupt
        self._popen = process = subprocess.Popen.__new__(subprocess.Popen)
        try:
            process.__init__(  # type: ignore[misc]  # for the reason above
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._cwd,
                env=self._environment,
                pass_fds=self._keep_open,
                start_new_session=True,  # so that the process's children can be killed with it
            )
        except OSError as error:
            self._popen = None
            raise CannotRunError(self.command, error.strerror or str(error)) from error
        assert process.stdout is not None, "it is a pipe"  # noqa: S101 - for mypy
        self._threads = [
            threading.Thread(target=self._read, args=(process.stdout,), name="devicecore-output", daemon=True),
            threading.Thread(target=self._watch, args=(process,), name="devicecore-watcher", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _end(self, grace: float = 0.0) -> None:
        process, threads = self._popen, [thread for thread in self._threads if thread.ident is not None]
        self._expected_to_end = True
        if process is not None and getattr(process, "pid", None) is not None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace)
            _kill(process)
        for thread in threads:
            thread.join(_LAST_OUTPUT)
        pipe = getattr(process, "stdout", None)
        if pipe is not None and not threads:  # otherwise, a thread has closed the pipe
            pipe.close()

    def __repr__(self) -> str:
        if self._popen is None:
            return f"<PluginProcess `{shlex.join(self.command)}`, not started>"
        state = "running" if self.status is None else f"status {self.status}"
        return f"<PluginProcess {self.pid} `{shlex.join(self.command)}`, {state}>"

    @property
    def pid(self) -> int:
        """The process id, even after the process has exited.

        Raises:
            NotStartedError: the process was not started.
        """
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, or None while the process is running.

        If a signal ended the process, the status is the negated signal number.

        Raises:
            NotStartedError: the process was not started.
        """
        return self._process.poll()

    @property
    def _process(self) -> "subprocess.Popen[bytes]":
        if self._popen is None:
            self._lifecycle.check_running()
        assert self._popen is not None, "it was started"  # noqa: S101 - for mypy
        return self._popen

    @property
    def output(self) -> str:
        """The last 1,000 lines, or the last megabyte, that the process printed on standard output and error."""
        with self._changes:
            return "\n".join(self._lines)

    @property
    def printed(self) -> int:
        """How many bytes the process has printed so far, including bytes that are no longer stored."""
        return self._printed

    @property
    def last_output(self) -> str:
        """The last 15 lines of `output`, or only the end of very long lines."""
        with self._changes:
            return "\n".join(tuple(self._lines)[-_LINES_SHOWN:])[-_MAX_SHOWN:]

    @property
    def crash(self) -> str:
        """The output of a crash, starting with a line such as `panic: ...`, or an empty string."""
        with self._changes:
            lines = tuple(self._lines)
        beginnings = [number for number, line in enumerate(lines) if _CRASH.match(line)]
        chained = {number + 3 for number, line in enumerate(lines) if line.startswith(_CHAINED)}
        first = next((one for one in beginnings if not lines[one].startswith(_TRACEBACK)), None)
        if first is None:  # a Python program may print tracebacks for exceptions that it has caught
            first = next((one for one in reversed(beginnings) if one not in chained), None)
        return "" if first is None else "\n".join(lines[first:])[:_MAX_SHOWN]

    @property
    def failure(self) -> ExitedEarlyError | None:
        """The error to raise if the process has exited on its own, or None."""
        if self._expected_to_end or self.status is None or not self._ended.is_set():
            return None
        return ExitedEarlyError(self.command, self.status, self.crash or self.last_output)

    @property
    def is_ending(self) -> bool:
        """Whether the process has exited, or this program has sent it a signal that may end it."""
        return self._expected_to_end or self.status is not None

    @property
    def cpu_seconds(self) -> float:
        """The processor time, in seconds, that the process and its running descendants have used so far."""
        # The process's own time, and the time of children that it has waited for.
        return sum(int(field) for pid in _session(self.pid) for field in _stat(pid)[11:15]) / _TICKS

    @property
    def queued_seconds(self) -> Mapping[str, float]:
        """How many seconds each thread of the process and its descendants has waited for a processor."""
        found: dict[str, float] = {}
        for path in (path for pid in _session(self.pid) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")):
            with suppress(OSError):  # the thread has exited
                found[path.parent.name] = int(path.read_text(encoding="utf-8").split()[1]) / 1e9
        return found

    @property
    def disk_bytes(self) -> int:
        """How many bytes the process and its descendants have read from disks and written to them."""
        total = 0
        for pid in _session(self.pid):
            with suppress(OSError):  # the process has exited, or the kernel does not count the bytes
                rows = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
                total += sum(int(row.split()[1]) for row in rows if row.startswith(("read_bytes", "write_bytes")))
        return total

    @property
    def descendants(self) -> tuple[int, ...]:
        """The ids of the process's running descendants, even if the process itself has exited."""
        return tuple(pid for pid in _session(self.pid) if pid != self.pid and _stat(pid)[:1] != ["Z"])

    @property
    def zombies(self) -> int:
        """How many of the process's descendants have ended without being waited for."""
        return sum(pid != self.pid and _stat(pid)[:1] == ["Z"] for pid in _session(self.pid))

    @checks_arguments()
    def wait_for_output(self, text: str, timeout: float = 30.0) -> str:
        """Wait for a line that contains `text`, and return that line. `timeout` is in seconds.

        Raises:
            NotPrintedError: no such line was printed before the timeout.
            ExitedEarlyError: the process exited without printing such a line.
        """
        __tracebackhide__ = True

        def found() -> str | None:
            return next((line for line in self._lines if text in line), None)

        with self._changes:
            self._changes.wait_for(lambda: found() is not None or self._ended.is_set(), timeout)
            line = found()
        if line is not None:
            return line
        if self.status is not None:
            raise ExitedEarlyError(self.command, self.status, self.last_output)
        raise NotPrintedError(text, timeout, self.last_output)

    @checks_arguments()
    def wait(self, timeout: float = 30.0) -> int:
        """Wait until the process has exited, and return the exit status. `timeout` is in seconds.

        Raises:
            StillRunningError: the process did not exit before the timeout.
        """
        __tracebackhide__ = True
        if not self._ended.wait(timeout):
            raise StillRunningError(self.command, timeout, self.last_output)
        return self._process.wait()

    @checks_arguments()
    def signal(self, number: Signals) -> None:
        """Send the process a signal. Do nothing if the process has exited."""
        if number not in {signal.SIGSTOP, signal.SIGCONT}:
            self._expected_to_end = True
        self._process.send_signal(number)

    def terminate(self) -> None:
        """Send SIGTERM, as Kubernetes does when it ends a pod."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process and its descendants, and wait until they have exited."""
        self._expected_to_end = True
        _kill(self._process)
        self._ended.wait()

    def pause(self) -> None:
        """Freeze the process with SIGSTOP: its connections stay open, and from now on it answers no call."""
        if self.status is None:
            freeze([self.pid])

    def resume(self) -> None:
        """Continue the process after `pause`."""
        self.signal(signal.SIGCONT)

    def _read(self, pipe: IO[bytes]) -> None:
        """Read all available output at once, so that a process that keeps printing wakes no thread for each line."""
        rest = b""
        with suppress(ValueError), pipe:  # a signal arrived while this thread was starting, so `_end` closed the pipe
            while data := os.read(pipe.fileno(), _MAX_LINE):
                self._printed += len(data)
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) >= _MAX_LINE:
                    lines, rest = [*lines, rest], b""
                self._keep(lines)
        self._keep([rest] if rest else [])

    def _keep(self, lines: Sequence[bytes]) -> None:
        with self._changes:
            for line in lines[-_LINES_KEPT:]:
                self._lines.append(line.decode(errors="replace").rstrip("\r"))
                self._kept += len(self._lines[-1])
            while len(self._lines) > _LINES_KEPT or self._kept > _MAX_KEPT:
                self._kept -= len(self._lines.popleft())
            self._changes.notify_all()
        self._lifecycle.call("`changed`", self._changed)

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        self._threads[0].join(0.2)  # wait for the rest of the output; a descendant may keep the pipe open longer
        with self._changes:
            self._ended.set()
            self._changes.notify_all()
        self._lifecycle.call("`changed`", self._changed)


def freeze(pids: Collection[int]) -> None:
    """Send SIGSTOP to these processes, and wait until all of their threads have stopped or exited.

    A signal stops each thread only when it gets a processor, so on a busy machine some threads still answered calls
    seconds later. The wait ends after 30 seconds, for example if a thread waits for a disk.
    """
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _FREEZING
    while any(map(_is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.001)  # Linux reports only children that stop


def _is_running(pid: int) -> bool:
    """Return whether a process has a thread that has neither stopped nor exited."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread has exited
            if path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] not in "TtZX":
                return True
    return False


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def with_texts(word: str, texts: Mapping[str, str]) -> str:
    """Replace each key of `texts` in `word` with its value."""
    for placeholder, text in texts.items():
        word = word.replace(placeholder, text)
    return word


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _session(leader: int) -> list[int]:
    """Return the ids of the processes in the session of `leader`."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if (fields := _stat(pid)) and int(fields[3]) == leader]


def _stat(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` that follow the name, such as state, ppid, pgrp and session."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
