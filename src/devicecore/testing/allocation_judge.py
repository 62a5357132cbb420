"""A judge of allocations: it knows the rules of the API, and tries everything.

Laws: the judge reads the API objects itself, and shares no code with `devicecore.domain.allocation` but quantities. It
finds an allocation if the rules allow one. It is for small cases: its time grows with the number of combinations.

A case has what `devicecore.testing.allocation_cases` makes: `node`, `classes`, `slices`, `claims` as the API writes
them, and `allocated` with `devices` that are taken as a whole, `shared` devices, and the `capacity` consumed of these.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from devicecore.domain.quantity import Quantity

Json = Any  # API objects
Key = tuple[str, str, str]

MAX_RESULTS = 32


class Pick(NamedTuple):
    """A device for a request of a claim."""

    claim: int
    names: tuple[str, ...]  # of the request; the last is the one in the result
    request: Json
    key: Key
    device: Json
    is_admin: bool


class Judge:
    """Judges the allocations of one case.

    Args:
        case: the case.
        matches: says whether an expression selects a device: the expression, its driver, and the device of the API.
    """

    def __init__(self, case: Json, matches: Callable[[str, str, Json], bool]) -> None:
        self._case = case
        self._node = case["node"]
        self._matches = matches
        self._classes = {one["metadata"]["name"]: one for one in case["classes"]}
        self._whole = {_key(one) for one in case["allocated"]["devices"]}
        self._used: dict[Key, Counter[str]] = {_key(one): Counter() for one in case["allocated"]["shared"]}
        for one in case["allocated"]["capacity"]:
            used = self._used.setdefault(_key(one), Counter())
            used.update({name: _nanos(value) for name, value in one["consumed"].items()})
        self.has_unusable_pool: bool = False
        self._devices: list[tuple[Key, Json, Json]] = []
        self._free: dict[tuple[str, str, str, str], int] = {}
        for slices in self._pools():
            self._add_pool(slices)

    # --- what there is ------------------------------------------------------------------------------------------------

    def _pools(self) -> Iterator[list[Json]]:
        """Return the slices of each pool that the node sees, in the order in which devices are tried."""
        pools: dict[tuple[str, str], list[Json]] = defaultdict(list)
        for one in sorted(self._case["slices"], key=lambda one: one["metadata"]["name"]):
            pools[one["spec"]["driver"], one["spec"]["pool"]["name"]].append(one["spec"])
        seen = [pools[key] for key in sorted(pools)]
        yield from sorted(
            seen, key=lambda slices: any(_binds_late(one) for one in slices if self._is_current(one, slices))
        )

    def _is_current(self, one: Json, slices: Sequence[Json]) -> bool:
        here = [other for other in slices if self._sees(other)]
        return self._sees(one) and _generation(one) == max(map(_generation, here))

    def _sees(self, one: Json) -> bool:
        node = one.get("nodeName")
        if one.get("sharedCounters"):
            return node in (None, "", self._node["metadata"]["name"])
        if one.get("perDeviceNodeSelection"):
            return any(_accepts(device, self._node) for device in one.get("devices", ()))
        return _accepts(one, self._node)

    def _add_pool(self, slices: list[Json]) -> None:
        here = [one for one in slices if self._is_current(one, slices)]
        if not here:
            return
        own_first = sorted((one["spec"] for one in self._case["slices"]), key=lambda spec: not spec.get("nodeName"))
        first = next(one for one in own_first if one in here)  # whose count decides if counts differ
        generation, count = _generation(first), first["pool"]["resourceSliceCount"]
        present = here if len(here) == count else [one for one in slices if _generation(one) == generation]
        if len(here) != count and any(_generation(one) > generation for one in slices):
            return
        devices = [(one, device) for one in here for device in one.get("devices", ())]
        sets = [shared for one in here for shared in one.get("sharedCounters", ())]
        totals = {
            (shared["name"], name): _nanos(value["value"])
            for shared in sets
            for name, value in shared["counters"].items()
        }
        everyone = [device for one in present for device in one.get("devices", ())]
        names, known = {device["name"] for _, device in devices}, {shared["name"] for shared in sets}
        is_twice = len(names) < len(devices) or len(known) < len(sets)
        consumed = {one["counterSet"] for device in everyone for one in device.get("consumesCounters", ())}
        is_unknown = any(use not in totals for device in everyone for use, _ in _uses(device)) or consumed - known
        if len(present) != count or is_twice or is_unknown:
            self.has_unusable_pool = True
            return
        pool = here[0]["driver"], here[0]["pool"]["name"]
        for device in everyone:
            key = (*pool, device["name"])
            if key in self._whole or key in self._used:
                for use, amount in _uses(device):
                    totals[use] -= amount
        self._free |= {(*pool, *use): amount for use, amount in totals.items()}
        self._devices += [((*pool, device["name"]), one, device) for one, device in devices]

    # --- what is possible ---------------------------------------------------------------------------------------------

    def first(self) -> list[Pick] | None:
        """Return the first allocation, with the alternatives and devices in their order. Return None if there is none.

        The order is the one in which a scheduler tries devices. What all devices are cannot be said while a pool
        is unusable, so that nothing is allocated then to claims that may want all.
        """
        if self.has_unusable_pool and self._may_want_all():
            return None
        wanted = [
            (number, request) for number, claim in enumerate(self._case["claims"]) for request in _requests(claim)
        ]
        return self._fulfil(wanted, [])

    def _may_want_all(self) -> bool:
        requests = (request for claim in self._case["claims"] for request in _requests(claim))
        return any(one.get("allocationMode") == "All" for request in requests for one, _ in _alternatives(request))

    def problem_with(self, results: Sequence[Json] | None) -> str:
        """Return what is wrong with an answer, empty if nothing is.

        Args:
            results: the `status.allocation` of each claim, in the order of the claims; None if they get no devices.
        """
        if results is None:
            found = self.first()
            shown = ", ".join(f"{'/'.join(one.key)} for {one.names[-1]}" for one in found or ())
            return "" if found is None else f"the claims can be allocated: {shown}"
        picks: list[Pick] = []
        for number, (claim, result) in enumerate(zip(self._case["claims"], results, strict=True)):
            given = [(one["request"], _key(one)) for one in result["devices"].get("results", ())]
            for request in _requests(claim):
                names = {names[-1] for _, names in _alternatives(request)}
                chosen = sorted(key for name, key in given if name in names)
                ways = (way for way in self._ways(number, request) if sorted(one.key for one in way) == chosen)
                used = {name for name, _ in given if name in names}
                way = next((way for way in ways if used == {way[0].names[-1]}), None)
                if way is None:
                    return f"request {request['name']} must not get {', '.join(map('/'.join, chosen)) or 'nothing'}"
                picks += way
            if len(given) != sum(one.claim == number for one in picks):
                return f"claim {claim['metadata']['name']} has devices for no request"
        return "" if self.is_allowed(picks) else "the devices must not be allocated together"

    def _fulfil(self, wanted: Sequence[tuple[int, Json]], before: list[Pick]) -> list[Pick] | None:
        if not wanted:
            return before
        claim, request = wanted[0]
        for chosen in self._ways(claim, request):
            picks = before + chosen
            if self.is_allowed(picks):
                found = self._fulfil(wanted[1:], picks)
                if found is not None:
                    return found
        return None

    def _ways(self, claim: int, request: Json) -> Iterator[list[Pick]]:
        """Return each set of devices that a request may get, whatever the others get."""
        for one, names in _alternatives(request):
            fit = [
                Pick(claim, names, one, key, device, one.get("adminAccess", False))
                for key, slice_, device in self._devices
                if self._is_meant(one, key, slice_, device)
            ]
            if one.get("allocationMode") == "All":
                yield from [fit] if fit else []
            else:
                yield from map(list, combinations(fit, one.get("count", 1)))

    def _is_meant(self, request: Json, key: Key, slice_: Json, device: Json) -> bool:
        if slice_.get("perDeviceNodeSelection") and not _accepts(device, self._node):
            return False
        selectors = self._classes[request["deviceClassName"]]["spec"].get("selectors", [])
        selectors = selectors + request.get("selectors", [])
        if not all(self._matches(one["cel"]["expression"], key[0], device) for one in selectors):
            return False
        asked = request.get("capacity", {}).get("requests", {})
        used: Mapping[str, int] = {} if request.get("adminAccess") else self._used.get(key, {})
        return not asked or _has_room(asked, device, used) is not None

    def is_allowed(self, picks: Sequence[Pick]) -> bool:
        """Return whether no rule forbids these devices beside each other and beside what is allocated already."""
        return (
            max(Counter(one.claim for one in picks).values(), default=0) <= MAX_RESULTS
            and all(_is_tolerated(one) for one in picks)
            and self._nobody_shares(picks)
            and self._counters_suffice(picks)
            and self._capacity_suffices(picks)
            and all(
                _holds(constraint, [one for one in picks if one.claim == number])
                for number, claim in enumerate(self._case["claims"])
                for constraint in claim["spec"]["devices"].get("constraints", ())
            )
        )

    def _nobody_shares(self, picks: Sequence[Pick]) -> bool:
        alone = [one for one in picks if not _is_shared(one.device)]
        in_claims = Counter((one.claim, one.key) for one in alone)
        owned = Counter(one.key for one in alone if not one.is_admin)
        held = any(one.key in self._whole and not one.is_admin for one in picks)
        return not held and max([*in_claims.values(), *owned.values(), 0]) <= 1

    def _counters_suffice(self, picks: Sequence[Pick]) -> bool:
        charged = (one for one in picks if not one.is_admin and not (_is_shared(one.device) and one.key in self._used))
        devices = {one.key: one.device for one in charged}
        needed: Counter[tuple[str, str, str, str]] = Counter()
        for (driver, pool, _), device in devices.items():
            for use, amount in _uses(device):
                needed[driver, pool, *use] += amount
        return all(amount <= self._free[use] for use, amount in needed.items())

    def _capacity_suffices(self, picks: Sequence[Pick]) -> bool:
        used: dict[Key, Counter[str]] = {key: Counter(amounts) for key, amounts in self._used.items()}
        for one in picks:
            counts = _is_shared(one.device) and not one.is_admin
            before: Counter[str] = used.setdefault(one.key, Counter()) if counts else Counter()
            taken = _has_room(one.request.get("capacity", {}).get("requests", {}), one.device, before)
            if taken is None:
                return False
            before.update(taken)
        return True


def _key(one: Json) -> Key:
    return one["driver"], one["pool"], one["device"]


def _nanos(text: str) -> int:
    return Quantity.parse(text).nanos


def _generation(spec: Json) -> int:
    return int(spec["pool"]["generation"])


def _binds_late(spec: Json) -> bool:
    return any(device.get("bindingConditions") for device in spec.get("devices", ()))


def _is_shared(device: Json) -> bool:
    return bool(device.get("allowMultipleAllocations"))


def _accepts(place: Json, node: Json) -> bool:
    if place.get("nodeName"):
        return bool(place["nodeName"] == node["metadata"]["name"])
    if place.get("allNodes"):
        return True
    labels, fields = node["metadata"].get("labels", {}), {"metadata.name": node["metadata"]["name"]}
    for term in place.get("nodeSelector", {}).get("nodeSelectorTerms", ()):
        wanted = [(labels, one) for one in term.get("matchExpressions", ())]
        wanted += [(fields, one) for one in term.get("matchFields", ())]
        if wanted and all(_is_met(found.get(one["key"]), one) for found, one in wanted):
            return True
    return False


def _is_met(value: str | None, wanted: Json) -> bool:
    """Whether a label, None if there is none, is what a requirement of a NodeSelector wants."""
    operator: str = wanted["operator"]
    values: Sequence[str] = wanted.get("values", ())
    if operator in ("In", "NotIn"):
        return (value in values) == (operator == "In")
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (operator == "Exists")
    try:
        number, limit = int(value or ""), int(values[0])
    except ValueError:
        return False
    return number > limit if operator == "Gt" else number < limit


def _uses(device: Json) -> Iterator[tuple[tuple[str, str], int]]:
    for one in device.get("consumesCounters", ()):
        for name, value in one["counters"].items():
            yield (one["counterSet"], name), _nanos(value["value"])


def _requests(claim: Json) -> Sequence[Json]:
    found: Sequence[Json] = claim["spec"]["devices"].get("requests", ())
    return found


def _alternatives(request: Json) -> list[tuple[Json, tuple[str, ...]]]:
    if "exactly" in request:
        return [(request["exactly"], (request["name"],))]
    return [(one, (request["name"], f"{request['name']}/{one['name']}")) for one in request["firstAvailable"]]


def _has_room(asked: Mapping[str, str], device: Json, used: Mapping[str, int]) -> dict[str, int] | None:
    """Return what a share of a device consumes, None if the device cannot give it."""
    capacity = device.get("capacity", {})
    if any(name not in capacity for name in asked):
        return None
    taken = {}
    for name, one in capacity.items():
        policy = one.get("requestPolicy", {})
        limits = policy.get("validRange", {})
        values = sorted(map(_nanos, policy.get("validValues", ())))
        if name not in asked:
            amount = _nanos(policy.get("default", one["value"]))
        else:
            amount = _nanos(asked[name])
            if limits.get("min"):
                least = _nanos(limits["min"])
                step = _nanos(limits["step"]) if limits.get("step") else 0
                amount = max(amount, least)
                amount += -(amount - least) % step if step else 0
            amount = min([value for value in values if value >= amount], default=amount)
            if amount > _nanos(limits.get("max", str(2**62))) or (values and amount not in values):
                return None
        if amount + used.get(name, 0) > _nanos(one["value"]):
            return None
        taken[name] = amount
    return taken


def _is_tolerated(pick: Pick) -> bool:
    def covers(toleration: Json, taint: Json) -> bool:
        return all(toleration.get(field, "") in ("", taint.get(field, "")) for field in ("key", "effect")) and (
            toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
        )

    repelling = [one for one in pick.device.get("taints", ()) if one["effect"] in ("NoSchedule", "NoExecute")]
    return all(any(covers(one, taint) for one in pick.request.get("tolerations", ())) for taint in repelling)


def _holds(constraint: Json, picks: Sequence[Pick]) -> bool:
    requests = constraint.get("requests", ())
    name = constraint.get("matchAttribute") or constraint["distinctAttribute"]
    values = []
    for one in picks:
        if requests and not set(requests) & set(one.names):
            continue
        attributes = one.device.get("attributes", {})
        domain, _, identifier = name.partition("/")
        value = attributes.get(name, attributes.get(identifier) if domain == one.key[0] else None)
        if value is None:
            return False
        values.append(tuple(value.items()))
    return len(set(values)) == (min(len(values), 1) if "matchAttribute" in constraint else len(values))
