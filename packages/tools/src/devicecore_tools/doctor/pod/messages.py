"""Explains a kubelet's refusals with the rows of the table `messages.toml`.

Law: each message from kubelets 1.29 to 1.37 matches one row. The catch-all rows are tried last.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import chain

from attrs import frozen

from devicecore.domain.text import foreign_text

MAX_MESSAGE = 16_000
"""The maximum number of characters of a message that are read. Messages on the API server are shorter."""

NEXT: Mapping[str, str] = {
    "final": (
        "The pod stays Failed: a kubelet decides about a pod only once. Its owner may create new pods, which can fail "
        "in the same way. The failed pods remain until a user or a controller deletes them."
    ),
    "container": "The kubelet retries every 10 to 15 seconds, indefinitely.",
    "prepare": "The kubelet retries every 60 to 90 seconds, and whenever the pod changes.",
    "resize": "The pod keeps running with its old size. The kubelet retries only a deferred resize.",
    "claim": (
        "The pod stays Pending, and no kubelet has seen it. The controller manager retries with increasing delays. "
        "The scheduler waits for the claim."
    ),
    "unknown": (
        "A refused pod stays Failed. If a container is waiting (CreateContainerConfigError), the kubelet retries "
        "every 10 to 15 seconds."
    ),
    "log": "The pod cannot terminate. The kubelet retries about every 10 seconds.",
}
"""What happens after a refusal."""

PREFIXES: Mapping[str, tuple[str, ...]] = {
    "": ("Pod was rejected: ", "Error: "),
    "container": ("Error: ", "CreateContainerConfigError: "),
    "prepare": ("Failed to prepare dynamic resources: ",),
}
"""The prefixes that each kind of kubelet message may have. In a container's status, the reason replaces the prefix."""

_INNER_PREFIX = {"prepare": "(?:prepare dynamic resources: )?"}
_NUMBERS = frozenset(
    "available capacity cpus_per_core got held remaining requested skipped used".split()  # noqa: SIM905 - a list of words
)
_TEXTS = frozenset(
    "cause cdi_devices claim_uid endpoint json prefix response".split()  # noqa: SIM905 - as above
)
_CONTRADICTION = " The numbers contradict this: they show that enough is available, so no kubelet wrote this text."
_READ_IT_AGAIN = "Read the original message again: kubectl get pod NAME -o jsonpath='{.status.message}'."
# resource names are the longest, with 317 characters; without a bound, matching two names takes quadratic time
_NAME = r'[^\s"]{1,400}?'
_WHOLE_WORD = re.compile(r"(?<= )[^ ]+(?= )")
_TOKEN = re.compile(r"\[\[|\]\]|\{\{|\}\}|\[|\]|\{(\w+)\}|[^\[\]{}]+")


@frozen
class Message:
    """One row: a message and its meaning. `because` and `change` refer to the message's values by names in braces.

    Every string that a pattern matches contains the literal with the same index.
    """

    id: str
    manager: str
    next: str
    because: str
    change: str
    patterns: tuple[re.Pattern[str], ...]
    literals: tuple[str, ...]
    prefix: str = ""
    issues: tuple[str, ...] = ()

    @property
    def is_last_resort(self) -> bool:
        """Whether the row covers all messages that no other row covers."""
        return self.id.endswith("-99")


@frozen
class Match:
    """A message and its row. `values` are the values that the kubelet inserted into the message."""

    message: Message
    values: Mapping[str, str]
    text: str

    @property
    def because(self) -> str:
        """The reason for the decision, in a sentence."""
        return self._filled(self.message.because) + (_CONTRADICTION if self.contradicts_itself else "")

    @property
    def change(self) -> str:
        """The necessary change, in a sentence."""
        return _READ_IT_AGAIN if self.contradicts_itself else self._filled(self.message.change)

    @property
    def contradicts_itself(self) -> bool:
        """Whether enough was available according to the numbers, so that no kubelet can have written the message."""
        requested, capacity, used = map(self.number, ("requested", "capacity", "used"))
        left = self.number("available") if "available" in self.values else self.number("got")
        if capacity is not None and used is not None:
            left = capacity - used
        return requested is not None and left is not None and requested <= left

    def number(self, name: str) -> int | None:
        """Return the message's count with this name, or None if the message has no such count."""
        return int(self.values[name]) if name in self.values else None

    def _filled(self, text: str) -> str:
        values = {name: foreign_text(value, 300) for name, value in self.values.items()}
        if {"requested", "available"} <= values.keys():
            values["missing"] = str(int(values["requested"]) - int(values["available"]))
        return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], "it"), text)


