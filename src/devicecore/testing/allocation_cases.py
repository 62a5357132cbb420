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
    claims = [_claim(choose, number) for number in range(choose((1, 1, 1, 2)))]
    return {
        "node": NODE,
        "classes": CLASSES,
        "slices": slices,
        "claims": claims,
        "allocated": _allocated(choose, devices),
    }


def _pool(choose: Choose, number: int) -> list[Json]:
    driver, name = choose((GPU, GPU, NIC)), choose((f"n1-{number}", f"n1-{number}", "n1"))
    has_counters, is_per_device = choose((False, False, True)), choose((False,) * 5 + (True,))
    devices = [_device(choose, index, has_counters=has_counters) for index in range(choose((1, 2, 3, 3)))]
    place: Json = choose(
        ({"nodeName": "n1"},) * 12 + ({"allNodes": True}, {"nodeSelector": _selector("a")}, {"nodeName": "n2"})
    )
    if is_per_device:
        place = {"perDeviceNodeSelection": True}
        for device in devices:
            device.update(
                choose(({"nodeName": "n1"}, {"allNodes": True}, {"nodeSelector": _selector("b")}, {"nodeName": "n2"}))
            )
    if choose((False,) * 20 + (True,)):
        devices[-1]["name"] = "d0"
    parts = [{"devices": devices}]
    if len(devices) > 1 and choose((False, True)):
        parts = [{"devices": devices[:1]}, {"devices": devices[1:]}]
    if has_counters:
        value = choose(("1", "2", "3"))
        parts.append({"sharedCounters": [{"name": "set", "counters": {"slots": {"value": value}}}]})
    count = len(parts) + choose((0,) * 30 + (1,))
    generation = choose((1, 2))
    slices = [
        {
            "metadata": {"name": f"s{number}-{choose('abc')}{index}"},
            "spec": {
                "driver": driver,
                "pool": {"name": name, "generation": generation, "resourceSliceCount": count},
                **place,
                **part,
            },
        }
        for index, part in enumerate(parts)
    ]
    if choose((False,) * 5 + (True,)):
        old = {"name": name, "generation": 0, "resourceSliceCount": 1}
        spec = {"driver": driver, "pool": old, "nodeName": "n1", "devices": [{"name": "d0"}, {"name": "d9"}]}
        slices.append({"metadata": {"name": f"s{number}-old"}, "spec": spec})
    return slices


def _selector(zone: str) -> Json:
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]}


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
        amount = {"value": choose(("1", "2"))}
        device["consumesCounters"] = [{"counterSet": "set", "counters": {"slots": amount}}]
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
        if choose((False,) * 4 + (True,)):
            named = dict(zip(("driver", "pool", "device"), key, strict=True))
            if not body.get("allowMultipleAllocations"):
                allocated["devices"].append(named)
            else:
                allocated["shared"].append({**named, "shareID": "00000000-0000-4000-8000-000000000000"})
                if body.get("capacity"):
                    allocated["capacity"].append({**named, "consumed": {"memory": choose(("1", "2"))}})
    return allocated
