"""Semantic versions, as Kubernetes' CEL functions understand them.

Law: two versions are compared as semver.org specifies; the part after a plus is ignored.
"""

import re
from functools import total_ordering

from attrs import frozen

from devicecore.domain.names import is_semantic_version

_MAX_LENGTH = 256


@total_ordering
@frozen(order=False)
class SemanticVersion:
    """A version without its build metadata."""

    numbers: tuple[int, int, int]
    before: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, *, normalize: bool = False) -> "SemanticVersion":
        """Parse a version such as `1.2.3-rc.1+build`. Raises ValueError for any other text.

        `normalize` allows a leading `v`, leading zeros and missing numbers.
        """
        written = _normalized(text) if normalize else text
        if len(text) > _MAX_LENGTH or not is_semantic_version(written):
            message = f"{text[:_MAX_LENGTH]!r} is not a semantic version"
            raise ValueError(message)
        major, minor, patch, *before = re.split(r"[.-]", written.partition("+")[0], maxsplit=3)
        identifiers = tuple(before[0].split(".")) if before else ()
        if any(part.isdigit() and int(part) >= 2**64 for part in (major, minor, patch, *identifiers)):
            message = "a number in the version is too large"
            raise ValueError(message)
        return cls((int(major), int(minor), int(patch)), identifiers)

    def __lt__(self, other: "SemanticVersion") -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[object, ...]:
        # If versions have the same numbers, the version without pre-release identifiers is the newest, and a numeric
        # identifier is older than a word.
        parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.before)
        return self.numbers, not self.before, parts

    def __str__(self) -> str:
        return ".".join(map(str, self.numbers)) + ("-" + ".".join(self.before) if self.before else "")


def _normalized(text: str) -> str:
    parts = [re.sub(r"^0+(?=[0-9])", "", part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3 and re.search("[+-]", parts[-1]):
        return ""  # Kubernetes adds missing numbers only to versions that end with a number
    return ".".join([*parts, "0", "0"][: max(3, len(parts))])
