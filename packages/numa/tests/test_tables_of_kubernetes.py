"""Our functions answer the questions from Kubernetes' own tests of both managers as Kubernetes does.

`tools/record_numa_tables.py` ran the tests of `cm/cpumanager` and `cm/memorymanager`, and recorded each call to the
deciding functions. `data/tables_of_kubernetes.json.gz` contains each recorded call once, and the names of all tests.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from devicecore_numa.domain.cpu_assignment import take_distributed, take_packed
from devicecore_numa.domain.cpu_policy import CpuOptions, CpuState, StaticCpuPolicy, release_cpus
from devicecore_numa.domain.cpus import cpu_list, parse_cpus
from devicecore_numa.domain.errors import NumaConfigError
from devicecore_numa.domain.machine import CpuLayout, Machine, NumaCell
from devicecore_numa.domain.memory_policy import (
    Block,
    MemoryState,
    MemoryTable,
    NodeMemory,
    StaticMemoryPolicy,
    release_memory,
)
from devicecore_numa.domain.requests import ContainerRequest, PodRequest, read_pod

from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import NumaNode
from devicecore.domain.quantity import Quantity
from devicecore.domain.topology import Hints, NumaMask, Policy, TopologyHint

Json = Mapping[str, Any]
RECORDED = Path(__file__).parent / "data" / "tables_of_kubernetes.json.gz"

_GATE = "the PodLevelResourceManagers feature gate, which is off by default"
_NAME = "a name or a message that only the Go code has"
_PARTS = "a part of a function that is compared as a whole"
_RESIZE = "not an admission: neither policy does anything for other operations"
_WINDOWS = "the BestEffort policy, which exists only on Windows"
_CHANCE = "two options are wrong, and the message names the one that Kubernetes finds first in a map"
_MOCK = "a fake policy answers, or no policy is asked: the test is about the manager around the policy"
_NONE = "the none policy, which decides nothing"
_START = "a configuration that is refused, or the none policy: see test_configuration.py"
NOT_COMPARED = {
    "cpumanager.TestCPUAccumulatorFreeCPUs": _PARTS,
    "cpumanager.TestCPUAccumulatorFreeCores": _PARTS,
    "cpumanager.TestCPUAccumulatorFreeNUMANodes": _PARTS,
    "cpumanager.TestCPUAccumulatorFreeSockets": _PARTS,
    "cpumanager.TestCPUAccumulatorFreeSocketsAndNUMANodes": _PARTS,
    "cpumanager.TestCPUAccumulatorTake": _PARTS,
    "cpumanager.TestCPUManagerAdd": _MOCK,
    "cpumanager.TestCPUManagerGenerate": _START,
    "cpumanager.TestCPUManagerGetAllocatableCPUs": _NONE,
    "cpumanager.TestCPUManagerHandlePolicyOptions": _START,
    "cpumanager.TestCPUManagerRemove": _MOCK,
    "cpumanager.TestNonePolicyAllocate": _NONE,
    "cpumanager.TestNonePolicyGetAllocatableCPUs": _NONE,
    "cpumanager.TestNonePolicyName": _NAME,
    "cpumanager.TestNonePolicyOptions": _START,
    "cpumanager.TestNonePolicyRemove": _NONE,
    "cpumanager.TestPolicyDefaultsAvailable": _PARTS,
    "cpumanager.TestPolicyOptionsAlwaysAvailableOnceGA": _PARTS,
    "cpumanager.TestPolicyOptionsAvailable": _PARTS,
    "cpumanager.TestReconcileState": _MOCK,
    "cpumanager.TestSMTAlignmentErrorText": "the messages, which are compared for the calls that refuse CPUs",
    "memorymanager.TestAddContainer": _MOCK,
    "memorymanager.TestConvertPreReserved": _PARTS,
    "memorymanager.TestNewManager": _START,
    "memorymanager.TestRemoveContainer": _MOCK,
    "memorymanager.TestRemoveStaleState": _MOCK,
    "memorymanager.TestStaticPolicyAllocatePod": _GATE,
    "memorymanager.TestStaticPolicyLifecycleAllocatePod": _GATE,
    "memorymanager.TestStaticPolicyName": _NAME,
    "memorymanager.TestStaticPolicyNew": _START,
    "memorymanager.TestValidatePodScopeResources": _GATE,
    "memorymanager.Test_getPodRequestedResources": _PARTS,
    "memorymanager.Test_isAffinityViolatingNUMAAllocations": _PARTS,
}
"""The tests with cases for which no call was recorded, each with the reason."""


@cache
def recorded() -> Json:
    """Return the recorded calls and tests."""
    found: Json = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return found


# --- questions about CPUs --------------------------------------------------------------------------------------------


def layout_of(topology: Json) -> CpuLayout:
    """Return the CPU layout that one of Kubernetes' tests created by hand."""
    layout = CpuLayout(count=topology["cpus"])
    for number, info in sorted((int(cpu), info) for cpu, info in topology["details"].items()):
        for groups, key in (
            (layout.by_numa, "NUMANodeID"),
            (layout.by_socket, "SocketID"),
            (layout.by_cache, "UncoreCacheID"),
            (layout.by_core, "CoreID"),
        ):
            groups[info[key]] = groups.get(info[key], 0) | 1 << number
    return layout


