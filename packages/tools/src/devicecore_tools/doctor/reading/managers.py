"""What there is of a kubelet's CPU manager and memory manager: its configuration, their files, and the machine.

Law: what belongs to another machine than the kubelet's is not read.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from devicecore.domain.errors import DocumentError
from devicecore.domain.json_size import MAX_BYTES
from devicecore.system.files import read_file
from devicecore_tools.doctor import DEFAULT_ROOT
from devicecore_tools.doctor.reading.kubelet_settings import configuration_of, serves
from devicecore_tools.doctor.reading.large_documents import parse_document, read_document_file
from devicecore_tools.doctor.reading.state_files import CPU_NAME, MEMORY_NAME
from devicecore_tools.numa import MACHINE_FILE

_FIELDS = {CPU_NAME: "cpuManagerPolicy", MEMORY_NAME: "memoryManagerPolicy"}
_NONE = {"", "none"}


@frozen
class ManagersSeen:
    """What was read.

    Attributes:
        configuration: the fields of the kubelet's configuration that are known; the policies, as its files say.
        files: the state files, as they are.
        machine: the machine as cAdvisor describes one; None for this machine.
        problem: why nobody can say what the managers decide; empty if it may be possible.
    """

    configuration: Mapping[str, object]
    files: Mapping[str, bytes]
    machine: object = None
    problem: str = ""

    @property
    def has_policy(self) -> bool:
        """Whether one of the managers gives containers anything of their own."""
        return self.cpus_are_pinned or self.memory_is_pinned

    @property
    def cpus_are_pinned(self) -> bool:
        """Whether containers get exclusive CPUs."""
        return str(self.configuration.get(_FIELDS[CPU_NAME], "")).lower() not in _NONE

    @property
    def memory_is_pinned(self) -> bool:
        """Whether containers get memory of certain NUMA nodes."""
        return str(self.configuration.get(_FIELDS[MEMORY_NAME], "")).lower() not in _NONE


def read_managers(root: str) -> ManagersSeen:
    """Return what a kubelet's root directory, or a record, has of the two managers."""
    configuration, files, problem = dict[str, object](configuration_of(root)), dict[str, bytes](), ""
    is_certain = bool(configuration)
    for name, of_policy in _FIELDS.items():
        path = Path(root) / name
        try:
            files[name] = read_file(path, MAX_BYTES, follow_links=True)
            said = parse_document(files[name], str(path))["policyName"].text("")
        except FileNotFoundError:
            continue  # a kubelet makes one
        except (OSError, DocumentError) as error:
            problem = problem or f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
            continue
        configuration.setdefault(of_policy, said)
    machine, path = None, Path(root) / MACHINE_FILE
    try:
        if os.path.lexists(path):
            machine = read_document_file(str(path)).data
        elif root != DEFAULT_ROOT and not serves(root):
            problem = problem or f"{root} does not say which CPUs and which memory the machine has"
    except DocumentError as error:
        problem = problem or str(error)
    if not is_certain:
        problem = problem or "the kubelet's configuration was not found, so its reserved CPUs and memory are not known"
    return ManagersSeen(configuration, files, machine, problem)
