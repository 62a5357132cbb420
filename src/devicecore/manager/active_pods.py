"""Knows which pods are active, and frees the devices of all other pods.

Law: a sweep forgets a pod only if the pod held devices before the active pods were listed, is not in that list, and was
not being admitted in the meantime.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from attrs import define, field

from devicecore.domain.model import Container, ContainerKey, Pod, PodUid
from devicecore.domain.node_state import NodeState
from devicecore.domain.notifications import Notification, Released
from devicecore.manager.turns import AdmissionTurns
from devicecore.ports.pods import PodSource
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.observers import Observers


@define(eq=False, repr=False)
class ActivePods:
    """Owns the pod source, and the containers that were running when the run started."""

    _pods: PodSource | None
    _state: CurrentState[NodeState]
    _turns: AdmissionTurns
    _observers: Observers[Notification]
    _running: frozenset[ContainerKey] = field(default=frozenset(), init=False)

    def begin(self) -> None:
        """Ask the pod source which containers are running. The source is asked once, at the start of a run."""
        self._running = frozenset(self._pods.running_containers()) if self._pods else frozenset()

    def is_active(self, pod: PodUid) -> bool:
        """Return whether a pod is active. Without a pod source, a pod is active while it holds devices."""
        return pod in (self._pods.active_pods() if self._pods else self._state.value.ledger.allocations)

    def is_already_running(self, pod: Pod, container: Container) -> bool:
        """Return whether the container has been running since before a restart (kubelet.md 4.5).

        Once all pods are known, return False.

        An init container that has ended also counts if a later container of the pod is running. Because of such an init
        container, a kubelet would refuse the pod (kubernetes#138446).
        """
        if not self._running or self._pods is None or self._pods.sources_ready():
            return False
        if pod.key(container) in self._running:
            return True
        later = pod.in_start_order[pod.in_start_order.index(container) + 1 :]
        return pod.is_reusable(container) and any(pod.key(other) in self._running for other in later)

    def sweep(self) -> bool:
        """Forget the pods that are no longer active.

        Return whether any pods were forgotten, in which case the caller must save.
        """
        if self._state.run is None or self._pods is None or not self._pods.sources_ready():
            return False
        holding = self._state.value.ledger.allocations.keys()
        if holding <= _active(self._pods):
            return False
        # Read everything again, because a pod may have been admitted since. The ledger and the admissions are read
        # before the active pods, so that a pod that is admitted in between is not mistaken for a vanished pod.
        holding = self._state.value.ledger.allocations.keys()
        admitting = self._turns.admitting()
        active = _active(self._pods)
        gone = [pod for pod in holding if pod not in active and pod not in admitting]
        if gone:
            self.forget(gone)
        return bool(gone)

    def forget(self, gone: Sequence[PodUid]) -> None:
        """Free the devices of pods.

        Observers are notified before another pod can get the devices that these pods hold when the call begins.
        """
        ledger = self._state.value.ledger
        known = [allocation for pod in gone for allocation in ledger.of_pod(pod)]
        self._observers.notify(Released(allocation.key.pod, allocation) for allocation in known)
        before, _ = self._state.replace(lambda value: value.evict(gone))
        self._turns.forget(gone)
        if not self._observers.exist:
            return
        freed = [allocation for pod in gone for allocation in before.ledger.of_pod(pod)]
        late = [allocation for allocation in freed if allocation not in known]
        self._observers.notify(Released(allocation.key.pod, allocation) for allocation in late)


def _active(pods: PodSource) -> AbstractSet[PodUid]:
    listed = pods.active_pods()
    return listed if isinstance(listed, AbstractSet) else frozenset(listed)
