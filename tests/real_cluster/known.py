"""Known differences between the API server for tests and a real one, by the rows of docs/dra-fixtures.md."""

import re
from collections.abc import Callable
from typing import Any

from attrs import frozen

from tests.real_cluster.differences import Difference
from tests.real_cluster.requests import Asked

Json = Any

_REFUSED = 400


@frozen
class Answered:
    """A request, one difference of its answers, and both answers.

    `is_disturbed` is whether objects of the kind were removed since the last list, because earlier answers differed.
    """

    asked: Asked
    difference: Difference
    ours: Json
    real: Json
    is_disturbed: bool = False


CAUSES: dict[str, Callable[[Answered], object]] = {}
"""What each row of the page recognises."""


def cause_of(one: Answered) -> str:
    """Return the cause of a difference, or an empty text if it is not known."""
    return next((cause for cause, recognises in CAUSES.items() if recognises(one)), "")


def _is_missing_here(*paths: str) -> Callable[[Answered], bool]:
    """Return whether the real server has a value at one of the paths, and ours has none."""
    pattern = re.compile("|".join(paths))
    return lambda one: one.difference.is_only_real and bool(pattern.search(one.difference.path))


def _is_refused_by_both(one: Answered) -> bool:
    return one.ours["code"] == one.real["code"] >= _REFUSED and one.difference.path.startswith("answer.")


def _is_empty(one: Answered) -> bool:
    values = (one.difference.ours, one.difference.real)
    return any(value in ({}, [], None, "") for value in values) and (
        one.difference.is_only_real or one.difference.is_only_ours
    )


def _is_time_of_owners(one: Answered) -> bool:
    return one.difference.is_only_ours and bool(re.search(r"managedFields\[.*\]\.time$", one.difference.path))


def _sends(*words: str) -> Callable[[Answered], bool]:
    return lambda one: any(word in str(one.asked) for word in words)


_DEFAULTS = (
    r"containers\[?.*(imagePullPolicy|terminationMessage)",
    r"(spec\.|f:)(enableServiceLinks|securityContext)",
    r"status$",
    r"status\.(daemonEndpoints|nodeInfo|allocation)",
    r"conditions\[.*(lastTransitionTime|lastHeartbeatTime|lastProbeTime)$",
)
CAUSES.update(
    {
        "watches": lambda one: one.is_disturbed and "watch" in one.asked.query,
        "defaults": _is_missing_here(*_DEFAULTS),
        "empty values": _is_empty,
        "words of an error": _is_refused_by_both,
        "time of owners": _is_time_of_owners,
        "last answer": lambda one: "deletionTimestamp" in str(one.real) and "managedFields" in one.difference.path,
        "quantities": _sends('"acme.io/gpu": "x"'),
        "`limit`": lambda one: "limit" in one.asked.query,
        "unknown fields": _sends('"none": 1'),
        "`$patch: replace`": _sends('"$patch": "replace"'),
        "copy of nothing": _sends('"op": "copy"'),
        "wrong types": _sends('"labels": 5'),
    }
)
