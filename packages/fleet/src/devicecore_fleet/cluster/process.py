"""Which process this is, so that another one can tell whether it still lives.

Law: a process has ended only if this machine knows it: it ran here and its number is free or another process's, or it
had the files that this process has locked.
"""

import os
import socket
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

from attrs import field, frozen

_STARTED = 18  # the place of the start time in /proc/PID/stat, after the name of the program and the state
_ENDED = ("Z", "X")  # states of a process of which only the number is left


@frozen
class Process:
    """A process that keeps Nodes.

    Attributes:
        identity: no other process has it; by default that of this process.
        ended: the identities of processes that are known to have ended if they did not run on this machine.
    """

    identity: str = field(factory=lambda: _identity(_machine(), os.getpid()) or f"{_machine()}.{os.getpid()}")
    ended: frozenset[str] = frozenset()

    def has_ended(self, other: str) -> bool | None:
        """Return whether the process of another identity has ended. Return None if that is not known."""
        machine, _, rest = other.partition(".")
        number = rest.partition(".")[0]
        if machine != _machine() or not (number.isascii() and number.isdecimal()):
            return True if other in self.ended else None
        try:
            os.kill(int(number), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass  # it is a process of another user
        found = _identity(machine, int(number))
        return None if found is None else found != other


def _identity(machine: str, number: int) -> str | None:
    """Return the identity of a process of this machine, empty if it has ended, and None if it cannot be read."""
    try:
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *numbers = stat.rpartition(")")[2].split()
    return "" if state in _ENDED else f"{machine}.{number}.{numbers[_STARTED]}"


def _machine() -> str:
    """Return what tells this boot of this machine, and this container, from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return uuid5(NAMESPACE_DNS, f"{boot} {Path('/proc/self/ns/pid').readlink()}").hex[:12]
    except OSError:
        return uuid5(NAMESPACE_DNS, socket.gethostname()).hex[:12]
