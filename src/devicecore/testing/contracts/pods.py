"""The contract of `PodSource`.

Law: whoever is listed has a right to devices; whoever is not has none, once every source has delivered.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from devicecore.domain.model import Container, ContainerKey, Pod, PodUid
from devicecore.ports.pods import PodSource
from devicecore.testing.contracts.expecting import a_check, expect


class PodsHarness(Protocol):
    """A pod source, and the hand that feeds it."""

    @property
    def source(self) -> PodSource:
        """The source."""

    def deliver(self, pods: Sequence[Pod]) -> None:
        """These are the active pods now, and every source has said so; on return, the source has heard."""


MakePods = Callable[[Collection[Pod]], AbstractContextManager[PodsHarness]]
"""Makes a source as a manager starts with it: the containers of these pods run, and nothing was delivered yet."""

_POD_A = Pod(PodUid("uid-a"), "a", containers=(Container("app"), Container("other")))
_POD_B = Pod(PodUid("uid-b"), "b", containers=(Container("app"),))


@a_check
def lists_the_pods_that_are_active(make: MakePods) -> None:
    """`active_pods` names the pods that have a right to their devices, and no others."""
    with make(()) as harness:
        for pods in ((_POD_A,), (_POD_A, _POD_B), ()):
            harness.deliver(pods)
            expect("the active pods", set(harness.source.active_pods()), {pod.uid for pod in pods})


@a_check
def forgets_pods_that_have_gone(make: MakePods) -> None:
    """A pod that is no longer active loses its right; one that comes back has it again."""
    with make(()) as harness:
        for pods in ((_POD_A, _POD_B), (_POD_B,), (_POD_A, _POD_B)):
            harness.deliver(pods)
            expect("the active pods", set(harness.source.active_pods()), {pod.uid for pod in pods})


@a_check
def is_not_ready_before_every_source_has_delivered(make: MakePods) -> None:
    """While `sources_ready` says no, a missing pod means nothing."""
    with make(()) as harness:
        expect("sources_ready before anything was delivered", harness.source.sources_ready(), expected=False)


@a_check
def is_ready_once_every_source_has_delivered(make: MakePods) -> None:
    """`sources_ready` says yes for ever after, also if what was delivered is that there are no pods."""
    with make(()) as harness:
        for pods in ((), (_POD_A,), ()):
            harness.deliver(pods)
            expect("sources_ready after a delivery", harness.source.sources_ready(), expected=True)


@a_check
def names_the_containers_that_were_running_at_start(make: MakePods) -> None:
    """`running_containers` names the containers that ran when the manager started, and only those."""
    for pods in ((), (_POD_A,), (_POD_A, _POD_B)):
        with make(pods) as harness:
            expected: set[ContainerKey] = {pod.key(container) for pod in pods for container in pod.containers}
            expect("the running containers", set(harness.source.running_containers()), expected)


POD_SOURCE: tuple[Callable[[MakePods], None], ...] = (
    lists_the_pods_that_are_active,
    forgets_pods_that_have_gone,
    is_not_ready_before_every_source_has_delivered,
    is_ready_once_every_source_has_delivered,
    names_the_containers_that_were_running_at_start,
)
"""For every pod source."""
