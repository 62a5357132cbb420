"""Suites of checks, and comparisons whose errors contain the expected and the actual value.

Law: a check ends without an exception or with an `AssertionError`.
"""

import re
from collections.abc import Callable, Container
from functools import wraps
from typing import TypeVar

from devicecore.domain.model import resource_name

EVENT_TIMEOUT = 30.0
"""The maximum number of seconds that a check waits for an event that should arrive at once."""

GPU = resource_name("example.com/gpu")
RDMA = resource_name("example.com/rdma")

_MODULE = re.compile(r"(?:\w+\.)+(?=\w)")

E = TypeVar("E", bound=Exception)
Make = TypeVar("Make")
T = TypeVar("T")


class Suite(list[Callable[[Make], None]]):
    """The checks of one contract. The decorator `@SUITE.check` adds a function to the suite."""

    def check(self, check: Callable[[Make], None]) -> Callable[[Make], None]:
        """Add a check to the suite. Any exception from the check becomes an `AssertionError`."""

        @wraps(check)
        def run(make: Make) -> None:
            __tracebackhide__ = True
            try:
                check(make)
            except AssertionError:
                raise
            except Exception as error:
                message = f"{check.__doc__} Expected no error, got {error!r}"
                if not callable(make) or (isinstance(error, TypeError) and "context manager" in str(error)):
                    wanted = _MODULE.sub("", str(check.__annotations__["make"]))
                    message = f"the argument of {check.__name__}: expected a {wanted}, got {make!r}"
                raise AssertionError(message) from error

        self.append(run)
        return run


def expect(what: str, actual: object, expected: object) -> None:
    """Compare a value with the expected value. Raises AssertionError if they differ."""
    __tracebackhide__ = True
    if actual != expected:
        message = f"{what}: expected {expected!r}, got {actual!r}"
        raise AssertionError(message)


def expect_in(what: str, whole: Container[T], part: T) -> None:
    """Check that a string or a list contains `part`. Raises AssertionError if it does not."""
    __tracebackhide__ = True
    if part not in whole:
        message = f"{what}: expected {part!r} in it, got {whole!r}"
        raise AssertionError(message)


def expect_error(what: str, kind: type[E] | tuple[type[E], ...], call: Callable[[], object]) -> E:
    """Call `call` and return the error of this kind that it raises.

    Raises AssertionError if `call` raises a different error, or none.
    """
    __tracebackhide__ = True
    try:
        actual = call()
    except Exception as error:
        if isinstance(error, kind):
            return error
        message = f"{what}: expected {_names(kind)}, got {error!r}"
        raise AssertionError(message) from error
    message = f"{what}: expected {_names(kind)}, got no error but {actual!r}"
    raise AssertionError(message)


def _names(kind: type[Exception] | tuple[type[Exception], ...]) -> str:
    return " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
