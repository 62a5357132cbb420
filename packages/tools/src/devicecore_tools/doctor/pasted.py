"""The refusals in a pasted text: an event with its columns, quotes, line breaks, a line of a log.

Law: a text that `find` knows gives the same answer here, and no other. Text around it and line breaks in it change
nothing.
"""

import re
from collections.abc import Iterator
from functools import cache
from operator import itemgetter

from devicecore_tools.doctor.messages import MAX_MESSAGE, PREFIXES, Match, find, sentences_in

_FIELDS = "message|reason|status|phase|events|type|kind|name|namespace|node|count|action|involvedObject|lastTimestamp"
_RECORD = re.compile(
    r"\s*(?:(?:\S+\s+){0,3}?(?:Warning|Normal)\s|[IWEF]\d{4} |"
    rf"[\"']?(?i:{_FIELDS})[\"']?:(?:\s|$)|[{{}}\[\]],?\s*$)"
)
"""How a line begins that does not continue the one before: an event, a line of a log, or a field."""

_START = r"(?:^|(?<=[\s:=\"'`(\[>|]))"
_END = r"(?=[.,;:)\]\"'`]*(?:\s|$))"
_AROUND = " \t\r\n\"'`>|\ufeff"
_SHORTEST = 15  # characters of the shortest refusal; a pasted text may have 600,000 lines that are shorter
_UNEXPECTED = "which is unexpected"


def find_all(text: str) -> tuple[Match, ...]:
    """Return each refusal in a text, once.

    Args:
        text: a sentence of a kubelet, or what `kubectl describe`, `kubectl get events` or a log prints around it.
    """
    known = find(text)
    if known is not None and not known.message.is_last_resort:
        return (known,)
    found: dict[object, Match] = {}
    for record in _records(text):
        match = _find_in(record)
        if match is not None:
            found.setdefault((match.message.id, tuple(sorted(match.values.items()))), match)
    better = [match for match in found.values() if not match.message.is_last_resort]
    return tuple(better or found.values()) or ((known,) if known else ())


def _records(text: str) -> Iterator[str]:
    """Return the lines of a text. A line that was broken is put together again, with its line breaks."""
    if '\\"' in text or "\\n" in text:
        text = text.replace('\\"', '"').replace("\\n", "\n")
    record: list[str] = []
    for line in text.splitlines():
        if record and (not line.strip() or _RECORD.match(line)):
            yield "\n".join(record)
            record = []
        if line.strip():
            record.append(line)
    if record:
        yield "\n".join(record)


def _find_in(record: str) -> Match | None:
    """Return the refusal in a record. The row for all other sentences is returned only if no other fits."""
    if len(record) < _SHORTEST:
        return None
    broken_words = "".join(line.strip() for line in record.split("\n"))
    readings = [" ".join(record.split())] + ([broken_words] if "\n" in record else [])
    matches = [match for reading in readings for match in _readings(reading[:MAX_MESSAGE])]
    better = (match for match in matches if not match.message.is_last_resort)
    return next(better, matches[0] if matches else None)


def _readings(text: str) -> Iterator[Match]:
    """Return what a text may say, the best first."""
    bare = text.strip(_AROUND)
    for whole in dict.fromkeys((text, bare, bare.rstrip("."))):
        if match := find(whole):
            yield match
    cut = bare.rstrip(".").removesuffix(f", {_UNEXPECTED}")  # users leave out these words, which say nothing
    for whole in (f"{cut}, {_UNEXPECTED}", f"Allocate failed due to {cut}, {_UNEXPECTED}"):
        if (match := find(whole)) and not match.message.is_last_resort:
            yield match
    inside = [
        (found.start(), place, message, found)
        for place, message, pattern in sentences_in(text)
        if (found := _search(message.prefix, pattern).search(text))
    ]
    for _, _, message, found in sorted(inside, key=itemgetter(0, 1)):
        values = {name: value.strip(_AROUND) for name, value in found.groupdict().items() if value is not None}
        yield Match(message, values, found[0])


@cache
def _search(prefix: str, pattern: re.Pattern[str]) -> re.Pattern[str]:
    """Return a pattern that finds a sentence of the table inside of a text."""
    start = re.escape(PREFIXES[prefix][0]) if prefix else ""
    return re.compile(f"{_START}{start}{pattern.pattern}{_END}", re.DOTALL)
