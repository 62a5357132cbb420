"""The functions that Kubernetes adds to CEL: quantities, versions, addresses, lists, regular expressions.

Law: each function takes the same arguments and has the same result as in Kubernetes. Values of types that CEL does not
know are messages, and equal values of one type have equal texts. The size of every function's result is bounded.
"""

import ipaddress
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, urlsplit

from attrs import evolve, frozen
from cel_expr_python import cel
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from devicecore.adapters.cel.versions import SemanticVersion
from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.quantity import MAX_QUANTITY, Quantity

MAX_MADE = 64 * 1024
"""The maximum length of a string that `replace` or `join` returns, and of a list that `lists.range` returns."""

_NANO = 10**9
_MAX_FOUND = 1000
_MAX_INCLUDED = 48

TYPES = ("Quantity", "Semver", "URL", "IP", "CIDR")

# For type checking, each type has a message. At run time, the library knows only that a value is a message, so it
# cannot distinguish functions of the same name for two types. For evaluation, one message represents all types, and a
# field of this message names the type.
POOL = descriptor_pool.DescriptorPool()
_FILE = descriptor_pb2.FileDescriptorProto(name="kubernetes/selectors.proto", package="kubernetes", syntax="proto3")
for _name in (*TYPES, "Value"):
    _FILE.message_type.add(name=_name)
for _number, _name in enumerate(("type", "text"), 1):
    _FILE.message_type[-1].field.add(name=_name, number=_number, type=9, label=1)
# Go's representation of a quantity records whether it is an integer, which does not matter when quantities are
# compared. The sign of a zero records this, because 0.0 and -0.0 are equal.
_FILE.message_type[-1].field.add(name="zero", number=3, type=1, label=1, proto3_optional=True, oneof_index=0)
_FILE.message_type[-1].oneof_decl.add(name="_zero")
POOL.AddSerializedFile(_FILE.SerializeToString())
_MESSAGE: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("kubernetes.Value"))


class CelValue(Protocol):
    """A value of a type that CEL does not know."""

    type: str
    text: str
    zero: float


VALUE = cel.Type("kubernetes.Value")
QUANTITY, SEMVER, URL, IP, CIDR = (cel.Type(f"kubernetes.{name}") for name in TYPES)
_BOOL, _INT, _TEXT, _FLOAT, _ANY = cel.Type.BOOL, cel.Type.INT, cel.Type.STRING, cel.Type.DOUBLE, cel.Type.DYN
_NUMBERS = (_INT, cel.Type.UINT, _FLOAT)
_PLAIN = (*_NUMBERS, _BOOL, _TEXT, cel.Type.BYTES)
_LIST, _TEXTS = cel.Type.List(_ANY), cel.Type.List(_TEXT)


def _value(kind: str, text: str, zero: float = 0.0) -> CelValue:
    found: CelValue = _MESSAGE(type=f"kubernetes.{kind}", text=text, zero=zero)
    return found


def quantity_message(quantity: Quantity) -> CelValue:
    """Return a quantity as a CEL value."""
    return _value("Quantity", str(quantity.nanos), 0.0 if quantity.is_int64 else -0.0)


@lru_cache(maxsize=256)  # cached, because the devices of a node have few different versions
def version_message(text: str, *, normalize: bool = False) -> CelValue:
    """Return a version as a CEL value. Raises ValueError if `text` is not a version."""
    return _value("Semver", str(SemanticVersion.parse(text, normalize=normalize)))


def _nanos(message: CelValue) -> int:
    return int(message.text)


def _version(message: CelValue) -> SemanticVersion:
    return SemanticVersion.parse(message.text)


def _order(left: Any, right: Any) -> int:  # noqa: ANN401 - anything that has an order
    return int(left > right) - int(left < right)


def _integer(message: CelValue) -> int:
    if not _is_integer(message):
        problem = "cannot convert value to integer"
        raise ValueError(problem)
    return _nanos(message) // _NANO


def _is_integer(message: CelValue) -> bool:
    return math.copysign(1, message.zero) > 0 and abs(_nanos(message)) <= MAX_QUANTITY * _NANO


def _sum_of(left: CelValue, right: "CelValue | int", sign: int) -> CelValue:
    other = quantity_message(Quantity.of(right, binary=False)) if isinstance(right, int) else right
    parts = [one for one in (left, other) if _nanos(one)] or [left]  # adding 0 does not change Go's representation
    return quantity_message(Quantity(_nanos(left) + sign * _nanos(other), is_int64=all(map(_is_integer, parts))))


def _succeeds(parse: Callable[..., object]) -> Callable[..., bool]:
    def whether(*arguments: object) -> bool:
        try:
            parse(*arguments)
        except (ValueError, InvalidQuantityError):
            return False
        return True

    return whether


