"""Sets of device ids with set operations.

Law: a device set is equal to any set with the same members, no matter what index the device set uses. Iteration is in
the natural order of the ids, and no operation changes a set.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import compress, islice
from typing import Protocol

from attrs import frozen

from devicecore.domain.checks import expected, items
from devicecore.domain.model import DeviceId
from devicecore.domain.text import foreign_text

_MAX_DIGITS = 999  # `int()` may reject longer numbers
_NUMBER = re.compile(rf"(\d{{1,{_MAX_DIGITS}}})")
_DIGITS = "0123456789"
_TRUTH = bytes.maketrans(b"01", b"\0\1")
_FEW = 8  # in sets of up to this many members, visiting one member at a time is faster


def natural_key(device: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key with which `gpu-2` comes before `gpu-10`.

    Ids that differ only in leading zeros of a number, such as `gpu-7` and `gpu-007`, are in text order.
    """
    parts = _NUMBER.split(device)
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), device


def in_natural_order(ids: Collection[DeviceId]) -> list[DeviceId]:
    """Return `ids` sorted by `natural_key`.

    If all ids consist of a common prefix and a number without leading zeros, no keys are computed.
    """
    ordered = sorted(ids)
    if len(ordered) <= 1:
        return ordered
    start = _common_start(ordered[0], ordered[-1]).rstrip(_DIGITS)
    numbers = [device[len(start) :] for device in ordered]
    text = "".join(numbers)
    lengths = {*map(len, numbers)}
    if 0 in lengths or max(lengths) > _MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return sorted(ordered, key=natural_key)
    if len(lengths) == 1:
        return ordered
    if any(number[0] == "0" and number != "0" for number in numbers):  # 007 and 7 are the same number
        return sorted(ordered, key=natural_key)
    return sorted(ordered, key=len)


def _common_start(one: str, other: str) -> str:
    """Return the common prefix of two strings.

    If the two strings are the first and the last of sorted strings, all of the sorted strings have this prefix.
    """
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return one[:place]
    return one[: len(other)]


class _Printer(Protocol):
    def text(self, text: str, /) -> None: ...


@frozen(eq=False, repr=False)
class DeviceIndex:
    """Numbers the ids of one resource in natural order, so that a set of ids can be stored as one integer.

    Sets that share an index object are combined at integer speed. Other sets are first converted to a common index.
    """

    ids: tuple[DeviceId, ...]
    places: dict[DeviceId, int]

    @classmethod
    def of(cls, ids: Iterable[DeviceId]) -> "DeviceIndex":
        """Return an index of exactly `ids`, which may be in any order and contain repetitions."""
        # the ids are nearly always in order already
        ordered = tuple(in_natural_order(dict.fromkeys(items(ids, "device ids"))))
        return cls(ordered, dict(zip(ordered, range(len(ordered)), strict=True)))

    def knows(self, ids: Iterable[DeviceId]) -> bool:
        """Return whether the index has a number for each of `ids`."""
        return all(map(self.places.__contains__, ids))

    def covering(self, ids: Collection[DeviceId]) -> "DeviceIndex":
        """Return this index if it contains all `ids`, otherwise a new index of this index's ids and `ids`."""
        return self if self.knows(ids) else DeviceIndex.of((*self.ids, *ids))

    def select(self, ids: Iterable[DeviceId]) -> "DeviceSet":
        """Return the set of those `ids` that this index contains."""
        if ids == self.ids:  # a complete list in natural order, as nearly all lists from plugins are
            return self.all
        places = self.places
        known = [place for place in map(places.get, ids) if place is not None]
        if len(known) <= _FEW:
            bits = 0
            for place in known:
                bits |= 1 << place
            return DeviceSet(self, bits)
        # Setting bit by bit would copy the whole integer once per member, which is quadratic on large sets.
        digits = bytearray(b"0") * len(self.ids)
        for place in known:
            digits[-1 - place] = 49  # "1"
        return DeviceSet(self, int(digits, 2))

    @property
    def all(self) -> "DeviceSet":
        """The set of all ids of this index."""
        return DeviceSet(self, (1 << len(self.ids)) - 1)


_NO_DEVICES = DeviceIndex.of(())
_set_field = object.__setattr__  # attrs sets the fields of a frozen class in the same way


