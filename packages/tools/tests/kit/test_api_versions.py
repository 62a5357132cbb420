"""The versions of `resource.k8s.io` on the API server: each client sees the format of the version that it uses."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from devicecore_tools.testing.api_server import Json, LocalApiServer
from devicecore_tools.testing.api_server.versions import RESOURCE_VERSIONS
from devicecore_tools.testing.wire import api_objects
from devicecore_tools.testing.wire.api_conversion import MAGIC

GROUP = "/apis/resource.k8s.io"
BASIC = {"attributes": {"model": {"string": "x"}}, "capacity": {"memory": {"value": "1Gi"}}}
FLAT = {"name": "r", "deviceClassName": "c", "allocationMode": "ExactCount", "count": 2}
EXACT = {"name": "r", "exactly": {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 2}}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalApiServer]:
    with LocalApiServer(resource_versions=RESOURCE_VERSIONS) as server:
        yield server


def ask(server: LocalApiServer, method: str, path: str, body: object = None, content: str = "application/json") -> Json:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310 - the server is ours
        f"{server.url}{GROUP}/{path}", data, {"Content-Type": content}, method=method
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
        found: Json = json.load(answer)
    return found


def a_slice(name: str, device: Json) -> Json:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.example.org", "nodeName": "n", "pool": pool, "devices": [device]}
    return {"metadata": {"name": name}, "spec": spec}


def a_claim(name: str, *requests: Json) -> Json:
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": list(requests)}}}


def test_a_device_is_basic_in_v1beta1_alone(server: LocalApiServer) -> None:
    old, new = {"name": "gpu", "basic": BASIC}, {"name": "gpu", **BASIC}
    for version, sent in (("v1beta1", old), ("v1beta2", new), ("v1", new)):
        name = f"from-{version}"
        made = ask(server, "POST", f"{version}/resourceslices", a_slice(name, sent))
        assert made["apiVersion"] == f"resource.k8s.io/{version}"
        assert made["spec"]["devices"] == [sent]
        for other, expected in (("v1beta1", old), ("v1beta2", new), ("v1", new)):
            assert ask(server, "GET", f"{other}/resourceslices/{name}")["spec"]["devices"] == [expected]
        made["spec"]["devices"][0]["name"] = "gpu-1"
        changed = ask(server, "PUT", f"{version}/resourceslices/{name}", made)
        assert changed["spec"]["devices"] == [{**sent, "name": "gpu-1"}]


def test_a_watch_sends_the_shape_of_its_version(server: LocalApiServer) -> None:
    ask(server, "POST", "v1/resourceslices", a_slice("watched", {"name": "gpu", **BASIC}))
    url = f"{server.url}{GROUP}/v1beta1/resourceslices?watch=true&fieldSelector=metadata.name%3Dwatched"
    with urllib.request.urlopen(url, timeout=60) as events:  # noqa: S310 - as above
        event = json.loads(events.readline())
    assert event["object"]["spec"]["devices"] == [{"name": "gpu", "basic": BASIC}]


def test_a_request_is_flat_in_v1beta1_alone(server: LocalApiServer) -> None:
    alternative = {"name": "a", "firstAvailable": [{"name": "b", "deviceClassName": "c"}]}
    place = "namespaces/default/resourceclaims"
    made = ask(server, "POST", f"v1beta1/{place}", a_claim("old", FLAT, alternative))
    assert made["spec"]["devices"]["requests"][0] == FLAT
    assert made["spec"]["devices"]["requests"][1]["firstAvailable"][0]["deviceClassName"] == "c"
    assert "exactly" not in made["spec"]["devices"]["requests"][1]
    exact, other = ask(server, "GET", f"v1/{place}/old")["spec"]["devices"]["requests"]
    assert exact == EXACT
    assert set(other) == {"name", "firstAvailable"}
    ask(server, "POST", f"v1/{place}", a_claim("new", EXACT))
    assert ask(server, "GET", f"v1beta1/{place}/new")["spec"]["devices"]["requests"] == [FLAT]


def test_a_patch_in_v1beta1_is_one_of_its_shape(server: LocalApiServer) -> None:
    ask(server, "POST", "v1/resourceslices", a_slice("patched", {"name": "gpu", **BASIC}))
    patch = [{"op": "add", "path": "/spec/devices/0/basic/attributes/rank", "value": {"int": 1}}]
    path = "v1beta1/resourceslices/patched"
    changed = ask(server, "PATCH", path, patch, "application/json-patch+json")
    assert changed["spec"]["devices"][0]["basic"]["attributes"]["rank"] == {"int": 1}
    kept = ask(server, "GET", "v1/resourceslices/patched")
    assert kept["spec"]["devices"][0]["attributes"]["rank"] == {"int": 1}


def test_a_template_is_converted_too_and_every_version_can_be_discovered(server: LocalApiServer) -> None:
    template = {"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [FLAT]}}}}
    ask(server, "POST", "v1beta1/namespaces/default/resourceclaimtemplates", template)
    kept = server.get("ResourceClaimTemplate", "t")
    assert kept["spec"]["spec"]["devices"]["requests"] == [EXACT]
    with urllib.request.urlopen(f"{server.url}{GROUP}", timeout=60) as answer:  # noqa: S310 - as above
        group = json.load(answer)
    assert [one["version"] for one in group["versions"]] == list(RESOURCE_VERSIONS)
    for version in RESOURCE_VERSIONS:
        assert ask(server, "GET", version)["groupVersion"] == f"resource.k8s.io/{version}"


@pytest.mark.parametrize("devices", [{"name": "gpu", "basic": 5}, {"name": "gpu", "basic": {"attributes": 5}}, 5, [5]])
def test_an_object_of_wrong_types_in_v1beta1_is_refused(server: LocalApiServer, devices: object) -> None:
    body = a_slice("wrong", {})
    body["spec"]["devices"] = devices if not isinstance(devices, dict) else [devices]
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, "POST", "v1beta1/resourceslices", body)
    refused.value.close()
    assert refused.value.code == 400


def in_protobuf(kind: str, raw: bytes) -> bytes:
    envelope = api_objects.Unknown(raw=raw)
    envelope.typeMeta.apiVersion, envelope.typeMeta.kind = "resource.k8s.io/v1beta1", kind
    return MAGIC + envelope.SerializeToString()


def test_protobuf_of_v1beta1_has_numbers_of_its_own(server: LocalApiServer) -> None:
    content = "application/vnd.kubernetes.protobuf"
    sent = api_objects.ResourceSliceV1beta1()
    sent.metadata.name, sent.spec.driver, sent.spec.nodeName = "proto", "d.example.org", "n"
    sent.spec.pool.name, sent.spec.pool.generation, sent.spec.pool.resourceSliceCount = "proto", 1, 1
    device = sent.spec.devices.add(name="gpu").basic
    device.attributes["model"].stringValue = "x"
    device.capacity["memory"].value.string = "1Gi"
    ask(server, "POST", "v1beta1/resourceslices", in_protobuf("ResourceSlice", sent.SerializeToString()), content)
    assert server.get("ResourceSlice", "proto")["spec"]["devices"] == [{"name": "gpu", **BASIC}]

    claim = api_objects.ResourceClaimV1beta1()
    claim.metadata.name = "proto"
    claim.spec.devices.requests.add(name="r", deviceClassName="c", count=2)
    path = "v1beta1/namespaces/default/resourceclaims"
    ask(server, "POST", path, in_protobuf("ResourceClaim", claim.SerializeToString()), content)
    assert server.get("ResourceClaim", "proto")["spec"]["devices"]["requests"] == [EXACT]
