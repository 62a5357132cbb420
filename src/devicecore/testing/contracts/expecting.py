"""How a check says what it expected and what came."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from devicecore.domain.model import resource_name

PATIENCE = 10.0
"""Seconds after which a check no longer waits for something that should come at once."""

GPU = resource_name("example.com/gpu")
RDMA = resource_name("example.com/rdma")

E = TypeVar("E", bound=Exception)
Make = TypeVar("Make")


def a_check(check: Callable[[Make], None]) -> Callable[[Make], None]:
    """Have whatever a check runs into come out as `AssertionError`, with the sentence it was about."""

    @wraps(check)
    def run(make: Make) -> None:
        try:
            check(make)
        except AssertionError:
            raise
        except Exception as error:
            message = f"{check.__doc__} Expected no error, and {error!r} came"
            raise AssertionError(message) from error

    return run


def expect(what: str, came: object, expected: object) -> None:
    """Complain unless what came is what was expected."""
    if came != expected:
        message = f"{what}: expected {expected!r}, and {came!r} came"
        raise AssertionError(message)


def expect_error(what: str, kind: type[E] | tuple[type[E], ...], call: Callable[[], object]) -> E:
    """Complain unless `call` raises an error of this kind; the error."""
    try:
        came = call()
    except Exception as error:
        if isinstance(error, kind):
            return error
        message = f"{what}: expected {_names(kind)}, and {error!r} came"
        raise AssertionError(message) from error
    message = f"{what}: expected {_names(kind)}, and no error came, but {came!r}"
    raise AssertionError(message)


def _names(kind: type[Exception] | tuple[type[Exception], ...]) -> str:
    return " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
