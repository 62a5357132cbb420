"""Files for `devicecore checkpoint`: finding the file, reading it, and writing a new one.

Law: no file is overwritten unless the user says so, and the file that was read is never overwritten.
"""

import os
import sys
from pathlib import Path

import click
from attrs import frozen

from devicecore.adapters.file import CHECKPOINT_NAME
from devicecore.domain.checkpoint import FileReport, FileVerdict
from devicecore.domain.dra.state_file import StateReport
from devicecore.domain.errors import StoreError
from devicecore.domain.json_size import MAX_BYTES
from devicecore.domain.text import counted
from devicecore.system.files import DurableFile
from devicecore_tools.checkpoint.salvage import ignored_fields
from devicecore_tools.command.inputs import read_input
from devicecore_tools.command.output import writing

NEGATIVE, UNUSABLE = 1, 2
"""The exit statuses for a bad file, and for a file that is missing or unreadable."""

_EXPECTED = "expected a kubelet's kubelet_internal_checkpoint or dra_manager_state"
_PLUGINS = "device-plugins"
_MODE = 0o600  # the mode of the file that a kubelet writes


@frozen
class ExaminedFile:
    """A checkpoint of plugin devices or of claims, with its verdict.

    `facts` summarizes a readable file.
    """

    file: str
    warnings: tuple[str, ...]
    report: FileReport | StateReport

    @property
    def is_ok(self) -> bool:
        """Whether a kubelet can use the file."""
        return self.report.verdict is FileVerdict.OK

    def status(self, *, strict: bool) -> int:
        """Return the exit status.

        The status is 2 if there is no file, 1 if the file is unusable or, with `strict`, has warnings, and 0 otherwise.
        """
        if self.report.verdict is FileVerdict.ABSENT:
            return UNUSABLE
        return NEGATIVE if not self.is_ok or (strict and self.warnings) else 0

    @property
    def facts(self) -> str:
        """A summary of a readable file, in parentheses."""
        raise NotImplementedError

    @property
    def problem(self) -> str:
        """A sentence that says what is wrong with the file, or an empty string.

        A file that is not JSON is probably of a different kind.
        """
        problem = self.report.problem
        return f"{problem}; {_EXPECTED}" if problem.startswith("not JSON: ") else problem

    @property
    def sentence(self) -> str:
        """The verdict as a sentence for people."""
        verdict = self.report.verdict.value
        return f"{verdict}: {self.problem}" if self.problem else f"{verdict} {self.facts}"


def path_of(file: str) -> str:
    """Return the path of a checkpoint: `file` itself or, if it is a directory, the checkpoint in it.

    The directory may be a device plugin directory or a kubelet's root directory.
    """
    if not os.path.isdir(file):  # noqa: PTH112 - raises nothing
        return file
    here, below = Path(file) / CHECKPOINT_NAME, Path(file) / _PLUGINS / CHECKPOINT_NAME
    return str(below if os.path.lexists(below) and not os.path.lexists(here) else here)


def load(path: str) -> bytes | None:
    """Return the contents of a file, or of standard input if the path is `-`, or None if there is no file.

    Raises StoreError if the file cannot be read.
    """
    if path == "-":
        blob = sys.stdin.buffer.read(MAX_BYTES + 1)
        if len(blob) > MAX_BYTES:
            raise StoreError(path, "read", f"standard input has more than {MAX_BYTES} bytes")
        return blob
    try:
        return read_input(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        parent = os.path.dirname(path) or os.curdir  # noqa: PTH120 - as typed
        # A user who may not enter a directory cannot find out which files are in it.
        is_closed = isinstance(error, PermissionError) and not os.path.exists(f"{parent}/.")  # noqa: PTH110 - keeps dot
        place = parent if is_closed else path
        raise StoreError(os.path.basename(place), "read", f"{place}: {error.strerror}") from error  # noqa: PTH119 - as typed


def lost_fields(blob: bytes) -> list[str]:
    """Return a phrase for each field that is left out of a new file because this version does not know the field."""
    return [
        f"the field {field.name!r} of {field.place}"
        + (f" and of {counted(field.count - 1, 'further place')}" if field.count > 1 else "")
        + ", which this version does not know"
        for field in ignored_fields(blob)
    ]


def refuse_to_overwrite(old: str, new: str, *, force: bool) -> None:
    """Check that a command may write the file `new`.

    Raises click.UsageError if `new` is `-`, a directory or the file that was read, or if it exists and `force` is
    False.
    """
    if new == "-":
        raise click.UsageError("expected the name of a new file, got '-'.")
    if os.path.exists(new) and os.path.exists(old) and os.path.samefile(old, new):  # noqa: PTH110, PTH121 - as typed
        message = f"{new} is the input file. This command only writes new files: choose another name."
        raise click.UsageError(message)
    if os.path.isdir(new):  # noqa: PTH112 - as typed
        raise click.UsageError(f"{new} is a directory; expected the name of a new file.")
    if os.path.lexists(new) and not force:
        raise click.UsageError(f"{new} exists. Name another file, or overwrite it with --force.")


def write_new(path: str, blob: bytes) -> None:
    """Write a file durably, or keep the old one. Raises OSError if the file cannot be written."""
    file = DurableFile(Path(path), _MODE)
    with writing(path):
        file.write(blob, file.read())
