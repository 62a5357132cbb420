"""What a client may change in the status of a ResourceClaim, since Kubernetes 1.36.

Law: a change of `status.allocation` or `status.reservedFor` needs the resource `resourceclaims/binding`, and a change
of the entries of a driver in `status.devices` needs `resourceclaims/driver` under the driver's name.
"""

from collections.abc import Collection

from devicecore_tools.testing.api_server.causes import Field, list_of, mapping_of
from devicecore_tools.testing.api_server.status import Cause, Json

STATUS = "resourceclaims/status"
"""The resource for which this is decided."""

_BINDING, _DRIVER = "resourceclaims/binding", "resourceclaims/driver"


def permission_causes(refused: Collection[str], verb: str, before: Json, after: Json) -> list[Cause]:
    """Return what a client may not change in the status of a claim.

    Args:
        refused: verbs with their resource that are refused, such as `update resourceclaims/binding`; for one driver
            alone with its name, such as `associated-node:update resourceclaims/driver gpu.example.com`.
        verb: that of the request: `update` or `patch`.
        before: the claim as it was.
        after: the claim as it would be.
    """
    old, status = mapping_of(before.get("status")), Field("", after)["status"]
    new = mapping_of(status.value)
    is_bound = all(old.get(field) == new.get(field) for field in ("allocation", "reservedFor"))
    if not is_bound and f"{verb} {_BINDING}" in refused:
        name = "allocation" if old.get("allocation") != new.get("allocation") else "reservedFor"
        detail = f'changing status.allocation or status.reservedFor requires resource="{_BINDING}", verb="{verb}"'
        status[name].forbidden(f"{detail} permission")
    local = f"associated-node:{verb}"
    for driver in sorted(_drivers(old, new)):
        if {f"{local} {_DRIVER}", f"{local} {_DRIVER} {driver}"} & {*refused}:
            verbs = f"[{local} arbitrary-node:{verb}]"
            detail = f'changing status.devices requires resource="{_DRIVER}", verb="{verbs}" permission'
            status["devices"].forbidden(f"{detail} for {driver}")
    return status.causes


def _drivers(old: Json, new: Json) -> set[str]:
    """The drivers whose entries differ."""
    before, after = list_of(old.get("devices")), list_of(new.get("devices"))
    changed = [one for one in before if one not in after] + [one for one in after if one not in before]
    return {str(mapping_of(one).get("driver")) for one in changed}
