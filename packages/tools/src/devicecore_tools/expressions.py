"""The CEL expressions of claims and classes, with the library of the extra `cel`.

Law: an expression that only compares the driver's name needs no library; any other without it is a `SelectorError`.
"""

import re
from functools import cached_property

from devicecore.domain.allocation import Features, Matches, PoolDevice, SelectorError

_OF_DRIVER = re.compile(r"""\s*device\.driver\s*==\s*(["'])([a-z0-9.-]{1,253})\1\s*""")
"""The expression of nearly every DeviceClass, for which no library is needed."""


MAX_SECONDS = 10.0
"""What all expressions of one question may take. A scheduler gives a node up after as many seconds."""


class Expressions:
    """Evaluates CEL expressions. Only those that compare the driver's name need no extra `cel`.

    `max_seconds` is what all evaluations may take together, if the object is for one question.
    """

    def __init__(self, features: Features = Features(), *, max_seconds: float | None = None) -> None:
        self._features = features
        self._max_seconds = max_seconds
        self.lacks_library: bool = False

    def __call__(self, expression: str, device: PoolDevice) -> bool:
        """Return whether an expression selects a device.

        Raises SelectorError if it has no value for the device, or the library is missing.
        """
        simple = _OF_DRIVER.fullmatch(expression)
        return device.key.driver == simple[2] if simple else self._library(expression, device)

    @cached_property
    def _library(self) -> Matches:
        try:
            from devicecore.adapters.cel import CelSelectors
        except ModuleNotFoundError as error:
            self.lacks_library = True
            raise SelectorError(str(error), at_run_time=False) from None
        return CelSelectors(self._features, max_seconds=self._max_seconds)
