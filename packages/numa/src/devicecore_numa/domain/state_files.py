"""The text of `cpu_manager_state` and `memory_manager_state`, as kubelets from 1.35 to 1.37 write it.

Law: written files are byte for byte what a kubelet would write, except for the order of a container's blocks, which is
random in a kubelet's file. A file that a kubelet refuses is refused.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar, cast

from attrs import frozen

from devicecore.domain.checkpoint.fnv import fnv1a_32
from devicecore.domain.go_text import json_text
from devicecore.domain.text import foreign_text
from devicecore_numa.domain.cpu_policy import CpuState
from devicecore_numa.domain.cpus import cpu_list, parse_cpus
from devicecore_numa.domain.errors import CorruptStateError, InvalidCpuListError
from devicecore_numa.domain.memory_policy import Block, MemoryState, MemoryTable, NodeMemory

CPU_FILE, MEMORY_FILE = "cpu_manager_state", "memory_manager_state"

MAX_FILE_BYTES = 64 * 1024 * 1024
"""The maximum size of a state file.

The file for a machine with 16 NUMA nodes and 1,000 containers is smaller than 1 MiB.
"""

MAX_MEMORY = 2**64 - 1
MAX_NUMBER = 2**63 - 1

_Json = Mapping[str, Any]
_State = TypeVar("_State")
_Value = TypeVar("_Value")
_TABLE = ("total", "systemReserved", "allocatable", "reserved", "free")


@frozen
class Stored(Generic[_State]):
    """The state in a file, and the policy of the kubelet that wrote it."""

    policy: str
    state: _State


# --- writing ---------------------------------------------------------------------------------------------------------


class Entries(Generic[_Value]):
    """Renders the entries of pods, both as written to the file and as hashed for the file's checksum.

    Few pods change between two files, so the texts of unchanged pods are kept. A pod counts as unchanged if the values
    for it are the same objects as before.
    """

    def __init__(self, to_json: Callable[[_Value], Any], dump: Callable[[Any], str]) -> None:
        self._to_json, self._dump = to_json, dump
        self._known: dict[str, tuple[Mapping[str, _Value], bytes, str]] = {}

    def __call__(self, assignments: Mapping[str, Mapping[str, _Value]]) -> tuple[bytes, str]:
        """Return the pods' entries as JSON, and in the form of the hashed text."""
        known = dict[str, tuple[Mapping[str, _Value], bytes, str]]()
        for uid in sorted(assignments):
            of_pod, entry = assignments[uid], self._known.get(uid)
            known[uid] = entry if entry and entry[0] is of_pod else self._entry(uid, of_pod)
        self._known = known
        texts = known.values()
        written, hashed = b",".join([one[1] for one in texts]), " ".join([one[2] for one in texts])
        return b"{%s}" % written, f"map[{hashed}]"

    def _entry(self, uid: str, of_pod: Mapping[str, _Value]) -> tuple[Mapping[str, _Value], bytes, str]:
        values = {name: self._to_json(held) for name, held in sorted(of_pod.items())}
        return of_pod, json_text({uid: values})[1:-1], f"{uid}:{_map_dump(values, self._dump)}"


def cpu_entries() -> Entries[int]:
    """Return the writer for the entries of `cpu_manager_state`."""
    return Entries(cpu_list, str)


def memory_entries() -> Entries[tuple[Block, ...]]:
    """Return the writer for the entries of `memory_manager_state`."""
    return Entries(lambda blocks: [_block_json(one) for one in blocks], _blocks_dump)


def encode_cpus(
    policy: str, state: CpuState, *, has_data: bool = True, entries_of: Entries[int] | None = None
) -> bytes:
    """Return the text of `cpu_manager_state`.

    Unless `has_data` is true, the text has the form that kubelets before 1.37 write.
    """
    fields: dict[str, Any] = {"policyName": policy, "defaultCpuSet": cpu_list(state.shared)}
    entries, dumped = (entries_of or cpu_entries())(state.assignments)
    return _file(fields, entries, fnv1a_32(_cpu_dump(fields, dumped).encode()), has_data=has_data)


