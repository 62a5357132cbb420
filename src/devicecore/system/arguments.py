"""Checks arguments against the annotations of a function.

Law: a call with an argument of the wrong type raises a TypeError with one sentence, which names the function and the
argument, before the function is run. An argument whose type has no simple check, such as a protocol, is accepted.

These checks take microseconds, so only functions that are called rarely have them, such as those that construct
adapters and plugins, start servers, or are called by tests.
"""

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from functools import cache, partial, wraps
from operator import is_
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, SupportsIndex, TypeVar, Union, get_args, get_origin, get_type_hints

from devicecore.domain.checks import check_callable, check_seconds, expected, items

P = ParamSpec("P")
T = TypeVar("T")

_COUNTED = ("per_second", "fraction", "now")
"""Parts of the names of arguments of type float that are not durations in seconds."""


def checks_arguments(*own: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator for functions and methods that are to refuse arguments of the wrong type.

    `own` are the names of arguments that the function itself checks, because the function's own error says more.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            __tracebackhide__ = True  # for pytest
            _check(function, own, args, kwargs)
            return function(*args, **kwargs)

        return call

    return decorate


def checks_fields(cls: type[T]) -> type[T]:
    """Make an attrs class refuse fields of the wrong type. Use this decorator above the decorator of attrs."""
    setattr(cls, "__init__", checks_arguments()(cls.__init__))  # noqa: B010 - as attrs does; mypy refuses the other form
    return cls


def _check(
    function: Callable[..., object], own: Collection[str], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> None:
    __tracebackhide__ = True
    signature, hints = _signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return  # Python's own sentence about the call follows
    for name, value in given.items():
        if name in hints and name not in own:
            many = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for one in value if many else (value,):
                _check_value(_place(function, name, given), name, hints[name], one)


@cache
def _signature(function: Callable[..., object]) -> tuple[inspect.Signature, Mapping[str, Any]]:
    """Return the parameters and their types, without the types that cannot be resolved at run time."""
    signature = inspect.signature(function)
    try:
        return signature, get_type_hints(inspect.unwrap(function))
    except NameError:  # an annotation in quotes names a type that is imported only for type checkers
        known = {name: one.annotation for name, one in signature.parameters.items()}
        return signature, {
            name: hint for name, hint in known.items() if hint is not inspect.Parameter.empty and type(hint) is not str
        }


def _place(function: Callable[..., object], name: str, given: Mapping[str, object]) -> str:
    """Return how an error calls an argument: `Class: argument`, `Class.field`, `Class.method: argument`."""
    if "self" not in given:
        return f"{function.__name__}: {name}"
    owner = type(given["self"])
    if function.__name__ == "__init__":
        return f"{owner.__name__}{'.' if hasattr(owner, '__attrs_attrs__') else ': '}{name}"
    return f"{owner.__name__}.{function.__name__}: {name}"


def _check_value(place: str, name: str, hint: Any, value: object) -> None:  # noqa: ANN401 - any annotation
    """Raise TypeError if `value` does not match the annotation `hint`, or ValueError for a negative time."""
    __tracebackhide__ = True
    hint = _class_of(hint)
    if _are_instances(hint, (value,)):
        return
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        _check_alternatives(place, name, inner, value)
    elif origin is Literal:
        if value not in inner:
            raise TypeError(expected(place, " or ".join(map(repr, inner)), value))
    elif origin is Callable:
        check_callable(place, value)
    elif isinstance(origin, type):
        _check_container(place, name, origin, inner, value)
    elif isinstance(hint, type) and hint is not Any and not getattr(hint, "_is_protocol", False):
        _check_class(place, name, hint, value)


def _class_of(hint: Any) -> Any:  # noqa: ANN401 - as above
    """Return the class of which a NewType makes names, or the annotation itself."""
    return getattr(hint, "__supertype__", hint)


def _are_instances(hint: Any, values: Iterable[object]) -> bool:  # noqa: ANN401 - as above
    """Return whether all values certainly match, which takes little time for a thousand of them."""
    return hint is not float and all(map(partial(is_, hint), map(type, values)))


def _check_alternatives(place: str, name: str, hints: tuple[Any, ...], value: object) -> None:
    if value is None and NoneType in hints:
        return
    left = [hint for hint in hints if hint is not NoneType]
    if any(get_origin(hint) is os.PathLike for hint in left):
        if not isinstance(value, str | os.PathLike):
            raise TypeError(expected(place, "a path, such as a string", value))
    elif len(left) == 1:
        _check_value(place, name, left[0], value)
    elif not any(_matches(place, name, hint, value) for hint in left):
        raise TypeError(expected(place, " or ".join(getattr(hint, "__name__", str(hint)) for hint in left), value))


def _matches(place: str, name: str, hint: Any, value: object) -> bool:  # noqa: ANN401 - any annotation
    try:
        _check_value(place, name, hint, value)
    except (TypeError, ValueError):
        return False
    return True


def _check_container(place: str, name: str, kind: type, inner: tuple[Any, ...], value: object) -> None:
    if issubclass(kind, Mapping):
        if not isinstance(value, Mapping):
            raise TypeError(expected(place, "a mapping, such as a dict", value))
    elif issubclass(kind, Iterable):
        found: Iterable[object] = items(value, place)  # type: ignore[arg-type]  # this is the check
        if not isinstance(found, Collection) or not (len(inner) == 1 or inner[-1] is ...):
            return  # an iterator can be read only once
        if not _are_instances(_class_of(inner[0]), found):
            for one in found:
                _check_value(place, name, inner[0], one)


def _check_class(place: str, name: str, kind: type, value: object) -> None:
    if kind is not float:
        if not isinstance(value, _accepted(kind)):
            raise TypeError(expected(place, kind.__name__, value))
    elif not any(part in name for part in _COUNTED):
        check_seconds(place, value)
    elif not isinstance(value, int | float):
        raise TypeError(expected(place, "a number", value))


@cache
def _accepted(kind: type) -> tuple[type, ...]:
    """Return `kind`, and the classes of objects that can be used in place of its instances."""
    if issubclass(kind, Enum):  # such as "Healthy" or 15; the function itself looks up the member
        return kind, *{type(one.value) for one in kind}
    return (int, SupportsIndex) if kind is int else (kind,)  # NumPy's whole numbers are not instances of int
