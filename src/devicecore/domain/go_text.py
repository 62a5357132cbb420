"""Functions that write a value as Go does: as JSON for a file, and as the dump that is hashed.

Law: the result is that of `encoding/json` and go-spew, byte for byte, for each installed JSON library. Nil (None) is
`null` in JSON and `<nil>` in the dump; an empty value is neither. Maps are sorted.
"""

import json
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from devicecore.domain.errors import UnencodableCheckpointError

_fast_dumps: Callable[[object], bytes] | None = None
with suppress(ImportError):  # on a platform for which there is no wheel
    import orjson

    _fast_dumps = orjson.dumps

Strings = Sequence[str]
JsonObject = Mapping[str, "str | Strings | Mapping[str, Strings | None] | None"]

_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1  # the limits of int64
_NIL = "<nil>"
_SPACE_FOR_COMMA = bytes.maketrans(b",", b" ")
_DECIMALS = tuple(map(str, range(256)))
_DUMPS = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode

# Go escapes these characters although JSON does not require it, so that the text is safe in HTML.
_SEPARATORS = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\u2028\u2029")


def utf8(text: str) -> bytes:
    """Return the bytes of `text`. Raises UnencodableCheckpointError if `text` contains a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        around = text[max(error.start - 20, 0) : error.end + 20]
        raise UnencodableCheckpointError(problem=f"{around!a} contains a lone surrogate") from None


def json_text(value: object) -> bytes:
    """Return JSON in the order of `value`, with Go's escapes.

    Raises UnencodableCheckpointError for a lone surrogate.
    """
    if _fast_dumps is not None:
        try:
            return with_escapes(_fast_dumps(value))
        except TypeError:  # a lone surrogate; unlike orjson, `utf8` says where it is in the string
            pass
    return with_escapes(utf8(_DUMPS(value)))


def with_escapes(json: bytes) -> bytes:
    """Add Go's escapes to JSON text. The characters to escape occur only inside strings."""
    json = json.replace(b"<", b"\\u003c").replace(b">", b"\\u003e").replace(b"&", b"\\u0026")
    if not json.isascii():
        for char, escape in _SEPARATORS:
            json = json.replace(char, escape)
    return json


def numa_json(device_ids: Mapping[int, Strings | None] | None) -> dict[str, Strings | None] | None:
    """Prepare the devices of each NUMA node for JSON. The nodes are sorted as strings, so 10 comes before 2.

    `numa_dump` checks the numbers.
    """
    if device_ids is None:
        return None
    in_order = sorted(device_ids, key=str) if len(device_ids) > 1 else device_ids  # a single entry needs no sorting
    return {str(numa_node): device_ids[numa_node] for numa_node in in_order}


def base64_text(data: bytes | None) -> str | None:
    """Write bytes in base64, as Go does in JSON."""
    return None if data is None else b2a_base64(data, newline=False).decode()


def strings_dump(strings: Strings | None) -> str:
    """Write strings as `[a b]`, without quotes and escapes."""
    return _NIL if strings is None else f"[{' '.join(strings)}]"


def numa_dump(device_ids: Mapping[int, Strings | None] | None) -> str:
    """Write devices as `map[-1:[a] 2:[b c] 10:[]]`, with the NUMA nodes sorted as numbers.

    Raises UnencodableCheckpointError if a NUMA node is not an int64.
    """
    if device_ids is None:
        return _NIL
    in_order = sorted(device_ids)
    if in_order and not _MIN_INT64 <= in_order[0] <= in_order[-1] <= _MAX_INT64:
        numa_node = in_order[0] if in_order[0] < _MIN_INT64 else in_order[-1]
        raise UnencodableCheckpointError(problem=f"NUMA node {numa_node} has more than 64 bits")
    return f"map[{' '.join([f'{numa_node}:{strings_dump(device_ids[numa_node])}' for numa_node in in_order])}]"


def resource_dump(name: str, device_ids: Strings | None) -> str:
    """Write one registered resource as `nvidia.com/gpu:[a b]`."""
    return f"{name}:{strings_dump(device_ids)}"


def bytes_dump(data: bytes | None) -> str:
    """Write bytes as `[10 0 255]`."""
    if data is None:
        return _NIL
    if _fast_dumps is not None:
        return _fast_dumps([*data]).translate(_SPACE_FOR_COMMA).decode()  # twice as fast as `str.replace`
    return f"[{' '.join([_DECIMALS[byte] for byte in data])}]"