def _parse_url(text: str) -> CelValue:
    if not urlsplit(text).scheme and not text.startswith("/"):
        message = f"URL parse error: {text[:100]!r}"
        raise ValueError(message)
    return _value("URL", text)


def _parse_ip(text: str) -> CelValue:
    address = ipaddress.ip_address(text)
    if "%" in text or getattr(address, "ipv4_mapped", None):
        message = f"IP address {text[:100]!r} has a zone or is IPv4-mapped"
        raise ValueError(message)
    return _value("IP", str(address))


def _parse_cidr(text: str) -> CelValue:
    address, _, bits = text.partition("/")
    if not re.fullmatch("0|[1-9][0-9]*", bits):
        message = f"network address {text[:100]!r} parse error"
        raise ValueError(message)
    return _value("CIDR", str(ipaddress.ip_interface(f"{_parse_ip(address).text}/{bits}")))


def _address(one: "CelValue | str") -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address((_parse_ip(one) if isinstance(one, str) else one).text)


def _network(one: "CelValue | str") -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    return ipaddress.ip_interface((_parse_cidr(one) if isinstance(one, str) else one).text)


def _contains(outer: CelValue, inner: "CelValue | str") -> bool:
    network, other = _network(outer).network, _network(inner).network
    first, last = other.network_address, other.broadcast_address
    return first in network and last in network


def _is_global_unicast(one: CelValue) -> bool:
    ip = _address(one)
    is_other = ip.is_multicast or ip.is_unspecified or ip.is_loopback or ip.is_link_local
    return not is_other and one.text != "255.255.255.255"


def _check_made(length: int) -> int:
    if not 0 <= length <= MAX_MADE:
        message = f"expected 0 to {MAX_MADE} characters or elements, got {length}"
        raise ValueError(message)
    return length


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    times = text.count(old) if limit < 0 else min(limit, text.count(old))
    _check_made(len(text) + times * (len(new) - len(old)))
    return text.replace(old, new, limit)


def _join(texts: Sequence[str], between: str = "") -> str:
    _check_made(sum(map(len, texts)) + max(len(texts) - 1, 0) * len(between))
    return between.join(texts)


def _includes(values: Any, value: object) -> bool:  # noqa: ANN401 - a list, or one value
    elements = values if isinstance(values, list) else [values]
    if any(_is_same(one, value) for one in elements[:_MAX_INCLUDED]):
        return True
    if len(elements) > _MAX_INCLUDED:
        message = f"'includes' function cannot be applied to lists longer than {_MAX_INCLUDED} values"
        raise ValueError(message)
    return False


def _is_same(one: object, other: object) -> bool:
    """Return whether two values are equal in CEL.

    Numbers of different types may be equal; a number and a bool never are.
    """
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _comparable(left: object, right: object) -> bool:
    """Return true if Kubernetes can compare the values.

    Raise ValueError if `left` is a version and `right` has a different type.
    """
    if getattr(left, "type", None) not in (None, getattr(right, "type", None)):
        problem = "no such overload"
        raise ValueError(problem)
    return True


def _are_unlike_versions(left: object, right: list[object]) -> bool:
    """Return whether a list of versions is compared with an equally long list that contains no versions."""
    return (
        isinstance(left, list)
        and len(left) == len(right) > 0
        and all(getattr(one, "type", None) for one in left)
        and not any(getattr(one, "type", None) for one in right)
    )


def _sum(values: Sequence[Any]) -> object:
    total = sum(values[1:], start=values[0]) if values else 0
    if isinstance(total, int) and abs(total) > MAX_QUANTITY:  # unsigned numbers cannot be told apart here
        problem = "integer overflow"
        raise ValueError(problem)
    return total


def _index(elements: Sequence[object], wanted: object, *, last: bool = False) -> int:
    found = [index for index, one in enumerate(elements) if type(one) is type(wanted) and one == wanted]
    return (found[-1] if last else found[0]) if found else -1


@frozen
class _Row:
    """An overload of a function. A member function is called on its first argument."""

    name: str
    result: "cel.Type"
    arguments: list["cel.Type"]
    does: Callable[..., object]
    is_member: bool = False


_member = partial(_Row, is_member=True)


def _rows() -> Iterator[_Row]:
    """Yield each overload."""
    yield from _conversions()
    yield from _numbers()
    yield from _addresses()
    yield from _texts_and_lists()
    yield _Row("comparable", _BOOL, [_ANY, _ANY], _comparable)
    yield _Row("unlike_versions", _BOOL, [_ANY, _LIST], _are_unlike_versions)
    yield _member("includes", _BOOL, [_ANY, _ANY], _includes)


