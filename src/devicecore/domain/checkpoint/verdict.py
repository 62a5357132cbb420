"""A report on a checkpoint file that is not to be used.

Law: each file has exactly one verdict, and `judge` never raises.
"""

from enum import Enum

from attrs import frozen

from devicecore.domain.checkpoint.decoding import decode
from devicecore.domain.errors import CorruptCheckpointError, MalformedCheckpointError


class FileVerdict(Enum):
    """Whether the file can be used."""

    OK = "ok"
    CHECKSUM = "checksum"
    MALFORMED = "malformed"
    ABSENT = "absent"


@frozen
class Finding:
    """A verdict with its reasons. Unknown values are None; `problem` is empty if there is none."""

    verdict: FileVerdict
    format: int | None = None
    stored: int | None = None
    computed: int | None = None
    entries: int | None = None
    resources: int | None = None
    problem: str = ""


def judge(blob: bytes | None) -> Finding:
    """Examine the blob of a store."""
    if blob is None:
        return Finding(FileVerdict.ABSENT, problem="there is no checkpoint")
    try:
        found = decode(blob)
    except MalformedCheckpointError as error:
        return Finding(FileVerdict.MALFORMED, problem=error.problem)
    verdict, problem = FileVerdict.OK, ""
    try:
        found.verified()
    except CorruptCheckpointError as error:
        verdict, problem = FileVerdict.CHECKSUM, str(error)
    return Finding(
        verdict,
        found.format,
        found.stored,
        found.computed,
        len(found.data.entries or ()),
        len(found.data.registered_devices or ()),
        problem,
    )
