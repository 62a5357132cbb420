"""What a client may change in a ResourceClaim's status in Kubernetes 1.36 and later.

Law: changing `status.allocation` or `status.reservedFor` requires permission for `resourceclaims/binding`, and changing
a driver's entries in `status.devices` requires permission for `resourceclaims/driver` with the driver's name.
"""

from collections.abc import Collection

from devicecore_tools.testing.api_server.causes import Field, list_of, mapping_of
from devicecore_tools.testing.api_server.status import Cause, Json

STATUS = "resourceclaims/status"
"""The resource whose changes need these additional permissions."""

_BINDING, _DRIVER = "resourceclaims/binding", "resourceclaims/driver"


def permission_causes(refused: Collection[str], verb: str, before: Json, after: Json) -> list[Cause]:
    """Return what a client may not change in a claim's status.

    Args:
        refused: refused verbs with their resource, such as `update resourceclaims/binding`; if a verb is refused for
            one driver only, the driver's name follows, as in
            `associated-node:update resourceclaims/driver gpu.example.com`.
        verb: the verb of the request, `update` or `patch`.
        before: the claim before the change.
        after: the claim after the change.
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
    """Return the drivers whose entries in `status.devices` differ."""
    before, after = list_of(old.get("devices")), list_of(new.get("devices"))
    changed = [one for one in before if one not in after] + [one for one in after if one not in before]
    return {str(mapping_of(one).get("driver")) for one in changed}
