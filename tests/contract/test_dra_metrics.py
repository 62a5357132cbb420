"""Everything that counts DRA operations meets the contract."""

from collections.abc import Callable

import pytest
from attrs import field, frozen

from devicecore.adapters.memory_dra import MemoryDraMetrics
from devicecore.adapters.prometheus import PrometheusMetrics
from devicecore.testing.contracts.dra_metrics import DRA_METRICS, MakeDraMetrics

Check = Callable[[MakeDraMetrics], None]


@frozen
class InMemory:
    """Keeps operations in a list."""

    metrics: MemoryDraMetrics = field(factory=MemoryDraMetrics)

    def operations(self, operation: str, *, failed: bool) -> tuple[int, float]:
        found = [row[1] for row in self.metrics.operations if (row[0], row[2]) == (operation, failed)]
        return len(found), sum(found)


@frozen
class InPrometheus:
    """Reads operations from the Prometheus registry."""

    metrics: PrometheusMetrics = field(factory=PrometheusMetrics)

    def operations(self, operation: str, *, failed: bool) -> tuple[int, float]:
        labels = {"operation_name": operation, "is_error": "true" if failed else "false"}
        name = "dra_operations_duration_seconds"
        count, total = (self.metrics.registry.get_sample_value(f"{name}_{one}", labels) for one in ("count", "sum"))
        return int(count or 0), total or 0.0


class Inverted(MemoryDraMetrics):
    """Counts failures as successes, and successes as failures, as kubelets before 1.36 did."""

    def dra_operation(self, operation: str, seconds: float, *, failed: bool) -> None:
        super().dra_operation(operation, seconds, failed=not failed)


@pytest.mark.parametrize("make", [InMemory, InPrometheus])
@pytest.mark.parametrize("check", DRA_METRICS)
def test_all_metrics_keep_the_contract(check: Check, make: MakeDraMetrics) -> None:
    check(make)


@pytest.mark.parametrize("check", DRA_METRICS)
def test_each_check_catches_metrics_that_break_its_sentence(check: Check) -> None:
    """A check that cannot fail tests nothing."""
    with pytest.raises(AssertionError):
        check(lambda: InMemory(Inverted()))