def _conversions() -> Iterator[_Row]:
    for kind, name, parse in (
        (QUANTITY, "Quantity", lambda text: quantity_message(Quantity.parse(text))),
        (SEMVER, "Semver", version_message),
        (URL, "URL", _parse_url),
        (IP, "IP", _parse_ip),
        (CIDR, "CIDR", _parse_cidr),
    ):
        yield _Row(name.lower(), kind, [_TEXT], parse)
        yield _Row(f"is{name}", _BOOL, [_TEXT], _succeeds(parse))
    loose: Callable[[str, bool], CelValue] = lambda text, normalize: version_message(text, normalize=normalize)  # noqa: E731 - a row below
    yield _Row("semver", SEMVER, [_TEXT, _BOOL], loose)
    yield _Row("isSemver", _BOOL, [_TEXT, _BOOL], _succeeds(loose))
    yield _Row("ip.isCanonical", _BOOL, [_TEXT], lambda a: _parse_ip(a).text == a)
    for kind in (IP, CIDR):
        yield _Row("string", _TEXT, [kind], lambda a: a.text)


def _numbers() -> Iterator[_Row]:
    for kind, read in ((QUANTITY, _nanos), (SEMVER, _version)):
        yield _member("isGreaterThan", _BOOL, [kind, kind], lambda a, b, read=read: read(a) > read(b))
        yield _member("isLessThan", _BOOL, [kind, kind], lambda a, b, read=read: read(a) < read(b))
        yield _member("compareTo", _INT, [kind, kind], lambda a, b, read=read: _order(read(a), read(b)))
    yield _Row("sign", _INT, [QUANTITY], lambda a: _order(_nanos(a), 0))
    yield _member("isInteger", _BOOL, [QUANTITY], _is_integer)
    yield _member("asInteger", _INT, [QUANTITY], _integer)
    yield _member("asApproximateFloat", _FLOAT, [QUANTITY], lambda a: _nanos(a) / _NANO)
    for kind in (QUANTITY, _INT):
        yield _member("add", QUANTITY, [QUANTITY, kind], lambda a, b: _sum_of(a, b, 1))
        yield _member("sub", QUANTITY, [QUANTITY, kind], lambda a, b: _sum_of(a, b, -1))
    for index, name in enumerate(("major", "minor", "patch")):
        yield _member(name, _INT, [SEMVER], lambda a, index=index: _version(a).numbers[index])


def _addresses() -> Iterator[_Row]:
    for name, part in (
        ("getScheme", lambda a: urlsplit(a.text).scheme),
        ("getHost", lambda a: urlsplit(a.text).netloc.rpartition("@")[2]),
        ("getHostname", lambda a: urlsplit(a.text).hostname or ""),
        ("getPort", lambda a: str(urlsplit(a.text).port or "")),
        ("getEscapedPath", lambda a: quote(urlsplit(a.text).path, safe="/%:@!$&'()*+,;=~")),
    ):
        yield _member(name, _TEXT, [URL], part)
    queries = cel.Type.Map(_TEXT, _TEXTS)
    yield _member("getQuery", queries, [URL], lambda a: parse_qs(urlsplit(a.text).query, keep_blank_values=True))
    yield _member("family", _INT, [IP], lambda a: _address(a).version)
    yield _member("isUnspecified", _BOOL, [IP], lambda a: _address(a).is_unspecified)
    yield _member("isLoopback", _BOOL, [IP], lambda a: _address(a).is_loopback)
    link_local = "224.0.0.", "ff02"
    yield _member("isLinkLocalMulticast", _BOOL, [IP], lambda a: a.text.startswith(link_local))
    yield _member("isLinkLocalUnicast", _BOOL, [IP], lambda a: _address(a).is_link_local)
    yield _member("isGlobalUnicast", _BOOL, [IP], _is_global_unicast)
    for kind in (_TEXT, IP):
        yield _member("containsIP", _BOOL, [CIDR, kind], lambda a, b: _address(b) in _network(a).network)
    for kind in (_TEXT, CIDR):
        yield _member("containsCIDR", _BOOL, [CIDR, kind], _contains)
    yield _member("ip", IP, [CIDR], lambda a: _parse_ip(str(_network(a).ip)))
    yield _member("prefixLength", _INT, [CIDR], lambda a: _network(a).network.prefixlen)
    yield _member("masked", CIDR, [CIDR], lambda a: _parse_cidr(str(_network(a).network)))


