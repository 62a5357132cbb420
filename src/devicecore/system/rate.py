"""A limit on how often callers may call.

Law: a refused call takes no token, so a caller that keeps calling is accepted as soon as there is a token.
"""

import threading
from collections.abc import Callable


class TokenBucket:
    """Holds at most `burst` tokens, and gains `per_second` tokens each second. Thread-safe.

    `clock` returns monotonic seconds. Raises ValueError if the bucket could never hold a whole token.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float]) -> None:
        if per_second <= 0 or burst < 1:
            problem = (
                f"expected more than 0 calls per second and at least 1 at once, got {per_second:g} and {burst}: "
                "that would refuse every call"
            )
            raise ValueError(problem)
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._left, self._counted = float(burst), clock()

    def take(self) -> float:
        """Take a token and return 0. If there is no token, return the number of seconds until there is one."""
        with self._lock:
            now = self._clock()
            left = self._at(now)
            if left < 1:
                return (1 - left) / self._per_second
            self._left, self._counted = left - 1, now
            return 0.0

    @property
    def full(self) -> bool:
        """Whether the bucket behaves like a new bucket."""
        with self._lock:
            return self._at(self._clock()) >= self._burst

    def _at(self, now: float) -> float:
        return min(self._burst, self._left + (now - self._counted) * self._per_second)
