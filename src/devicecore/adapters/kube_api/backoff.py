"""How long to wait between attempts.

Law: the wait doubles with each failure in a row, up to a maximum.
"""

from attrs import frozen


@frozen
class Backoff:
    """How long to wait between attempts: `first` seconds, then twice as long each time, up to `maximum`."""

    first: float = 0.5
    maximum: float = 30.0

    def delay(self, failures: int, luck: float) -> float:
        """Seconds after so many failures in a row; `luck`, from 0 to 1, spreads the attempts of many nodes."""
        return min(self.maximum, self.first * 2.0 ** min(failures - 1, 60)) * (0.5 + luck / 2)