def _texts_and_lists() -> Iterator[_Row]:
    yield _member("find", _TEXT, [_TEXT, _TEXT], _find)
    for more in ([], [_INT]):
        yield _member("findAll", _TEXTS, [_TEXT, _TEXT, *more], _find_all)
        yield _member("bounded_replace", _TEXT, [_TEXT, _TEXT, _TEXT, *more], _replace)
        yield _member("bounded_split", _TEXTS, [_TEXT, _TEXT, *more], _split)
    yield _member("bounded_join", _TEXT, [_TEXTS], _join)
    yield _member("bounded_join", _TEXT, [_TEXTS, _TEXT], _join)
    for kind in (*_PLAIN, cel.Type.DURATION, cel.Type.TIMESTAMP):
        yield _member("isSorted", _BOOL, [cel.Type.List(kind)], lambda a: all(x <= y for x, y in pairwise(a)))
    for kind in _PLAIN:  # the library has no way to return a duration or a time
        yield _member("min", kind, [cel.Type.List(kind)], min)
        yield _member("max", kind, [cel.Type.List(kind)], max)
    for kind in _NUMBERS:
        yield _member("sum", kind, [cel.Type.List(kind)], _sum)
    yield _Row("lists.bounded_range", cel.Type.List(_INT), [_INT], lambda end: list(range(_check_made(end))))
    yield _member("indexOf", _INT, [_LIST, _ANY], _index)
    yield _member("lastIndexOf", _INT, [_LIST, _ANY], lambda a, b: _index(a, b, last=True))


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    """Split a string as Go does: an empty string with an empty separator has no parts."""
    if limit == 0:
        return []
    if separator:
        return text.split(separator, limit - 1 if limit > 0 else -1)
    parts = list(text)
    return parts if not 0 < limit < len(parts) else [*parts[: limit - 1], text[limit - 1 :]]


# Python's own regular expressions can take forever; those of the CEL library cannot.
_REGULAR = cel.NewEnv(
    config=cel.NewEnvConfigFromYaml("extensions: [{name: optional}, {name: regex}]"),
    variables={"text": _TEXT, "pattern": _TEXT},
)
_FIRST, _ALL = map(_REGULAR.compile, ('regex.extract(text, pattern).orValue("")', "regex.extractAll(text, pattern)"))
_PART_OF_PATTERN = re.compile(r"(?s)\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\(\?P?<\w+>|\((?!\?)")


_ESCAPED = re.compile(r"(?s)\\Q.*?(?:\\E|\Z)|\\(.)")
"""The quoted and escaped parts of a regular expression. `\\C` matches a byte in the library, and is an error in Go."""


def _find(text: str, pattern: str, finding: "cel.Expression" = _FIRST) -> Any:  # noqa: ANN401 - a text, or texts
    if any(one[1] == "C" for one in _ESCAPED.finditer(pattern)):
        problem = "error parsing regexp: invalid escape sequence: `\\C`"
        raise ValueError(problem)
    # If the pattern had a group, the library would return the group instead of the whole match.
    whole = _PART_OF_PATTERN.sub(lambda part: "(?:" if part[0].startswith("(") else part[0], pattern)
    result = finding.eval(data={"text": text, "pattern": whole})
    if result.type() == cel.Type.ERROR:
        raise ValueError(str(result.value()))
    return result.value()


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = [one if isinstance(one, str) else one.value() for one in _find(text, pattern, _ALL)]
    return found[: _MAX_FOUND if limit < 0 else limit]


def extensions() -> tuple["cel.CelExtension", "cel.CelExtension"]:
    """Return the functions as two CEL extensions: one for checking types, and one for evaluating expressions."""
    rows = list(_rows())
    merged: dict[tuple[object, ...], list[_Row]] = {}
    for row in rows:
        key = (row.name, row.is_member, *(str(_at_run_time(one).name()) for one in row.arguments))
        merged.setdefault(key, []).append(row)
    evaluated: list[_Row] = []
    for group in merged.values():
        first, types = group[0], [_at_run_time(one) for one in group[0].arguments]
        does = _by_type(group) if VALUE in types else first.does
        result = _at_run_time(first.result) if all(one.result == first.result for one in group) else _ANY
        evaluated.append(evolve(first, result=result, arguments=types, does=does))
    return _extension(rows), _extension(evaluated)


def _at_run_time(kind: "cel.Type") -> "cel.Type":
    return VALUE if kind.is_message() else _LIST if kind.name().startswith("LIST<") else kind


def _extension(rows: Sequence[_Row]) -> "cel.CelExtension":
    overloads: dict[str, list[cel.Overload]] = {}
    for number, row in enumerate(rows):
        overload = cel.Overload(f"kubernetes_{number}", row.result, row.arguments, row.is_member, impl=row.does)
        overloads.setdefault(row.name, []).append(overload)
    return cel.CelExtension("kubernetes", [cel.FunctionDecl(name, found) for name, found in overloads.items()])


def _by_type(group: Sequence[_Row]) -> Callable[..., object]:
    """Return a function that calls the overload in `group` whose parameter types match the arguments."""
    table = [([one.name() if one.is_message() else "" for one in row.arguments], row.does) for row in group]

    def call(*arguments: object) -> object:
        types = [getattr(one, "type", "") for one in arguments]
        for wanted, does in table:
            if types == wanted:
                return does(*arguments)
        message = "no such overload"
        raise ValueError(message)

    return call
