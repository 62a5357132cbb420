"""The kinds of behaviour that are compared: each makes cases, and judges the answers to one."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tests.oracle import allocators, applies, claims, devices, dra, files, patches, text, topology
from tests.oracle.asking import Json, Oracle, Verdict


class Kind(NamedTuple):
    """One kind: `case` makes the same case of the same random numbers."""

    case: Callable[[Random], Json]
    judge: Callable[[Json, Oracle], Verdict]


KINDS = {
    "devices": Kind(devices.history, devices.judge),
    "admission": Kind(devices.admissions, devices.judge),
    "topology": Kind(topology.case, topology.judge),
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
