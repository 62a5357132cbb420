"""The static policy of the CPU manager (Kubernetes: `policy_static.go`).

Law: a container's exclusive CPUs belong neither to another pod's container nor to the shared pool, which contains all
remaining CPUs, except reserved CPUs with `strict-cpu-reservation`. Each function returns a new state, or raises an
error without changing anything.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from types import MappingProxyType

from attrs import evolve, field, fields_dict, frozen

from devicecore.domain.topology import Hints, Policy, TopologyHint
from devicecore_numa.domain.cpu_assignment import take_distributed, take_packed
from devicecore_numa.domain.cpus import Cpus, cpu_ids, cpu_list
from devicecore_numa.domain.errors import CpuAdmissionError, InvalidStateError, NumaConfigError, SmtAlignmentError
from devicecore_numa.domain.machine import CpuLayout
from devicecore_numa.domain.requests import CPU, ContainerRequest, PodRequest

_ALPHA = frozenset({"align-by-socket", "distribute-cpus-across-cores"})
_BETA = frozenset({"distribute-cpus-across-numa"})
_TRUE, _FALSE = {"1", "t", "T", "true", "TRUE", "True"}, {"0", "f", "F", "false", "FALSE", "False"}

Assignments = Mapping[str, Mapping[str, Cpus]]
"""The exclusive CPUs of each container, by the uid of its pod."""

_NOTHING: Mapping[str, Mapping[str, Cpus]] = MappingProxyType({})


@frozen(kw_only=True)
class CpuOptions:
    """The options of the static policy, named as in a kubelet's configuration."""

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False
    strict_cpu_reservation: bool = False
    prefer_align_cpus_by_uncorecache: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str], *, alpha: bool = False, beta: bool = True) -> "CpuOptions":
        """Return the options in a kubelet's `cpuManagerPolicyOptions`.

        `alpha` and `beta` are the feature gates CPUManagerPolicyAlphaOptions and CPUManagerPolicyBetaOptions.

        Raises:
            NumaConfigError: an option does not exist, needs a feature gate, is not a Boolean, or cannot be used
                together with another option.
        """
        values: dict[str, bool] = {}
        for name, text in sorted(given.items()):
            attribute = name.replace("-", "_")
            if "_" in name or attribute not in fields_dict(cls):
                raise NumaConfigError(f'unknown CPU Manager Policy option: "{name}"')
            for level, names, is_on in (("Alpha", _ALPHA, alpha), ("Beta", _BETA, beta)):
                if name in names and not is_on:
                    raise NumaConfigError(
                        f'CPU Manager Policy {level}-level Options not enabled, but option "{name}" provided'
                    )
            if text not in _TRUE | _FALSE:
                raise NumaConfigError(
                    f'bad value for option "{name}": strconv.ParseBool: parsing "{text}": invalid syntax'
                )
            values[attribute] = text in _TRUE
        options = cls(**values)
        options._check_together()
        return options

    def _check_together(self) -> None:
        across_cores, across_numa = self.distribute_cpus_across_cores, self.distribute_cpus_across_numa
        by_cache = self.prefer_align_cpus_by_uncorecache
        for both, one, other in (
            (self.full_pcpus_only and across_cores, "full-pcpus-only", "distribute-cpus-across-cores"),
            (across_numa and across_cores, "distribute-cpus-across-numa", "distribute-cpus-across-cores"),
            (by_cache and across_cores, "prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
            (by_cache and across_numa, "prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
        ):
            if both:
                raise NumaConfigError(f"static policy options {one} and {other} can not be used at the same time")


@frozen
class CpuState:
    """The shared pool, each container's exclusive CPUs, and the reusable CPUs of one pod's finished init containers.

    `reusable` is not in the state file, because a kubelet forgets these CPUs when it restarts.
    """

    shared: Cpus = 0
    assignments: Assignments = _NOTHING
    reusable: tuple[str, Cpus] = ("", 0)

    def of_container(self, uid: str, container: str) -> Cpus | None:
        """Return the exclusive CPUs of a container, or None if the container has none."""
        return self.of_pod(uid).get(container)

    def of_pod(self, uid: str) -> Mapping[str, Cpus]:
        """Return the exclusive CPUs of a pod by container."""
        return self.assignments.get(uid, {})

    def reusable_of(self, uid: str) -> Cpus:
        """Return the CPUs that a container of the pod may reuse."""
        return self.reusable[1] if self.reusable[0] == uid else 0


@frozen
class StaticCpuPolicy:
    """The static policy for a machine, with its reserved CPUs and options.

    `reserved_cores` contains all CPUs of those cores that have a reserved CPU.
    """

    layout: CpuLayout
    options: CpuOptions = field(factory=CpuOptions)
    reserved: Cpus = 0
    reserved_cores: Cpus = field(init=False)

    @reserved_cores.default
    def _reserved_cores(self) -> Cpus:
        return sum(threads for threads in self.layout.by_core.values() if threads & self.reserved)

    @classmethod
    def of(
        cls, layout: CpuLayout, options: CpuOptions, *, count: int, reserved: Cpus, topology: Policy
    ) -> "StaticCpuPolicy":
        """Return the policy that reserves `count` CPUs: `reserved`, or CPUs of its own choice if `reserved` is empty.

        Raises:
            NumaConfigError: the options do not fit the machine or the topology policy, or the number of reserved CPUs
                is not `count`.
        """
        if options.align_by_socket and topology is Policy.SINGLE_NUMA_NODE:
            raise NumaConfigError(
                "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option"
            )
        if options.align_by_socket and len(layout.by_socket) > len(layout.by_numa):
            raise NumaConfigError(
                "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
            )
        if not reserved:
            try:
                reserved = cls.take(layout, options, layout.all, count)
            except CpuAdmissionError:
                reserved = 0
        if reserved.bit_count() != count:
            raise NumaConfigError(
                "[cpumanager] unable to reserve the required amount of CPUs "
                f"(size of {cpu_list(reserved)} did not equal {count})"
            )
        if unknown := reserved & ~layout.all:
            raise NumaConfigError(
                "[cpumanager] unable to build the reserved physical CPUs from the reserved set: "
                f"unknown CPU ID: {next(cpu_ids(unknown))}"
            )
        return cls(layout, options, reserved)

    @staticmethod
    def take(layout: CpuLayout, options: CpuOptions, available: Cpus, count: int) -> Cpus:
        """Return CPUs chosen according to the options (Kubernetes: `takeByTopology`).

        Raises CpuAdmissionError, or EndlessSearchError if Kubernetes' search would not end.
        """
        spreads = options.distribute_cpus_across_cores
        if options.distribute_cpus_across_numa:
            group = layout.per_core if options.full_pcpus_only else 1
            by_socket = options.align_by_socket
            return take_distributed(layout, available, count, group, spreads=spreads, by_socket=by_socket)
        by_cache = options.prefer_align_cpus_by_uncorecache
        return take_packed(layout, available, count, spreads=spreads, by_cache=by_cache)

    @property
    def allocatable(self) -> Cpus:
        """All CPUs that containers can have exclusively."""
        return self.layout.all & ~self.reserved

    def available(self, state: CpuState) -> Cpus:
        """Return the CPUs that containers can currently get exclusively."""
        return state.shared & ~self.reserved

    def start(self, state: CpuState) -> CpuState:
        """Return the state that a kubelet starts with: `state`, or an initial state if it is empty (`validateState`).

        Raises:
            InvalidStateError: the state does not fit the machine or the reserved CPUs, or contradicts itself.
        """
        strict = self.options.strict_cpu_reservation
        everything = self.allocatable if strict else self.layout.all
        if not state.shared:
            check_disjoint(state)
            return evolve(state, shared=everything)
        shared = cpu_list(state.shared)
        if strict and (present := self.reserved & state.shared):
            raise InvalidStateError(
                f'some of strictly reserved cpus: "{cpu_list(present)}" are present in defaultCpuSet: "{shared}"'
            )
        if not strict and self.reserved & ~state.shared:
            raise InvalidStateError(
                f'not all reserved cpus: "{cpu_list(self.reserved)}" are present in defaultCpuSet: "{shared}"'
            )
        check_disjoint(state)
        assigned = [cpus for held in state.assignments.values() for cpus in held.values()]
        known = reduce(or_, assigned, state.shared)
        if known != everything:
            raise InvalidStateError(
                f'current set of available CPUs "{cpu_list(everything)}" '
                f'doesn\'t match with CPUs in state "{cpu_list(known)}"'
            )
        return state

    def allocate(self, state: CpuState, pod: PodRequest, container: ContainerRequest, hint: TopologyHint) -> CpuState:
        """Return the state in which `container` has its CPUs.

        CPUs on the NUMA nodes in `hint`, if any, are taken first.

        Raises:
            SmtAlignmentError: with `full-pcpus-only`, the request is not for whole cores, or too few cores are free.
            CpuAdmissionError: too few CPUs are free.
            EndlessSearchError: Kubernetes' search for CPUs would not end.
        """
        if not pod.is_exclusive or not container.cpus:
            return state
        held = state.of_container(pod.uid, container.name)
        if held is not None:
            return _with_reuse(state, pod, container, held)
        self._check_whole_cores(state, container.cpus)
        free = self.available(state) | state.reusable_of(pod.uid)
        chosen = 0
        if hint.mask is not None:
            aligned = free & self._near(hint.mask)
            chosen = self.take(self.layout, self.options, aligned, min(container.cpus, aligned.bit_count()))
        chosen |= self.take(self.layout, self.options, free & ~chosen, container.cpus - chosen.bit_count())
        assignments = {**state.assignments, pod.uid: {**state.of_pod(pod.uid), container.name: chosen}}
        after = evolve(state, shared=state.shared & ~chosen, assignments=assignments)
        return _with_reuse(after, pod, container, chosen)

    def _check_whole_cores(self, state: CpuState, count: int) -> None:
        if not self.options.full_pcpus_only:
            return
        per_core = self.layout.per_core
        if count % per_core:
            raise SmtAlignmentError(count, per_core)
        available = (state.shared & ~self.reserved_cores).bit_count()
        if count > available:
            raise SmtAlignmentError(count, per_core, available)

    def _near(self, numa_nodes: Iterable[int]) -> Cpus:
        cpus = self.layout.on_numa(numa_nodes)
        return sum(set(self.layout.sockets_of(cpus))) if self.options.align_by_socket else cpus

    def hints(self, state: CpuState, pod: PodRequest, container: ContainerRequest | None) -> Hints:
        """Return the hints for a container, or for the whole pod if `container` is None.

        The result is empty if there is no preference.
        """
        requested = pod.cpus if container is None else container.cpus
        if not pod.is_exclusive or not requested:
            return {}
        assigned, is_changed = self._assigned(state, pod, container)
        if is_changed:
            return {CPU: ()}
        if assigned is not None and (container is not None or assigned.bit_count() == requested):
            return {CPU: self._hints(assigned, 0, requested)}
        reusable = state.reusable_of(pod.uid) | (assigned or 0)
        return {CPU: self._hints(self.available(state), reusable, requested)}

    @staticmethod
    def _assigned(state: CpuState, pod: PodRequest, container: ContainerRequest | None) -> tuple[Cpus | None, bool]:
        """Return the CPUs that are already assigned, and whether their number differs from the request."""
        found: Cpus | None = None
        for one in pod.containers if container is None else (container,):
            held = state.of_container(pod.uid, one.name)
            if held is not None:
                if held.bit_count() != one.cpus:
                    return None, True
                found = (found or 0) | held
        return found, False

    def _hints(self, available: Cpus, reusable: Cpus, requested: int) -> tuple[TopologyHint, ...]:
        """Return a hint for each set of NUMA nodes with enough CPUs (Kubernetes: `generateCPUTopologyHints`)."""
        sets = self.layout.numa_sets
        least = next((len(one.mask) for one in sets if one.size >= requested), len(self.layout.by_numa))
        by_socket = self.options.align_by_socket
        per_socket = len(self.layout.by_numa) // len(self.layout.by_socket) if by_socket else 0
        sockets = -(-least // per_socket) if per_socket else 0
        reused = reusable.bit_count()
        return tuple(
            [
                one.preferred if len(one.mask) == least or (sockets and one.sockets == sockets) else one.other
                for one in sets
                if not reusable & ~one.cpus and reused + (available & one.cpus).bit_count() >= requested
            ]
        )


def check_disjoint(state: CpuState) -> None:
    """Raise InvalidStateError if exclusive CPUs are also in the shared pool, or leave nothing in the pool."""
    if not state.shared and state.assignments:
        raise InvalidStateError("default cpuset cannot be empty")
    for uid, containers in sorted(state.assignments.items()):
        for name, cpus in sorted(containers.items()):
            if cpus & state.shared:
                raise InvalidStateError(
                    f'pod: {uid}, container: {name} cpuset: "{cpu_list(cpus)}" '
                    f'overlaps with default cpuset "{cpu_list(state.shared)}"'
                )


def _with_reuse(state: CpuState, pod: PodRequest, container: ContainerRequest, cpus: Cpus) -> CpuState:
    """Return the state after giving CPUs to a container. An init container's CPUs can be reused once it ends."""
    before = state.reusable_of(pod.uid)
    return evolve(state, reusable=(pod.uid, before | cpus if container.ends else before & ~cpus))


def release_cpus(state: CpuState, uid: str, container: str) -> CpuState:
    """Return the state without a container.

    The container's CPUs return to the shared pool, except those that the pod's other containers have.
    """
    held = state.of_container(uid, container)
    if held is None:
        return state
    left = {name: cpus for name, cpus in state.of_pod(uid).items() if name != container}
    for cpus in left.values():
        held &= ~cpus
    assignments = {key: value for key, value in state.assignments.items() if key != uid}
    if left:
        assignments[uid] = left
    return evolve(state, shared=state.shared | held, assignments=assignments)
