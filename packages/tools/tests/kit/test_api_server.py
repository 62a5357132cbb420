"""The API server of the test kit, over HTTP."""

import http.client
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from queue import Queue
from typing import Any

import pytest
from attrs import evolve
from devicecore_tools.testing.api_server import Answer, ApiError, Delay, Drop, Json, LocalApiServer, RunFirst
from devicecore_tools.testing.api_server import http as api_server_http
from devicecore_tools.testing.api_server import server as api_server_server
from devicecore_tools.testing.api_server import store as api_server_store
from devicecore_tools.testing.api_server.kinds import Kind
from devicecore_tools.testing.api_server.store import Event
from devicecore_tools.testing.wire import api_objects
from tests.kit.asking import JSON, STRATEGIC, ask

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
APPLY, JSON_PATCH, MERGE = "application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"
DRIVER = "gpu.example.com"
PROTOBUF = "application/vnd.kubernetes.protobuf"


@pytest.fixture
def server() -> Iterator[LocalApiServer]:
    with LocalApiServer() as server:
        yield server


def in_protobuf(kind: str, raw: bytes, api_version: str = "resource.k8s.io/v1") -> bytes:
    """Return the object as client-go sends it if it is configured for protobuf."""
    typed = api_objects.TypeMeta(apiVersion=api_version, kind=kind)
    return b"k8s\0" + api_objects.Unknown(typeMeta=typed, raw=raw).SerializeToString()


class Watcher:
    """Runs a watch in a separate thread and puts its events into a queue."""

    def __init__(self, server: LocalApiServer, path: str) -> None:
        self._answer = urllib.request.urlopen(f"{server.url}{path}", timeout=60)  # noqa: S310 - the server is ours
        self._events: Queue[Json | None] = Queue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._answer, suppress(http.client.HTTPException, OSError, ValueError):  # raised when the watch is cut
            for line in self._answer:
                self._events.put(json.loads(line))
        self._events.put(None)

    def close(self) -> None:
        self._thread.join()

    def next(self) -> tuple[str, Json]:
        event = self._events.get(timeout=60)
        assert event is not None, "the watch has ended"
        return event["type"], event["object"]

    def ends(self) -> bool:
        return self._events.get(timeout=60) is None


Watch = Callable[[str], Watcher]


@pytest.fixture
def watch(server: LocalApiServer) -> Iterator[Watch]:
    with ExitStack() as watchers:

        def begin(path: str) -> Watcher:
            return watchers.enter_context(closing(Watcher(server, path)))

        yield begin
        server.cut_watches()


def a_slice(name: str = "s", node: str = "node-1", count: int = 1, **spec: object) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    listed = [{"name": f"gpu-{number}"} for number in range(count)]
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": listed} | spec
    return {"metadata": {"name": name}, "spec": spec}


