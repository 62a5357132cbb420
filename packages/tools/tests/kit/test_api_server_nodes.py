"""The API server for tests, as a kubelet or scheduler uses it: pods, bindings, deletions, merges and identities."""

import http.client
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from devicecore_tools.testing.api_server import ApiError, Json, LocalApiServer
from devicecore_tools.testing.api_server.patching import strategically_merged
from tests.kit.asking import STRATEGIC
from tests.kit.asking import ask as send

PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NOW = datetime(2026, 11, 22, 5, 1, 47, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[LocalApiServer]:
    users = {"one": "system:node:n1", "two": "system:node:n2", "admin": "admin"}
    with LocalApiServer(clock=lambda: NOW, users=users) as server:
        yield server


ask = partial(send, client="admin")


def pod(name: str = "p", **spec: Any) -> Json:  # noqa: ANN401 - JSON
    container = {"name": "main", "image": "img", "resources": {"limits": {"acme.io/gpu": "1"}}}
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def asking(sizes: Json) -> Json:
    """Return a spec whose container requests these resources."""
    return {"containers": [{"name": "a", "image": "i", "resources": sizes}]}


def watched(server: LocalApiServer, since: str, name: str = "p") -> list[tuple[str, Json]]:
    """Return a pod's watch events since a resource version."""
    query = f"watch=true&resourceVersion={since}&timeoutSeconds=1&fieldSelector=metadata.name%3D{name}"
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    connection.request("GET", f"/api/v1/pods?{query}", headers={"Authorization": "Bearer admin"})
    lines = [json.loads(line) for line in connection.getresponse()]
    connection.close()
    return [(line["type"], line["object"]["metadata"]) for line in lines]


# --- pods -------------------------------------------------------------------------------------------------------------


def test_a_new_pod_has_the_defaults_and_the_status_of_a_new_pod(server: LocalApiServer) -> None:
    code, made = ask(server, "POST", PODS, {**pod(), "status": {"phase": "Running"}})
    assert code == 201
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert made["metadata"]["generation"] == 1
    assert made["spec"]["terminationGracePeriodSeconds"] == 30
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"acme.io/gpu": "1"}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
    ],
)
def test_the_class_of_a_pod_depends_on_cpus_and_memory(server: LocalApiServer, sizes: Json, expected: str) -> None:
    body = pod(**asking(sizes))
    assert server.create(body)["status"]["qosClass"] == expected


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({"containers": []}, "spec.containers: Required value"),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].image: Required value"),
        ({"initContainers": [{"name": "main", "image": "i"}]}, 'spec.containers[0].name: Duplicate value: "main"'),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy: Unsupported value"),
        (asking({"requests": {"acme.io/gpu": "1"}}), "Limit must be set for non overcommitable resources"),
        (asking({"claims": [{"name": "c"}]}), 'spec.containers[0].resources.claims[0].name: Not found: "c"'),
    ],
)
def test_a_pod_that_breaks_a_rule_is_refused(server: LocalApiServer, spec: Json, cause: str) -> None:
    code, refused = ask(server, "POST", PODS, pod(**spec))
    assert code == 422
    assert cause in refused["message"]


def test_a_pod_is_bound_once_and_its_spec_stays(server: LocalApiServer) -> None:
    server.create(pod())
    binding = {"kind": "Binding", "apiVersion": "v1", "target": {"kind": "Node", "name": "n1"}}
    assert ask(server, "POST", f"{PODS}/p/binding", binding)[0] == 201
    bound = server.get("Pod", "p")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["generation"] == 1
    assert [(one["type"], one["status"]) for one in bound["status"]["conditions"]] == [("PodScheduled", "True")]
    code, refused = ask(server, "POST", f"{PODS}/p/binding", binding)
    assert (code, refused["reason"]) == (409, "Conflict")
    assert 'pod p is already assigned to node "n1"' in refused["message"]
    elsewhere = {"spec": {"nodeName": "n2"}}
    code, refused = ask(server, "PATCH", f"{PODS}/p", elsewhere, content="application/merge-patch+json")
    assert code == 422
    assert "pod updates may not change fields other than" in refused["message"]


def test_a_status_for_an_earlier_pod_of_that_name_is_refused(server: LocalApiServer) -> None:
    server.create(pod())
    body = {"metadata": {"uid": "another"}, "status": {"phase": "Running"}}
    code, refused = ask(server, "PATCH", f"{PODS}/p/status", body, content=STRATEGIC)
    assert (code, refused["reason"]) == (422, "Invalid")
    assert 'metadata.uid: Invalid value: "another": field is immutable' in refused["message"]


