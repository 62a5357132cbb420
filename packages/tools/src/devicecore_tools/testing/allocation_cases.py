"""Small clusters and claims, for allocators to be compared with each other.

Law: a case is what an API server could hold, as JSON. The same choices make the same case.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from devicecore.system.extras import needs_extra

with needs_extra("testing"):
    from hypothesis import strategies as st

Json = Any  # API objects
T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]
"""Returns one of several things."""

NODE: Json = {"metadata": {"name": "n1", "labels": {"zone": "a"}}}
GPU, NIC = "gpu.example.com", "nic.example.com"
NUMA = "resource.kubernetes.io/numaNode"

EXPRESSIONS: Mapping[str, Callable[[str, Any], bool]] = {
    f'device.driver == "{GPU}"': lambda driver, _: driver == GPU,
    f'device.driver == "{NIC}"': lambda driver, _: driver == NIC,
    "device.allowMultipleAllocations": lambda _, device: bool(device.get("allowMultipleAllocations")),
    f'device.attributes["{GPU}"].?model.orValue("") == "A100"': (
        lambda driver, device: driver == GPU and device.get("attributes", {}).get("model") == {"string": "A100"}
    ),
}
"""The expressions of the cases, and what each says of a driver and a device of the API."""

CLASSES: list[Json] = [
    {"metadata": {"name": "any"}, "spec": {}},
    *(
        {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        for name, expression in zip(("gpu", "nic"), EXPRESSIONS, strict=False)
    ),
]


def random_case(random: Random) -> Json:
    """Return a case: `node`, `classes`, `slices`, `claims` and `allocated` (see `allocation_judge`)."""
    return _case(random.choice)


@st.composite
def allocation_cases(draw: st.DrawFn) -> Json:
    """Strategy for cases. They shrink to few and simple objects."""
    return _case(lambda options: draw(st.sampled_from(options)))


def _case(choose: Choose) -> Json:
    slices: list[Json] = []
    for number in range(choose((1, 2, 2))):
        slices += _pool(choose, number)
    devices = [
        {"driver": one["spec"]["driver"], "pool": one["spec"]["pool"]["name"], "device": device["name"], "body": device}
        for one in slices
        for device in one["spec"].get("devices", ())
    ]
    claims = [_claim(choose, number) for number in range(choose((1, 1, 1, 2, 3)))]
    return {
        "node": NODE,
        "classes": CLASSES,
        "slices": slices,
        "claims": claims,
        "allocated": _allocated(choose, devices),
    }


def _pool(choose: Choose, number: int) -> list[Json]:
    """Return the slices of a pool, which may be incomplete, stale, of several nodes, or contradict themselves."""
    driver, name = choose((GPU, GPU, NIC)), choose((f"n1-{number}", f"n1-{number}", "n1"))
    has_counters = choose((False, False, True))
    devices = [_device(choose, index, has_counters=has_counters) for index in range(choose((1, 2, 3, 3)))]
    places = _places(choose)
    if choose((False,) * 20 + (True,)):
        devices[-1]["name"] = "d0"
    cut = choose((0, 1)) if len(devices) > 1 else 0
    parts: list[Json] = [{"devices": some} for some in (devices[:cut], devices[cut:]) if some]
    if has_counters:
        parts += [{"sharedCounters": sets} for sets in _counters(choose)]
    count = len(parts) + choose((0,) * 20 + (1,))
    generation = choose((1, 2))
    slices = []
    for index, part in enumerate(parts):
        pool = {"name": name, "generation": generation, "resourceSliceCount": count + choose((0,) * 30 + (1, -1))}
        place = choose(places)
        if "devices" in part and place == PER_DEVICE:
            for device in part["devices"]:
                device.update(choose(({"nodeName": "n1"}, EVERYWHERE, {"nodeSelector": _selector("b")}, ELSEWHERE)))
        elif place == PER_DEVICE:
            place = EVERYWHERE
        spec = {"driver": driver, "pool": pool, **place, **part}
        slices.append({"metadata": {"name": f"s{number}-{choose('abc')}{index}"}, "spec": spec})
    if choose((False,) * 4 + (True,)):
        slices.append(_stray(choose, number, slices[0]["spec"]))
    if choose((False,) * 20 + (True,)):
        slices.pop(choose(range(len(slices))))
    return slices


HERE: Json = {"nodeName": "n1"}
ELSEWHERE: Json = {"nodeName": "n2"}
EVERYWHERE: Json = {"allNodes": True}
PER_DEVICE: Json = {"perDeviceNodeSelection": True}


def _places(choose: Choose) -> Sequence[Json]:
    """Return the places of the slices of one pool: usually one for all of them."""
    by_label = {"nodeSelector": _selector("a")}, {"nodeSelector": _selector("b")}
    found: Sequence[Json] = choose(
        ((HERE,),) * 12
        + ((EVERYWHERE,), by_label[:1], (ELSEWHERE,), (PER_DEVICE,), (PER_DEVICE,))
        + ((HERE, ELSEWHERE), (HERE, HERE, ELSEWHERE), (HERE, EVERYWHERE), by_label, (HERE, *by_label))
    )
    return found


def _counters(choose: Choose) -> list[list[Json]]:
    """Return the sets of counters of a pool, in one slice or two. What they have may be less than what is in use."""
    sets = [
        {"name": name, "counters": {counter: {"value": choose(("1", "2", "3"))} for counter in ("slots", "memory")}}
        for name in ("set", "other")
    ]
    parts: list[list[Json]] = choose(([sets], [sets], [sets[:1], sets[1:]]))
    return parts


def _stray(choose: Choose, number: int, spec: Json) -> Json:
    """Return a slice of another generation of a pool, with devices or with counters."""
    pool = {**spec["pool"], "generation": choose((0, 1, 2, 3)), "resourceSliceCount": choose((1, 1, 2))}
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


def _selector(zone: str) -> Json:
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]}


_USES: Sequence[Sequence[tuple[str, Sequence[str]]]] = (
    *((("set", ("slots",)),) for _ in range(4)),
    (("set", ("slots", "memory")),),
    (("other", ("slots",)),),
    (("other", ("memory",)), ("set", ("slots",))),
    (("none", ("slots",)),),
)
"""Counters that a device consumes, by set. The last set is not there, which makes its pool invalid."""


def _device(choose: Choose, index: int, *, has_counters: bool) -> Json:
    device: Json = {"name": f"d{index}", "attributes": {}}
    if (node := choose((None, 0, 0, 1, 1, 1))) is not None:
        device["attributes"][NUMA] = {"int": node}
    if model := choose((None, "A100", "A100", "L4")):
        device["attributes"]["model"] = {"string": model}
    if choose((False, False, True)):
        device["allowMultipleAllocations"] = True
    memory = {"value": choose(("2", "4"))}
    policy = choose(
        (
            None,
            {"default": "1"},
            {"default": "1", "validValues": ["1", "2"]},
            {"default": "1", "validRange": {"min": "1", "max": "3", "step": "2"}},
        )
    )
    if policy and device.get("allowMultipleAllocations"):
        memory["requestPolicy"] = policy
    if choose((False, True)):
        device["capacity"] = {"memory": memory}
    if choose((False,) * 4 + (True,)):
        effect = choose(("NoSchedule", "NoExecute", "None"))
        device["taints"] = [{"key": choose(("k1", "k2")), "value": "v", "effect": effect}]
    if has_counters and choose((False, True, True)):
        device["consumesCounters"] = [
            {"counterSet": name, "counters": {one: {"value": choose(("1", "2"))} for one in counters}}
            for name, counters in choose(_USES)
        ]
    if choose((False,) * 7 + (True,)):
        device |= {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
    return device


def _claim(choose: Choose, number: int) -> Json:
    requests = [_request(choose, f"r{index}") for index in range(choose((1, 2, 2)))]
    names = [one["name"] for one in requests] + [
        f"{one['name']}/{two['name']}" for one in requests for two in one.get("firstAvailable", ())
    ]
    constraints = []
    for _ in range(choose((0, 0, 0, 1, 2))):
        kind, attribute = choose(("matchAttribute", "distinctAttribute")), choose((NUMA, f"{GPU}/model"))
        about = choose(([], [], [choose(names)]))
        constraints.append({kind: attribute} | ({"requests": about} if about else {}))
    devices = {"requests": requests} | ({"constraints": constraints} if constraints else {})
    return {"metadata": {"name": f"c{number}", "namespace": "default"}, "spec": {"devices": devices}}


def _request(choose: Choose, name: str) -> Json:
    if choose((False, False, True)):
        alternatives = [{"name": f"a{index}", **_wanted(choose)} for index in range(choose((1, 2, 2, 3)))]
        return {"name": name, "firstAvailable": alternatives}
    wanted = _wanted(choose)
    return {"name": name, "exactly": wanted | ({"adminAccess": True} if choose((False,) * 5 + (True,)) else {})}


def _wanted(choose: Choose) -> Json:
    wanted: Json = {
        "deviceClassName": choose(("any", "any", "gpu", "gpu", "nic")),
        "allocationMode": "ExactCount",
        "count": choose((1, 1, 1, 1, 2, 2, 3)),
    }
    if choose((False, False, False, True)):
        wanted = {"deviceClassName": wanted["deviceClassName"], "allocationMode": "All"}
    if choose((False,) * 4 + (True,)):
        wanted["selectors"] = [{"cel": {"expression": choose(tuple(EXPRESSIONS))}}]
    if choose((False, False, True)):
        toleration = choose(
            (
                {"operator": "Exists"},
                {"key": "k1", "operator": "Equal", "value": "v"},
                {"key": "k2", "operator": "Exists", "effect": "NoExecute"},
            )
        )
        wanted["tolerations"] = [toleration]
    if choose((False, False, False, True)):
        wanted["capacity"] = {"requests": {"memory": choose(("1", "2", "3"))}}
    return wanted


def _allocated(choose: Choose, devices: Sequence[Json]) -> Json:
    allocated: Json = {"devices": [], "shared": [], "capacity": []}
    keys = {(one["driver"], one["pool"], one["device"]): one["body"] for one in devices}
    for key, body in keys.items():
        if choose((False,) * 2 + (True,)):
            named = dict(zip(("driver", "pool", "device"), key, strict=True))
            if not body.get("allowMultipleAllocations"):
                allocated["devices"].append(named)
            else:
                allocated["shared"].append({**named, "shareID": "00000000-0000-4000-8000-000000000000"})
                if body.get("capacity"):
                    allocated["capacity"].append({**named, "consumed": {"memory": choose(("1", "2"))}})
    return allocated
