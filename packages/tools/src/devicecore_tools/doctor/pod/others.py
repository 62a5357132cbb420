"""Identifies messages that come neither from a kubelet's admission nor from the scheduler, and says where to look next.

Law: a third-party message is attributed to its source and explained in one line, without any conclusion about the node.
"""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from attrs import frozen

from devicecore.domain.text import foreign_text
from devicecore_tools.doctor.pod.pasted import records

_MAX_TEXT = 400


@frozen
class Foreign:
    """A message from another program, with the program, the meaning, and what to do or where to look next."""

    text: str
    id: str
    who: str
    because: str
    change: str
    resource: str = ""

    @property
    def is_of_log(self) -> bool:
        """Whether the message is a line of the kubelet's log, not a pod's event."""
        return self.who.startswith("kubelet's log")


_RESOURCE = re.compile(r"(?:resource(?:Name)?=\"?|for device plugin )([a-z0-9.-]{1,253}/[\w.-]{1,63})")
_LONGEST = 16_000  # how many characters of a record are searched


@frozen
class _Row:
    """One row of `others.toml`."""

    id: str
    pattern: re.Pattern[str]
    who: str
    because: str
    change: str

    @property
    def is_of_kubelet(self) -> bool:
        """Whether the kubelet writes this message, in which case the line may name the resource."""
        return self.who.startswith("kubelet")


@cache
def _rows() -> tuple[_Row, ...]:
    document = tomllib.loads(files(__package__).joinpath("others.toml").read_text(encoding="utf-8"))
    return tuple(
        _Row(one["id"], re.compile(one["pattern"], re.IGNORECASE), one["who"], one["because"], one["change"])
        for one in document["sentence"]
    )


def find_foreign(text: str) -> Iterator[Foreign]:
    """Yield the messages from other programs in pasted text, each kind once per resource."""
    seen: set[tuple[str, str]] = set()
    for record in records(text):
        line = " ".join(record.split())[:_LONGEST]
        for row in _rows():
            found = row.pattern.search(line)
            resource = _RESOURCE.search(line)
            named = resource[1] if resource and row.is_of_kubelet else ""
            if found is None or (row.id, named) in seen:
                continue
            seen.add((row.id, named))
            yield Foreign(foreign_text(found[0], _MAX_TEXT), row.id, row.who, row.because, row.change, named)
