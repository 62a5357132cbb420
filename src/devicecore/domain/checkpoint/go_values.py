"""Decoders for Go's types: each takes the old value and the JSON, and returns the new value.

Law: `encoding/json` decodes *into* the old value. Therefore, null changes no string, number or struct; a repeated
struct is merged; a repeated list is decoded into its old elements; and each value of a map is always decoded into a new
value.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Generic, NoReturn, TypeVar, cast

from attrs import AttrsInstance, field, fields, frozen

from devicecore.domain.checkpoint.go_json import Json, Literal, Object, kind

K = TypeVar("K")
T = TypeVar("T")
S = TypeVar("S", bound=AttrsInstance)

INT64 = range(-(2**63), 2**63)
MAX_ITEMS = 100_000
"""The maximum number of items in a list of structs or numbers. A node has at most a few thousand pods.

The length of lists of names is limited only by the length of their text.
"""

_TOO_LARGE = 2**64
_ONLY_STRINGS = {str}
_MEMBER = "go"
_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,20})")


@frozen
class RefusedError(Exception):
    """The Go type of a field does not accept a value. `where` is the value's place in the file."""

    why: str
    where: str = ""

    def under(self, place: str) -> "RefusedError":
        """Return the error with `place` in front of `where`."""
        return RefusedError(self.why, place + self.where)

    def __str__(self) -> str:
        return f"{self.where.lstrip('.')}: {self.why}".lstrip(": ")


def refuse(value: Json, wanted: str) -> NoReturn:
    """Refuse `value` where the Go type `wanted` is expected. Always raises RefusedError."""
    raise RefusedError(why=f"cannot use {kind(value)} as {wanted}")


def into_string(old: str, value: Json) -> str:
    """Return a Go `string`."""
    if isinstance(value, str):
        return value
    return old if value is None else refuse(value, "string")


def into_uint(old: int, value: Json, allowed: range) -> int:
    """Return a Go unsigned integer in the range `allowed`."""
    if value is None:
        return old
    if isinstance(value, Literal) and value.text.isdigit():  # in Go, even -0 is not a uint
        number = integer(value.text)
        if number in allowed:
            return number
        raise RefusedError(why=f"expected a number from 0 to {allowed.stop - 1}, got {value.text[:40]}")
    return refuse(value, f"uint{allowed.stop.bit_length() - 1}")


def integer(text: str) -> int:
    """Return a number that `strconv.ParseInt` can read, or a number that is too large for any type."""
    digits = _INTEGER.fullmatch(text)
    return int(digits[1] + digits[2]) if digits else _TOO_LARGE


@frozen
class Slice(Generic[T]):
    """A slice that is not nil. Array elements beyond the slice's end reappear when the slice grows again."""

    array: list[T] = field(factory=list)
    length: int = 0

    @property
    def items(self) -> list[T]:
        """The elements up to the end of the slice."""
        return self.array[: self.length]


def into_slice(
    old: Slice[T] | None, value: Json, zero: Callable[[], T], into: Callable[[T, Json], T], wanted: str
) -> Slice[T] | None:
    """Return a slice whose new elements start as `zero()` and are decoded by `into`."""
    if value is None:
        return None
    if not isinstance(value, list):
        refuse(value, wanted)
    if len(value) > MAX_ITEMS and zero is not str:
        raise RefusedError(why=f"expected at most {MAX_ITEMS:,} items, got {len(value):,}")
    array = old.array if old and value else []
    for index, item in enumerate(value):
        if index == len(array):
            array.append(zero())
        try:
            array[index] = into(array[index], item)
        except RefusedError as refusal:
            raise refusal.under(place=f"[{index}]") from None
    return Slice(array, len(value))


def into_strings(old: Slice[str] | None, value: Json) -> Slice[str] | None:
    """Return a Go `[]string`."""
    return into_slice(old, value, str, into_string, "[]string")


def new_strings(value: Json) -> tuple[str, ...] | None:
    """Return a `[]string` that was nil before."""
    if isinstance(value, list) and set(map(type, value)) <= _ONLY_STRINGS:  # the usual case, ten times faster
        return tuple(cast("list[str]", value))
    strings = into_strings(None, value)
    return None if strings is None else tuple(strings.items)


def into_map(
    old: dict[K, T] | None, value: Json, key: Callable[[str], K], new: Callable[[Json], T], wanted: str
) -> dict[K, T] | None:
    """Return a map; `key` reads its keys, and `new` decodes its values."""
    if value is None:
        return None
    if not isinstance(value, Object):
        refuse(value, wanted)
    merged = {} if old is None else old
    for name, item in value:
        try:
            merged[key(name)] = new(item)
        except RefusedError as refusal:
            raise refusal.under(place=f"[{name[:40]}]") from None
    return merged


def member(name: str, into: Callable[[T, Json], T], default: T) -> T:
    """Return a struct's attrs field that `into` decodes from the JSON field called `name`."""
    return field(default=default, metadata={_MEMBER: (name, into)})


@cache
def _members(cls: type[AttrsInstance]) -> Mapping[str, tuple[str, Callable[..., object]]]:
    """Return the attribute and decoder of each field, by its name and by the name as `attribute_called` folds it."""
    found = {one.metadata[_MEMBER][0]: (one.name, one.metadata[_MEMBER][1]) for one in fields(cls)}
    return {**{name.lower(): known for name, known in found.items()}, **found}


def attribute_called(cls: type[AttrsInstance], name: str) -> tuple[str, Callable[..., object]] | None:
    """Return the attribute and decoder of the field called `name`, or None if there is no such field.

    A field also matches if its name differs only in case. As in Go, this includes the two letters outside ASCII whose
    lower case is ASCII: U+017F and the Kelvin sign, which `lower()` handles.
    """
    members = _members(cls)
    return members.get(name) or members.get(name.replace("\u017f", "s").lower())


def into_struct(struct: S, value: Json) -> S:
    """Return a struct, which is a mutable object here. Keys that are not among the struct's fields are ignored."""
    if value is None:
        return struct
    if not isinstance(value, Object):
        refuse(value, "struct")
    for name, item in value:
        if known := attribute_called(type(struct), name):
            attribute, into = known
            try:
                setattr(struct, attribute, into(getattr(struct, attribute), item))
            except RefusedError as refusal:
                raise refusal.under(place=f".{name}") from None
    return struct


def into_structs(zero: Callable[[], S], wanted: str) -> Callable[[Slice[S] | None, Json], Slice[S] | None]:
    """Return the decoder of a slice of structs."""
    return partial(into_slice, zero=zero, into=into_struct, wanted=wanted)


def into_map_of(zero: Callable[[], S], wanted: str) -> Callable[[dict[str, S] | None, Json], dict[str, S] | None]:
    """Return the decoder of a map from names to structs."""
    return partial(into_map, key=str, new=lambda value: into_struct(zero(), value), wanted=wanted)
