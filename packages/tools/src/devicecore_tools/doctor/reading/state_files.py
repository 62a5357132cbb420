"""The state files of the CPU and memory managers and of pods' resources: whether a kubelet can start with them.

Law: a file is called damaged only if a kubelet would end because of it. What is not known of its form is not judged.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import field, frozen

from devicecore.domain.checkpoint.fnv import fnv1a_32
from devicecore.domain.text import foreign_text
from devicecore.system.files import read_file
from devicecore_tools.doctor.look.values import NO_FILES, OF_PODS, Reading, StateFileSeen

CPU_NAME, MEMORY_NAME = "cpu_manager_state", "memory_manager_state"
MAX_BYTES = 1024 * 1024
"""Bytes of a file; one for 500 pinned containers has some 50 KiB."""

SYSTEM = Path("/sys/devices/system")
"""Where the machine says which CPUs and how much memory it has."""

_FIELDS: Mapping[str, Mapping[str, type]] = {
    CPU_NAME: {"policyName": str, "defaultCpuSet": str, "entries": dict, "checksum": int},
    MEMORY_NAME: {"policyName": str, "machineState": dict, "entries": dict, "checksum": int},
}
_CPU_SET = re.compile(r"(?:\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)?")
_MAX_CPU = 65_536
_MEM_TOTAL = re.compile(r"MemTotal:\s*(\d+) kB")


@frozen
class ManagerSettings:
    """What a kubelet's configuration says, as far as it is known: the policies, by the names of the managers' files.

    `reserved` has the memory that is reserved on each NUMA node, by the name of the memory; it is empty if not known.
    """

    policies: Mapping[str, str] = field(factory=dict)
    reserved: Mapping[int, Mapping[str, int]] = field(factory=dict)


def read_state_files(
    root: str,
    system: Path | None = None,
    settings: ManagerSettings = ManagerSettings(),
    why_unread: Callable[[str], str] = lambda _: "",
) -> Reading[tuple[StateFileSeen, ...]]:
    """Return the files below a kubelet's root.

    Args:
        root: the kubelet's root directory, or a record.
        system: the machine's description, None for another machine.
        settings: what is configured.
        why_unread: why it is not known whether the node had a file that is not there; empty if it had none.
    """
    seen, notes = [], []
    for name in (CPU_NAME, MEMORY_NAME, *OF_PODS):
        path = Path(root) / name
        try:
            blob = read_file(path, MAX_BYTES, follow_links=True)
        except FileNotFoundError:
            notes += [f"{path}: {why}"] if (why := why_unread(name)) else []  # else a kubelet makes a new one
            continue
        except OSError as error:
            notes.append(f"{path}: {error.strerror}")
            continue
        seen.append(StateFileSeen(name, _problem(name, blob, system, settings)))
    if not seen:
        return Reading(root, problem=notes[0] if notes else NO_FILES)
    return Reading.of(root, tuple(seen), tuple(notes))


@frozen
class _DamagedError(Exception):
    """A kubelet cannot read a file."""

    why: str


def _problem(name: str, blob: bytes, system: Path | None, settings: ManagerSettings) -> str:
    """Return why a kubelet ends when it starts with a file (kubelet: `restoreState`, `validateState`)."""
    try:
        document = _object(blob)
        if name in OF_PODS:
            _check_pods(document)
            return ""
        found = _read(name, document)
    except _DamagedError as error:
        return error.why
    if found is None:
        return ""
    said, policy = found.get("policyName") or "", settings.policies.get(name, "")
    if not said or (policy and policy != said):
        configured = f"policy {policy!r}" if policy else "policy"
        return f"configured {configured} differs from state checkpoint policy {foreign_text(str(said), 50)!r}"
    if str(said).lower() != "static":
        return ""
    inconsistent = _inconsistency(found) if name == CPU_NAME else _other_reservation(found, settings.reserved)
    return inconsistent or ("" if system is None else _drift(name, found, system))


def _read(name: str, document: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a file says. Return None if a kubelet of another version wrote it. Raises _DamagedError."""
    if document.get("data") or document.get("dataChecksum"):
        return _data(name, document)
    _check_fields(name, document)
    if document.keys() - _FIELDS[name].keys():
        return None
    text, stored = _hashed(name, document), document.get("checksum")
    if text is not None and stored:  # a kubelet takes 0 for that of a file from before there were checksums
        _compare(fnv1a_32(text.encode()), stored)
    return document


def _check_pods(document: Mapping[str, Any]) -> None:
    """Raise _DamagedError if a kubelet cannot restore pods' resources from a file (kubelet: `restoreState`)."""
    if "data" not in document:
        return  # the form of kubelets before 1.32, of whose checksum nothing is known here
    data, stored = document["data"], document.get("checksum") or 0
    if not isinstance(data, str) or not isinstance(stored, int) or isinstance(stored, bool):
        raise _DamagedError("data or checksum has a value of the wrong kind")
    _compare(fnv1a_32(f"(string){data}".encode()), stored)
    entries = _object(data).get("entries")
    if entries is not None and not isinstance(entries, dict):
        raise _DamagedError("entries is no object")


