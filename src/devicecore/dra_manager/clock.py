"""A time of day that can be compared with later times in the same process.

Law: this time never goes back and never jumps, even if the machine's clock is set.
"""

import time

_OFFSET = time.time_ns() - time.monotonic_ns()


def steady_time_ns() -> int:
    """Nanoseconds since 1970: the machine's clock when this module was loaded, plus the monotonic clock since then.

    A driver's report from ten seconds ago must not count as old because the clock was set forward in the meantime. A
    kubelet's `time.Since` measures in the same way.
    """
    return _OFFSET + time.monotonic_ns()
