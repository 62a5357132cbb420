"""The three kinds of patches, for Nodes, Pods and ResourceClaims."""

import json
from random import Random

from devicecore_tools.testing.api_server.json_patches import json_patched
from devicecore_tools.testing.api_server.patching import MERGE_KEYS, SETS, merged, strategically_merged
from devicecore_tools.testing.api_server.status import ApiError

from tests.oracle.asking import AGREED, Json, Oracle, Verdict, differences

VALUES = ("a", "b", "1", "", True, 3)


def case(random: Random) -> Json:
    """Return an object, and a patch that may not apply to the object."""
    kind = random.choice(("Node", "Pod", "ResourceClaim"))
    type_ = random.choice(("strategic", "strategic", "merge", "json"))
    before = _object(random, kind)
    patch = _operations(random, before) if type_ == "json" else _object(random, kind, deletes=True)
    if type_ == "strategic" and random.random() < 0.4:
        _add_directive(random, patch)
    return {"type": type_, "of": kind, "object": before, "patch": patch}


def _object(random: Random, kind: str, *, deletes: bool = False) -> Json:
    """Return some fields of an object. With `deletes`, the fields form a patch, and some of them are null."""

    def maybe(value: Json) -> Json:
        return random.choice((None, value, value, value)) if deletes else value

    def texts() -> Json:
        return {name: maybe(random.choice("xyz")) for name in random.sample("abc", random.randint(0, 2))}

    def listed(key: str, names: tuple[str, ...], **more: Json) -> Json:
        return [
            {key: name, **{field: maybe(random.choice(values)) for field, values in more.items()}}
            for name in random.sample(names, random.randint(0, len(names)))
        ]

    metadata = {"name": "n", "labels": maybe(texts()), "annotations": maybe(texts())}
    metadata["finalizers"] = maybe(random.sample(("f/a", "f/b"), random.randint(0, 2)))
    body: Json = {"metadata": {name: value for name, value in metadata.items() if deletes or value is not None}}
    if kind == "Node":
        taints = [{"key": name, "effect": "NoSchedule"} for name in random.sample("kl", random.randint(0, 2))]
        body["spec"] = {"taints": maybe(taints), "unschedulable": maybe(value=True)}
        body["status"] = {
            "capacity": maybe(texts()),
            "conditions": maybe(listed("type", ("Ready", "MemoryPressure"), status=("True", "False"))),
            "addresses": maybe(listed("type", ("InternalIP", "Hostname"), address=("1.1.1.1", "n"))),
        }
    elif kind == "Pod":
        body["spec"] = {
            "nodeName": maybe("n"),
            "containers": listed("name", ("main", "helper"), image=("i1", "i2")),
            "volumes": maybe(listed("name", ("v", "w"))),
            "nodeSelector": maybe(texts()),
        }
        body["status"] = {"phase": maybe("Running"), "podIPs": maybe(listed("ip", ("1.1.1.1", "2.2.2.2")))}
    else:
        body["status"] = {"reservedFor": maybe(listed("uid", ("u1", "u2"), name=("p", "q"), resource=("pods",)))}
    return {name: part for name, part in body.items() if random.random() < 0.8}


def _add_directive(random: Random, patch: Json) -> None:
    """Add a directive somewhere, usually a valid one."""
    part = random.choice([one for one in _parts(patch) if one] or [patch])
    lists = [name for name, value in part.items() if isinstance(value, list) and name in (*MERGE_KEYS, *SETS)]
    directives: list[tuple[str, Json]] = [
        ("$patch", random.choice(("replace", "replace", "delete", "delete", "merge"))),
        ("$retainKeys", random.sample(list(part), random.randint(0, len(part)))),
        *((f"$setElementOrder/{name}", random.sample(part[name], len(part[name]))) for name in lists),
    ]
    if "finalizers" in part:
        directives.append(("$deleteFromPrimitiveList/finalizers", random.choice((["f/a"], ["f/b", "f/a"]))))
    name, value = random.choice(directives)
    part[name] = value
    if name.startswith("$delete"):
        del part["finalizers"]  # Go would apply the directive and the field in random order


def _parts(value: Json) -> list[Json]:
    """Return all maps in a document."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*([value] if isinstance(value, dict) else []), *(place for one in below for place in _parts(one))]


def _operations(random: Random, before: Json) -> Json:
    places = [*_pointers(before), "/metadata/labels/new", "/metadata/none/x", "/status/conditions/-"]
    operations = []
    for _ in range(random.randint(0, 3)):
        operation: Json = {
            "op": random.choice(("add", "remove", "replace", "move", "copy", "test")),
            "path": random.choice(places),
        }
        if operation["op"] in ("add", "replace", "test"):
            operation["value"] = random.choice((*VALUES, {"a": "b"}, ["x"]))
        if operation["op"] in ("move", "copy"):
            operation["from"] = random.choice(places)
        operations.append(operation)
    return operations


def _pointers(value: Json, above: str = "") -> list[str]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, one in below for place in (f"{above}/{name}", *_pointers(one, f"{above}/{name}"))]


def judge(case: Json, oracle: Oracle) -> Verdict:
    """Compare the patched object, or the rejection."""
    theirs = oracle.ask("patch", case)
    before, patch = json.loads(json.dumps(case["object"])), case["patch"]
    try:
        if case["type"] == "json":
            result = json_patched(before, patch)
        else:
            result = merged(before, patch) if case["type"] == "merge" else strategically_merged(before, patch)
        ours: Json = {"ok": True, "object": result}
    except ApiError as error:
        ours = {"ok": False, "error": str(error)}
    if not ours["ok"] and not theirs["ok"]:
        return AGREED
    lines = list(differences(_decoded(ours), _decoded(theirs)))
    if not lines:
        return AGREED
    return Verdict(None, [json.dumps(case), *lines])


def _decoded(value: Json) -> Json:
    """Return a value without directives and nulls, which do not survive decoding into an API object."""
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if isinstance(value, dict):
        return {name: _decoded(below) for name, below in value.items() if below is not None and name[:1] != "$"}
    return value
