"""Small clusters and claims for comparing allocators with each other.

Law: a case is JSON that an API server could store. The same choices always produce the same case.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from devicecore.system.extras import needs_extra

with needs_extra("testing"):
    from hypothesis import strategies as st

Json = Any  # API objects
Choose = Callable[[Sequence[Any]], Any]
"""Returns one of several values."""

NODE: Json = {"metadata": {"name": "n1", "labels": {"zone": "a", "rank": "5"}}}
GPU, NIC = "gpu.example.com", "nic.example.com"
NUMA = "resource.kubernetes.io/numaNode"
_RAIL = "example.com/rail"


def _value(device: Json, kind: str, name: str) -> Json:
    values = device.get(kind, {})
    return values.get(name) or values.get(f"{GPU}/{name}") or {}


def _memory(driver: str, device: Json) -> int:
    return int(_value(device, "capacity", "memory").get("value", 0)) if driver == GPU else 0


def _numa(device: Json) -> bool | None:
    value = device.get("attributes", {}).get(NUMA)
    return None if value is None else bool(value == {"int": 0})


EXPRESSIONS: Mapping[str, Callable[[str, Any], bool | None]] = {
    f'device.driver == "{GPU}"': lambda driver, _: driver == GPU,
    f'device.driver == "{NIC}"': lambda driver, _: driver == NIC,
    "device.allowMultipleAllocations": lambda _, device: bool(device.get("allowMultipleAllocations")),
    "!device.allowMultipleAllocations": lambda _, device: not device.get("allowMultipleAllocations"),
    f'device.attributes["{GPU}"].?model.orValue("") == "A100"': (
        lambda driver, device: driver == GPU and _value(device, "attributes", "model") == {"string": "A100"}
    ),
    f'"memory" in device.capacity["{GPU}"] && device.capacity["{GPU}"].memory.compareTo(quantity("4")) >= 0': (
        lambda driver, device: _memory(driver, device) >= 4
    ),
    'device.attributes["resource.kubernetes.io"].numaNode == 0': lambda _, device: _numa(device),
}
"""The expressions in the cases, each with a function that returns its result for a device, or None for an error."""

_SAFE = tuple(EXPRESSIONS)[:-1]
_CLASSES: list[Json] = [
    {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": one}} for one in expressions]}}
    for name, expressions in (("any", ()), ("gpu", _SAFE[:1]), ("nic", _SAFE[1:2]), ("shared", _SAFE[2:3]))
]
CLASSES: list[Json] = [
    {"metadata": {"name": "any"}, "spec": {}},
    *_CLASSES[1:3],
    {**_CLASSES[3], "spec": {**_CLASSES[3]["spec"], "config": [{"opaque": {"driver": GPU, "parameters": {"a": 1}}}]}},
]
"""The classes in the cases. The last class has a configuration."""


def evaluate(expression: str, driver: str, device: Json) -> bool | None:
    """Return the result of a case's expression for a device, or None if evaluating the expression is an error."""
    return EXPRESSIONS[expression](driver, device)


def random_case(random: Random) -> Json:
    """Return a case as `allocation_judge` describes it, with the claims of up to two later pods as `later`."""
    return _case(random.choice)


@st.composite
def allocation_cases(draw: st.DrawFn) -> Json:
    """A strategy for cases. Cases shrink to a few simple objects."""
    return _case(lambda options: draw(st.sampled_from(options)))


def _one_of(choose: Choose, number: int) -> bool:
    """Return True with a probability of one in `number`."""
    return bool(choose((False,) * (number - 1) + (True,)))


def _case(choose: Choose) -> Json:
    has_lists = _one_of(choose, 12)
    slices: list[Json] = []
    for number in range(choose((1, 2, 2, 3))):
        slices += _pool(choose, number, has_lists=has_lists)
    pods = [_claims(choose) for _ in range(choose((1, 1, 1, 2, 3)))]
    return {
        "node": NODE,
        "classes": CLASSES,
        "slices": slices,
        "claims": pods[0],
        "later": pods[1:],
        "allocated": _allocated(choose, slices),
        **({"features": {"ListTypeAttributes": True}} if has_lists else {}),
    }


