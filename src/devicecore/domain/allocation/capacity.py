"""How much of a device's capacity a request consumes (KEP-5075).

Law: a request consumes the amount it names, rounded up to an amount that the device's policy allows. A request without
an amount consumes the default, or everything.
"""

from collections.abc import Mapping

from devicecore.domain.allocation.model import Capacity, PoolDevice, RequestPolicy
from devicecore.domain.allocation.reasons import CapacityExceeded
from devicecore.domain.quantity import Quantity


def by_own_names(amounts: Mapping[str, Quantity], device: PoolDevice) -> Mapping[str, Quantity]:
    """Return the amounts by the names that the device uses for its capacities.

    A name without a domain belongs to the driver's domain.
    """
    if all(name in device.capacity for name in amounts):
        return amounts
    driver = device.key.driver
    own = {_with_domain(name, driver): name for name in device.capacity}
    return {own.get(_with_domain(name, driver), name): amount for name, amount in amounts.items()}


def _with_domain(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def consumption(asked: Mapping[str, Quantity], device: PoolDevice) -> dict[str, Quantity]:
    """Return how much of each capacity a share of the device would consume if these amounts are requested."""
    return {name: _consumed(asked.get(name), capacity) for name, capacity in device.capacity.items()}


def capacity_missing(
    asked: Mapping[str, Quantity], device: PoolDevice, used: Mapping[str, int]
) -> CapacityExceeded | None:
    """Return why the device cannot provide the requested capacity, or None if it can.

    Args:
        asked: the requested amount of each capacity.
        device: the device.
        used: how much of each capacity is already consumed, in billionths.
    """
    for name, wanted in asked.items():
        if name not in device.capacity:
            return CapacityExceeded(name, wanted, None)
    for name, wanted in consumption(asked, device).items():
        capacity = device.capacity[name]
        if allowed := _violated(wanted, capacity.policy):
            return CapacityExceeded(name, wanted, capacity.value, allowed)
        free = capacity.value.nanos - used.get(name, 0)
        if wanted.nanos > free:
            left = Quantity(free, capacity.value.binary)
            return CapacityExceeded(name, wanted, left, asked=asked.get(name), total=capacity.value)
    return None


def _consumed(asked: Quantity | None, capacity: Capacity) -> Quantity:
    policy = capacity.policy
    if asked is None:
        return policy.default if policy and policy.default else capacity.value
    if policy is None:
        return asked
    if policy.minimum is not None:
        return _rounded_up(asked, policy.minimum, policy.step)
    return next((value for value in policy.values if value.nanos >= asked.nanos), asked)


def _rounded_up(asked: Quantity, minimum: Quantity, step: Quantity | None) -> Quantity:
    if asked.nanos < minimum.nanos:
        return minimum
    if step is None or not step.whole:
        return asked
    steps = -((minimum.whole - asked.whole) // step.whole)
    return Quantity.of(minimum.whole + steps * step.whole, binary=True)


def _violated(wanted: Quantity, policy: RequestPolicy | None) -> str:
    """Return what the policy allows instead, or an empty string if the policy allows the quantity."""
    if policy is None or (policy.default and policy.default.nanos == wanted.nanos):
        return ""
    if policy.minimum or policy.maximum or policy.step:
        too_much = policy.maximum is not None and wanted.nanos > policy.maximum.nanos
        whole_step = policy.step.whole if policy.step else 0
        minimum = policy.minimum.whole if policy.minimum else 0
        off_step = whole_step > 0 and (wanted.whole - minimum) % whole_step != 0
        if too_much or off_step:
            steps = f" in steps of {policy.step}" if policy.step else ""
            return f"{policy.minimum or 0} to {policy.maximum or 'all'}{steps}"
        return ""
    if policy.values and all(value.nanos != wanted.nanos for value in policy.values):
        return ", ".join(map(str, policy.values))
    return ""
