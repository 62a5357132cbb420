"""The kinds of behaviour that are compared: each makes cases, and judges the answers to one."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tests.oracle import claims, devices
from tests.oracle.asking import Json, Oracle, Verdict


class Kind(NamedTuple):
    """One kind: `case` makes the same case of the same random numbers."""

    case: Callable[[Random], Json]
    judge: Callable[[Json, Oracle], Verdict]


KINDS = {
    "devices": Kind(devices.history, devices.judge),
    "admission": Kind(devices.admissions, devices.judge),
    "claims": Kind(claims.case, claims.judge),
    "cel": Kind(claims.expression, claims.judge_expression),
}
