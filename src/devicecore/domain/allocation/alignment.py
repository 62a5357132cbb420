"""Check whether `matchAttribute` constraints can be satisfied at all, by counting the devices with each value.

Law: a shortage is never reported for claims that can be allocated. The counts are upper bounds: they include all
devices that fit a request while nothing else is taken.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import frozen

from devicecore.domain.allocation.model import Constraint, DeviceRequest, PoolDevice, Rule, UnallocatedClaim

Usable = Callable[[DeviceRequest], Sequence[PoolDevice]]
"""Returns the devices that fit a request while nothing else is taken."""


@frozen
class Shortage:
    """Constraints on one attribute that need more different values than there are values with enough devices.

    Attributes:
        attribute: the attribute of the constraints.
        wanted: the number of values that are needed, one for each constraint.
        supply: how many constraints each value can satisfy at most.
        roles: for each request of the first constraint, how many devices have each value.
    """

    attribute: str
    wanted: int
    supply: Mapping[str, int]
    roles: tuple[tuple[DeviceRequest, Mapping[str, int]], ...]

    @property
    def nearest(self) -> str:
        """The value that comes closest to satisfying a constraint, or "" if no device has the attribute."""

        def met(value: str) -> int:
            return sum(min(have.get(value, 0), request.count) for request, have in self.roles)

        return max(sorted({value for _, have in self.roles for value in have}), key=met, default="")


def shortages(claim: UnallocatedClaim, usable: Usable) -> Iterator[Shortage]:
    """Yield constraints of a claim that no choice of devices can satisfy.

    Constraints on requests with alternatives, for all devices, for admin access or for shared devices are left out.
    """
    devices: dict[DeviceRequest, Sequence[PoolDevice]] = {}
    alike: dict[object, list[tuple[Constraint, list[DeviceRequest]]]] = defaultdict(list)
    for constraint in claim.constraints:
        requests = _requests_of(claim, constraint)
        if constraint.rule is not Rule.MATCH or not requests:
            continue
        for request in requests:
            if request not in devices:
                devices[request] = usable(request)
        if any(device.is_shared for request in requests for device in devices[request]):
            continue
        shape = Counter((frozenset(devices[one]), one.count) for one in requests)
        alike[constraint.attribute, frozenset(shape.items())].append((constraint, requests))
    for group in alike.values():
        named = [request for _, requests in group for request in requests]
        # Constraints that share a request may be satisfied by one value.
        kept = group if len(set(named)) == len(named) else group[:1]
        attribute, requests = kept[0][0].attribute, kept[0][1]
        roles = tuple((one, _count(attribute, devices[one])) for one in requests)
        needed: dict[frozenset[PoolDevice], tuple[int, Mapping[str, int]]] = {}
        for request, have in roles:
            role = frozenset(devices[request])
            needed[role] = (needed.get(role, (0, have))[0] + request.count, have)
        values = {value for _, have in roles for value in have}
        supply = {value: min(have.get(value, 0) // count for count, have in needed.values()) for value in values}
        if sum(supply.values()) < len(kept):
            yield Shortage(attribute, len(kept), supply, roles)


def _requests_of(claim: UnallocatedClaim, constraint: Constraint) -> list[DeviceRequest]:
    """Return the requests that a constraint applies to, or nothing if the devices for a request cannot be counted."""
    found: list[DeviceRequest] = []
    for ways in claim.requests:
        about = [one for one in ways if constraint.applies_to(one)]
        if about and (len(ways) > 1 or about[0].wants_all or about[0].admin_access):
            return []
        found += about
    return found


def _count(attribute: str, devices: Sequence[PoolDevice]) -> Mapping[str, int]:
    values = (one for device in devices if (one := device.attribute(attribute)) is not None)
    # A string and a number that look alike are different values.
    return Counter(
        str(value) if kind == "string" else f"{value} ({kind})" for one in values for kind, value in one.elements
    )
