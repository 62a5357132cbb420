"""The values in parsed documents from outside, such as API objects, manifests and kubeconfigs.

Law: a value is read as the expected type or refused with an error that names the file, the line if it is known, and the
path to the field. A null counts as a missing field, and unknown fields are ignored.
"""

from collections.abc import Mapping
from typing import NoReturn

from attrs import frozen

from devicecore.domain.errors import DocumentError, InvalidQuantityError
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text


@frozen
class Document:
    """How an error names a document: by file and first line, if known. `error` is the type of error to raise."""

    file: str
    line: int | None = None
    error: type[DocumentError] = DocumentError
    field: str = ""


class Value:
    """A value in a document, with the place that errors name. If the value is missing, `data` is None.

    Args:
        data: what the document contains at this place, as parsed JSON. A list or object may have an attribute `lines`
            with each value's line, by index or key.
        place: the value that contains this value; for a whole document, the document or the name of its file.
        step: the key or index of this value in `place`.
    """

    __slots__ = ("data", "place", "step")  # a list of 5,000 pods has 200,000 values

    def __init__(self, data: object, place: "Value | Document | str", step: str | int = "") -> None:
        self.data: object = data
        self.place: Value | Document = Document(place) if isinstance(place, str) else place
        self.step: str | int = step

    @classmethod
    def of(cls, data: object, file: str) -> "Value":
        """Return parsed JSON as a value. A `Value` is returned unchanged."""
        return data if isinstance(data, Value) else cls(data, file)

    # The place is computed only for errors, because nearly all documents have no errors.

    @property
    def file(self) -> str:
        """The name of the document's file."""
        return self.place.file

    @property
    def field(self) -> str:
        """The path to the value, such as `spec.containers[0].name`."""
        if isinstance(self.place, Document):
            return self.place.field
        is_in_brackets = isinstance(self.step, int) or "/" in self.step
        return f"{self.place.field}{f'[{self.step}]' if is_in_brackets else f'.{self.step}'}".removeprefix(".")

    @property
    def line(self) -> int | None:
        """The line of the value, or of the object that lacks the value. None if the line is unknown, as in JSON."""
        lines: Mapping[str | int, int] = getattr(self.place.data, "lines", {}) if isinstance(self.place, Value) else {}
        try:
            return lines[self.step]
        except LookupError:
            return self.place.line

    @property
    def error(self) -> type[DocumentError]:
        """The type of error that `refuse` raises."""
        return self.place.error

    def refuse(self, problem: str, cause: Exception | None = None) -> NoReturn:
        """Raise the document's kind of error for this value."""
        raise self.error(self.file, self.line, self.field, problem) from cause

    def __getitem__(self, key: str) -> "Value":
        data = self.data
        if isinstance(data, dict):
            return Value(data.get(key), self, key)
        if data is not None:
            self.refuse(f"expected an object, got {described(data)}")
        return Value(None, self, key)

    def mapping(self) -> "dict[str, Value]":
        """Return the values of an object by key, or an empty mapping if the value is missing.

        Raises DocumentError for other values.
        """
        if self.data is None:
            return {}
        if not isinstance(self.data, dict):
            self.refuse(f"expected an object, got {described(self.data)}")
        return {key: Value(data, self, key) for key, data in self.data.items()}

    def sequence(self) -> "list[Value]":
        """Return the items of a list, or none if the value is missing.

        Raises DocumentError if the value is not a list.
        """
        if self.data is None:
            return []
        if not isinstance(self.data, list):
            self.refuse(f"expected a list, got {described(self.data)}")
        return [Value(data, self, number) for number, data in enumerate(self.data)]

    def text(self, default: str | None = None) -> str:
        """Return the string, or `default` if the string is missing or empty. Raises DocumentError for anything else."""
        if isinstance(self.data, str) and self.data:
            return self.data
        if default is not None and (self.data is None or self.data == ""):
            return default
        if self.data is None:
            self.refuse("it is missing")
        return self.refuse(f"expected a string, got {described(self.data)}{_how_to_make_a_text(self.data)}")

    def boolean(self) -> bool:
        """Return whether the value is true.

        A missing value counts as false. Raises DocumentError if the value is neither true nor false.
        """
        if not isinstance(self.data, bool | None):
            self.refuse(f"expected true or false, got {described(self.data)}")
        return bool(self.data)

    def integer(self, default: int | None = None) -> int:
        """Return the whole number, or `default` if the number is missing. Raises DocumentError for anything else."""
        value = default if self.data is None else self.data
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(f"expected a whole number, got {described(value)}")
        return value

    def quantity(self, *, whole: bool = False) -> int:
        """Return the quantity, rounded up to a whole number unless `whole` is set.

        Raises DocumentError if the value is not a quantity, is below 0, or is a fraction although `whole` is set.
        """
        amount = self.amount()
        if whole and not amount.is_whole:
            self.refuse(f"expected an integer, got {self.data}")
        if amount.nanos < 0:
            self.refuse(f"expected 0 or more, got {self.data}")
        return amount.whole

    def amount(self) -> Quantity:
        """Return the exact quantity, which may be negative. Raises DocumentError if the value is not a quantity."""
        if isinstance(self.data, bool) or not isinstance(self.data, str | int | float):
            self.refuse(f"expected a quantity such as 2, 500m or 1.5Gi, got {described(self.data)}")
        try:
            return Quantity.parse(str(self.data))
        except InvalidQuantityError as error:
            return self.refuse(str(error), error)


def check_kind(document: Value, kind: str) -> None:
    """Refuse an object that declares a different kind. An object may declare none, as the items of a list do."""
    if document["kind"].data not in (None, kind):
        document["kind"].refuse(f"expected a {kind}, got {described(document['kind'].data)}")


def described(data: object) -> str:
    """Return a description of a value for errors."""
    match data:
        case dict():
            return "an object"
        case list():
            return "a list"
        case "":
            return "an empty string"
        case None:
            return "nothing"
        case bool():
            return "true" if data else "false"
        case _:
            return foreign_text(repr(data), 100)


def _how_to_make_a_text(data: object) -> str:
    """Return advice for a value that was meant as a string."""
    if isinstance(data, bool):
        words = "y, yes and on" if data else "n, no and off"
        return f", which is also how YAML reads {words}: put the value in quotes"
    return ": put the value in quotes" if isinstance(data, int | float) else ""
