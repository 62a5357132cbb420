"""The kubelet's hash: FNV-1a, 32 bit.

Law: hashing is resumable. `fnv1a_32(a + b) == fnv1a_32(b, fnv1a_32(a))`, whichever implementation is at work.
"""

from collections.abc import Callable
from contextlib import suppress

_installed: Callable[[bytes], int] | None = None
with suppress(ImportError):  # without the extra `fast`
    import fnv_hash_fast

    _installed = fnv_hash_fast.fnv1a_32

OFFSET = 0x811C9DC5
"""The hash of no bytes at all, which is where every hash starts."""

_PRIME = 0x01000193
_MASK = 0xFFFFFFFF
_HASH_OF_NUL = 0x050C5D1F

_AFTER_ONE_BYTE = tuple((OFFSET ^ byte) * _PRIME & _MASK for byte in range(256))
_BYTE_BEFORE = {state & 0xFF: byte for byte, state in enumerate(_AFTER_ONE_BYTE)}


def fnv1a_32_pure(data: bytes, state: int = OFFSET) -> int:
    """The hash of what was hashed up to `state`, followed by `data`, in plain Python."""
    byte = iter(data)
    for a, b, c, d in zip(byte, byte, byte, byte, strict=False):  # one mask for four bytes saves a sixth of the time
        state = ((((state ^ a) * _PRIME ^ b) * _PRIME ^ c) * _PRIME ^ d) * _PRIME & _MASK
    for last in data[len(data) & ~3 :]:
        state = (state ^ last) * _PRIME & _MASK
    return state


def resumable(unseeded: Callable[[bytes], int]) -> Callable[[bytes, int], int]:
    """Give an FNV-1a that always starts at `OFFSET` the ability to start anywhere.

    One byte touches only the low eight bits before the multiplication, so two states that agree in those stay apart by
    the same factor whatever follows. One byte put in front of `data` brings about a state with the wanted low bits, and
    the rest of the difference is multiplied up afterwards.
    """

    def resumed(data: bytes, state: int = OFFSET) -> int:
        if state == OFFSET:
            return unseeded(data)
        byte = _BYTE_BEFORE[state & 0xFF]
        apart = state - _AFTER_ONE_BYTE[byte]
        return (unseeded(bytes((byte,)) + data) + pow(_PRIME, len(data), 1 << 32) * apart) & _MASK

    return resumed


# fnv-hash-fast before 1.6 stops at the first NUL: better slow than wrong.
_is_fast = _installed is not None and _installed(b"\0") == _HASH_OF_NUL
_fnv1a_32 = resumable(_installed) if _installed is not None and _is_fast else fnv1a_32_pure


def fnv1a_32(data: bytes, state: int = OFFSET) -> int:
    """The hash of what was hashed up to `state`, followed by `data`."""
    return _fnv1a_32(data, state)
