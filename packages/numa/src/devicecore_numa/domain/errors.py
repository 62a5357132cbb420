"""Errors of the CPU manager and the memory manager.

Law: `str(error)` is the kubelet's own message where it has one.
"""

from typing import ClassVar

from attrs import frozen

from devicecore.domain.errors import AdmissionError, DeviceCoreError
from devicecore.domain.text import foreign_text


@frozen(repr=False)
class InvalidCpuListError(DeviceCoreError, ValueError):
    """A string is not a list of CPUs."""

    text: str

    def __str__(self) -> str:
        return f"expected a list of CPUs such as 0-3,8, got {foreign_text(self.text, 100)!r}"


@frozen(repr=False)
class NumaConfigError(DeviceCoreError, ValueError):
    """A kubelet cannot start with this configuration."""

    problem: str
    _text = "{problem}"


@frozen(repr=False)
class InvalidStateError(DeviceCoreError):
    """A kubelet cannot start with this state until the node is drained and the state file is removed."""

    problem: str
    _text = "{problem}"


@frozen(repr=False)
class CorruptStateError(InvalidStateError):
    """A state file cannot be read, or its checksum does not match its content."""


@frozen(repr=False)
class CpuAdmissionError(AdmissionError):
    """The CPU manager cannot give a container the CPUs that it requests."""

    problem: str
    _text = "{problem}"


@frozen(repr=False)
class SmtAlignmentError(AdmissionError):
    """With `full-pcpus-only`, a container gets either whole cores or nothing.

    `available` is None if the request is not for whole cores. A kubelet refuses the pod with the reason
    `SMTAlignmentError` and this message alone.
    """

    reason: ClassVar[str] = "SMTAlignmentError"

    requested: int
    per_core: int
    available: int | None = None

    def __str__(self) -> str:
        if self.available is None:
            return f"SMT Alignment Error: requested {self.requested} cpus not multiple cpus per core = {self.per_core}"
        return (
            "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = "
            f"{self.available}, requested CPUs = {self.requested}, CPUs per core = {self.per_core}"
        )


@frozen(repr=False)
class EndlessSearchError(AdmissionError):
    """Kubernetes' search for CPUs would never end for this request: a kubelet would hang and admit no more pods.

    This happens with `distribute-cpus-across-numa` if the remaining CPUs cannot be distributed in whole groups.
    """

    requested: int
    _text = "a kubelet's search for {requested} CPUs distributed across NUMA nodes does not end"


@frozen(repr=False)
class MemoryAdmissionError(AdmissionError):
    """The memory manager cannot give a container the memory that it requests."""

    problem: str
    _text = "[memorymanager] {problem}"
