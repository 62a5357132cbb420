"""Whether a file of claims can be used.

Law: the verdict on a file that exists is `OK` if and only if a kubelet would start with the file.
"""

from collections.abc import Sequence

from attrs import frozen

from devicecore.domain.checkpoint.verdict import FileVerdict
from devicecore.domain.dra.state_file import ClaimEntry, decode
from devicecore.domain.errors import CorruptCheckpointError, MalformedCheckpointError


@frozen
class StateReport:
    """A verdict on a file with its reasons. Unknown values are None, and `problem` is empty if nothing is wrong."""

    verdict: FileVerdict
    stored: int | None = None
    computed: int | None = None
    entries: Sequence[ClaimEntry] | None = None
    problem: str = ""


def judge(blob: bytes | None) -> StateReport:
    """Examine a file without using it; None is no file. It never raises."""
    if blob is None:
        return StateReport(FileVerdict.ABSENT, problem="there is no file of claims")
    try:
        found = decode(blob)
    except MalformedCheckpointError as error:
        return StateReport(FileVerdict.MALFORMED, problem=error.problem)
    except CorruptCheckpointError as error:
        return StateReport(FileVerdict.CHECKSUM, error.stored, error.computed, problem=str(error))
    return StateReport(FileVerdict.OK, found.stored, found.computed, found.entries)
