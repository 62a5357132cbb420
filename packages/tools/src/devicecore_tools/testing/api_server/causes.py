"""Causes for which an API server refuses an object, and the rules that several kinds share.

Law: a cause has the words of kube-apiserver 1.36.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.names import is_dns_label, is_dns_subdomain
from devicecore.domain.quantity import whole_quantity
from devicecore_tools.testing.api_server.status import Cause, Json

_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_SENTENCE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_SENTENCE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_IDENTIFIER_SENTENCE = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)
_MAX_NAME = 253
_MAX_LABEL = 63
_MAX_IDENTIFIER = 32

MAX_ENTRIES = 32
"""Entries that most lists of the API may have."""


def is_label(text: object) -> bool:
    """Whether it is an RFC 1123 label."""
    return isinstance(text, str) and is_dns_label(text)


def is_subdomain(text: object) -> bool:
    """Whether it is an RFC 1123 subdomain."""
    return isinstance(text, str) and is_dns_subdomain(text)


# --- causes ----------------------------------------------------------------------------------------------------------


def required(field: str, detail: str = "") -> Cause:
    """A field is missing."""
    return Cause(field, "Required value", detail)


def invalid_value(field: str, value: object, detail: str) -> Cause:
    """A field has a value that it cannot have."""
    return Cause(field, f"Invalid value: {json.dumps(value)}", detail)


def too_many(field: str, count: int, limit: int) -> Cause:
    """A list is too long."""
    items = "item" if limit == 1 else "items"
    return Cause(field, f"Too many: {count}", f"must have at most {limit} {items}")


def too_long(field: str, limit: int) -> Cause:
    """A text is too long."""
    return Cause(field, "Too long", f"may not be more than {limit} bytes")


def duplicate(field: str, value: object) -> Cause:
    """A value that must be unique appears twice."""
    return Cause(field, f"Duplicate value: {json.dumps(value)}")


def forbidden(field: str, detail: str) -> Cause:
    """A field may not be set here."""
    return Cause(field, "Forbidden", detail)


def unsupported(field: str, value: object, supported: Iterable[str]) -> Cause:
    """A value is not one of the known ones."""
    return Cause(
        field, f"Unsupported value: {json.dumps(value)}", f"supported values: {', '.join(map(json.dumps, supported))}"
    )


def immutable(field: str, value: object) -> Cause:
    """A field may not change."""
    return invalid_value(field, value, "field is immutable")


# --- shared rules ---------------------------------------------------------------------------------------------------


def is_same(value: object, was: object) -> bool:
    """Whether two values are the same for clients in Go, which leave out fields that are empty."""
    return _without_empty(value) == _without_empty(was)


def _without_empty(value: object) -> object:
    if isinstance(value, list):
        return [_without_empty(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {name: one if name == "parameters" else _without_empty(one) for name, one in value.items()}
    return {name: one for name, one in kept.items() if one not in (None, "", [], {})}


def objects_of(value: object, field: str) -> Iterator[tuple[str, Json]]:
    """The items of a list of objects, each with its path."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            if isinstance(item, dict):
                yield f"{field}[{number}]", item


def mapping_of(value: object) -> Json:
    """Return the value if it is an object, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    """Return the value if it is a list, otherwise an empty one."""
    return value if isinstance(value, list) else []


def label_causes(value: object, field: str) -> Iterator[Cause]:
    """Why a value is no RFC 1123 label."""
    if not value:
        yield required(field)
    elif isinstance(value, str) and len(value) > _MAX_LABEL:
        yield invalid_value(field, value, f"must be no more than {_MAX_LABEL} bytes")
    elif not is_label(value):
        yield invalid_value(field, value, _LABEL_SENTENCE)


def subdomain_causes(value: object, field: str, limit: int = _MAX_NAME) -> Iterator[Cause]:
    """Why a value is no RFC 1123 subdomain of at most `limit` characters."""
    if not value:
        yield required(field)
    elif isinstance(value, str) and len(value) > limit:
        yield too_long(field, limit)
    elif not is_subdomain(value):
        yield invalid_value(field, value, _SUBDOMAIN_SENTENCE)


def driver_name_causes(value: object, field: str) -> Iterator[Cause]:
    """Why a value is no name of a driver."""
    yield from subdomain_causes(value.lower() if isinstance(value, str) else value, field, _MAX_LABEL)


def pool_name_causes(value: object, field: str) -> Iterator[Cause]:
    """Why a value is no name of a pool."""
    if not value:
        yield required(field)
    elif not isinstance(value, str) or len(value) > _MAX_NAME:
        yield too_long(field, _MAX_NAME)
    elif not all(map(is_subdomain, value.split("/"))):
        yield invalid_value(field, value, _SUBDOMAIN_SENTENCE)


def qualified_name_causes(text: str, field: str) -> Iterator[Cause]:
    """Why a text is no `name` or `domain/name` of an attribute."""
    domain, slash, name = text.rpartition("/")
    if slash and (len(domain) > _MAX_LABEL or not is_subdomain(domain)):
        yield invalid_value(field, domain, _SUBDOMAIN_SENTENCE)
    if not name:
        yield required(field, "the name must not be empty")
    elif len(name) > _MAX_IDENTIFIER:
        yield too_long(field, _MAX_IDENTIFIER)
    elif not _C_IDENTIFIER.fullmatch(name):
        yield invalid_value(
            field,
            name,
            _IDENTIFIER_SENTENCE,
        )


def quantity_causes(value: object, field: str) -> Iterator[Cause]:
    """Why a value is no quantity."""
    try:
        whole_quantity(str(value))
    except InvalidQuantityError:
        yield invalid_value(
            field, value, "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )


def limit_causes(values: object, field: str, limit: int) -> Iterator[Cause]:
    """Why a list is too long."""
    if len(list_of(values)) > limit:
        yield too_many(field, len(list_of(values)), limit)


def unique_causes(values: Iterable[object], field: Callable[[int], str]) -> Iterator[Cause]:
    """Which values of a list are there twice. `field` returns the path of the value with a number."""
    seen: list[object] = []
    for number, value in enumerate(values):
        if value in seen:
            yield duplicate(field(number), value)
        seen.append(value)


def one_of_causes(present: Collection[str], allowed: Collection[str], field: str) -> Iterator[Cause]:
    """Why not exactly one of the `allowed` fields is present."""
    names = ", ".join(f"`{name}`" for name in allowed)
    if not present:
        yield required(field, f"exactly one of {names} is required")
    elif len(present) > 1:
        fields = "{" + ", ".join(present) + "}"
        yield invalid_value(field, fields, f"exactly one of {names} is required, but multiple fields are set")


def is_whole(value: object) -> bool:
    """Whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def no_causes(_new: Json, _old: Json | None) -> Iterator[Cause]:
    """No rules: namespaces and a Node's status are taken as they are."""
    yield from ()
