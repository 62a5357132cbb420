"""The policies of the topology, CPU and memory managers that a kubelet's configuration implies on a machine.

Laws: a configuration that a kubelet cannot start with is refused, with the kubelet's message if there is one.
Fields that no manager uses are not read.
"""

import struct
from collections.abc import Mapping

from attrs import field, frozen

from devicecore.domain.documents import Value
from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text
from devicecore.domain.topology import MAX_ALLOWABLE_NUMA_NODES, Policy, PolicyOptions, Scope, Topology
from devicecore_numa.domain.cpu_policy import CpuOptions, StaticCpuPolicy
from devicecore_numa.domain.cpus import Cpus, cpu_list, parse_cpus
from devicecore_numa.domain.errors import InvalidCpuListError, NumaConfigError
from devicecore_numa.domain.machine import MAX_NUMA_NODES, CpuLayout, Machine
from devicecore_numa.domain.memory_policy import ReservedMemory, StaticMemoryPolicy
from devicecore_numa.domain.requests import CPU, HUGE_PAGES, MEMORY

EVICTION_THRESHOLD = "100Mi"
"""What a kubelet reserves for evictions, unless `evictionHard` says otherwise (`DefaultEvictionHard`)."""

_AVAILABLE = "memory.available"
_RESERVABLE = {CPU, MEMORY, "ephemeral-storage", "pid"}
_NANO = 10**9
_MICRO = 10**3


