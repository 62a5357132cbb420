"""One manifest file: the current content, and the content that is in force.

Law: The text in force is the last usable text that shared no pod or claim with another file.
"""

import hashlib
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Self

from attrs import define, evolve

from devicecore.adapters.manifests.pods import Manifest, ManifestError, read_manifest
from devicecore.system.documents import MAX_DOCUMENT_SIZE, text_of
from devicecore.system.files import read_file

_RELIABLE_AFTER = 2.0  # seconds after which a change to a file certainly changes its timestamp


Stamp = tuple[int, int, int, int]
"""Time of the last change, size, inode and device: a file whose stamp differs has changed."""


NOTHING = Manifest("")
"""The content of a file that has never been usable."""


@define(eq=False)
class File:
    """A file among the manifests.

    Attributes:
        name: the file's name in the directory.
        in_force: the last usable content of the file.
        says: the current content of the file, or None if it is not a readable and valid manifest.
        problem: why the current content cannot be used, or None if it can be used.
    """

    name: str
    in_force: Manifest = NOTHING
    says: Manifest | None = None
    problem: ManifestError | None = None
    # the digest of the last text read, or None if no text could be read, so that the next poll tries again
    _digest: bytes | None = None
    _stamp: Stamp | None = None
    _stamp_is_reliable: bool = False

    @classmethod
    def restored(cls, name: str, text: str) -> Self:
        """Return the file with the content that was in force before a restart."""
        try:
            return cls(name, read_manifest(text, name))
        except ManifestError:  # an older version of devicecore may have accepted the text
            return cls(name)

    def is_new(self, stamp: Stamp) -> bool:
        """Return whether the file has changed since it was read."""
        return stamp != self._stamp

    def is_uncertain(self) -> bool:
        """Return whether the file has to be read again although its timestamp has not changed."""
        return self._digest is None or not self._stamp_is_reliable

    def read(self, path: Path, stamp: Stamp) -> bool:
        """Read the file again. Return whether the content or the problem has changed."""
        self._stamp, self._stamp_is_reliable = stamp, time.time() - stamp[0] / 1e9 > _RELIABLE_AFTER
        before, self._digest = self._digest, None
        try:
            # Links are followed, because mounted ConfigMaps consist of them.
            data = read_file(path, MAX_DOCUMENT_SIZE, follow_links=True)
        except OSError as error:
            return self.refuse(ManifestError(self.name, None, "", error.strerror or str(error)))
        self._digest = hashlib.blake2b(data, digest_size=16).digest()
        if self._digest == before:
            return False
        try:
            self.says, self.problem = self._manifest(data), None
        except ManifestError as problem:
            self.refuse(evolve(problem))  # a copy has no traceback, which would keep everything that was read in memory
        return True

    def _manifest(self, data: bytes) -> Manifest:
        text = text_of(data, self.name, error=ManifestError)
        return self.in_force if text and text == self.in_force.text else read_manifest(text, self.name)

    def refuse(self, problem: ManifestError) -> bool:
        """Keep the previous content in force. Return whether this problem is new."""
        self.says = None
        if str(problem) == str(self.problem):
            return False
        self.problem = problem
        return True

    def cannot_be_read(self, problem: str) -> bool:
        """Record that the file's text cannot be read. Return whether this problem is new."""
        self._digest = None
        return self.refuse(ManifestError(self.name, None, "", problem))


def accept(files: Collection[File]) -> bool:
    """Put each file's content in force, unless it shares a pod or claim with content that another file has in force.

    Return whether anything changed.
    """
    new = {file: file.says for file in files if file.says is not None and file.says.text != file.in_force.text}
    kept = {name: file for file in files if file not in new for name in file.in_force.unique_names()}
    claims: dict[str, File] = {}
    for file, says in tuple(new.items()):
        names = tuple(says.unique_names())
        clash = next((name for name in names if name in kept or claims.get(name) in new), None)
        if file in new and clash is None:
            claims |= dict.fromkeys(names, file)
        elif clash is not None:
            _refuse(file, clash, new, kept, claims)
    for file, says in new.items():
        file.in_force, file.problem = says, None
    return bool(new)


def _refuse(file: File, clash: str, new: dict[File, Manifest], kept: dict[str, File], claims: dict[str, File]) -> None:
    """Refuse a file because of a name, and then each file that shares a name with a refused file's content in force."""
    waiting = deque([(file, clash, kept.get(clash) or claims[clash])])
    while waiting:
        loser, name, owner = waiting.popleft()
        if new.pop(loser, None) is None:
            continue
        problem = ManifestError(loser.name, None, "", f"{name} is also in {owner.name}")
        if str(problem) != str(loser.problem):
            loser.problem = problem
        for own in loser.in_force.unique_names():
            kept[own] = loser
            if claims.get(own, loser) is not loser:
                waiting.append((claims[own], own, loser))
