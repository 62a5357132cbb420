"""Measures how long something takes.

Law: each block is measured once, whether or not it raises an error.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Clock = Callable[[], float]
"""Monotonic seconds."""


@contextmanager
def measured(clock: Clock, record: Callable[[float, bool], None]) -> Iterator[None]:
    """After the block, call `record` with the number of seconds that the block took, and whether it raised an error."""
    began, failed = clock(), True
    try:
        yield
        failed = False
    finally:
        record(clock() - began, failed)
