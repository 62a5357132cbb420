"""A judge of allocations: it knows the rules of the API, and tries everything.

Laws: the judge reads the API objects itself, and shares no code with `devicecore.domain.allocation` but quantities. It
finds an allocation if the rules allow one. It is for small cases: its time grows with the number of combinations.

The rules are sentences of the API's types (`k8s.io/api/resource/v1`), each cited where it is applied. Where a pool
contradicts itself, so that they can be read in several ways, each reading counts as right.

A case has what `devicecore_tools.testing.allocation_cases` makes: `node`, `classes`, `slices`, `claims` as the API
writes them, and `allocated` with `devices` that are taken as a whole, `shared` devices, and the `capacity` consumed of
these.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
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
        pools: dict[tuple[str, str], list[Json]] = defaultdict(list)
        for one in sorted(case["slices"], key=lambda one: one["metadata"]["name"]):
            pools[one["spec"]["driver"], one["spec"]["pool"]["name"]].append(one["spec"])
        ways = product(*(_readings(pools[key], case["node"]) for key in sorted(pools)))
        self._readings = [_Reading(case, matches, [pool for pool in way if pool is not None]) for way in ways]

    def first(self) -> list[Pick] | None:
        """Return the first allocation, with the alternatives and devices in their order. Return None if there is none.

        The order is the one in which a scheduler tries devices. What all devices are cannot be said while a pool
        is unusable, so that nothing is allocated then to claims that may want all.
        """
        return self._readings[0].first()

    def problem_with(self, results: Sequence[Json] | None) -> str:
        """Return what is wrong with an answer, empty if nothing is.

        Args:
            results: the `status.allocation` of each claim, in the order of the claims; None if they get no devices.
        """
        problems = [reading.problem_with(results) for reading in self._readings]
        return "" if "" in problems else problems[0]


class _Pool(NamedTuple):
    """What a node may use of a pool, with all devices that consume its counters, and these."""

    devices: list[tuple[Json, Json]]  # each with its slice
    consuming: list[Json]
    sets: list[Json]
    is_whole: bool
    binds_late: bool


def _readings(slices: list[Json], node: Json) -> list[_Pool | None]:
    """Return what a pool may be for a node, by each count that its slices say. None is nothing."""
    mine = [one for one in slices if _is_for(one, node)]
    if not mine:
        return [None]
    # The API: "Consumers [...] should only consider resources from the pool with the highest generation number."
    generation = max(map(_generation, mine))
    mine = [one for one in mine if _generation(one) == generation]
    # The API: "ResourceSliceCount is the total number of ResourceSlices in the pool at this generation number."
    own_first = sorted(mine, key=lambda one: not one.get("nodeName"))
    counts = dict.fromkeys(one["pool"]["resourceSliceCount"] for one in own_first)
    return [_pool(slices, mine, generation, count) for count in counts]


def _is_for(one: Json, node: Json) -> bool:
    """Return whether a slice has something that is available on a node."""
    # The API: "If it is set to true, every device defined the ResourceSlice must specify this individually."
    places = one.get("devices", ()) if one.get("perDeviceNodeSelection") else [one]
    return any(_accepts(place, node) for place in places)


def _pool(slices: list[Json], mine: list[Json], generation: int, count: int) -> _Pool | None:
    everything = mine
    if len(mine) != count:
        if any(_generation(one) > generation for one in slices):
            return None  # a newer generation has nothing for the node
        everything = [one for one in slices if _generation(one) == generation]
    devices = [(one, device) for one in mine for device in one.get("devices", ())]
    consuming = [device for one in everything for device in one.get("devices", ())]
    # The API: "a named set of counters that are available to be used by devices defined in the ResourcePool"
    sets = [one for part in everything for one in part.get("sharedCounters", ())]
    known = {(one["name"], counter) for one in sets for counter in one["counters"]}
    is_sound = (
        len(everything) == count
        # The API: "Each device in a given pool [...] must have a unique name."
        and len({device["name"] for _, device in devices}) == len(devices)
        # The API: "The names of the counter sets must be unique in the ResourcePool."
        and len({one["name"] for one in sets}) == len(sets)
        and all(use in known for device in consuming for use, _ in _uses(device))
    )
    binds_late = is_sound and any(device.get("bindingConditions") for _, device in devices)
    return _Pool(devices, consuming, sets, is_sound, binds_late)


class _Reading:
    """What the rules allow if the pools of a case are these."""

    def __init__(self, case: Json, matches: Callable[[str, str, Json], bool], pools: Sequence[_Pool]) -> None:
        self._case = case
        self._node = case["node"]
        self._matches = matches
        self._classes = {one["metadata"]["name"]: one for one in case["classes"]}
        self._whole = {_key(one) for one in case["allocated"]["devices"]}
        self._used: dict[Key, Counter[str]] = {_key(one): Counter() for one in case["allocated"]["shared"]}
        for one in case["allocated"]["capacity"]:
            used = self._used.setdefault(_key(one), Counter())
            used.update({name: _nanos(value) for name, value in one["consumed"].items()})
        # The API: "should wait until the driver has completed updating the pool"
        self._cannot_say_all = any(not one.is_whole for one in pools)
        self._devices: list[tuple[Key, Json, Json]] = []
        self._free: dict[tuple[str, str, str, str], int] = {}
        for one in sorted((one for one in pools if one.is_whole), key=lambda one: one.binds_late):
            self._add(one)

    def _add(self, pool: _Pool) -> None:
        if not pool.devices:
            return
        spec = pool.devices[0][0]
        name = spec["driver"], spec["pool"]["name"]
        totals = {
            (one["name"], counter): _nanos(value["value"])
            for one in pool.sets
            for counter, value in one["counters"].items()
        }
        # The API: "When a device is allocated, the portion of counters it uses will no longer be available."
        for device in pool.consuming:
            key = (*name, device["name"])
            if key in self._whole or key in self._used:
                for use, amount in _uses(device):
                    totals[use] -= amount
        self._free |= {(*name, *use): amount for use, amount in totals.items()}
        self._devices += [((*name, device["name"]), one, device) for one, device in pool.devices]

    # --- what is possible ---------------------------------------------------------------------------------------------

    def first(self) -> list[Pick] | None:
        """Return the first allocation, with the alternatives and devices in their order. Return None if there is none.

        The order is the one in which a scheduler tries devices. What all devices are cannot be said while a pool
        is unusable, so that nothing is allocated then to claims that may want all.
        """
        if self._cannot_say_all and self._may_want_all():
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
        # The API: "Allocation will fail if some devices are already allocated": they match all the same.
        return not asked or _has_room(asked, device, {}) is not None

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
