"""Judges an allocation of claims by the text of the API, and searches exhaustively to tell whether one is possible.

The judge was written from the comments in `k8s.io/api/resource/v1` (1.37.2) and from enhancement proposals 4381, 4815,
4816 and 5075, without reading `devicecore.domain.allocation`. This module imports nothing from that package
(`make imports` checks this), so the judge can show where that package, or Kubernetes, misreads the API.

Laws: a judge never reports that a claim cannot be allocated before it has tried all choices (otherwise it raises
    `TooLargeError`). Each error names the API field and quotes its sentence (`Rule`). Where the text leaves
    something open, every answer is accepted.

A case is a JSON object: `node` is a Node, `classes`, `slices` and `claims` are API objects of `resource.k8s.io/v1`, and
`allocated` is what the cluster's claims already hold:

* `devices`: `driver`, `pool` and `device` of each device that is not shared;
* `shared`: the same fields for each share of a device that allows multiple allocations;
* `capacity`: the same fields, and as `consumed` what all shares of the device consume together.

The slices are those of the whole cluster, whichever node they are for. The claims belong to one pod, in the pod's
order. `features` may contain `ListTypeAttributes`, which is off unless set to true. All other features that are on by
default in 1.37 are on. Derived attributes, compatibility groups and rules that add taints to devices are not judged.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, islice, product
from typing import Any

from attrs import frozen

from devicecore_tools.testing.allocation_cluster import (
    Cluster,
    Device,
    Json,
    Key,
    Node,
    PoolKey,
    View,
    billionths,
    full_name,
    key_of,
    offers,
    path_of,
    requirements,
    selects,
)
from devicecore_tools.testing.allocation_rules import Breach, Rule

Evaluate = Callable[[str, str, Json], bool | None]
"""Returns whether an expression selects a driver's device, or None if evaluating it is an error."""

MAX_RESULTS = 32
"""The maximum number of devices in one claim: `AllocationResultsMaxSize`."""

MAX_STEPS = 200_000
"""The maximum number of devices that one search tries."""


_OF_OTHERS = {Rule.SELECTORS, Rule.CAPACITY_FILTER}
"""The rules that a device breaks if it is not what the request describes."""


class TooLargeError(Exception):
    """The case is too large for an exhaustive search."""


@frozen
class Given:
    """A device assigned to a request.

    Attributes:
        claim: the index of the claim.
        request: the name of the request, or `main/sub` if one of its alternatives was chosen.
        key: driver, pool and name of the device.
    """

    claim: int
    request: str
    key: Key


# --- requests ---------------------------------------------------------------------------------------------------------


@frozen(eq=False)
class _Request:
    """A request, or one of the alternatives that a request lists."""

    claim: int
    main: str
    name: str
    spec: Json

    @property
    def is_admin(self) -> bool:
        return bool(self.spec.get("adminAccess"))

    @property
    def is_all(self) -> bool:
        return bool(self.spec.get("allocationMode") == "All")

    @property
    def count(self) -> int:
        return int(self.spec.get("count") or 1)

    def wanted(self, driver: str) -> Mapping[str, int]:
        """Return how much of each capacity the request asks for."""
        asked = (self.spec.get("capacity") or {}).get("requests") or {}
        return {full_name(name, driver): billionths(amount) for name, amount in asked.items()}

    def is_named_by(self, names: Sequence[str]) -> bool:
        """Return whether a constraint or a configuration for the requests `names` applies to this request.

        A constraint or configuration without names applies to all requests.
        """
        return not names or self.main in names or self.name in names

    def tolerates(self, taint: Json) -> bool:
        """Return whether the request tolerates a taint. Only NoSchedule and NoExecute need a toleration."""
        if taint.get("effect") not in {"NoSchedule", "NoExecute"}:
            return True
        return any(_tolerates(one, taint) for one in self.spec.get("tolerations") or ())


