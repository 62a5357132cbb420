"""The identity of this process, by which other processes find out whether this process is still alive.

Law: a process counts as ended only if this is certain: either the process ran on this machine and its process id is
free, reused or a zombie's, or this process now holds a lock that the process held.
"""

import os
import socket
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

from attrs import field, frozen

_STARTED = 18  # the position of the start time in /proc/PID/stat, counted after the program name and the state
_ENDED = ("Z", "X")  # the states of a process that has exited


@frozen
class Process:
    """A process that maintains Nodes.

    Attributes:
        identity: a string that is unique to the process; by default, the string for this process.
        ended: the identities of processes on other machines that are known to have ended.
    """

    identity: str = field(factory=lambda: _identity(_machine(), os.getpid()) or f"{_machine()}.{os.getpid()}")
    ended: frozenset[str] = frozenset()

    def has_ended(self, other: str) -> bool | None:
        """Return whether the process with this identity has ended, or None if this is unknown."""
        machine, _, rest = other.partition(".")
        number = rest.partition(".")[0]
        if machine != _machine() or not (number.isascii() and number.isdecimal()):
            return True if other in self.ended else None
        try:
            os.kill(int(number), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass  # the process exists, and belongs to another user
        found = _identity(machine, int(number))
        return None if found is None else found != other


def _identity(machine: str, number: int) -> str | None:
    """Return a process's identity, an empty string if the process has ended, or None if the identity cannot be read."""
    try:
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *numbers = stat.rpartition(")")[2].split()
    return "" if state in _ENDED else f"{machine}.{number}.{numbers[_STARTED]}"


def _machine() -> str:
    """Return a string that distinguishes this boot of this machine, and this container, from all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return uuid5(NAMESPACE_DNS, f"{boot} {Path('/proc/self/ns/pid').readlink()}").hex[:12]
    except OSError:
        return uuid5(NAMESPACE_DNS, socket.gethostname()).hex[:12]
