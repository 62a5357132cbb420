"""A report on a checkpoint file, for callers that only want to know its condition.

Law: each file has exactly one verdict, and `judge` never raises an error.
"""

from enum import Enum

from attrs import frozen

from devicecore.domain.checkpoint.decoding import decode
from devicecore.domain.checkpoint.entries import CheckpointData
from devicecore.domain.errors import CorruptCheckpointError, MalformedCheckpointError


class FileVerdict(Enum):
    """Whether the file can be used."""

    OK = "ok"
    CHECKSUM = "checksum"
    MALFORMED = "malformed"
    ABSENT = "absent"


@frozen
class FileReport:
    """A verdict with its reasons. Unknown values are None, and `problem` is empty if nothing is wrong."""

    verdict: FileVerdict
    format: int | None = None
    stored: int | None = None
    computed: int | None = None
    entries: int | None = None
    resources: int | None = None
    problem: str = ""


def judge(blob: bytes | None) -> FileReport:
    """Examine the content of a checkpoint file. `None` means there is no file."""
    return examine(blob)[0]


def examine(blob: bytes | None) -> tuple[FileReport, CheckpointData | None]:
    """Examine the content of a checkpoint file as `judge` does. Return the report, and the data if it is readable."""
    if blob is None:
        return FileReport(FileVerdict.ABSENT, problem="there is no checkpoint"), None
    try:
        found = decode(blob)
    except MalformedCheckpointError as error:
        return FileReport(FileVerdict.MALFORMED, problem=error.problem), None
    verdict, problem = FileVerdict.OK, ""
    try:
        found.verified()
    except CorruptCheckpointError as error:
        verdict, problem = FileVerdict.CHECKSUM, str(error)
    counts = len(found.data.entries or ()), len(found.data.registered_devices or ())
    return FileReport(verdict, found.format, found.stored, found.computed, *counts, problem), found.data
