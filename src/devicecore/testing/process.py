"""A device plugin as a process of its own, in whatever language it is written.

Law: what it prints is kept, and nothing of it outlives `stop`: no process, no thread, no pipe.
"""

import os
import shlex
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from attrs import frozen

from devicecore.domain.errors import DeviceCoreError

_LINES_KEPT = 1000
_LINES_SHOWN = 15
_TICKS = os.sysconf("SC_CLK_TCK")


class PluginProcessError(DeviceCoreError):
    """A plugin's process did not do what it should."""


@frozen
class CannotRunError(PluginProcessError):
    """The command cannot be run at all."""

    command: tuple[str, ...]
    cause: str

    def __str__(self) -> str:
        return f"cannot run `{shlex.join(self.command)}`: {self.cause}"


@frozen
class ExitedEarlyError(PluginProcessError):
    """The plugin ended while it was waited for. `status` is negative if a signal ended it."""

    command: tuple[str, ...]
    status: int
    output: str

    def __str__(self) -> str:
        how = (
            f"was ended by {_signal_name(-self.status)}"
            if self.status < 0
            else f"exited early with status {self.status}"
        )
        last = f"last output: {self.output}" if self.output else "it printed nothing"
        return f"the plugin `{shlex.join(self.command)}` {how}, {last}"


@frozen
class StillRunningError(PluginProcessError, TimeoutError):
    """The plugin did not end in time."""

    command: tuple[str, ...]
    timeout: float
    output: str

    def __str__(self) -> str:
        last = f"last output: {self.output}" if self.output else "it printed nothing"
        return f"the plugin `{shlex.join(self.command)}` still runs after {self.timeout:g} seconds, {last}"


@frozen
class NotPrintedError(PluginProcessError, TimeoutError):
    """The plugin did not print what was waited for."""

    text: str
    timeout: float
    output: str

    def __str__(self) -> str:
        last = f"last output: {self.output}" if self.output else "it printed nothing"
        return f"waited {self.timeout:g} seconds for the plugin to print {self.text!r}, {last}"


class PluginProcess:
    """A running command: a context manager that stops it.

    In its words `{dir}` stands for `directory` and `{socket}` for the kubelet's socket in it. The environment variables
    `DEVICE_PLUGIN_PATH` and `KUBELET_SOCKET` have them too.

    Args:
        command: the program and its arguments.
        directory: the kubelet's socket directory.
        environment: more environment variables.
        cwd: where it runs.
        changed: called when it has printed a line and when it has ended, from another thread.

    Raises:
        CannotRunError: there is no such program, or it may not be run.
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        directory: str | os.PathLike[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        where = str(directory)
        socket = str(Path(where) / "kubelet.sock")
        self.command = tuple(os.fspath(word).replace("{dir}", where).replace("{socket}", socket) for word in command)
        self._changed = changed
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._news = threading.Condition()
        self._ended = threading.Event()
        self._expected_to_end = False
        try:
            self._process = subprocess.Popen(  # noqa: S603 - to run it is what the caller wants
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, "DEVICE_PLUGIN_PATH": where, "KUBELET_SOCKET": socket, **(environment or {})},
                start_new_session=True,  # so that what it starts can be ended with it
            )
        except OSError as error:
            raise CannotRunError(self.command, error.strerror or str(error)) from error
        assert self._process.stdout is not None, "it is a pipe"  # noqa: S101 - for mypy
        self._pipe = self._process.stdout
        self._threads = [
            threading.Thread(target=self._read, args=(self._pipe,), name="devicecore-output", daemon=True),
            threading.Thread(target=self._watch, name="devicecore-watcher", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.status is None else f"status {self.status}"
        return f"<PluginProcess {self.pid} `{shlex.join(self.command)}`, {state}>"

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, negative if a signal ended it; None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """What it has printed, on standard output and standard error, as it came; of very much only the end."""
        with self._news:
            return "\n".join(self._lines)

    @property
    def last_output(self) -> str:
        """The last lines of it."""
        with self._news:
            return "\n".join(tuple(self._lines)[-_LINES_SHOWN:])

    @property
    def failure(self) -> ExitedEarlyError | None:
        """The error to raise if it has ended and nobody asked it to."""
        if self._expected_to_end or self.status is None or not self._ended.is_set():
            return None
        return ExitedEarlyError(self.command, self.status, self.last_output)

    @property
    def cpu_seconds(self) -> float:
        """The processor time that it and everything it started, and that still runs, have used so far."""
        return sum(_cpu_seconds(pid) for pid in _session(self.pid))

    @property
    def descendants(self) -> tuple[int, ...]:
        """The numbers of the processes that it has started and that still run, whether or not it does."""
        return tuple(pid for pid in _session(self.pid) if pid != self.pid and _stat(pid)[:1] != ["Z"])

    def wait_for_output(self, text: str, timeout: float = 10.0) -> str:
        """Wait for a line that contains `text`; the line.

        Raises:
            NotPrintedError: there was none in time.
            ExitedEarlyError: it ended first, without.
        """

        def found() -> str | None:
            return next((line for line in self._lines if text in line), None)

        with self._news:
            self._news.wait_for(lambda: found() is not None or self._ended.is_set(), timeout)
            line = found()
        if line is not None:
            return line
        if self.status is not None:
            raise ExitedEarlyError(self.command, self.status, self.last_output)
        raise NotPrintedError(text, timeout, self.last_output)

    def wait(self, timeout: float = 10.0) -> int:
        """Wait for its end; its status.

        Raises:
            StillRunningError: it has not ended in time.
        """
        if not self._ended.wait(timeout):
            raise StillRunningError(self.command, timeout, self.last_output)
        return self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; one that has ended does not mind."""
        if number not in {signal.SIGSTOP, signal.SIGCONT}:
            self._expected_to_end = True
        self._process.send_signal(number)

    def terminate(self) -> None:
        """Send SIGTERM, as Kubernetes does to a pod that is to end."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and whatever it has started, so that nobody can say goodbye, and wait for that."""
        self._expected_to_end = True
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._ended.wait()

    def pause(self) -> None:
        """Freeze it with SIGSTOP: it lives and answers nobody."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def stop(self, grace: float = 5.0) -> None:
        """End it: by SIGTERM, and after `grace` seconds by SIGKILL. Twice is no error."""
        self.terminate()
        self.resume()
        self._ended.wait(grace)
        self.kill()
        for thread in self._threads:
            thread.join()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                with self._news:
                    self._lines.append(line.decode(errors="replace").rstrip("\r\n"))
                    self._news.notify_all()
                self._changed()

    def _watch(self) -> None:
        self._process.wait()
        self._threads[0].join(0.2)  # its last words; what it started may hold the pipe open for longer
        with self._news:
            self._ended.set()
            self._news.notify_all()
        self._changed()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _session(leader: int) -> list[int]:
    """Every process of the session that `leader` leads."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if (fields := _stat(pid)) and int(fields[3]) == leader]


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / _TICKS  # its own, and that of children it has waited for


def _stat(pid: int) -> list[str]:
    """What `/proc/PID/stat` says after the name: state, ppid, pgrp, session, ...; nothing if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
