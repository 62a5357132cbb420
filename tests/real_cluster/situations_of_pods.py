"""Pods in small clusters, for a real scheduler and for `why` and `fits`."""

from typing import Any

from attrs import field, frozen

Json = Any

GPU, NIC, FABRIC = "gpu.example.com", "nic.example.com", "fabric.example.com"
PLUGIN, SERVED, IMPLICIT = "acme.io/card", "example.com/gpu", "deviceclass.resource.kubernetes.io/gpu"


@frozen
class Situation:
    """A cluster's objects, and a pod to schedule.

    With `is_close`, a different node with the same score is also correct.
    """

    objects: tuple[Json, ...]
    pod: Json
    is_close: bool = field(default=False, kw_only=True)


def a_node(name: str, labels: Json = None, taints: Json = (), *, cordoned: bool = False, **allocatable: str) -> Json:
    """Return a Node with 8 CPUs and 32Gi of memory, unless `allocatable` says otherwise.

    `card` stands for a plugin's resource.
    """
    amounts = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110"} | allocatable
    if "card" in amounts:
        amounts[PLUGIN] = amounts.pop("card")
    if "gpu" in amounts:
        amounts[SERVED] = amounts.pop("gpu")
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ok"}]
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": list(taints), **({"unschedulable": True} if cordoned else {})},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": ready,
            "nodeInfo": {"kubeletVersion": "v1.37.2"},
        },
    }


def a_slice(node: str, driver: str = GPU, count: int = 2, where: Json = None, **fields: Json) -> Json:
    """Return a slice with devices. Each device has the attributes `index` and `model`, and the given fields."""
    devices = [
        {
            "name": f"d{number}",
            "attributes": {"index": {"int": number}, "model": {"string": "A" if number % 2 else "B"}},
            **fields,
        }
        for number in range(count)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": pool, "devices": devices, **(where or {"nodeName": node})}
    return {"kind": "ResourceSlice", "metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def a_class(name: str, driver: str, resource: str = "") -> Json:
    """Return a driver's DeviceClass."""
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
    return {
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {**spec, **({"extendedResourceName": resource} if resource else {})},
    }


CLASSES = (a_class("gpu", GPU, SERVED), a_class("nic", NIC), a_class("fabric", FABRIC))


def a_request(cls: str = "gpu", expression: str = "", name: str = "r", **fields: Json) -> Json:
    """Return a claim's request."""
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    return {"name": name, "exactly": {"deviceClassName": cls, **selectors, **fields}}


def a_claim(name: str, *requests: Json, held: tuple[str, str] | None = None, by: Json = (), **spec: Json) -> Json:
    """Return a claim.

    `held` is the node and the device that the claim holds, and `by` are the pods that the claim is reserved for.
    """
    claim: Json = {
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests or (a_request(),)), **spec}},
    }
    if held is not None:
        claim["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]  # as added by a scheduler
        node, device = held
        first = claim["spec"]["devices"]["requests"][0]
        driver = NIC if first.get("exactly", {}).get("deviceClassName") == "nic" else GPU
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        claim["status"] = {
            "allocation": {
                "allocationTimestamp": "2026-01-01T00:00:00Z",  # without a time, a scheduler cannot reserve the claim
                "devices": {"results": [{"request": "r", "driver": driver, "pool": node, "device": device}]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
            },
            "reservedFor": [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in by],
        }
    return claim


def a_pod(
    *claims: str,
    limits: Json = None,
    requests: Json = None,
    name: str = "ask",
    labels: Json = None,
    namespace: str = "default",
    ports: Json = (),
    **spec: Json,
) -> Json:
    """Return a pod with one container, which uses these claims and requests these resources."""
    resources: Json = {"claims": [{"name": one} for one in claims]} if claims else {}
    if limits:
        resources["limits"] = limits
    if requests:
        resources["requests"] = requests
    container = {"name": "app", "image": "registry.example/app:1", "resources": resources, "ports": list(ports)}
    named = {"resourceClaims": [{"name": one, "resourceClaimName": one} for one in claims]} if claims else {}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **named, **spec},
    }


def bound(node: str, name: str, limits: Json = None, priority: int = 0, **fields: Json) -> Json:
    """Return a pod that already runs on a node."""
    fields |= {"priority": priority} if priority else {}
    return a_pod(name=name, limits=limits, nodeName=node, **fields)


HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
DB, ASK = {"app": "db"}, {"app": "ask"}


def a_term(labels: Json, key: str = HOST, **fields: Json) -> Json:
    """Return a pod affinity term: pods with these labels, in the topology domain given by a node label."""
    return {"labelSelector": {"matchLabels": labels}, "topologyKey": key, **fields}


def near(*terms: Json) -> Json:
    """Return a pod's affinity to other pods."""
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def apart(*terms: Json) -> Json:
    """Return a pod's anti-affinity to other pods."""
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def spread(key: str = HOST, **fields: Json) -> Json:
    """Return a topology spread constraint for a pod."""
    one = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**one, "labelSelector": {"matchLabels": ASK}, **fields}]}


def a_port(port: int, **fields: Json) -> Json:
    """Return a container's list of ports with one host port."""
    return [{"containerPort": port, "hostPort": port, **fields}]


