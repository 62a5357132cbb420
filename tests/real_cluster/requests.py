"""Requests that are generated from a seed, and so are the same for all API servers.

Values that only a server knows are placeholders: `$version` is the last resource version that the server returned for
the request's object, `$first` is the first version, `$uid` is the object's UID, and `$mark` is the version of the last
list.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from attrs import define, field, frozen

from tests.real_cluster.client import path

Json = Any

JSON, MERGE, STRATEGIC = "application/json", "application/merge-patch+json", "application/strategic-merge-patch+json"
APPLY, JSON_PATCH = "application/apply-patch+yaml", "application/json-patch+json"
NAMES = ("a", "b", "c")
MANAGERS = ("first", "second")
WITH_STATUS = ("Node", "Pod", "ResourceClaim", "Namespace")


@frozen
class Asked:
    """One request."""

    method: str
    where: str
    body: Json = None
    kind: str = JSON
    query: Mapping[str, str] = field(factory=dict)

    def __str__(self) -> str:
        body = (
            ""
            if self.body is None
            else f" {self.kind.removeprefix('application/')} {json.dumps(self.body, default=repr)}"
        )
        return f"{self.method} {self.where} {dict(self.query) or ''}{body}"


def _api(kind: str) -> str:
    parts = path(kind).strip("/").split("/")
    return parts[1] if parts[0] == "api" else "/".join(parts[1:3])


def _object(kind: str, name: str, **fields: Json) -> Json:
    return {"apiVersion": _api(kind), "kind": kind, "metadata": {"name": name}, **fields}


def _pod(random: Random, name: str) -> Json:
    sizes = {"acme.io/gpu": str(random.randrange(1, 4))} if random.random() < 0.5 else {"cpu": "100m"}
    container: Json = {"name": "main", "image": "i", "resources": {"limits": sizes}}
    if random.random() < 0.3:
        container["env"] = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    spec = {"containers": [container], "restartPolicy": random.choice(("Never", "Always"))}
    return _object("Pod", name, spec=spec)


def _claim(random: Random, name: str) -> Json:
    exactly: Json = {"deviceClassName": "gpu.example.com"}
    if random.random() < 0.5:
        exactly |= {"allocationMode": "ExactCount", "count": random.randrange(1, 4)}
    return _object("ResourceClaim", name, spec={"devices": {"requests": [{"name": "r", "exactly": exactly}]}})


def _slice(random: Random, name: str) -> Json:
    devices = [
        {"name": f"dev-{number}", "attributes": {"model": {"string": "a"}}} for number in range(random.randrange(3))
    ]
    pool = {"name": "pool", "generation": random.randrange(1, 3), "resourceSliceCount": 1}
    return _object(
        "ResourceSlice", name, spec={"driver": "gpu.example.com", "nodeName": "a", "pool": pool, "devices": devices}
    )


MAKERS: dict[str, Callable[[Random, str], Json]] = {
    "ConfigMap": lambda random, name: _object("ConfigMap", name, data={"k": str(random.randrange(9))}),
    "Node": lambda random, name: _object("Node", name, spec={"unschedulable": True} if random.random() < 0.2 else {}),
    "Pod": _pod,
    "Lease": lambda random, name: _object("Lease", name, spec={"leaseDurationSeconds": random.randrange(1, 60)}),
    "ResourceClaim": _claim,
    "ResourceSlice": _slice,
    "DeviceClass": lambda _, name: _object(
        "DeviceClass", name, spec={"selectors": [{"cel": {"expression": "device.driver == 'd.example.com'"}}]}
    ),
}


def requests(seed: int, count: int) -> Iterator[Asked]:
    """Yield `count` requests generated from a seed."""
    made = _Requests(Random(seed))  # noqa: S311 - nothing is secret
    for _ in range(count):
        yield made.next()


@define
class _Requests:
    random: Random

    def next(self) -> Asked:
        random = self.random
        kind, name = random.choice(tuple(MAKERS)), random.choice(NAMES)
        ways: dict[Callable[[str, str], Asked], int] = {
            self._create: 20,
            self._get: 6,
            self._list: 8,
            self._watch: 1,
            self._update: 12,
            self._merge: 10,
            self._strategic: 10,
            self._json_patch: 10,
            self._apply: 14,
            self._status: 10,
            self._delete: 6,
            self._wrong: 6,
        }
        (way,) = random.choices(tuple(ways), tuple(ways.values()))
        return way(kind, name)

    def _meta(self) -> Json:
        """Return a random change to an object's metadata."""
        random = self.random
        return random.choice(
            (
                {"labels": {random.choice("xyz"): random.choice(("1", "2"))}},
                {"labels": {random.choice("xyz"): None}},
                {"annotations": {"example.com/note": str(random.randrange(3))}},
                {"labels": {"x": "1"}, "annotations": {"n": "m"}},
                {"finalizers": ["example.com/keep"]},
                {"finalizers": ["example.com/keep"]},
                {"finalizers": None},
                {"finalizers": None},
                {"labels": {"not a label": "1"}},
            )
        )

    def _body(self, kind: str, name: str) -> Json:
        body = MAKERS[kind](self.random, name)
        meta = {key: value for key, value in self._meta().items() if value is not None}
        if "labels" in meta:
            meta["labels"] = {key: value for key, value in meta["labels"].items() if value is not None}
        if self.random.random() < 0.6:
            meta = {}
        body["metadata"] |= meta
        return body

    def _create(self, kind: str, name: str) -> Asked:
        query = self.random.choice(
            ({}, {}, {}, {"fieldManager": "first"}, {"dryRun": "All"}, {"fieldValidation": "Strict"})
        )
        return Asked("POST", path(kind), self._body(kind, name), query=query)

    def _get(self, kind: str, name: str) -> Asked:
        return Asked("GET", path(kind, name))

    def _list(self, kind: str, name: str) -> Asked:
        query: Json = self.random.choice(
            (
                {},
                {"limit": "1"},
                {"limit": "2"},
                {"limit": "1", "labelSelector": "x"},
                {"labelSelector": "x=1"},
                {"labelSelector": "x in (1,2),!y"},
                {"labelSelector": "x=1,"},
                {"fieldSelector": f"metadata.name={name}"},
                {"fieldSelector": f"metadata.name!={name}"},
                {"fieldSelector": "spec.none=1"},
                {"resourceVersion": "0"},
                {"resourceVersion": "$mark", "resourceVersionMatch": "NotOlderThan"},
                {"limit": "no"},
            )
        )
        return Asked("GET", path(kind), query=query)

    def _watch(self, kind: str, _: str) -> Asked:
        query = {"watch": "true", "resourceVersion": "$mark", "timeoutSeconds": "1"}
        return Asked("GET", path(kind), query=query)

    def _update(self, kind: str, name: str) -> Asked:
        body = self._body(kind, name)
        version = self.random.choice(("$version", "$version", "$first", None))
        if version:
            body["metadata"]["resourceVersion"] = version
        return Asked("PUT", path(kind, name), body, query=self.random.choice(({}, {"fieldManager": "second"})))

    def _merge(self, kind: str, name: str) -> Asked:
        body = self.random.choice(
            (
                {"metadata": self._meta()},
                {"metadata": self._meta()},
                {"metadata": {**self._meta(), "resourceVersion": self.random.choice(("$version", "$first"))}},
                {"spec": {"none": 1}},
                {"data": {"k": "2", "l": None}} if kind == "ConfigMap" else {"metadata": {"name": "other"}},
                {"spec": {"leaseDurationSeconds": 0}} if kind == "Lease" else {"metadata": {"labels": 5}},
            )
        )
        return Asked("PATCH", path(kind, name), body, MERGE, {"fieldManager": self.random.choice(MANAGERS)})

    def _strategic(self, kind: str, name: str) -> Asked:
        taints = [{"key": self.random.choice("tu"), "value": "1", "effect": "NoSchedule"}]
        body = self.random.choice(
            (
                {"metadata": self._meta()},
                {"metadata": {"labels": {"$patch": self.random.choice(("replace", "delete", "none")), "z": "9"}}},
                {"metadata": {"labels": {"x": None, "z": "1"}, "$retainKeys": ["labels", "name"]}},
                {"metadata": {"finalizers": ["b.com/b"], "$setElementOrder/finalizers": ["b.com/b", "a.com/a"]}},
                {"metadata": {"labels": 5}},
                {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/keep"]}},
                {"spec": {"taints": taints}} if kind == "Node" else {"metadata": self._meta()},
                {"spec": {"taints": [{"$patch": "delete", "key": "t", "effect": "NoSchedule"}]}}
                if kind == "Node"
                else {"metadata": {"annotations": None}},
                {"spec": {"containers": [{"name": "main", "image": "j"}]}}
                if kind == "Pod"
                else {"metadata": self._meta()},
            )
        )
        return Asked("PATCH", path(kind, name), body, STRATEGIC, {"fieldManager": self.random.choice(MANAGERS)})

    def _json_patch(self, kind: str, name: str) -> Asked:
        body = self.random.choice(
            (
                [{"op": "add", "path": "/metadata/labels", "value": {"y": "2"}}],
                [{"op": "add", "path": "/metadata/labels/z", "value": "1"}],
                [{"op": "remove", "path": "/metadata/labels/x"}],
                [{"op": "test", "path": "/metadata/name", "value": name}, {"op": "remove", "path": "/metadata/labels"}],
                [{"op": "test", "path": "/metadata/name", "value": "none"}],
                [{"op": "replace", "path": "/metadata/annotations", "value": {"n": "1"}}],
                [{"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/more"}],
                [{"op": "copy", "from": "/metadata/labels/x", "path": "/metadata/labels/y"}],
                [{"op": "copy", "from": "/metadata/labels/none", "path": "/metadata/labels/y"}],
                [{"op": "copy", "from": "/metadata/none", "path": "/metadata/annotations"}],
                [{"op": "replace", "path": "/metadata/labels/y", "value": None}],
                [{"op": "add", "path": "/metadata/labels", "value": {"x": None}}],
                [{"op": "test", "path": "/metadata/none"}, {"op": "replace", "path": "/metadata/labels", "value": 5}],
                [{"op": "remove", "path": "/metadata/finalizers/-1"}],
                [{"op": "move", "from": "/metadata/labels/y", "path": "/metadata/labels/z"}],
                [{"path": "/metadata/labels"}],
                [{"op": "test", "path": 5}],
                [5],
                [{"op": "none", "path": "/metadata/labels"}],
                {"op": "add", "path": "/metadata/labels", "value": {}},
            )
        )
        return Asked("PATCH", path(kind, name), body, JSON_PATCH)

    def _apply(self, kind: str, name: str) -> Asked:
        query = {"fieldManager": self.random.choice(MANAGERS)}
        force = self.random.choice((None, "true", "false"))
        body = self._body(kind, name)
        if self.random.random() < 0.1:
            query = {}
        if self.random.random() < 0.1:
            body["metadata"]["managedFields"] = []
        return Asked("PATCH", path(kind, name), body, APPLY, {**query, **({"force": force} if force else {})})

    def _status(self, kind: str, name: str) -> Asked:
        random = self.random
        kind = random.choice(("Node", "Pod", "ResourceClaim"))
        condition = {"type": random.choice("AB"), "status": random.choice(("True", "False"))}
        sizes = {part: {"acme.io/gpu": str(random.randrange(4))} for part in ("capacity", "allocatable")}
        reserved = [{"resource": "pods", "name": "p", "uid": "00000000-0000-4000-8000-000000000001"}]
        bodies: dict[str, tuple[Json, ...]] = {
            "Node": (
                {"conditions": [condition]},
                sizes,
                {"capacity": {"acme.io/gpu": random.choice(("x", "1k", "0.5", 3, None))}},
                {"addresses": None},
            ),
            "Pod": (
                {"conditions": [condition]},
                {"phase": "Running"},
                {"phase": "Failed", "reason": "R"},
                {"phase": "x"},
            ),
            "ResourceClaim": ({"reservedFor": reserved}, {"reservedFor": []}, {"allocation": {}}, {"devices": []}),
        }
        how = random.choice((MERGE, STRATEGIC, APPLY, JSON))
        status = random.choice(bodies[kind])
        query = {"fieldManager": random.choice(MANAGERS)}
        where = path(kind, name, subresource="status")
        if how == APPLY:
            return Asked("PATCH", where, _object(kind, name, status=status), how, {**query, "force": "true"})
        if how == JSON:
            body = MAKERS[kind](random, name)
            body["metadata"]["resourceVersion"] = "$version"
            return Asked("PUT", where, {**body, "status": status}, query=query)
        return Asked("PATCH", where, {"status": status}, how, query)

    def _delete(self, kind: str, name: str) -> Asked:
        random = self.random
        body = random.choice(
            (
                None,
                {"gracePeriodSeconds": 0},
                {"preconditions": {"uid": "$uid"}},
                {"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}},
                {"preconditions": {"resourceVersion": "$first"}},
                {"propagationPolicy": "Background"},
            )
        )
        if random.random() < 0.1:
            return Asked("DELETE", path(kind), query={"labelSelector": "x=1"})
        return Asked("DELETE", path(kind, name), body)

    def _wrong(self, kind: str, name: str) -> Asked:
        body = self._body(kind, name)
        return self.random.choice(
            (
                Asked("POST", path(kind), {**body, "kind": "Other"}),
                Asked("POST", path(kind), {**body, "apiVersion": "none/v1"}),
                Asked("POST", path(kind), {**body, "metadata": {"name": "Not_A_Name"}}),
                Asked("POST", path(kind), {**body, "metadata": {}}),
                Asked("POST", path(kind), {**body, "metadata": {"generateName": "g-"}}, query={"dryRun": "All"}),
                Asked("POST", path(kind), {**body, "none": 1}, query={"fieldValidation": "Strict"}),
                Asked("POST", path(kind), {**body, "metadata": {"name": name, "labels": 5}}),
                Asked("POST", path(kind), {**body, "metadata": {"name": name, "labels": {"x": None}}}),
                Asked("PUT", path(kind, name), {**body, "metadata": {"name": name, "annotations": None}}),
                Asked("POST", path(kind), b"{"),
                Asked("POST", path(kind), [body]),
                Asked("POST", path(kind, namespace="none"), body),
                Asked("POST", path(kind, name), body),
                Asked("PATCH", path(kind, name), {}, JSON),
                Asked("PATCH", path(kind, name), b"not json", MERGE),
                Asked("PUT", path(kind, "other"), body),
                Asked("GET", path(kind, "none")),
                Asked("GET", path(kind, name, subresource="none")),
                Asked("GET", "/apis/none.example.com/v1/things"),
                Asked("DELETE", path(kind, "none")),
            )
        )
