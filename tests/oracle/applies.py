"""Server-side apply and updates by several field managers: the resulting object, and the owner of each field."""

import json
from collections.abc import Callable, Sequence
from random import Random

from devicecore_tools.testing.api_server import fields
from devicecore_tools.testing.api_server.shapes import tidy
from devicecore_tools.testing.api_server.status import ApiError

from tests.oracle.asking import AGREED, Json, Oracle, Verdict, differences

TIME = "2026-01-01T00:00:00Z"
MANAGERS = ("a", "b", "kubelet")
TYPE = ("apiVersion", "kind")
NOT_OWNED = ("name", "namespace", "managedFields", "creationTimestamp")

Author = Callable[[Random], Json]
"""Creates a value from random numbers."""


def one_of(*values: Json) -> Author:
    return lambda random: random.choice(values)


def several(**parts: Author) -> Author:
    """Return a function that creates an object with a random selection of the fields."""
    return lambda random: {name: part(random) for name, part in parts.items() if random.random() < 0.6}


def full(**parts: Author) -> Author:
    """Return a function that creates an object with all of the fields."""
    return lambda random: {name: part(random) for name, part in parts.items()}


def texts(*names: str, values: Sequence[str] = ("1", "2")) -> Author:
    return lambda random: {name: random.choice(values) for name in random.sample(names, random.randint(0, len(names)))}


def names(*known: str) -> Author:
    return lambda random: random.sample(known, random.randint(0, len(known)))


NOTHING = full()
YES, NO = True, False


def both(needed: Author, more: Author) -> Author:
    return lambda random: {**needed(random), **more(random)}


def items(key: str, known: Sequence[Json], needed: Author = NOTHING, more: Author = NOTHING, least: int = 0) -> Author:
    """Return a function that creates a list of objects with different keys."""
    return lambda random: [
        {key: name, **needed(random), **more(random)}
        for name in random.sample(known, random.randint(least, len(known)))
    ]


