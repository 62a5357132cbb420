"""The contract of `DraMetrics`.

Law: every operation adds one sample, which says how long the operation took and whether it failed.
"""

from collections.abc import Callable
from typing import Protocol

from devicecore.ports.dra_metrics import DraMetrics
from devicecore.testing.contracts.expect import Suite, expect

__all__ = ["DRA_METRICS", "DraMetricsHarness", "MakeDraMetrics"]


class DraMetricsHarness(Protocol):
    """A `DraMetrics` adapter, and a way to read what it has counted."""

    @property
    def metrics(self) -> DraMetrics:
        """The adapter."""

    def operations(self, operation: str, *, failed: bool) -> tuple[int, float]:
        """Return the number of operations that failed (or did not), and their total duration in seconds."""


MakeDraMetrics = Callable[[], DraMetricsHarness]
"""Creates an adapter that has counted nothing yet."""

DRA_METRICS: Suite[MakeDraMetrics] = Suite()
"""The checks for every `DraMetrics` adapter."""


@DRA_METRICS.check
def measures_every_operation(make: MakeDraMetrics) -> None:
    """An operation adds one sample for its name and result, and for no other name or result."""
    harness = make()
    for operation, seconds, failed in (
        ("PrepareResources", 0.25, False),
        ("PrepareResources", 0.5, False),
        ("PrepareResources", 2.0, True),
        ("UnprepareResources", 0.125, False),
    ):
        harness.metrics.dra_operation(operation, seconds, failed=failed)
    expect("prepared", harness.operations("PrepareResources", failed=False), (2, 0.75))
    expect("not prepared", harness.operations("PrepareResources", failed=True), (1, 2.0))
    expect("released", harness.operations("UnprepareResources", failed=False), (1, 0.125))
