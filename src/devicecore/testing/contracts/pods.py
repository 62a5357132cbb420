"""The contract of `PodSource`.

Law: a listed pod may hold devices. Once every source has reported, a pod that is not listed must not hold any.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from devicecore.domain.model import Container, ContainerKey, Pod, PodUid
from devicecore.ports.pods import PodSource
from devicecore.testing.contracts.expect import Suite, expect


class PodsHarness(Protocol):
    """A pod source, and a way to set its pods."""

    @property
    def source(self) -> PodSource:
        """The source."""

    def deliver(self, pods: Sequence[Pod]) -> None:
        """Make these pods active, as reported by every source.

        When this method returns, the pod source knows these pods.
        """


MakePods = Callable[[Collection[Pod]], AbstractContextManager[PodsHarness]]
"""Creates a source as it is when a manager starts: the given pods' containers run, and no source has reported yet."""

POD_SOURCE: Suite[MakePods] = Suite()
"""The checks for every pod source."""

_POD_A = Pod(PodUid("uid-a"), name="a", containers=(Container("app"), Container("other")))
_POD_B = Pod(PodUid("uid-b"), name="b", containers=(Container("app"),))


@POD_SOURCE.check
def lists_the_pods_that_are_active(make: MakePods) -> None:
    """`active_pods` returns the pods that may hold devices, and no others."""
    _expect_active(make, (_POD_A,), (_POD_A, _POD_B), ())


@POD_SOURCE.check
def forgets_pods_that_have_gone(make: MakePods) -> None:
    """A pod that is no longer active is not returned. A pod that becomes active again is returned again."""
    _expect_active(make, (_POD_A, _POD_B), (_POD_B,), (_POD_A, _POD_B))


def _expect_active(make: MakePods, *deliveries: Sequence[Pod]) -> None:
    with make(()) as harness:
        for pods in deliveries:
            harness.deliver(pods)
            expect("the active pods", set(harness.source.active_pods()), {pod.uid for pod in pods})


@POD_SOURCE.check
def is_not_ready_before_every_source_has_delivered(make: MakePods) -> None:
    """`sources_ready` returns False until every source has reported."""
    with make(()) as harness:
        expect("sources_ready before anything was delivered", harness.source.sources_ready(), expected=False)


@POD_SOURCE.check
def is_ready_once_every_source_has_delivered(make: MakePods) -> None:
    """Once every source has reported, `sources_ready` always returns True, even if no pods were reported."""
    with make(()) as harness:
        for pods in ((), (_POD_A,), ()):
            harness.deliver(pods)
            expect("sources_ready after a delivery", harness.source.sources_ready(), expected=True)


@POD_SOURCE.check
def names_the_containers_that_were_running_at_start(make: MakePods) -> None:
    """`running_containers` returns the containers that were running when the manager started, and no others."""
    for pods in ((), (_POD_A,), (_POD_A, _POD_B)):
        with make(pods) as harness:
            expected: set[ContainerKey] = {pod.key(container) for pod in pods for container in pod.containers}
            expect("the running containers", set(harness.source.running_containers()), expected)
