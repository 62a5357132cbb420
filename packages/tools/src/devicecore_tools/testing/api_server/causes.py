"""The fields of an object being checked, and the rules that several kinds share.

Law: a cause is worded as in kube-apiserver 1.36. A rule records its causes in field order and changes no object.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from attrs import define, field

from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.names import is_dns_label, is_dns_subdomain, is_label_value, is_qualified_name
from devicecore.domain.quantity import Quantity
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
_KEY_SENTENCE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_SENTENCE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_QUANTITY_SENTENCE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_MAX_NAME, _MAX_LABEL, _MAX_IDENTIFIER = 253, 63, 32
_MAX_JSON = 10 * 1024  # bytes

MAX_ENTRIES = 32
"""The maximum number of entries in most API lists."""


@define(eq=False)  # not frozen: a slice with many devices has thousands of fields
class Field:
    """A field of an object: its path and its value, which is None if the field is missing.

    All fields reached from one field share the list of causes for refusing the object.
    """

    path: str
    value: Any
    causes: list[Cause] = field(factory=list)

    def __getitem__(self, name: str) -> "Field":
        value = self.value.get(name) if isinstance(self.value, dict) else None
        return Field(f"{self.path}.{name}" if self.path else name, value, self.causes)

    def __iter__(self) -> Iterator["Field"]:
        """Yield the objects in the list that is the field's value."""
        for number, one in enumerate(list_of(self.value)):
            if isinstance(one, dict):
                yield Field(f"{self.path}[{number}]", one, self.causes)

    def entries(self) -> Iterator[tuple[str, "Field"]]:
        """Yield the names and the values in the map that is the field's value."""
        for name, value in mapping_of(self.value).items():
            yield name, Field(f"{self.path}[{name}]", value, self.causes)

    # --- causes -------------------------------------------------------------------------------------------------------

    def add(self, kind: str, detail: str = "") -> None:
        """Record a cause whose message starts with `kind`."""
        self.causes.append(Cause(self.path, kind, detail))

    def required(self, detail: str = "") -> None:
        """Record that the field is missing."""
        self.add("Required value", detail)

    def require(self) -> bool:
        """Return whether the field has a non-empty value. If its value is empty, record that it is missing."""
        if not self.value:
            self.required()
        return bool(self.value)

    def invalid(self, detail: str, *shown: object) -> None:
        """Record that the field has an invalid value. `shown` replaces the value in the message."""
        self.add(f"Invalid value: {json.dumps(shown[0] if shown else self.value)}", detail)

    def too_long(self, limit: int) -> None:
        """Record that the string is longer than `limit` bytes."""
        self.add("Too long", f"may not be more than {limit} bytes")

    def duplicate(self, *shown: object) -> None:
        """Record that the value is a duplicate. `shown` replaces the value in the message."""
        self.add(f"Duplicate value: {json.dumps(shown[0] if shown else self.value)}")

    def forbidden(self, detail: str) -> None:
        """Record that the field may not be set here."""
        self.add("Forbidden", detail)

    # --- rules --------------------------------------------------------------------------------------------------------

    def unchanged(self, was: object, *shown: object) -> None:
        """Require that Go clients, which leave out empty fields, cannot tell the value from the earlier one."""
        if not is_same(self.value, was):
            self.invalid("field is immutable", *shown)

    def one_of(self, known: Iterable[str]) -> None:
        """Require that the value is one of the known values."""
        if self.value not in [*known]:
            shown = ", ".join(map(json.dumps, known))
            self.add(f"Unsupported value: {json.dumps(self.value)}", f"supported values: {shown}")

    def at_least(self, least: int, sentence: str) -> None:
        """Require that the value, 0 by default, is an integer of at least `least`."""
        value = 0 if self.value is None else self.value
        if not is_whole(value) or value < least:
            self.invalid(sentence, value)

    def label(self) -> None:
        """Require that the value is an RFC 1123 label."""
        if self.require() and len(self.value) > _MAX_LABEL:
            self.invalid(f"must be no more than {_MAX_LABEL} bytes")
        elif self.value and not is_dns_label(self.value):
            self.invalid(_LABEL_SENTENCE)

    def label_key(self) -> None:
        """Require that the value is a valid label or taint key."""
        if not is_qualified_name(str(self.value or "")):
            self.invalid(_KEY_SENTENCE)

    def label_value(self) -> None:
        """Require that the value is a valid label or taint value."""
        text = str(self.value or "")
        if not is_label_value(text):
            self.invalid(_VALUE_SENTENCE if len(text) <= _MAX_LABEL else f"must be no more than {_MAX_LABEL} bytes")

    def subdomain(self, limit: int = _MAX_NAME) -> None:
        """Require that the value is an RFC 1123 subdomain of at most `limit` characters."""
        if self.require() and len(self.value) > limit:
            self.too_long(limit)
        elif self.value and not is_dns_subdomain(self.value):
            self.invalid(_SUBDOMAIN_SENTENCE)

    def driver_name(self) -> None:
        """Require that the value is a valid driver name."""
        Field(self.path, (self.value or "").lower(), self.causes).subdomain(_MAX_LABEL)

    def pool_name(self) -> None:
        """Require that the value is a valid pool name."""
        if self.require() and len(self.value) > _MAX_NAME:
            self.too_long(_MAX_NAME)
        elif self.value and not all(map(is_dns_subdomain, self.value.split("/"))):
            self.invalid(_SUBDOMAIN_SENTENCE)

    def qualified(self, text: str) -> None:
        """Require a valid attribute name, in the form `name` or `domain/name`."""
        domain, slash, name = text.rpartition("/")
        if slash and (len(domain) > _MAX_LABEL or not is_dns_subdomain(domain)):
            self.invalid(_SUBDOMAIN_SENTENCE, domain)
        if not name:
            self.required("the name must not be empty")
        elif len(name) > _MAX_IDENTIFIER:
            self.too_long(_MAX_IDENTIFIER)
        elif not _C_IDENTIFIER.fullmatch(name):
            self.invalid(_IDENTIFIER_SENTENCE, name)

    def quantity(self) -> None:
        """Require that the value is a quantity."""
        try:
            Quantity.parse(str(self.value))
        except InvalidQuantityError:
            self.invalid(_QUANTITY_SENTENCE)

    def limit(self, most: int = MAX_ENTRIES) -> None:
        """Require that the list or map has at most this many entries."""
        number = len(list_of(self.value) or mapping_of(self.value))
        if number > most:
            self.add(f"Too many: {number}", f"must have at most {most} {'item' if most == 1 else 'items'}")

    def unique(self, name: str = "") -> None:
        """Require that no value is in the list twice, or that no two items have the same value in the field `name`."""
        seen: list[object] = []
        for number, one in enumerate(list_of(self.value)):
            value = mapping_of(one).get(name) if name else one
            if value in seen:
                Field(f"{self.path}[{number}]{name and '.'}{name}", value, self.causes).duplicate()
            seen.append(value)

    def exactly_one(self, present: Collection[str], allowed: Collection[str]) -> None:
        """Require that exactly one of the `allowed` fields is present."""
        if len(present) != 1:
            detail = f"exactly one of {', '.join(f'`{name}`' for name in allowed)} is required"
            if not present:
                self.required(detail)
            else:
                self.invalid(f"{detail}, but multiple fields are set", "{" + ", ".join(present) + "}")

    def json_object(self) -> None:
        """Require a JSON object of at most 10 KiB, which only a driver interprets."""
        if not isinstance(self.value, dict):
            self.invalid("parameters must be a valid JSON object", "<value omitted>")
        elif len(json.dumps(self.value)) > _MAX_JSON:
            self.too_long(_MAX_JSON)


def label_causes(new: Json) -> list[Cause]:
    """Return what is wrong with an object's labels, whatever its kind."""
    labels = Field("", new)["metadata"]["labels"]
    for name, value in mapping_of(labels.value).items():
        Field(labels.path, name, labels.causes).label_key()
        Field(labels.path, value, labels.causes).label_value()
    return labels.causes


def is_same(value: object, was: object) -> bool:
    """Return whether two values are the same to Go clients, which leave out empty fields."""
    return _without_empty(value) == _without_empty(was)


def _without_empty(value: object) -> object:
    if isinstance(value, list):
        return [_without_empty(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {name: one if name == "parameters" else _without_empty(one) for name, one in value.items()}
    return {name: one for name, one in kept.items() if one not in (None, "", [], {})}


def mapping_of(value: object) -> Json:
    """Return the value if it is an object, otherwise an empty object."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    """Return the value if it is a list, otherwise an empty list."""
    return value if isinstance(value, list) else []


def objects_in(value: object) -> list[Json]:
    """Return the objects of a list."""
    return [one for one in list_of(value) if isinstance(one, dict)]


def is_whole(value: object) -> bool:
    """Return whether a value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)
