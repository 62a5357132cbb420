"""Objects with fields of wrong types: the API server refuses them, and none of them is a bug of the server."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from devicecore_tools.testing.api_server import ApiError, Json, LocalApiServer

OPAQUE = {"opaque": {"driver": "d.example.org", "parameters": {"a": 1}}}
SLICE = {
    "kind": "ResourceSlice",
    "metadata": {
        "name": "s",
        "labels": {"a": "b"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
    },
    "spec": {
        "driver": "d.example.org",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "sharedCounters": [{"name": "c", "counters": {"m": {"value": "1Gi"}}}],
        "devices": [
            {
                "name": "a",
                "attributes": {"x": {"string": "y"}, "v": {"version": "1.0.0"}, "l": {"strings": ["a"]}},
                "capacity": {
                    "m": {
                        "value": "1",
                        "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "2", "step": "1"}},
                    },
                    "o": {"value": "1", "requestPolicy": {"default": "1", "validValues": ["1"]}},
                },
                "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
                "consumesCounters": [{"counterSet": "c", "counters": {"m": {"value": "1"}}}],
                "bindingConditions": ["a"],
                "bindingFailureConditions": ["b"],
                "allowMultipleAllocations": True,
            }
        ],
    },
}
CLAIM = {
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "default"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "r",
                    "exactly": {
                        "deviceClassName": "c",
                        "count": 1,
                        "selectors": [{"cel": {"expression": "true"}}],
                        "tolerations": [{"key": "k", "operator": "Exists"}],
                        "capacity": {"requests": {"m": "1"}},
                    },
                },
                {"name": "q", "firstAvailable": [{"name": "z", "deviceClassName": "c"}]},
            ],
            "constraints": [{"requests": ["r"], "matchAttribute": "a/b"}],
            "config": [{"requests": ["r"], "opaque": {"driver": "d", "parameters": {"a": 1}}}],
        }
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "request": "r",
                        "driver": "d",
                        "pool": "p",
                        "device": "x",
                        "shareID": "11111111-1111-4111-8111-111111111111",
                        "consumedCapacity": {"m": "1"},
                    }
                ],
                "config": [
                    {"source": "FromClaim", "requests": ["r"], "opaque": {"driver": "d", "parameters": {"a": 1}}}
                ],
            },
            "nodeSelector": {},
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        "devices": [
            {
                "driver": "d",
                "pool": "p",
                "device": "x",
                "conditions": [{"type": "R", "status": "True"}],
                "data": {"a": 1},
                "networkData": {"ips": ["1"]},
            }
        ],
    },
}
TEMPLATE = {
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "t", "namespace": "default"},
    "spec": {"spec": CLAIM["spec"]},
}
CLASS = {
    "kind": "DeviceClass",
    "metadata": {"name": "c"},
    "spec": {"selectors": [{"cel": {"expression": "true"}}], "config": [OPAQUE]},
}
WRONG = [5, 1.5, True, "x", [], {}, None, [None], [5], ["x"], [[]], [{}], {"a": 5}, {"a": None}, {"": {}}]


def paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    """The paths of everything below the fields of an object."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in below:
        if above or isinstance(item, dict):
            yield (*above, key)
            yield from paths(item, (*above, key))


@pytest.mark.parametrize("body", [SLICE, CLAIM, TEMPLATE, CLASS], ids=lambda body: body["kind"])
def test_a_value_of_a_wrong_type_is_refused_or_taken(body: Json) -> None:
    server = LocalApiServer()
    for path in paths(body):
        for wrong in WRONG if len(path) > 1 else ():
            changed = copy.deepcopy(body)
            place = changed
            for part in path[:-1]:
                place = place[part]
            place[path[-1]] = wrong
            try:
                made = server.create(changed)["metadata"]
            except ApiError:
                continue
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as bug:
                pytest.fail(f"{path} = {json.dumps(wrong)}: {bug!r}")
            server.delete(body["kind"], made["name"], made.get("namespace", "default"))


def test_the_answer_names_the_field_and_the_type() -> None:
    body = {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {"devices": [{"name": "a"}, 7]}}
    with pytest.raises(ApiError, match=r"number into field spec\.devices\[1\]: expected object") as refused:
        LocalApiServer().create(body)
    assert refused.value.code == 400
