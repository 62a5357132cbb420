"""`resource.k8s.io` objects in the versions of that group. The objects are stored as `v1`.

Law: an object is unchanged by a round trip through a version, except for fields that the version lacks.
    `v1beta2` has the same shape as `v1`. In `v1beta1`, a device's fields are in `basic`, and a request's fields are not
    in `exactly`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from devicecore_tools.testing.api_server.faults import Request
from devicecore_tools.testing.api_server.status import Json, bad_request

RESOURCE_VERSIONS = ("v1", "v1beta2", "v1beta1")
"""The known versions, newest first."""

LISTS: Mapping[str, tuple[str, ...]] = {
    "resourceslices": ("spec", "devices"),
    "resourceclaims": ("spec", "devices", "requests"),
    "resourceclaimtemplates": ("spec", "spec", "devices", "requests"),
}
"""The path to the devices in a slice, or to the requests in a claim or template, by plural."""

_OLD = "v1beta1"
_EXACT = ("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity")
"""The request fields that moved into `exactly` in v1beta2."""


def as_kept(value: Json, plural: str, version: str) -> Json:
    """Convert an object that a client sent in a version to the form the server stores.

    Raises ApiError if a field has a wrong type.
    """
    return _converted(value, plural, version, _device_from_old, _request_from_old)


def as_served(value: Json, plural: str, version: str) -> Json:
    """Return a stored object as a client sees it in a version."""
    return _converted(value, plural, version, _device_to_old, _request_to_old)


def _converted(
    value: Json, plural: str, version: str, device: Callable[[Json], Json], request: Callable[[Json], Json]
) -> Json:
    if version != _OLD or plural not in LISTS:
        return value
    return _changed(value, LISTS[plural], device if plural == "resourceslices" else request)


def _changed(value: Json, path: tuple[str, ...], change: Callable[[Json], Json]) -> Json:
    """Return a copy in which each object in the list at a path has been changed.

    Values of other types are left unchanged.
    """
    first, *rest = path
    below = value.get(first)
    if rest and isinstance(below, dict):
        return {**value, first: _changed(below, tuple(rest), change)}
    if not rest and isinstance(below, list):
        return {**value, first: [change(one) if isinstance(one, dict) else one for one in below]}
    return value


def _device_from_old(device: Json) -> Json:
    basic = device.get("basic") or {}
    if not isinstance(basic, dict):
        raise bad_request("json: cannot unmarshal into Go struct field Device.spec.devices.basic: expected an object")
    return _named(device) | {name: field for name, field in basic.items() if name != "name"}


def _device_to_old(device: Json) -> Json:
    return _named(device) | {"basic": {name: field for name, field in device.items() if name != "name"}}


def _request_from_old(request: Json) -> Json:
    exact = {name: request[name] for name in _EXACT if request.get(name) is not None}
    alternatives = {name: request[name] for name in ("firstAvailable",) if request.get(name)}
    return _named(request) | alternatives | ({} if alternatives and not exact else {"exactly": exact})


def _request_to_old(request: Json) -> Json:
    rest: Mapping[str, Any] = {name: field for name, field in request.items() if name != "exactly"}
    return {**rest, **(request.get("exactly") or {})}


def _named(value: Json) -> Json:
    return {"name": value["name"]} if "name" in value else {}


def version_of(request: Request) -> str:
    """Return the version of `resource.k8s.io` that a client requested, or an empty string."""
    match request.path.split("/"):
        case [_, "apis", "resource.k8s.io", version, _, *_]:
            return version
        case _:
            return ""
