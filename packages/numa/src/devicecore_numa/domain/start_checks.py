"""Determines whether a kubelet starts with a state file, as far as its configuration and machine are known.

Law: a file is refused only if a kubelet refuses it, regardless of what is unknown. If the whole configuration and the
machine are known, a file is refused if and only if a kubelet refuses it.
"""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from types import MappingProxyType

from attrs import frozen

from devicecore_numa.domain.configuration import Policies
from devicecore_numa.domain.cpu_policy import CpuState, check_disjoint
from devicecore_numa.domain.cpus import cpu_list
from devicecore_numa.domain.errors import InvalidStateError
from devicecore_numa.domain.machine import CpuLayout, Machine
from devicecore_numa.domain.memory_policy import MemoryState
from devicecore_numa.domain.state_files import Stored, decode_cpus, decode_memory

_NOTHING: Mapping[int, Mapping[str, int]] = MappingProxyType({})


@frozen
class Known:
    """What is known about a kubelet besides its state file.

    Attributes:
        policy: the manager's policy in the configuration, or an empty string if the configuration is unknown.
        policies: the policies of the whole configuration on the machine, or None if the configuration or the machine is
            unknown.
        machine: the hardware on which the kubelet runs, or None if the hardware is unknown.
        reserved: the memory that the configuration reserves on each NUMA node, by resource; empty if this is unknown.
    """

    policy: str = ""
    policies: Policies | None = None
    machine: Machine | None = None
    reserved: Mapping[int, Mapping[str, int]] = _NOTHING


def started_cpus(file: bytes, known: Known) -> CpuState:
    """Return the state that a CPU manager starts with.

    Raises InvalidStateError if a kubelet does not start with this state.
    """
    stored = decode_cpus(file)
    _check_policy(stored.policy, known.policy)
    if stored.policy != "static":
        return CpuState()
    if known.policies is not None and known.policies.cpus is not None:
        return known.policies.cpus.start(stored.state)
    check_disjoint(stored.state)
    named = reduce(or_, (cpus for held in stored.state.assignments.values() for cpus in held.values()), 0)
    missing = 0 if known.machine is None else (named | stored.state.shared) & ~CpuLayout.of(known.machine).all
    if missing:
        raise InvalidStateError(f"it names CPUs that this machine does not have: {cpu_list(missing)}")
    return stored.state


def started_memory(file: bytes, known: Known) -> MemoryState:
    """Return the state that a memory manager starts with.

    Raises InvalidStateError if a kubelet does not start with this state.
    """
    stored = decode_memory(file)
    _check_policy(stored.policy, known.policy)
    if stored.policy != "Static":
        return MemoryState()
    if known.policies is not None and known.policies.memory is not None:
        policy = known.policies.memory
        return stored.state if policy.may_start(stored.state) else policy.start(stored.state)
    _check_reservation(stored, known.reserved)
    for cell in () if known.machine is None else known.machine.cells:
        node = stored.state.nodes.get(cell.id)
        if node is not None and "memory" in node.tables and node.tables["memory"].total != cell.memory:
            raise InvalidStateError(
                f"it says that NUMA node {cell.id} has {node.tables['memory'].total:,} bytes of memory, but the "
                f"machine has {cell.memory:,}"
            )
    cells = None if known.machine is None else {int(cell.id) for cell in known.machine.cells}
    for number in stored.state.nodes:
        if cells is not None and number not in cells:
            raise InvalidStateError(f"it names NUMA node {number}, which this machine does not have")
    return stored.state


def _check_policy(stored: str, configured: str) -> None:
    if not stored or (configured and configured != stored):
        configured = f' "{configured}"' if configured else ""
        raise InvalidStateError(f'configured policy{configured} differs from state checkpoint policy "{stored}"')


def _check_reservation(stored: Stored[MemoryState], reserved: Mapping[int, Mapping[str, int]]) -> None:
    """Compare the reserved memory in the file with that in the configuration (kubelet: `areMachineStatesEqual`)."""
    if not reserved:
        return
    for number, node in stored.state.nodes.items():
        for name, table in node.tables.items():
            configured = reserved.get(number, {}).get(name, 0)
            if table.system_reserved != configured:
                raise InvalidStateError(
                    f"NUMA node {number}, {name}: {table.system_reserved} bytes are reserved, but reservedMemory in "
                    f"the configuration is {configured}"
                )