def a_claim(name: str = "claim") -> Json:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    return {"kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


def allocated(device: str = "gpu-0") -> Json:
    result = {"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": device}
    consumer = {"resource": "pods", "name": "pod", "uid": "uid-1"}
    return {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}


# --- reading and writing ----------------------------------------------------------------------------------------------


def test_a_created_object_gets_uid_version_and_generation(server: LocalApiServer) -> None:
    reply = ask(server, "POST", SLICES, a_slice())
    assert (reply.code, reply.body["apiVersion"], reply.body["kind"]) == (201, "resource.k8s.io/v1", "ResourceSlice")
    metadata = reply.body["metadata"]
    assert metadata["uid"]
    assert metadata["resourceVersion"].isdigit()
    assert metadata["generation"] == 1
    assert ask(server, "GET", f"{SLICES}/s").body == reply.body


def test_a_generated_name_has_a_random_end(server: LocalApiServer) -> None:
    generated = {**a_slice(), "metadata": {"generateName": "s-"}}
    names = {ask(server, "POST", SLICES, generated).body["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("s-") and len(name) == 7 for name in names)
    long = {**a_slice(), "metadata": {"generateName": "s" * 100}}
    assert len(ask(server, "POST", SLICES, long).body["metadata"]["name"]) == 63


def test_a_name_that_exists_is_refused(server: LocalApiServer) -> None:
    ask(server, "POST", SLICES, a_slice())
    reply = ask(server, "POST", SLICES, a_slice())
    assert (reply.code, reply.body["reason"]) == (409, "AlreadyExists")
    assert reply.body["message"] == 'resourceslices.resource.k8s.io "s" already exists'


def test_an_update_of_an_older_version_is_a_conflict(server: LocalApiServer) -> None:
    old = ask(server, "POST", SLICES, a_slice()).body
    new = {**old, "spec": {**old["spec"], "devices": []}}
    assert ask(server, "PUT", f"{SLICES}/s", new).body["metadata"]["generation"] == 2
    reply = ask(server, "PUT", f"{SLICES}/s", old)
    assert (reply.code, reply.body["reason"]) == (409, "Conflict")
    assert "please apply your changes to the latest version" in reply.body["message"]


def test_a_write_that_changes_nothing_creates_no_version(server: LocalApiServer) -> None:
    created = ask(server, "POST", SLICES, a_slice()).body
    again = ask(server, "PUT", f"{SLICES}/s", created).body
    assert again["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


def test_an_update_with_another_uid_is_a_conflict(server: LocalApiServer) -> None:
    created = ask(server, "POST", SLICES, a_slice()).body
    created["metadata"]["uid"] = "another"
    reply = ask(server, "PUT", f"{SLICES}/s", created)
    assert reply.code == 409
    assert "Precondition failed: UID in precondition: another" in reply.body["message"]


def test_a_delete_checks_its_preconditions(server: LocalApiServer) -> None:
    uid = ask(server, "POST", SLICES, a_slice()).body["metadata"]["uid"]
    reply = ask(server, "DELETE", f"{SLICES}/s", {"preconditions": {"uid": "another"}})
    assert reply.code == 409
    assert f"does not match the UID in record ({uid})" in reply.body["message"]
    assert ask(server, "DELETE", f"{SLICES}/s", {"preconditions": {"uid": uid}}).code == 200
    assert ask(server, "GET", f"{SLICES}/s").code == 404


def test_an_object_with_a_finalizer_stays_until_it_is_taken_off(server: LocalApiServer) -> None:
    claim = a_claim()
    claim["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    ask(server, "POST", CLAIMS, claim)
    assert "deletionTimestamp" in ask(server, "DELETE", f"{CLAIMS}/claim").body["metadata"]
    assert ask(server, "GET", f"{CLAIMS}/claim").code == 200
    patch = {"metadata": {"finalizers": None}}
    assert ask(server, "PATCH", f"{CLAIMS}/claim", patch, MERGE).code == 200
    assert ask(server, "GET", f"{CLAIMS}/claim").code == 404


def test_a_collection_is_deleted_by_selector(server: LocalApiServer) -> None:
    for name, node in (("a", "node-1"), ("b", "node-2"), ("c", "node-1")):
        ask(server, "POST", SLICES, a_slice(name, node))
    deleted = ask(server, "DELETE", f"{SLICES}?fieldSelector=spec.nodeName%3Dnode-1%2Cspec.driver%3D{DRIVER}").body
    assert [item["metadata"]["name"] for item in deleted["items"]] == ["a", "c"]
    assert [item["metadata"]["name"] for item in ask(server, "GET", SLICES).body["items"]] == ["b"]
    assert ask(server, "DELETE", f"{SLICES}?fieldSelector=spec.nodeName%3Dnode-1").code == 200


@pytest.mark.parametrize(
    ("selector", "names"),
    [("tier=a", ["a"]), ("tier!=a", ["b", "c"]), ("tier in (a,b)", ["a", "b"]), ("!tier", ["c"]), ("tier", ["a", "b"])],
)
def test_objects_are_selected_by_label(server: LocalApiServer, selector: str, names: list[str]) -> None:
    for name, labels in (("a", {"tier": "a"}), ("b", {"tier": "b"}), ("c", {})):
        server.create({"kind": "ConfigMap", "metadata": {"name": name, "labels": labels}})
    query = selector.replace(" ", "%20").replace("!", "%21")
    items = ask(server, "GET", f"/api/v1/configmaps?labelSelector={query}").body["items"]
    assert [item["metadata"]["name"] for item in items] == names


# --- the rules of each kind -------------------------------------------------------------------------------------------


SIZED = {"value": "1Gi", "requestPolicy": {"validValues": ["1Gi"]}}


@pytest.mark.parametrize(
    ("broken", "cause"),
    [
        ({"driver": "a_b"}, "spec.driver: Invalid value"),
        ({"nodeName": None}, "spec: Required value: exactly one of `nodeName`"),
        ({"allNodes": True}, "spec: Invalid value"),
        ({"pool": {"name": "p", "generation": -1, "resourceSliceCount": 1}}, "greater than or equal to zero"),
        ({"pool": {"name": "p", "generation": 1, "resourceSliceCount": 0}}, "must be greater than zero"),
        ({"pool": {"generation": 1, "resourceSliceCount": 1}}, "spec.pool.name: Required value"),
        ({"devices": [{"name": "a"}, {"name": "a"}]}, 'spec.devices[1].name: Duplicate value: "a"'),
        ({"devices": [{"name": "A"}]}, "spec.devices[0].name: Invalid value"),
        ({"devices": [{"name": "a", "attributes": {"x": {"int": 1, "bool": True}}}]}, "multiple fields are set"),
        ({"devices": [{"name": "a", "attributes": {"x": {"version": "v1.2.3"}}}]}, "semver.org spec 2.0.0"),
        ({"devices": [{"name": "a", "attributes": {"x": {"string": "x" * 65}}}]}, "may not be more than 64 bytes"),
        ({"devices": [{"name": "a", "capacity": {"memory": {"value": "much"}}}]}, "quantities must match"),
        ({"devices": [{"name": "a", "capacity": {"memory": SIZED}}]}, "requestPolicy.default: Required value"),
        ({"devices": [{}]}, "ResourceSlice.resource.k8s.io "),
        ({"devices": [{"name": "a", "taints": [{"key": "k", "effect": "Never"}]}]}, "Unsupported value"),
        (
            {"devices": [{"name": "a", "taints": [{"key": "k", "value": "95 C", "effect": "None"}]}]},
            "spec.devices[0].taints[0].value: Invalid value",
        ),
        ({"devices": [{"name": "a", "bindingConditions": ["x"]}]}, "must be set together"),
        ({"devices": [{"name": "a", "nodeName": "n"}]}, "may only be set if `perDeviceNodeSelection` is true"),
    ],
)
def test_a_slice_that_breaks_a_rule_is_refused(server: LocalApiServer, broken: Json, cause: str) -> None:
    reply = ask(server, "POST", SLICES, a_slice(**broken))
    assert (reply.code, reply.body["reason"]) == (422, "Invalid")
    assert cause in reply.body["message"]
    assert reply.body["details"]["causes"]
    assert ask(server, "GET", SLICES).body["items"] == []


def test_a_slice_has_at_most_128_devices(server: LocalApiServer) -> None:
    assert ask(server, "POST", SLICES, a_slice(count=128)).code == 201
    reply = ask(server, "POST", SLICES, a_slice("t", count=129))
    assert "spec.devices: Too many: 129: must have at most 128 items" in reply.body["message"]


def test_a_slice_keeps_its_driver_pool_and_node(server: LocalApiServer) -> None:
    created = ask(server, "POST", SLICES, a_slice()).body
    created["spec"]["nodeName"] = "node-2"
    reply = ask(server, "PUT", f"{SLICES}/s", created)
    assert 'spec.nodeName: Invalid value: "node-2": field is immutable' in reply.body["message"]


def test_a_claim_gets_defaults_and_keeps_its_spec(server: LocalApiServer) -> None:
    created = ask(server, "POST", CLAIMS, a_claim() | {"status": allocated()}).body
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    assert created["spec"]["devices"]["requests"][0]["exactly"] == exactly
    assert "status" not in created
    created["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    assert "field is immutable" in ask(server, "PUT", f"{CLAIMS}/claim", created).body["message"]


def test_an_allocation_is_set_through_the_status_and_not_changed(server: LocalApiServer) -> None:
    claim = ask(server, "POST", CLAIMS, a_claim()).body
    ignored = ask(server, "PUT", f"{CLAIMS}/claim", {**claim, "status": allocated()}).body
    assert "status" not in ignored
    claim = ask(server, "PUT", f"{CLAIMS}/claim/status", {**claim, "status": allocated()}).body
    assert claim["status"]["allocation"] == allocated()["allocation"]
    changed = {**claim, "status": allocated("gpu-1")}
    assert "field is immutable" in ask(server, "PUT", f"{CLAIMS}/claim/status", changed).body["message"]


def test_a_reservation_needs_an_allocation(server: LocalApiServer) -> None:
    claim = ask(server, "POST", CLAIMS, a_claim()).body
    status = {"reservedFor": allocated()["reservedFor"]}
    reply = ask(server, "PUT", f"{CLAIMS}/claim/status", {**claim, "status": status})
    assert "may not be specified when `allocated` is not set" in reply.body["message"]


def test_deallocation_drops_the_drivers_device_statuses(server: LocalApiServer) -> None:
    server.create(a_claim() | {"status": allocated()})
    device = {"driver": DRIVER, "pool": "node-1", "device": "gpu-0", "data": {"ready": True}}
    path = f"{CLAIMS}/claim/status"
    assert ask(server, "PATCH", path, {"status": {"devices": [device]}}, MERGE).code == 200
    reply = ask(server, "PATCH", path, {"status": {"allocation": None, "reservedFor": None}}, MERGE)
    assert reply.body["status"] == {"devices": []}


def test_a_driver_speaks_only_of_allocated_devices(server: LocalApiServer) -> None:
    server.create(a_claim() | {"status": allocated()})
    device = {"driver": DRIVER, "pool": "node-1", "device": "gpu-7"}
    reply = ask(server, "PATCH", f"{CLAIMS}/claim/status", {"status": {"devices": [device]}}, MERGE)
    assert "must be an allocated device in the claim" in reply.body["message"]


def test_a_driver_sets_at_most_eight_conditions_on_a_device(server: LocalApiServer) -> None:
    server.create(a_claim() | {"status": allocated()})
    condition = {"status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    conditions = [{**condition, "type": f"t{number}"} for number in range(9)]
    device = {"driver": DRIVER, "pool": "node-1", "device": "gpu-0", "conditions": conditions}
    reply = ask(server, "PATCH", f"{CLAIMS}/claim/status", {"status": {"devices": [device]}}, MERGE)
    assert "status.devices[0].conditions: Too many: 9: must have at most 8 items" in reply.body["message"]
    device["conditions"] = conditions[:8]
    assert ask(server, "PATCH", f"{CLAIMS}/claim/status", {"status": {"devices": [device]}}, MERGE).code == 200


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (SLICES, {"metadata": {"name": "A"}}, 'ResourceSlice.resource.k8s.io "A" is invalid'),
        ("/api/v1/namespaces", {"metadata": {"name": "A"}}, 'Namespace "A" is invalid'),
    ],
)
def test_a_refusal_names_the_group_unless_it_is_the_core_group(
    server: LocalApiServer, path: str, body: Json, named: str
) -> None:
    assert ask(server, "POST", path, body).body["message"].startswith(named)


def test_a_policy_with_valid_values_needs_a_default(server: LocalApiServer) -> None:
    policy: Json = {"validValues": ["1", "2"]}
    device = {
        "name": "a",
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": "4", "requestPolicy": policy}},
    }
    new = a_slice()
    new["spec"]["devices"] = [device]
    assert ".requestPolicy.default: Required value" in ask(server, "POST", SLICES, new).body["message"]
    policy["default"] = "1"
    assert ask(server, "POST", SLICES, new).code == 201


def test_an_update_of_a_deleted_object_names_its_key(server: LocalApiServer) -> None:
    body = {"metadata": {"name": "a", "uid": "gone"}, "spec": {}}
    reply = ask(server, "PUT", "/apis/coordination.k8s.io/v1/namespaces/default/leases/a", body)
    assert "Key: /registry/leases/default/a," in reply.body["message"]


def test_admin_access_needs_a_label_of_the_namespace(server: LocalApiServer) -> None:
    claim = a_claim()
    claim["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    assert "admin access to devices requires" in ask(server, "POST", CLAIMS, claim).body["message"]
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    assert ask(server, "PATCH", "/api/v1/namespaces/default", label, MERGE).code == 200
    assert ask(server, "POST", CLAIMS, claim).code == 201


# --- patches ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_is_answered_but_leaves_nothing(server: LocalApiServer, watch: Watch) -> None:
    server.create({"kind": "ResourceSlice", **a_slice("kept")})
    before = server.store.version
    assert ask(server, "POST", f"{SLICES}?dryRun=All", a_slice("made")).code == 201
    assert ask(server, "POST", f"{SLICES}?dryRun=All", a_slice("kept")).code == 409
    assert ask(server, "DELETE", f"{SLICES}/kept", {"dryRun": ["All"]}).code == 200
    assert ask(server, "PATCH", f"{SLICES}/kept?dryRun=All", {"metadata": {"labels": {"a": "b"}}}, MERGE).code == 200
    watcher = watch(f"{SLICES}?watch=true&resourceVersion={before}")
    server.create({"kind": "ResourceSlice", **a_slice("last")})
    assert watcher.next()[1]["metadata"]["name"] == "last"
    assert [one["metadata"]["name"] for one in server.objects("ResourceSlice")] == ["kept", "last"]


def test_an_entry_of_managed_fields_has_the_time_of_its_last_change() -> None:
    times = [datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(60)]
    server = LocalApiServer(clock=iter(times).__next__)
    server.create({"kind": "ResourceSlice", **a_slice()}, manager="first")
    server.change("ResourceSlice", "s", lambda one: one["metadata"].update(labels={"a": "b"}), manager="second")
    stamps = {one["manager"]: one["time"] for one in server.get("ResourceSlice", "s")["metadata"]["managedFields"]}
    assert stamps["first"] < stamps["second"]


def test_a_json_patch_is_carried_out_whole_or_not_at_all(server: LocalApiServer) -> None:
    ask(server, "POST", SLICES, a_slice())
    operations = [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}, {"op": "remove", "path": "/nowhere"}]
    assert ask(server, "PATCH", f"{SLICES}/s", operations, JSON_PATCH).code == 422
    assert "labels" not in server.get("ResourceSlice", "s")["metadata"]
    assert ask(server, "PATCH", f"{SLICES}/s", operations[:1], JSON_PATCH).body["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize(
    ("operations", "labels"),
    [
        ([{"op": "copy", "from": "/metadata/labels/none", "path": "/metadata/labels/b"}], {"a": "1", "b": ""}),
        ([{"op": "copy", "from": "/metadata/none", "path": "/metadata/labels"}], None),
        ([{"op": "copy", "from": "/metadata/labels", "path": "/metadata/annotations"}], {"a": "1"}),
        ([{"op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/b"}], {"b": "1"}),
        ([{"op": "add", "path": "/metadata/labels/b~1c"}], {"a": "1", "b/c": ""}),
        ([{"op": "test", "path": "/metadata/none"}, {"op": "remove", "path": "/metadata/labels"}], None),
        ([{"op": "test", "path": "/metadata/finalizers/-1", "value": "b.com/b"}], {"a": "1"}),
    ],
)
def test_a_json_patch_is_no_stricter_than_in_kubernetes(
    server: LocalApiServer, operations: list[Json], labels: Json
) -> None:
    body = a_slice()
    body["metadata"] |= {"labels": {"a": "1"}, "finalizers": ["a.com/a", "b.com/b"]}
    ask(server, "POST", SLICES, body)
    reply = ask(server, "PATCH", f"{SLICES}/{body['metadata']['name']}", operations, JSON_PATCH)
    assert (reply.code, reply.body["metadata"].get("labels")) == (200, labels)


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/metadata/none"},
        {"op": "move", "from": "/metadata/none", "path": "/metadata/labels"},
        {"op": "test", "path": "/metadata/labels/a", "value": 1},
        {"op": "replace", "path": "/metadata/finalizers/2", "value": "c.com/c"},
        {"op": "add", "path": "/metadata/finalizers/x", "value": "c.com/c"},
        {"op": "add", "path": "/metadata/labels/a/b", "value": "1"},
        {"op": "replace", "path": "", "value": "1"},
        {"op": "copy", "path": "/metadata/labels"},
        {"op": "add", "path": "", "value": {}},
        {"op": "add", "value": {}},
        {"op": "none", "path": "/metadata/labels"},
    ],
)
def test_an_operation_that_does_not_fit_is_refused(server: LocalApiServer, operation: Json) -> None:
    body = a_slice()
    body["metadata"] |= {"labels": {"a": "1"}, "finalizers": ["a.com/a", "b.com/b"]}
    ask(server, "POST", SLICES, body)
    reply = ask(server, "PATCH", f"{SLICES}/{body['metadata']['name']}", [operation], JSON_PATCH)
    assert (reply.code, reply.body["reason"], reply.body["details"]) == (422, "Invalid", {})


def test_an_object_that_is_being_deleted_gets_no_new_finalizers(server: LocalApiServer) -> None:
    body = a_slice()
    path = f"{SLICES}/{body['metadata']['name']}"
    body["metadata"]["finalizers"] = ["a.com/a"]
    ask(server, "POST", SLICES, body)
    ask(server, "DELETE", path)
    refused = ask(server, "PATCH", path, {"metadata": {"finalizers": ["a.com/a", "c.com/c", "b.com/b"]}}, MERGE)
    found = 'found new finalizers []string{"b.com/b", "c.com/c"}'
    assert (refused.code, found in refused.body["message"]) == (422, True)
    last = ask(server, "PATCH", path, {"metadata": {"finalizers": None}}, MERGE).body["metadata"]
    assert "finalizers" not in last
    assert "f:metadata" not in str(last["managedFields"])
    assert ask(server, "GET", path).code == 404


def test_an_apply_that_changes_nothing_has_no_time(server: LocalApiServer) -> None:
    body: Json = {**TYPE, "metadata": {"name": "s"}, "spec": a_slice()["spec"]}
    ask(server, "PATCH", f"{SLICES}/s?fieldManager=first", body, APPLY)
    applied = ask(server, "PATCH", f"{SLICES}/s?fieldManager=second", body, APPLY).body["metadata"]["managedFields"]
    assert ["time" in entry for entry in applied] == [True, False]
    labelled = body | {"metadata": {"name": "s", "labels": {}}}
    applied = ask(server, "PATCH", f"{SLICES}/s?fieldManager=third", labelled, APPLY).body["metadata"]["managedFields"]
    assert ["time" in entry for entry in applied] == [True, False, True]


def test_null_means_no_value_or_an_empty_one(server: LocalApiServer) -> None:
    body: Json = {"metadata": {"name": "n", "labels": {"a": None}, "annotations": None}}
    body["status"] = {"capacity": {"example.com/gpu": None}}
    made = ask(server, "POST", NODES, body).body
    assert made["metadata"]["labels"] == {"a": ""}
    assert "annotations" not in made["metadata"]
    assert made["status"]["capacity"] == {"example.com/gpu": "0"}


def test_what_a_patch_leaves_has_to_have_the_types_of_its_kind(server: LocalApiServer) -> None:
    ask(server, "POST", NODES, {"metadata": {"name": "n"}})
    for change in ({"metadata": {"labels": 5}}, {"status": {"capacity": {"example.com/gpu": "x"}}}):
        for content in (MERGE, STRATEGIC):
            refused = ask(server, "PATCH", f"{NODES}/n", change, content)
            assert (refused.code, refused.body["details"]["causes"][0]["field"]) == (422, "patch")


def test_a_wrong_quantity_is_found_before_the_object(server: LocalApiServer) -> None:
    body: Json = {"metadata": {"name": "n"}, "status": {"capacity": {"example.com/gpu": "x"}}}
    assert ask(server, "PUT", f"{NODES}/n/status", body).code == 400
    applied = body | {"apiVersion": "v1", "kind": "Node"}
    assert ask(server, "PATCH", f"{NODES}/n/status?fieldManager=m", applied, APPLY).code == 404


def test_fields_without_an_owner_are_not_managed(server: LocalApiServer) -> None:
    assert "managedFields" not in ask(server, "POST", NODES, {"metadata": {"name": "n"}}).body["metadata"]


def test_a_deleted_collection_is_answered_as_it_was(server: LocalApiServer) -> None:
    body = a_slice()
    body["metadata"]["finalizers"] = ["a.com/a"]
    ask(server, "POST", SLICES, body)
    before = server.store.version
    answer = ask(server, "DELETE", SLICES).body
    assert answer["metadata"]["resourceVersion"] == str(before)
    assert "deletionTimestamp" not in answer["items"][0]["metadata"]


def test_null_in_the_string_data_of_a_secret_is_an_empty_text(server: LocalApiServer) -> None:
    made = ask(
        server, "POST", "/api/v1/namespaces/default/secrets", {"metadata": {"name": "n"}, "stringData": {"a": None}}
    )
    assert (made.code, made.body["data"]) == (201, {"a": ""})


def test_kubectl_takes_over_what_it_has_applied_on_the_clients_side(server: LocalApiServer) -> None:
    """After an apply, kubectl moves the old manager's entries to the new manager by patching managedFields."""
    path, name = "/api/v1/namespaces/default/configmaps/c", "kubectl.kubernetes.io/last-applied-configuration"
    body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1", "b": "2"}}
    annotated = body | {"metadata": {"name": "c", "annotations": {name: json.dumps(body)}}}
    assert ask(server, "POST", f"{path[:-2]}?fieldManager=kubectl-client-side-apply", annotated).code == 201
    assert ask(server, "PATCH", f"{path}?fieldManager=own", {"data": {"b": "3"}}, MERGE).code == 200
    other = body | {"data": {"a": "9", "b": "4"}}
    assert ask(server, "PATCH", f"{path}?fieldManager=kubectl", other, APPLY).code == 409
    refused = ask(server, "PATCH", f"{path}?fieldManager=x", body | {"data": {"b": "4"}}, APPLY).body
    (cause,) = refused["details"]["causes"]
    message = 'conflict with "own" using v1'
    assert cause == {"field": ".data.b", "message": message, "reason": "FieldManagerConflict"}
    made = ask(server, "PATCH", f"{path}?fieldManager=kubectl", body | {"data": {"a": "9"}}, APPLY)
    assert made.body["data"] == {"a": "9", "b": "3"}

    entries = [one for one in made.body["metadata"]["managedFields"] if one["manager"] in ("kubectl", "own")]
    moved = [{"op": "replace", "path": "/metadata/managedFields", "value": entries}]
    after = ask(server, "PATCH", f"{path}?fieldManager=y", moved, JSON_PATCH).body["metadata"]["managedFields"]
    assert [one["manager"] for one in after] == ["kubectl", "own"]
    for bad in ("x", [{"manager": 1, "fieldsV1": {"k:x": {}}}]):
        sent = {"metadata": {"managedFields": bad}}
        assert ask(server, "PATCH", f"{path}?fieldManager=y", sent, MERGE).body["metadata"]["managedFields"] == after


# --- watching ---------------------------------------------------------------------------------------------------------


def test_a_watch_sends_each_later_event_once_and_in_order(server: LocalApiServer, watch: Watch) -> None:
    version = ask(server, "GET", SLICES).body["metadata"]["resourceVersion"]
    watcher = watch(f"{SLICES}?watch=true&resourceVersion={version}")
    created = ask(server, "POST", SLICES, a_slice()).body
    changed = ask(server, "PATCH", f"{SLICES}/s", {"spec": {"devices": []}}, MERGE).body
    ask(server, "DELETE", f"{SLICES}/s")
    assert watcher.next() == ("ADDED", created)
    assert watcher.next() == ("MODIFIED", changed)
    kind, gone = watcher.next()
    assert (kind, gone["spec"]) == ("DELETED", changed["spec"])
    assert int(gone["metadata"]["resourceVersion"]) == server.store.version


def test_a_watch_with_a_selector_sees_objects_appear_and_disappear(server: LocalApiServer, watch: Watch) -> None:
    watcher = watch("/api/v1/configmaps?watch=true&labelSelector=tier%3Da")
    server.create({"kind": "ConfigMap", "metadata": {"name": "p", "labels": {"tier": "a"}}})
    server.change("ConfigMap", "p", lambda one: one["metadata"].update(labels={"tier": "b"}))
    server.change("ConfigMap", "p", lambda one: one["metadata"].update(labels={"tier": "a"}))
    assert [watcher.next()[0] for _ in range(3)] == ["ADDED", "DELETED", "ADDED"]


def test_initial_events_end_with_a_bookmark_that_says_so(server: LocalApiServer, watch: Watch) -> None:
    ask(server, "POST", SLICES, a_slice())
    query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    watcher = watch(f"{SLICES}?{query}")
    assert watcher.next()[0] == "ADDED"
    kind, bookmark = watcher.next()
    assert kind == "BOOKMARK"
    assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_watch_without_initial_events_sends_only_later_ones(server: LocalApiServer, watch: Watch) -> None:
    ask(server, "POST", SLICES, a_slice())
    query = "watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    watcher = watch(f"{SLICES}?{query}")
    ask(server, "POST", SLICES, a_slice("later"))
    kind, value = watcher.next()
    assert (kind, value["metadata"]["name"]) == ("ADDED", "later")


@pytest.mark.parametrize(
    "query",
    [
        "limit=500&resourceVersion=0",
        "resourceVersion=0&resourceVersionMatch=NotOlderThan",
        "resourceVersion={now}",
        "resourceVersion={now}&resourceVersionMatch=NotOlderThan",
        "resourceVersion={now}&resourceVersionMatch=Exact",
        "limit=1",
    ],
)
def test_each_list_of_a_reflector_has_all_objects_and_no_token_to_continue(server: LocalApiServer, query: str) -> None:
    ask(server, "POST", SLICES, a_slice("a"))
    now = ask(server, "POST", SLICES, a_slice("b")).body["metadata"]["resourceVersion"]
    listed = ask(server, "GET", f"{SLICES}?{query.format(now=now)}").body
    assert [one["metadata"]["name"] for one in listed["items"]] == ["a", "b"]
    assert listed["metadata"] == {"resourceVersion": now}


def test_a_list_at_a_future_version_fails_in_a_way_reflectors_understand(server: LocalApiServer) -> None:
    refused = ask(server, "GET", f"{SLICES}?resourceVersion=99999").body
    assert (refused["reason"], refused["details"]["causes"]) == (
        "Timeout",
        [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
    )


def test_a_server_without_watch_lists_refuses_them() -> None:
    with LocalApiServer(serves_watch_list=False) as server:
        reply = ask(server, "GET", f"{SLICES}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
    assert reply.code == 422
    assert "unless the WatchList feature gate is enabled" in reply.body["message"]


def test_a_watch_from_a_forgotten_version_has_expired(server: LocalApiServer, watch: Watch) -> None:
    version = int(ask(server, "POST", SLICES, a_slice()).body["metadata"]["resourceVersion"])
    ask(server, "DELETE", f"{SLICES}/s")
    server.store.forget_events()
    watcher = watch(f"{SLICES}?watch=true&resourceVersion={version}")
    kind, status = watcher.next()
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
    assert watcher.ends()


def test_a_watch_ends_with_a_bookmark_when_its_time_is_over(watch: Watch) -> None:
    watcher = watch(f"{SLICES}?watch=true&allowWatchBookmarks=true&timeoutSeconds=1")
    assert watcher.next()[0] == "BOOKMARK"
    assert watcher.ends()


def test_a_watch_without_bookmarks_waits_for_its_end(
    server: LocalApiServer, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.watch_seconds, server.bookmark_seconds = 0.1, 0
    look, looks = server.store.events_after, Queue[object]()

    def counted(version: int, kind: Kind) -> tuple[list[Event], int]:
        looks.put(version)
        return look(version, kind)

    monkeypatch.setattr(server.store, "events_after", counted)
    assert watch(f"{SLICES}?watch=true").ends()
    assert looks.qsize() == 2


def test_a_watch_that_is_cut_ends(server: LocalApiServer, watch: Watch) -> None:
    watcher = watch(f"{SLICES}?watch=true")
    server.cut_watches()
    assert watcher.ends()
    # the watches are cut after this request has arrived, but before its watch starts
    server.inject(RunFirst(server.cut_watches), verb="watch")
    assert watch(f"{SLICES}?watch=true").ends()


# --- faults, permissions and bad requests -----------------------------------------------------------------------------


def test_a_cue_answers_every_second_write(server: LocalApiServer) -> None:
    server.inject(Answer(409, {"kind": "Status"}), verb="create", resource="resourceslices", times=None, every=2)
    codes = [ask(server, "POST", SLICES, a_slice(f"s{number}")).code for number in range(4)]
    assert codes == [201, 409, 201, 409]


def test_a_dropped_response_keeps_the_stored_object(server: LocalApiServer) -> None:
    server.inject(Drop(after=True), verb="create")
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(server, "POST", SLICES, a_slice())
    assert server.get("ResourceSlice", "s")


def test_a_refusal_names_verb_and_resource(server: LocalApiServer) -> None:
    server.forbidden.add("create resourceslices")
    reply = ask(server, "POST", SLICES, a_slice())
    assert (reply.code, reply.body["reason"]) == (403, "Forbidden")
    assert "cannot create resource" in reply.body["message"]


OTHERS_DEVICE = {"driver": "other.example.com", "pool": "p", "device": "d"}


@pytest.mark.parametrize(
    ("refused", "change", "problem"),
    [
        ("patch resourceclaims/binding", {"reservedFor": None}, 'resource="resourceclaims/binding", verb="patch"'),
        ("patch resourceclaims/binding", {"devices": []}, ""),
        ("update resourceclaims/binding", {"reservedFor": None}, ""),
        ("associated-node:patch resourceclaims/driver", {"devices": []}, 'resource="resourceclaims/driver"'),
        ("associated-node:patch resourceclaims/driver other.example.com", {"devices": []}, "for other.example.com"),
        (f"associated-node:patch resourceclaims/driver {DRIVER}", {"devices": []}, ""),
    ],
)
def test_a_part_of_a_claims_status_needs_a_permission_of_its_own(
    server: LocalApiServer, refused: str, change: Json, problem: str
) -> None:
    status = allocated()
    status["allocation"]["devices"]["results"][0] |= OTHERS_DEVICE
    server.create(a_claim() | {"status": {**status, "devices": [OTHERS_DEVICE]}})
    server.forbidden.add(refused)
    reply = ask(server, "PATCH", f"{CLAIMS}/claim/status", {"status": change}, MERGE)
    assert reply.code == (422 if problem else 200), reply.body
    assert problem in str(reply.body.get("message", ""))


@pytest.mark.parametrize("query", ["", "?watch=true"])
def test_a_delay_ends_when_the_server_stops(server: LocalApiServer, query: str) -> None:
    server.inject(Delay(3600))
    before = set(threading.enumerate())
    replies: Queue[object] = Queue()

    def ask_once() -> None:
        try:
            replies.put(ask(server, "GET", SLICES + query))
        except (http.client.HTTPException, OSError) as error:
            replies.put(error)

    threading.Thread(target=ask_once, daemon=True).start()
    server.wait_for(lambda: server.requests)
    server.stop()
    assert replies.get(timeout=60) is not None
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("path", ["/nowhere", "/apis/a.example.com/v1", "/apis/resource.k8s.io/v1beta1/resourceslices"])
def test_a_group_or_version_that_is_not_served_has_no_status(server: LocalApiServer, path: str) -> None:
    reply = ask(server, "GET", path)
    assert (reply.code, reply.body) == (404, "404 page not found\n")


NODES, TYPE = "/api/v1/nodes", {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
DEPTHS, NO_NUMBERS = (150, 900, 100_000), (b"NaN", b"Infinity", b"-1e999")
APPLIED = f"{SLICES}/s?fieldManager=m&force=true"
ALIASES = "a0: &a0 [0]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 50}]\n" for n in range(1, 20))
BAD_DIRECTIVES: list[Json] = [
    *({"$setElementOrder/containers": one} for one in (5, None, "x", [5], [None])),
    *({"$setElementOrder/containers": [], "containers": one} for one in (5, None, ["x"])),
    {"$setElementOrder/tolerations": [{"key": "a"}], "tolerations": [{"key": "b"}]},
    {"$patch": ["replace"]},
]
BAD_REQUESTS: list[tuple[str, str, object, str, int]] = [
    ("GET", "/apis/resource.k8s.io/v1/nowhere", None, JSON, 404),
    ("GET", f"{SLICES}/a/b/c", None, JSON, 404),
    ("POST", SLICES, b"{", JSON, 400),
    ("POST", SLICES, b"[]", JSON, 400),
    ("POST", SLICES, b'{"spec": 1}', JSON, 400),
    ("POST", SLICES, b'{"metadata": 1}', JSON, 400),
    ("POST", SLICES, b'{"kind": "Pod"}', JSON, 400),
    ("POST", SLICES, b"[" * 100_000, JSON, 400),
    ("POST", SLICES, b"k8s\0", PROTOBUF, 415),
    ("POST", SLICES, b"{}", PROTOBUF, 400),
    ("POST", SLICES, b"k8s\0\xff", PROTOBUF, 400),
    ("POST", SLICES, in_protobuf("StatefulSet", b""), PROTOBUF, 415),
    ("POST", SLICES, in_protobuf("ResourceSlice", b"\xff"), PROTOBUF, 400),
    ("POST", SLICES, in_protobuf("ResourceSlice", b"\n\3\n\1\xff"), PROTOBUF, 400),
    ("POST", SLICES, b'{"metadata": {"name": "A B"}}', JSON, 422),
    ("POST", f"{SLICES}/s", b"{}", JSON, 405),
    ("DELETE", "/apis/resource.k8s.io/v1/resourceclaims", None, JSON, 405),
    ("GET", f"{SLICES}?watch=true&resourceVersion=x", None, JSON, 422),
    ("GET", f"{SLICES}?watch=true&resourceVersion=%C2%B2", None, JSON, 422),
    ("GET", f"{SLICES}?watch=true&resourceVersion={'9' * 5000}", None, JSON, 422),
    ("GET", f"{SLICES}?watch=true&timeoutSeconds=x", None, JSON, 422),
    ("GET", f"{SLICES}?watch=true&timeoutSeconds=nan", None, JSON, 422),
    ("GET", f"{SLICES}?watch=true&timeoutSeconds=-1", None, JSON, 422),
    ("GET", f"{SLICES}?watch=true&resourceVersionMatch=NotOlderThan", None, JSON, 422),
    ("GET", f"{SLICES}?watch=true&sendInitialEvents=true&resourceVersionMatch=x", None, JSON, 422),
    ("GET", f"{SLICES}?sendInitialEvents=true", None, JSON, 422),
    ("GET", f"{SLICES}?resourceVersionMatch=NotOlderThan", None, JSON, 422),
    ("GET", f"{SLICES}?resourceVersion=1&resourceVersionMatch=Newest", None, JSON, 422),
    ("GET", f"{SLICES}?resourceVersion=0&resourceVersionMatch=Exact", None, JSON, 422),
    ("GET", f"{SLICES}?resourceVersion=1&resourceVersionMatch=Exact", None, JSON, 410),
    ("GET", f"{SLICES}?resourceVersion=99999", None, JSON, 504),
    ("GET", f"{SLICES}?limit=x", None, JSON, 400),
    ("GET", f"{SLICES}?limit=1&continue=x", None, JSON, 400),
    ("POST", f"{SLICES}?dryRun=Some", b'{"metadata": {"name": "s"}}', JSON, 422),
    ("DELETE", f"{SLICES}/s", b'{"dryRun": 1}', JSON, 422),
    *(("POST", NODES, b'{"metadata":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}", JSON, 400) for depth in DEPTHS),
    *(("POST", NODES, b'{"metadata":{"name":"n"},"spec":{"x":%s}}' % number, JSON, 400) for number in NO_NUMBERS),
    ("POST", NODES, {"metadata": {"name": "n"}, "status": {"capacity": {"example.com/gpu": "9" * 5_000}}}, JSON, 400),
    *(("PATCH", APPLIED, {**TYPE, "spec": {"devices": one}}, APPLY, 400) for one in (1, [1], [None], "x")),
    ("PATCH", f"{SLICES}/s", {}, JSON, 415),
    *(("PATCH", f"{SLICES}/s", {"spec": one}, STRATEGIC, 500) for one in BAD_DIRECTIVES),
    ("PATCH", f"{SLICES}/s", {"spec": {"$retainKeys": 5}}, STRATEGIC, 400),
]
ALL_BAD_REQUESTS = [
    *((*one, "") for one in BAD_REQUESTS),
    (*("POST", SLICES, a_slice(pool={"name": "p", "generation": 2**63}), JSON, 400), "expected one of 64 bits"),
    (*("PATCH", APPLIED, ALIASES.encode(), APPLY, 400), "more than 50000 values"),
    (*("POST", CLAIMS.replace("default", "nowhere"), a_claim(), JSON, 404), 'namespaces "nowhere" not found'),
    (
        *("GET", f"{SLICES}?fieldSelector=spec.pool.name%3Dx", None, JSON, 400),
        "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: spec.pool.name",
    ),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "content", "code", "problem"),
    ALL_BAD_REQUESTS,
    ids=[f"{number} {method} {path[:60]}" for number, (method, path, *_) in enumerate(ALL_BAD_REQUESTS)],
)
def test_a_bad_request_is_refused_with_a_status_and_changes_nothing(
    server: LocalApiServer, method: str, path: str, body: object, content: str, code: int, problem: str
) -> None:
    ask(server, "POST", SLICES, a_slice())
    before = server.store.version
    reply = ask(server, method, path, body, content)
    assert (reply.code, reply.body["kind"], server.store.version) == (code, "Status", before)
    assert reply.body["message"]
    assert problem in reply.body["message"]


@pytest.mark.parametrize(
    ("head", "code"),
    [
        ("POST /api/v1/nodes HTTP/1.1\r\nContent-Length: -1", 400),
        ("POST /api/v1/nodes HTTP/1.1\r\nContent-Length: abc", 400),
        (f"POST /api/v1/nodes HTTP/1.1\r\nContent-Length: {'9' * 5_000}", 413),
        ("POST /api/v1/nodes HTTP/1.1\r\nContent-Length: 3000000000", 413),
        ("POST /api/v1/nodes HTTP/1.1\r\nTransfer-Encoding: gzip", 411),
        ("POST /api/v1/nodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1", 411),
        ("POST /api/v1/nodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff", 413),
        ("POST /api/v1/nodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n123456789", 400),
        ("POST /api/v1/nodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}}", 400),
        ("GET http://[/api HTTP/1.1", 400),
    ],
    ids=["negative", "no number", "no number of bytes", "3 GB", "gzip", "both", "4 GB", "no size", "no end", "no path"],
)
def test_a_request_of_unknown_length_is_refused_at_once(server: LocalApiServer, head: str, code: int) -> None:
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(f"{head}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = connection.makefile("rb").read()
    assert answer.startswith(f"HTTP/1.1 {code} ".encode())
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["kind"] == "Status"


def test_a_body_may_arrive_in_chunks_as_from_kubectl_create_raw(server: LocalApiServer) -> None:
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    for name in ("a", "b"):  # both requests use one connection
        parts = iter([b'{"metadata": ', f'{{"name": "{name}"}}'.encode(), b"}"])
        connection.request("POST", "/api/v1/nodes", parts, {"Content-Type": "application/json"}, encode_chunked=True)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["metadata"]["name"]) == (201, name)
    connection.close()


def test_a_body_that_ends_early_changes_nothing(server: LocalApiServer) -> None:
    request = "PATCH /api/v1/nodes/n?fieldManager=m HTTP/1.1\r\nHost: x\r\n"
    head = f"{request}Content-Type: {APPLY}\r\nContent-Length: 99\r\n\r\n"
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(head.encode() + b"apiVersion: v1\nkind: Node\n")
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert server.objects("Node") == []


def test_a_patch_whose_copies_grow_without_end_is_refused(server: LocalApiServer) -> None:
    ask(server, "POST", SLICES, a_slice())
    there = "/metadata/annotations"
    grow: list[Json] = [{"op": "add", "path": there, "value": {"a": "x" * 100}}]
    grow += [{"op": "copy", "from": there, "path": f"{there}/{number}"} for number in range(16)]
    nest = [{"op": "add", "path": "/spec/x" + "/a" * depth, "value": {}} for depth in range(150)]
    for operations, code in ((grow, 422), (nest, 400), ([{"op": "copy", "path": "/a"}], 422)):
        assert ask(server, "PATCH", f"{SLICES}/s", operations, JSON_PATCH).code == code
    assert server.get("ResourceSlice", "s")["spec"] == a_slice()["spec"]


def test_half_a_surrogate_pair_becomes_the_replacement_character(server: LocalApiServer) -> None:
    body = rb'{"metadata":{"name":"n","annotations":{"a":"\ud800","b":"\ud83d\ude00"}}}'
    annotations = ask(server, "POST", "/api/v1/nodes", body).body["metadata"]["annotations"]
    assert annotations == {"a": "\ufffd", "b": "\U0001f600"}


@pytest.mark.parametrize("selector", ["," * 60_000, "(," * 30_000, "a" + "+" * 60_000 + "b"])
def test_a_long_selector_takes_less_than_a_second(server: LocalApiServer, selector: str) -> None:
    began = time.process_time()
    ask(server, "GET", f"{SLICES}?labelSelector={selector}")
    assert time.process_time() - began < 1


def test_idle_connections_keep_no_client_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server_http, "MAX_CONNECTIONS", 20)
    with LocalApiServer() as server, ExitStack() as connections:
        for _ in range(60):
            connections.enter_context(socket.create_connection(server.address, timeout=60)).sendall(b"GET /")
        assert ask(server, "GET", SLICES).code == 200


@pytest.mark.parametrize(
    "line", [b"\x00\x01<script>", b"GET", b"FOO / HTTP/1.1", b"GET / HTTP/9.9", b"GET /" + b"x" * 70_000], ids=range(5)
)
def test_input_that_is_not_http_is_answered_with_a_status(server: LocalApiServer, line: bytes) -> None:
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(line + b"\r\nHost: x\r\n\r\n")
        answer = connection.makefile("rb").read()
    found = json.loads(answer[answer.index(b"{") :])
    assert (found["kind"], found["status"]) == ("Status", "Failure")
    assert b"<html" not in answer.lower()


def test_a_full_store_refuses_writes_until_a_deletion(server: LocalApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server_store, "MAX_WEIGHT", 100_000)

    def large(name: str) -> Json:
        return {"metadata": {"name": name, "annotations": {"a": "x" * 80_000}}}

    assert ask(server, "POST", "/api/v1/nodes", large("a")).code == 201
    full = ask(server, "POST", "/api/v1/nodes", large("b"))
    assert (full.code, full.body["message"]) == (500, "etcdserver: mvcc: database space exceeded")
    assert ask(server, "PUT", "/api/v1/nodes/a", large("a")).code == 200
    assert ask(server, "DELETE", "/api/v1/nodes/a").code == 200
    assert ask(server, "POST", "/api/v1/nodes", large("b")).code == 201


def test_the_history_of_large_objects_is_short(server: LocalApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server_store, "MAX_HISTORY", 100_000)
    for number in range(5):
        server.create({"kind": "Node", "metadata": {"name": f"n{number}", "annotations": {"a": "x" * 40_000}}})
    reply = ask(server, "GET", "/api/v1/nodes?watch=true&resourceVersion=1003&timeoutSeconds=1")
    assert reply.body["object"]["reason"] == "Expired"


def test_very_many_requests_are_noted_without_details(server: LocalApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server_server, "MAX_NOTED", 16_000)
    for _ in range(3):
        ask(server, "POST", "/api/v1/nodes", {"metadata": {"name": "!", "annotations": {"a": "x" * 6_000}}})
    assert [bool(one.body) for one in server.requests] == [True, False, False]
    assert {(one.method, one.path, one.verb) for one in server.requests} == {("POST", "/api/v1/nodes", "create")}


def test_a_client_that_does_not_read_a_list_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server_http, "MAX_LARGE", 1)
    monkeypatch.setattr(api_server_http, "SENDING_SECONDS", 0.1)
    with LocalApiServer() as server, socket.socket() as connection:
        for number in range(4):
            server.create({"kind": "Node", "metadata": {"name": f"n{number}", "annotations": {"a": "x" * 2_000_000}}})
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect(server.address)
        connection.sendall(b"GET /api/v1/nodes HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1, socket.MSG_PEEK)
        assert ask(server, "GET", "/api/v1/pods").code == 200  # served once the other request is abandoned
        assert len(connection.makefile("rb").read()) < 8_000_000


def test_a_list_with_a_large_body_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server_http, "MAX_LARGE", 1)
    with LocalApiServer() as server:
        assert ask(server, "GET", SLICES, {"a": "x" * 100_000}).code == 200


@pytest.mark.parametrize("header", ["Content-Length: 70000\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n5"])
def test_bodies_that_never_arrive_block_no_list(monkeypatch: pytest.MonkeyPatch, header: str) -> None:
    monkeypatch.setattr(api_server_http, "MAX_LARGE", 1)
    monkeypatch.setattr(api_server_http, "BODY_SECONDS", 60.0)
    with LocalApiServer() as server, ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(socket.create_connection(server.address, timeout=60))
            connection.sendall(f"POST /api/v1/nodes HTTP/1.1\r\nHost: x\r\n{header}".encode())
        assert ask(server, "GET", "/api/v1/nodes").code == 200


@pytest.mark.parametrize("header", ["Content-Length: 70000\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n5"])
def test_a_body_that_never_arrives_ends_its_connection(
    server: LocalApiServer, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    monkeypatch.setattr(api_server_http, "BODY_SECONDS", 0.1)
    with socket.create_connection(server.address, timeout=60) as connection:
        connection.sendall(f"POST /api/v1/nodes HTTP/1.1\r\nHost: x\r\n{header}".encode())
        assert connection.recv(1) == b""


def test_the_objects_survive_a_restart_on_the_same_port() -> None:
    server = LocalApiServer()
    server.start()
    url = server.url
    ask(server, "POST", SLICES, a_slice())
    server.stop()
    server.start()
    try:
        assert server.url == url
        assert ask(server, "GET", f"{SLICES}/s").code == 200
    finally:
        server.stop()


def definition(**spec: object) -> Json:
    names = {"kind": "Bridge", "plural": "bridges", "shortNames": ["br"]}
    versions = [
        {"name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}}},
        {"name": "v1", "served": False, "storage": False},
    ]
    body = {"group": "nets.example.com", "scope": "Namespaced", "names": names, "versions": versions, **spec}
    return {"kind": "CustomResourceDefinition", "metadata": {"name": "bridges.nets.example.com"}, "spec": body}


DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
BRIDGES = "/apis/nets.example.com/v1alpha1/namespaces/default/bridges"


def test_a_definition_is_named_after_its_kind(server: LocalApiServer) -> None:
    reply = ask(server, "POST", DEFINITIONS, {**definition(), "metadata": {"name": "bridges.other.example.com"}})
    assert 'must be spec.names.plural+"."+spec.group: bridges.nets.example.com' in reply.body["message"]


def test_a_definition_adds_a_kind_until_it_is_deleted(server: LocalApiServer, watch: Watch) -> None:
    version = "nets.example.com/v1alpha1"
    bridge = {"kind": "Bridge", "apiVersion": version, "metadata": {"name": "b"}, "spec": {"mtu": 1}}
    assert ask(server, "POST", BRIDGES, bridge).code == 404
    assert ask(server, "POST", DEFINITIONS, definition()).code == 201
    assert ask(server, "GET", "/apis/nets.example.com").body["preferredVersion"]["version"] == "v1alpha1"
    listed = ask(server, "GET", "/apis/nets.example.com/v1alpha1").body["resources"]
    assert [one["name"] for one in listed] == ["bridges", "bridges/status"]
    created = ask(server, "POST", BRIDGES, {**bridge, "status": {"up": True}}).body
    assert (created["apiVersion"], created["metadata"]["generation"]) == ("nets.example.com/v1alpha1", 1)
    assert "status" not in created
    assert ask(server, "PATCH", f"{BRIDGES}/b/status", {"status": {"up": True}}, MERGE).body["status"] == {"up": True}
    assert server.get("Bridge", "b")["spec"] == {"mtu": 1}
    watcher = watch("/apis/nets.example.com/v1alpha1/bridges?watch=true")
    assert watcher.next()[1]["metadata"]["name"] == "b"
    assert ask(server, "GET", BRIDGES.replace("v1alpha1", "v1")).code == 404
    server.change(
        "CustomResourceDefinition", "bridges.nets.example.com", lambda one: one["metadata"].update(labels={"a": "b"})
    )
    assert ask(server, "PATCH", f"{BRIDGES}/b", {"spec": {"mtu": 2}}, MERGE).code == 200
    assert watcher.next()[0] == "MODIFIED"
    assert ask(server, "DELETE", f"{DEFINITIONS}/bridges.nets.example.com").code == 200
    assert watcher.next()[0] == "DELETED"
    assert ask(server, "GET", BRIDGES).code == 404


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"group": "resource.k8s.io"}, "spec.group"),
        ({"group": "nets"}, "spec.group"),
        ({"names": {"kind": "Bridge"}}, "spec.names.plural"),
        ({"names": {"plural": "bridges"}}, "spec.names.kind"),
        ({"scope": "Node"}, "spec.scope"),
        ({"versions": []}, "spec.versions"),
        ({"versions": [{"name": "V1"}]}, "spec.versions[0].name"),
        ({"group": "other.example.com"}, "metadata.name"),
    ],
)
def test_a_definition_that_cannot_be_served_is_refused(server: LocalApiServer, spec: Json, field: str) -> None:
    refused = ask(server, "POST", DEFINITIONS, definition(**spec))
    assert refused.code == 422
    assert field in [cause["field"] for cause in refused.body["details"]["causes"]]
    assert set(server.versions) & {"nets", "nets.example.com"} == set()


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"names": "bridges"}, "spec.names"),
        ({"names": {"kind": "Bridge", "plural": "bridges", "shortNames": 5}}, "spec.names.shortNames"),
        ({"versions": ["v1"]}, "spec.versions[0]"),
        ({"versions": [{"name": "v1", "served": True, "subresources": 5}]}, "spec.versions[0].subresources"),
    ],
)
def test_a_definition_with_a_field_of_another_type_is_refused(server: LocalApiServer, spec: Json, field: str) -> None:
    refused = ask(server, "POST", DEFINITIONS, definition(**spec))
    assert refused.code == 400
    assert f"into field {field}: expected" in refused.body["message"]