def _tolerates(toleration: Json, taint: Json) -> bool:
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if operator == "Exists":
        return not key or bool(key == taint["key"])
    is_equal = (toleration.get("value") or "") == (taint.get("value") or "")
    return operator == "Equal" and bool(key == taint["key"]) and is_equal


def _alternatives(number: int, request: Json) -> Sequence[_Request]:
    name = request["name"]
    if request.get("exactly") is not None:
        return [_Request(number, name, name, request["exactly"])]
    return [_Request(number, name, f"{name}/{one['name']}", one) for one in request.get("firstAvailable") or ()]


@frozen
class _Constraint:
    """A constraint of a claim: the attribute, and whether all values must be the same or must differ."""

    names: Sequence[str]
    attribute: str
    is_match: bool

    def allows(self, values: Sequence[frozenset[tuple[str, object]]]) -> bool:
        """Return whether devices with these values may be allocated together under this constraint."""
        if not all(values):
            return False
        if self.is_match:
            return bool(frozenset.intersection(*values)) if values else True
        return all(one.isdisjoint(other) for one, other in combinations(values, 2))


def _constraints(claim: Json) -> Sequence[_Constraint]:
    return [
        _Constraint(one.get("requests") or (), attribute, kind == "matchAttribute")
        for one in claim["spec"]["devices"].get("constraints") or ()
        for kind in ("matchAttribute", "distinctAttribute")
        if (attribute := one.get(kind)) is not None
    ]


# --- allocated devices ------------------------------------------------------------------------------------------------


@frozen(eq=False)
class _Taken:
    """A request and a device allocated to it."""

    request: _Request
    device: Device


class _State:
    """The devices assigned so far, in addition to the devices that the cluster's claims already hold."""

    def __init__(self, cluster: Cluster, constraints: Sequence[Sequence[_Constraint]], start: Iterable[_Taken]) -> None:
        self._cluster = cluster
        self._constraints = constraints
        self.taken = list(start)

    def take(self, request: _Request, device: Device) -> None:
        """Assign a device to a request."""
        self.taken.append(_Taken(request, device))

    def give_back(self) -> None:
        """Undo the last assignment."""
        self.taken.pop()

    def signature(self, device: Device) -> Hashable:
        """Return a key that is equal for interchangeable devices."""
        is_used = self._cluster.is_held(device.key) or any(one.device is device for one in self.taken)
        return device.key if is_used else self._cluster.kind_of(device)

    def breach(self, request: _Request, device: Device) -> Rule | None:
        """Return the rule that giving a device to a request would break, given what is already allocated and held."""
        same = [one for one in self.taken if one.device is device]
        if any(one.request is request or (one.request.claim == request.claim and not device.is_shared) for one in same):
            return Rule.DISTINCT_DEVICES
        if not request.is_admin:
            users = [one.request for one in same if not one.request.is_admin]
            if rule := self._breach_of_use(request, device, users):
                return rule
        return self._breach_of_constraints(request, device)

    def _breach_of_use(self, request: _Request, device: Device, users: Sequence[_Request]) -> Rule | None:
        cluster = self._cluster
        if device.key in cluster.held:
            return Rule.ONCE
        if not device.is_shared and (users or device.key in cluster.with_shares):
            return Rule.ONCE
        if not users and device.key not in cluster.with_shares and not self._has_counters(device):
            return Rule.COUNTERS
        if device.is_shared:
            shares = [one.wanted(device.key[0]) for one in (*users, request)]
            consumed = cluster.consumed_by([device.consumed(one) or {} for one in shares], device.key)
            if any(consumed[name] > amount for name, amount in device.amounts.items()):
                return Rule.CONSUMED
        return None

    def _has_counters(self, device: Device) -> bool:
        """Return whether enough is left of the counters that a device consumes.

        A shared device is counted only once.
        """
        if not device.counters:
            return True
        pool = self._cluster.pool_of(device)
        used = Counter(self._cluster.used_counters(pool))
        for one in {one.device for one in self.taken if not one.request.is_admin}:
            if self._cluster.pool_of(one) is pool and not self._cluster.is_held(one.key):
                used.update(one.counters)
        return all(used[name] + amount <= pool.counters[name] for name, amount in device.counters.items())

    def _breach_of_constraints(self, request: _Request, device: Device) -> Rule | None:
        mine = [one for one in self.taken if one.request.claim == request.claim]
        for constraint in self._constraints[request.claim]:
            if request.is_named_by(constraint.names):
                devices = [one.device for one in mine if one.request.is_named_by(constraint.names)]
                if not constraint.allows(
                    [self._cluster.values(one, constraint.attribute) for one in (*devices, device)]
                ):
                    return Rule.MATCH if constraint.is_match else Rule.DISTINCT
        return None


