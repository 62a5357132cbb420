"""The processes of a plugin or driver, found by an environment variable even if they have left its session.

Law: after `end_all`, no process with that variable is running or left as a zombie. If this process starts no other
programs, this also holds for the subject's processes that have dropped the variable.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from attrs import frozen

from devicecore.domain.text import foreign_text, shortened
from devicecore_tools.conformance.model import MAX_ACTUAL, Exit, require
from devicecore_tools.testing.process import PluginProcess, PluginProcessError, freeze

GO_CRASH = 2
"""The exit status of a Go program that has panicked."""

MAX_LINE = 20_000
"""The maximum length of a line of output."""

MAX_SENTENCE = 250
"""The maximum length of the sentence about an exit."""

_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # options of prctl(2)
PRESSURE = Path("/proc/pressure/io")
"""Where Linux says how long programs have waited for disks."""

_SHORTEST = 0.01  # seconds
_RESIDENT, _THREADS = re.compile(r"^VmRSS:\s+([0-9]+)", re.MULTILINE), re.compile(r"^Threads:\s+([0-9]+)", re.MULTILINE)
_PENDING = re.compile(r"^SigPnd:\s+([0-9a-f]+)", re.MULTILINE)  # the signals that wait for one thread
_EXITING, _KILL = 0x4, 1 << (signal.SIGKILL - 1)  # PF_EXITING in sched.h, and the mask of a signal
_MIB = 1024 * 1024
_MORE_MEMORY, _EACH_MEMORY = 24 * _MIB, 64 * 1024  # bytes in total and per call; Go heaps grow unevenly
_NAMES = {"threads": ("threads", 10), "files": ("open files", 10), "zombies": ("zombie processes", 4)}
"""The counts in `Usage` that must not grow with the calls, by attribute, each with its label and the growth allowed."""
_EACH_PRINTED = 20_000  # bytes per call
_WITHIN = 10.0  # seconds for a killed process to exit


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if Linux is still closing its files or ending its threads.

    On a busy machine, processes that had called `exit` were found waiting for a CPU for 16 seconds while Linux closed
    their sockets. Until then, their exit status cannot be read.
    """
    threads = [*Path(f"/proc/{pid}/task").glob("*")]
    return all(map(_is_exiting, threads))


