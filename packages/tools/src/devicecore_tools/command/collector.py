"""Pauses Python's cycle collector while a command reads a large node or cluster.

Law: after such a block, the collector is in the state that it had before.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause Python's cycle collector: it would visit millions of objects, none of which is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
