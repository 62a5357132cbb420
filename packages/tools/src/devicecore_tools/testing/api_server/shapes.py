"""The types of the fields of objects, as the messages of their kinds have them.

Law: an object without a complaint from here can be given to the rules and to the defaults.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from devicecore_tools.testing.api_server.status import Json

Shape = type | Mapping[str, Any] | list[Any] | None
"""A scalar type, the fields of an object (`*` are all others), a list with the shape of its items, or None for any."""

_NAMES: Mapping[type, str] = {
    bool: "bool",  # before int, whose subclass it is
    str: "string",
    int: "number",
    float: "number",
    dict: "object",
    list: "array",
}
_FREE = ("MicroTime", "Quantity", "RawExtension", "Time")  # have no fields in JSON


def wrong_types(kind: str, value: Json, api_version: str = "") -> Iterator[str]:
    """Say for each field of an object that has a value of a wrong type which type was expected. Null is no value.

    `api_version` tells apart the messages of kinds of the same name.
    """
    from devicecore_tools.testing.wire.api_conversion import message_of  # loading protobuf takes time

    yield from _wrong(value, {"spec": {}, "status": {}, **_fields(message_of(api_version, kind).DESCRIPTOR)}, "")


@cache
def _fields(message: Any) -> dict[str, Shape]:  # noqa: ANN401 - a descriptor, whose type depends on the version
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

    texts = (FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES)
    scalars: dict[Any, type] = {FieldDescriptorProto.TYPE_BOOL: bool, **dict.fromkeys(texts, str)}
    described, found = DescriptorProto(), dict[str, Shape]()
    message.CopyToProto(described)  # descriptors tell in no way that all versions of protobuf have what is repeated
    for one in described.field:
        below = message.fields_by_name[one.name].message_type
        if one.name == "deviceConfiguration":  # Go embeds it, so JSON has its fields at this level
            found |= _fields(below)
            continue
        is_map = below is not None and below.GetOptions().map_entry
        shape: Shape = scalars.get(one.type, int) if below is None else None if below.name in _FREE else _fields(below)
        shape = {"*": _fields(below)["value"]} if is_map else shape
        found[one.json_name] = [shape] if one.label == one.LABEL_REPEATED and not is_map else shape
    return found


def _wrong(value: Any, shape: Shape, path: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    if shape is None:
        return
    expected: type[Any] = shape if isinstance(shape, type) else list if isinstance(shape, list) else dict
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
