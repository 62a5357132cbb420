"""A time of day that can be compared with later times in the same process.

Law: this time never goes back and never jumps, even if someone sets the machine's clock.
"""

import time

_OFFSET = time.time_ns() - time.monotonic_ns()


def steady_time_ns() -> int:
    """Return nanoseconds since 1970: the machine's time when this module was loaded, plus monotonic time since then.

    A driver's report from ten seconds ago must not count as old just because the clock was set forward in the meantime.
    A kubelet measures in the same way, with `time.Since`.
    """
    return _OFFSET + time.monotonic_ns()