# --- the judge --------------------------------------------------------------------------------------------------------


class Judge:
    """Judges the answers to one case.

    Args:
        case: a case as described at the top of the module.
        evaluate: evaluates expressions.
        max_steps: how many devices one search tries before it gives up.
        sees_node_only: whether to also accept an answer that is right only for the slices that concern the node.
            According to the text, a pool consists of all of its slices. Kubernetes' allocator considers only a few
            slices of other nodes, and Kubernetes' tests expect this: a node may use an old generation, and does not see
            contradictions on other nodes.
    """

    def __init__(
        self, case: Json, evaluate: Evaluate, *, max_steps: int = MAX_STEPS, sees_node_only: bool = False
    ) -> None:
        self._case, self._evaluate, self._max_steps = case, evaluate, max_steps
        self._sees_node_only = sees_node_only
        self._text = _Reading(case, evaluate, max_steps, {})

    def first(self) -> list[Given] | None:
        """Return an allocation that uses the earliest possible alternatives, or None if there is no allocation.

        Raises:
            TooLargeError: the search tried too many devices.
        """
        return self._text.first()

    def problem_with(self, results: Json) -> str:
        """Return what is wrong with an answer, or an empty string if the answer is right.

        Args:
            results: the `status.allocation` of each claim, or None for "not possible".

        Raises:
            TooLargeError: the search tried too many devices.
        """
        return next((str(one) for one in self.breaches(results)), "")

    def breaches(self, results: Json) -> list[Breach]:
        """Return the rules that an answer breaks.

        Args:
            results: as in `problem_with`.

        Raises:
            TooLargeError: the search tried too many devices.
        """
        found = self._text.breaches(results)
        if found:
            for views in self._other_views():
                if not _Reading(self._case, self._evaluate, self._max_steps, views).breaches(results):
                    return []
        return found

    def _other_views(self) -> Iterator[Mapping[PoolKey, View]]:
        """Yield other readings of self-contradictory pools, for which the text does not say which slices count."""
        options: dict[PoolKey, list[View]] = {}
        for key, pool in self._text.cluster.pools.items():
            is_odd = pool.has_wrong_count or pool.problem not in {None, Rule.COMPLETE} or not pool.concerns_node
            options[key] = [
                View.CLUSTER,
                *([View.LENIENT] if pool.has_wrong_count else []),
                *([View.NODE, View.NODE_AND_COUNTERS] if self._sees_node_only and is_odd else []),
            ]
        for views in islice(product(*options.values()), 1, None):
            yield dict(zip(options, views, strict=True))