def test_a_definition_without_a_served_version_serves_nothing(server: LocalApiServer) -> None:
    assert ask(server, "POST", DEFINITIONS, definition(versions=[{"name": "v1", "storage": True}])).code == 201
    groups = ask(server, "GET", "/apis").body["groups"]
    assert "resource.k8s.io" in [group["name"] for group in groups]
    assert "nets.example.com" not in [group["name"] for group in groups]
    assert ask(server, "GET", "/apis/nets.example.com").code == 404


def test_the_served_kinds_can_be_discovered(server: LocalApiServer) -> None:
    groups = ask(server, "GET", "/apis").body["groups"]
    served = [f"{group}.k8s.io/v1" for group in ("resource", "coordination", "events", "apiextensions")]
    assert [group["preferredVersion"]["groupVersion"] for group in groups] == served
    resources = ask(server, "GET", "/apis/resource.k8s.io/v1").body["resources"]
    assert {"resourceslices", "resourceclaims", "resourceclaims/status"} <= {one["name"] for one in resources}


def test_a_client_finds_a_kind_by_its_short_and_singular_name(server: LocalApiServer) -> None:
    whole = {one["name"]: one for one in ask(server, "GET", "/api/v1").body["resources"]}
    assert (whole["pods"]["singularName"], whole["pods"]["shortNames"]) == ("pod", ["po"])
    assert whole["pods/status"]["singularName"] == ""