def find(text: str) -> Match | None:
    """Return the match between a kubelet's refusal and a row of the table, or None if no row matches the text.

    `text` is the message from a pod's status, an event or a waiting container.
    """
    text = text[:MAX_MESSAGE].strip()
    for _, message, pattern in sentences_in(text):
        stripped = without_prefix(text, message.prefix)
        if stripped is not None and (found := pattern.fullmatch(stripped)):
            values = {name: value for name, value in found.groupdict().items() if value is not None}
            return Match(message, values, text)
    return None


def sentences_in(text: str) -> Iterator[tuple[int, Message, re.Pattern[str]]]:
    """Yield the table's messages that a string may contain, with their indices, in the order in which they are tried.

    Pasted text may have 100,000 lines, so most messages are ruled out by comparing words, not patterns.
    """
    places, without_word = _sentences_by_word()
    of_words = (places[word] for word in places.keys() & text.split())
    for place in sorted(chain(without_word, *of_words)):
        message, pattern, literal = _sentences()[place]
        if literal in text:
            yield place, message, pattern


@cache
def _sentences() -> tuple[tuple[Message, re.Pattern[str], str], ...]:
    return tuple(
        (message, pattern, literal)
        for message in messages()
        for pattern, literal in zip(message.patterns, message.literals, strict=True)
    )


@cache
def _sentences_by_word() -> tuple[Mapping[str, list[int]], list[int]]:
    """Return the messages' indices by the longest word in their literal, and the indices of messages without a word."""
    by_word: dict[str, list[int]] = {}
    without_word: list[int] = []
    for place, (_, _, literal) in enumerate(_sentences()):
        words = _WHOLE_WORD.findall(literal)
        (by_word.setdefault(max(words, key=len), []) if words else without_word).append(place)
    return by_word, without_word


@cache
def messages() -> tuple[Message, ...]:
    """Return all rows of the table, in the order in which they are tried."""
    table = tomllib.loads(files(__package__).joinpath("messages.toml").read_text(encoding="utf-8"))
    return tuple(_rows(table["message"]))


def _rows(table: list[dict[str, object]]) -> Iterator[Message]:
    for row in table:
        prefix = str(row.get("prefix", ""))
        texts, issues = row["texts"], row.get("issues", [])
        assert isinstance(texts, list)  # noqa: S101 - our own file
        assert isinstance(issues, list)  # noqa: S101 - as above
        patterns = tuple(re.compile(_INNER_PREFIX.get(prefix, "") + _pattern(text), re.DOTALL) for text in texts)
        yield Message(
            id=str(row["id"]),
            manager=str(row["manager"]),
            next=str(row["next"]),
            because=str(row["because"]),
            change=str(row["change"]),
            patterns=patterns,
            literals=tuple(map(_literal, texts)),
            prefix=prefix,
            issues=tuple(map(str, issues)),
        )
        if isinstance(bare := row.get("bare"), dict):
            yield from _rows([row | bare | {"prefix": "", "bare": None}])


def without_prefix(text: str, prefix: str = "") -> str | None:
    """Return the string without the kubelet's prefix for this kind of message.

    Return None if a required prefix is missing.
    """
    for known in PREFIXES[prefix]:
        if text.startswith(known):
            return text.removeprefix(known)
    return None if prefix else text


def _pattern(text: str) -> str:
    """Return a regular expression for a message in the table."""
    parts, seen = [], set[str]()
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "[[" | "]]" | "{{" | "}}" as doubled:
                parts.append(re.escape(doubled[0]))
            case "[":
                parts.append("(?:")
            case "]":
                parts.append(")?")
            case _ if name := token[1]:
                kind = r"-?\d{1,18}" if name in _NUMBERS else ".*" if name in _TEXTS else _NAME
                parts.append(kind if name in seen else f"(?P<{name}>{kind})")
                seen.add(name)
            case plain:
                parts.append(re.escape(plain))
    return "".join(parts)


def _literal(text: str) -> str:
    """Return the longest fixed part of a message in the table."""
    depth, parts = 0, [""]
    for token in _TOKEN.finditer(text):
        if token[0] in {"[", "]"}:
            depth += 1 if token[0] == "[" else -1
        elif depth == 0 and token[1] is None and token[0] not in {"[[", "]]", "{{", "}}"}:
            parts.append(token[0])
    return max(parts, key=len)
