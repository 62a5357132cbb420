"""The JSON form of an object that a Kubernetes API client sends as protobuf.

Law: the result is what the same client would send as JSON. A field that is empty is therefore left out if Go omits it
when empty.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from devicecore_tools.testing.wire import api_objects as api

_BYTES = {"data", "binaryData"}  # the data of a Secret or ConfigMap, unlike the data in a claim's status

MAGIC = b"k8s\0"
"""The prefix of a protobuf body. The envelope follows."""

_EMBEDDED = ("deviceConfiguration", "ephemeralContainerCommon", "handler", "localObjectReference", "volumeSource")
"""The fields whose members appear one level higher in JSON, because Go embeds them."""

_FREE = ("IntOrString", "MicroTime", "Quantity", "RawExtension", "Time")  # messages that are not objects in JSON

_KINDS: Mapping[str, type[Message]] = {
    kind.DESCRIPTOR.name: kind
    for kind in (
        *(api.ConfigMap, api.DeleteOptions, api.DeviceClass, api.Event, api.Lease, api.Namespace, api.Node, api.Pod),
        *(api.ResourceClaim, api.ResourceClaimTemplate, api.ResourceSlice, api.Secret, api.ServiceAccount),
        *(api.Binding, api.Eviction, api.TokenRequest),
    )
}
_OTHERS: Mapping[tuple[str, str], type[Message]] = {
    ("events.k8s.io/v1", "Event"): api.EventV1,
    ("resource.k8s.io/v1beta1", "ResourceClaim"): api.ResourceClaimV1beta1,
    ("resource.k8s.io/v1beta1", "ResourceSlice"): api.ResourceSliceV1beta1,
}
"""The messages for API versions whose fields are numbered differently."""


def field_types(api_version: str, kind: str) -> Mapping[str, Any]:
    """Return the JSON types of a kind's fields.

    For unknown kinds, these are only the metadata fields.

    A type is a scalar type, the types of an object's fields (`*` means all others), a list with the type of its
    items, or None for any.
    """
    # Definitions are not read as protobuf, because the message here has no field for their schemas.
    if kind == api.CustomResourceDefinition.DESCRIPTOR.name:
        return _types(api.CustomResourceDefinition.DESCRIPTOR)
    return _types(_OTHERS.get((api_version, kind), _KINDS.get(kind, api.OtherObject)).DESCRIPTOR)


@cache
def _types(message: Any) -> dict[str, Any]:  # noqa: ANN401 - a descriptor, whose class depends on the version
    texts = (FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES)
    scalars: dict[Any, type] = {FieldDescriptorProto.TYPE_BOOL: bool, **dict.fromkeys(texts, str)}
    described, found = DescriptorProto(), dict[str, Any]()
    message.CopyToProto(described)  # protobuf versions differ in how descriptors mark repeated fields
    for one in described.field:
        below = message.fields_by_name[one.name].message_type
        if one.name in _EMBEDDED:
            found |= _types(below)
        elif below is not None and below.GetOptions().map_entry:
            found[one.json_name] = {"*": _types(below)["value"]}
        else:
            free = below is not None and below.name in _FREE
            type_: Any = scalars.get(one.type, int) if below is None else None if free else _types(below)
            found[one.json_name] = [type_] if one.label == one.LABEL_REPEATED else type_
    return found


class UnreadableKindError(ValueError):
    """This module does not know the protobuf form of the object's kind."""


def object_from_protobuf(body: bytes) -> dict[str, Any]:
    """Return the object in its JSON form.

    Raises:
        UnreadableKindError: the object's kind is unknown.
        ValueError: the body is not a protobuf object.
    """
    if not body.startswith(MAGIC):
        raise ValueError(f"provided data does not appear to be a protobuf message, expected prefix {list(MAGIC)}")
    try:
        envelope = api.Unknown.FromString(body.removeprefix(MAGIC))
        kind = envelope.typeMeta.kind
        if kind not in _KINDS:
            raise UnreadableKindError(f"expected {', '.join(_KINDS)} as protobuf, got {kind!r}: send JSON")
        message_type = _OTHERS.get((envelope.typeMeta.apiVersion, kind), _KINDS[kind])
        fields = _fields(message_type.FromString(envelope.raw))
    except DecodeError as error:
        raise ValueError(f"unable to decode protobuf: {error}") from error
    return {"apiVersion": envelope.typeMeta.apiVersion, "kind": kind, **fields}


def _fields(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        converted = _encoded(value) if field.name in _BYTES and isinstance(value, Mapping) else _value(value)
        if field.name in _EMBEDDED:
            found |= converted
        elif converted is not None and not (field.has_default_value and converted == field.default_value):
            found[field.json_name] = converted
    return found


def _encoded(value: Mapping[str, str | bytes]) -> dict[str, str]:
    """Return the values of a map. Bytes are in base64, as in JSON."""
    return {key: one if isinstance(one, str) else b64encode(one).decode() for key, one in value.items()}


def _value(value: Any) -> Any:  # noqa: ANN401 - JSON, from any field
    match value:
        case Message():
            convert: Callable[[Any], Any] = _CONVERSIONS.get(type(value), _fields)
            return convert(value)
        case str() | int():
            return value
        case bytes():
            raise ValueError("unable to decode protobuf: a string is not valid UTF-8")
        case Mapping():
            return {key: _value(one) for key, one in value.items()}
        case _:
            return [_value(one) for one in value]


def _timestamp(time: api.Time | api.MicroTime) -> str | None:
    if not time.ListFields():
        return None  # Go encodes its zero time as an empty message
    whole = Timestamp(seconds=time.seconds).ToJsonString()
    return f"{whole[:-1]}.{time.nanos // 1000:06}Z" if isinstance(time, api.MicroTime) else whole


_CONVERSIONS: Mapping[type[Message], Callable[[Any], Any]] = {
    api.Quantity: lambda quantity: quantity.string,
    api.IntOrString: lambda either: either.strVal if either.type else either.intVal,
    api.RawExtension: lambda extension: json.loads(extension.raw) if extension.raw else None,
    api.Time: _timestamp,
    api.MicroTime: _timestamp,
}