def of_main(**fields: object) -> Json:
    return {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 0, **fields}


NIC, ILL = {"name": "acme.io/nic"}, {"name": "acme.io/gpu", "resources": [{"health": "Ill"}]}


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ({"qosClass": "Guaranteed"}, "status.qosClass: Invalid value"),
        ({"conditions": [{"type": "Ready", "status": "True", "observedGeneration": -1}]}, "must be non-negative"),
        ({"containerStatuses": [{"name": "main"}]}, "status.containerStatuses[0].image: Required value"),
        ({"containerStatuses": [of_main(allocatedResourcesStatus=[NIC])]}, "must match one of the container's"),
        ({"containerStatuses": [of_main(allocatedResourcesStatus=[ILL])]}, "Unsupported value"),
        ({"containerStatuses": [of_main(state={"running": {}})]}, "may not be transitioned to non-terminated state"),
    ],
)
def test_a_status_that_breaks_a_rule_is_refused(server: LocalApiServer, status: Json, cause: str) -> None:
    ended = {"containerStatuses": [of_main(state={"terminated": {"exitCode": 0}})]}
    server.create({**pod(restartPolicy="Never"), "status": ended})
    code, refused = ask(server, "PATCH", f"{PODS}/p/status", {"status": status}, content=STRATEGIC)
    assert code == 422, refused
    assert cause in refused["message"]


@pytest.mark.parametrize(
    ("policy", "code", "answer"), [("Always", 0, 200), ("OnFailure", 0, 422), ("OnFailure", 1, 200), ("Never", 1, 422)]
)
def test_a_container_runs_again_only_as_its_pod_says(
    server: LocalApiServer, policy: str, code: int, answer: int
) -> None:
    ended = {"containerStatuses": [of_main(state={"terminated": {"exitCode": code}})]}
    server.create({**pod(restartPolicy=policy), "status": ended})
    status = {"containerStatuses": [of_main(state={"running": {}})]}
    assert ask(server, "PATCH", f"{PODS}/p/status", {"status": status}, content=STRATEGIC)[0] == answer


# --- the end of pods --------------------------------------------------------------------------------------------------


def test_a_bound_pod_ends_when_its_kubelet_says_so(server: LocalApiServer) -> None:
    made = server.create(pod(nodeName="n1"))
    code, ending = ask(server, "DELETE", f"{PODS}/p")
    assert code == 200
    assert ending["metadata"]["deletionGracePeriodSeconds"] == 30
    assert ending["metadata"]["deletionTimestamp"] == "2026-11-22T05:02:17Z"
    assert ending["metadata"]["generation"] == 2
    assert ask(server, "DELETE", f"{PODS}/p")[1]["metadata"]["resourceVersion"] == ending["metadata"]["resourceVersion"]
    shorter = server.delete("Pod", "p", grace=5)["metadata"]
    assert (shorter["deletionGracePeriodSeconds"], shorter["deletionTimestamp"]) == (5, "2026-11-22T05:01:52Z")
    server.change("Pod", "p", lambda one: one["status"].update(phase="Failed"))
    assert server.get("Pod", "p")["status"]["phase"] == "Failed"

    options: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
    code, refused = ask(server, "DELETE", f"{PODS}/p", {**options, "preconditions": {"uid": "another"}})
    assert code == 409
    assert "the UID in the precondition (another) does not match" in refused["message"]
    options["preconditions"] = {"uid": made["metadata"]["uid"]}
    assert ask(server, "DELETE", f"{PODS}/p", options)[0] == 200
    assert server.objects("Pod") == []
    events = watched(server, made["metadata"]["resourceVersion"])
    graces = [metadata.get("deletionGracePeriodSeconds") for _, metadata in events]
    assert [kind for kind, _ in events] == ["MODIFIED"] * 4 + ["DELETED"]
    assert graces == [30, 5, 5, 0, 0]


def test_a_pod_without_a_node_and_one_that_ended_vanish_at_once(server: LocalApiServer) -> None:
    server.create(pod("free"))
    server.create({**pod("over", nodeName="n1"), "status": {"phase": "Succeeded"}})
    for name in ("free", "over"):
        assert ask(server, "DELETE", f"{PODS}/{name}")[0] == 200
    assert server.objects("Pod") == []


def test_a_pod_stays_until_its_finalizers_are_gone(server: LocalApiServer) -> None:
    server.create({**pod(nodeName="n1"), "metadata": {"name": "p", "finalizers": ["a.io/b"]}})
    server.delete("Pod", "p", grace=0)
    assert server.get("Pod", "p")["metadata"]["deletionGracePeriodSeconds"] == 0
    body = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.io/b"]}}
    assert ask(server, "PATCH", f"{PODS}/p", body, content=STRATEGIC)[0] == 200
    assert server.objects("Pod") == []


