"""Measures work by counting function calls, not by time."""

import gc
import sys
from collections.abc import Callable
from types import FrameType


def function_calls(action: Callable[[], object]) -> int:
    """Return the number of function calls that `action` makes, including calls to functions written in C."""
    count = 0

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    gc.disable()  # garbage collections call Hypothesis' callback, which would be counted
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count
