"""Python's collector of cycles, which rests while a command reads what a large node or cluster says.

Law: after a block without the collector it is as it was before.
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