def test_an_eviction_is_a_deletion(server: LocalApiServer) -> None:
    server.create(pod(nodeName="n1"))
    body = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "p"}}
    assert ask(server, "POST", f"{PODS}/p/eviction", body)[0] == 201
    assert server.get("Pod", "p")["metadata"]["deletionGracePeriodSeconds"] == 30


# --- strategic merge patches ------------------------------------------------------------------------------------------

CONDITIONS = [{"type": "A", "status": "1"}, {"type": "X", "status": "2"}, {"type": "B", "status": "3"}]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"a": None, "b": {"c": None, "d": 1}}, {"conditions": CONDITIONS, "b": {"d": 1}}, id="nulls"),
        pytest.param(
            {"conditions": [{"type": kind, "status": new, "reason": None} for kind, new in (("B", "4"), ("C", "5"))]},
            {
                "conditions": [
                    *CONDITIONS[:2],
                    {"type": "B", "status": "4"},
                    {"type": "C", "status": "5", "reason": None},
                ]
            },
            id="items are merged by their key, in the order of the patch",
        ),
        pytest.param(
            {"conditions": [{"type": "C"}]},
            {"conditions": [{"type": "C"}, *CONDITIONS]},
            id="new items come first, as in the Go library",
        ),
        pytest.param(
            {
                "$setElementOrder/conditions": [{"type": "B"}, {"type": "C"}, {"type": "A"}],
                "conditions": [{"type": "C", "status": "5"}],
            },
            {"conditions": [CONDITIONS[1], CONDITIONS[2], {"type": "C", "status": "5"}, CONDITIONS[0]]},
            id="items are in the order of the patch, and items that are not in the patch keep their place",
        ),
        pytest.param(
            {"conditions": [{"$patch": "delete", "type": "X"}]},
            {"conditions": [CONDITIONS[0], CONDITIONS[2]]},
            id="an item is deleted",
        ),
        pytest.param(
            {"conditions": [{"type": "Z"}, {"$patch": "replace"}]}, {"conditions": [{"type": "Z"}]}, id="replaced"
        ),
        pytest.param(
            {"containerStatuses": [{"name": "m"}]},
            {"conditions": CONDITIONS, "containerStatuses": [{"name": "m"}]},
            id="a list without a key is replaced",
        ),
        pytest.param(
            {"conditions": [{"$patch": "replace"}, "x"]}, {"conditions": ["x"]}, id="replaced by something without keys"
        ),
        pytest.param(
            {"$setElementOrder/tolerations": [{"key": "a"}], "$deleteFromPrimitiveList/k": 5},
            {"conditions": CONDITIONS},
            id="directives for a list that does not exist are ignored",
        ),
        pytest.param(
            {"$setElementOrder/l": [{"key": "b"}, 1], "l": [1]}, {"conditions": CONDITIONS, "l": [1]}, id="no merge key"
        ),
        pytest.param({"$patch": "replace", "k": 1}, {"k": 1}, id="a map is replaced"),
        pytest.param({"$retainKeys": ["k"], "k": 1}, {"k": 1}, id="other keys are dropped"),
        pytest.param({"b": {"$patch": "delete"}}, {"conditions": CONDITIONS, "b": {}}, id="a map is emptied"),
        pytest.param(
            {"c": {"$patch": "replace", "k": 1}}, {"conditions": CONDITIONS}, id="what does not exist is not replaced"
        ),
        pytest.param(
            {"c": {"d": {"$patch": "delete"}, "e": [{"$patch": "delete", "k": 1}, 2]}},
            {"conditions": CONDITIONS, "c": {"e": [2]}},
            id="new values contain no directives",
        ),
        pytest.param({"taints": [{"key": "k"}]}, {"conditions": CONDITIONS, "taints": [{"key": "k"}]}, id="a new list"),
    ],
)
def test_a_strategic_merge_obeys_its_directives(change: Json, expected: Json) -> None:
    before: Json = {"conditions": CONDITIONS}
    if "containerStatuses" in change:
        before["containerStatuses"] = [{"name": "m", "ready": True}, {"name": "n"}]
    if "a" in change or "b" in change:
        before |= {"b": {"c": 2}} | ({"a": 1} if "a" in change else {})
    assert strategically_merged(before, change) == expected


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"$patch": "explode"}, "unknown patch type"),
        ({"conditions": [{"type": "A", "$patch": "merge"}]}, "unknown patch type: merge in map: map"),
        ({"$retainKeys": ["k"], "conditions": []}, "Invalid patch format of retainKeys"),
        ({"$setElementOrder/env": [], "env": []}, "no elements in any of the given slices"),
        ({"conditions": [{"status": "1"}]}, "does not contain declared merge key: type"),
        ({"$setElementOrder/conditions": [{"type": "A"}], "conditions": [{"type": "C"}]}, "doesn't match $setElement"),
    ],
)
def test_a_nonsensical_strategic_merge_is_refused(change: Json, problem: str) -> None:
    with pytest.raises(ApiError, match=problem.replace("$", r"\$")):
        strategically_merged({"conditions": CONDITIONS}, change)


