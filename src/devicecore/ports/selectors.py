"""Evaluates the expressions that select devices.

Law: within bounded time and memory, an expression has the same value as in Kubernetes, or raises `SelectorError`.
"""

from typing import Protocol

from devicecore.domain.allocation.model import PoolDevice


class Selectors(Protocol):
    """Evaluates the CEL expressions in DeviceClasses and ResourceClaims.

    An evaluator is passed to `allocate` as the argument `matches`.
    """

    def __call__(self, expression: str, device: PoolDevice) -> bool:
        """Return whether an expression selects a device. Compiled expressions are cached.

        Raises:
            SelectorError: the expression is not valid, or has no value for this device.
        """
