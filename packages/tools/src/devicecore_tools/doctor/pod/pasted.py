"""Finds refusals in pasted text, such as an event with its columns, quoted text, wrapped lines or a log line.

Law: for a string that `find` recognizes, this module returns exactly the same answer. Surrounding text and line breaks
make no difference.
"""

import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from itertools import chain
from operator import itemgetter

from devicecore_tools.doctor.pod.messages import MAX_MESSAGE, PREFIXES, Match, find, sentences_in

_FIELDS = "message|reason|status|phase|events|type|kind|name|namespace|node|count|action|involvedObject|lastTimestamp"
_RECORD = re.compile(
    r"\s*(?:(?:\S+\s+){0,3}?(?:Warning|Normal)\s|[IWEF]\d{4} |"
    rf"[\"']?(?i:{_FIELDS})[\"']?:(?:\s|$)|[{{}}\[\]],?\s*$)"
)
"""The start of a line that does not continue the previous line: an event, a log line or a field."""

_START = r"(?:^|(?<=[\s:=\"'`(\[>|]))"
_END = r"(?=[.,;:)\]}\"'`<]*(?:\s|$))"
_AROUND = " \t\r\n\"'`>|"
_DRESSING = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\ufeff|^[ \t]*>[> \t]*", re.MULTILINE)
"""Colors, a byte-order mark, and the prefix of a quoted line."""

_TAGS = re.compile(r"</?(?:td|th|tr|p|br|pre|code|span|div|li)\b[^<>]*>")
_ESCAPED = re.compile(r"\\+([\"n])")  # a JSON string, possibly inside another JSON string
_TYPOGRAPHIC = str.maketrans("\u201c\u201d\u2018\u2019\u00a0", "\"\"'' ")
_SHORTEST = 15  # characters of the shortest refusal; pasted text may have 600,000 lines that are shorter
_ALLOCATE, _UNEXPECTED = "Allocate failed due to ", ", which is unexpected"
_LOGGED = re.compile(r'" err="([^"]+(?:"[^"=]+"[^"]+)*)"(?= \w+=|$)')
_INSIDE_OF_ANOTHER = re.compile(rf"{_ALLOCATE}\s*$|Pod resize \S+: \{{")
"""Matches the text before a message that a longer message quotes. Only the longer one says what happens to the pod."""


def find_all(text: str) -> tuple[Match, ...]:
    """Return each refusal in a string, once.

    Args:
        text: a kubelet's message, alone or in the output of `kubectl describe`, `kubectl get events` or a log.
    """
    return parted(text)[0]


def parted(text: str) -> tuple[tuple[Match, ...], str]:
    """Return the refusals in a string, and the remaining lines, which other programs may have written."""
    known = find(text)
    if known is not None and not known.message.is_last_resort:
        return (known,), ""
    found: dict[object, Match] = {}
    others = []
    for record in records(text):
        match = _find_in(record)
        if match is not None:
            found.setdefault((match.message.id, tuple(sorted(match.values.items()))), match)
        if match is None or match.message.is_last_resort:
            others.append(record)
    better = [match for match in found.values() if not match.message.is_last_resort]
    return tuple(better or found.values()) or ((known,) if known else ()), "\n".join(others)


def warnings_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield each warning in a table of events from `kubectl describe` or `kubectl get events`.

    Each warning consists of the reason and the rest of the line.
    """
    for record in records(text):
        if row := _WARNING.match(" ".join(record.split())):
            yield row[1], row[2]


_WARNING = re.compile(r"(?:\S+ ){0,3}?Warning ([A-Z]\w{1,60}) (.{1,4000})")


def records(text: str) -> Iterator[str]:
    """Yield the lines of a string. The parts of a wrapped line form one element that keeps its line breaks."""
    record: list[str] = []
    for line in _plain(text).splitlines():
        if record and (not line.strip() or _RECORD.match(line)):
            yield "\n".join(record)
            record = []
        if line.strip():
            record.append(line)
    if record:
        yield "\n".join(record)


def _plain(text: str) -> str:
    """Return a string without the characters that terminals, mail, web pages, word processors, JSON and YAML add."""
    text = unescape(_TAGS.sub(" ", _DRESSING.sub("", text))).translate(_TYPOGRAPHIC).replace("''", "'")
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else '"', text)


def _find_in(record: str) -> Match | None:
    """Return the refusal in a record. The catch-all row is used only if no other row matches."""
    if len(record) < _SHORTEST:
        return None
    readings = [" ".join(record.split())]
    if "\n" in record:  # the text may be wrapped within words, with or without spaces at line ends
        readings += [" ".join(record.replace("\n", "").split()), "".join(map(str.strip, record.split("\n")))]
    found = [[*_readings(reading[:MAX_MESSAGE])] for reading in readings]
    better = [next((one for one in matches if not one.message.is_last_resort), None) for matches in found]
    better += [_in_log(reading) for reading in readings[:1]]
    # Prefer the longest match: a shorter one may be only the last words of the message.
    whole = max(filter(None, better), key=lambda match: len(match.text), default=None)
    return whole or next(chain.from_iterable(found), None)


def _in_log(line: str) -> Match | None:
    """Return the refusal in a kubelet's log line. The error in such a line lacks the prefix that an event has."""
    for error in _LOGGED.finditer(line[:MAX_MESSAGE]):
        match = find(f"{PREFIXES['prepare'][0]}{error[1]}")
        if match is not None and not match.message.is_last_resort:
            return match
    return None


def _readings(text: str) -> Iterator[Match]:
    """Yield the refusals that a string may contain, best first."""
    bare = text.strip(_AROUND)
    for whole in dict.fromkeys((text, bare, bare.rstrip("."))):
        if match := find(whole):
            yield match
    cut = _without_end(bare)
    for whole in (f"{cut}{_UNEXPECTED}", f"{_ALLOCATE}{cut}{_UNEXPECTED}"):
        if (match := find(whole)) and not match.message.is_last_resort:
            yield match
    is_cut = _ALLOCATE in text and _UNEXPECTED not in text
    text = f"{cut}{_UNEXPECTED}" if is_cut else text
    inside = [
        (found.start(), place, message, found)
        for place, message, pattern in sentences_in(text)
        if (found := _search(message.prefix, pattern).search(text))
        and not (is_cut and message.is_last_resort)
        and not _INSIDE_OF_ANOTHER.search(found.string, 0, found.start())
    ]
    for _, _, message, found in sorted(inside, key=itemgetter(0, 1)):
        values = {name: value.strip(_AROUND) for name, value in found.groupdict().items() if value is not None}
        yield Match(message, values, found[0])


def _without_end(text: str) -> str:
    """Return a refusal without the last words of the kubelet's wording, which users and tables often cut off."""
    text = text.rstrip(".\u2026")
    return next(text[: len(text) - n] for n in range(len(_UNEXPECTED), -1, -1) if text.endswith(_UNEXPECTED[:n]))


@cache
def _search(prefix: str, pattern: re.Pattern[str]) -> re.Pattern[str]:
    """Return a pattern that finds a message from the table within a string."""
    start = re.escape(PREFIXES[prefix][0]) if prefix else ""
    return re.compile(f"{_START}{start}{pattern.pattern}{_END}", re.DOTALL)