def test_a_long_list_is_merged_in_time_that_grows_with_it() -> None:
    begin = {"metadata": {"finalizers": ["a.com/0"]}}
    change = {"metadata": {"finalizers": [f"a.com/{number}" for number in range(20_000)]}}
    began = time.process_time()
    assert strategically_merged(begin, change) == change
    assert time.process_time() - began < 5.0  # this took minutes when the whole list was searched for each item


def test_custom_resources_know_no_strategic_merge(server: LocalApiServer) -> None:
    names = {"plural": "things", "kind": "Thing"}
    versions = [{"name": "v1", "served": True, "storage": True}]
    spec = {"group": "example.com", "scope": "Cluster", "names": names, "versions": versions}
    server.create({"kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"}, "spec": spec})
    made = server.create({"kind": "Thing", "apiVersion": "example.com/v1", "metadata": {"name": "t"}})
    path = "/apis/example.com/v1/things/t"
    assert ask(server, "PATCH", path, {"spec": {}}, content=STRATEGIC)[0] == 415
    del made["metadata"]["resourceVersion"]
    code, refused = ask(server, "PUT", path, made)
    assert (code, "metadata.resourceVersion: Invalid value" in refused["message"]) == (422, True)


# --- nodes, leases, events --------------------------------------------------------------------------------------------


