"""The CPU manager and the memory manager, and pod admission by these two and the device manager.

Law: a refused pod gets no CPUs and no memory. After the refusal, each group of NUMA nodes has as many free CPUs and as
much free memory as before the pod's admission.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import Generic, Protocol, TypeVar

from attrs import evolve, frozen

from devicecore.domain.admission import Admitted, Refused, Verdict
from devicecore.domain.errors import AdmissionError, StoreError, TopologyAffinityError
from devicecore.domain.model import Container, Pod, PodUid
from devicecore.domain.topology import Hints, Policy, Scope, Topology, TopologyHint, merge
from devicecore.manager import DeviceManager
from devicecore.ports.store import CheckpointStore
from devicecore_numa.domain.cpu_policy import CpuState, release_cpus
from devicecore_numa.domain.errors import InvalidStateError
from devicecore_numa.domain.memory_policy import MemoryState, release_ended, release_memory
from devicecore_numa.domain.requests import ContainerRequest, PodRequest
from devicecore_numa.domain.state_files import Stored, cpu_encoder, decode_cpus, decode_memory, memory_encoder

Requests = Callable[[Pod], PodRequest]
"""Returns a pod's requests for CPUs and memory, which devicecore's `Pod` does not contain."""

_NO_PREFERENCE = TopologyHint(None, preferred=False)


class _Assigned(Protocol):
    """The state of a manager."""

    @property
    def assignments(self) -> Mapping[str, Mapping[str, object]]: ...


_State = TypeVar("_State", bound=_Assigned)


class _Decisions(Protocol[_State]):
    """The interface that the CPU policy and the memory policy share."""

    def start(self, state: _State) -> _State: ...

    def hints(self, state: _State, pod: PodRequest, container: ContainerRequest | None) -> Hints: ...

    def allocate(self, state: _State, pod: PodRequest, container: ContainerRequest, hint: TopologyHint) -> _State: ...


@frozen
class _Kind(Generic[_State]):
    """A kind of manager: the names of its policies, and the functions that write, read and release its state."""

    none: str
    static: str
    empty: _State
    decode: Callable[[bytes], Stored[_State]]
    make_encoder: Callable[[], Callable[[str, _State], bytes]]
    release: Callable[[_State, str, str], _State]


class _Manager(Generic[_State]):
    """The state of one manager, in memory and in its file.

    Without a policy, the manager pins nothing (policy `none`).
    """

    _kind: _Kind[_State]

    def __init__(self, policy: _Decisions[_State] | None, store: CheckpointStore, requests: Requests) -> None:
        self._policy, self._store, self._requests = policy, store, requests
        self._name = self._kind.none if policy is None else self._kind.static
        self._encode = self._kind.make_encoder()
        self.state: _State = self._kind.empty
        self._saved: _State | None = None

    def start(self) -> None:
        """Restore the state from the file, or write a file if there was none.

        Raises:
            InvalidStateError: a kubelet would not start with this state file until the node is drained and the file
                removed.
            StoreError: the file cannot be read or written.
        """
        blob = self._store.load()
        if blob is not None:
            stored = self._kind.decode(blob)
            if stored.policy != self._name:
                raise InvalidStateError(
                    f'configured policy "{self._name}" differs from state checkpoint policy "{stored.policy}"'
                )
            self.state = self._saved = stored.state
        if self._policy is not None:
            self.state = self._policy.start(self.state)
        self.save(always=blob is None)

    def save(self, *, always: bool = False) -> None:
        """Write the state if it has changed. Raises StoreError."""
        if always or self.state is not self._saved:
            self._store.save(self._encode(self._name, self.state))
            self._saved = self.state

    def topology_hints(self, pod: Pod, container: Container | None) -> Hints:
        """Return the hints for a container, or for the pod if `container` is None (see the port `HintProvider`)."""
        return self.hints(self._requests(pod), None if container is None else container.name)

    def hints(self, pod: PodRequest, container: str | None) -> Hints:
        """Return the hints for the container with this name, or for the pod if `container` is None."""
        if self._policy is None:
            return {}
        return self._policy.hints(self.state, pod, None if container is None else pod.container(container))

    def allocate(self, pod: PodRequest, container: str, hint: TopologyHint) -> None:
        """Assign to a container the CPUs or the memory that it requests.

        Call `save` after this method was called for all containers of the pod. Raises AdmissionError.
        """
        if self._policy is not None:
            self.state = self._policy.allocate(self.state, pod, pod.container(container), hint)

    def keep(self, pods: AbstractSet[str]) -> None:
        """Free everything held by pods that are not in `pods`."""
        if self._policy is not None:
            for uid in sorted(self.state.assignments.keys() - pods):
                self.state = self._released(self.state, uid)

    def _released(self, state: _State, uid: str) -> _State:
        for container in sorted(state.assignments[uid]):
            state = self._kind.release(state, uid, container)
        return state


class CpuManager(_Manager[CpuState]):
    """The kubelet's CPU manager, with the policy `static`, or `none` if no policy is given."""

    _kind = _Kind("none", "static", CpuState(), decode_cpus, cpu_encoder, release_cpus)

    def take_back(self, before: CpuState) -> None:
        """Free the CPUs of a pod that was refused after some of its containers had received theirs.

        `before` is the state before the pod's admission. The CPUs that other pods could still reuse from their own init
        containers are forgotten (Kubernetes: `updateCPUsToReuse` forgets all other pods).
        """
        self.state = evolve(before, reusable=self.state.reusable)


