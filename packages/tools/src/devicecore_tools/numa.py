"""Gives the tools access to devicecore-numa, which contains a kubelet's CPU manager and memory manager.

Laws: no other module of the tools imports that distribution, and this module imports it only inside functions. If the
distribution is missing, callers get a `NumaError` with the command that installs it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from attrs import evolve, field, frozen

from devicecore.domain.admission import Admitted, Verdict
from devicecore.domain.documents import Value
from devicecore.domain.errors import DeviceCoreError, InvalidQuantityError, SetUpError, StoreError
from devicecore.domain.model import Container, Pod, PodUid
from devicecore.domain.quantity import Quantity
from devicecore.domain.topology import Policy, Scope, Topology
from devicecore.manager import DeviceManager
from devicecore.ports.store import CheckpointStore

if TYPE_CHECKING:
    from devicecore_numa.domain.configuration import Policies
    from devicecore_numa.domain.cpu_policy import CpuState
    from devicecore_numa.domain.machine import Machine, NumaCell
    from devicecore_numa.domain.memory_policy import MemoryState
    from devicecore_numa.domain.requests import PodRequest
    from devicecore_numa.managers import CpuManager, MemoryManager, Requests

    from devicecore.adapters.pod_resources import MemoryBlock

CPU_FILE, MEMORY_FILE = "cpu_manager_state", "memory_manager_state"
MACHINE_FILE = "machine.json"
"""The name of the file next to the state files (on a node or in a record) in which this program describes a machine."""

INSTALL = (
    "the distribution devicecore-numa is not installed: in a clone, pip install ./packages/numa; elsewhere, "
    "pip install devicecore-numa"
)


class NumaError(ValueError):
    """The managers cannot be created. The message says why."""


@frozen
class ManagersNotStartedError(SetUpError):
    """A kubelet does not start with these state files."""

    problem: str
    _text = "{problem}"


@frozen
class Zone:
    """The CPUs and memory of a NUMA node (capacity, allocatable, available), and the distances from this node."""

    sizes: Mapping[str, tuple[int, int, int]]
    distances: tuple[int, ...] = ()


Zones = Mapping[int, Zone]
"""Zones by NUMA node number."""

NO_ZONES: Zones = {}


def is_installed() -> bool:
    """Return whether the distribution with the managers is installed."""
    try:
        import devicecore_numa  # noqa: F401 - whether it is installed
    except ModuleNotFoundError:
        return False
    return True


# --- a kubelet's flags -----------------------------------------------------------------------------------------------

_TEXTS = {
    "topology-manager-policy": "topologyManagerPolicy",
    "topology-manager-scope": "topologyManagerScope",
    "cpu-manager-policy": "cpuManagerPolicy",
    "memory-manager-policy": "memoryManagerPolicy",
    "reserved-cpus": "reservedSystemCPUs",
}
_MAPS = {
    "topology-manager-policy-options": ("topologyManagerPolicyOptions", "="),
    "cpu-manager-policy-options": ("cpuManagerPolicyOptions", "="),
    "kube-reserved": ("kubeReserved", "="),
    "system-reserved": ("systemReserved", "="),
    "eviction-hard": ("evictionHard", "<"),
}
FIELDS = (
    *_TEXTS.values(),
    *(name for name, _ in _MAPS.values()),
    "mergeDefaultEvictionSettings",
    "reservedMemory",
    "featureGates",
)
"""The fields of a kubelet's configuration that its managers use."""

FLAGS = (*_TEXTS, *_MAPS, "reserved-memory", "feature-gates")
"""The kubelet's flags that set these fields, without the leading dashes."""


