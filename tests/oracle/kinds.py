"""The kinds of behaviour that are compared: each makes cases, and judges the answers to one."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import NamedTuple

from tests.oracle import allocators, applies, claims, devices, dra, files, numa, patches, text, topology
from tests.oracle.asking import Json, Oracle, Verdict


class Kind(NamedTuple):
    """One kind: `case` makes the same case of the same random numbers."""

    case: Callable[[Random], Json]
    judge: Callable[[Json, Oracle], Verdict]


KINDS = {
    "devices": Kind(devices.history, devices.judge),
    "admission": Kind(devices.admissions, devices.judge),
    "cpus": Kind(numa.cpus, numa.judge),
    "memory": Kind(numa.memory, numa.judge),
    "admission-numa": Kind(numa.admissions, numa.judge),
    "topology": Kind(topology.case, topology.judge),
    "topology-options": Kind(topology.options, topology.judge_options),
    "claims": Kind(claims.case, claims.judge),
    "allocators": Kind(allocators.case, allocators.judge),
    "cel": Kind(claims.expression, claims.judge_expression),
    "dra": Kind(dra.history, dra.judge),
    "checkpoint": Kind(files.checkpoint, files.judge_checkpoint),
    "checkpoint-file": Kind(files.damaged_checkpoint, files.judge_damaged_checkpoint),
    "state": Kind(files.claims, files.judge_claims),
    "state-file": Kind(files.damaged_claims, files.judge_damaged_claims),
    "patch": Kind(patches.case, patches.judge),
    "apply": Kind(applies.case, applies.judge),
    "quantity": Kind(text.quantity, text.judge_quantity),
    "name": Kind(text.name, text.judge_name),
}

USUAL = {"D18": 0.15, "D2": 0.02, "D20": 0.02, "D21": 0.02, "D22": 0.3, "D23": 0.01, "D26": 0.04}
"""The share of the cases of a kind that a cause explains, at most. A cause that is not named here explains 1 %."""

OFTEN = 3  # times its usual share
_FEW = 5  # cases, which say nothing of a share


def too_often(causes: Mapping[str, int], total: int) -> Iterator[str]:
    """Name the causes that explain more than three times as many cases as they do usually: they excuse other things."""
    counts = Counter[str]()
    for cause, count in causes.items():
        for row in re.split(r"\+|, ", cause):
            counts[row] += count
    for row, count in sorted(counts.items()):
        usual = USUAL.get(row, 0.01)
        if count > OFTEN * usual * total + _FEW:
            yield f"{row}: {count:,} of {total:,} cases, more than {OFTEN} times the usual share of {usual:.0%}"