def _object(text: bytes | str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _DamagedError(f"it is not JSON: {foreign_text(str(error), 200)}") from error
    if not isinstance(document, dict):
        raise _DamagedError("it is no object")
    return document


def _data(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a kubelet from 1.37 on reads: a text in the file, with a checksum of its own."""
    data, stored = document.get("data"), document.get("dataChecksum") or 0
    if not isinstance(data, str) or not isinstance(stored, int) or isinstance(stored, bool):
        raise _DamagedError("data or dataChecksum has a value of the wrong kind")
    found = _object(data)
    _check_fields(name, found)
    _compare(fnv1a_32(f"(string){data}".encode()), stored)
    return found


def _check_fields(name: str, document: Mapping[str, Any]) -> None:
    known = {key.lower(): key for key in _FIELDS[name]}
    for key, value in document.items():
        expected = _FIELDS[name].get(known.get(key.lower(), ""))
        if expected is not None and value is not None and (not isinstance(value, expected) or isinstance(value, bool)):
            raise _DamagedError(f"{foreign_text(key, 50)} has a value of the wrong kind")


def _compare(computed: int, stored: int) -> None:
    if computed != stored:
        raise _DamagedError(f"checkpoint is corrupted: checksum is {computed}, the file says {stored}")


def _inconsistency(document: Mapping[str, Any]) -> str:
    """Return why the sets of CPUs contradict each other, under the static policy."""
    default, entries = document.get("defaultCpuSet") or "", document.get("entries") or {}
    sets = [(pod, name, cpus) for pod, of in entries.items() if isinstance(of, dict) for name, cpus in of.items()]
    if not default and sets:
        return "default cpuset cannot be empty"
    for pod, container, cpus in sets:
        if isinstance(cpus, str) and cpus_in(default) & cpus_in(cpus):
            where = f"pod: {foreign_text(str(pod), 60)}, container: {foreign_text(str(container), 60)}"
            return f"{where} cpuset: {foreign_text(cpus, 60)!r} overlaps with default cpuset"
    return ""


def _other_reservation(document: Mapping[str, Any], reserved: Mapping[int, Mapping[str, int]]) -> str:
    """Return where the file has another reservation than the configuration (kubelet: `areMachineStatesEqual`)."""
    state = document.get("machineState")
    for node, known in state.items() if reserved and isinstance(state, dict) else ():
        with suppress(LookupError, TypeError, ValueError, AttributeError):
            for memory, amounts in known["memoryMap"].items():
                said, configured = amounts["systemReserved"], reserved.get(int(node), {}).get(memory, 0)
                if said != configured:
                    where = f"NUMA node {foreign_text(str(node), 20)}, {foreign_text(str(memory), 60)}"
                    return (
                        f"{where}: {said} bytes are reserved, and reservedMemory of the configuration is {configured}"
                    )
    return ""


def _hashed(name: str, document: dict[str, object]) -> str | None:
    """Return what the checksum is made of. The result is None if it is not known for this content."""
    policy, entries = document.get("policyName") or "", document.get("entries") or {}
    if name == MEMORY_NAME:
        if document.get("machineState") or entries:
            return None
        return (
            f"(*state.MemoryManagerCheckpoint){{PolicyName:(string){policy} MachineState:(state.NUMANodeMap)map[] "
            "Entries:(state.ContainerMemoryAssignments)map[] Checksum:(checksum.Checksum)0}"
        )
    assert isinstance(entries, dict)  # noqa: S101 - `_problem` has looked
    pods = []
    for pod, containers in sorted(entries.items()):
        if not isinstance(containers, dict) or not all(isinstance(one, str) for one in containers.values()):
            return None
        pods.append(f"{pod}:map[{' '.join(f'{key}:{value}' for key, value in sorted(containers.items()))}]")
    return (
        f"(*state.CPUManagerCheckpoint){{PolicyName:(string){policy} DefaultCPUSet:(string)"
        f"{document.get('defaultCpuSet') or ''} Entries:(map[string]map[string]string)map[{' '.join(pods)}] "
        "Checksum:(checksum.Checksum)0}"
    )


def _drift(name: str, document: dict[str, Any], system: Path) -> str:
    """Return why a sound file of a static policy does not fit this machine."""
    return _missing_cpus(document, system) if name == CPU_NAME else _other_memory(document, system)


def _missing_cpus(document: dict[str, object], system: Path) -> str:
    """Return the CPUs of the file that the machine does not have."""
    try:
        online = cpus_in((system / "cpu" / "online").read_text())
    except OSError:
        return ""
    entries = document.get("entries") or {}
    sets = [document.get("defaultCpuSet") or ""]
    sets += (
        [cpus for containers in entries.values() for cpus in containers.values()] if isinstance(entries, dict) else []
    )
    missing = sorted({cpu for one in sets if isinstance(one, str) for cpu in cpus_in(one)} - online)
    return f"it names CPUs that this machine does not have: {', '.join(map(str, missing[:10]))}" if missing else ""


def cpus_in(text: str) -> set[int]:
    """Return the numbers of a set of CPUs or NUMA nodes such as `0-3,8`. A text that is no set has none."""
    text = text.strip()
    if not text or not _CPU_SET.fullmatch(text):
        return set()
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), min(int(last or first), _MAX_CPU) + 1))
    return found


def _other_memory(document: dict[str, object], system: Path) -> str:
    """Return a NUMA node whose memory is not what the file says: a kubelet refuses the least difference."""
    state = document.get("machineState")
    for node, known in state.items() if isinstance(state, dict) else ():
        try:
            total = known["memoryMap"]["memory"]["total"]
            text = (system / "node" / f"node{int(node)}" / "meminfo").read_text()
        except FileNotFoundError:
            return f"it names NUMA node {foreign_text(str(node), 20)}, which this machine does not have"
        except (OSError, KeyError, TypeError, ValueError):
            continue
        found = _MEM_TOTAL.search(text)
        if found and isinstance(total, int) and int(found[1]) * 1024 != total:
            return (
                f"it says that NUMA node {node} has {total:,} bytes of memory, and the machine has "
                f"{int(found[1]) * 1024:,}"
            )
    return ""