def test_an_unknown_kind_is_refused_with_the_known_ones(server: LocalApiServer) -> None:
    with pytest.raises(ValueError, match="no kind 'Gpu'; it has Namespace, Node"):
        server.create({"kind": "Gpu"})


def test_errors_are_values() -> None:
    error = ApiError(404, "NotFound", "x")
    assert evolve(error, code=410).status["code"] == 410


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_a_client_that_asks_for_the_health_hears_ok(server: LocalApiServer, path: str) -> None:
    with urllib.request.urlopen(f"{server.url}{path}", timeout=60) as answer:  # noqa: S310 - the server is ours
        assert answer.read() == b"ok"


# --- protobuf ---------------------------------------------------------------------------------------------------------


def test_a_slice_is_written_as_protobuf_as_client_go_does(server: LocalApiServer) -> None:
    sent = api_objects.ResourceSlice()
    sent.metadata.name, sent.metadata.generateName, sent.metadata.uid = "s", "", ""  # Go sends empty strings
    sent.metadata.creationTimestamp.SetInParent()  # Go sends the zero time as an empty message
    sent.metadata.ownerReferences.add(apiVersion="v1", kind="Node", name="n", uid="u", controller=True)
    sent.spec.driver, sent.spec.nodeName = DRIVER, "n"
    sent.spec.pool.name, sent.spec.pool.generation, sent.spec.pool.resourceSliceCount = "p", 0, 1
    device = sent.spec.devices.add(name="gpu-0")
    device.attributes["rank"].intValue = 0
    device.attributes["shared"].boolValue = False
    device.attributes["model"].stringValue = ""
    device.capacity["memory"].value.string = "1Gi"
    device.taints.add(key="hot", effect="NoSchedule", value="").timeAdded.seconds = 1_700_000_000

    made = ask(server, "POST", SLICES, in_protobuf("ResourceSlice", sent.SerializeToString()), PROTOBUF)
    assert made.code == 201
    assert made.body["metadata"]["ownerReferences"][0]["controller"] is True
    assert made.body["spec"] == {
        "driver": DRIVER,
        "nodeName": "n",
        "pool": {"name": "p", "generation": 0, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {"rank": {"int": 0}, "shared": {"bool": False}, "model": {"string": ""}},
                "capacity": {"memory": {"value": "1Gi"}},
                "taints": [{"key": "hot", "effect": "NoSchedule", "timeAdded": "2023-11-14T22:13:20Z"}],
            }
        ],
    }

    sent.metadata.resourceVersion = made.body["metadata"]["resourceVersion"]
    sent.spec.pool.generation = 1
    body = in_protobuf("ResourceSlice", sent.SerializeToString())
    assert ask(server, "PUT", f"{SLICES}/s", body, PROTOBUF).body["spec"]["pool"]["generation"] == 1
    assert ask(server, "PUT", f"{SLICES}/s", body, PROTOBUF).code == 409

    options = api_objects.DeleteOptions()
    options.preconditions.uid = "another"
    refused = in_protobuf("DeleteOptions", options.SerializeToString(), "v1")
    assert ask(server, "DELETE", f"{SLICES}/s", refused, PROTOBUF).code == 409
    options.preconditions.uid = made.body["metadata"]["uid"]
    allowed = in_protobuf("DeleteOptions", options.SerializeToString(), "v1")
    assert ask(server, "DELETE", f"{SLICES}/s", allowed, PROTOBUF).code == 200