def _is_exiting(thread: Path) -> bool:
    """Return whether a thread, given as its directory in /proc, is exiting or has been told to exit."""
    try:
        flags = int((thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[6])
        pending = _PENDING.search((thread / "status").read_text(encoding="utf-8", errors="replace"))
    except OSError:  # it has exited
        return True
    # When a thread ends the whole process, Linux sends each of the other threads SIGKILL.
    return bool(flags & _EXITING) or (pending is not None and bool(int(pending[1], 16) & _KILL))


def new_marker() -> str:
    """Return a variable, as NAME=value, that marks one run's processes."""
    return f"DEVICECORE_CONFORMANCE={uuid.uuid4()}"


def as_environment(variable: str) -> dict[str, str]:
    """Return a variable, given as NAME=value, as an entry for a process environment."""
    name, _, value = variable.partition("=")
    return {name: value}


# This is a separate process, because Linux sends the parent-death signal when the thread that started the child ends,
# and never sends it to grandchildren. This process needs only the standard library.
_GUARDIAN = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
marker = sys.argv[1].encode()
if not sys.stdin.buffer.read():
    found = True
    while found:
        found = False
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if marker in file.read().split(b"\\0"):
                        os.kill(int(entry), signal.SIGKILL)
                        found = True
            except OSError:
                pass
"""


@contextmanager
def guarded(variable: str) -> Iterator[None]:
    """During this block, make sure that the processes with this variable are killed if this process is killed."""
    guardian = subprocess.Popen(  # noqa: S603 - it is this program's own command
        [sys.executable, "-I", "-S", "-c", _GUARDIAN, variable],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,  # in this session, so that the guardian is not mistaken for a daemon of the subject
    )
    try:
        yield
    finally:
        guardian.communicate(b"all is over")


@contextmanager
def orphans_come_here() -> Iterator[None]:
    """Make orphaned processes children of this process, so that they can be waited for."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    libc.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def with_variable(variable: str) -> list[int]:
    """Return the ids of the running processes whose environment has this variable, except this process."""
    text = variable.encode()
    return [pid for pid, environment in _read("environ") if text in environment and text in environment.split(b"\0")]


def adopted() -> list[int]:
    """Return the ids of the running children of this process that are in a different session from this process."""
    own, session = str(os.getpid()), str(os.getsid(0))
    found = []
    for pid, status in _read("stat"):
        state, parent, _, its_session = status.decode(errors="replace").rpartition(")")[2].split()[:4]
        if parent == own and its_session != session and state != "Z":
            found.append(pid)
    return found


def _read(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the id of each process except this one, with the contents of its file `name` in /proc.

    This function avoids pathlib: it is called hundreds of times, and building Paths for all processes took twice as
    long as reading.
    """
    for entry in os.listdir("/proc"):  # noqa: PTH208 - as above
        if entry.isdigit() and int(entry) != os.getpid():
            with suppress(OSError), open(f"/proc/{entry}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - as above
                yield int(entry), file.read()  # OSError: the process has ended, or belongs to another user


def own_age() -> float:
    """Return how long this process has been running, in seconds."""
    started = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


def exit_of(process: PluginProcess) -> Exit | None:
    """Return how a process exited on its own, or None if it did not exit on its own."""
    failure, crash = process.failure, process.crash
    if failure is None:
        return None
    lines = [line.strip() for line in failure.output.splitlines() if line.strip()]
    said = next(iter(lines if crash and not crash.startswith("Traceback") else lines[::-1]), "it printed nothing")
    how = shortened(foreign_text(f"it {failure.how}: {said}", MAX_LINE), MAX_SENTENCE)  # the reason is at the end
    is_crash = failure.status < 0 or has_panicked(process)
    return Exit(process.pid, how, failure.output, is_crash=is_crash)


def has_panicked(process: PluginProcess) -> bool:
    """Return whether a process exited the way a panicking Go program does."""
    return process.status == GO_CRASH and process.crash.startswith(("panic:", "fatal error:"))


def problem_of_command(command: str, directory: Path, timeout: float) -> str:
    """Run one of the user's shell commands, with `{dir}` replaced by the directory.

    Return why the command failed, or an empty string.
    """
    process = PluginProcess(["/bin/sh", "-c", command], directory)
    try:
        process.start()
        status = process.wait(timeout)
    except PluginProcessError as error:
        process.stop(grace=0.0)
        return f"`{command}`: {error}"
    return f"`{command}` exited with status {status}: {process.last_output or 'it printed nothing'}" if status else ""


def note_of_wrong_command(option: str, problem: str) -> str:
    """Return the report's note that a command given in an option failed, and why."""
    return f"a command is wrong, so this run has not passed: {option}: {foreign_text(problem, MAX_ACTUAL)}"


@frozen
class Waits:
    """How long a process and its descendants have waited for CPUs and disks so far.

    Attributes:
        queued: how many seconds each thread has waited for a CPU; empty if unknown.
        disks: for how many seconds any program on this machine has waited for a disk.
        disk_bytes: how many bytes the processes have read from disks and written to them.
    """

    queued: Mapping[str, float] = {}
    disks: float = 0.0
    disk_bytes: int = 0

    @classmethod
    def of(cls, process: PluginProcess | None) -> Self:
        """Measure a process. If `process` is None, the waits are unknown."""
        if process is None:
            return cls()
        return cls(process.queued_seconds, waited_for_disks(), process.disk_bytes)

    def for_cpus(self, later: Self) -> float:
        """Return for how many seconds the thread that waited longest has waited for a CPU between two measurements.

        The threads of a program wait at the same time, so the sum of their waits would be too long.
        """
        return max((seconds - self.queued.get(one, 0.0) for one, seconds in later.queued.items()), default=0.0)

    def for_disks(self, later: Self) -> float:
        """Return for how many seconds the process may have waited for a disk between two measurements.

        Linux rarely measures this for a single process. The result is therefore the time during which any program
        waited for a disk, or 0 if this process did not use a disk.
        """
        return later.disks - self.disks if later.disk_bytes != self.disk_bytes else 0.0

    def until(self, later: Self) -> float:
        """Return for how many seconds at most the process was held up between two measurements."""
        return self.for_cpus(later) + self.for_disks(later)


def waited_for_disks() -> float:
    """Return for how many seconds any program has waited for a disk since the machine was started, or 0 if unknown.

    A subject that syncs its state to the disk waits for the disk, and is not queued for a processor meanwhile.
    """
    try:
        return int(PRESSURE.read_text(encoding="ascii").splitlines()[0].rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):  # kernels without pressure stall information
        return 0.0


@frozen
class ProcessorUse:
    """The processor time that a process has used so far.

    Attributes:
        at: when it was measured, as a `time.monotonic()` timestamp.
        used: processor time in seconds.
        waits: how long the process has had to wait for CPUs and disks so far.
    """

    at: float
    used: float
    waits: Waits

    @classmethod
    def of(cls, process: PluginProcess) -> Self:
        """Measure a running process."""
        return cls(time.monotonic(), process.cpu_seconds, Waits.of(process))

    def require_little_until(self, later: Self, what: str) -> float:
        """Require that the process used little processor time between two measurements.

        Return that time as a share of the time in which a CPU was available to the process: on a loaded machine, even a
        process that is always busy gets only a small share of a CPU. `what` is the plugin or driver, in a word.

        Raises Failure, which counts as late only if the share of the whole time would have been small enough.
        """
        used, seconds = later.used - self.used, max(later.at - self.at, _SHORTEST)
        share = used / max(seconds - self.waits.for_cpus(later.waits), _SHORTEST)
        require(share < MAX_CPU, f"the {what} used {share:.0%} of one processor", late=used / seconds < MAX_CPU)
        return share


MAX_CPU = 0.1
"""The share of one CPU that an idle plugin or driver may use."""
MAX_PRINTED = 10_000
"""How many bytes an idle plugin or driver may print per second."""


@frozen
class Usage:
    """The resources that a process and its descendants use, and the amount of their output.

    Attributes:
        memory: resident bytes.
        threads: number of threads.
        files: open file descriptors.
        zombies: children that have exited and were not waited for.
        printed: bytes of output.
        at: when it was measured, as a `time.monotonic()` timestamp.
    """

    memory: int
    threads: int
    files: int
    zombies: int
    printed: int
    at: float

    @classmethod
    def of(cls, process: PluginProcess) -> Self:
        """Measure a running process."""
        memory = threads = files = 0
        for pid in (process.pid, *process.descendants):
            with suppress(OSError):  # the process has ended
                status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
                memory += int((_RESIDENT.search(status) or ["", "0"])[1]) * 1024
                threads += int((_THREADS.search(status) or ["", "0"])[1])
                files += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        return cls(memory, threads, files, process.zombies, process.printed, time.monotonic())

    def printed_until(self, later: Self) -> float:
        """Return how many bytes per second the process printed between two measurements."""
        return (later.printed - self.printed) / max(later.at - self.at, _SHORTEST)

    def more_until(self, later: Self) -> list[str]:
        """Return which counts, such as those of threads and open files, grew too much between two measurements."""
        more = {what: getattr(later, name) - getattr(self, name) for name, (what, _) in _NAMES.items()}
        return [f"{more[what]} more {what}" for what, least in _NAMES.values() if more[what] > least]

    def growth_until(self, later: Self, calls: int, idle: float) -> str:
        """Return what grew with the calls between two measurements, in a few words, or an empty string.

        `idle` is how many bytes per second the process prints when it is not called.
        """
        memory = later.memory - self.memory
        printed = (self.printed_until(later) - 2 * idle) * (later.at - self.at) / calls
        found = [f"{memory // _MIB} MiB more memory"] if memory > max(_MORE_MEMORY, _EACH_MEMORY * calls) else []
        for name, (what, least) in _NAMES.items():
            more = getattr(later, name) - getattr(self, name)
            found += [f"{more} more {what}"] if more > max(least, calls / 4) else []
        return ", ".join(found + ([f"{printed:.0f} bytes of output per call"] if printed > _EACH_PRINTED else []))


@contextmanager
def stopped(variable: str) -> Iterator[None]:
    """In this block, freeze the processes with this variable: their connections stay open, and they answer no calls."""
    pids = with_variable(variable)
    try:
        freeze(pids)
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def open_files(variable: str) -> int:
    """Return how many open file descriptors the processes with this variable have."""
    number = 0
    for pid in with_variable(variable):
        with suppress(OSError):  # the process has ended
            number += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return number


def end_all(variable: str, *, but_not: Collection[int] | None = None) -> None:
    """Kill the processes with this variable, and wait for those that are children of this process.

    If `but_not` is given, the processes that `adopted` returns are killed, too, except those in `but_not`. Adopted
    processes are daemons that were started without the variable.
    """
    deadline = time.monotonic() + _WITHIN
    killed: set[int] = set()
    while pids := {*with_variable(variable), *(() if but_not is None else set(adopted()).difference(but_not))}:
        killed.update(pids)
        _signal(pids, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)
    for pid in killed:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
