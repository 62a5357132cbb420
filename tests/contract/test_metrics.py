"""All metrics meet the contract, and metrics that miscount are caught."""

from collections.abc import Callable

import pytest
from attrs import define, field

from devicecore.adapters.memory import MemoryMetrics
from devicecore.adapters.prometheus import MAX_LABEL_LENGTH, PrometheusMetrics
from devicecore.domain.model import resource_name
from devicecore.domain.text import foreign_text
from devicecore.testing.contracts import METRICS, MakeMetrics
from devicecore.testing.contracts import metrics as contract

Check = Callable[[MakeMetrics], None]


@define
class InMemory:
    """Keeps counts that can be read directly."""

    metrics: MemoryMetrics = field(factory=MemoryMetrics)

    def registrations(self, resource: str) -> int:
        return self.metrics.registrations.get(resource, 0)

    def allocations(self, resource: str) -> tuple[int, float]:
        seconds = self.metrics.allocations.get(resource, [])
        return len(seconds), sum(seconds)

    def admissions(self) -> tuple[int, int, float]:
        seconds, failed = zip(*self.metrics.admissions, strict=True)
        return len(seconds), sum(failed), sum(seconds)


@define
class InPrometheus:
    """Reads counts from the Prometheus registry."""

    metrics: PrometheusMetrics = field(factory=PrometheusMetrics)

    def registrations(self, resource: str) -> int:
        return int(self._sample("kubelet_device_plugin_registration_total", resource))

    def allocations(self, resource: str) -> tuple[int, float]:
        name = "kubelet_device_plugin_alloc_duration_seconds"
        return int(self._sample(f"{name}_count", resource)), self._sample(f"{name}_sum", resource)

    def admissions(self) -> tuple[int, int, float]:
        name = "kubelet_topology_manager_admission"
        requests, errors, milliseconds = (
            self._sample(f"{name}_{series}") for series in ("requests_total", "errors_total", "duration_ms_sum")
        )
        return int(requests), int(errors), milliseconds / 1000

    def _sample(self, name: str, resource: str | None = None) -> float:
        labels = {} if resource is None else {"resource_name": foreign_text(resource, MAX_LABEL_LENGTH)}
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize("make", [InMemory, InPrometheus])
@pytest.mark.parametrize("check", METRICS)
def test_metrics_keep_the_contract(check: Check, make: MakeMetrics) -> None:
    """MemoryMetrics and PrometheusMetrics keep every promise of the port."""
    check(make)


# --- the contract can fail -------------------------------------------------------------------------------------------


class CountsEachResourceOnce(MemoryMetrics):
    def device_plugin_registration(self, resource: str) -> None:
        self.registrations[resource] = 1


class CountsValidNamesOnly(MemoryMetrics):
    def device_plugin_registration(self, resource: str) -> None:
        super().device_plugin_registration(resource_name(resource) if "/" in resource else "other")


class MeasuresEverythingTogether(MemoryMetrics):
    def device_plugin_alloc_duration(self, resource: str, seconds: float) -> None:
        super().device_plugin_alloc_duration("all", seconds)


class ForgetsFailures(MemoryMetrics):
    def topology_manager_admission(self, seconds: float, *, failed: bool) -> None:
        super().topology_manager_admission(seconds, failed=False)


BROKEN: dict[Check, type[MemoryMetrics]] = {
    contract.counts_every_registration: CountsEachResourceOnce,
    contract.counts_registrations_of_invalid_names: CountsValidNamesOnly,
    contract.measures_every_allocation: MeasuresEverythingTogether,
    contract.measures_every_admission: ForgetsFailures,
}


@pytest.mark.parametrize("check", METRICS)
def test_each_check_catches_metrics_that_break_its_sentence(check: Check) -> None:
    """A check that cannot fail tests nothing."""
    with pytest.raises(AssertionError):
        check(lambda: InMemory(BROKEN[check]()))
