"""The contract of `Metrics`.

Law: every call counts, once, for the resource it names.
"""

from collections.abc import Callable
from typing import Protocol

from devicecore.ports.metrics import Metrics
from devicecore.testing.contracts.expecting import GPU, RDMA, a_check, expect


class MetricsHarness(Protocol):
    """Somebody who counts, and what was counted."""

    @property
    def metrics(self) -> Metrics:
        """Who counts."""

    def registrations(self, resource: str) -> int:
        """How many registrations were counted."""

    def allocations(self, resource: str) -> tuple[int, float]:
        """How many Allocate calls were measured, and how many seconds they took together."""

    def admissions(self) -> tuple[int, int, float]:
        """How many admissions were measured, how many of them failed, and how many seconds they took together."""


MakeMetrics = Callable[[], MetricsHarness]
"""Makes somebody who has counted nothing yet."""


@a_check
def counts_every_registration(make: MakeMetrics) -> None:
    """One call is one registration of that resource and of no other."""
    harness = make()
    for resource in (GPU, RDMA, GPU, GPU):
        harness.metrics.device_plugin_registration(resource)
    expect("registrations", (harness.registrations(GPU), harness.registrations(RDMA)), (3, 1))


@a_check
def counts_registrations_of_invalid_names(make: MakeMetrics) -> None:
    """A name that no kubelet takes is counted like any other, and never raises."""
    harness = make()
    for name in ("", "no slash", 'quote"back\\slash\nnewline', "ä/😀", "x" * 1000):
        harness.metrics.device_plugin_registration(name)
        expect(f"registrations of {name[:20]!r}", harness.registrations(name), 1)


@a_check
def measures_every_allocation(make: MakeMetrics) -> None:
    """One call is one Allocate call of that many seconds, of that resource and of no other."""
    harness = make()
    for resource, seconds in ((GPU, 0.0), (GPU, 0.25), (RDMA, 3600.0), (GPU, 1.5)):
        harness.metrics.device_plugin_alloc_duration(resource, seconds)
    expect("Allocate calls", (harness.allocations(GPU), harness.allocations(RDMA)), ((3, 1.75), (1, 3600.0)))
    expect("registrations, of which there were none", harness.registrations(GPU), 0)


@a_check
def measures_every_admission(make: MakeMetrics) -> None:
    """One call is one admission of that many seconds, failed or not."""
    harness = make()
    for seconds, failed in ((0.0, False), (0.25, True), (60.0, False)):
        harness.metrics.topology_manager_admission(seconds, failed=failed)
    expect("admissions", harness.admissions(), (3, 1, 60.25))


METRICS: tuple[Callable[[MakeMetrics], None], ...] = (
    counts_every_registration,
    counts_registrations_of_invalid_names,
    measures_every_allocation,
    measures_every_admission,
)
"""For everybody who counts."""