class _Reading:
    """Judges answers under one interpretation of the pools."""

    def __init__(self, case: Json, evaluate: Evaluate, max_steps: int, views: Mapping[PoolKey, View]) -> None:
        self._case = case
        self._evaluate = evaluate
        self._max_steps = max_steps
        metadata = case["node"]["metadata"]
        self._node = Node(metadata["name"], metadata.get("labels") or {})
        self.cluster = Cluster(case, self._node, views)
        self._claims = case["claims"]
        self._requests = [
            _alternatives(number, request)
            for number, claim in enumerate(self._claims)
            for request in claim["spec"]["devices"].get("requests") or ()
        ]
        self._constraints = [_constraints(one) for one in self._claims]
        self._classes = {one["metadata"]["name"]: one.get("spec") or {} for one in case["classes"]}
        self._results = cache(self._find_results)
        self._fitting = cache(self._find_fitting)
        self._candidates = cache(self._find_candidates)

    # --- what a request may get ---------------------------------------------------------------------------------------

    def _find_results(self, request: _Request, device: Device) -> Sequence[bool | None]:
        """Return the results of the class's and the request's selectors for a device, with None for an error."""
        found = (self._classes[request.spec["deviceClassName"]], request.spec)
        return [
            self._evaluate(one["cel"]["expression"], device.key[0], device.spec) if "cel" in one else None
            for spec in found
            for one in spec.get("selectors") or ()
        ]

    def _selects(self, request: _Request, device: Device) -> bool | None:
        """Return whether the class and the request select a device, or None if an error makes the answer unknown."""
        results = self._results(request, device)
        return False if False in results else None if None in results else True

    def _find_fitting(self, request: _Request, device: Device) -> Rule | None:
        """Return the rule that forbids a device for a request, regardless of what else is allocated, or None."""
        if problem := self.cluster.pool_of(device).problem:
            return problem
        if not offers(device.place, self._node):
            return Rule.NODE
        if not self._selects(request, device):
            return Rule.SELECTORS
        wanted, has = request.wanted(device.key[0]), device.amounts
        if any(name not in has or has[name] < wanted[name] for name in wanted):
            return Rule.CAPACITY_FILTER
        return self._repelled(request, device)

    def _repelled(self, request: _Request, device: Device) -> Rule | None:
        """Return the rule that forbids a device although the request describes the device, or None."""
        if not all(request.tolerates(one) for one in device.spec.get("taints") or ()):
            return Rule.TAINTS
        consumed = device.consumed(request.wanted(device.key[0])) if device.is_shared else {}
        if consumed is None:
            return Rule.POLICY
        return Rule.CONSUMED if any(amount > device.amounts[name] for name, amount in consumed.items()) else None

    def _find_candidates(self, request: _Request) -> Sequence[Device]:
        """Return the devices of which a request may get some or must get all.

        The result is empty if the request cannot be satisfied.
        """
        local = self.cluster.local
        if not self._is_understood(request):
            return []
        if not request.is_all:
            return [one for one in local if self._fitting(request, one) is None]
        if any(pool.problem and pool.concerns_node for pool in self.cluster.pools.values()):
            return []
        if any(self._selects(request, one) is None for one in local):
            return []
        matching = [one for one in local if self._fitting(request, one) not in _OF_OTHERS]
        return [] if any(self._fitting(request, one) for one in matching) else matching

    def _against_all(self, request: _Request) -> Rule:
        """Return the rule that an answer to a request for all devices breaks because devices are missing or extra."""
        pools = (pool.problem for pool in self.cluster.pools.values() if pool.concerns_node)
        devices = (self._fitting(request, one) for one in self.cluster.local)
        return next((one for one in (*pools, *devices) if one and one not in _OF_OTHERS), Rule.ALL)

    def _is_understood(self, request: _Request) -> bool:
        """Return whether the request's class exists and all fields of the request are known.

        Anything unknown must be refused.
        """
        constraints = self._claims[request.claim]["spec"]["devices"].get("constraints") or ()
        return (
            request.spec["deviceClassName"] in self._classes
            and request.spec.get("allocationMode", "ExactCount") in {"ExactCount", "All"}
            and all("matchAttribute" in one or "distinctAttribute" in one for one in constraints)
        )

    # --- the search ---------------------------------------------------------------------------------------------------

    def first(self) -> list[Given] | None:
        """Return an allocation that uses the earliest possible alternatives, or None if there is no allocation."""
        found = self._search([])
        return None if found is None else [Given(one.request.claim, one.request.name, one.device.key) for one in found]

    def _search(self, start: Sequence[_Taken], tail: Sequence[Sequence[_Request]] | None = None) -> list[_Taken] | None:
        """Return an allocation of all requests, or of `tail` if the earlier requests have been assigned `start`."""
        budget = [self._max_steps]
        for chosen in product(*(self._requests if tail is None else tail)):
            if (found := self._fulfil(chosen, start, budget)) is not None:
                order = {one: number for number, one in enumerate(chosen)}
                return [*start, *sorted(found, key=lambda one: order[one.request])]
        return None

    def _fulfil(self, chosen: Sequence[_Request], start: Sequence[_Taken], budget: list[int]) -> list[_Taken] | None:
        """Return the devices for one choice of alternatives, or None if that choice is not possible."""
        candidates = []
        for request in chosen:
            devices = self._candidates(request)
            if not devices:
                return None
            candidates.append((request, devices))
        sizes = Counter(one.request.claim for one in start)
        for request, devices in candidates:
            sizes[request.claim] += len(devices) if request.is_all else request.count
        if any(size > MAX_RESULTS for size in sizes.values()):
            return None
        candidates.sort(key=lambda one: (not one[0].is_all, len(one[1])))  # requests with few candidates first
        state = self._state(start)
        slots = [
            (request, (one,) if request.is_all else devices, not request.is_all and number > 0)
            for request, devices in candidates
            for number, one in enumerate(devices if request.is_all else range(request.count))
        ]
        found = self._fill(slots, 0, 0, state, budget)
        return state.taken[len(start) :] if found else None

    def _state(self, start: Iterable[_Taken]) -> _State:
        return _State(self.cluster, self._constraints, start)

    def _fill(
        self,
        slots: Sequence[tuple[_Request, Sequence[Any], bool]],
        slot: int,
        first: int,
        state: _State,
        budget: list[int],
    ) -> bool:
        """Fill the slots, starting with `slot`.

        A request gets its devices in order; `first` is the position of the first device to try.
        """
        if slot == len(slots):
            return True
        request, devices, goes_on = slots[slot]
        tried = set()
        for number in range(first if goes_on else 0, len(devices)):
            budget[0] -= 1
            if budget[0] < 0:
                raise TooLargeError(f"more than {self._max_steps} devices would have to be tried")
            device = devices[number]
            alike = state.signature(device)
            if alike in tried or state.breach(request, device):
                continue
            tried.add(alike)
            state.take(request, device)
            if self._fill(slots, slot + 1, number + 1, state, budget):
                return True
            state.give_back()
        return False

    # --- verdicts -----------------------------------------------------------------------------------------------------

    def breaches(self, results: Json) -> list[Breach]:
        """Return the rules that an answer breaks."""
        if results is None:
            if self.may_refuse() or (found := self.first()) is None:
                return []
            devices = ", ".join(f"{self._name(one.claim)} {one.request} {path_of(one.key)}" for one in found)
            return [Breach(Rule.POSSIBLE, devices or "nothing is requested")]
        if len(results) != len(self._claims):
            return [Breach(Rule.REQUESTS, f"there are {len(self._claims)} claims, but {len(results)} results")]
        return list(self._breaches_of(results))

    def may_refuse(self) -> bool:
        """Return whether "no" is right even though an allocation exists, because the API lets a consumer abort or wait.

        An expression that is an error "causes allocation of devices to abort". A consumer that looks for all devices,
        or for the best of several alternatives, "should wait" while a pool is incomplete. For a self-contradictory
        pool, enhancement proposal 4815 says both that its devices are not used and that scheduling is aborted. The
        proposal does not say what happens if an alternative cannot be understood.
        """
        requests = [one for alternatives in self._requests for one in alternatives]
        if not all(map(self._is_understood, requests)):
            return True
        pools = [pool for pool in self.cluster.pools.values() if pool.concerns_node]
        if any(None in self._results(one, device) for one in requests for pool in pools for device in pool.local):
            return True
        return any(pool.problem for pool in pools) and any(len(one) > 1 or one[0].is_all for one in self._requests)

    def _name(self, claim: int) -> str:
        return f"claim {self._claims[claim]['metadata']['name']}"

    def _breaches_of(self, results: Json) -> Iterator[Breach]:
        """Yield what is wrong with an answer's devices. Checks that depend on the devices being right come last."""
        taken, broken = self._read(results)
        yield from broken
        if broken:
            return
        together = list(self._breaches_together(taken))
        yield from together
        for number, result in enumerate(results):
            mine = [one for one in taken if one.request.claim == number]
            for rule in (*self._wrong_place(mine, result), *self._wrong_config(number, mine, result)):
                yield Breach(rule, self._name(number))
        if not together:
            yield from self._breaches_of_order(taken)

    def _read(self, results: Json) -> tuple[list[_Taken], list[Breach]]:
        """Return which devices the requests get, and what is wrong with each individual result."""
        taken, broken = list[_Taken](), list[Breach]()
        for number, result in enumerate(results):
            found, where = result["devices"].get("results") or (), self._name(number)
            if len(found) > MAX_RESULTS:
                broken.append(Breach(Rule.MOST, where))
            requests = {one.name: one for tries in self._requests for one in tries if one.claim == number}
            for one in found:
                request, device = requests.get(one["request"]), self.cluster.devices.get(key_of(one))
                here = f"{where}, request {one['request']}, device {path_of(key_of(one))}"
                if request is None:
                    broken.append(Breach(Rule.REQUESTS, here))
                elif device is None:
                    broken.append(Breach(Rule.GENERATION if self._is_stale(key_of(one)) else Rule.EXISTS, here))
                else:
                    taken.append(_Taken(request, device))
                    broken += [Breach(rule, here) for rule in self._wrong_fields(request, device, one)]
        return taken, broken

    def _is_stale(self, key: Key) -> bool:
        return any(
            key == (one["spec"]["driver"], one["spec"]["pool"]["name"], device["name"])
            for one in self._case["slices"]
            for device in one["spec"].get("devices") or ()
        )

    def _breaches_together(self, taken: Sequence[_Taken]) -> Iterator[Breach]:
        """Yield what is wrong with the combination of devices that the requests got."""
        state = self._state(())
        # monitoring a device does not count as using it
        for one in sorted(taken, key=lambda one: one.request.is_admin):
            rule = self._fitting(one.request, one.device) or state.breach(one.request, one.device)
            if rule:
                yield Breach(
                    rule,
                    f"{self._name(one.request.claim)}, request {one.request.name}, device {path_of(one.device.key)}",
                )
            state.take(one.request, one.device)
        for alternatives in self._requests:
            got = {one.name: [have for have in taken if have.request is one] for one in alternatives}
            chosen = [one for one in alternatives if got[one.name]]
            where = f"{self._name(alternatives[0].claim)}, request {alternatives[0].main}"
            if len(chosen) != 1:
                yield Breach(Rule.FIRST_AVAILABLE if len(alternatives) > 1 else Rule.REQUESTS, where)
                continue
            (request,) = chosen
            devices = [one.device for one in got[request.name]]
            if not request.is_all:
                if len(devices) != request.count:
                    yield Breach(Rule.COUNT, where)
            elif Counter(one.key for one in devices) != Counter(one.key for one in self._candidates(request)):
                yield Breach(self._against_all(request), where)

    def _breaches_of_order(self, taken: Sequence[_Taken]) -> Iterator[Breach]:
        """Yield a breach for each request with a possible earlier alternative, given the previous requests' devices."""
        if self.may_refuse():
            return
        for number, alternatives in enumerate(self._requests):
            before = {one for tries in self._requests[:number] for one in tries}
            start = [one for one in taken if one.request in before]
            (chosen,) = {alternatives.index(one.request) for one in taken if one.request in alternatives}
            for earlier in alternatives[:chosen]:
                if self._search(start, [[earlier], *self._requests[number + 1 :]]) is not None:
                    yield Breach(Rule.ORDER, f"{self._name(earlier.claim)}, request {earlier.name} is possible")
                    break

    def _wrong_fields(self, request: _Request, device: Device, result: Json) -> Iterator[Rule]:
        """Yield the rules that one result's fields break."""
        if bool(result.get("adminAccess")) != request.is_admin:
            yield Rule.ADMIN
        copies = [
            (result.get(name), device.spec.get(name)) for name in ("bindingConditions", "bindingFailureConditions")
        ]
        copies.append((result.get("tolerations"), request.spec.get("tolerations")))
        if any((one or []) != (other or []) for one, other in copies):
            yield Rule.COPIES
        if request.is_admin:
            return  # the API does not say whether such a result has a share or consumes anything
        if bool(result.get("shareID")) != device.is_shared:
            yield Rule.SHARE
        consumed = {
            full_name(name, device.key[0]): billionths(one)
            for name, one in (result.get("consumedCapacity") or {}).items()
        }
        expected = device.consumed(request.wanted(device.key[0])) if device.is_shared else {}
        if expected is not None and consumed != expected:
            yield Rule.CONSUMED

    def _wrong_place(self, taken: Sequence[_Taken], result: Json) -> Iterator[Rule]:
        """Yield the rule that a result's node selector breaks, if any, tested with various node names and labels."""
        selector = result.get("nodeSelector")
        places = [one.device.place for one in taken]
        is_bound = any(one.device.spec.get("bindsToNode") for one in taken)
        for node in self._probes([*places, {"nodeSelector": selector}]):
            is_meant = selector is None or selects(selector, node)
            if is_bound:
                if is_meant != (node == self._node):
                    yield Rule.BINDS
                    return
            elif is_meant != all(offers(one, node) for one in places):
                yield Rule.WHERE
                return

    def _probes(self, places: Iterable[Json]) -> Iterator[Node]:
        """Yield the node, and nodes with other names that differ from it in at most two labels."""
        places = list(places)
        yield self._node
        names = {one["nodeName"] for one in places if one.get("nodeName")} - {self._node.name} | {"other"}
        values: dict[str, list[str | None]] = {}
        for one in places:
            for requirement in requirements(one.get("nodeSelector") or {}):
                known = values.setdefault(requirement["key"], [None, "1000000", "other"])
                known.extend(requirement.get("values") or ())
        changes: list[dict[str, str | None]] = [{}]
        for number in (1, 2):
            for keys in combinations(values, number):
                changes += [dict(zip(keys, some, strict=True)) for some in product(*(values[key] for key in keys))]
        for name, change in product(sorted(names), changes):
            labels = {**self._node.labels, **change}
            yield Node(name, {key: value for key, value in labels.items() if value is not None})

    def _wrong_config(self, claim: int, taken: Sequence[_Taken], result: Json) -> Iterator[Rule]:
        """Yield a rule unless each request's configuration is that of its class, followed by that of its claim."""
        found = result["devices"].get("config") or ()
        for request in dict.fromkeys(one.request for one in taken):
            expected = [
                ("FromClass", one["opaque"])
                for one in self._classes[request.spec["deviceClassName"]].get("config") or ()
            ]
            expected += [
                ("FromClaim", one["opaque"])
                for one in self._claims[claim]["spec"]["devices"].get("config") or ()
                if request.is_named_by(one.get("requests") or ())
            ]
            if expected != [
                (one["source"], one["opaque"]) for one in found if request.is_named_by(one.get("requests") or ())
            ]:
                yield Rule.CONFIG
                return
