"""How long to wait between attempts.

Law: the wait doubles with each failure in a row, up to a maximum.
"""

from attrs import frozen

from devicecore.system.background import bounded_backoff


@frozen
class Backoff:
    """How long to wait between attempts: `first` seconds, then twice as long each time, up to `maximum`."""

    first: float = 0.5
    maximum: float = 30.0

    def delay(self, failures: int, luck: float) -> float:
        """Return the seconds after so many failures in a row. `luck`, from 0 to 1, spreads the attempts of nodes."""
        return bounded_backoff(failures, self.first, self.maximum) * (0.5 + luck / 2)