def encode_memory(
    policy: str, state: MemoryState, *, has_data: bool = True, entries_of: Entries[tuple[Block, ...]] | None = None
) -> bytes:
    """Return the text of `memory_manager_state`.

    Unless `has_data` is true, the text has the form that kubelets before 1.37 write.
    """
    nodes = {str(number): _node_json(node) for number, node in sorted(state.nodes.items(), key=lambda one: str(one[0]))}
    fields: dict[str, Any] = {"policyName": policy, "machineState": nodes}
    entries, dumped = (entries_of or memory_entries())(state.assignments)
    return _file(fields, entries, fnv1a_32(_memory_dump(fields, dumped).encode()), has_data=has_data)


def cpu_encoder() -> Callable[[str, CpuState], bytes]:
    """Return an encoder for repeated writes of `cpu_manager_state`."""
    return partial(encode_cpus, entries_of=cpu_entries())


def memory_encoder() -> Callable[[str, MemoryState], bytes]:
    """Return an encoder for repeated writes of `memory_manager_state`."""
    return partial(encode_memory, entries_of=memory_entries())


def _file(fields: _Json, entries: bytes, checksum: int, *, has_data: bool) -> bytes:
    content = json_text(fields)[:-1] + (b"" if entries == b"{}" else b',"entries":' + entries)
    if not has_data:
        return b'%s,"checksum":%d}' % (content, checksum)
    data = content + b"}"
    escaped = json_text(data.decode())
    return b'%s,"checksum":%d,"data":%s,"dataChecksum":%d}' % (content, checksum, escaped, _data_checksum(data))


def _data_checksum(data: bytes) -> int:
    return fnv1a_32(b"(string)" + data)


def _node_json(node: NodeMemory) -> _Json:
    tables = {name: dict(zip(_TABLE, _numbers_of(table), strict=True)) for name, table in sorted(node.tables.items())}
    return {"numberOfAssignments": node.assignments, "memoryMap": tables, "cells": list(node.cells)}


def _numbers_of(table: MemoryTable) -> tuple[int, ...]:
    return table.total, table.system_reserved, table.allocatable, table.reserved, table.free


def _block_json(block: Block) -> _Json:
    return {"numaAffinity": list(block.numa_nodes), "type": block.type, "size": block.size}


# --- the hashed text --------------------------------------------------------------------------------------------------


def _cpu_dump(fields: _Json, dumped: str, name: str = "CPUManagerCheckpoint", pods: str = "") -> str:
    return (
        f"(*state.{name}){{PolicyName:(string){fields['policyName']} DefaultCPUSet:(string){fields['defaultCpuSet']} "
        f"Entries:(map[string]map[string]string){dumped}{pods} Checksum:(checksum.Checksum)0}}"
    )


def _memory_dump(fields: _Json, dumped: str, name: str = "MemoryManagerCheckpoint", pods: str = "") -> str:
    nodes = fields["machineState"]
    in_order = nodes and {number: nodes[number] for number in sorted(nodes, key=int)}
    return (
        f"(*state.{name}){{PolicyName:(string){fields['policyName']} "
        f"MachineState:(state.NUMANodeMap){_map_dump(in_order, _node_dump, is_sorted=True)} "
        f"Entries:(state.ContainerMemoryAssignments){dumped}{pods} Checksum:(checksum.Checksum)0}}"
    )


def _map_dump(value: _Json | None, dump: Callable[[Any], str], *, is_sorted: bool = False) -> str:
    if value is None:
        return "<nil>"
    in_order = value if is_sorted else sorted(value, key=str.encode)
    return f"map[{' '.join(f'{key}:{dump(value[key])}' for key in in_order)}]"


