"""Values as JSON, and JSON as values: for reports, `--json` and state files.

Law: `from_json(to_json(value), type(value)) == value` for frozen attrs values that consist of numbers, strings, bytes
and enums, and of tuples and mappings of these. JSON from another program is checked: the result is a value, or an error
that contains a sentence.
"""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import PurePath
from types import GenericAlias
from typing import Any, TypeVar, get_args, get_origin

from attrs import has
from cattrs import BaseValidationError, transform_error
from cattrs.cols import list_structure_factory
from cattrs.gen import make_dict_structure_fn
from cattrs.preconf.json import make_converter
from cattrs.v import format_exception

from devicecore.domain.text import foreign_text

T = TypeVar("T")

_CONVERTER = make_converter(detailed_validation=True)
_CONVERTER.register_unstructure_hook_func(lambda cls: _is_subclass(cls, AbstractSet), list)
_CONVERTER.register_unstructure_hook_func(lambda cls: _is_subclass(cls, PurePath | BaseException), str)


def to_json(value: object) -> Any:  # noqa: ANN401 - JSON has no better type
    """Return `value` as objects that `json.dumps` accepts. Sets become lists; paths and errors become strings."""
    return _CONVERTER.unstructure(value)


def from_json(document: object, cls: type[T]) -> T:
    """Return the value of type `cls` that a parsed JSON document describes.

    If the document describes no such value, raises a ValueError that says where, and what was expected.
    """
    try:
        return _CONVERTER.structure(document, cls)
    except (BaseValidationError, TypeError, ValueError) as error:
        problem = foreign_text("; ".join(transform_error(error, format_exception=_sentence)), 300)
        raise ValueError(problem) from None


def _is_subclass(cls: object, expected: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, expected)  # type: ignore[arg-type]  # a class, or a union of them


def _plain(value: object, cls: type[T]) -> T:
    """Return a value of one of JSON's own types, without converting it: "1" is not a number, and true is not 1."""
    if type(value) is cls or (cls is float and type(value) is int):
        return value  # type: ignore[return-value]  # its type was compared
    message = f"expected {cls.__name__}, got {value!r:.60}"
    raise ValueError(message)


def _object(cls: type[T]) -> Callable[[object, type[T]], T]:
    structure = make_dict_structure_fn(cls, _CONVERTER, _cattrs_forbid_extra_keys=True)

    def structured(value: object, cls: type[T]) -> T:
        if not isinstance(value, Mapping):
            message = f"expected an object, got {value!r:.60}"
            raise TypeError(message)
        return structure(value, cls)

    return structured


def _is_tuple(cls: Any) -> bool:  # noqa: ANN401 - cattrs passes any type
    return get_origin(cls) is tuple and get_args(cls)[-1:] == (...,)


def _tuple(cls: Any) -> Callable[[object, Any], tuple[Any, ...]]:  # noqa: ANN401 - cattrs passes any type
    """Return the function that reads a tuple. A string or an object is refused, although Python can iterate over it."""
    elements: Any = GenericAlias(list, get_args(cls)[0])
    structure = list_structure_factory(elements, _CONVERTER)

    def structured(value: object, _cls: Any) -> tuple[Any, ...]:  # noqa: ANN401 - as above
        if not isinstance(value, list):
            message = f"expected a list, got {value!r:.60}"
            raise TypeError(message)
        return tuple(structure(value, elements))

    return structured


def _sentence(error: BaseException, cls: type | None) -> str:
    # A KeyError means that a field is missing. Only cattrs can describe such an error.
    return str(error) if isinstance(error, TypeError | ValueError) else format_exception(error, cls)


for _type in (bool, float, int, str):
    _CONVERTER.register_structure_hook(_type, _plain)
_CONVERTER.register_structure_hook_factory(has, _object)
_CONVERTER.register_structure_hook_factory(_is_tuple, _tuple)