def cpu_policy_of(question: Json) -> StaticCpuPolicy:
    """Return the policy that a question is about."""
    options, layout = options_of(question["options"]), layout_of(question["topology"])
    return StaticCpuPolicy(layout, options, parse_cpus(question["reserved"]))


def options_of(given: Json) -> CpuOptions:
    """Return a policy's options from their recorded form."""
    return CpuOptions(
        full_pcpus_only=given["FullPhysicalCPUsOnly"],
        distribute_cpus_across_numa=given["DistributeCPUsAcrossNUMA"],
        align_by_socket=given["AlignBySocket"],
        distribute_cpus_across_cores=given["DistributeCPUsAcrossCores"],
        strict_cpu_reservation=given["StrictCPUReservation"],
        prefer_align_cpus_by_uncorecache=given["PreferAlignByUncoreCacheOption"],
    )


def cpu_state_of(question: Json) -> CpuState:
    """Return the state before a question."""
    given = question["state"]
    entries = {
        uid: {name: parse_cpus(text) for name, text in held.items()} for uid, held in given["entries"].items() if held
    }
    reusable = [(uid, parse_cpus(text)) for uid, text in question["reusable"].items()]
    return CpuState(parse_cpus(given["shared"]), entries, *reusable[:1])


def cpu_json(state: CpuState) -> Json:
    """Return a state in its recorded form."""
    entries = {uid: {name: cpu_list(cpus) for name, cpus in held.items()} for uid, held in state.assignments.items()}
    return {"shared": cpu_list(state.shared), "entries": {uid: held for uid, held in entries.items() if held}}


def hint_of(given: tuple[list[int] | None, bool]) -> TopologyHint:
    """Return a hint from its recorded form."""
    nodes, preferred = given
    return TopologyHint(None if nodes is None else NumaMask.of(map(NumaNode, nodes)), preferred=preferred)


def hints_json(hints: Hints) -> Json:
    """Return hints in their recorded form."""
    return {
        name: [[None if one.mask is None else list(one.mask), one.preferred] for one in listed or ()]
        for name, listed in hints.items()
    }


def asked_of(question: Json) -> tuple[PodRequest, ContainerRequest | None]:
    """Return the pod and the container that a question is about."""
    pod = read_pod(question["pod"])
    return pod, pod.container(question["container"]) if "container" in question else None


def cpu_options(question: Json) -> Json:
    return {"options": CpuOptions.parse(question["given"] or {}, alpha=question["alpha"], beta=question["beta"])}


def cpu_fitting_options(question: Json) -> Json:
    nodes, sockets = (dict.fromkeys(range(question["counts"][name]), 0) for name in ("nodes", "sockets"))
    layout = CpuLayout(by_numa=nodes, by_socket=sockets)
    policy = Policy(question["policy"])
    StaticCpuPolicy.of(layout, options_of(question["options"]), count=0, reserved=0, topology=policy)
    return {}


def cpu_request(question: Json) -> Json:
    pod = read_pod(question["pod"])
    return {"count": pod.cpus if pod.is_exclusive else 0}


def container_of(question: Json) -> tuple[PodRequest, ContainerRequest]:
    """Return the pod and the container for a question that is about a container."""
    pod, container = asked_of(question)
    assert container is not None
    return pod, container


