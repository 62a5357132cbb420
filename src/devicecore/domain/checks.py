"""Checks of the values that callers construct.

Law: a value that is refused is a `TypeError` or `ValueError` of one sentence. It names the class and the field, says
what was expected, and shows what came, escaped and cut.
"""

from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

from attrs import Attribute, AttrsInstance, fields

from devicecore.domain.text import foreign_text

T = TypeVar("T")
Text = TypeVar("Text", bound=str)
Choice = TypeVar("Choice", bound=Enum)
Values = TypeVar("Values", bound=AttrsInstance)


def expected(what: str, wanted: str, value: object) -> str:
    """Return the sentence that refuses `value`, which may be any object and of any size."""
    return f"{what}: expected {wanted}, got {foreign_text(repr(value), 100)}"


def checked(value: object, wanted: type[T], what: str) -> T:
    """Return `value` if it is a `wanted`. Raises TypeError if it is of another type."""
    if not isinstance(value, wanted):
        raise TypeError(expected(what, wanted.__name__, value))
    return value


def items(value: Iterable[T], what: str) -> Iterable[T]:
    """Return `value` if it has several items. A text is one.

    Raises:
        TypeError: it is a text, or nothing that can be iterated over.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(expected(what, "several values, such as a tuple", value))
    return value


def tuple_of(value: Iterable[T], kind: type[T], what: str) -> tuple[T, ...]:
    """Return the items of `value`, each of which is a `kind`.

    Raises:
        TypeError: `value` has no items, or one of another type.
    """
    found = tuple(items(value, what))
    if not {kind}.issuperset(map(type, found)):
        for one in found:
            checked(one, kind, what)
    return found


def one_of(value: Choice | str, kind: type[Choice], what: str) -> Choice:
    """Return the member of an enumeration, which may be given by its text. Raises ValueError if there is none."""
    try:
        return kind(value)
    except ValueError:
        raise ValueError(expected(what, " or ".join(repr(one.value) for one in kind), value)) from None


def repeated(names: Iterable[str]) -> str | None:
    """Return the first name that is there a second time; None if all are different."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


# --- validators of fields ---------------------------------------------------------------------------------------------


def is_flag(instance: object, field: "Attribute[bool]", value: bool) -> None:  # noqa: FBT001 - attrs calls it
    """Refuse what is not True or False, such as the text "no"."""
    checked(value, bool, _place(instance, field))


def is_text(instance: object, field: "Attribute[str]", value: str) -> None:
    """Refuse what is not a text."""
    checked(value, str, _place(instance, field))


def is_name(instance: object, field: "Attribute[Text]", value: Text) -> None:
    """Refuse what is not a text of at least one character."""
    if checked(value, str, _place(instance, field)) == "":
        raise ValueError(expected(_place(instance, field), "a text that is not empty", value))


def is_absolute_path(instance: object, field: "Attribute[str]", value: str) -> None:
    """Refuse what a container runtime refuses: a path that does not begin with a slash."""
    if not checked(value, str, _place(instance, field)).startswith("/"):
        raise ValueError(expected(_place(instance, field), "an absolute path, such as /dev/gpu0", value))


def _place(instance: object, field: "Attribute[T]") -> str:
    return f"{type(instance).__name__}.{field.name}"


# --- what others have sent --------------------------------------------------------------------------------------------


def received(cls: type[Values], *values: object) -> Values:
    """Make a value of an attrs class, without its checks, of what a plugin has sent over a socket.

    A kubelet checks neither ids nor paths (kubelet.md 7.3), so each of them is kept as it came.
    """
    value = object.__new__(cls)
    for field, each in zip(fields(cls), values, strict=True):
        object.__setattr__(value, field.name, each)
    return value
