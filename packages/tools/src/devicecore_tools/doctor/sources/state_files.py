"""The state files of the CPU and memory managers: whether a kubelet can start with them.

Law: a file is called damaged only if a kubelet would end because of it. What is not known of its form is not judged.
"""

import json
import re
from pathlib import Path

from devicecore.domain.checkpoint.fnv import fnv1a_32
from devicecore.domain.text import foreign_text
from devicecore.system.files import read_file
from devicecore_tools.doctor.look import Reading, StateFileSeen

CPU_NAME, MEMORY_NAME = "cpu_manager_state", "memory_manager_state"
MAX_BYTES = 1024 * 1024
"""Bytes of a file; one for 500 pinned containers has some 50 KiB."""

SYSTEM = Path("/sys/devices/system")
"""Where the machine says which CPUs and how much memory it has."""

_CPU_FIELDS = {"policyName": str, "defaultCpuSet": str, "entries": dict, "checksum": int}
_MEMORY_FIELDS = {"policyName": str, "machineState": dict, "entries": dict, "checksum": int}
_CPU_SET = re.compile(r"(?:\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)?")
_MAX_CPU = 65_536
_MEM_TOTAL = re.compile(r"MemTotal:\s*(\d+) kB")


def read_state_files(root: str, system: Path | None = None) -> Reading[tuple[StateFileSeen, ...]]:
    """Return the files below a kubelet's root. `system` is the machine's description, None for another one."""
    seen, notes = [], []
    for name in (CPU_NAME, MEMORY_NAME):
        path = Path(root) / name
        try:
            blob = read_file(path, MAX_BYTES, follow_links=True)
        except FileNotFoundError:
            continue  # a kubelet makes a new one
        except OSError as error:
            notes.append(f"{path}: {error.strerror}")
            continue
        problem = _problem(name, blob) or (_drift(name, blob, system) if system is not None else "")
        seen.append(StateFileSeen(name, problem))
    if not seen:
        return Reading(root, problem=notes[0] if notes else "there are no such files")
    return Reading.of(root, tuple(seen), tuple(notes))


def _problem(name: str, blob: bytes) -> str:
    """Return why a kubelet cannot read a file (kubelet: `restoreState`)."""
    try:
        document = json.loads(blob)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {foreign_text(str(error), 200)}"
    if not isinstance(document, dict):
        return "it is no object"
    fields = _CPU_FIELDS if name == CPU_NAME else _MEMORY_FIELDS
    known = {key.lower(): key for key in fields}
    for key, value in document.items():
        expected = fields.get(known.get(key.lower(), ""))
        if expected is not None and value is not None and (not isinstance(value, expected) or isinstance(value, bool)):
            return f"{foreign_text(key, 50)} has a value of the wrong kind"
    if document.keys() - fields.keys():
        return ""  # a kubelet of another version wrote it
    text = _hashed(name, document)
    stored = document.get("checksum") or 0
    if text is None or fnv1a_32(text.encode()) == stored:
        return ""
    return f"checkpoint is corrupted: checksum is {fnv1a_32(text.encode())}, the file says {stored}"


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


def _drift(name: str, blob: bytes, system: Path) -> str:
    """Return why a sound file does not fit this machine (kubelet: `validateState`), if its policy is static."""
    document = json.loads(blob)
    if document.get("policyName", "").lower() != "static":
        return ""
    return _missingcpus_in(document, system) if name == CPU_NAME else _other_memory(document, system)


def _missingcpus_in(document: dict[str, object], system: Path) -> str:
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