def _frozen_amounts(value: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
    return dict(value)


@frozen
class Policies:
    """The policies of the three managers. A manager without a policy pins nothing (`none`).

    `reserved` contains the amount of each resource that pods cannot use (Kubernetes: `GetNodeAllocatableReservation`).
    """

    machine: Machine
    topology: Topology
    cpus: StaticCpuPolicy | None = None
    memory: StaticMemoryPolicy | None = None
    reserved: Mapping[str, Quantity] = field(factory=dict, converter=_frozen_amounts)

    @classmethod
    def read(cls, configuration: Value, machine: Machine) -> "Policies":
        """Return the policies of a `KubeletConfiguration`. For a missing field, the kubelet's default applies.

        Raises:
            NumaConfigError: a kubelet does not start with this configuration on this machine.
            DocumentError: a field has a value of the wrong kind.
        """
        reserved_memory = read_reserved_memory(configuration["reservedMemory"])
        layout = CpuLayout.of(machine)
        pins = (configuration["cpuManagerPolicy"].text("none"), configuration["memoryManagerPolicy"].text("None"))
        if len(machine.cells) > MAX_NUMA_NODES and pins != ("none", "None"):
            raise NumaConfigError(
                f"expected at most {MAX_NUMA_NODES} NUMA nodes, because every set of nodes is examined"
            )
        reserved_cpus = _reserved_cpus(configuration["reservedSystemCPUs"].text(""), layout)
        reserved = _reservation(configuration, machine, reserved_cpus)
        topology = _topology(configuration, machine)
        cpus = _cpu_policy(configuration, layout, reserved, reserved_cpus, topology.policy)
        memory = None
        policy = configuration["memoryManagerPolicy"].text("None")
        if policy == "Static":
            memory = StaticMemoryPolicy.of(machine, reserved, reserved_memory)
        elif policy == "BestEffort":
            raise NumaConfigError('policy "BestEffort" is not available for platform "linux"')
        elif policy != "None":
            raise NumaConfigError(f'unknown policy: "{foreign_text(policy, 60)}"')
        _check_capacity(machine, layout, reserved)
        return cls(machine, topology, cpus, memory, reserved)


# --- reservations ------------------------------------------------------------------------------------------------


def read_reserved_memory(given: Value) -> ReservedMemory:
    """Return the reservations in a kubelet's `reservedMemory` (Kubernetes: `validateReservedMemoryConfiguration`).

    Raises:
        NumaConfigError: a kubelet does not start with these reservations.
        DocumentError: a field has a value of the wrong kind.
    """
    found: list[tuple[int, Mapping[str, Quantity]]] = []
    seen: set[tuple[int, str]] = set()
    for one in given.sequence():
        node, limits = one["numaNode"].integer(0), {key: of.amount() for key, of in one["limits"].mapping().items()}
        for name, amount in limits.items():
            if name != MEMORY and not name.startswith(HUGE_PAGES):
                raise NumaConfigError(
                    f'invalid configuration: the limit type "{foreign_text(name, 60)}" for NUMA node {node} is not '
                    "supported, only [memory hugepages-<HugePageSize>] is accepted"
                )
            if not amount.nanos:
                raise NumaConfigError(
                    "invalid configuration: reserved memory may not be zero for NUMA node "
                    f'{node} and resource "{foreign_text(name, 60)}"'
                )
            if (node, name) in seen:
                raise NumaConfigError(
                    "invalid configuration: the reserved memory has a duplicate value for NUMA node "
                    f'{node} and resource "{foreign_text(name, 60)}"'
                )
            seen.add((node, name))
        found.append((node, limits))
    return found


def _reserved_cpus(text: str, layout: CpuLayout) -> Cpus:
    """Return the CPUs in `reservedSystemCPUs` (Kubernetes: `getReservedCPUs`)."""
    try:
        cpus = parse_cpus(text)
    except InvalidCpuListError as error:
        raise NumaConfigError(
            "invalid configuration: unable to parse reservedSystemCPUs (--reserved-cpus) "
            f"{foreign_text(text, 100)}, error: {error}"
        ) from None
    if cpus & ~layout.all:
        raise NumaConfigError(
            f"reserved-cpus: {foreign_text(text, 100)} is not a subset of online-cpus: {cpu_list(layout.all)}"
        )
    return cpus


def _reservation(configuration: Value, machine: Machine, reserved_cpus: Cpus) -> dict[str, Quantity]:
    lists = []
    for name, flag in (("kubeReserved", "--kube-reserved"), ("systemReserved", "--system-reserved")):
        given = {key: one.text() for key, one in configuration[name].mapping().items()}
        if reserved_cpus:  # reservedSystemCPUs replaces the CPU counts of both reservations (the kubelet's `run`)
            given.pop(CPU, None)
        lists.append(_amounts(given, flag))
    if reserved_cpus:
        lists.append({CPU: Quantity(reserved_cpus.bit_count() * _NANO)})
    lists.append(_eviction(configuration, machine))
    total: dict[str, Quantity] = {}
    for amounts in lists:
        for name, amount in amounts.items():
            total[name] = Quantity(total.get(name, _NOTHING).nanos + amount.nanos, binary=name == MEMORY)
    return {name: amount for name, amount in total.items() if amount.nanos and name in {CPU, MEMORY}}


_NOTHING = Quantity(0)


def _amounts(given: Mapping[str, str], flag: str) -> dict[str, Quantity]:
    """Return the quantities in a resource list (Kubernetes: `parseResourceList`)."""
    found = {}
    for name, text in given.items():
        if name not in _RESERVABLE:
            raise NumaConfigError(f'{flag} value failed to parse: cannot reserve "{foreign_text(name, 60)}" resource')
        amount = _quantity(
            text,
            f'{flag} value failed to parse: failed to parse quantity "{foreign_text(text, 60)}" for "{name}" resource',
        )
        if amount.nanos < 0:
            raise NumaConfigError(
                f'{flag} value failed to parse: resource quantity for "{name}" cannot be negative: {text}'
            )
        if name == CPU:  # round up to a whole number of millionths, and then to the nearest whole number of thousandths
            micro = -(-amount.nanos // _MICRO)
            amount = Quantity((micro + 500) // 1000 * 10**6)
        found[name] = amount
    return found


def _quantity(text: str, problem: str) -> Quantity:
    try:
        return Quantity.parse(text)
    except InvalidQuantityError as error:
        raise NumaConfigError(f"{problem}: {error}") from None


def _eviction(configuration: Value, machine: Machine) -> dict[str, Quantity]:
    """Return the available memory below which the kubelet evicts pods (Kubernetes: `hardEvictionReservation`)."""
    given = configuration["evictionHard"]
    default = EVICTION_THRESHOLD
    if given.data is not None and not configuration["mergeDefaultEvictionSettings"].boolean():
        default = ""
    text = given[_AVAILABLE].text(default)
    if text in {"", "0%", "100%"}:
        return {}
    if text.endswith("%"):
        try:
            share = _float32(_float32(float(text.rstrip("%"))) / 100)
        except (ValueError, OverflowError):
            raise NumaConfigError(f"expected a percentage in evictionHard, got {foreign_text(text, 60)}") from None
        if not 0 <= share <= 1:
            bound = ">= 0%" if share < 0 else "<= 100%"
            raise NumaConfigError(f"eviction percentage threshold {_AVAILABLE} must be {bound}: {text}")
        return {MEMORY: Quantity(int(float(sum(cell.memory for cell in machine.cells)) * share) * _NANO)}
    amount = _quantity(text, f"evictionHard of {_AVAILABLE}")
    if amount.nanos <= 0:
        raise NumaConfigError(f"eviction threshold {_AVAILABLE} must be positive: {amount}")
    return {MEMORY: amount}


def _float32(value: float) -> float:
    """Return a number, rounded to the precision of Go's float32."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _check_capacity(machine: Machine, layout: CpuLayout, reserved: Mapping[str, Quantity]) -> None:
    """Refuse reservations of more than the machine has (Kubernetes: `validateNodeAllocatable`)."""
    has = {
        CPU: Quantity(layout.count * _NANO),
        MEMORY: Quantity.of(sum(cell.memory for cell in machine.cells), binary=True),
    }
    wrong = [
        f'Resource "{name}" has a reservation of {amount} but capacity of {has[name]}. '
        "Expected capacity >= reservation."
        for name, amount in reserved.items()
        if amount.nanos > has[name].nanos
    ]
    if wrong:
        raise NumaConfigError(f"invalid Node Allocatable configuration. {' '.join(wrong)}")


# --- the policies ----------------------------------------------------------------------------------------------------


def _topology(configuration: Value, machine: Machine) -> Topology:
    """Return the settings of the topology manager (Kubernetes: `topologymanager.NewManager`)."""
    name = configuration["topologyManagerPolicy"].text(Policy.NONE.value)
    if name not in {one.value for one in Policy}:
        raise NumaConfigError(f'unknown policy: "{foreign_text(name, 60)}"')
    if name == Policy.NONE.value:
        return Topology(machine.numa_nodes)
    options = {key: one.text() for key, one in configuration["topologyManagerPolicyOptions"].mapping().items()}
    try:
        chosen = PolicyOptions.of(options)
    except ValueError as error:
        raise NumaConfigError(str(error)) from None
    most = chosen.max_allowable_numa_nodes or MAX_ALLOWABLE_NUMA_NODES
    if len(machine.cells) > most:
        raise NumaConfigError(f"unsupported on machines with more than {most} NUMA Nodes")
    scope = configuration["topologyManagerScope"].text(Scope.CONTAINER.value)
    if scope not in {one.value for one in Scope}:
        raise NumaConfigError(f'unknown scope: "{foreign_text(scope, 60)}"')
    distances = tuple(cell.distances for cell in machine.cells) if chosen.prefer_closest_numa_nodes else ()
    try:
        return Topology(machine.numa_nodes, name, scope, distances=distances)
    except ValueError as error:
        raise NumaConfigError(f"cannot discover NUMA topology: {error}") from None


def _cpu_policy(
    configuration: Value, layout: CpuLayout, reserved: Mapping[str, Quantity], by_number: Cpus, topology: Policy
) -> StaticCpuPolicy | None:
    """Return the policy of the CPU manager, or None for `none` (Kubernetes: `cpumanager.NewManager`)."""
    options = {key: one.text() for key, one in configuration["cpuManagerPolicyOptions"].mapping().items()}
    policy = configuration["cpuManagerPolicy"].text("none")
    if policy == "none":
        if options:
            listed = " ".join(f"{name}:{text}" for name, text in sorted(options.items()))
            raise NumaConfigError(
                f"new none policy error: None policy: received unsupported options=map[{foreign_text(listed, 200)}]"
            )
        return None
    if policy != "static":
        raise NumaConfigError(f'unknown policy: "{foreign_text(policy, 60)}"')
    if not reserved.get(CPU, _NOTHING).nanos:
        raise NumaConfigError("[cpumanager] unable to determine reserved CPU resources for static policy")
    gates = configuration["featureGates"]
    try:
        parsed = CpuOptions.parse(
            options,
            alpha=_is_on(gates, "CPUManagerPolicyAlphaOptions", default=False),
            beta=_is_on(gates, "CPUManagerPolicyBetaOptions", default=True),
        )
        count = -(-reserved[CPU].nanos // _NANO)
        return StaticCpuPolicy.of(layout, parsed, count=count, reserved=by_number, topology=topology)
    except NumaConfigError as error:
        raise NumaConfigError(f"new static policy error: {error}") from None


def _is_on(gates: Value, name: str, *, default: bool) -> bool:
    """Return whether a feature gate is on. AllAlpha and AllBeta apply to gates that are not set individually."""
    for key in (name, "AllAlpha" if "Alpha" in name else "AllBeta"):
        if gates[key].data is not None:
            return gates[key].boolean()
    return default
