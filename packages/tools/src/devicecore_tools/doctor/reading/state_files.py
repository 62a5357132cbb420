"""Checks whether a kubelet can start with its state files: CPU manager, memory manager, and pods' resources.

Law: a file is reported as damaged only if a kubelet would exit because of it. Unknown parts of the format are not
judged.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from devicecore.domain.checkpoint.fnv import fnv1a_32
from devicecore.domain.text import foreign_text
from devicecore.system.files import read_file
from devicecore_tools.doctor.look.values import NO_FILES, OF_PODS, Reading, StateFileSeen
from devicecore_tools.doctor.reading.managers import ManagersSeen
from devicecore_tools.numa import CPU_FILE, INSTALL, MEMORY_FILE, NumaError, held_in_state_file, is_installed

MAX_BYTES = 1024 * 1024
"""The size limit of a file with pods' resources, in bytes."""

_KEYS = {"policyName", "defaultCpuSet", "machineState", "entries", "podEntries", "checksum", "data", "dataChecksum"}


def read_state_files(
    root: str, managers: ManagersSeen, why_unread: Callable[[str], str] = lambda _: ""
) -> Reading[tuple[StateFileSeen, ...]]:
    """Return the files below a kubelet's root.

    Args:
        root: the kubelet's root directory, or a record.
        managers: the input for the CPU manager and the memory manager.
        why_unread: why a missing file may have existed on the node, or an empty string if it did not.
    """
    seen, notes = [], []
    for name in (CPU_FILE, MEMORY_FILE, *OF_PODS):
        path = Path(root) / name
        try:
            blob = managers.file(name) if name not in OF_PODS else read_file(path, MAX_BYTES, follow_links=True)
        except FileNotFoundError:
            # if the file did not exist on the node, a kubelet creates a new one
            notes += [f"{path}: {why}"] if (why := why_unread(name)) else []
            continue
        except OSError as error:
            notes.append(f"{path}: {error.strerror}")
            continue
        if name in OF_PODS:
            seen.append(StateFileSeen(name, _problem_of_pods(blob)))
        elif is_installed():
            seen.append(_seen(name, blob, managers))
        else:
            notes.append(f"{path}: {INSTALL}")
    if not seen:
        return Reading(root, problem=notes[0] if notes else NO_FILES)
    return Reading.of(root, tuple(seen), tuple(notes))


def _seen(name: str, blob: bytes, managers: ManagersSeen) -> StateFileSeen:
    """Return the content of a CPU or memory manager's file, or why a kubelet that starts with the file exits."""
    try:
        document = _object(blob)
        if document.keys() - _KEYS and not (document.get("data") or document.get("dataChecksum")):
            return StateFileSeen(name)  # written by a kubelet of a different version
        knows = managers.knows_machine
        held = held_in_state_file(name, blob, managers.configured, managers.machine, knows_machine=knows)
        return StateFileSeen(name, held=held)
    except (_DamagedError, NumaError) as error:
        return StateFileSeen(name, str(error))


@frozen
class _DamagedError(Exception):
    """A kubelet cannot read a state file."""

    why: str

    def __str__(self) -> str:
        return self.why


def _problem_of_pods(blob: bytes) -> str:
    try:
        _check_pods(_object(blob))
    except _DamagedError as error:
        return error.why
    return ""


def _check_pods(document: Mapping[str, Any]) -> None:
    """Raise _DamagedError if a kubelet cannot restore pods' resources from a file (kubelet: `restoreState`)."""
    if "data" not in document:
        return  # the format of kubelets before 1.32, for which we cannot compute the checksum
    data, stored = document["data"], document.get("checksum") or 0
    if not isinstance(data, str) or not isinstance(stored, int) or isinstance(stored, bool):
        raise _DamagedError("data or checksum has a value of the wrong type")
    _compare(fnv1a_32(f"(string){data}".encode()), stored)
    entries = _object(data).get("entries")
    if entries is not None and not isinstance(entries, dict):
        raise _DamagedError("entries is not an object")


def _object(text: bytes | str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _DamagedError(f"it is not JSON: {foreign_text(str(error), 200)}") from error
    if not isinstance(document, dict):
        raise _DamagedError("it is not an object")
    return document


def _compare(computed: int, stored: int) -> None:
    if computed != stored:
        raise _DamagedError(f"checkpoint is corrupted: checksum is {computed}, the file says {stored}")