def packed(question: Json) -> Json:
    layout, available = layout_of(question["topology"]), parse_cpus(question["available"])
    found = take_packed(layout, available, question["count"], spreads=question["spreads"], by_cache=question["byCache"])
    return {"cpus": cpu_list(found)}


def distributed(question: Json) -> Json:
    layout, available = layout_of(question["topology"]), parse_cpus(question["available"])
    found = take_distributed(
        layout,
        available,
        question["count"],
        question["group"],
        spreads=question["spreads"],
        by_socket=question["bySocket"],
    )
    return {"cpus": cpu_list(found)}


def cpu_start(question: Json) -> Json:
    return {"state": cpu_json(cpu_policy_of(question).start(cpu_state_of(question)))}


def cpu_allocate(question: Json) -> Json:
    policy, state, hint = cpu_policy_of(question), cpu_state_of(question), hint_of(question["hint"])
    return {"state": cpu_json(policy.allocate(state, *container_of(question), hint))}


def cpu_remove(question: Json) -> Json:
    return {"state": cpu_json(release_cpus(cpu_state_of(question), question["uid"], question["container"]))}


def cpu_hints(question: Json) -> Json:
    return {"hints": hints_json(cpu_policy_of(question).hints(cpu_state_of(question), *asked_of(question)))}


# --- questions about memory ------------------------------------------------------------------------------------------


def memory_policy_of(question: Json) -> StaticMemoryPolicy:
    """Return the policy that a question is about."""
    cells = [
        NumaCell(one["id"], (), one["memory"], {int(kib): count for kib, count in one["pages"].items()})
        for one in question["machine"]
    ] or [NumaCell(int(number)) for number in question["state"]["machineState"] or (0,)]  # only the state is compared
    reserved = {int(node): limits for node, limits in (question["reserved"] or {}).items()}
    return StaticMemoryPolicy(Machine(cells), reserved)


_TABLE = ("total", "systemReserved", "allocatable", "reserved", "free")


def memory_state_of(question: Json) -> MemoryState:
    """Return the state before a question."""
    given = question["state"]
    nodes = {
        int(number): NodeMemory(
            node["numberOfAssignments"],
            {name: MemoryTable(*(table[key] for key in _TABLE)) for name, table in (node["memoryMap"] or {}).items()},
            tuple(node["cells"] or ()),
        )
        for number, node in (given["machineState"] or {}).items()
    }
    entries = {
        uid: {
            name: tuple(Block(tuple(one["numaAffinity"]), one["type"], one["size"]) for one in blocks or ())
            for name, blocks in held.items()
        }
        for uid, held in (given["entries"] or {}).items()
        if held
    }
    uids = {one["uid"] for one in question["reusable"]}
    left = {
        (tuple(node for node in range(64) if int(one["nodes"], 2) >> node & 1), one["resource"]): one["size"]
        for one in question["reusable"]
    }
    return MemoryState(nodes, entries, *([(uids.pop(), left)] if uids else []))


def memory_json(state: MemoryState) -> Json:
    """Return a state in a form that can be compared: blocks in order, and memory by group of NUMA nodes."""
    return {
        "nodes": {
            str(number): [
                node.assignments,
                sorted(node.cells),
                {
                    name: [
                        table.total,
                        table.system_reserved,
                        table.allocatable,
                        *(
                            sum(getattr(state.nodes[one].tables[name], what) for one in node.cells)
                            for what in ("reserved", "free")
                        ),
                    ]
                    for name, table in sorted(node.tables.items())
                },
            ]
            for number, node in sorted(state.nodes.items())
        },
        "entries": {
            uid: {
                name: sorted([list(one.numa_nodes), one.type, one.size] for one in blocks)
                for name, blocks in held.items()
            }
            for uid, held in state.assignments.items()
            if held
        },
    }


def memory_reserved(question: Json) -> Json:
    cells = [NumaCell(one["id"], (), one["memory"]) for one in question["machine"]]
    reservation = {name: Quantity.parse(text) for name, text in (question["reservation"] or {}).items()}
    listed = [
        (one["numaNode"], {name: Quantity.parse(text) for name, text in (one["limits"] or {}).items()})
        for one in question["reserved"]
    ]
    try:
        StaticMemoryPolicy.of(Machine(cells), reservation, listed)
    except NumaConfigError as error:
        # Kubernetes checks this later, in NewPolicyStatic
        if "you should specify the system reserved memory" not in str(error):
            raise
    return {}