def a_volume_claim(name: str, volume: str = "", storage_class: str = "", size: str = "1Gi") -> Json:
    """Return a PersistentVolumeClaim, which is bound if `volume` is given."""
    spec: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    spec |= {"storageClassName": storage_class} | ({"volumeName": volume} if volume else {})
    metadata: Json = {"name": name}
    if volume:
        metadata["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    phase = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}} if volume else None
    return {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec, **({"status": phase} if phase else {})}


def a_volume(name: str, term: Json = None, storage_class: str = "", size: str = "1Gi", claim: str = "") -> Json:
    """Return a PersistentVolume for the nodes that match `term`, or for all nodes without it."""
    spec: Json = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "csi": {"driver": "disk.example.com", "volumeHandle": name},
    }
    if term:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    if claim:
        spec["claimRef"] = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": claim}
    return {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def with_volume(*names: str) -> Json:
    """Return the volumes of a pod that uses PersistentVolumeClaims."""
    return {"volumes": [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in names]}


def two(pod: Json, *objects: Json, **fields: bool) -> Situation:
    """Return a situation with two nodes in two zones, without devices."""
    return Situation((a_node("n1", {ZONE: "a"}), a_node("n2", {ZONE: "b"}), *objects), pod, **fields)


def affinity(*terms: Json) -> Json:
    """Return a pod's node affinity."""
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def by_label(key: str, operator: str, *values: str) -> Json:
    """Return a node affinity term."""
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def tainted(key: str = "team", value: str = "ml", effect: str = "NoSchedule") -> Json:
    """Return a node's taints."""
    return [{"key": key, "value": value, "effect": effect}]


def tolerating(**fields: str) -> Json:
    """Return a pod's tolerations."""
    return {"tolerations": [fields]}


def both(pod: Json, first: Json = None, second: Json = None, *more: Json, **fields: bool) -> Situation:
    """Return a situation with two nodes. Only the second node has devices, unless `more` contains slices."""
    nodes = first or a_node("n1"), second or a_node("n2")
    return Situation((*nodes, a_slice("n2"), a_claim("c"), *more), pod, **fields)


def one(pod: Json, *objects: Json, node: Json = None, claim: Json = None, **fields: bool) -> Situation:
    """Return a situation with one node that has two devices."""
    return Situation((node or a_node("n1"), a_slice("n1"), claim or a_claim("c"), *objects), pod, **fields)


def fleet(pod: Json, count: int, *busy: int) -> Situation:
    """Return a situation with many nodes that have two devices each.

    All devices are held except on the nodes in `busy`.
    """
    names = [f"n{number}" for number in range(count)]
    claims = [
        a_claim(f"h{number}-{device}", held=(names[number], f"d{device}"), by=[f"p{number}-{device}"])
        for number in range(count)
        for device in range(2)
        if number not in busy
    ]
    return Situation((*map(a_node, names), *map(a_slice, names), a_claim("c", a_request(count=2)), *claims), pod)


ERROR = 'device.attributes["gpu.example.com"].lost == "x"'
MODEL = 'device.attributes["gpu.example.com"].model == "{}"'
INIT = {"name": "init", "image": "registry.example/app:1"}
CONDITIONS: Json = {"bindsToNode": True, "bindingConditions": ["fabric.example.com/attached"]}
CONDITIONS |= {"bindingFailureConditions": ["fabric.example.com/failed"]}
WAYS = {
    "name": "r",
    "firstAvailable": [
        {"name": "nic", "deviceClassName": "nic"},
        {"name": "gpu", "deviceClassName": "gpu", "count": 2},
    ],
}

STORAGE_CLASSES = (
    {"kind": "StorageClass", "metadata": {"name": "now"}, "provisioner": "disk.example.com"},
    {
        "kind": "StorageClass",
        "metadata": {"name": "local"},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    },
    {
        "kind": "StorageClass",
        "metadata": {"name": "tracked"},
        "provisioner": "room.example.com",
        "volumeBindingMode": "WaitForFirstConsumer",
    },
)

ONE_POD = "ReadWriteOncePod"


def for_one_pod(volume: Json) -> Json:
    """Return a copy of a volume, or of its claim, that only one pod may use."""
    modes = {"accessModes": [ONE_POD]}
    status = {"status": {**volume["status"], **modes}} if "status" in volume else {}
    return {**volume, "spec": {**volume["spec"], **modes}, **status}


def a_disk(name: str) -> tuple[Json, Json]:
    """Return a volume and its claim with the same name."""
    return a_volume(f"pv-{name}", claim=name), a_volume_claim(name, f"pv-{name}")


def takes(node: str, count: int) -> Json:
    """Return a CSINode that limits how many volumes a node can attach."""
    driver = {"name": "disk.example.com", "nodeID": node, "topologyKeys": [], "allocatable": {"count": count}}
    return {"kind": "CSINode", "metadata": {"name": node}, "spec": {"drivers": [driver]}}


def a_runtime(**fields: Json) -> Json:
    """Return a RuntimeClass."""
    return {"kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata", **fields}


def a_rule(effect: str = "NoSchedule", **selector: str) -> Json:
    """Return a DeviceTaintRule."""
    taint = {"key": "bad", "value": "x", "effect": effect}
    return {
        "kind": "DeviceTaintRule",
        "metadata": {"name": "rule"},
        "spec": {"deviceSelector": selector, "taint": taint},
    }


def a_quota(hard: Json, used: Json) -> Json:
    """Return a ResourceQuota that is partly used."""
    return {
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": used},
    }


def room(size: str) -> tuple[Json, ...]:
    """Return the objects that limit the size of volumes of the class `tracked` on n1."""
    topology = {"matchLabels": {HOST: "n1"}}
    return (
        {"kind": "CSIDriver", "metadata": {"name": "room.example.com"}, "spec": {"storageCapacity": True}},
        {
            "kind": "CSIStorageCapacity",
            "metadata": {"name": "room"},
            "storageClassName": "tracked",
            "capacity": size,
            "nodeTopology": topology,
        },
    )


def in_parts(node: str) -> tuple[Json, Json]:
    """Return a pool's two slices: counters, and a device that can be allocated as a whole or as two halves."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
    counters = {"name": "memory", "counters": {"mem": {"value": "40Gi"}}}
    devices = [
        {
            "name": f"p{number}",
            "attributes": {"size": {"string": size}},
            "consumesCounters": [{"counterSet": "memory", "counters": {"mem": {"value": amount}}}],
        }
        for number, (size, amount) in enumerate((("full", "40Gi"), ("half", "20Gi"), ("half", "20Gi")))
    ]

    def one_slice(name: str, **part: Json) -> Json:
        spec = {"driver": GPU, "pool": pool, "nodeName": node, **part}
        return {"kind": "ResourceSlice", "metadata": {"name": f"{node}-{name}"}, "spec": spec}

    return one_slice("counters", sharedCounters=[counters]), one_slice("devices", devices=devices)


def divided(total: str, policy: Json = None) -> Json:
    """Return a slice for n1 with one device that several claims can share."""
    memory = {"value": total, **({"requestPolicy": policy} if policy else {})}
    return a_slice("n1", count=1, allowMultipleAllocations=True, capacity={"memory": memory})


def a_share(name: str, amount: str) -> Json:
    """Return a claim that holds a share of the device d0 on n1."""
    claim = a_claim(name, held=("n1", "d0"), by=["x"])
    result = claim["status"]["allocation"]["devices"]["results"][0]
    result |= {"shareID": "7c0a5b5e-0000-4000-8000-000000000001", "consumedCapacity": {"memory": amount}}
    return claim


def attached(*conditions: Json, by: Json = ("ask",)) -> tuple[Json, ...]:
    """Return a node, a fabric device, and a claim that holds the device, with conditions that the driver reports."""
    claim = a_claim("c", a_request("fabric"))
    key = {"driver": FABRIC, "pool": "f1", "device": "d0"}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    names = {name: CONDITIONS[name] for name in ("bindingConditions", "bindingFailureConditions")}
    claim["status"] = {
        "allocation": {
            "allocationTimestamp": "2026-01-01T00:00:00Z",
            "devices": {"results": [{"request": "r", **key, **names}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
        },
        "reservedFor": [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in by],
        "devices": [{**key, "conditions": list(conditions)}],
    }
    where = {"nodeSelector": {"nodeSelectorTerms": [by_label("f", "In", "1")]}}
    return a_node("n1", {"f": "1"}), a_slice("f1", FABRIC, where=where, **CONDITIONS), claim


def a_condition(kind: str) -> Json:
    """Return a device condition whose status is true."""
    return {
        "type": f"fabric.example.com/{kind}",
        "status": "True",
        "reason": "Told",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def sized(size: str) -> str:
    """Return a CEL expression that selects parts of devices by size."""
    return f'device.attributes["{GPU}"].size == "{size}"'


def with_memory(amount: str, **fields: Json) -> Json:
    """Return a request for a device with this amount of memory."""
    return a_request(capacity={"requests": {"memory": amount}}, **fields)


BY_4 = {"default": "4Gi", "validRange": {"min": "4Gi", "step": "4Gi"}}

OF_PODS: dict[str, Situation] = {
    # node selection
    "selector": both(a_pod("c", nodeSelector={"pool": "a"}), a_node("n1"), a_node("n2", {"pool": "a"})),
    "selector-elsewhere": both(a_pod("c", nodeSelector={"pool": "a"}), a_node("n1", {"pool": "a"})),
    "selector-nowhere": both(a_pod("c", nodeSelector={"pool": "none"})),
    "selector-and-cpu": both(
        a_pod("c", limits={"cpu": "9"}, nodeSelector={"pool": "a"}), a_node("n1", {"pool": "a"}), a_node("n2", cpu="64")
    ),
    "affinity-in": both(a_pod("c", affinity=affinity(by_label("z", "In", "a"))), None, a_node("n2", {"z": "a"})),
    "affinity-not-in": both(a_pod("c", affinity=affinity(by_label("z", "NotIn", "a"))), None, a_node("n2", {"z": "a"})),
    "affinity-exists": both(a_pod("c", affinity=affinity(by_label("z", "Exists")))),
    "affinity-does-not-exist": both(a_pod("c", affinity=affinity(by_label("z", "DoesNotExist")))),
    "affinity-gt": both(a_pod("c", affinity=affinity(by_label("z", "Gt", "4"))), None, a_node("n2", {"z": "5"})),
    "affinity-lt": both(a_pod("c", affinity=affinity(by_label("z", "Lt", "4"))), None, a_node("n2", {"z": "5"})),
    "affinity-by-name": both(
        a_pod("c", affinity=affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}))
    ),
    "affinity-of-two-terms": both(
        a_pod("c", affinity=affinity(by_label("x", "Exists"), by_label("z", "Exists"))), None, a_node("n2", {"z": "1"})
    ),
    # taints and cordoned nodes
    "taint": both(a_pod("c"), None, a_node("n2", taints=tainted())),
    "taint-no-execute": both(a_pod("c"), None, a_node("n2", taints=tainted(effect="NoExecute"))),
    "taint-prefer": both(a_pod("c"), None, a_node("n2", taints=tainted(effect="PreferNoSchedule"))),
    "taint-tolerated": both(a_pod("c", **tolerating(key="team", value="ml")), None, a_node("n2", taints=tainted())),
    "taint-of-another-value": both(
        a_pod("c", **tolerating(key="team", value="x")), None, a_node("n2", taints=tainted())
    ),
    "taint-exists": both(a_pod("c", **tolerating(key="team", operator="Exists")), None, a_node("n2", taints=tainted())),
    "taint-all-tolerated": both(a_pod("c", **tolerating(operator="Exists")), None, a_node("n2", taints=tainted())),
    "taint-of-another-effect": both(
        a_pod("c", **tolerating(key="team", operator="Exists", effect="NoExecute")),
        None,
        a_node("n2", taints=tainted()),
    ),
    "cordoned": both(a_pod("c"), None, a_node("n2", cordoned=True)),
    "cordoned-tolerated": both(
        a_pod("c", **tolerating(key="node.kubernetes.io/unschedulable", operator="Exists")),
        None,
        a_node("n2", cordoned=True),
    ),
    # resources
    "cpu-too-large": one(a_pod("c", limits={"cpu": "9"})),
    "cpu-fits": one(a_pod("c", limits={"cpu": "8"})),
    "cpu-used": one(a_pod("c", limits={"cpu": "5"}), bound("n1", "b", {"cpu": "4"})),
    "memory-used": one(a_pod("c", limits={"memory": "20Gi"}), bound("n1", "b", {"memory": "16Gi"})),
    "storage": one(a_pod("c", limits={"ephemeral-storage": "200Gi"})),
    "too-many-pods": one(a_pod("c"), bound("n1", "b", {"cpu": "1"}), node=a_node("n1", pods="1")),
    "request-below-limit": one(a_pod("c", limits={"cpu": "20"}, requests={"cpu": "1"})),
    "init-container": one(
        a_pod("c", initContainers=[{**INIT, "resources": {"requests": {"cpu": "9"}}}], limits={"cpu": "1"})
    ),
    "sidecar": one(
        a_pod(
            "c",
            initContainers=[{**INIT, "restartPolicy": "Always", "resources": {"requests": {"cpu": "5"}}}],
            limits={"cpu": "4"},
        )
    ),
    "plugin-none": one(a_pod("c", limits={PLUGIN: "1"})),
    "plugin-fits": one(a_pod("c", limits={PLUGIN: "2"}), node=a_node("n1", card="2")),
    "plugin-used": one(a_pod("c", limits={PLUGIN: "2"}), bound("n1", "b", {PLUGIN: "1"}), node=a_node("n1", card="2")),
    "plugin-alone": Situation((a_node("n1", card="1"), a_node("n2", card="2")), a_pod(limits={PLUGIN: "2"})),
    "plugin-alone-none": Situation((a_node("n1"), a_node("n2", card="1")), a_pod(limits={PLUGIN: "2"})),
    # claims
    "count": one(a_pod("c"), claim=a_claim("c", a_request(count=2))),
    "count-too-large": one(a_pod("c"), claim=a_claim("c", a_request(count=3))),
    "all": one(a_pod("c"), claim=a_claim("c", a_request(allocationMode="All"))),
    "all-and-one-held": one(
        a_pod("c"),
        a_claim("h", held=("n1", "d0"), by=["x"]),
        claim=a_claim("c", a_request(allocationMode="All")),
    ),
    "held": one(a_pod("c"), a_claim("h", held=("n1", "d0"), by=["x"]), claim=a_claim("c", a_request(count=2))),
    "selected": one(a_pod("c"), claim=a_claim("c", a_request(expression=MODEL.format("A")))),
    "selected-none": one(a_pod("c"), claim=a_claim("c", a_request(expression=MODEL.format("C")))),
    "error": one(a_pod("c"), claim=a_claim("c", a_request(expression=ERROR))),
    "error-elsewhere": Situation(
        (a_node("n1", {"p": "a"}), a_node("n2"), a_slice("n1", NIC), a_slice("n2"), a_claim("c", a_request("nic"))),
        a_pod("c", nodeSelector={"p": "a"}),
    ),
    "class-missing": one(a_pod("c"), claim=a_claim("c", a_request("none"))),
    "first-available": Situation(
        (a_node("n1"), a_node("n2"), a_slice("n1"), a_slice("n2", NIC), a_claim("c", WAYS)), a_pod("c")
    ),
    "first-available-second": one(a_pod("c"), claim=a_claim("c", WAYS)),
    "match-attribute": one(
        a_pod("c"),
        claim=a_claim("c", a_request(count=2), constraints=[{"matchAttribute": f"{GPU}/model"}]),
    ),
    "two-claims": one(a_pod("c", "d"), a_claim("d")),
    "two-claims-too-many": one(a_pod("c", "d"), a_claim("d", a_request(count=2))),
    "other-driver": one(a_pod("c"), claim=a_claim("c", a_request("nic"))),
    # extended resources that classes serve
    "served": one(a_pod(limits={SERVED: "2"})),
    "served-too-many": one(a_pod(limits={SERVED: "3"})),
    "served-implicit": one(a_pod(limits={IMPLICIT: "1"})),
    "served-implicit-too-many": one(a_pod(limits={IMPLICIT: "3"})),
    "served-both-names": one(a_pod(limits={IMPLICIT: "1", SERVED: "1"})),
    "served-both-names-too-many": one(a_pod(limits={IMPLICIT: "1", SERVED: "2"})),
    "served-beside-a-claim": one(a_pod("c", limits={SERVED: "1"})),
    "served-beside-a-claim-too-many": one(a_pod("c", limits={SERVED: "2"})),
    "served-by-a-plugin-here": Situation(
        (a_node("n1", gpu="1"), a_node("n2"), a_slice("n2")), a_pod(limits={SERVED: "2"})
    ),
    "served-by-a-plugin-that-is-gone": one(a_pod(limits={SERVED: "1"}), node=a_node("n1", gpu="0")),
    # claims that have devices
    "allocated-here": one(a_pod("c"), claim=a_claim("c", held=("n1", "d1"))),
    "allocated-elsewhere-unreserved": Situation(
        (
            a_node("n1"),
            a_node("n2"),
            a_slice("n1"),
            a_slice("n2"),
            a_slice("n2", NIC),
            a_claim("c", held=("n1", "d0")),
            a_claim("d", a_request("nic")),
        ),
        a_pod("c", "d"),
    ),
    "allocated-elsewhere-reserved": Situation(
        (
            a_node("n1"),
            a_node("n2"),
            a_slice("n1"),
            a_slice("n2", NIC),
            a_claim("c", held=("n1", "d0"), by=["x"]),
            a_claim("d", a_request("nic")),
        ),
        a_pod("c", "d"),
    ),
    "allocated-and-tainted": both(
        a_pod("e"), None, a_node("n2", taints=tainted()), a_claim("e", held=("n2", "d0"), by=["x"])
    ),
    # waiting, and making room
    "gate": one(a_pod("c", schedulingGates=[{"name": "example.com/wait"}])),
    "binding-conditions": Situation(
        (
            a_node("n1", {"f": "1"}),
            a_slice(
                "f1", FABRIC, where={"nodeSelector": {"nodeSelectorTerms": [by_label("f", "In", "1")]}}, **CONDITIONS
            ),
            a_claim("c", a_request("fabric")),
        ),
        a_pod("c"),
    ),
    "preemption": one(a_pod(limits={"cpu": "6"}, priority=1000), bound("n1", "b", {"cpu": "4"})),
    "preemption-of-a-plugin's": one(
        a_pod(limits={PLUGIN: "1"}, priority=1000), bound("n1", "b", {PLUGIN: "1"}), node=a_node("n1", card="1")
    ),
    # preemption
    "preemption-of-the-less-important": two(
        a_pod(limits={"cpu": "6"}, priority=1000),
        bound("n1", "b", {"cpu": "4"}, priority=100),
        bound("n2", "d", {"cpu": "4"}),
    ),
    "preemption-against-a-budget": two(
        a_pod(limits={"cpu": "6"}, priority=1000),
        bound("n1", "b", {"cpu": "4"}, labels=DB),
        bound("n2", "d", {"cpu": "4"}, priority=100),
        {
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "db"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": DB}},
        },
    ),
    "preemption-by-nobody": one(a_pod(limits={"cpu": "6"}), bound("n1", "b", {"cpu": "4"}, priority=100)),
    "preemption-for-a-port": Situation(
        (a_node("n1"), bound("n1", "b", ports=a_port(8080))), a_pod(ports=a_port(8080), priority=1000)
    ),
    "preemption-for-distance": Situation(
        (a_node("n1"), bound("n1", "b", labels=DB)), a_pod(priority=1000, **apart(a_term(DB)))
    ),
    "preemption-where-it-does-not-help": Situation(
        (a_node("n1"), bound("n1", "b", {"cpu": "4"})), a_pod(limits={"cpu": "9"}, priority=1000)
    ),
    # pods without devices
    "nothing": two(a_pod(), is_close=True),
    "cpu-alone": two(a_pod(limits={"cpu": "6"}), bound("n1", "b", {"cpu": "4"})),
    "cpu-alone-nowhere": two(a_pod(limits={"cpu": "9"})),
    "huge-pages": two(a_pod(limits={"hugepages-2Mi": "4Mi", "cpu": "1"})),
    "of-the-whole-pod": two(a_pod(resources={"requests": {"cpu": "9"}})),
    "selector-alone": two(a_pod(nodeSelector={ZONE: "b"})),
    "taint-alone": Situation((a_node("n1", taints=tainted()),), a_pod()),
    "another-scheduler": two(a_pod(schedulerName="volcano")),
    # pods that want to be near other pods
    "near": two(a_pod(**near(a_term(DB))), bound("n2", "b", labels=DB)),
    "near-nobody": two(a_pod(**near(a_term(DB)))),
    "near-itself": two(a_pod(labels=ASK, **near(a_term(ASK))), is_close=True),
    "near-others-like-itself": two(a_pod(labels=ASK, **near(a_term(ASK))), bound("n2", "b", labels=ASK)),
    "near-in-the-zone": Situation(
        (
            a_node("n1", {ZONE: "a"}),
            a_node("n2", {ZONE: "b"}),
            a_node("n3", {ZONE: "b"}, cpu="1"),
            bound("n3", "b", labels=DB),
        ),
        a_pod(limits={"cpu": "4"}, **near(a_term(DB, ZONE))),
    ),
    "near-in-another-namespace": two(a_pod(**near(a_term(DB))), bound("n2", "b", labels=DB, namespace="other")),
    "near-in-a-named-namespace": two(
        a_pod(**near(a_term(DB, namespaces=["other"]))), bound("n2", "b", labels=DB, namespace="other")
    ),
    "near-in-a-selected-namespace": two(
        a_pod(**near(a_term(DB, namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "other"}}))),
        bound("n2", "b", labels=DB, namespace="other"),
    ),
    "near-two-kinds": two(
        a_pod(**near(a_term(DB), a_term({"tier": "a"}))),
        bound("n1", "b", labels=DB),
        bound("n2", "d", labels={**DB, "tier": "a"}),
    ),
    "near-without-the-label": Situation((a_node("n1"), bound("n1", "b", labels=DB)), a_pod(**near(a_term(DB, "rack")))),
    "near-and-devices-elsewhere": both(a_pod("c", **near(a_term(DB))), None, None, bound("n1", "b", labels=DB)),
    "apart": two(a_pod(**apart(a_term(DB))), bound("n1", "b", labels=DB)),
    "apart-from-all": two(a_pod(**apart(a_term(DB))), bound("n1", "b", labels=DB), bound("n2", "d", labels=DB)),
    "apart-in-the-zone": two(a_pod(**apart(a_term(DB, ZONE))), bound("n1", "b", labels=DB)),
    "apart-and-the-devices-are-there": both(a_pod("c", **apart(a_term(DB))), None, None, bound("n2", "b", labels=DB)),
    "others-want-to-be-apart": two(a_pod(labels=ASK), bound("n1", "b", **apart(a_term(ASK)))),
    "all-others-want-to-be-apart": Situation(
        (a_node("n1", {ZONE: "a"}), a_node("n2", {ZONE: "a"}), bound("n1", "b", **apart(a_term(ASK, ZONE)))),
        a_pod(labels=ASK),
    ),
    "spread": two(a_pod(labels=ASK, **spread()), bound("n1", "b", labels=ASK)),
    "spread-over-zones": two(a_pod(labels=ASK, **spread(ZONE)), bound("n2", "b", labels=ASK)),
    "spread-and-full": Situation(
        (a_node("n1"), a_node("n2", cpu="1"), bound("n1", "b", labels=ASK)),
        a_pod(labels=ASK, limits={"cpu": "4"}, **spread()),
    ),
    "spread-of-two": two(
        a_pod(labels=ASK, **spread(maxSkew=2)), bound("n1", "b", {"cpu": "1"}, labels=ASK), is_close=True
    ),
    "spread-over-three-places": two(
        a_pod(labels=ASK, **spread(minDomains=3)), bound("n1", "b", labels=ASK), bound("n2", "d", labels=ASK)
    ),
    "spread-without-the-label": Situation((a_node("n1"),), a_pod(labels=ASK, **spread("rack"))),
    "spread-over-selected-nodes": Situation(
        (a_node("n1", {"pool": "a"}), a_node("n2"), bound("n1", "b", labels=ASK)),
        a_pod(labels=ASK, nodeSelector={"pool": "a"}, **spread()),
    ),
    "spread-over-all-nodes": Situation(
        (a_node("n1", {"pool": "a"}), a_node("n2"), bound("n1", "b", labels=ASK)),
        a_pod(labels=ASK, nodeSelector={"pool": "a"}, **spread(nodeAffinityPolicy="Ignore")),
    ),
    "spread-with-tainted-nodes": Situation(
        (a_node("n1"), a_node("n2", taints=tainted()), bound("n1", "b", labels=ASK)), a_pod(labels=ASK, **spread())
    ),
    "spread-without-tainted-nodes": Situation(
        (a_node("n1"), a_node("n2", taints=tainted()), bound("n1", "b", labels=ASK)),
        a_pod(labels=ASK, **spread(nodeTaintsPolicy="Honor")),
    ),
    "spread-by-version": two(
        a_pod(labels={**ASK, "v": "2"}, **spread(matchLabelKeys=["v"])),
        bound("n1", "b", labels={**ASK, "v": "2"}),
        bound("n2", "d", labels={**ASK, "v": "1"}),
    ),
    "spread-if-possible": Situation(
        (a_node("n1"), a_node("n2", cpu="1"), bound("n1", "b", labels=ASK)),
        a_pod(labels=ASK, limits={"cpu": "4"}, **spread(whenUnsatisfiable="ScheduleAnyway")),
    ),
    # ports
    "port-taken": two(a_pod(ports=a_port(8080)), bound("n1", "b", ports=a_port(8080))),
    "port-taken-everywhere": two(
        a_pod(ports=a_port(8080)), bound("n1", "b", ports=a_port(8080)), bound("n2", "d", ports=a_port(8080))
    ),
    "port-of-another-protocol": Situation(
        (a_node("n1"), bound("n1", "b", ports=a_port(53, protocol="UDP"))), a_pod(ports=a_port(53))
    ),
    "port-of-another-address": Situation(
        (a_node("n1"), bound("n1", "b", ports=a_port(53, hostIP="10.0.0.1"))),
        a_pod(ports=a_port(53, hostIP="10.0.0.2")),
    ),
    "port-of-all-addresses": Situation(
        (a_node("n1"), bound("n1", "b", ports=a_port(53, hostIP="10.0.0.1"))), a_pod(ports=a_port(53))
    ),
    "port-of-the-host's-network": Situation(
        (a_node("n1"), bound("n1", "b", ports=a_port(9100), hostNetwork=True)),
        a_pod(ports=a_port(9100), hostNetwork=True),
    ),
    # volumes
    "volume-not-there": two(a_pod(**with_volume("v"))),
    "volume-not-bound": two(a_pod(**with_volume("v")), a_volume_claim("v", storage_class="now")),
    "volume-of-a-node": two(
        a_pod(**with_volume("v")),
        a_volume("pv", by_label(HOST, "In", "n2"), claim="v"),
        a_volume_claim("v", "pv"),
    ),
    "volume-of-another-zone": two(
        a_pod(**with_volume("v")), a_volume("pv", by_label(ZONE, "In", "c"), claim="v"), a_volume_claim("v", "pv")
    ),
    "volume-of-a-node-without-the-devices": both(
        a_pod("c", **with_volume("v")),
        None,
        None,
        a_volume("pv", by_label(HOST, "In", "n1"), claim="v"),
        a_volume_claim("v", "pv"),
    ),
    "volume-lost": two(a_pod(**with_volume("v")), a_volume_claim("v", "none")),
    "volume-of-no-driver": two(a_pod(**with_volume("v")), a_volume_claim("v", storage_class="local")),
    "volume-of-no-driver-there": two(
        a_pod(**with_volume("v")),
        a_volume("pv", by_label(HOST, "In", "n2"), "local"),
        a_volume_claim("v", storage_class="local"),
    ),
    "volume-that-is-too-small": two(
        a_pod(**with_volume("v")),
        a_volume("pv", by_label(HOST, "In", "n2"), "local"),
        a_volume_claim("v", storage_class="local", size="2Gi"),
    ),
    "two-volumes-for-three": two(
        a_pod(**with_volume("v", "w")),
        a_volume("pv", by_label(HOST, "In", "n2"), "local"),
        a_volume_claim("v", storage_class="local"),
        a_volume_claim("w", storage_class="local"),
    ),
    "fifty-nodes": fleet(a_pod("c"), 50, 37),
    "fifty-nodes-full": fleet(a_pod("c"), 50),
    # more about volumes
    "volume-for-one-pod": two(
        a_pod(**with_volume("v")),
        *map(for_one_pod, (a_volume("pv", claim="v"), a_volume_claim("v", "pv"))),
        bound("n1", "b", **with_volume("v")),
    ),
    "volume-for-one-pod-and-preemption": two(
        a_pod(priority=1000, **with_volume("v")),
        *map(for_one_pod, (a_volume("pv", claim="v"), a_volume_claim("v", "pv"))),
        bound("n1", "b", **with_volume("v")),
    ),
    "volume-too-many": two(
        a_pod(**with_volume("v")),
        *(takes("n1", 1), takes("n2", 1), *a_disk("v"), *a_disk("w"), *a_disk("x")),
        *(bound("n1", "b", **with_volume("w")), bound("n2", "d", **with_volume("x"))),
    ),
    "volume-too-many-here": two(
        a_pod(**with_volume("v")),
        *(takes("n1", 1), takes("n2", 2), *a_disk("v"), *a_disk("w"), *a_disk("x")),
        *(bound("n1", "b", **with_volume("w")), bound("n2", "d", **with_volume("x"))),
    ),
    "volume-that-is-there": Situation(
        (a_node("n1"), takes("n1", 1), *a_disk("w"), bound("n1", "b", **with_volume("w"))), a_pod(**with_volume("w"))
    ),
    "volume-without-room": two(
        a_pod(**with_volume("v")), *room("5Gi"), a_volume_claim("v", storage_class="tracked", size="10Gi")
    ),
    # runtime classes, quotas, and rejections by the API server
    "runtime-overhead": two(
        a_pod(limits={"cpu": "7"}, runtimeClassName="kata"), a_runtime(overhead={"podFixed": {"cpu": "2"}})
    ),
    "runtime-selector": Situation(
        (
            a_node("n1"),
            a_node("n2", {"kata": "yes"}, tainted("kata", "x")),
            a_runtime(
                scheduling={"nodeSelector": {"kata": "yes"}, "tolerations": [{"key": "kata", "operator": "Exists"}]}
            ),
        ),
        a_pod(runtimeClassName="kata"),
    ),
    "runtime-not-there": two(a_pod(runtimeClassName="gone"), a_runtime()),
    "quota-of-pods": two(a_pod(), a_quota({"pods": "1"}, {"pods": "1"})),
    "quota-of-a-plugin's": Situation(
        (a_node("n1", card="2"), a_quota({f"requests.{PLUGIN}": "1"}, {f"requests.{PLUGIN}": "1"})),
        a_pod(limits={PLUGIN: "1"}),
    ),
    "quota-that-is-left": Situation(
        (a_node("n1", card="2"), a_quota({f"requests.{PLUGIN}": "2"}, {f"requests.{PLUGIN}": "1"})),
        a_pod(limits={PLUGIN: "1"}),
    ),
    "quota-of-a-class": one(
        a_pod(limits={IMPLICIT: "1"}), a_quota({f"requests.{IMPLICIT}": "1"}, {f"requests.{IMPLICIT}": "1"})
    ),
    "quota-that-wants-limits": two(a_pod(), a_quota({"limits.cpu": "4"}, {"limits.cpu": "0"})),
    "refused-fraction": two(a_pod(limits={PLUGIN: "500m"})),
    "refused-request-above-limit": two(a_pod(limits={"cpu": "1"}, requests={"cpu": "2"})),
    "refused-huge-pages-alone": two(a_pod(limits={"hugepages-2Mi": "4Mi"})),
    "refused-plugin-of-the-whole-pod": two(a_pod(resources={"limits": {PLUGIN: "1"}})),
    "refused-less-than-its-containers": two(a_pod(limits={"cpu": "2"}, resources={"requests": {"cpu": "1"}})),
    "refused-port-twice": two(
        a_pod(ports=[{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 80}])
    ),
    "refused-skew": two(a_pod(labels=ASK, **spread(maxSkew=0))),
    "refused-affinity": two(a_pod(affinity=affinity({"matchExpressions": [{"key": "z", "operator": "In"}]}))),
    "refused-priority-class": two(a_pod(priorityClassName="gone")),
    "limit-of-the-whole-pod": two(a_pod(resources={"limits": {"cpu": "9"}})),
    # more about devices
    "rule": one(a_pod("c"), a_rule(driver=GPU)),
    "rule-tolerated": one(
        a_pod("c"),
        a_rule(driver=GPU),
        claim=a_claim("c", a_request(tolerations=[{"key": "bad", "operator": "Exists"}])),
    ),
    "rule-of-one-device": one(a_pod("c"), a_rule(driver=GPU, pool="n1", device="d0")),
    "rule-without-effect": one(a_pod("c"), a_rule("None", driver=GPU)),
    "rule-and-a-served-resource": one(a_pod(limits={SERVED: "1"}), a_rule(driver=GPU)),
    "shared": both(a_pod("e"), None, None, a_claim("e", held=("n2", "d0"), by=["x"])),
    "shared-and-the-node-is-full": both(
        a_pod("e", limits={"cpu": "4"}),
        None,
        None,
        a_claim("e", held=("n2", "d0"), by=["x"]),
        bound("n2", "x", {"cpu": "6"}),
    ),
    "claim-not-there": one(a_pod("e")),
    "half": Situation(
        (
            a_node("n1"),
            *in_parts("n1"),
            a_claim("c", a_request(expression=sized("half"))),
            a_claim("h", held=("n1", "p1"), by=["x"]),
        ),
        a_pod("c"),
    ),
    "whole-and-a-half-is-held": Situation(
        (
            a_node("n1"),
            *in_parts("n1"),
            a_claim("c", a_request(expression=sized("full"))),
            a_claim("h", held=("n1", "p1"), by=["x"]),
        ),
        a_pod("c"),
    ),
    "pool-without-its-counters": Situation((a_node("n1"), in_parts("n1")[1], a_claim("c")), a_pod("c")),
    "share": Situation(
        (a_node("n1"), divided("16Gi"), a_claim("c", with_memory("8Gi")), a_share("h", "8Gi")), a_pod("c")
    ),
    "share-too-large": Situation(
        (a_node("n1"), divided("16Gi"), a_claim("c", with_memory("9Gi")), a_share("h", "8Gi")), a_pod("c")
    ),
    "share-of-all": Situation((a_node("n1"), divided("16Gi"), a_claim("c"), a_share("h", "1Gi")), a_pod("c")),
    "share-by-steps": Situation(
        (a_node("n1"), divided("16Gi", BY_4), a_claim("c", with_memory("9Gi")), a_share("h", "8Gi")), a_pod("c")
    ),
    "share-by-default": Situation((a_node("n1"), divided("16Gi", BY_4), a_claim("c"), a_share("h", "8Gi")), a_pod("c")),
    "served-and-an-init-container": one(
        a_pod(limits={SERVED: "2"}, initContainers=[{**INIT, "resources": {"limits": {SERVED: "2"}}}])
    ),
    "sidecar-and-init-container": two(
        a_pod(
            limits={"cpu": "2"},
            initContainers=[
                {**INIT, "name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "4"}}},
                {**INIT, "name": "i", "resources": {"requests": {"cpu": "5"}}},
            ],
        )
    ),
    "binding-conditions-that-failed": Situation(attached(a_condition("failed"), by=()), a_pod("c")),
    "binding-conditions-that-are-true": Situation(attached(a_condition("attached"), by=()), a_pod("c")),
}