def fields_of_flags(flags: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of a kubelet's configuration that its flags set.

    Raises NumaError if a kubelet refuses a flag.
    """
    found: dict[str, object] = {}
    for flag, text in flags.items():
        if flag in _TEXTS:
            found[_TEXTS[flag]] = text
        elif flag in _MAPS:
            name, sign = _MAPS[flag]
            found[name] = dict(_pairs(flag, text, sign))
        elif flag == "feature-gates":
            found["featureGates"] = {key: _truth(flag, value) for key, value in _pairs(flag, text, "=")}
        elif flag == "reserved-memory":
            found["reservedMemory"] = [_reserved(one) for one in text.split(";")] if text else []
    return found


def _pairs(flag: str, text: str, sign: str) -> Iterator[tuple[str, str]]:
    if text:
        for pair in text.split(","):
            name, found, value = pair.partition(sign)
            if not found:
                such_as = ", such as memory.available<100Mi" if sign == "<" else ""
                raise NumaError(f"--{flag}: malformed pair, expect string{sign}string{such_as}, got {pair!r:.100}")
            yield name.strip(), value.strip()


def _truth(flag: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise NumaError(f"--{flag}: expected true or false, got {text!r:.100}")
    return text.lower() == "true"


def _reserved(text: str) -> dict[str, object]:
    node, colon, limits = text.partition(":")
    if not colon or ":" in limits or not all("=" in one for one in limits.split(",")):
        raise NumaError(
            "--reserved-memory: the reserved memory has incorrect format, expected "
            f"numaNodeID:type=quantity[,type=quantity...], got {text!r:.100}"
        )
    if not (node.isascii() and node.isdecimal() and len(node) < 10):
        raise NumaError(f"--reserved-memory: failed to convert the NUMA node ID, expected integer, got {node!r:.100}")
    return {"numaNode": int(node), "limits": dict(_pairs("reserved-memory", limits, "="))}


# --- what a pod requests ----------------------------------------------------------------------------------------------


def may_be_pinned(pod: Mapping[str, Any], *, cpus: bool, memory: bool) -> bool:
    """Return whether a static CPU or memory policy would pin anything for a pod, judging by the API object.

    A Guaranteed pod always gets pinned memory, and also pinned CPUs if a container requests whole CPUs.
    """
    spec = pod.get("spec") or {}
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    try:
        whole = [_guaranteed_cpus(one.get("resources") or {}) for one in containers]
    except (InvalidQuantityError, AttributeError):
        return True
    is_guaranteed = bool(whole) and None not in whole and not (spec.get("resources") or {})
    return is_guaranteed and (memory or (cpus and any(whole)))


def _guaranteed_cpus(resources: Mapping[str, Any]) -> int | None:
    """Return how many whole CPUs a container requests, or None if its pod is not Guaranteed."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name in ("cpu", "memory"):
        limit = Quantity.parse(str(limits.get(name, "0")))
        if not limit.nanos or Quantity.parse(str(requests.get(name, limits[name]))).nanos != limit.nanos:
            return None
    cpu = Quantity.parse(str(limits["cpu"]))
    return cpu.whole if cpu.is_whole else 0


# --- a node on which pods are tried ----------------------------------------------------------------------------------


@frozen
class Pinned:
    """What a static policy gives to a container: the resource, and a short description of what is given."""

    container: str
    resource: str
    what: str


@frozen
class Holding:
    """What a container holds exclusively according to a state file: the resource, and what is held, in words."""

    pod_uid: str
    container: str
    resource: str
    what: str


def held_in_state_file(
    name: str, blob: bytes, configuration: Mapping[str, object], machine: object, *, knows_machine: bool
) -> tuple[Holding, ...]:
    """Return what containers hold according to a state file of the CPU manager or the memory manager.

    Args:
        name: which of the two files `blob` is.
        blob: the content of the file.
        configuration: the fields of the kubelet's configuration; empty if unknown.
        machine: the machine as described by cAdvisor, or None for this machine.
        knows_machine: whether `machine` is the kubelet's machine.

    Raises NumaError: the distribution is missing, or a kubelet does not start with the file.
    """
    if not is_installed():
        raise NumaError(INSTALL)
    from devicecore_numa.domain import start_checks
    from devicecore_numa.domain.configuration import read_reserved_memory
    from devicecore_numa.domain.cpu_policy import CpuState
    from devicecore_numa.domain.memory_policy import MemoryState, bytes_by_node

    known = start_checks.Known(str(configuration.get(_POLICIES[name], "")))
    with suppress(DeviceCoreError):  # if the configuration is invalid, nothing is known about reservations
        reserved = read_reserved_memory(Value(configuration.get("reservedMemory"), "reservedMemory"))
        known = evolve(known, reserved=bytes_by_node(reserved))
    if knows_machine:
        with suppress(NumaError):  # if the machine is not usable, only the file is checked
            known = evolve(known, machine=_machine(machine))
            known = evolve(known, policies=read_policies(configuration, machine) if known.policy else None)
    cpus, memory = CpuState(), MemoryState()
    try:
        if name == CPU_FILE:
            cpus = start_checks.started_cpus(blob, known)
        else:
            memory = start_checks.started_memory(blob, known)
    except DeviceCoreError as error:
        raise NumaError(str(error)) from None
    return tuple(
        Holding(uid, one.container, one.resource, one.what)
        for uid in sorted({*cpus.assignments, *memory.assignments})
        for one in pinned(uid, cpus, memory)
    )


_POLICIES = {CPU_FILE: "cpuManagerPolicy", MEMORY_FILE: "memoryManagerPolicy"}


@frozen
class PinnedNode:
    """The CPU manager and the memory manager of a node, restored from its files. Each trial starts with the same state.

    `gone` contains the pods whose CPUs and memory are free.
    """

    _policies: "Policies"
    _files: Mapping[str, bytes]
    _pod: Mapping[str, Any]
    _runs: bool = False
    gone: frozenset[str] = frozenset()
    _states: "tuple[CpuState, MemoryState]" = field(init=False)

    @_states.default
    def _restored(self) -> "tuple[CpuState, MemoryState]":
        cpus, memory = self._managers()
        try:
            cpus.start()
            memory.start()
        except DeviceCoreError as error:
            policy = self._policies.memory
            if not (self._runs and policy is not None and policy.may_have(memory.state)):
                raise NumaError(f"a kubelet cannot start with its current files: {error}") from None
        return cpus.state, memory.state

    @classmethod
    def of(
        cls,
        configuration: Mapping[str, object],
        machine: object,
        files: Mapping[str, bytes],
        pod: Mapping[str, Any],
        *,
        runs: bool = False,
    ) -> "PinnedNode":
        """Return the managers of a node on which a pod is tried.

        Args:
            configuration: the fields of the kubelet's configuration.
            machine: the machine as described by cAdvisor, or None for this machine.
            files: the state files.
            pod: the pod, as an API object.
            runs: whether the kubelet is already running. A running kubelet may have a memory state with which it could
                not start, and such a state is then accepted.

        Raises NumaError.
        """
        policies = read_policies(configuration, machine)
        return cls(policies, dict(files), pod, runs)

    @property
    def topology(self) -> Topology:
        """The settings of the topology manager, with the machine's NUMA nodes."""
        return self._policies.topology

    @property
    def holders(self) -> dict[str, int]:
        """The number of exclusive CPUs and memory blocks that each pod holds in total, by uid."""
        found: dict[str, int] = {}
        cpus, memory = self._states
        for uid in cpus.assignments:
            found[uid] = sum(held.bit_count() for held in cpus.of_pod(uid).values())
        for uid, containers in memory.assignments.items():
            found[uid] = found.get(uid, 0) + sum(map(len, containers.values()))
        return {uid: size for uid, size in found.items() if uid not in self.gone}

    def without(self, pods: Collection[str]) -> "PinnedNode":
        """Return the node without these pods."""
        return evolve(self, gone=self.gone | frozenset(pods))

    def admit(self, devices: DeviceManager, pod: Pod, policy: Policy, scope: Scope) -> Verdict:
        """Return the verdict of the three managers on a pod. The device manager must have no topology policy."""
        return self._admit(devices, pod, policy, scope)[0]

    def given(self, devices: DeviceManager, pod: Pod, policy: Policy, scope: Scope) -> tuple[Pinned, ...]:
        """Return the CPUs and memory that a pod's containers get, if it is admitted."""
        verdict, cpus, memory = self._admit(devices, pod, policy, scope)
        return tuple(pinned(str(pod.uid), cpus.state, memory.state)) if isinstance(verdict, Admitted) else ()

    def _managers(self) -> "tuple[CpuManager, MemoryManager]":
        # Imported here, because doctor also uses this module to read the kubelet's settings where protobuf is not
        # installed.
        from devicecore.adapters.memory import MemoryStore

        stores = {name: MemoryStore() for name in (CPU_FILE, MEMORY_FILE)}
        for name, blob in self._files.items():
            stores[name].save(blob)
        return make_managers(self._policies, stores[CPU_FILE], stores[MEMORY_FILE], self._request)

    def _request(self, pod: Pod) -> "PodRequest":
        return read_request(self._pod, pod)

    def _admit(
        self, devices: DeviceManager, pod: Pod, policy: Policy, scope: Scope
    ) -> "tuple[Verdict, CpuManager, MemoryManager]":
        from devicecore_numa.managers import NumaAdmission

        cpus, memory = self._managers()
        cpus.state, memory.state = self._states
        active = {*cpus.state.assignments, *memory.state.assignments} - self.gone
        topology = evolve(self._policies.topology, policy=policy, scope=scope)
        admission = NumaAdmission(topology, devices, cpus, memory, self._request, lambda: active)
        return admission.admit(pod), cpus, memory


def read_policies(configuration: Mapping[str, object], machine: object) -> "Policies":
    """Return the policies of a kubelet's configuration on a machine (None means this machine).

    Raises NumaError: the distribution is missing, or a kubelet does not start with this configuration.
    """
    if not is_installed():
        raise NumaError(INSTALL)
    from devicecore_numa.domain.configuration import Policies

    found = _machine(machine)
    try:
        return Policies.read(Value(dict(configuration), "the kubelet's configuration"), found)
    except DeviceCoreError as error:
        raise NumaError(str(error)) from None


def described_machine(machine: object) -> dict[str, object]:
    """Return cAdvisor's description of a machine, or of this machine if `machine` is None. Raises NumaError."""
    if not is_installed():
        raise NumaError(INSTALL)
    from devicecore_numa.adapters.described import machine_document

    return machine_document(_machine(machine))


def _machine(machine: object) -> "Machine":
    from devicecore_numa.adapters.described import machine_in
    from devicecore_numa.adapters.sysfs import SysfsMachine

    try:
        return SysfsMachine().machine() if machine is None else machine_in(Value.of(machine, "the machine"))
    except DeviceCoreError as error:
        raise NumaError(str(error)) from None


def node_sizes(policies: "Policies") -> tuple[dict[str, str], dict[str, str]]:
    """Return capacity and allocatable of a machine's Node as a kubelet shows them: quantities by resource.

    Huge pages are part of the memory, so they are subtracted from allocatable memory.
    """
    from devicecore_numa.domain.machine import CpuLayout
    from devicecore_numa.domain.memory_policy import huge_pages_name

    capacity = {"cpu": Quantity.parse(str(CpuLayout.of(policies.machine).count)), "memory": Quantity(0, binary=True)}
    pages = 0
    for cell in policies.machine.cells:
        capacity["memory"] = Quantity.of(capacity["memory"].whole + cell.memory, binary=True)
        for kib, count in cell.huge_pages.items():
            name, size = huge_pages_name(kib), kib * 1024 * count
            capacity[name] = Quantity.of(capacity.get(name, Quantity(0)).whole + size, binary=True)
            pages += size
    allocatable = dict(capacity)
    for name, amount in policies.reserved.items():
        allocatable[name] = Quantity(max(capacity[name].nanos - amount.nanos, 0), capacity[name].binary)
    left = max(allocatable["memory"].nanos - Quantity.of(pages, binary=True).nanos, 0)
    allocatable["memory"] = Quantity(left, binary=True)
    return {name: str(one) for name, one in capacity.items()}, {name: str(one) for name, one in allocatable.items()}


def make_managers(
    policies: "Policies", cpus: CheckpointStore, memory: CheckpointStore, requests: "Requests"
) -> "tuple[CpuManager, MemoryManager]":
    """Return the managers, which keep their states in the stores `cpus` and `memory`."""
    from devicecore_numa.managers import CpuManager, MemoryManager

    return CpuManager(policies.cpus, cpus, requests), MemoryManager(policies.memory, memory, requests)


def read_request(given: Mapping[str, Any], pod: Pod) -> "PodRequest":
    """Return a pod's requests for CPUs and memory, under the uid that the device manager uses."""
    from devicecore_numa.domain.requests import read_pod

    return evolve(read_pod(given), uid=str(pod.uid))


def pinned(uid: str, cpus: "CpuState", memory: "MemoryState") -> Iterator[Pinned]:
    """Yield the CPUs and memory that the two managers' states assign to each container of a pod."""
    from devicecore_numa.domain.cpus import cpu_list

    for container, held in sorted(cpus.of_pod(uid).items()):
        yield Pinned(container, "cpu", cpu_list(held))
    for container, blocks in sorted(memory.assignments.get(uid, {}).items()):
        for block in blocks:
            nodes = ", ".join(map(str, block.numa_nodes))
            noun = "NUMA node" if len(block.numa_nodes) == 1 else "NUMA nodes"
            yield Pinned(container, block.type, f"{Quantity.of(block.size, binary=True)} on {noun} {nodes}")


# --- a running node ------------------------------------------------------------------------------------------------


class Pods(Protocol):
    """The pods of a node."""

    def active_pods(self) -> Collection[PodUid]:
        """Return the pods that the node must run."""

    def sources_ready(self) -> bool:
        """Return whether all pods are known, in which case a pod that is not active is gone."""

    def object_of(self, pod: PodUid) -> Mapping[str, object]:
        """Return a pod as an API object, or an empty object if the pod is unknown."""


class NodeManagers:
    """The CPU manager and the memory manager of a running node, and admission by these two and the device manager.

    `topology` is for these two managers; the device manager needs a topology without a policy, `device_topology`.

    Raises NumaError: the distribution is missing, or a kubelet does not start with this configuration.
    """

    def __init__(
        self,
        configuration: Mapping[str, object],
        machine: object,
        cpus: CheckpointStore,
        memory: CheckpointStore,
    ) -> None:
        self._policies = read_policies(configuration, machine)
        self._cpus, self._memory = make_managers(self._policies, cpus, memory, self._request)
        self._pods: Pods | None = None
        self._zones: tuple[object, object, Zones] | None = None

    @property
    def topology(self) -> Topology:
        """The settings of the topology manager."""
        return self._policies.topology

    @property
    def device_topology(self) -> Topology:
        """The NUMA nodes for the device manager."""
        return Topology(self._policies.topology.numa_nodes)

    def start(self, devices: DeviceManager, pods: Pods) -> None:
        """Restore the states of the CPU manager and the memory manager.

        Raises ManagersNotStartedError if a kubelet does not start with these states, and StoreError.
        """
        from devicecore_numa.managers import NumaAdmission

        try:
            self._cpus.start()
            self._memory.start()
        except StoreError:
            raise
        except DeviceCoreError as error:
            problem = f"{error}: please drain node and remove policy state file"
            raise ManagersNotStartedError(problem) from None
        self._pods = pods
        self._admission = NumaAdmission(
            self._policies.topology, devices, self._cpus, self._memory, self._request, self._active
        )

    @property
    def states(self) -> tuple[object, object]:
        """The states of both managers. If the free CPUs or memory have changed, these are new objects."""
        return self._cpus.state, self._memory.state

    def admit(self, pod: Pod) -> Verdict:
        """Give a pod devices, CPUs and memory, or nothing."""
        return self._admission.admit(pod)

    def start_container(self, pod: Pod, container: str) -> None:
        """Free the memory of finished init containers. Raises StoreError."""
        self._memory.start_container(self._request(pod), container)

    def release(self, pods: Collection[PodUid] = ()) -> None:
        """Free what `pods` and all removed pods hold. Raises StoreError."""
        self._admission.forget(set(map(str, pods)))

    def _active(self) -> set[str]:
        assert self._pods is not None  # noqa: S101 - for mypy: it was started
        active = set(map(str, self._pods.active_pods()))
        if not self._pods.sources_ready():
            active.update(self._cpus.state.assignments, self._memory.state.assignments)
        return active

    def _request(self, pod: Pod) -> "PodRequest":
        assert self._pods is not None  # noqa: S101 - for mypy: it was started
        return read_request(self._pods.object_of(pod.uid), pod)

    # --- what others see ---

    @property
    def zones(self) -> Zones:
        """The CPUs and memory of each NUMA node. The same object is returned until a manager's state changes."""
        if self._zones is None or self._zones[0] is not self._cpus.state or self._zones[1] is not self._memory.state:
            found = {
                int(cell.id): Zone(dict(self._sizes(cell)), cell.distances) for cell in self._policies.machine.cells
            }
            self._zones = self._cpus.state, self._memory.state, found
        return self._zones[2]

    def _sizes(self, cell: "NumaCell") -> Iterator[tuple[str, tuple[int, int, int]]]:
        from devicecore_numa.domain.cpus import cpu_set

        policy, shared = self._policies.cpus, self._cpus.state.shared
        if policy is not None:
            own = cpu_set(cpu for core in cell.cores for cpu in core.threads)
            sets = own, own & policy.allocatable, own & policy.allocatable & shared
            yield "cpu", (sets[0].bit_count(), sets[1].bit_count(), sets[2].bit_count())
        if self._policies.memory is not None:
            for name, table in sorted(self._memory.state.nodes[int(cell.id)].tables.items()):
                yield name, (table.total, table.allocatable, table.free)

    def cpus(self, pod: Pod, container: Container) -> Sequence[int]:
        """Return the exclusive CPUs of a container."""
        from devicecore_numa.domain.cpus import cpu_ids

        return tuple(cpu_ids(self._cpus.state.of_container(str(pod.uid), container.name) or 0))

    def memory(self, pod: Pod, container: Container) -> "Sequence[MemoryBlock]":
        """Return the pinned memory of a container."""
        from devicecore.adapters.pod_resources import MemoryBlock

        blocks = self._memory.state.of_container(str(pod.uid), container.name) or ()
        return tuple(MemoryBlock(one.type, one.size, one.numa_nodes) for one in blocks)

    @property
    def allocatable_cpus(self) -> Sequence[int]:
        """All CPUs that can become exclusive."""
        from devicecore_numa.domain.cpus import cpu_ids

        return tuple(cpu_ids(self._policies.cpus.allocatable if self._policies.cpus is not None else 0))

    @property
    def allocatable_memory(self) -> "Sequence[MemoryBlock]":
        """All memory that containers can have."""
        from devicecore.adapters.pod_resources import MemoryBlock

        policy = self._policies.memory
        blocks = policy.allocatable if policy is not None else ()
        return tuple(MemoryBlock(one.type, one.size, one.numa_nodes) for one in blocks)
