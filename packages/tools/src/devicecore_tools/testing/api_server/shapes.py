"""The types of the fields of objects, as far as the rules of their kinds rely on them.

Law: an object without a complaint from here can be given to the rules and to the defaults.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from devicecore_tools.testing.api_server.status import Json

Shape = type | Mapping[str, Any] | list[Any]
"""A scalar type; the fields of an object, of which `*` are all others; or a list with the shape of its items."""

_NAMES: Mapping[type, str] = {
    bool: "bool",  # before int, whose subclass it is
    str: "string",
    int: "number",
    float: "number",
    dict: "object",
    list: "array",
}

_MAP: Shape = {"*": {}}
_SELECTOR: Shape = {"cel": {"expression": str}}
_CONSUMED: Shape = {"counterSet": str, "counters": _MAP}
_TAINT: Shape = {"key": str, "value": str, "effect": str}
_ATTRIBUTE: Shape = {"int": int, "bool": bool, "string": str, "version": str}
_DEVICE: Shape = {
    "name": str,
    "attributes": {"*": _ATTRIBUTE},
    "capacity": {"*": {"requestPolicy": {}}},
    "taints": [_TAINT],
    "consumesCounters": [_CONSUMED],
    "nodeName": str,
    "nodeSelector": {},
    "allNodes": bool,
    "bindingConditions": [str],
    "bindingFailureConditions": [str],
    "allowMultipleAllocations": bool,
}
_EXACT: Shape = {
    "name": str,
    "deviceClassName": str,
    "selectors": [_SELECTOR],
    "allocationMode": str,
    "count": int,
    "adminAccess": bool,
    "tolerations": [{"key": str, "operator": str, "value": str, "effect": str}],
    "capacity": {"requests": {}},
}
_CONFIG: Shape = {"requests": [str], "opaque": {"driver": str}}
_CLAIM: Shape = {
    "devices": {
        "requests": [{"name": str, "exactly": _EXACT, "firstAvailable": [_EXACT]}],
        "constraints": [{"requests": [str], "matchAttribute": str, "distinctAttribute": str}],
        "config": [_CONFIG],
    }
}
_CLAIM_STATUS: Shape = {
    "allocation": {
        "devices": {"results": [{"request": str, "driver": str, "pool": str, "device": str}], "config": [{}]}
    },
    "devices": [{"driver": str, "pool": str, "device": str, "conditions": [{"type": str}], "networkData": {}}],
    "reservedFor": [{"resource": str, "name": str, "uid": str}],
}
_CONTAINER: Shape = {
    "name": str,
    "image": str,
    "resources": {"limits": {}, "requests": {}, "claims": [{"name": str, "request": str}]},
}
_CONDITIONS: Shape = [{"type": str, "status": str, "reason": str, "message": str, "observedGeneration": int}]
_HEALTH: Shape = [{"name": str, "resources": [{"resourceID": str, "health": str}]}]
_CONTAINER_STATUS: Shape = {
    "name": str,
    "image": str,
    "imageID": str,
    "ready": bool,
    "restartCount": int,
    "state": {"terminated": {"exitCode": int}},
    "allocatedResourcesStatus": _HEALTH,
}
_STATUSES: Mapping[str, Shape] = {
    "resourceclaims": _CLAIM_STATUS,
    "nodes": {"conditions": _CONDITIONS},
    "pods": {
        "phase": str,
        "conditions": _CONDITIONS,
        "containerStatuses": [_CONTAINER_STATUS],
    },
}
_METADATA: Shape = {
    "name": str,
    "generateName": str,
    "namespace": str,
    "uid": str,
    "resourceVersion": str,
    "labels": {"*": str},
    "annotations": {"*": str},
    "finalizers": [str],
    "ownerReferences": [{"uid": str}],
}
_SHAPES: Mapping[str, Shape] = {
    "resourceslices": {
        "driver": str,
        "nodeName": str,
        "nodeSelector": {},
        "allNodes": bool,
        "perDeviceNodeSelection": bool,
        "pool": {"name": str, "generation": int, "resourceSliceCount": int},
        "devices": [_DEVICE],
        "sharedCounters": [{"name": str, "counters": _MAP}],
    },
    "resourceclaims": _CLAIM,
    "resourceclaimtemplates": {"spec": _CLAIM},
    "deviceclasses": {"selectors": [_SELECTOR], "config": [_CONFIG]},
    "pods": {
        "nodeName": str,
        "restartPolicy": str,
        "terminationGracePeriodSeconds": int,
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "resourceClaims": [{"name": str}],
    },
    "nodes": {"taints": [_TAINT]},
    "customresourcedefinitions": {
        "group": str,
        "scope": str,
        "names": {"kind": str, "plural": str, "shortNames": [str]},
        "versions": [{"name": str, "served": bool, "storage": bool, "subresources": {"status": {}}}],
    },
}


def wrong_types(plural: str, value: Json) -> Iterator[str]:
    """Say for each field of an object that has a value of a wrong type which type was expected. Null is no value."""
    shape = {"metadata": _METADATA, "spec": _SHAPES.get(plural, {}), "status": _STATUSES.get(plural, {})}
    yield from _wrong(value, shape, "")


def _wrong(value: Any, shape: Shape, path: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    expected = shape if isinstance(shape, type) else list if isinstance(shape, list) else dict
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        actual = next((name for kind, name in _NAMES.items() if isinstance(value, kind)), "null")
        yield f"cannot unmarshal {actual} into field {path or 'of the object'}: expected {_NAMES[expected]}"
    elif expected is int and isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield f"cannot unmarshal a number of {value.bit_length()} bits into field {path}: expected one of 64 bits"
    elif isinstance(shape, list) and isinstance(value, list):
        for number, one in enumerate(value):
            yield from _wrong(one, shape[0], f"{path}[{number}]")
    elif isinstance(shape, Mapping) and isinstance(value, Mapping):
        for key, below in value.items():
            if below is not None and (field := shape.get(key, shape.get("*"))) is not None:
                yield from _wrong(below, field, f"{path}.{key}" if path else key)