def test_a_new_node_is_tainted_and_keeps_its_status(server: LocalApiServer) -> None:
    node = {"kind": "Node", "metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "2"}}}
    code, made = ask(server, "POST", "/api/v1/nodes", node, client="one")
    assert code == 201
    assert made["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    assert made["status"] == {"capacity": {"cpu": "2"}}


def test_the_taint_of_a_node_follows_its_condition_ready(server: LocalApiServer) -> None:
    mine = {"key": "a", "effect": "NoSchedule"}
    not_ready, unreachable = (
        {"key": f"node.kubernetes.io/{name}", "effect": "NoSchedule"} for name in ("not-ready", "unreachable")
    )

    def saying(ready: str) -> Json:
        return {"status": {"conditions": [{"type": "Ready", "status": ready}]}}

    ask(server, "POST", "/api/v1/nodes", {"metadata": {"name": "n1"}, "spec": {"taints": [mine]}})
    for ready, more in (("False", [not_ready]), ("Unknown", [unreachable]), ("True", []), ("False", [not_ready])):
        code, node = ask(server, "PATCH", "/api/v1/nodes/n1/status", saying(ready), content=STRATEGIC)
        assert (code, node["spec"]["taints"]) == (200, [mine, *more])
    server.change("Node", "n1", lambda node: node.update(saying("True")))
    assert server.get("Node", "n1")["spec"]["taints"] == [mine]
    _, made = ask(server, "POST", "/api/v1/nodes", {"metadata": {"name": "n2"}, **saying("True")})
    assert not made.get("spec", {}).get("taints")


@pytest.mark.parametrize(
    ("kind", "body", "problem"),
    [
        ("Lease", {"leaseDurationSeconds": 0}, "must be greater than 0"),
        ("Lease", {"renewTime": "2026-11-22T05:01:57Z"}, "microseconds"),
        ("Event", {}, "does not match event.namespace"),
        ("Node", {"taints": [{"key": "a", "effect": "NoExecute"}] * 2}, "must be unique by key and"),
        ("Node", {"taints": [{"key": "a b", "effect": "x"}]}, "metadata.taints[0].effect: Unsupported"),
        ("Node", {"labels": {"a b": ""}}, 'metadata.labels: Invalid value: "a b": name part must'),
        ("Node", {"labels": {"a": "n" * 64}}, "must be no more than 63 bytes"),
        ("Node", {"capacity": {"cpu": "-3"}}, 'status.capacity[cpu]: Invalid value: "-3": must be gr'),
    ],
)
def test_nodes_leases_and_events_have_rules(server: LocalApiServer, kind: str, body: Json, problem: str) -> None:
    path = {"Node": "/api/v1/nodes", "Lease": LEASES, "Event": "/api/v1/namespaces/default/events"}[kind]
    metadata, about = {"name": "n1", "labels": body.get("labels", {})}, {"namespace": "other"}
    made = {"kind": kind, "metadata": metadata, "spec": body, "status": body, "involvedObject": about}
    code, refused = ask(server, "POST", path, made)
    assert code == 422
    assert problem in refused["message"]


RESTRICTED = {"metadata": {"labels": {"node-restriction.kubernetes.io/a": "b"}}}
LEASE: Json = {"kind": "Lease", "metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}}


def test_a_node_can_access_its_own_objects(server: LocalApiServer) -> None:
    server.create({"kind": "Node", "metadata": {"name": "n1"}})
    server.create(pod(nodeName="n1"))
    own = "fieldSelector=spec.nodeName%3Dn1"
    asked: list[tuple[str, str, Json | None]] = [
        ("GET", "/api/v1/nodes/n1", None),
        ("GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn1", None),
        ("PATCH", "/api/v1/nodes/n1/status", {"status": {"capacity": {"cpu": "1"}}}),
        ("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"kubernetes.io/os": "linux", "mine.io/a": "b"}}}),
        ("GET", f"/api/v1/pods?{own}", None),
        ("GET", f"{PODS}/p", None),
        ("PATCH", f"{PODS}/p/status", {"status": {"phase": "Running"}}),
        ("POST", LEASES, LEASE),
        ("POST", "/api/v1/namespaces/default/events", {"kind": "Event", "metadata": {"name": "e"}}),
        ("DELETE", f"/apis/resource.k8s.io/v1/resourceslices?{own}", None),
        ("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0}),
        ("GET", f"{PODS}/p", None),
    ]
    codes = [ask(server, *one, client="one", content=STRATEGIC if one[0] == "PATCH" else "")[0] for one in asked]
    assert codes == [200] * 7 + [201] * 2 + [200] * 2 + [404]


@pytest.mark.parametrize(
    ("method", "path", "body", "problem"),
    [
        ("GET", "/api/v1/nodes/n1", None, "is not allowed to modify"),
        ("GET", "/api/v1/nodes", None, "only its own Node object"),
        ("DELETE", "/api/v1/nodes/n2", None, "does not allow this verb"),
        ("PATCH", "/api/v1/nodes/n2", {"spec": {"taints": []}}, "is not allowed to modify taints"),
        ("PATCH", "/api/v1/nodes/n2", RESTRICTED, "is not allowed to modify labels: node-restriction.kubernetes.io/a"),
        ("GET", "/api/v1/pods", None, "with spec.nodeName field selector"),
        ("GET", f"{PODS}/p", None, "no relationship found between node 'n2' and this object"),
        ("PATCH", f"{PODS}/p/status", {"status": {"phase": "Failed"}}, "no relationship found"),
        ("PATCH", f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}}, "does not allow this verb"),
        ("POST", PODS, {"metadata": {"name": "static"}}, "config.mirror"),
        ("POST", LEASES, LEASE, "only access node lease with the same name as the requesting node"),
        ("GET", "/api/v1/namespaces/default/configmaps/a", None, "does not allow this verb"),
    ],
)
def test_a_node_cannot_access_other_objects(
    server: LocalApiServer, method: str, path: str, body: Json | None, problem: str
) -> None:
    for node in ("n1", "n2"):
        server.create({"kind": "Node", "metadata": {"name": node}})
    server.create(pod(nodeName="n1"))
    code, refused = ask(server, method, path, body, client="two", content=STRATEGIC if method == "PATCH" else "")
    assert (code, refused["reason"]) == (403, "Forbidden")
    assert problem in refused["message"]


def test_an_unknown_token_is_refused(server: LocalApiServer) -> None:
    assert ask(server, "GET", PODS, client="none")[0] == 401


def test_a_watch_can_be_cut_within_a_line(server: LocalApiServer) -> None:
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    connection.request("GET", f"{PODS}?watch=true", headers={"Authorization": "Bearer admin"})
    answer = connection.getresponse()
    server.create(pod())
    assert json.loads(answer.readline())["type"] == "ADDED"
    server.cut_watches(within_line=True)
    with pytest.raises(http.client.IncompleteRead) as cut:
        answer.read()
    assert cut.value.partial.startswith(b'{"type": ')
    with pytest.raises(ValueError, match=r"delimiter|Unterminated"):
        json.loads(cut.value.partial)
    connection.close()