# --- slices -----------------------------------------------------------------------------------------------------------

HERE: Json = {"nodeName": "n1"}
ELSEWHERE: Json = {"nodeName": "n2"}
EVERYWHERE: Json = {"allNodes": True}
PER_DEVICE: Json = {"perDeviceNodeSelection": True}


def _selector(key: str, operator: str, *values: str) -> Json:
    requirement = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}


_ZONE_A, _ZONE_B = _selector("zone", "In", "a"), _selector("zone", "In", "b")
_SELECTORS = (
    _ZONE_A,
    _ZONE_A,
    _ZONE_B,
    _selector("zone", "NotIn", "b"),
    _selector("role", "DoesNotExist"),
    _selector("role", "Exists"),
    _selector("rank", "Gt", "4"),
    _selector("rank", "Lt", "5"),
    {
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
        }
    },
)


def _places(choose: Choose) -> Sequence[Json]:
    """Return the locations of a pool's slices, usually a single location for all of them."""
    found: Sequence[Json] = choose(
        ((HERE,),) * 10
        + ((EVERYWHERE,), (choose(_SELECTORS),), (ELSEWHERE,), (PER_DEVICE,), (PER_DEVICE,))
        + ((HERE, ELSEWHERE), (HERE, HERE, ELSEWHERE), (HERE, EVERYWHERE), (_ZONE_A, _ZONE_B), (HERE, _ZONE_A, _ZONE_B))
    )
    return found


def _pool(choose: Choose, number: int, *, has_lists: bool) -> list[Json]:
    """Return the slices of a pool, which may be incomplete, stale, inconsistent, or on several nodes."""
    driver, name = choose((GPU, GPU, NIC)), choose((f"n1-{number}", f"n1-{number}", "n1"))
    sets = choose(((), (), ("set",), ("set", "other"))) if not _one_of(choose, 30) else ("set", "set")
    devices = [
        _device(choose, index, driver, sets=sets, has_lists=has_lists) for index in range(choose((1, 2, 2, 3, 3, 4)))
    ]
    if len(devices) > 1 and _one_of(choose, 30):
        devices[-1]["name"] = "d0"
    cut = choose(range(len(devices)))
    parts: list[Json] = [{"devices": some} for some in (devices[:cut], devices[cut:]) if some]
    parts += [{"sharedCounters": some} for some in _counters(choose, sets)]
    count = len(parts) + choose((0,) * 24 + (1,))
    generation = choose((1, 2, 3))
    places = _places(choose)
    slices = []
    for index, part in enumerate(parts):
        pool = {"name": name, "generation": generation, "resourceSliceCount": count + choose((0,) * 40 + (1, -1))}
        pool["resourceSliceCount"] = max(1, pool["resourceSliceCount"])
        place = choose(places)
        if "devices" in part and place == PER_DEVICE:
            for device in part["devices"]:
                device.update(choose((HERE, HERE, EVERYWHERE, choose(_SELECTORS), ELSEWHERE)))
        elif place == PER_DEVICE:
            place = EVERYWHERE
        spec = {"driver": driver, "pool": pool, **place, **part}
        slices.append({"metadata": {"name": f"s{number}-{choose('abc')}{index}"}, "spec": spec})
    if _one_of(choose, 5):
        slices.append(_stray(choose, number, slices[0]["spec"]))
    if _one_of(choose, 25):
        slices.pop(choose(range(len(slices))))
    return slices


def _counters(choose: Choose, sets: Sequence[str]) -> list[list[Json]]:
    """Return the counter sets of a pool, in one or two slices.

    The counters' values may be lower than what is in use.
    """
    made = [
        {
            "name": name,
            "counters": {counter: {"value": choose(("1", "2", "3", "4"))} for counter in ("slots", "memory")},
        }
        for name in sets
    ]
    if not made:
        return []
    parts: list[list[Json]] = choose(([made], [made], [made[:1], made[1:]]))
    return [part for part in parts if part]