@frozen(eq=False, repr=False, init=False)
class DeviceSet(AbstractSet[DeviceId]):
    """An immutable set of device ids of one resource: a `collections.abc.Set` with `take`.

    Create a set with `DeviceSet.of`.

    Raises:
        TypeError: `index` is not a DeviceIndex but, for example, a list of ids.
    """

    index: DeviceIndex
    bits: int

    def __init__(self, index: DeviceIndex = _NO_DEVICES, bits: int = 0) -> None:
        if index.__class__ is not DeviceIndex:  # an attrs validator would cost one more call per set
            raise TypeError(expected("DeviceSet (DeviceSet.of creates one from ids)", "a DeviceIndex", index))
        _set_field(self, "index", index)
        _set_field(self, "bits", bits)

    @classmethod
    def of(cls, ids: Iterable[DeviceId]) -> "DeviceSet":
        """Return the set of `ids`, with its own index.

        Raises:
            TypeError: `ids` is a string or not iterable.
        """
        return DeviceIndex.of(ids).all

    @classmethod
    def _from_iterable(cls, ids: Iterable[DeviceId]) -> "DeviceSet":  # type: ignore[override]  # Set builds its results with it
        return cls.of(ids)

    def on(self, index: DeviceIndex) -> "DeviceSet":
        """Return this set, represented with `index`, which must contain all members."""
        return self if index is self.index else index.select(self)

    def take(self, count: int) -> "DeviceSet":
        """Return the first `count` members in natural order, or all members if there are fewer."""
        taken, rest = 0, self.bits
        for _ in range(count):
            if not rest:
                return self
            lowest = rest & -rest
            taken |= lowest
            rest ^= lowest
        return DeviceSet(self.index, taken)

    def common(self, other: "DeviceSet") -> int:
        """Return the number of common members, `len(self & other)`, without creating a set of them."""
        if other.index is self.index:
            return (self.bits & other.bits).bit_count()
        return len(self & other)

    def _joint(self, other: AbstractSet[DeviceId]) -> tuple[DeviceIndex, int, int]:
        if not isinstance(other, DeviceSet):
            other = DeviceSet.of(other)
        if other.index is self.index:
            return self.index, self.bits, other.bits
        if not other.bits:
            return self.index, self.bits, 0
        if not self.bits:
            return other.index, 0, other.bits
        larger, smaller = sorted((self, other), key=lambda one: len(one.index.ids), reverse=True)
        index = larger.index.covering(smaller)
        return index, self.on(index).bits, other.on(index).bits

    def __and__(self, other: AbstractSet[DeviceId]) -> "DeviceSet":
        # nearly always the case: one resource, one index
        if other.__class__ is DeviceSet and other.index is self.index:
            return DeviceSet(self.index, self.bits & other.bits)
        index, mine, others = self._joint(other)
        return DeviceSet(index, mine & others)

    def __or__(self, other: AbstractSet[DeviceId]) -> "DeviceSet":  # type: ignore[override]  # one resource has one id type
        if other.__class__ is DeviceSet:
            if not self.bits:
                return other
            if other.index is self.index:
                return DeviceSet(self.index, self.bits | other.bits)
        index, mine, others = self._joint(other)
        return DeviceSet(index, mine | others)

    def __sub__(self, other: AbstractSet[DeviceId]) -> "DeviceSet":
        if other.__class__ is DeviceSet:
            if not other.bits:
                return self
            if other.index is self.index:
                return DeviceSet(self.index, self.bits & ~other.bits)
        index, mine, others = self._joint(other)
        return DeviceSet(index, mine & ~others)

    def __le__(self, other: AbstractSet[DeviceId]) -> bool:
        if not self.bits:
            return True
        _, mine, others = self._joint(other)
        return not mine & ~others

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceSet):
            return frozenset(self) == other  # any other kind of set
        return len(self) == len(other) and self <= other

    def __hash__(self) -> int:
        return self._hash()  # the hash of a frozenset, because a device set may be equal to one

    def __contains__(self, device: object) -> bool:
        place = self.index.places.get(device)  # type: ignore[call-overload]  # a caller may look up any object
        return place is not None and bool(self.bits >> place & 1)

    def __iter__(self) -> Iterator[DeviceId]:
        ids = self.index.ids
        bits = self.bits
        if not bits & (bits - 1):  # most requests are for at most one device
            return iter((ids[bits.bit_length() - 1],) if bits else ())
        if bits.bit_count() <= _FEW:
            few = []
            while bits:
                lowest = bits & -bits
                few.append(ids[lowest.bit_length() - 1])
                bits ^= lowest
            return iter(few)
        if bits == (1 << len(ids)) - 1:
            return iter(ids)
        # Going bit by bit from the lowest would shift the whole integer once per member, which is quadratic on large
        # sets.
        return compress(ids, bin(bits)[:1:-1].encode().translate(_TRUTH))

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return self.bits != 0

    def __repr__(self) -> str:
        first = [foreign_text(device, 70) for device in islice(self, 3)]
        rest = f", ... {len(self):,} devices" if len(self) > len(first) else ""
        return f"DeviceSet({', '.join(first)}{rest})"

    def _repr_pretty_(self, printer: _Printer, _cycle: object) -> None:
        printer.text(repr(self))  # IPython and Hypothesis would show the index