def _node_dump(node: _Json) -> str:
    tables = _map_dump(node.get("memoryMap"), _table_dump)
    return (
        f"<*>{{NumberOfAssignments:(int){node.get('numberOfAssignments', 0)} "
        f"MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables} Cells:([]int){_list_dump(node.get('cells'))}}}"
    )


def _table_dump(table: _Json) -> str:
    names = ("TotalMemSize", "SystemReserved", "Allocatable", "Reserved", "Free")
    fields = (f"{name}:(uint64){table.get(key, 0)}" for name, key in zip(names, _TABLE, strict=True))
    return f"<*>{{{' '.join(fields)}}}"


def _blocks_dump(blocks: list[_Json] | None) -> str:
    if blocks is None:
        return "<nil>"
    dumped = (
        f"{{NUMAAffinity:([]int){_list_dump(one.get('numaAffinity'))} "
        f"Type:(v1.ResourceName){one.get('type', '')} Size:(uint64){one.get('size', 0)}}}"
        for one in blocks
    )
    return f"[{' '.join(dumped)}]"


def _list_dump(numbers: list[int] | None) -> str:
    return "<nil>" if numbers is None else f"[{' '.join(map(str, numbers))}]"


# --- reading ---------------------------------------------------------------------------------------------------------


def decode_cpus(file: bytes) -> Stored[CpuState]:
    """Return the state in a `cpu_manager_state` file.

    Raises:
        CorruptStateError: a kubelet would not start with this file.
    """
    pods = " PodEntries:(state.PodCPUAssignments)map[]"
    content = _content(
        file,
        _cpu_fields,
        lambda fields: _sums(_cpu_dump, str, fields, ("CPUManagerCheckpoint", "CPUManagerCheckpointV2"), pods),
    )
    shared = _cpus(content["defaultCpuSet"], "defaultCpuSet")
    assignments = {
        uid: {name: _cpus(text, f"the CPUs of container {foreign_text(name)}") for name, text in (of_pod or {}).items()}
        for uid, of_pod in (content["entries"] or {}).items()
    }
    return Stored(content["policyName"], CpuState(shared, assignments))


def decode_memory(file: bytes) -> Stored[MemoryState]:
    """Return the state in a `memory_manager_state` file.

    Raises:
        CorruptStateError: a kubelet would not start with this file.
    """
    pods = " PodEntries:(state.PodMemoryAssignments)map[]"
    content = _content(
        file,
        _memory_fields,
        lambda fields: _sums(_memory_dump, _blocks_dump, fields, ("MemoryManagerCheckpoint",), pods),
    )
    nodes = {
        int(number): NodeMemory(
            node.get("numberOfAssignments", 0),
            {
                name: MemoryTable(*(table.get(key, 0) for key in _TABLE))
                for name, table in (node.get("memoryMap") or {}).items()
            },
            tuple(node.get("cells") or ()),
        )
        for number, node in (content["machineState"] or {}).items()
    }
    assignments = {
        uid: {
            name: tuple(
                Block(tuple(one.get("numaAffinity") or ()), one.get("type", ""), one.get("size", 0))
                for one in blocks or ()
            )
            for name, blocks in (of_pod or {}).items()
        }
        for uid, of_pod in (content["entries"] or {}).items()
    }
    return Stored(content["policyName"], MemoryState(nodes, assignments))


def _sums(
    dump: Callable[..., str], of_container: Callable[[Any], str], fields: _Json, names: tuple[str, ...], pods: str
) -> set[int]:
    """Return the checksums for which a kubelet accepts these fields of a file without `data`."""
    dumped = _map_dump(fields["entries"], lambda of_pod: _map_dump(of_pod, of_container))
    dumps = [dump(fields, dumped, name) for name in names] + [dump(fields, dumped, pods=pods)]
    return {fnv1a_32(one.encode()) for one in dumps}


