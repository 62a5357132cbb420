"""The input for a kubelet's CPU manager and memory manager: its configuration, their files, and the machine.

Law: nothing is read that belongs to a machine other than the kubelet's.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen

from devicecore.domain.errors import DocumentError
from devicecore.domain.json_size import MAX_BYTES
from devicecore.system.files import read_file
from devicecore_tools.doctor import DEFAULT_ROOT
from devicecore_tools.doctor.reading.kubelet_settings import configuration_of, serves
from devicecore_tools.doctor.reading.large_documents import parse_document, read_document_file
from devicecore_tools.numa import CPU_FILE, MACHINE_FILE, MEMORY_FILE

_FIELDS = {CPU_FILE: "cpuManagerPolicy", MEMORY_FILE: "memoryManagerPolicy"}
_NONE = {"", "none"}


@frozen
class ManagersSeen:
    """What was read about a kubelet's CPU manager and memory manager.

    Attributes:
        configured: the known fields of the kubelet's configuration.
        configuration: the configured fields, plus the policies from the state files.
        files: the unchanged contents of the state files, by name.
        machine: the machine as described by cAdvisor, or None for this machine.
        knows_machine: whether `machine` is known to be the kubelet's machine.
        problem: why the managers' decisions are unpredictable, or an empty string if they may be predictable.
        errors: why a state file cannot be read, by name.
    """

    configured: Mapping[str, object]
    configuration: Mapping[str, object]
    files: Mapping[str, bytes]
    machine: object = None
    knows_machine: bool = False
    problem: str = ""
    errors: Mapping[str, OSError] = field(factory=dict)

    def file(self, name: str) -> bytes:
        """Return the contents of a state file. Raises OSError if it cannot be read."""
        if name not in self.files:
            raise self.errors[name]
        return self.files[name]

    @property
    def has_policy(self) -> bool:
        """Whether either manager pins anything for containers."""
        return self.cpus_are_pinned or self.memory_is_pinned

    @property
    def cpus_are_pinned(self) -> bool:
        """Whether containers get exclusive CPUs."""
        return str(self.configuration.get(_FIELDS[CPU_FILE], "")).lower() not in _NONE

    @property
    def memory_is_pinned(self) -> bool:
        """Whether containers get memory from specific NUMA nodes."""
        return str(self.configuration.get(_FIELDS[MEMORY_FILE], "")).lower() not in _NONE


def read_managers(root: str) -> ManagersSeen:
    """Return the input for both managers from a kubelet's root directory or a record."""
    configured, files, errors, problem = configuration_of(root), dict[str, bytes](), dict[str, OSError](), ""
    configuration = dict(configured)
    for name, of_policy in _FIELDS.items():
        path = Path(root) / name
        try:
            files[name] = read_file(path, MAX_BYTES, follow_links=True)
            said = parse_document(files[name], str(path))["policyName"].text("")
        except FileNotFoundError as error:
            errors[name] = error  # a kubelet creates a missing state file
            continue
        except OSError as error:
            errors[name] = error
            problem = problem or f"{path} cannot be read: {error.strerror}"
            continue
        except DocumentError as error:
            problem = problem or f"{path} cannot be read: {error}"
            continue
        configuration.setdefault(of_policy, said)
    machine, path = None, Path(root) / MACHINE_FILE
    knows_machine = root == DEFAULT_ROOT or serves(root)
    try:
        if os.path.lexists(path):
            machine, knows_machine = read_document_file(str(path)).data, True
        elif not knows_machine:
            problem = problem or f"{root} does not say which CPUs and which memory the machine has"
    except DocumentError as error:
        problem, knows_machine = problem or str(error), False
    if not configured:
        problem = problem or "the kubelet's configuration was not found, so the reserved CPUs and memory are unknown"
    return ManagersSeen(configured, configuration, files, machine, knows_machine, problem, errors)
