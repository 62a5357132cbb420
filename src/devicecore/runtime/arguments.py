"""Check what a manager is made of.

Law: an adapter in the wrong place, or a class in the place of its instance, is a `TypeError` of one sentence when the
manager is made, not an error of a later call.
"""

from collections.abc import Iterable

from devicecore.domain.checks import expected, items


def check_adapter(what: str, given: object, port: type, *, optional: bool = False) -> None:
    """Refuse what cannot be the adapter of a port. `what` names the argument for the error.

    Raises:
        TypeError: `given` is a class, or lacks a method of the protocol `port`.
    """
    if given is None and optional:
        return
    if isinstance(given, type):
        raise TypeError(expected(what, f"an instance of {given.__name__}, not the class", given))
    if not all(callable(getattr(given, method, None)) for method in _methods(port)):
        raise TypeError(expected(what, f"a {port.__name__}", given))


def check_callable(what: str, given: object) -> None:
    """Refuse what cannot be called. Raises TypeError if it is not callable."""
    if not callable(given):
        raise TypeError(expected(what, "a function", given))


def check_callables(what: str, given: Iterable[object]) -> None:
    """Refuse what is not several functions, such as observers.

    Raises:
        TypeError: `given` cannot be iterated over, or has something in it that cannot be called.
    """
    for one in items(given, what):
        check_callable(what, one)


def check_seconds(what: str, given: object) -> None:
    """Refuse what is not a number of seconds.

    Raises:
        TypeError: it is no number.
        ValueError: it is below 0, or not a number.
    """
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(expected(what, "a number of seconds", given))
    if not given >= 0:
        raise ValueError(expected(what, "a number of seconds of at least 0", given))


def _methods(port: type) -> list[str]:
    return [name for name, value in vars(port).items() if callable(value) and not name.startswith("_")]