CONDITIONS = items(
    "type",
    ("Ready", "Other"),
    full(
        status=one_of("True", "False"),
        lastTransitionTime=one_of(TIME),
        reason=one_of("A", "B"),
        message=one_of("m", "n"),
    ),
)
RESOURCES = several(
    limits=texts("cpu", "ex.com/gpu"),
    requests=texts("cpu", "ex.com/gpu"),
    claims=items("name", ("r", "s"), more=several(request=one_of("q", "p"))),
)
CONTAINERS = items(
    "name",
    ("c", "d"),
    full(resources=RESOURCES),
    several(
        image=one_of("i1", "i2"),
        args=names("x", "y"),
        env=items("name", ("A", "B"), more=several(value=one_of("1", "2"))),
        volumeMounts=items("mountPath", ("/a", "/b"), full(name=one_of("v", "w")), several(readOnly=one_of(YES))),
        ports=items("containerPort", (80, 81), full(protocol=one_of("TCP", "UDP")), several(name=one_of("p", "q"))),
        securityContext=several(privileged=one_of(YES, NO), capabilities=several(add=names("X", "Y"))),
    ),
    least=1,
)
POD = both(
    full(containers=CONTAINERS),
    several(
        initContainers=CONTAINERS,
        volumes=items("name", ("v", "w"), more=several(emptyDir=several(medium=one_of("Memory", "HugePages")))),
        nodeName=one_of("n", "m"),
        nodeSelector=texts("a", "b"),
        tolerations=items("key", ("t", "u"), more=several(operator=one_of("Exists", "Equal"), value=one_of("1", "2"))),
        schedulingGates=items("name", ("g", "h")),
        resourceClaims=items(
            "name", ("r", "s"), more=several(resourceClaimName=one_of("x", "y"), resourceClaimTemplateName=one_of("t"))
        ),
        imagePullSecrets=items("name", ("k", "l")),
        hostAliases=items("ip", ("1.1.1.1", "2.2.2.2"), more=several(hostnames=names("h", "i"))),
        topologySpreadConstraints=items(
            "topologyKey",
            ("zone", "host"),
            full(whenUnsatisfiable=one_of("DoNotSchedule", "ScheduleAnyway"), maxSkew=one_of(1, 2)),
        ),
        affinity=several(
            nodeAffinity=several(
                preferredDuringSchedulingIgnoredDuringExecution=one_of([], [{"weight": 1, "preference": {}}])
            )
        ),
        securityContext=several(runAsUser=one_of(1, 2)),
        terminationGracePeriodSeconds=one_of(1, 30),
    ),
)
POD_STATUS = several(
    phase=one_of("Running", "Pending"),
    conditions=items(
        "type",
        ("Ready", "Other"),
        full(status=one_of("True", "False"), lastProbeTime=one_of(TIME), lastTransitionTime=one_of(TIME)),
        several(reason=one_of("A", "B")),
    ),
    podIPs=items("ip", ("1.1.1.1", "2.2.2.2")),
    hostIP=one_of("1.1.1.1", "2.2.2.2"),
    resourceClaimStatuses=items("name", ("r", "s"), more=several(resourceClaimName=one_of("x", "y"))),
)
NODE_STATUS = several(
    capacity=texts("cpu", "ex.com/gpu"),
    allocatable=texts("cpu", "ex.com/gpu"),
    conditions=items(
        "type",
        ("Ready", "MemoryPressure"),
        full(status=one_of("True", "False"), lastTransitionTime=one_of(TIME), lastHeartbeatTime=one_of(TIME)),
        several(reason=one_of("A", "B")),
    ),
    addresses=items("type", ("InternalIP", "Hostname"), full(address=one_of("1.1.1.1", "n"))),
    images=items("sizeBytes", (1, 2), full(names=one_of(["i"], ["j"]))),
    volumesInUse=names("v", "w"),
)
DEVICE_REQUESTS = items(
    "name",
    ("q", "p"),
    more=several(exactly=full(deviceClassName=one_of("g", "h"), count=one_of(1, 2), adminAccess=one_of(YES))),
    least=1,
)
CLAIM = full(devices=both(full(requests=DEVICE_REQUESTS), several(constraints=one_of([], [{"matchAttribute": "a/b"}]))))
CLAIM_STATUS = several(
    reservedFor=items("uid", ("u", "w"), full(name=one_of("p", "o"), resource=one_of("pods"))),
    allocation=several(
        devices=several(results=one_of([], [{"request": "q", "driver": "d", "pool": "p", "device": "x"}])),
        nodeSelector=one_of(
            *({"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]} for key in "ab")
        ),
    ),
    devices=items(
        "device",
        ("x", "y"),
        full(driver=one_of("d", "e"), pool=one_of("p"), conditions=CONDITIONS),
        several(
            data=one_of({"a": 1}, {"b": {"c": 2}}),
            networkData=several(interfaceName=one_of("e", "f"), ips=names("1/1", "2/1")),
        ),
    ),
)
SLICE = both(
    full(
        driver=one_of("d", "e"),
        pool=full(name=one_of("p", "o"), generation=one_of(1, 2), resourceSliceCount=one_of(1, 2)),
    ),
    several(
        nodeName=one_of("n", "m"),
        devices=items("name", ("x", "y"), more=several(attributes=one_of({}, {"a": {"string": "v"}}))),
        allNodes=one_of(YES, NO),
    ),
)
CLASS = several(
    selectors=one_of([], [{"cel": {"expression": "true"}}]),
    config=one_of([], [{"opaque": {"driver": "d", "parameters": {"a": 1}}}]),
    extendedResourceName=one_of("ex.com/gpu", "ex.com/nic"),
)

RESOURCE = "resource.k8s.io/v1"
BODIES: dict[tuple[str, str], tuple[Author, Author | None]] = {
    ("v1", "Pod"): (full(spec=POD), full(status=POD_STATUS)),
    ("v1", "Node"): (
        full(
            spec=several(
                unschedulable=one_of(YES),
                podCIDR=one_of("1.0.0.0/8", "2.0.0.0/8"),
                podCIDRs=names("1.0.0.0/8", "2.0.0.0/8"),
                taints=items("key", ("t", "u"), full(effect=one_of("NoSchedule", "NoExecute"))),
            )
        ),
        full(status=NODE_STATUS),
    ),
    (RESOURCE, "ResourceClaim"): (full(spec=CLAIM), full(status=CLAIM_STATUS)),
    (RESOURCE, "ResourceClaimTemplate"): (
        full(spec=full(metadata=several(labels=texts("a", "b")), spec=CLAIM)),
        None,
    ),
    (RESOURCE, "ResourceSlice"): (full(spec=SLICE), None),
    (RESOURCE, "DeviceClass"): (full(spec=CLASS), None),
    ("v1", "ConfigMap"): (several(data=texts("a", "b"), immutable=one_of(YES, NO)), None),
    ("v1", "Secret"): (several(data=texts("a", "b", values=("MQ==", "Mg==")), type=one_of("Opaque", "x")), None),
    ("v1", "ServiceAccount"): (
        several(secrets=items("name", ("k", "l")), imagePullSecrets=items("name", ("k", "l"))),
        None,
    ),
    ("v1", "Namespace"): (
        full(spec=several(finalizers=names("kubernetes", "x"))),
        full(status=several(conditions=CONDITIONS)),
    ),
    ("coordination.k8s.io/v1", "Lease"): (
        full(spec=several(holderIdentity=one_of("n", "m"), leaseDurationSeconds=one_of(1, 2))),
        None,
    ),
}
"""For each kind, the fields that are written, and the fields that are written through the status subresource."""

METADATA = several(
    labels=texts("a", "b", "c"),
    annotations=texts("x", "y"),
    finalizers=names("ex.com/f", "ex.com/g"),
    ownerReferences=items("uid", ("u", "w"), full(apiVersion=one_of("v1"), kind=one_of("Node"), name=one_of("n", "m"))),
)


def case(random: Random) -> Json:
    """Return several writes to one object by different managers."""
    version, kind = random.choice(list(BODIES))
    return {"apiVersion": version, "of": kind, "steps": [_step(random, BODIES[version, kind]) for _ in range(6)]}


def _step(random: Random, bodies: tuple[Author, Author | None]) -> Json:
    main, status = bodies
    in_status = status is not None and random.random() < 0.4
    body = status(random) if in_status and status else {"metadata": METADATA(random), **main(random)}
    return {
        "apply": random.random() < 0.7,
        "manager": random.choice(MANAGERS),
        "subresource": "status" if in_status else "",
        "force": random.random() < 0.5,
        "body": body,
        "kept": [name for name in ("labels", "annotations", "spec", "status", "data") if random.random() < 0.5],
    }


def judge(case: Json, oracle: Oracle) -> Verdict:
    """After each write, compare the object and its field owners, or the rejection.

    D26: the owner of an empty field may differ, because Go adds some empty fields that were not sent and omits others.
    Later writes start from Kubernetes' owners.
    """
    kind = {"apiVersion": case["apiVersion"], "kind": case["of"]}
    ours, theirs = dict[str, Json](), None
    owners: fields.Owners = {}
    other = AGREED
    for number, step in enumerate(case["steps"]):
        if theirs is None and step["subresource"]:
            continue
        asked = {name: step[name] for name in ("apply", "manager", "subresource", "force")}
        sent = step["body"] if step["apply"] else _changed(ours, step)
        sent = {**kind, **sent, "metadata": {**sent.get("metadata", {}), "name": "n"}}
        found = oracle.ask(
            "apply", {"apiVersion": case["apiVersion"], "of": case["of"], **asked, "live": theirs, "object": sent}
        )
        if "panic" in found:
            return Verdict(None, [found["panic"]])
        try:
            mine, owners_after = _written(case, step, ours, owners, sent)
        except ApiError as error:
            answer: Json = {"ok": False, "error": error.message}
            found.pop("causes", None)
        else:
            answer = {"ok": True, "object": _plain(mine), "owners": _entries(owners_after, case["apiVersion"])}
        shown = found if not found["ok"] else {"ok": True, "object": _plain(found["object"]), "owners": _theirs(found)}
        lines = list(differences(answer, shown))
        if lines:
            is_empty = (
                answer["ok"]
                and found["ok"]
                and not step["apply"]
                and differ_in_empty_fields(ours, sent, mine, owners_after, found)
            )
            other = Verdict(
                "D26" if is_empty else None, [f"step {number}: {json.dumps({**asked, 'object': sent})}", *lines]
            )
            if not is_empty:
                return other
            owners_after = fields.owners_of(found["managedFields"])
        if found["ok"]:
            ours, owners, theirs = mine, owners_after, found["object"]
    return other


def _written(case: Json, step: Json, before: Json, owners: fields.Owners, sent: Json) -> tuple[Json, fields.Owners]:
    me = (step["manager"], "Apply" if step["apply"] else "Update", step["subresource"])
    old, new = fields.keyed(_owned(before)), fields.keyed(_owned(tidy(case["of"], sent, case["apiVersion"])))
    if not step["apply"]:
        return fields.unkeyed(new), fields.updated(old, new, owners, me)
    applied, owners = fields.applied(
        old, fields.keyed(_owned(sent)), owners, me, case["apiVersion"], force=step["force"]
    )
    return tidy(case["of"], fields.unkeyed(applied), case["apiVersion"]), owners


def _changed(before: Json, step: Json) -> Json:
    """Return the object that an update sends: some parts are unchanged, and others are new."""
    body = step["body"]
    if step["subresource"]:
        return {**before, **body}
    metadata = {
        **body.get("metadata", {}),
        **{k: v for k, v in before.get("metadata", {}).items() if k in step["kept"]},
    }
    kept = {name: part for name, part in before.items() if name in step["kept"] or name == "status"}
    return {**body, **kept, "metadata": metadata}


def _owned(value: Json) -> Json:
    """Return the part of an object that can have field owners."""
    metadata = {name: part for name, part in value.get("metadata", {}).items() if name not in NOT_OWNED}
    rest = {name: part for name, part in value.items() if name not in (*TYPE, "metadata")}
    return {**rest, **({"metadata": metadata} if metadata else {})}


def _plain(value: Json) -> Json:
    """Return an object without empty values, which have no meaning, and without fields that have no owner."""
    found = _without_empty(_owned(value))
    return found if found is not None else {}


def _without_empty(value: Json) -> Json:
    if isinstance(value, dict):
        left = {name: _without_empty(below) for name, below in value.items()}
        return {name: below for name, below in left.items() if below is not None} or None
    if isinstance(value, list):
        return [_without_empty(one) for one in value] or None
    return value or None


def differ_in_empty_fields(before: Json, sent: Json, mine: Json, owners: fields.Owners, theirs: Json) -> bool:
    """Return whether the objects are equal apart from empty values, and owners differ only for certain fields.

    These fields are empty now, were empty before, or changed only in empty values.
    """
    found = fields.owners_of(theirs["managedFields"])
    moved = {path for owner in {*owners, *found} for path in owners.get(owner, set()) ^ found.get(owner, set())}
    old, new, other, raw = (fields.keyed(_owned(one)) for one in (before, mine, theirs["object"], sent))
    return _plain(mine) == _plain(theirs["object"]) and all(
        _is_about_nothing(old, raw, one, path) for one in (new, other) for path in moved
    )


def _is_about_nothing(old: Json, sent: Json, new: Json, path: fields.FieldPath) -> bool:
    was, is_ = (_without_empty(fields.unkeyed(_at(one, path))) for one in (old, new))
    is_shape = not was and isinstance(is_, dict | list)  # only the owner of the map or list itself differs
    return not is_ or is_shape or (was == is_ and _at(old, path) != _at(sent, path))


def _at(value: Json, path: fields.FieldPath) -> Json:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _entries(owners: fields.Owners, api_version: str) -> Json:
    return _by_owner(fields.managed_fields(owners, api_version, {}, [], now="", writer=None))


def _theirs(answer: Json) -> Json:
    return _by_owner(answer["managedFields"] or [])


def _by_owner(entries: Sequence[Json]) -> Json:
    return {
        f"{one['manager']} {one['operation']} {one.get('subresource', '')}": [one["apiVersion"], one["fieldsV1"]]
        for one in entries
    }