class MemoryManager(_Manager[MemoryState]):
    """The kubelet's memory manager, with the policy `Static`, or `None` if no policy is given."""

    _kind = _Kind("None", "Static", MemoryState(), decode_memory, memory_encoder, release_memory)

    def start_container(self, pod: PodRequest, container: str) -> None:
        """Free the memory of the init containers that finished before this container starts. Raises StoreError."""
        if self._policy is not None:
            self.state = release_ended(self.state, pod, container)
            self.save()

    def take_back(self, before: MemoryState, uid: str) -> None:
        """Free the memory of a pod that was refused after some of its containers had received memory.

        `before` is the state before the pod's admission. Kubernetes releases this memory like the memory of any removed
        pod, starting with the first NUMA node of a group. So each group has as much free memory as before, but an
        individual node in the group may have more or less. As with CPUs, the memory that other pods could still reuse
        from their own init containers is forgotten.
        """
        after = self.state
        self.state = evolve(before, reusable=after.reusable)
        if uid in before.assignments or uid not in after.assignments or self._policy is None:
            return
        after = self._released(after, uid)
        if after.nodes != before.nodes:
            self.state = after


class NumaAdmission:
    """Admits pods like a kubelet with three managers: merges the hints of all three, and lets each manager allocate.

    This class applies the topology policy, so the device manager must not have such a policy. `active` returns the uids
    of the pods that keep what they have; the uid of a pod that is being admitted may be missing. If the device manager
    has a source of pods, that source must list a pod before its admission.
    """

    def __init__(
        self,
        topology: Topology,
        devices: DeviceManager,
        cpus: CpuManager,
        memory: MemoryManager,
        requests: Requests,
        active: Callable[[], Collection[str]],
    ) -> None:
        self._topology, self._devices, self._cpus, self._memory = topology, devices, cpus, memory
        self._requests, self._active = requests, active
        self._turn = threading.Lock()

    def admit(self, pod: Pod) -> Verdict:
        """Allocate devices, CPUs and memory to all containers of a pod, or to none of them.

        Returns: the device manager's verdict if it is `Admitted` or `NotReady`, or `Refused` if the pod cannot run
        here.
        """
        with self._turn:
            self._keep({*self._active(), str(pod.uid)})
            before = self._cpus.state, self._memory.state
            held = self._devices.state.ledger.of_pod(pod.uid)
            verdict = self._admit(pod, self._requests(pod))
            if isinstance(verdict, Admitted):
                try:
                    self._save()
                except StoreError as error:
                    verdict = Refused(error)
            if not isinstance(verdict, Admitted):
                self._cpus.take_back(before[0])
                self._memory.take_back(before[1], str(pod.uid))
                if not held and self._devices.state.ledger.of_pod(pod.uid):
                    self._devices.evict([pod.uid])
            return verdict

    def forget(self, pods: Collection[str] = ()) -> None:
        """Free the CPUs and memory of `pods` and of all inactive pods. Raises StoreError."""
        with self._turn:
            self._keep(set(self._active()).difference(pods))
            self._save()

    def _keep(self, pods: AbstractSet[str]) -> None:
        self._cpus.keep(pods)
        self._memory.keep(pods)

    def _save(self) -> None:
        self._cpus.save()
        self._memory.save()

    def _admit(self, pod: Pod, request: PodRequest) -> Verdict:
        hint: TopologyHint | None = None
        verdict: Verdict | None = None
        try:
            if self._topology.policy is Policy.NONE:
                hint = _NO_PREFERENCE
            elif self._topology.scope is Scope.POD:
                hint = self._choose(pod, request, None)
            for container in pod.in_start_order:
                try:
                    chosen = hint or self._choose(pod, request, container.name)
                    nodes = None if chosen.mask is None else tuple(chosen.mask)
                    verdict = self._devices.allocate(pod, container.name, affinity=nodes)
                    if not isinstance(verdict, Admitted):
                        return verdict
                    self._cpus.allocate(request, container.name, chosen)
                    self._memory.allocate(request, container.name, chosen)
                except AdmissionError as error:
                    return Refused(error, container.name)
        except AdmissionError as error:
            return Refused(error)
        return verdict or self._devices.admit(pod)

    def _choose(self, pod: Pod, request: PodRequest, container: str | None) -> TopologyHint:
        hints = [
            self._devices.topology_hints(pod, container),
            self._cpus.hints(request, container),
            self._memory.hints(request, container),
        ]
        best, is_admitted = merge(self._topology, hints)
        if not is_admitted:
            raise TopologyAffinityError(PodUid(request.uid), container)
        return best
