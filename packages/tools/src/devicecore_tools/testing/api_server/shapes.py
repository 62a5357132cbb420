"""The types of an object's fields, as defined by the protobuf message of its kind.

Law: every object that passes these checks can be handled by the rules and the defaults.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from devicecore_tools.testing.api_server.status import Json, JsonValue, copied

Shape = type | Mapping[str, Any] | list[Any] | None
"""A scalar type, an object's fields (`*` stands for all others), a list with its items' shape, or None for any type."""

_NAMES: Mapping[type, str] = {
    bool: "bool",  # bool comes before int, because it is a subclass of int
    str: "string",
    int: "number",
    float: "number",
    dict: "object",
    list: "array",
}


def tidy(kind: str, value: Json, api_version: str = "") -> Json:
    """Return a copy of an object in the form in which Go writes it.

    Empty lists, empty maps and nulls are left out, except that a null becomes an empty string in a map of strings, and
    0 in a map of quantities.
    """
    from devicecore_tools.testing.wire.api_conversion import field_types  # loading protobuf takes time

    tidied: Json = _tidied(value, field_types(api_version, kind))
    return tidied


def _tidied(value: JsonValue, shape: Shape) -> JsonValue:
    if isinstance(value, list) and isinstance(shape, list) and shape:
        return [_tidied(one, shape[0]) for one in value]
    if not isinstance(value, dict) or not isinstance(shape, Mapping):
        return copied(value)
    shapes = {name: shape.get(name, shape.get("*")) for name in value}
    others = shape.get("*", dict)
    # Decoding null into an element of a map leaves the element's zero value (encoding/json, `literalStore`), and the
    # zero `resource.Quantity` is written as 0. Quantities are the values whose shape is None: they may be strings or
    # numbers.
    null = "" if others is str else "0" if others is None else None
    given = {name: null if below is None else below for name, below in value.items()}
    return {
        name: _tidied(below, shapes[name])
        for name, below in given.items()
        if below is not None
        # `omitempty` drops empty lists and maps when Go encodes its structs. An empty struct is kept.
        if not (below == [] and isinstance(shapes[name], list)) and not (below == {} and "*" in (shapes[name] or ()))
    }


def wrong_types(kind: str, value: Json, api_version: str = "") -> Iterator[str]:
    """Yield a sentence for each field of an object that has a value of the wrong type.

    Null does not count as a value.

    `api_version` distinguishes kinds with the same name.
    """
    from devicecore_tools.testing.wire.api_conversion import field_types  # loading protobuf takes time

    yield from _wrong(value, {"spec": {}, "status": {}, **field_types(api_version, kind)}, "")


def _wrong(value: JsonValue, shape: Shape, path: str) -> Iterator[str]:
    if shape is None:
        return
    expected: type[Any] = shape if isinstance(shape, type) else list if isinstance(shape, list) else dict
    # In Python, True is an int.
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        actual = next((name for kind, name in _NAMES.items() if isinstance(value, kind)), "null")
        yield f"cannot unmarshal {actual} into field {path or 'of the object'}: expected {_NAMES[expected]}"
    elif expected is int and not -(2**63) <= value < 2**63:
        yield f"cannot unmarshal a number of {value.bit_length()} bits into field {path}: expected one of 64 bits"
    elif isinstance(shape, list):
        for number, one in enumerate(value):
            yield from _wrong(one, shape[0], f"{path}[{number}]")
    elif isinstance(shape, Mapping):
        for key, below in value.items():
            if below is not None:
                yield from _wrong(below, shape.get(key, shape.get("*")), f"{path}.{key}" if path else key)
