"""Control of Python's cyclic garbage collector in commands that read a large node or cluster, or run many nodes.

Law: after a block in which the collector is paused or runs rarely, it is in the same state as before the block.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_RARE = (20_000, 20, 20)  # in Python 3.11, the defaults are 700, 10 and 10


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause Python's cyclic garbage collector, which would visit millions of objects and find no garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def rare_collector() -> Iterator[None]:
    """Run Python's cyclic garbage collector rarely, because few objects of a long-lived fleet are in cycles.

    With the default thresholds, collecting took a tenth of the processor time spent on each pod.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_RARE)
    try:
        yield
    finally:
        gc.set_threshold(*before)