def memory_start(question: Json) -> Json:
    return {"state": memory_json(memory_policy_of(question).start(memory_state_of(question)))}


def memory_allocate(question: Json) -> Json:
    policy, state = memory_policy_of(question), memory_state_of(question)
    return {"state": memory_json(policy.allocate(state, *container_of(question), hint_of(question["hint"])))}


def memory_remove(question: Json) -> Json:
    return {"state": memory_json(release_memory(memory_state_of(question), question["uid"], question["container"]))}


def memory_hints(question: Json) -> Json:
    return {"hints": hints_json(memory_policy_of(question).hints(memory_state_of(question), *asked_of(question)))}


KINDS: dict[str, Callable[[Json], Json]] = {
    "packed": packed,
    "distributed": distributed,
    "cpu-options": cpu_options,
    "cpu-fitting-options": cpu_fitting_options,
    "cpu-request": cpu_request,
    "cpu-start": cpu_start,
    "cpu-allocate": cpu_allocate,
    "cpu-remove": cpu_remove,
    "cpu-hints": cpu_hints,
    "memory-reserved": memory_reserved,
    "memory-start": memory_start,
    "memory-allocate": memory_allocate,
    "memory-remove": memory_remove,
    "memory-hints": memory_hints,
}


# --- the comparison --------------------------------------------------------------------------------------------------


def why_not(call: Json) -> str:
    """Return why a call is not compared, or an empty string if it is compared."""
    question, kind = call["question"], call["kind"]
    has_sizes = bool((question.get("pod") or {}).get("spec", {}).get("resources"))
    if question.get("podLevel") and (has_sizes or kind.endswith("start")):
        return _GATE
    if kind == "cpu-request" and has_sizes:
        return _PARTS
    if kind.endswith(("allocate", "hints")) and question["operation"] != "add":
        return _RESIZE
    if len(question.get("given") or ()) > 1 and (call["answer"]["error"] or "").startswith("unknown"):
        return _CHANCE
    return _WINDOWS if question.get("skipExtend") else ""


def ours(call: Json) -> Json:
    """Return our answer to a recorded question."""
    try:
        return {"error": None, **KINDS[call["kind"]](call["question"])}
    except DeviceCoreError as error:
        return {"error": str(error)}


def theirs(call: Json) -> Json:
    """Return what Kubernetes answered. If the answer is an error, nothing else is compared."""
    answer = dict(call["answer"])
    if answer.get("error"):
        return {"error": answer["error"]}
    if "hints" in answer:
        hints = {name: listed or [] for name, listed in (answer["hints"] or {}).items()}
        return {"error": None, "hints": hints}
    if "state" in answer and call["kind"].startswith("memory"):
        state = memory_state_of({"state": answer["state"], "reusable": []})
        return {"error": None, "state": memory_json(state)}
    if "state" in answer:
        entries = {uid: held for uid, held in answer["state"]["entries"].items() if held}
        return {"error": None, "state": {**answer["state"], "entries": entries}}
    if "options" in answer:
        return {"error": None, "options": options_of(answer["options"])}
    return {"error": None, **answer}


@pytest.mark.parametrize("kind", KINDS)
def test_each_question_of_kubernetes_tests_has_the_same_answer(kind: str) -> None:
    compared = [call for call in recorded()["calls"] if call["kind"] == kind and not why_not(call)]
    assert compared
    for call in compared:
        assert ours(call) == theirs(call), (call["asked"], call["question"])


def test_each_case_of_kubernetes_tables_is_compared_or_listed() -> None:
    """A case is a table row, or a whole test that has no table."""
    compared, excused = set[tuple[str, str]](), set[tuple[str, str]]()
    for call in recorded()["calls"]:
        (excused if why_not(call) else compared).update(map(tuple, call["asked"]))
    cases = [(test, case) for test, rows in recorded()["tests"].items() for case in rows or [""]]
    left = {one for one in cases if one not in compared | excused}
    assert sorted(one for one in left if one[0] not in NOT_COMPARED) == []
    assert sorted(NOT_COMPARED.keys() - {test for test, _ in left}) == []
    assert len(compared) > 300  # there are 484 cases