def test_a_claim_in_protobuf_has_its_configuration_where_json_has_it(server: LocalApiServer) -> None:
    sent = api_objects.ResourceClaim()
    sent.metadata.name = "c"
    sent.spec.devices.requests.add(name="r").exactly.deviceClassName = "gpu"
    opaque = sent.spec.devices.config.add(requests=["r"]).deviceConfiguration.opaque
    opaque.driver, opaque.parameters.raw = DRIVER, b'{"mode": "fast"}'
    made = ask(server, "POST", CLAIMS, in_protobuf("ResourceClaim", sent.SerializeToString()), PROTOBUF)
    assert made.code == 201
    parameters = {"driver": DRIVER, "parameters": {"mode": "fast"}}
    assert made.body["spec"]["devices"]["config"] == [{"requests": ["r"], "opaque": parameters}]


SECRET = {"data": {"a": "Yg==", "c": "ZA=="}, "type": "Opaque"}
EXACT = {"deviceClassName": "g", "count": 1, "allocationMode": "ExactCount"}
TYPED: list[tuple[str, str, Any, Json]] = [
    (
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        "coordination.k8s.io/v1",
        api_objects.Lease(spec={"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": {"seconds": 1}}),
        {"spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "1970-01-01T00:00:01.000000Z"}},
    ),
    (
        "/api/v1/namespaces/default/configmaps",
        "v1",
        api_objects.ConfigMap(data={"a": "b"}, binaryData={"c": b"\xff"}),
        {"data": {"a": "b"}, "binaryData": {"c": "/w=="}},
    ),
    ("/api/v1/namespaces/default/secrets", "v1", api_objects.Secret(data={"a": b"b"}, stringData={"c": "d"}), SECRET),
    ("/api/v1/namespaces/default/serviceaccounts", "v1", api_objects.ServiceAccount(), {}),
    ("/api/v1/namespaces", "v1", api_objects.Namespace(), {}),
    (
        "/api/v1/nodes",
        "v1",
        api_objects.Node(spec={"providerID": "p"}, status={"capacity": {"a.io/b": {"string": "2"}}}),
        {
            "spec": {"providerID": "p", "taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
            "status": {"capacity": {"a.io/b": "2"}},
        },
    ),
    (
        "/api/v1/namespaces/default/pods",
        "v1",
        api_objects.Pod(
            spec={
                "containers": [
                    {"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 0}], "tty": False}
                ],
                "resourceClaims": [{"name": "r"}],
                "volumes": [{"name": "v", "volumeSource": {"emptyDir": {}}}],
                "hostNetwork": False,
            }
        ),
        {
            "spec": {
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 30,
                "dnsPolicy": "ClusterFirst",
                "schedulerName": "default-scheduler",
                "containers": [{"name": "c", "image": "i", "resources": {}, "ports": [{"containerPort": 80}]}],
                "resourceClaims": [{"name": "r"}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            }
        },
    ),
    (
        "/apis/events.k8s.io/v1/namespaces/default/events",
        "events.k8s.io/v1",
        api_objects.EventV1(
            reportingController="a.io",
            reportingInstance="a",
            action="Add",
            reason="Added",
            note="it is there",
            type="Normal",
            eventTime={"seconds": 1},
            regarding={"kind": "Pod", "name": "p"},
        ),
        {"note": "it is there", "regarding": {"kind": "Pod", "name": "p"}, "eventTime": "1970-01-01T00:00:01.000000Z"},
    ),
    (
        "/apis/resource.k8s.io/v1/deviceclasses",
        "resource.k8s.io/v1",
        api_objects.DeviceClass(spec={"selectors": [{"cel": {"expression": "true"}}]}),
        {"spec": {"selectors": [{"cel": {"expression": "true"}}]}},
    ),
    (
        "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates",
        "resource.k8s.io/v1",
        api_objects.ResourceClaimTemplate(
            spec={"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "g", "count": 0}}]}}}
        ),
        {"spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": EXACT}]}}}},
    ),
]


