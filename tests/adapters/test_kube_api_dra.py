"""ResourceClaims and ResourceSlices on an API server, over HTTP, and what happens if the server fails."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.testing.api_server import Answer, Drop, Hang, LocalApiServer, RunFirst

from devicecore.adapters.kube_api import Access, ApiAccessError, NodeNameError
from devicecore.adapters.kube_api.dra import KubeApiClaims, KubeApiSlices
from devicecore.domain.dra.errors import ClaimSourceError, SliceError
from devicecore.domain.dra.model import ClaimKey, DriverName

NODE = "worker-1"
GPU = DriverName("gpu.example.com")
KEY = ClaimKey("default", "claim")
REQUEST = {"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}
CLAIM: dict[str, Any] = {
    "kind": "ResourceClaim",
    "metadata": {"name": "claim", "namespace": "default"},
    "spec": {"devices": {"requests": [REQUEST]}},
}

UID = {"uid": "u1"}


@pytest.fixture
def server() -> Iterator[LocalApiServer]:
    with LocalApiServer() as server:
        yield server


@pytest.fixture
def config(server: LocalApiServer, tmp_path: Path) -> Path:
    return server.kubeconfig(tmp_path / "config")


def publish(server: LocalApiServer, name: str, driver: str = GPU, **where: object) -> None:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": pool, "devices": [{"name": "dev-0"}], **(where or {"nodeName": NODE})}
    server.create({"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})


def names(server: LocalApiServer) -> set[str]:
    return {found["metadata"]["name"] for found in server.objects("ResourceSlice")}


class TestClaims:
    def test_a_claim_is_read_as_a_kubelet_reads_it(self, server: LocalApiServer, config: Path) -> None:
        uid = server.create(CLAIM)["metadata"]["uid"]
        with KubeApiClaims(Access(config)) as claims:
            assert claims.get(KEY).uid == uid
        (request,) = server.requests
        assert (request.verb, request.resource) == ("get", "resourceclaims")
        assert request.path == "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/claim"

    def test_the_servers_own_words_say_why_a_claim_is_not_read(self, server: LocalApiServer, config: Path) -> None:
        with KubeApiClaims(Access(config)) as claims:
            server.forbidden.add("get resourceclaims")
            with pytest.raises(ClaimSourceError, match=r'^resourceclaims\.resource\.k8s\.io "claim" is forbidden'):
                claims.get(KEY)
            server.forbidden.clear()
            server.inject(Answer(500, {"kind": "Status", "message": "etcd is down"}))
            with pytest.raises(ClaimSourceError, match=r"^etcd is down$"):
                claims.get(KEY)

    def test_a_server_that_drops_a_request_is_queried_again_next_time(
        self, server: LocalApiServer, config: Path
    ) -> None:
        server.create(CLAIM)
        with KubeApiClaims(Access(config)) as claims:
            server.inject(Drop())
            with pytest.raises(ClaimSourceError, match="no connection"):
                claims.get(KEY)
            assert claims.get(KEY).key == KEY

    @pytest.mark.parametrize(
        ("body", "sentence"),
        [
            ({**CLAIM, "metadata": {**UID, "name": "other"}}, "expected ResourceClaim default/claim"),
            ({**CLAIM, "metadata": {**UID, "name": "claim"}, "status": {"reservedFor": 7}}, "reservedFor: expected a"),
            ([], "."),
            ("not JSON", "."),
        ],
    )
    def test_a_response_that_is_not_the_claim_is_refused(
        self, server: LocalApiServer, config: Path, body: object, sentence: str
    ) -> None:
        server.inject(Answer(200, body))
        with KubeApiClaims(Access(config)) as claims, pytest.raises(ClaimSourceError, match=sentence):
            claims.get(KEY)

    @pytest.mark.parametrize("key", [("default", "../../secrets/token"), ("", "claim"), ("a/b", "claim"), ("a", "?x")])
    def test_a_name_that_leads_elsewhere_is_not_requested(
        self, server: LocalApiServer, config: Path, key: tuple[str, str]
    ) -> None:
        with KubeApiClaims(Access(config)) as claims, pytest.raises(ClaimSourceError, match="expected a name"):
            claims.get(ClaimKey(*key))
        assert server.requests == []

    def test_a_call_that_waits_delays_no_other(self, server: LocalApiServer, config: Path) -> None:
        server.create(CLAIM)
        arrived = threading.Event()
        server.inject(RunFirst(arrived.set), Hang())
        with KubeApiClaims(Access(config, timeout=20)) as claims, ThreadPoolExecutor(1) as caller:
            claims.get(KEY)
            late = caller.submit(claims.get, KEY)
            while len(server.requests) < 2:
                assert not late.done()
            assert claims.get(KEY).key == KEY
            assert not late.done()
            claims.stop()
            with pytest.raises(ClaimSourceError):
                late.result()
            with pytest.raises(ClaimSourceError, match="not started"):
                claims.get(KEY)

    def test_credentials_that_have_expired_are_read_again(self, tmp_path: Path) -> None:
        with LocalApiServer(bearer="old") as server:
            server.create(CLAIM)
            config = server.kubeconfig(tmp_path / "config")
            with KubeApiClaims(Access(config)) as claims:
                claims.get(KEY)
                server.bearer = "new"
                server.kubeconfig(config)
                assert claims.get(KEY).key == KEY
                server.bearer = "other"
                with pytest.raises(ClaimSourceError, match="unauthorized"):
                    claims.get(KEY)

    def test_missing_credentials_are_reported_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(ApiAccessError):
            KubeApiClaims(Access(tmp_path / "missing"))


class TestSlices:
    def test_a_drivers_slices_are_deleted_with_one_request(self, server: LocalApiServer, config: Path) -> None:
        publish(server, "ours")
        with KubeApiSlices(NODE, Access(config)) as slices:
            slices.delete(GPU)
        (request,) = server.requests
        assert (request.verb, request.resource) == ("deletecollection", "resourceslices")
        assert request.query == {"fieldSelector": f"spec.nodeName={NODE},spec.driver={GPU}"}
        assert names(server) == set()

    def test_slices_of_other_nodes_and_of_no_node_stay(self, server: LocalApiServer, config: Path) -> None:
        publish(server, "ours")
        publish(server, "other", nodeName="worker-2")
        publish(server, "network", allNodes=True)
        with KubeApiSlices(NODE, Access(config)) as slices:
            slices.delete(None)
        assert names(server) == {"other", "network"}

    @pytest.mark.parametrize("name", ["x,spec.driver!=y", "x\\", "x=y", "", "a,b", "ä\n"])
    def test_a_drivers_name_selects_no_other_slices(self, server: LocalApiServer, config: Path, name: str) -> None:
        publish(server, "ours")
        with KubeApiSlices(NODE, Access(config)) as slices:
            slices.delete(DriverName(name))
        assert names(server) == {"ours"}

    @pytest.mark.parametrize("node", ["", "a,b", "worker-1,spec.driver=x", "UPPER"])
    def test_a_name_that_no_node_has_is_refused(self, config: Path, node: str) -> None:
        with pytest.raises(NodeNameError):
            KubeApiSlices(node, Access(config))

    def test_a_refusal_is_an_error_and_a_missing_api_is_not(self, server: LocalApiServer, config: Path) -> None:
        publish(server, "ours")
        with KubeApiSlices(NODE, Access(config)) as slices:
            server.forbidden.add("deletecollection resourceslices")
            with pytest.raises(SliceError, match="forbidden"):
                slices.delete(GPU)
            server.forbidden.clear()
            server.inject(Drop())
            with pytest.raises(SliceError, match="no connection"):
                slices.delete(GPU)
            server.inject(Answer(404, {"kind": "Status", "message": "the server could not find the resource"}))
            slices.delete(GPU)
            assert names(server) == {"ours"}
            slices.delete(GPU)
        assert names(server) == set()
