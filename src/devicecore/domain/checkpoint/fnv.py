"""The kubelet's hash: 32-bit FNV-1a.

Law: hashing is resumable. `fnv1a_32(a + b) == fnv1a_32(b, fnv1a_32(a))` for each implementation, and a `HashedText` has
the same hash as its text.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Protocol

from attrs import define, field

_installed: Callable[[bytes], int] | None = None
with suppress(ImportError):  # on a platform for which there is no wheel
    import fnv_hash_fast

    _installed = fnv_hash_fast.fnv1a_32

OFFSET = 0x811C9DC5
"""The hash of zero bytes, with which every hash starts."""

_PRIME = 0x01000193
_INVERSE = pow(_PRIME, -1, 1 << 32)
_MASK = 0xFFFFFFFF
_HASH_OF_NUL = 0x050C5D1F

_AFTER_ONE_BYTE = tuple((OFFSET ^ byte) * _PRIME & _MASK for byte in range(256))
_BYTE_BEFORE = {state & 0xFF: (bytes((byte,)), state) for byte, state in enumerate(_AFTER_ONE_BYTE)}


class Hashing(Protocol):
    """An implementation of FNV-1a."""

    def __call__(self, data: bytes, state: int = OFFSET) -> int:
        """Return the hash of what was hashed up to `state`, followed by `data`."""


@lru_cache(maxsize=1024)
def _power(length: int) -> int:
    """Return the factor by which hashing `length` bytes multiplies a state: cached, because lengths repeat."""
    return pow(_PRIME, length, 1 << 32)


def fnv1a_32_pure(data: bytes, state: int = OFFSET) -> int:
    """Return the hash of what was hashed up to `state`, followed by `data`, computed in plain Python."""
    for byte in data:
        state = (state ^ byte) * _PRIME & _MASK
    return state


def resumable(unseeded: Callable[[bytes], int]) -> Hashing:
    """Return an FNV-1a that can start in any state, built on an FNV-1a that always starts at `OFFSET`.

    A byte changes only the low eight bits of the state before the multiplication. So if two states have the same low
    eight bits, hashing any data multiplies their difference by the same factor. One byte in front of `data` produces a
    state with the desired low bits, and the rest of the difference is added afterwards.
    """

    def resumed(data: bytes, state: int = OFFSET) -> int:
        if state == OFFSET:
            return unseeded(data)
        byte, after = _BYTE_BEFORE[state & 0xFF]
        return (unseeded(byte + data) + _power(len(data)) * (state - after)) & _MASK

    return resumed


# fnv-hash-fast before 1.6 stops at the first NUL byte, and cannot be used.
_is_fast = _installed is not None and _installed(b"\0") == _HASH_OF_NUL

fnv1a_32: Hashing = resumable(_installed) if _installed is not None and _is_fast else fnv1a_32_pure
"""The fastest implementation available here."""


def before(data: bytes, state: int) -> int:
    """Return the state from which hashing `data` leads to `state`."""
    for byte in reversed(data):
        state = (state * _INVERSE & _MASK) ^ byte
    return state


@define(eq=False)  # not frozen, because creating a frozen object takes twice as long
class HashedText:
    """A string that remembers the effect of hashing it, so that it need not be hashed again for each state.

    Only the low eight bits of the previous state are combined with the text. A string of n bytes leads from the state h
    to `prime**n * h + effect[h & 255]`.
    """

    parts: tuple[bytes, ...]
    _power: int = field()
    _effects: dict[int, int] = field(factory=dict)

    @_power.default
    def _prime_to_the_length(self) -> int:
        return _power(sum(map(len, self.parts)))

    def hash(self, state: int = OFFSET) -> int:
        """Return the hash of what was hashed up to `state`, followed by this text."""
        effect = self._effects.get(state & 0xFF)
        if effect is None:
            after = fnv1a_32(b"".join(self.parts), state)
            self._effects[state & 0xFF] = (after - self._power * state) & _MASK
            return after
        return (self._power * state + effect) & _MASK
