"""Pods in small clusters that request devices in every way that the API offers."""

from typing import Any

from tests.real_cluster.situations_of_pods import (
    GPU,
    HOST,
    IMPLICIT,
    INIT,
    MODEL,
    NIC,
    PLUGIN,
    SERVED,
    WAYS,
    Situation,
    a_claim,
    a_node,
    a_pod,
    a_port,
    a_request,
    a_rule,
    a_share,
    a_slice,
    affinity,
    bound,
    by_label,
    divided,
    one,
    with_memory,
)

Json = Any

NUMA = "resource.kubernetes.io/numaNode"
MATCH = {"matchAttribute": NUMA}
BOTH = a_request(name="g"), a_request("nic", name="n")
VALUES = {"default": "2Gi", "validValues": ["1Gi", "2Gi", "4Gi", "8Gi"]}
THREE_WAYS = {
    "name": "r",
    "firstAvailable": [
        {"name": "a", "deviceClassName": "nic"},
        {"name": "b", "deviceClassName": "gpu", "count": 5},
        {"name": "c", "deviceClassName": "gpu", "selectors": [{"cel": {"expression": MODEL.format("A")}}]},
    ],
}


def having(node: str, *devices: Json, driver: str = GPU, where: Json = None, **pool: int) -> Json:
    """Return a slice with these devices, which are named d0, d1 and so on."""
    made = a_slice(node, driver, 0, where)
    named = [{"name": f"d{number}", **of} for number, of in enumerate(devices)]
    return {**made, "spec": {**made["spec"], "devices": named, "pool": {**made["spec"]["pool"], **pool}}}


def on_numa(node: int) -> Json:
    """Return a device on a NUMA node."""
    return {"attributes": {NUMA: {"int": node}}}


def of_model(model: str) -> Json:
    """Return a device with a model."""
    return {"attributes": {"model": {"string": model}}}


def marked(effect: str = "NoSchedule") -> Json:
    """Return a device's taints."""
    return {"taints": [{"key": "hot", "value": "x", "effect": effect}]}


def tolerated(**fields: str) -> Json:
    """Return a request that tolerates a device taint."""
    return a_request(tolerations=[{"key": "hot", **fields}])


def init(**fields: Json) -> Json:
    """Return a pod's field for one init container with limits."""
    limits = fields.pop("limits")
    return {"initContainers": [{**INIT, "resources": {"limits": limits}, **fields}]}


def alone(pod: Json, *objects: Json) -> Situation:
    """Return a situation with one node and the given objects."""
    return Situation((a_node("n1"), *objects), pod)


def beside(pod: Json, *objects: Json, **labels: Json) -> Situation:
    """Return a situation with two nodes and the given objects. The second node may have labels."""
    return Situation((a_node("n1"), a_node("n2", labels or None), *objects), pod)


def counted(total: Json, *used: Json) -> tuple[Json, Json]:
    """Return the two slices of a pool on n1: counters, and devices that consume these counters."""
    sets = [{"name": "s", "counters": {name: {"value": of} for name, of in total.items()}}]
    counters = having("n1", resourceSliceCount=2)
    spec = {name: of for name, of in counters["spec"].items() if name != "devices"}
    devices = (
        {"consumesCounters": [{"counterSet": "s", "counters": {name: {"value": of} for name, of in uses.items()}}]}
        for uses in used
    )
    metadata = {"name": "counters"}
    return (
        {**counters, "metadata": metadata, "spec": {**spec, "sharedCounters": sets}},
        having("n1", *devices, resourceSliceCount=2),
    )


def reserved_for(uid: str) -> Json:
    """Return a claim that is reserved for an earlier pod with the same name."""
    claim = a_claim("c", held=("n1", "d0"))
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": "ask", "uid": uid}]
    return claim


def with_containers(*used: Json) -> Json:
    """Return a pod with one container for each reference to a claim."""
    pod = a_pod("c")
    containers = [
        {"name": f"k{number}", "image": "registry.example/app:1", "resources": {"claims": [of]}}
        for number, of in enumerate(used)
    ]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}


LARGE = [{"capacity": {"memory": {"value": size}}} for size in ("16Gi", "32Gi")]
PER_DEVICE = having("p", {"nodeName": "n1"}, {"nodeName": "n2"}, where={"perDeviceNodeSelection": True})
OF_A_RACK = {"nodeSelector": {"nodeSelectorTerms": [by_label("rack", "In", "r1")]}}
LIKES: Json = {
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": by_label("z", "In", "a")}]
        }
    }
}

