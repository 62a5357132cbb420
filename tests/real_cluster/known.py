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


def _path(pattern: str) -> Callable[[Answered], bool]:
    """Return whether the difference is at such a place, in the answer or in the object of a watch."""
    whole = re.compile(rf"answer(\[[^\]]*\]\.object)?\.({pattern})")
    return lambda one: bool(whole.fullmatch(one.difference.path))


def _is_nothing(value: Json) -> bool:
    """Whether a value is what Go writes of a struct that nobody has filled."""
    if isinstance(value, dict):
        return all(map(_is_nothing, value.values()))
    return value in ("", 0, [], None)


_DEFAULTS: dict[str, tuple[Json, ...]] = {
    "containers[main].imagePullPolicy": ("Always", "IfNotPresent"),
    "containers[main].terminationMessagePath": ("/dev/termination-log",),
    "containers[main].terminationMessagePolicy": ("File",),
    "enableServiceLinks": (True,),
    "securityContext": ({},),
}
_OWNED_DEFAULTS = _path(
    r"metadata\.managedFields\[\]\.fieldsV1\.f:spec\.(f:containers\.k:\{\"name\":\"main\"\}\."
    r"f:(imagePullPolicy|terminationMessagePath|terminationMessagePolicy)|f:enableServiceLinks|f:securityContext)"
)


def _is_default(one: Answered) -> bool:
    found = one.difference
    name = re.sub(r"^answer(\[[^\]]*\]\.object)?\.spec\.", "", found.path)
    has_value = _DEFAULTS.get(name) is not None and found.real in _DEFAULTS[name]
    return found.is_only_real and "/pods" in one.asked.where and (has_value or _OWNED_DEFAULTS(one))


def _is_empty_status(one: Answered) -> bool:
    is_there = _path(r"status(\.(daemonEndpoints|nodeInfo|allocation))?")
    return one.difference.is_only_real and is_there(one) and _is_nothing(one.difference.real)


def _is_null_time(one: Answered) -> bool:
    is_there = _path(r"status\.conditions\[\w+\]\.(lastTransitionTime|lastHeartbeatTime|lastProbeTime)")
    return one.difference.is_only_real and is_there(one) and one.difference.real is None


def _is_refused_by_both(one: Answered) -> bool:
    return bool(one.ours["code"] == one.real["code"] >= _REFUSED)


def _is_no_detail(one: Answered) -> bool:
    found = one.difference
    return _is_refused_by_both(one) and found.is_only_real and found.path == "answer.details" and found.real == {}


def _says(ours: str, real: str) -> Callable[[Answered], bool]:
    """Return whether both servers refuse, and the difference is this one of their messages."""
    first, second = re.compile(ours, re.DOTALL), re.compile(real, re.DOTALL)

    def recognises(one: Answered) -> bool:
        found = one.difference
        is_message = _is_refused_by_both(one) and found.path == "answer.message"
        return is_message and bool(first.match(found.ours) and second.match(found.real))

    return recognises


_NO_JSON = _says(
    r"couldn't get version/kind; json parse error: |the object provided is unrecognized: expected a JSON object",
    r"the object provided is unrecognized \(must be of type \w+\): couldn't get version/kind; json parse error: |"
    r"invalid JSON patch$",
)


def _has_other_order(one: Answered) -> bool:
    """Whether both name the same conflicts. Go walks the managers in any order."""
    if not (_is_refused_by_both(one) and one.difference.path.startswith("answer.details.causes[")):
        return False
    first, second = (sorted(map(str, answer["answer"]["details"]["causes"])) for answer in (one.ours, one.real))
    return first == second


def _is_dropped(one: Answered) -> bool:
    """Whether a field that Kubernetes does not know is there, or a manager owns it."""
    path, real = one.difference.path, one.real
    if real["code"] == _REFUSED and "strict decoding error: unknown field" in real["answer"]["message"]:
        return True
    is_there = _path(r"(spec\.|data\.)?none|spec|metadata\.(generation|managedFields\[.*)")
    return (
        '"none": 1' in str(one.asked)
        and is_there(one)
        and (one.difference.ours in ({"none": 1}, 1) or "metadata" in path)
    )


def _is_refused(ours: int, real: int, word: str) -> Callable[[Answered], bool]:
    """Return whether the servers answer with these codes, and a body has a word."""
    return lambda one: (one.ours["code"], one.real["code"]) == (ours, real) and word in str(one.asked)


_IN_MANAGED = _path(r"metadata\.managedFields\[.*")
_IN_LABELS = _path(r"metadata\.(labels|managedFields\[.*)")
_OF_A_PAGE = _path(r"metadata\.(continue|remainingItemCount)|items\[[^\]]*\]")
_OF_THE_NEXT_PAGE = _path(r"items\[.*")

CAUSES: dict[str, Callable[[Answered], object]] = {
    "defaults": _is_default,
    "empty status": _is_empty_status,
    "null times": _is_null_time,
    "no details": _is_no_detail,
    "no owners": lambda one: (
        one.difference.is_only_ours and one.difference.ours == [] and _path(r"metadata\.managedFields")(one)
    ),
    "no JSON": _NO_JSON,
    "another kind": _says(
        r"the (kind|apiVersion) in the data \(\S+\) does not match the expected ",
        r"\w+ in version \"\S+\" cannot be handled as a \w+: no kind \"\w+\" is registered for version ",
    ),
    "JSON patch": _says(
        "the server rejected our request: ", "the server rejected our request due to an error in our request$"
    ),
    "media type": _says("the body of the request was in an unknown format", "415: Unsupported Media Type$"),
    "order of conflicts": _has_other_order,
    "time of owners": lambda one: one.difference.is_only_ours and _path(r"metadata\.managedFields\[.*\]\.time")(one),
    "last answer": lambda one: "deletionTimestamp" in str(one.real) and _IN_MANAGED(one),
    "quantities": _is_refused(404, _REFUSED, '"acme.io/gpu": "x"'),
    "`limit`": lambda one: (
        ("limit" in one.asked.query and _OF_A_PAGE(one)) or ("continue" in one.asked.query and _OF_THE_NEXT_PAGE(one))
    ),
    "unknown fields": _is_dropped,
    "`$patch: replace`": lambda one: '"$patch": "replace"' in str(one.asked) and _IN_LABELS(one),
    "copy of nothing": _is_refused(422, 200, '"op": "copy"'),
    "wrong types": _is_refused(_REFUSED, 422, '"labels": 5'),
    "watches": lambda one: one.is_disturbed and "watch" in one.asked.query,
}
"""What each row of the page recognises."""


def cause_of(one: Answered) -> str:
    """Return the cause of a difference, or an empty text if it is not known."""
    return next((cause for cause, recognises in CAUSES.items() if recognises(one)), "")
