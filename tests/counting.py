"""Work that is counted, not timed."""

import gc
import sys
from collections.abc import Callable
from types import FrameType


def function_calls(action: Callable[[], object]) -> int:
    """Return how many functions `action` calls, including those that are written in C."""
    count = 0

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    gc.disable()  # each garbage collection would call a callback of Hypothesis, which would be counted
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count
