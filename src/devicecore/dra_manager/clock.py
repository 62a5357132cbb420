"""The time of day for what is compared with later times in the same process.

Law: this time never goes back and never jumps, even if the machine's clock is set.
"""

import time

_OFFSET = time.time_ns() - time.monotonic_ns()


def steady_time_ns() -> int:
    """Nanoseconds since 1970 by the machine's clock when this module was loaded, and by the monotonic clock since.

    What a driver reported ten seconds ago must not count as old because the clock was set forward meanwhile. A
    kubelet's `time.Since` measures in the same way.
    """
    return _OFFSET + time.monotonic_ns()
