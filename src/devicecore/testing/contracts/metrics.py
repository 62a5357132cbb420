"""The contract of `Metrics`.

Law: every call is counted once, and only for the resource that the call names, if any.
"""

from collections.abc import Callable
from typing import Protocol

from devicecore.ports.metrics import Metrics
from devicecore.testing.contracts.expect import GPU, RDMA, Suite, expect


class MetricsHarness(Protocol):
    """A `Metrics` adapter, and a way to read what it has counted."""

    @property
    def metrics(self) -> Metrics:
        """The adapter."""

    def registrations(self, resource: str) -> int:
        """Return the number of counted registrations."""

    def allocations(self, resource: str) -> tuple[int, float]:
        """Return the number of measured Allocate calls and their total duration in seconds."""

    def admissions(self) -> tuple[int, int, float]:
        """Return the number of measured admissions, the number that failed, and their total duration in seconds."""


MakeMetrics = Callable[[], MetricsHarness]
"""Creates an adapter that has counted nothing yet."""

METRICS: Suite[MakeMetrics] = Suite()
"""The checks for every `Metrics` adapter."""


@METRICS.check
def counts_every_registration(make: MakeMetrics) -> None:
    """A registration is counted once, for the given resource and for no other resource."""
    harness = make()
    for resource in (GPU, RDMA, GPU, GPU):
        harness.metrics.device_plugin_registration(resource)
    expect("registrations", (harness.registrations(GPU), harness.registrations(RDMA)), (3, 1))


@METRICS.check
def counts_registrations_of_invalid_names(make: MakeMetrics) -> None:
    """An invalid resource name is counted like any other, and never raises an error."""
    harness = make()
    for name in ("", "no slash", 'quote"back\\slash\nnewline', "ä/😀", "x" * 1000):
        harness.metrics.device_plugin_registration(name)
        expect(f"registrations of {name[:20]!r}", harness.registrations(name), 1)


@METRICS.check
def measures_every_allocation(make: MakeMetrics) -> None:
    """An Allocate call is counted once, with the given duration, for the given resource and for no other resource."""
    harness = make()
    for resource, seconds in ((GPU, 0.0), (GPU, 0.25), (RDMA, 3600.0), (GPU, 1.5)):
        harness.metrics.device_plugin_alloc_duration(resource, seconds)
    expect("Allocate calls", (harness.allocations(GPU), harness.allocations(RDMA)), ((3, 1.75), (1, 3600.0)))
    expect("registrations, when there were only Allocate calls", harness.registrations(GPU), 0)


@METRICS.check
def measures_every_admission(make: MakeMetrics) -> None:
    """An admission is counted once, with the given duration, whether or not it failed."""
    harness = make()
    for seconds, failed in ((0.0, False), (0.25, True), (60.0, False)):
        harness.metrics.topology_manager_admission(seconds, failed=failed)
    expect("admissions", harness.admissions(), (3, 1, 60.25))
