"""The kinds of behavior that are compared. Each kind creates cases and judges the answers to them."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import NamedTuple

from tests.oracle import allocators, applies, claims, devices, dra, extended, files, numa, patches, text, topology
from tests.oracle.asking import Json, Oracle, Verdict


class Kind(NamedTuple):
    """One kind of behavior. Given equal random numbers, `case` creates equal cases."""

    case: Callable[[Random], Json]
    judge: Callable[[Json, Oracle], Verdict]
    function: str  # the code in Kubernetes


KINDS = {
    "devices": Kind(devices.history, devices.judge, "devicemanager.ManagerImpl.devicesToAllocate"),
    "admission": Kind(
        devices.admissions, devices.judge, "topologymanager.scope.Admit, devicemanager.ManagerImpl.GetTopologyHints"
    ),
    "cpus": Kind(numa.cpus, numa.judge, "cpumanager.staticPolicy.Allocate"),
    "memory": Kind(numa.memory, numa.judge, "memorymanager.staticPolicy.Allocate"),
    "admission-numa": Kind(numa.admissions, numa.judge, "topologymanager.scope.Admit"),
    "topology": Kind(topology.case, topology.judge, "topologymanager.HintMerger.Merge"),
    "topology-options": Kind(topology.options, topology.judge_options, "topologymanager.NewManager"),
    "claims": Kind(claims.case, claims.judge, "structured.Allocator.Allocate"),
    "allocators": Kind(allocators.case, allocators.judge, "structured.Allocator.Allocate"),
    "extended": Kind(
        extended.case,
        extended.judge,
        "dynamicresources.createRequestsAndMappings, noderesources.shouldDelegateResourceToDRA",
    ),
    "cel": Kind(
        claims.expression, claims.judge_expression, "dynamic-resource-allocation/cel.CompilationResult.DeviceMatches"
    ),
    "dra": Kind(dra.history, dra.judge, "dra.Manager.prepareResources, unprepareResources"),
    "checkpoint": Kind(files.checkpoint, files.judge_checkpoint, "devicemanager/checkpoint.Data.MarshalCheckpoint"),
    "checkpoint-file": Kind(
        files.damaged_checkpoint, files.judge_damaged_checkpoint, "devicemanager/checkpoint.Data.UnmarshalCheckpoint"
    ),
    "state": Kind(files.claims, files.judge_claims, "dra/state.CheckpointV1.MarshalCheckpoint"),
    "state-file": Kind(files.damaged_claims, files.judge_damaged_claims, "dra/state.CheckpointV1.UnmarshalCheckpoint"),
    "patch": Kind(patches.case, patches.judge, "strategicpatch.StrategicMergePatch"),
    "apply": Kind(applies.case, applies.judge, "managedfields.FieldManager.Apply"),
    "quantity": Kind(text.quantity, text.judge_quantity, "resource.ParseQuantity"),
    "name": Kind(text.name, text.judge_name, "validation.IsQualifiedName"),
}

_OF_OTHERS = {"D2": 0.02, "D18": 0.02, "D20": 0.02, "D21": 0.02, "D22": 0.3, "D23": 0.06, "D26": 0.04}
USUAL = _OF_OTHERS | {"D25": 0.03, "N3": 0.1, "N13": 0.03}
"""By cause, the largest share of a kind's cases that the cause usually explains. For other causes, the share is 1%."""

OFTEN = 3  # a cause may explain at most this many times its usual share
_FEW = 5  # cases, too few to measure a share


def too_often(causes: Mapping[str, int], total: int) -> Iterator[str]:
    """Yield a line for each cause that explains so many cases that it might hide other differences."""
    counts = Counter[str]()
    for cause, count in causes.items():
        for row in re.split(r"\+|, ", cause):
            counts[row] += count
    for row, count in sorted(counts.items()):
        usual = USUAL.get(row, 0.01)
        if count > OFTEN * usual * total + _FEW:
            yield f"{row}: {count:,} of {total:,} cases, more than {OFTEN} times the usual share of {usual:.0%}"