@pytest.mark.parametrize(
    ("path", "version", "sent", "kept"), TYPED, ids=[type(sent).__name__ for _, _, sent, _ in TYPED]
)
def test_what_typed_clients_send_as_protobuf_is_kept(
    server: LocalApiServer,
    path: str,
    version: str,
    sent: Any,  # noqa: ANN401 - a message of one of the kinds
    kept: Json,
) -> None:
    sent.metadata.name = "it"
    body = in_protobuf(sent.DESCRIPTOR.name.removesuffix("V1"), sent.SerializeToString(), version)
    made = ask(server, "POST", path, body, PROTOBUF)
    assert made.code == 201, made.body
    assert {key: made.body[key] for key in kept} == kept


def test_a_claim_is_unchanged_if_a_client_leaves_out_empty_fields(server: LocalApiServer) -> None:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu", "selectors": []}}
    result = {"request": "r", "driver": DRIVER, "pool": "p", "device": "d"}
    opaque = {"driver": DRIVER, "parameters": {"a": []}}
    given = {"source": "FromClaim", "requests": [], "opaque": opaque}
    allocation = {"devices": {"results": [result], "config": [given]}}
    claim = {"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}
    made = server.create({**claim, "status": {"allocation": allocation}})

    sent = json.loads(json.dumps({**made, "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}))
    del sent["metadata"]["resourceVersion"]
    assert "selectors" not in sent["spec"]["devices"]["requests"][0]["exactly"]
    (config,) = sent["status"]["allocation"]["devices"]["config"]
    assert config == {"source": "FromClaim", "opaque": opaque}
    assert ask(server, "PUT", f"{CLAIMS}/c", sent).code == 200
    assert ask(server, "PUT", f"{CLAIMS}/c/status", sent).code == 200
    config["opaque"]["parameters"] = {}
    assert ask(server, "PUT", f"{CLAIMS}/c/status", sent).code == 422
    sent["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "other"
    assert ask(server, "PUT", f"{CLAIMS}/c", sent).code == 422


def test_a_scheduler_binds_and_evicts_in_protobuf_and_finds_the_pod(server: LocalApiServer) -> None:
    server.create({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    pods = "/api/v1/namespaces/default/pods"
    binding = api_objects.Binding(metadata={"name": "p"}, target={"kind": "Node", "name": "n"}).SerializeToString()
    assert ask(server, "POST", f"{pods}/p/binding", in_protobuf("Binding", binding, "v1"), PROTOBUF).code == 201
    for selector, number in (("spec.nodeName=n,spec.hostNetwork=false", 1), ("spec.restartPolicy=Never", 0)):
        assert len(ask(server, "GET", f"{pods}?fieldSelector={selector}").body["items"]) == number
    eviction = api_objects.Eviction(metadata={"name": "p"}, deleteOptions={"gracePeriodSeconds": 7}).SerializeToString()
    assert (
        ask(server, "POST", f"{pods}/p/eviction", in_protobuf("Eviction", eviction, "policy/v1"), PROTOBUF).code == 201
    )
    assert server.get("Pod", "p")["metadata"]["deletionGracePeriodSeconds"] == 7


def test_a_leader_gives_its_lease_back(server: LocalApiServer) -> None:
    server.create({"kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}})
    server.change("Lease", "l", lambda lease: lease["spec"].update(holderIdentity=""))


def test_an_event_in_protobuf_has_the_times_of_json(server: LocalApiServer) -> None:
    sent = api_objects.Event(message="m", reason="r", type="Normal")
    sent.metadata.name = "e"
    sent.firstTimestamp.seconds, sent.firstTimestamp.nanos = 1, 5
    sent.eventTime.seconds, sent.eventTime.nanos = 1, 1999
    body = in_protobuf("Event", sent.SerializeToString(), "v1")
    made = ask(server, "POST", "/api/v1/namespaces/default/events", body, PROTOBUF).body
    assert (made["firstTimestamp"], made["eventTime"]) == ("1970-01-01T00:00:01Z", "1970-01-01T00:00:01.000001Z")


# --- like kube-apiserver 1.37.2: `make cluster PART=requests` compares the two servers --------------------------------

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def a_lease(name: str = "a", **metadata: str) -> Json:
    return {"kind": "Lease", "metadata": {"name": name, **metadata}, "spec": {"leaseDurationSeconds": 4}}


def test_an_update_creates_a_lease_unless_it_was_made_for_another_one(server: LocalApiServer) -> None:
    assert ask(server, "PUT", f"{LEASES}/a", a_lease(uid="11111111-1111-4111-8111-111111111111")).code == 409
    assert ask(server, "PUT", f"{LEASES}/a", a_lease("b")).code == 400
    assert ask(server, "PUT", f"{LEASES}/a", a_lease(resourceVersion="7")).code == 201
    assert ask(server, "PUT", f"{CONFIG_MAPS}/a", {"metadata": {"name": "a"}}).code == 404


def test_an_apply_says_whether_it_has_created_the_object(server: LocalApiServer) -> None:
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    path = f"{CONFIG_MAPS}/a?fieldManager=m"
    assert [ask(server, "PATCH", path, applied, APPLY).code for _ in range(2)] == [201, 200]


def test_a_refusal_names_the_object_in_its_details(server: LocalApiServer) -> None:
    details = ask(server, "GET", f"{LEASES}/none").body["details"]
    assert details == {"name": "none", "group": "coordination.k8s.io", "kind": "leases"}


def test_a_deletion_returns_a_status_for_the_same_kinds_as_kubernetes(server: LocalApiServer) -> None:
    uid = ask(server, "POST", LEASES, a_lease()).body["metadata"]["uid"]
    gone = ask(server, "DELETE", f"{LEASES}/a").body
    assert (gone["kind"], gone["status"], gone["details"]["uid"]) == ("Status", "Success", uid)
    ask(server, "POST", SLICES, a_slice())
    assert ask(server, "DELETE", f"{SLICES}/{a_slice()['metadata']['name']}").body["kind"] == "ResourceSlice"


def test_a_dry_run_of_a_creation_has_no_version(server: LocalApiServer) -> None:
    assert "resourceVersion" not in ask(server, "POST", f"{LEASES}?dryRun=All", a_lease()).body["metadata"]


def test_a_json_patch_replaces_a_missing_field(server: LocalApiServer) -> None:
    ask(server, "POST", LEASES, a_lease())
    change = [{"op": "replace", "path": "/metadata/annotations", "value": {"n": "1"}}]
    assert ask(server, "PATCH", f"{LEASES}/a", change, JSON_PATCH).body["metadata"]["annotations"] == {"n": "1"}
    assert ask(server, "PATCH", f"{LEASES}/a", {"op": "add"}, JSON_PATCH).code == 400
