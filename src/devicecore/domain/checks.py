"""Checks on the values that callers construct.

Law: refusing a value raises a `TypeError` or `ValueError` with one sentence, which names the class and the field, says
what was expected, and shows the value, escaped and truncated. An adapter in the wrong position, or a class instead of
an instance, is refused when the manager is constructed, not by a later call.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from inspect import signature
from typing import TypeVar

from attrs import Attribute, AttrsInstance, fields

from devicecore.domain.text import foreign_text

T = TypeVar("T")
Text = TypeVar("Text", bound=str)
Member = TypeVar("Member", bound=Enum)
Values = TypeVar("Values", bound=AttrsInstance)


def expected(what: str, wanted: str, value: object) -> str:
    """Return the error message for refusing `value`, which may be an object of any type and size."""
    return f"{what}: expected {wanted}, got {foreign_text(repr(value), 100)}"


def checked(value: object, wanted: type[T], what: str) -> T:
    """Return `value` if it is an instance of `wanted`. Raises TypeError if `value` is not an instance."""
    if not isinstance(value, wanted):
        raise TypeError(expected(what, wanted.__name__, value))
    return value


def items(value: Iterable[T], what: str) -> Iterable[T]:
    """Return `value` if it can contain several items. Raises TypeError if `value` is a string or not iterable."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(expected(what, "several values, such as a tuple", value))
    return value


def tuple_of(value: Iterable[T], kind: type[T], what: str) -> tuple[T, ...]:
    """Return the items of `value`. Raises TypeError if `value` is not iterable or an item is not a `kind`."""
    found = tuple(items(value, what))
    if not {kind}.issuperset(map(type, found)):
        for one in found:
            checked(one, kind, what)
    return found


def one_of(value: Member | str, kind: type[Member], what: str) -> Member:
    """Return the member of an enumeration, which may be given as a string.

    Raises ValueError if there is no such member.
    """
    try:
        return kind(value)
    except ValueError:
        raise ValueError(expected(what, " or ".join(repr(one.value) for one in kind), value)) from None


def repeated(names: Iterable[str]) -> str | None:
    """Return the first repeated name, or None if all are different."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


# --- validators of fields ---------------------------------------------------------------------------------------------


def is_flag(instance: object, field: "Attribute[bool]", value: bool) -> None:  # noqa: FBT001 - attrs calls it
    """Refuse anything but True and False, such as the string "no"."""
    checked(value, bool, _place(instance, field))


def is_text(instance: object, field: "Attribute[str]", value: str) -> None:
    """Refuse anything but a string."""
    checked(value, str, _place(instance, field))


def is_several(instance: object, field: "Attribute[T]", value: T) -> None:
    """Refuse a string instead of several values, such as `("gpu")` without its comma.

    None is accepted, and means that there is no value.
    """
    if value is not None and (isinstance(value, str) or not isinstance(value, Iterable)):
        raise TypeError(expected(_place(instance, field), "several values, such as a tuple", value))


def is_name(instance: object, field: "Attribute[Text]", value: Text) -> None:
    """Refuse anything but a non-empty string."""
    if checked(value, str, _place(instance, field)) == "":
        raise ValueError(expected(_place(instance, field), "a non-empty string", value))


def is_absolute_path(instance: object, field: "Attribute[str]", value: str) -> None:
    """Refuse a path that does not start with a slash, as a container runtime does."""
    if not checked(value, str, _place(instance, field)).startswith("/"):
        raise ValueError(expected(_place(instance, field), "an absolute path, such as /dev/gpu0", value))


def is_seconds(instance: object, field: "Attribute[float]", value: float) -> None:
    """Refuse anything but a non-negative number of seconds."""
    check_seconds(_place(instance, field), value)


def _place(instance: object, field: "Attribute[T]") -> str:
    return f"{type(instance).__name__}.{field.name}"


# --- arguments of managers --------------------------------------------------------------------------------------------


def check_adapter(what: str, given: object, port: type, *, optional: bool = False) -> None:
    """Refuse anything that cannot be an adapter of a port. `what` names the argument.

    Raises TypeError if `given` is a class, or lacks a method of the protocol `port`.
    """
    if given is None and optional:
        return
    refuse_class(what, given)
    if missing := [name for name in _methods(port) if not callable(getattr(given, name, None))]:
        lacks = f", which lacks the method{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise TypeError(expected(what, f"a {port.__name__}", given) + lacks)


def check_callable(what: str, given: object, takes: str = "") -> None:
    """Raise TypeError if `given` is not callable, or if `takes` is set and `given` does not accept one argument."""
    if not callable(given):
        raise TypeError(expected(what, "a function", given))
    if takes and not _takes_one_argument(given):
        raise TypeError(expected(what, f"a function of one argument, {takes}", given))


def check_callables(what: str, given: Iterable[object], takes: str = "") -> None:
    """Raise TypeError unless `given` contains only functions, such as observers.

    Calling a class would only create an instance.
    """
    for one in items(given, what):
        refuse_class(what, one)
        check_callable(what, one, takes)


def refuse_class(what: str, given: object) -> None:
    """Raise TypeError if `given` is a class, because an instance is needed."""
    if isinstance(given, type):
        raise TypeError(expected(what, f"an instance of {given.__name__}, not the class", given))


def check_seconds(what: str, given: object) -> None:
    """Refuse anything but a number of seconds. Raises TypeError, or ValueError for a negative number or nan."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(expected(what, "a number of seconds", given))
    if not given >= 0:
        raise ValueError(expected(what, "a non-negative number of seconds", given))


def _takes_one_argument(given: Callable[..., object]) -> bool:
    try:
        signature(given).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function in C without a signature
        return True
    return True


def _methods(port: type) -> list[str]:
    return [name for name, value in vars(port).items() if callable(value) and not name.startswith("_")]


# --- values sent by others --------------------------------------------------------------------------------------------


def received(cls: type[Values], *values: object) -> Values:
    """Construct a value of an attrs class without its checks, from data that a plugin has sent over a socket.

    A kubelet checks neither ids nor paths (kubelet.md 7.3), so ids and paths are kept unchanged.
    """
    value = object.__new__(cls)
    for field, each in zip(fields(cls), values, strict=True):
        object.__setattr__(value, field.name, each)
    return value
