"""The known differences between the API server for tests and a real API server, by rows of docs/dra-fixtures.md."""

import json
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
    """A request, one difference between the servers' answers, and both answers."""

    asked: Asked
    difference: Difference
    ours: Json
    real: Json


def _path(pattern: str) -> Callable[[Answered], bool]:
    """Return a function that tests whether a difference is at such a path in an answer or a watch event's object."""
    whole = re.compile(rf"answer(\[[^\]]*\]\.object)?\.({pattern})")
    return lambda one: bool(whole.fullmatch(one.difference.path))


def _is_nothing(value: Json) -> bool:
    """Return whether a value contains nothing but zero values, which Go writes for an empty struct."""
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
    r"metadata\.managedFields\.[^.]+\.fieldsV1\.f:spec\.(f:containers\.k:\{\"name\":\"main\"\}\."
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


def _says(ours: str, real: str) -> Callable[[Answered], bool]:
    """Return a function that tests whether both servers reject the request, with messages that differ in this way.

    The groups that both patterns name must match the same text in both messages.
    """
    first, second = re.compile(ours, re.DOTALL), re.compile(real, re.DOTALL)

    def recognizes(one: Answered) -> bool:
        found = one.difference
        is_message = _is_refused_by_both(one) and found.path in ("answer.message", "answer.details.causes[].message")
        mine, theirs = (first.match(found.ours), second.match(found.real)) if is_message else (None, None)
        if mine is None or theirs is None:
            return False
        named = {name: text for name, text in theirs.groupdict().items() if text is not None}
        return {name: mine[name] for name in named} == named

    return recognizes


_HOW = (
    r"(?P<how> \"\" is invalid: patch: Invalid value|Invalid value|"
    r"\w+ in version \"\w+\" cannot be handled as a \w+): .*"
)
_WRONG_TYPE = _says(
    _HOW + r"json: cannot unmarshal (?P<type>\w+) into field (?P<field>[\w.]+): ",
    _HOW
    + r"(json: cannot unmarshal (?P<type>\w+) into Go struct field \w+\.(?P<field>[\w.]+) of type |"
    + r"cannot restore map from int64)",
)
_PATCH = _says(
    "(?P<how>the server rejected our request|error decoding patch: json: cannot unmarshal)[: ]",
    "(?P<how>the server rejected our request|error decoding patch: json: cannot unmarshal) ",
)
_NO_JSON = _says(
    r"couldn't get version/kind; json parse error: |the object provided is unrecognized: expected a JSON object",
    r"the object provided is unrecognized \(must be of type \w+\): couldn't get version/kind; json parse error: |"
    r"invalid JSON patch$",
)


def _has_other_order(one: Answered) -> bool:
    """Return whether both servers name the same conflicts, in any order: Go visits the managers in random order."""
    if not (_is_refused_by_both(one) and one.difference.path.startswith("answer.details.causes[")):
        return False
    both = [
        [json.dumps(cause, sort_keys=True) for cause in answer["answer"]["details"]["causes"]]
        for answer in (one.ours, one.real)
    ]
    return sorted(both[0]) == sorted(both[1])


_IS_OWNER_OF_NONE = _path(r"metadata\.managedFields\.[^.]+\.fieldsV1(\.f:\w+)?\.f:none")
_IS_OWNER = _path(r"metadata\.managedFields\.[^.]+(\.fieldsV1)?(\.f:\w+)?")
_IS_NONE = _path(r"((spec|data)\.)?none|spec|data")
_IS_GENERATION = _path(r"metadata\.generation")


def _is_dropped(one: Answered) -> bool:
    """Return whether the only reason for a difference is the unknown field `none`, which only Kubernetes drops."""
    found, real = one.difference, one.real
    if '"none": 1' not in str(one.asked):
        return False
    if "Strict" in one.asked.query.values() and real["code"] == _REFUSED:
        return "strict decoding error: unknown field" in real["answer"]["message"] and one.ours["code"] != _REFUSED
    is_part = found.is_only_ours and (_IS_NONE(one) or _IS_OWNER_OF_NONE(one) or _IS_OWNER(one))
    is_change = _IS_GENERATION(one) and found.ours == found.real + 1
    return is_change or (is_part and set(_leaves(found.ours, found.path.rpartition(".")[2])) <= {"none", "f:none"})


def _leaves(value: Json, name: str) -> list[str]:
    """Return the names of the leaf fields of a value, or of the leaf fields that a manager owns."""
    if isinstance(value, dict) and "fieldsV1" in value:
        value = value["fieldsV1"]
    below = {key: one for key, one in value.items() if key != "."} if isinstance(value, dict) else {}
    return [leaf for key, one in below.items() for leaf in _leaves(one, key)] if below else [name]


CAUSES: dict[str, Callable[[Answered], object]] = {
    "defaults": _is_default,
    "empty status": _is_empty_status,
    "null times": _is_null_time,
    "no JSON": _NO_JSON,
    "another kind": _says(
        r"the (kind|apiVersion) in the data \(\S+\) does not match the expected ",
        r"\w+ in version \"\S+\" cannot be handled as a \w+: no kind \"\w+\" is registered for version ",
    ),
    "JSON patch": _PATCH,
    "media type": _says("the body of the request was in an unknown format", "415: Unsupported Media Type$"),
    "order of conflicts": _has_other_order,
    "unknown fields": _is_dropped,
    "wrong types": _WRONG_TYPE,
}
"""By row of docs/dra-fixtures.md, a function that tests whether the row explains a difference."""


def cause_of(one: Answered) -> str:
    """Return the cause of a difference, or an empty string if the cause is unknown."""
    return next((cause for cause, recognizes in CAUSES.items() if recognizes(one)), "")
