"""Which pods are active, and what happens to the devices of those that are not.

Law: only a pod that held devices before the active pods were listed can be found missing there, and a pod that was in
admission meanwhile is never missing.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from devicecore.domain.model import Container, ContainerKey, Pod, PodUid
from devicecore.domain.notifications import Released
from devicecore.manager.current_state import CurrentState
from devicecore.manager.notifier import Notifier
from devicecore.manager.turns import Turns
from devicecore.ports.pods import PodSource


class ActivePods:
    """Owns the pod source, and which containers ran when the run began."""

    def __init__(self, pods: PodSource | None, state: CurrentState, turns: Turns, notifier: Notifier) -> None:
        self._pods = pods
        self._state = state
        self._turns = turns
        self._notifier = notifier
        self._running: frozenset[ContainerKey] = frozenset()

    def begin(self) -> None:
        """Ask which containers run; once, at the start of a run."""
        self._running = frozenset(self._pods.running_containers()) if self._pods else frozenset()

    def is_active(self, pod: PodUid) -> bool:
        """Whether a pod has a right to devices. Without a pod source it has from its admission until `evict`."""
        return pod in (self._pods.active_pods() if self._pods else self._state.value.ledger.allocations)

    def is_already_running(self, pod: Pod, container: Container) -> bool:
        """Whether the container runs from before a restart, and not all pods are known again (kubelet.md 4.5).

        So does an init container that has ended if one after it runs. A kubelet refuses the pod (kubernetes#138446).
        """
        if not self._running or self._pods is None or self._pods.sources_ready():
            return False
        if pod.key(container) in self._running:
            return True
        later = pod.in_start_order[pod.in_start_order.index(container) + 1 :]
        return pod.is_reusable(container) and any(pod.key(other) in self._running for other in later)

    def sweep(self) -> bool:
        """Forget the pods that are no longer active; whether there were any, so that there is something to save."""
        if self._state.run is None or self._pods is None or not self._pods.sources_ready():
            return False
        # Before the active pods are listed: a pod admitted since then is not in the list.
        holding = self._state.value.ledger.allocations.keys()
        admitting = self._turns.admitting()
        listed = self._pods.active_pods()
        active = listed if isinstance(listed, AbstractSet) else frozenset(listed)
        if holding <= active:
            return False
        gone = [pod for pod in holding if pod not in active and pod not in admitting]
        if gone:
            self.forget(gone)
        return bool(gone)

    def forget(self, gone: Sequence[PodUid]) -> None:
        """Free what pods hold. Observers are notified before that, hence before anybody else can get the devices."""
        ledger = self._state.value.ledger
        told = [allocation for pod in gone for allocation in ledger.of_pod(pod)]
        self._notifier.notify(Released(allocation.key.pod, allocation) for allocation in told)
        before, _ = self._state.replace(lambda value: value.evict(gone))
        self._turns.forget(gone)
        if not self._notifier:
            return
        freed = [allocation for pod in gone for allocation in before.ledger.of_pod(pod)]
        late = [allocation for allocation in freed if allocation not in told]
        self._notifier.notify(Released(allocation.key.pod, allocation) for allocation in late)
