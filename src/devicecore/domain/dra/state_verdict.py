"""Whether a file of claims can be used, and whether a file is one.

Law: the verdict on a file that exists is `OK` if and only if a kubelet would start with the file.
"""

import re
from collections.abc import Sequence

from attrs import frozen

from devicecore.domain.checkpoint.go_json import Object, parse
from devicecore.domain.checkpoint.verdict import FileVerdict
from devicecore.domain.dra.state_file import ClaimEntry, decode
from devicecore.domain.errors import CorruptCheckpointError, MalformedCheckpointError

_FIRST_FIELD = re.compile(rb'\s*\{\s*"Data"\s*:\s*(["{])')


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


def is_file_of_claims(blob: bytes) -> bool | None:
    """Return whether a file is one of claims, and not of device plugins. Return None if its content does not say.

    In a file of claims `Data` is a text, in a checkpoint an object.
    """
    if first := _FIRST_FIELD.match(blob):  # of nearly every file, which is not read twice then
        return first[1] == b'"'
    try:
        document = parse(blob)
    except MalformedCheckpointError:
        return None
    if not isinstance(document, Object):
        return None
    fields = {name.lower(): value for name, value in document}
    if "data" in fields and fields["data"] is not None:
        return isinstance(fields["data"], str)
    return True if isinstance(fields.get("entries"), list) else None