def _content(file: bytes, fields: Callable[[_Json], _Json], checksums: Callable[[_Json], set[int]]) -> _Json:
    given = _object(file, "the file")
    data, stored = given.get("data", ""), given.get("dataChecksum", 0)
    if data or stored:
        if not isinstance(data, str):
            raise CorruptStateError("expected a string in data")
        encoded = data.encode()
        content = fields(_object(encoded, "data"))
        if stored != _data_checksum(encoded):
            raise CorruptStateError(
                "could not load the checkpoint: checkpoint is corrupted: dataChecksum does not match"
            )
        return content
    content = fields(given)
    checksum = given.get("checksum", 0)
    if checksum and checksum not in checksums(content):
        raise CorruptStateError("checkpoint is corrupted: its checksum does not match its content")
    return content


def _object(text: bytes, what: str) -> _Json:
    if len(text) > MAX_FILE_BYTES:
        raise CorruptStateError(f"expected at most {MAX_FILE_BYTES} bytes in {what}, got {len(text)}")
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # encoding fails for a lone surrogate, which no kubelet writes
    except (ValueError, RecursionError):
        raise CorruptStateError(
            f"expected JSON in {what}, got {foreign_text(text[:60].decode(errors='replace'))}"
        ) from None
    return _checked(value, dict, what)


def _cpu_fields(given: _Json) -> _Json:
    entries = {
        uid: _map_or_none(of_pod, f"entries of {foreign_text(uid)}", str)
        for uid, of_pod in _map(given, "entries", dict, nullable=True).items()
    }
    return {
        "policyName": _checked(given.get("policyName", ""), str, "policyName"),
        "defaultCpuSet": _checked(given.get("defaultCpuSet", ""), str, "defaultCpuSet"),
        "entries": None if given.get("entries", {}) is None else entries,
    }


def _memory_fields(given: _Json) -> _Json:
    nodes = _map(given, "machineState", dict)
    for number, node in nodes.items():
        if not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise CorruptStateError(f"expected a NUMA node number in machineState, got {foreign_text(number)}")
        _number(node, "numberOfAssignments", MAX_NUMBER)
        _numbers(node, "cells")
        for table in _map(node, "memoryMap", dict).values():
            for key in _TABLE:
                _number(table, key, MAX_MEMORY)
    for uid, of_pod in _map(given, "entries", dict, nullable=True).items():
        for blocks in (_map_or_none(of_pod, f"entries of {foreign_text(uid)}", list, nullable=True) or {}).values():
            for block in blocks or ():
                _checked(block, dict, "a block")
                _numbers(block, "numaAffinity")
                _checked(block.get("type", ""), str, "type of a block")
                _number(block, "size", MAX_MEMORY)
    return {
        "policyName": _checked(given.get("policyName", ""), str, "policyName"),
        "machineState": given.get("machineState", {}),
        "entries": given.get("entries", {}),
    }


def _map(owner: _Json, key: str, of: type, *, nullable: bool = False) -> _Json:
    return _map_or_none(owner.get(key), key, of, nullable=nullable) or {}


def _map_or_none(value: object, what: str, of: type, *, nullable: bool = False) -> _Json | None:
    if value is None:
        return None
    found = _checked(value, dict, what)
    for one in found.values():
        if not (nullable and one is None):
            _checked(one, of, what)
    return cast("_Json", found)


def _numbers(owner: _Json, key: str) -> None:
    for one in _checked(owner.get(key) or [], list, key):
        _number({key: one}, key, MAX_NUMBER)


def _number(owner: _Json, key: str, most: int) -> None:
    value = owner.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise CorruptStateError(f"expected a number of at least 0 in {key}, got {foreign_text(repr(value), 60)}")


def _cpus(text: str, what: str) -> int:
    try:
        return parse_cpus(text)
    except InvalidCpuListError as error:
        raise CorruptStateError(f"could not parse {what}: {error}") from None


def _checked(value: object, of: type[_Value], what: str) -> _Value:
    if not isinstance(value, of):
        kind = {"dict": "an object", "list": "a list"}.get(of.__name__, "a string")
        raise CorruptStateError(f"expected {kind} in {what}, got {foreign_text(repr(value), 60)}")
    return value
