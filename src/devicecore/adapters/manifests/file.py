"""One manifest: what it says now, and what of that is in force.

Law: in force is what a file said last that could be used and was in no other file's way.
"""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Self

from attrs import define, frozen

from devicecore.adapters.manifests.pods import read_pods, unique_names
from devicecore.adapters.manifests.values import ManifestError
from devicecore.domain.model import Pod

LONGEST = 1024 * 1024
"""Bytes of a manifest: an API server takes little more."""

_SETTLED = 2.0  # seconds after which a file's timestamp tells of every further change


Seen = tuple[int, int, int, int]
"""What a file looks like from outside: it is another file, or has changed, when this is different."""


@frozen
class Manifest:
    """A text and the pods in it."""

    text: str
    pods: tuple[Pod, ...]


NOTHING = Manifest("", ())
"""What a file said that was never any good."""


@define(eq=False)
class File:
    """A file among the manifests."""

    name: str
    in_force: Manifest = NOTHING
    says: Manifest | None = None
    """What it says now; None if that cannot be used."""
    problem: ManifestError | None = None
    _read: str | None = None
    """What was read last; None if nothing could be, so that the next look tries again."""
    _seen: Seen | None = None
    _certain: bool = False
    """Whether every change after the one that was seen has another timestamp."""

    @classmethod
    def restored(cls, name: str, text: str) -> Self:
        """The file as it was in force before a restart."""
        try:
            return cls(name, Manifest(text, read_pods(text, name)))
        except ManifestError:  # an older version of this module took it
            return cls(name)

    def look(self, path: Path, seen: Seen) -> None:
        """Read the file again, if there may be anything new in it."""
        if seen == self._seen and self._certain and self._read is not None:
            return
        self._seen, self._certain = seen, time.time() - seen[0] / 1e9 > _SETTLED
        before, self._read = self._read, None
        try:
            text = self._read = _read(path)
            if text == before:
                return
            self.says, self.problem = Manifest(text, read_pods(text, self.name)), None
        except ManifestError as problem:
            self.says = None
            self.refuse(problem)

    def refuse(self, problem: ManifestError) -> None:
        """Leave in force what it said before."""
        if str(problem) != str(self.problem):  # else it is no news
            self.problem = problem


def accept(files: Collection[File]) -> None:
    """Put in force what files say, unless it is in the way of what stays in force in another one."""
    new = {file: file.says for file in files if file.says is not None and file.says.text != file.in_force.text}
    while new:
        taken = {name: file.name for file in files if file not in new for name in unique_names(file.in_force.pods)}
        for file, says in new.items():
            clash = next((name for name in unique_names(says.pods) if name in taken), None)
            if clash:
                file.refuse(ManifestError(file.name, None, "", f"{clash} is in {taken[clash]} too"))
                del new[file]  # so what it said before is what others must not be in the way of
                break
            taken |= dict.fromkeys(unique_names(says.pods), file.name)
        else:
            break
    for file, says in new.items():
        file.in_force, file.problem = says, None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
        if len(data) > LONGEST:
            raise ManifestError(path.name, None, "", f"it has more than {LONGEST} bytes")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise ManifestError(path.name, line, "", "it is not UTF-8 text") from error
    except OSError as error:
        raise ManifestError(path.name, None, "", error.strerror or str(error)) from error
