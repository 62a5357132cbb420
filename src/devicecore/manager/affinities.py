"""Chooses the NUMA nodes that devices should come from: the topology policy merges the hints of all providers.

Law: a hint provider is called while no lock is held.
"""

from collections.abc import Callable, Sequence

from devicecore.domain.errors import TopologyAffinityError
from devicecore.domain.model import Container, Pod
from devicecore.domain.node_state import NodeState
from devicecore.domain.topology import Hints, Policy, Scope, Topology, device_hints, merge
from devicecore.manager.turns import AdmissionTurns, Affinity
from devicecore.ports.hints import HintProvider
from devicecore.runtime.current_state import CurrentState


class Affinities:
    """Owns the topology and the hint providers."""

    def __init__(
        self,
        topology: Topology,
        providers: Sequence[HintProvider],
        state: CurrentState[NodeState],
        turns: AdmissionTurns,
    ) -> None:
        self._topology = topology
        self._providers = tuple(providers)
        self._state = state
        self._turns = turns

    def is_failure(self, *, admitted: bool) -> bool:
        """Return whether an admission counts as failed in a kubelet's metrics. Without a policy, no admission does."""
        return self._topology.policy is not Policy.NONE and not admitted

    def chooser(self, pod: Pod, containers: Sequence[Container]) -> Callable[[Container], Affinity]:
        """Return a function that chooses the affinity of one of `containers`, using the state when it is called.

        With the scope `pod`, all containers share one affinity, even if they are admitted one by one. Both the function
        and this method raise TopologyAffinityError if the policy admits no set of NUMA nodes.
        """
        if self._topology.policy is Policy.NONE:
            return lambda _: None
        if self._topology.scope is Scope.CONTAINER:
            return lambda container: self._choose_affinity(pod, container)
        is_whole = len(containers) == len(pod.in_start_order)
        affinity = self._turns.affinity(pod.uid, lambda: self._choose_affinity(pod, None), anew=is_whole)
        return lambda _: affinity

    def hints(self, pod: Pod, container: Container | None) -> Hints:
        """Return the hints for a container's devices, or for the pod's as a whole. Hint providers are not asked."""
        state = self._state.value
        return device_hints(pod, container, state.inventory, state.ledger, self._topology.numa_nodes)

    def _choose_affinity(self, pod: Pod, container: Container | None) -> Affinity:
        hints = [self.hints(pod, container)]
        hints += [provider.topology_hints(pod, container) for provider in self._providers]
        best, admitted = merge(self._topology, hints)
        if not admitted:
            raise TopologyAffinityError(pod.uid, container.name if container else None)
        return best.mask and tuple(best.mask)