def _stray(choose: Choose, number: int, spec: Json) -> Json:
    """Return an additional slice of a pool, usually of a different generation, with devices or with counters."""
    generation = spec["pool"]["generation"] + choose((-1, -1, 0, 1))
    pool = {**spec["pool"], "generation": generation, "resourceSliceCount": choose((1, 1, 2))}
    part: Json = choose(
        (
            {"devices": [{"name": "d0"}, {"name": "d9"}]},
            {"sharedCounters": [{"name": "set", "counters": {"slots": {"value": "2"}}}]},
        )
    )
    place = choose((HERE, HERE, ELSEWHERE, EVERYWHERE))
    return {
        "metadata": {"name": f"s{number}-{choose(('old', 'z'))}"},
        "spec": {"driver": spec["driver"], "pool": pool, **place, **part},
    }


def _device(choose: Choose, index: int, driver: str, *, sets: Sequence[str], has_lists: bool) -> Json:
    device: Json = {"name": f"d{index}", "attributes": {}}
    if (node := choose((None, 0, 0, 1, 1, 1))) is not None:
        device["attributes"][NUMA] = {"int": node}
    if model := choose((None, "A100", "A100", "L4")):
        device["attributes"][choose(("model",) * 9 + (f"{driver}/model",))] = {"string": model}
    if rail := choose((None, None, *_rails(has_lists=has_lists))):
        device["attributes"][_RAIL] = rail
    if choose((False, False, True)):
        device["allowMultipleAllocations"] = True
    capacities = {
        name: _capacity(choose, device) for name in choose(((), ("memory",), ("memory",), ("memory", "cores")))
    }
    if capacities:
        device["capacity"] = capacities
    if _one_of(choose, 5):
        device["taints"] = [
            {"key": choose(("k1", "k2")), "value": "v", "effect": choose(("NoSchedule", "NoExecute", "None", "Other"))}
            for _ in range(choose((1, 1, 2)))
        ]
    if sets and choose((False, True, True)):
        used = choose(
            (sets[:1], sets[:1], sets[-1:], tuple(dict.fromkeys(sets)), ("none",) if _one_of(choose, 8) else sets[:1])
        )
        device["consumesCounters"] = [_consumption(choose, name) for name in used]
    if _one_of(choose, 8):
        device |= {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
        if choose((False, True)):
            device["bindsToNode"] = True
    return device


def _rails(*, has_lists: bool) -> Sequence[Json]:
    scalars: Sequence[Json] = ({"string": "1"}, {"string": "2"}, {"int": 1}, {"version": "1.0.0"}, {"bool": True})
    lists: Sequence[Json] = ({"strings": ["1", "2"]}, {"strings": ["2", "3"]}, {"ints": [1]}, {"strings": ["3"]})
    return (*scalars, *lists, *lists) if has_lists else scalars


def _capacity(choose: Choose, device: Json) -> Json:
    capacity: Json = {"value": choose(("2", "4", "6"))}
    policy = choose(
        (
            None,
            None,
            {"default": "1"},
            {"default": "0"},
            {"default": "1", "validValues": ["1", "2"]},
            {"default": "2", "validValues": ["2"]},
            {"default": "1", "validRange": {"min": "1", "max": "2"}},
            {"default": "1", "validRange": {"min": "1"}},
            {"default": "2", "validRange": {"min": "0", "max": "2", "step": "2"}},
        )
    )
    return {**capacity, "requestPolicy": policy} if policy and device.get("allowMultipleAllocations") else capacity


def _consumption(choose: Choose, name: str) -> Json:
    counters = choose((("slots",), ("slots",), ("memory",), ("slots", "memory")))
    if _one_of(choose, 40):
        counters = ("unknown",)
    return {
        "counterSet": name,
        "counters": {one: {"value": choose(("1",) * 5 + ("2",) * 3 + ("3", "3", "0"))} for one in counters},
    }


# --- claims -----------------------------------------------------------------------------------------------------------


def _claims(choose: Choose) -> list[Json]:
    """Return the claims of a pod."""
    return [_claim(choose, number) for number in range(choose((1, 1, 1, 2, 3)))]


def _claim(choose: Choose, number: int) -> Json:
    requests = [_request(choose, f"r{index}") for index in range(choose((1, 2, 2)))]
    names = [one["name"] for one in requests] + [
        f"{one['name']}/{two['name']}" for one in requests for two in one.get("firstAvailable", ())
    ]
    devices: Json = {"requests": requests}
    constraints = []
    for _ in range(choose((0, 0, 0, 1, 2))):
        kind, attribute = choose(("matchAttribute", "distinctAttribute")), choose((NUMA, f"{GPU}/model", _RAIL))
        about = choose(([], [], [choose(names)]))
        constraints.append({kind: attribute} | ({"requests": about} if about else {}))
    if constraints:
        devices["constraints"] = constraints
    if _one_of(choose, 8):
        about = choose(([], [choose(names)]))
        opaque = {"opaque": {"driver": GPU, "parameters": {"b": 2}}}
        devices["config"] = [opaque | ({"requests": about} if about else {})]
    return {"metadata": {"name": f"c{number}", "namespace": "default"}, "spec": {"devices": devices}}


def _request(choose: Choose, name: str) -> Json:
    if choose((False, False, True)):
        alternatives = [{"name": f"a{index}", **_wanted(choose)} for index in range(choose((1, 2, 2, 3)))]
        return {"name": name, "firstAvailable": alternatives}
    return {"name": name, "exactly": _wanted(choose) | ({"adminAccess": True} if _one_of(choose, 6) else {})}


def _wanted(choose: Choose) -> Json:
    wanted: Json = {
        "deviceClassName": choose(("any", "any", "any", "gpu", "gpu", "nic", "shared")),
        "allocationMode": "ExactCount",
        "count": choose((1, 1, 1, 1, 2, 2, 3)),
    }
    if _one_of(choose, 4):
        wanted = {"deviceClassName": wanted["deviceClassName"], "allocationMode": "All"}
    if _one_of(choose, 5):
        expressions = _SAFE * 4 + tuple(EXPRESSIONS)
        wanted["selectors"] = [{"cel": {"expression": choose(expressions)}}]
    if _one_of(choose, 60):
        wanted["deviceClassName"] = "missing"
    if _one_of(choose, 3):
        wanted["tolerations"] = [
            choose(
                (
                    {"operator": "Exists"},
                    {"operator": "Exists", "effect": "NoSchedule"},
                    {"key": "k1", "operator": "Equal", "value": "v"},
                    {"key": "k1", "operator": "Equal", "value": "w"},
                    {"key": "k2", "operator": "Exists", "effect": "NoExecute"},
                )
            )
        ]
    if _one_of(choose, 4):
        wanted["capacity"] = {"requests": choose(_AMOUNTS)}
    return wanted


_AMOUNTS: Sequence[Json] = (
    *({"memory": "1"}, {"memory": "2"}, {"memory": "3"}, {"cores": "1"}) * 3,
    *({"memory": "1500m"}, {"memory": "1", "cores": "2"}, {f"{GPU}/memory": "1"}),
)


def _allocated(choose: Choose, slices: Sequence[Json]) -> Json:
    """Return what is already allocated: devices from any slice, and sometimes a device that is no longer published."""
    allocated: Json = {"devices": [], "shared": [], "capacity": []}
    bodies: dict[tuple[str, str, str], Json] = {}
    for one in slices:
        spec = one["spec"]
        for device in (*spec.get("devices", ()), *([{"name": "gone"}] if _one_of(choose, 20) else ())):
            bodies[spec["driver"], spec["pool"]["name"], device["name"]] = device
    for key, body in bodies.items():
        if not _one_of(choose, 4):
            continue
        named = dict(zip(("driver", "pool", "device"), key, strict=True))
        # Since the allocation, a driver may have changed whether the device can be shared.
        if bool(body.get("allowMultipleAllocations")) == _one_of(choose, 15):
            allocated["devices"].append(named)
            continue
        for share in range(choose((1, 1, 2))):
            allocated["shared"].append({**named, "shareID": f"00000000-0000-4000-8000-00000000000{share}"})
        if body.get("capacity") and not _one_of(choose, 8):
            consumed = {name: choose(("0", "1", "2")) for name in body["capacity"]}
            if _one_of(choose, 15):  # the driver used different names when the device was allocated
                consumed = {f"{key[0]}/{name}": amount for name, amount in consumed.items() if "/" not in name}
            allocated["capacity"].append({**named, "consumed": consumed})
    return allocated
