"""Server-side apply on the API server for tests, compared with Kubernetes' Go library on the same requests.

`applied_fields.jsonl` contains random sequences of requests. For each sequence, it contains the refusals, and the
object and its owners after the last success, according to `k8s.io/apimachinery/pkg/util/managedfields` 0.36.4. The
program that recorded it also does what kube-apiserver does before and after an apply.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.testing.api_server import Json, LocalApiServer, fields
from tests.kit.asking import ask
from tests.kit.test_api_server import APPLY, MERGE

CASES = (Path(__file__).parent.parent / "data" / "applied_fields.jsonl").read_text().splitlines()


META = ("labels", "annotations", "ownerReferences", "finalizers")


def filled(value: Json) -> Json:
    """Return what library and server must agree on: no empty fields, and not the taint that depends on Ready."""
    taints = [one for one in value.get("taints", ()) if one["key"] != "node.kubernetes.io/not-ready"]
    return {name: one for name, one in {**value, "taints": taints}.items() if one not in ({}, [])}


@pytest.mark.parametrize("line", CASES, ids=range(len(CASES)))
def test_fields_and_owners_match_the_go_library(line: str) -> None:
    case, found = json.loads(line), dict[str, Any]()
    with LocalApiServer() as server:
        kind = server.kinds.named(case["kind"])
        group = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
        path = f"{group}{'/namespaces/default' if kind.namespaced else ''}/{kind.plural}"
        for step in case["steps"]:
            query = f"?fieldManager={step['manager']}"
            if step["verb"] == "create":
                reply = ask(server, "POST", path + query, step["object"])
            else:
                query += "&force=true" if "force" in step and step["verb"] == "apply" else ""
                place = f"{path}/n{'/status' if 'sub' in step else ''}{query}"
                reply = ask(server, "PATCH", place, step["object"], APPLY if step["verb"] == "apply" else MERGE)
            assert (reply.body["message"] if reply.code >= 400 else None) == step.get("error")
            found = found if reply.code >= 400 else reply.body
    metadata = found["metadata"]
    owners = [{name: one for name, one in entry.items() if name != "time"} for entry in metadata["managedFields"]]
    assert owners == case["managedFields"]
    shown = {"metadata": {name: one for name, one in metadata.items() if name in META}}
    shown |= {name: found[name] for name in ("spec", "status", "data") if name in found}
    shown, expected = (
        {name: filled(one) for name, one in value.items() if filled(one)} for value in (shown, case["object"])
    )
    assert shown == expected


CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def test_a_field_may_be_called_as_an_item_is() -> None:
    """A map's keys can be any strings. In `managedFields`, a map key has the prefix `f:`, unlike a list item's key."""
    names = ("k:", "v:x", "k:{", 'k:{"a":1}', 'v:"x"')
    body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n"}}
    with LocalApiServer() as server:
        for data in ({}, dict.fromkeys(names, "1")):
            body |= {"data": data}
            body["metadata"]["annotations"] = data
            reply = ask(server, "PATCH", f"{CONFIG_MAPS}/n?fieldManager=a", body, APPLY)
        (entry,) = reply.body["metadata"]["managedFields"]
        below: Json = {f"f:{name}": {} for name in names}
        assert entry["fieldsV1"] == {"f:data": below, "f:metadata": {"f:annotations": below}}

        refused = ask(server, "PATCH", f"{CONFIG_MAPS}/n?fieldManager=b", body | {"data": {"k:": "2"}}, APPLY)
        assert refused.body["message"] == 'Apply failed with 1 conflict: conflict with "a": .data.k:'
        moved = {"metadata": {"managedFields": [entry | {"manager": "c"}]}}
        reply = ask(server, "PATCH", f"{CONFIG_MAPS}/n?fieldManager=d", moved, MERGE)
        assert [one["fieldsV1"] for one in reply.body["metadata"]["managedFields"]] == [entry["fieldsV1"]]
        body |= {"data": {"k:": "1"}}
        reply = ask(server, "PATCH", f"{CONFIG_MAPS}/n?fieldManager=c", body, APPLY)
        assert reply.body["data"] == {"k:": "1"}


def test_a_status_that_loses_all_that_was_applied_has_no_owner() -> None:
    """Go removes the whole status, and writes an empty one only later (`make oracle KIND=apply SEED=s7 CASE=119`)."""
    found: Json = {}
    owners: fields.Owners = {}
    kubelet, other = (("kubelet", "Apply", "status"), ("b", "Apply", "status"))
    device = {"driver": "d", "pool": "p", "device": "x"}
    for owner, status in ((kubelet, {}), (other, {"devices": [device]}), (other, {"reservedFor": []})):
        sent = fields.keyed({"status": status}, "ResourceClaim")
        found, owners = fields.applied(found, sent, owners, owner, "resource.k8s.io/v1", force=False)
    assert owners == {}


def test_an_allocation_whose_fields_are_removed_remains() -> None:
    """Go always writes the field `devices`, so the allocation remains (`make oracle KIND=apply SEED=s10 CASE=3375`)."""
    found: Json = {}
    owners: fields.Owners = {}
    me, other = (("a", "Apply", "status"), ("b", "Apply", "status"))
    selected: Json = {"nodeSelector": {"nodeSelectorTerms": []}}
    for owner, allocation in ((me, selected), (me, {}), (other, selected)):
        sent = fields.keyed({"status": {"allocation": allocation}}, "ResourceClaim")
        found, owners = fields.applied(found, sent, owners, owner, "resource.k8s.io/v1", force=False)
    assert owners[me] == {("status", "allocation")}
    assert owners[other] == {("status", "allocation", "nodeSelector")}


@pytest.mark.parametrize(("number", "manager"), [(fields.MAX_FIELDS, "named"), (fields.MAX_FIELDS + 1, "first")])
def test_managed_fields_that_name_too_many_fields_are_ignored(number: int, manager: str) -> None:
    named = {"manager": "named", "operation": "Update", "fieldsV1": {f"f:{one}": {} for one in range(number)}}
    with LocalApiServer() as server:
        sent = {"metadata": {"name": "n"}, "data": {"a": "b"}}
        ask(server, "POST", f"{CONFIG_MAPS}?fieldManager=first", sent)
        reply = ask(server, "PATCH", f"{CONFIG_MAPS}/n", {"metadata": {"managedFields": [named]}}, MERGE)
        assert [one["manager"] for one in reply.body["metadata"]["managedFields"]] == [manager]


def test_the_fields_above_many_deep_ones_are_visited_once() -> None:
    class Part(str):
        __slots__ = ()

        def __hash__(self) -> int:
            hashed.append(self)
            return super().__hash__()

    hashed: list[str] = []
    depth, width, me = 200, 100, ("a", "Apply", "")
    deep = tuple(Part(number) for number in range(depth))
    paths = frozenset((*deep, str(number)) for number in range(width))
    hashed.clear()
    assert fields.applied({}, {}, {me: paths}, me, "v1", force=True) == ({}, {})
    assert fields.managed_fields({me: paths}, "v1", {}, [], now="", writer=me)
    assert len(hashed) <= 20 * depth * width


def test_the_entry_of_an_owner_with_the_same_fields_is_kept() -> None:
    one, other = ("a", "Update", ""), ("b", "Update", "")
    before = {one: frozenset({("x",)}), other: frozenset({("y",)})}
    earlier = fields.managed_fields(before, "v1", {}, [], now="1", writer=one)
    after = fields.managed_fields({**before, other: frozenset({("z",)})}, "v1", before, earlier, now="2", writer=other)
    assert after[0]["fieldsV1"] is earlier[0]["fieldsV1"]
    assert (after[1]["fieldsV1"], [entry["time"] for entry in after]) == ({"f:z": {}}, ["1", "2"])


def test_the_conditions_of_a_device_exist_even_if_they_are_empty() -> None:
    """Go writes missing conditions as null, so adding the first condition changes a field that already has an owner."""

    def status(*conditions: str) -> fields.Keyed:
        device = {"driver": "d", "pool": "p", "device": "x", "conditions": [{"type": one} for one in conditions]}
        empty = {name: value for name, value in device.items() if value}
        return fields.keyed({"status": {"devices": [empty]}})

    (device,) = status()["status"]["devices"]
    me, other = ("a", "Apply", "status"), ("b", "Update", "status")
    owners = {other: frozenset({("status", "devices", device, "conditions")})}
    after, kept = fields.applied(status(), status("Ready"), owners, me, "v1", force=False)
    assert (after, other in kept) == (status("Ready"), True)
    assert fields.updated(status(), fields.keyed({"status": {}}), owners, me) == {}