OF_REQUESTS: dict[str, Situation] = {
    # constraints
    "distinct": alone(
        a_pod("c"),
        having("n1", *map(of_model, "AAB")),
        a_claim("c", a_request(count=2), constraints=[{"distinctAttribute": f"{GPU}/model"}]),
    ),
    "distinct-too-many": alone(
        a_pod("c"),
        having("n1", *map(of_model, "AAB")),
        a_claim("c", a_request(count=3), constraints=[{"distinctAttribute": f"{GPU}/model"}]),
    ),
    "match-of-two-requests": beside(
        a_pod("c"),
        having("n1", on_numa(0)),
        having("n1", on_numa(1), driver=NIC),
        having("n2", on_numa(0), on_numa(1)),
        having("n2", on_numa(1), driver=NIC),
        a_claim("c", *BOTH, constraints=[MATCH]),
    ),
    "match-of-two-requests-nowhere": alone(
        a_pod("c"),
        having("n1", on_numa(0)),
        having("n1", on_numa(1), driver=NIC),
        a_claim("c", *BOTH, constraints=[MATCH]),
    ),
    "match-of-one-request": alone(
        a_pod("c"),
        having("n1", on_numa(0)),
        having("n1", on_numa(1), driver=NIC),
        a_claim("c", *BOTH, constraints=[{**MATCH, "requests": ["g"]}]),
    ),
    "match-without-the-attribute": alone(
        a_pod("c"), having("n1", on_numa(0), {}), a_claim("c", a_request(count=2), constraints=[MATCH])
    ),
    # alternatives, and all devices
    "third-alternative": one(a_pod("c"), claim=a_claim("c", THREE_WAYS)),
    "no-alternative": alone(a_pod("c"), a_slice("n1", count=1), a_claim("c", THREE_WAYS)),
    "alternative-with-a-constraint": alone(
        a_pod("c"),
        having("n1", on_numa(0), on_numa(0)),
        having("n1", on_numa(1), driver=NIC),
        a_claim("c", WAYS, constraints=[{**MATCH, "requests": ["r"]}]),
    ),
    "all-and-one-of-another": one(
        a_pod("c"),
        a_slice("n1", NIC),
        claim=a_claim("c", a_request(name="a", allocationMode="All"), a_request("nic", name="n")),
    ),
    "all-of-none": one(a_pod("c"), claim=a_claim("c", a_request("nic", allocationMode="All"))),
    "all-and-one-of-the-same": one(
        a_pod("c"), claim=a_claim("c", a_request(name="a", allocationMode="All"), a_request(name="n"))
    ),
    "two-drivers-on-two-nodes": beside(a_pod("c"), a_slice("n1"), a_slice("n2", NIC), a_claim("c", *BOTH)),
    # taints of devices
    "device-taint": alone(a_pod("c"), a_slice("n1", **marked()), a_claim("c")),
    "device-taint-no-execute": alone(a_pod("c"), a_slice("n1", **marked("NoExecute")), a_claim("c")),
    "device-taint-none": alone(a_pod("c"), a_slice("n1", **marked("None")), a_claim("c")),
    "device-taint-tolerated": alone(
        a_pod("c"), a_slice("n1", **marked()), a_claim("c", tolerated(operator="Equal", value="x"))
    ),
    "device-taint-of-another-value": alone(
        a_pod("c"), a_slice("n1", **marked()), a_claim("c", tolerated(operator="Equal", value="y"))
    ),
    "device-taint-of-another-effect": alone(
        a_pod("c"), a_slice("n1", **marked()), a_claim("c", tolerated(operator="Exists", effect="NoExecute"))
    ),
    "device-taint-of-one": alone(a_pod("c"), having("n1", marked(), {}), a_claim("c")),
    "device-taint-and-all": alone(
        a_pod("c"), having("n1", marked(), {}), a_claim("c", a_request(allocationMode="All"))
    ),
    "device-taint-and-served": alone(a_pod(limits={SERVED: "2"}), having("n1", marked(), {})),
    "rule-no-execute-of-one": one(
        a_pod("c"), a_rule("NoExecute", driver=GPU, pool="n1", device="d0"), claim=a_claim("c", a_request(count=2))
    ),
    # pools
    "pool-without-a-slice": alone(a_pod("c"), having("n1", {}, {}, resourceSliceCount=2), a_claim("c")),
    "pool-without-a-slice-and-all": alone(
        a_pod("c"),
        having("n1", {}, {}, resourceSliceCount=2),
        a_claim("c", a_request(allocationMode="All")),
    ),
    "pool-of-a-rack": beside(a_pod("c"), a_slice("rack", where=OF_A_RACK), a_claim("c"), rack="r1"),
    "pool-of-a-rack-held": beside(
        a_pod("c"),
        a_slice("rack", count=1, where=OF_A_RACK),
        a_claim("c"),
        a_claim("h", held=("rack", "d0"), by=["x"]),
        rack="r1",
    ),
    "devices-of-two-nodes": beside(a_pod("c", nodeSelector={HOST: "n2"}), PER_DEVICE, a_claim("c")),
    "devices-of-two-nodes-both": beside(a_pod("c"), PER_DEVICE, a_claim("c", a_request(count=2))),
    "devices-of-two-nodes-all": beside(
        a_pod("c", nodeSelector={HOST: "n1"}), PER_DEVICE, a_claim("c", a_request(allocationMode="All"))
    ),
    # capacity
    "capacity-of-a-whole-device": alone(a_pod("c"), having("n1", *LARGE), a_claim("c", with_memory("20Gi"))),
    "capacity-of-two-whole-devices": alone(
        a_pod("c"), having("n1", *LARGE), a_claim("c", with_memory("20Gi", count=2))
    ),
    "capacity-of-no-device": alone(
        a_pod("c"), having("n1", *LARGE), a_claim("c", a_request(capacity={"requests": {"cores": "2"}}))
    ),
    "share-rounded-up": alone(
        a_pod("c"), divided("16Gi", VALUES), a_claim("c", with_memory("3Gi")), a_share("h", "8Gi")
    ),
    "share-rounded-up-too-large": alone(
        a_pod("c"), divided("16Gi", VALUES), a_claim("c", with_memory("5Gi")), a_share("h", "12Gi")
    ),
    "share-above-all-values": alone(a_pod("c"), divided("16Gi", VALUES), a_claim("c", with_memory("9Gi"))),
    "two-shares": alone(
        a_pod("c"), divided("16Gi"), a_claim("c", with_memory("8Gi", name="a"), with_memory("8Gi", name="b"))
    ),
    "two-shares-too-large": alone(
        a_pod("c"), divided("16Gi"), a_claim("c", with_memory("8Gi", name="a"), with_memory("9Gi", name="b"))
    ),
    # expressions
    "expression-of-capacity": alone(
        a_pod("c"),
        having("n1", *LARGE),
        a_claim("c", a_request(expression=f'device.capacity["{GPU}"].memory.compareTo(quantity("30Gi")) >= 0')),
    ),
    "expression-of-a-version": alone(
        a_pod("c"),
        having("n1", {"attributes": {"v": {"version": "12.4.0"}}}),
        a_claim("c", a_request(expression=f'device.attributes["{GPU}"].v.isGreaterThan(semver("13.0.0"))')),
    ),
    "expression-of-another-domain": one(
        a_pod("c"), claim=a_claim("c", a_request(expression=f'device.attributes["{NIC}"].model == "A"'))
    ),
    "expression-with-an-optional": one(
        a_pod("c"), claim=a_claim("c", a_request(expression=f'device.attributes["{GPU}"].?lost.orValue("") == "x"'))
    ),
    # counters
    "counters-of-two-kinds": alone(
        a_pod("c"),
        *counted({"mem": "40Gi", "sm": "7"}, *[{"mem": "10Gi", "sm": "4"}] * 2),
        a_claim("c", a_request(count=2)),
    ),
    "counters-that-suffice": alone(
        a_pod("c"),
        *counted({"mem": "40Gi", "sm": "8"}, *[{"mem": "10Gi", "sm": "4"}] * 2),
        a_claim("c", a_request(count=2)),
    ),
    "counters-that-others-use": alone(
        a_pod("c"),
        *counted({"mem": "40Gi"}, {"mem": "40Gi"}, {"mem": "10Gi"}, {"mem": "30Gi"}),
        a_claim("c"),
        a_claim("h", held=("n1", "d1"), by=["x"]),
    ),
    # claims that have devices
    "reserved-for-a-former-pod": beside(
        a_pod("c", limits={"cpu": "8"}),
        a_slice("n1"),
        a_slice("n2"),
        reserved_for("uid-former"),
        bound("n1", "b", {"cpu": "4"}),
    ),
    "unreserved-and-its-node-is-full": beside(
        a_pod("c", limits={"cpu": "8"}),
        a_slice("n1"),
        a_slice("n2"),
        a_claim("c", held=("n1", "d0")),
        bound("n1", "b", {"cpu": "4"}),
    ),
    "two-claims-on-two-nodes": beside(
        a_pod("c", "d"),
        a_slice("n1"),
        a_slice("n2"),
        a_claim("c", held=("n1", "d0"), by=["x"]),
        a_claim("d", held=("n2", "d0"), by=["y"]),
    ),
    # priorities
    "preemption-of-a-holder": alone(
        a_pod("c", priority=1000),
        a_slice("n1", count=1),
        a_claim("c"),
        a_claim("h", held=("n1", "d0"), by=["b"]),
        bound("n1", "b"),
    ),
    "preemption-and-devices": beside(
        a_pod("c", limits={"cpu": "6"}, priority=1000), a_slice("n1"), a_claim("c"), bound("n1", "b", {"cpu": "4"})
    ),
    # extended resources that classes serve
    "served-init-container-larger": one(a_pod(limits={SERVED: "1"}, **init(limits={SERVED: "3"}))),
    "served-init-container-by-both-names": one(a_pod(limits={SERVED: "2"}, **init(limits={IMPLICIT: "1"}))),
    "served-sidecar": one(a_pod(limits={SERVED: "2"}, **init(limits={SERVED: "1"}, restartPolicy="Always"))),
    "served-sidecar-that-fits": one(a_pod(limits={SERVED: "1"}, **init(limits={SERVED: "1"}, restartPolicy="Always"))),
    "served-request-alone": one(a_pod(requests={IMPLICIT: "1"})),
    "served-too-many-for-one-claim": alone(a_pod(limits={SERVED: "33"}), a_slice("n1", count=40)),
    "served-nothing": alone(a_pod(limits={SERVED: "0"})),
    "served-beside-cpu": one(a_pod(limits={SERVED: "1"}, requests={"cpu": "1", "memory": "1Gi"})),
    "served-and-a-plugin": Situation(
        (a_node("n1"), a_node("n2", card="1"), a_slice("n1"), a_slice("n2")), a_pod(limits={SERVED: "1", PLUGIN: "1"})
    ),
    "served-by-no-class": one(a_pod(limits={"deviceclass.resource.kubernetes.io/none": "1"})),
    # containers
    "a-request-for-each-container": one(
        with_containers({"name": "c", "request": "g"}, {"name": "c", "request": "n"}),
        a_slice("n1", NIC),
        claim=a_claim("c", *BOTH),
    ),
    "port-of-a-sidecar": alone(
        a_pod(initContainers=[{**INIT, "restartPolicy": "Always", "ports": a_port(80)}]),
        bound("n1", "b", ports=a_port(80)),
    ),
    "port-of-an-init-container": alone(
        a_pod(initContainers=[{**INIT, "ports": a_port(80)}]), bound("n1", "b", ports=a_port(80))
    ),
    # nodes
    "not-ready-for-a-while": one(
        a_pod("c"), node=a_node("n1", taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}])
    ),
    "not-ready": one(
        a_pod("c"), node=a_node("n1", taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
    ),
    "affinity-that-is-a-wish": beside(a_pod("c", **LIKES), a_slice("n1"), a_claim("c"), z="a"),
    "affinity-not-of-a-name": beside(
        a_pod(
            affinity=affinity({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}),
        )
    ),
    "affinity-gt-of-no-number": Situation(
        (a_node("n1", {"z": "many"}),), a_pod(affinity=affinity(by_label("z", "Gt", "4")))
    ),
    "memory-in-powers-of-ten": alone(a_pod(limits={"memory": "34G"})),
    "memory-in-powers-of-ten-too-large": alone(a_pod(limits={"memory": "35G"})),
}
