"""How often somebody may call.

Law: what is refused costs nothing, so whoever keeps calling gets in as soon as there is room.
"""

import threading
from collections.abc import Callable


class TokenBucket:
    """Holds `burst` tokens, and room for no more: `per_second` fall into it as it empties. Thread-safe.

    Args:
        per_second: calls in the long run.
        burst: calls at once.
        clock: monotonic seconds.

    Raises:
        ValueError: there would never be a token in it.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float]) -> None:
        if per_second <= 0 or burst < 1:
            problem = f"{per_second:g} calls per second, {burst} at once: that would refuse everybody"
            raise ValueError(problem)
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._left, self._counted = float(burst), clock()

    def take(self) -> float:
        """Take a token and return 0; where there is none, return the seconds until there is."""
        with self._lock:
            now = self._clock()
            left = self._at(now)
            if left < 1:
                return (1 - left) / self._per_second
            self._left, self._counted = left - 1, now
            return 0.0

    @property
    def full(self) -> bool:
        """Whether nobody would notice if this were a new one."""
        with self._lock:
            return self._at(self._clock()) >= self._burst

    def _at(self, now: float) -> float:
        return min(self._burst, self._left + (now - self._counted) * self._per_second)
