"""The node's status on an API server, over HTTP, and what happens if the server, the network or a file fails."""

import base64
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import fields_dict
from devicecore_tools.testing.api_server import Answer, Chunks, Drop, Hang, RunFirst
from tests.node_server import NodeServer

from devicecore.adapters.kube_api import (
    Access,
    ApiAccessError,
    Backoff,
    KubeApiSink,
    NodeNameError,
    Pace,
    PatchStrategy,
)
from devicecore.adapters.kube_api.client_config import load
from devicecore.adapters.kube_api.http import MAX_ANSWER, MAX_WATCH
from devicecore.adapters.kube_api.patches import Json, NodeObject
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.errors import SinkError
from devicecore.domain.model import resource_name
from tests.adapters import certificates

GPU, FPGA, NIC = resource_name("nvidia.com/gpu"), resource_name("acme.io/fpga"), resource_name("acme.io/nic")
NODE = "worker-1"
PATIENCE = 60.0
"""Seconds after which a test stops waiting for something that should happen at once."""

FOREIGN: dict[str, Any] = {
    "capacity": {"cpu": "8", "memory": "16Gi", "other.io/thing": "2"},
    "allocatable": {"cpu": "7500m", "memory": "15Gi", "other.io/thing": "2"},
    "conditions": [{"type": "Ready", "status": "True"}],
    "nodeInfo": {"kubeletVersion": "v1.36.0"},
}

FILE = "kubeconfig"  # a file that is not a certificate
EXEC_V1 = "client.authentication.k8s.io/v1"

every_strategy = pytest.mark.parametrize("strategy", PatchStrategy)


def status(count: int, allocatable: int | None = None) -> NodeStatus:
    return NodeStatus({GPU: count}, {GPU: count if allocatable is None else allocatable})


def with_gpus(capacity: str | None, allocatable: str | None) -> dict[str, Any]:
    """Return the expected status of the node: `FOREIGN` with these counts of GPUs."""
    counts = {"capacity": capacity, "allocatable": allocatable}
    ours = {section: {} if count is None else {GPU: count} for section, count in counts.items()}
    return {**FOREIGN, **{section: {**FOREIGN[section], **ours[section]} for section in counts}}


def moved(options: dict[str, Any], kind: type[Access | Pace]) -> dict[str, Any]:
    """Remove from `options` those that are fields of `kind`, and return them."""
    return {name: options.pop(name) for name in fields_dict(kind) if name in options}


class Server(NodeServer):
    """An API server with the Node, and the sinks that a test creates for the Node."""

    def __init__(self, directory: Path, **options: Any) -> None:  # noqa: ANN401 - those of a NodeServer
        super().__init__(**options)
        self.directory = directory
        self.sinks: list[KubeApiSink] = []
        self.add_node(NODE, FOREIGN)

    def connect(self, **options: Any) -> KubeApiSink:  # noqa: ANN401 - of all kinds
        """Create a sink for the Node.

        `options` may also be fields of `Access` and `Pace`; by default, pauses are short.
        """
        access: dict[str, Any] = {"timeout": PATIENCE, **moved(options, Access)}
        pace = {"backoff": Backoff(0.01, 0.05), "patches_per_second": 1000, **moved(options, Pace)}
        if "service_account" not in access:
            access["kubeconfig"] = self.directory / "kubeconfig"
            if not (self.directory / "kubeconfig").exists():
                self.config(self.directory)
        self.sinks.append(KubeApiSink(NODE, Access(**access), pace=Pace(**pace), **options))
        self.sinks[-1].start()
        return self.sinks[-1]

    def set_cluster(self, change: Callable[[dict[str, Any]], object], user: Mapping[str, str] = {}) -> None:
        """Write a kubeconfig after `change` has modified its cluster entry in place."""
        path = self.config(self.directory, user)
        config = json.loads(path.read_text())
        change(config["clusters"][0]["cluster"])
        path.write_text(json.dumps(config))

    def failing(self, count: int, pattern: str, **options: Any) -> KubeApiSink:  # noqa: ANN401 - of all kinds
        """Publish this many GPUs with a new sink, and wait until the sink has a problem that matches."""
        sink = self.connect(**options)
        sink.publish(status(count))
        wait_for_problem(sink, self, pattern)
        return sink


@contextmanager
def serving(directory: Path, **options: Any) -> Iterator[Server]:  # noqa: ANN401 - those of a NodeServer
    """Serve the API, and stop all sinks at the end."""
    with Server(directory, **options) as server:
        yield server
        server.release()
        for sink in server.sinks:
            sink.stop()


@pytest.fixture
def server(directory: Path) -> Iterator[Server]:
    with serving(directory) as server:
        yield server


def published(sink: KubeApiSink, *statuses: NodeStatus) -> None:
    for one in statuses:
        sink.publish(one)
        sink.wait_until_published(PATIENCE)


def wait_for_problem(sink: KubeApiSink, server: NodeServer, pattern: str) -> SinkError:
    """Wait until the sink has a problem that matches, and return the problem."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        problem = sink.problem
        if problem and re.search(pattern, problem.cause):
            return problem
        time.sleep(0.02)
    message = f"no problem like {pattern!r}, but {sink.problem!r}, after {server.requests[-3:]}"
    raise AssertionError(message)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("devicecore")]


class TestPublishing:
    def test_a_strategic_merge_sends_only_what_has_changed(self, server: Server) -> None:
        version = server.node(NODE)["metadata"]["resourceVersion"]
        published(server.connect(strategy=PatchStrategy.STRATEGIC_MERGE), status(4), status(4, 3))
        first, *_, last = server.patches
        assert first.path == f"/api/v1/nodes/{NODE}/status"
        assert first.headers["Content-Type"] == "application/strategic-merge-patch+json"
        assert first.body["metadata"] == {"resourceVersion": version}
        assert last.body["status"] == {"allocatable": {GPU: "3"}}

    def test_applying_sends_all_that_is_ours_and_takes_it_by_force(self, server: Server) -> None:
        server.write(NODE, lambda status: status["capacity"].update({GPU: "9"}))
        published(server.connect(strategy=PatchStrategy.APPLY, field_manager="me"), status(4), status(4, 3))
        request = server.patches[-1]
        assert request.headers["Content-Type"] == "application/apply-patch+yaml"
        assert request.query == {"fieldManager": "me", "force": "true"}
        assert request.body["status"] == {"capacity": {GPU: "4"}, "allocatable": {GPU: "3"}}
        assert server.status(NODE) == with_gpus("4", "3")

    @every_strategy
    @pytest.mark.parametrize("held", [None, {}, {"capacity": None, "daemonEndpoints": {}}, {"capacity": {}}])
    def test_a_node_without_these_maps_gets_them(
        self, server: Server, strategy: PatchStrategy, held: dict[str, Any] | None
    ) -> None:
        server.delete("Node", NODE)
        server.add_node(NODE, held)
        published(server.connect(strategy=strategy), status(4))
        assert server.status(NODE) == {**(held or {}), "capacity": {GPU: "4"}, "allocatable": {GPU: "4"}}

    @every_strategy
    def test_values_that_the_node_already_shows_are_not_written(self, server: Server, strategy: PatchStrategy) -> None:
        server.write(NODE, lambda status: status["capacity"].update({GPU: "4k", FPGA: "2Ki", NIC: "1e3"}))
        counts = {GPU: 4000, FPGA: 2048, NIC: 1000}
        published(server.connect(strategy=strategy), NodeStatus(counts))
        assert server.patches == []
        assert [request.path for request in server.calls] == [f"/api/v1/nodes/{NODE}"]

    @pytest.mark.parametrize("quantity", ["4k", "4000", "4000.0", "4e3", "4E3", "4000000m"])
    def test_a_number_may_be_written_in_many_ways(self, server: Server, quantity: str) -> None:
        node = server.node(NODE)
        node["status"]["capacity"][GPU] = quantity
        server.inject(Answer(200, node), verb="get")
        published(server.connect(), NodeStatus({GPU: 4000}))
        assert server.patches == []

    @pytest.mark.parametrize("quantity", ["4.1k", "40", "", "many", "4Ki", "1e999999999", 4, None, True, [], {}])
    def test_another_number_or_another_type_is_overwritten(self, server: Server, quantity: object) -> None:
        node = server.node(NODE)
        node["status"]["capacity"][GPU] = quantity
        server.inject(Answer(200, node), verb="get")
        published(server.connect(), NodeStatus({GPU: 4000}))
        assert server.status(NODE) == with_gpus("4k", None)

    @every_strategy
    def test_equal_quantities_keep_their_spelling(self, server: Server, strategy: PatchStrategy) -> None:
        server.write(NODE, lambda status: status["capacity"].update({GPU: "2Ki"}))
        published(server.connect(strategy=strategy), status(2048, 1))
        assert server.status(NODE) == with_gpus("2Ki", "1")

    @every_strategy
    def test_a_removed_resource_is_deleted_even_if_others_wrote(self, server: Server, strategy: PatchStrategy) -> None:
        server.write(NODE, lambda status: status["capacity"].update({GPU: "9"}))
        sink = server.connect(strategy=strategy, keep_removed=False)
        published(sink, NodeStatus({GPU: 9}, {GPU: 3}), NodeStatus(removed=(GPU,)))
        assert server.status(NODE) == FOREIGN
        published(sink, NodeStatus(removed=(GPU,)), status(2))
        assert server.status(NODE) == with_gpus("2", "2")

    @every_strategy
    @pytest.mark.parametrize("keep_removed", [True, False])
    def test_what_an_earlier_run_published_is_found_and_removed(
        self, server: Server, strategy: PatchStrategy, keep_removed: bool
    ) -> None:
        """The only trace of the earlier run is on the API server, as if the run's --root had been lost."""
        with server.connect(strategy=strategy) as earlier:
            published(earlier, NodeStatus({GPU: 4, FPGA: 2, NIC: 1}, {GPU: 4, FPGA: 2}))
        published(server.connect(strategy=strategy, keep_removed=keep_removed), status(4))
        left: dict[str, dict[str, str]] = {"capacity": {}, "allocatable": {}}
        if keep_removed:
            left = {"capacity": {FPGA: "0", NIC: "0"}, "allocatable": {FPGA: "0"}}
        expected = with_gpus("4", "4")
        assert server.status(NODE) == {**expected, **{name: {**expected[name], **left[name]} for name in left}}

    def test_what_another_field_manager_or_a_kubelet_wrote_is_left_alone(self, server: Server) -> None:
        with server.connect(field_manager="others") as others:
            published(others, NodeStatus({FPGA: 2}, {FPGA: 2}))
        server.write(NODE, lambda status: status["capacity"].update(cpu="9"), manager="devicecore")
        published(server.connect(), status(4))
        capacity = {**FOREIGN["capacity"], "cpu": "9", FPGA: "2", GPU: "4"}
        assert server.status(NODE)["capacity"] == capacity

    def test_leftovers_can_be_named_and_may_be_back(self, server: Server) -> None:
        server.write(NODE, lambda status: status["capacity"].update({GPU: "9", FPGA: "2"}))
        published(server.connect(leftovers=[GPU, FPGA]), NodeStatus({GPU: 4}))
        assert server.status(NODE)["capacity"] == {**FOREIGN["capacity"], GPU: "4", FPGA: "0"}

    def test_an_empty_status_is_enough_to_remove_what_an_earlier_run_published(self, server: Server) -> None:
        with server.connect() as earlier:
            published(earlier, status(4))
        published(server.connect(), NodeStatus())
        assert server.status(NODE) == with_gpus("0", "0")

    @every_strategy
    def test_capacity_counts_healthy_devices_alongside_a_kubelet(self, server: Server, strategy: PatchStrategy) -> None:
        """Every ten seconds, a kubelet copies the capacity of resources that it does not know into allocatable."""

        def heartbeat(status: dict[str, Any]) -> None:
            status["allocatable"] = {**status["allocatable"], **status["capacity"]}

        sink = server.connect(strategy=strategy, beside_kubelet=True)
        for healthy in (3, 2):
            published(sink, status(4, healthy))
            server.write(NODE, heartbeat)
            assert server.status(NODE)["allocatable"][GPU] == str(healthy)
        published(sink, NodeStatus(removed=(GPU,)))
        assert server.status(NODE)["capacity"][GPU] == "0"

    def test_a_field_manager_that_applies_other_things_is_refused(self, server: Server) -> None:
        server.apply(NODE, {"conditions": [{"type": "Ready", "status": "Unknown"}]}, manager="devicecore")
        before = server.node(NODE)
        problem = "'devicecore' has also applied status.conditions; choose a different one"
        server.failing(4, problem, strategy=PatchStrategy.APPLY)
        assert server.node(NODE) == before

    @every_strategy
    def test_other_writers_may_write_at_the_same_time(self, server: Server, strategy: PatchStrategy) -> None:
        sink = server.connect(strategy=strategy)

        def wipe() -> None:
            server.write(NODE, lambda status: status["capacity"].pop(GPU, None))

        def count() -> None:
            server.write(NODE, lambda status: status.update(heartbeat=status.get("heartbeat", 0) + 1))

        published(sink, status(4))
        server.inject(RunFirst(count), RunFirst(wipe), RunFirst(count), verb="patch")
        published(sink, status(5))
        assert server.status(NODE) == {**with_gpus("5", "5"), "heartbeat": 2}
        assert sink.problem is None

    def test_a_key_that_another_writer_deletes_first_is_deleted(self, server: Server) -> None:
        sink = server.connect(keep_removed=False)
        published(sink, status(4))
        server.inject(RunFirst(lambda: server.write(NODE, lambda status: status["capacity"].pop(GPU))), verb="patch")
        published(sink, NodeStatus(removed=(GPU,)))
        assert server.status(NODE) == FOREIGN

    def test_a_map_that_appears_meanwhile_is_not_replaced(self, server: Server) -> None:
        server.delete("Node", NODE)
        server.add_node(NODE, {"conditions": []})
        server.inject(RunFirst(lambda: server.write(NODE, lambda status: status.update(FOREIGN))), verb="patch")
        published(server.connect(), status(4))
        assert server.status(NODE) == with_gpus("4", "4")

    def test_a_writer_without_a_name_hides_no_node(self) -> None:
        managed: Json = [{"subresource": "status", "fieldsV1": {"f:status": {"f:capacity": {f"f:{GPU}": {}}}}}]
        node = NodeObject.parse({"metadata": {"name": "n", "resourceVersion": "1", "managedFields": managed}})
        assert node.written == {"": (("status", "capacity", GPU),)}

    def test_a_node_that_loses_published_values_gets_them_back(self, server: Server) -> None:
        published(server.connect(resync=0.02), status(4))
        server.delete("Node", NODE)
        server.add_node(NODE, FOREIGN)
        server.wait_for(lambda: server.status(NODE) == with_gpus("4", "4"))


class TestTrouble:
    def test_publishing_never_waits_for_the_server(self, server: Server) -> None:
        sink = server.connect()
        server.inject(Hang(), verb="get")
        began = time.monotonic()
        for count in range(100):
            sink.publish(status(count))
        assert time.monotonic() - began < PATIENCE / 2
        server.release()
        sink.wait_until_published(PATIENCE)
        assert server.status(NODE) == with_gpus("99", "99")

    @every_strategy
    def test_after_a_long_time_without_a_server_it_gets_the_newest_state_only(
        self, server: Server, strategy: PatchStrategy, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.stop()
        sink = server.connect(strategy=strategy, backoff=Backoff(0.001, 0.002))
        for count in range(20):
            sink.publish(NodeStatus({GPU: count, FPGA: 1} if count == 7 else {GPU: count}))
            wait_for_problem(sink, server, "^no connection to http.*: .*refused")
        server.start()
        sink.wait_until_published(PATIENCE)
        # there is a second patch if the first was sent before the last status was published
        assert len(server.patches) <= 2
        assert server.status(NODE)["capacity"] == {**FOREIGN["capacity"], GPU: "19", FPGA: "1"}
        assert sink.problem is None
        down, up = logged(caplog)  # one message for the outage and one for its end, no matter how long it took
        assert down.startswith(
            f"failed to publish the node's status to node {NODE} at {server.url}: no connection to {server.url}: "
        )
        assert up.endswith("is published again")

    def test_a_server_that_was_restarted_is_the_same_server(self, server: Server) -> None:
        sink = server.connect()
        for count in range(3):
            published(sink, status(count))
            server.stop()
            server.start()
        assert server.status(NODE) == with_gpus("2", "2")

    @pytest.mark.parametrize("verb", ["get", "patch"])
    @pytest.mark.parametrize(
        ("fault", "problem"),
        [
            (Answer(500, {"message": "etcd is down"}), "HTTP status 500 .etcd is down."),
            (Answer(503, "the proxy\nis starting"), "HTTP status 503 .the proxy is starting."),
            (Answer(502, None, {"Content-Type": ""}), "HTTP status 502 .Bad Gateway."),
            (Answer(429, {}), "too many requests"),
            (Answer(429, [1], {"Retry-After": "soon"}), "too many requests"),
            (Answer(409, {"message": "the object has been modified"}), ""),
            (Answer(418, "x" * 1000), "HTTP status 418 .x+[.]{3} .1000 characters.."),
            (Answer(302, None, {"Location": "/login"}), "HTTP status 302 .Found."),
            (Answer(200, "<html>log in</html>", {"Content-Type": "text/html"}), "malformed"),
            (Answer(200, []), "expected a Node"),
            (Answer(200, {"kind": "Pod"}), "expected a Node, but reading the answer raised KeyError: 'metadata'"),
            (
                Answer(200, {"metadata": {"name": NODE}}),
                "expected a Node, but reading the answer raised KeyError: 'resourceV",
            ),
            (Answer(200, {"metadata": {"resourceVersion": "1"}, "status": {"capacity": 3}}), "raised TypeError: 'int'"),
            (Answer(200, None), "malformed|expected a Node"),
            (Drop(), "no connection to http.*: the server closed the connection"),
            (Drop(after=True), ""),  # the second time, the node is already as it should be
        ],
    )
    def test_every_failure_is_reported_and_tried_again(
        self, server: Server, verb: str, fault: Answer | Drop, problem: str
    ) -> None:
        sink = server.connect()
        server.inject(fault, verb=verb, times=None if problem else 2)
        sink.publish(status(4))
        if problem:
            wait_for_problem(sink, server, problem)
            server.clear_faults()
        sink.wait_until_published(PATIENCE)
        assert server.status(NODE) == with_gpus("4", "4")
        assert sink.problem is None

    def test_a_server_that_never_answers_is_given_up_after_the_timeout(self, server: Server) -> None:
        server.inject(Hang(), verb="patch", times=None)
        sink = server.failing(4, "^no complete answer from http.* in time$", timeout=0.1)
        server.clear_faults()
        sink.wait_until_published(PATIENCE)
        assert server.status(NODE) == with_gpus("4", "4")

    def test_a_retry_after_is_respected(self, server: Server) -> None:
        server.inject(Answer(429, {"message": "slow down"}, {"Retry-After": "1"}), verb="patch")
        sink = server.failing(4, "^too many requests .slow down.$")
        began, asked = time.monotonic(), len(server.calls)
        sink.publish(status(5))
        server.wait_for(lambda: len(server.calls) > asked)
        assert time.monotonic() - began > 0.9
        sink.wait_until_published(PATIENCE)
        assert server.status(NODE) == with_gpus("5", "5")

    def test_a_patch_without_effect_is_a_problem(self, server: Server) -> None:
        server.inject(Answer(200, server.node(NODE)), verb="patch", times=None)
        sink = server.failing(4, "accepted the patch, but the node does not show it")
        server.clear_faults()
        sink.wait_until_published(PATIENCE)

    def test_other_writers_that_never_stop_are_a_problem(self, server: Server) -> None:
        write = RunFirst(lambda: server.write(NODE, lambda status: status.update(now=time.time())))
        server.inject(write, verb="patch", times=4)
        problem = "^other clients keep changing the node .Operation cannot be fulfilled"
        sink = server.failing(4, problem, backoff=Backoff(0.2, 0.2))
        sink.wait_until_published(PATIENCE)
        assert server.status(NODE)["capacity"][GPU] == "4"

    def test_a_node_that_does_not_exist_is_waited_for(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        server.delete("Node", NODE)
        sink = server.failing(4, f"^there is no node '{NODE}'")
        server.wait_for(lambda: len(server.calls) >= 5)
        assert len(logged(caplog)) == 1
        server.add_node(NODE, FOREIGN)
        sink.wait_until_published(PATIENCE)
        assert server.status(NODE) == with_gpus("4", "4")

    @pytest.mark.parametrize("permission", ["get nodes", "patch nodes/status"])
    def test_a_missing_permission_is_named(self, server: Server, permission: str) -> None:
        server.forbidden = {permission}
        sink = server.failing(4, f"^forbidden: the permission to '{permission}' is missing .* cannot ")
        server.forbidden.clear()
        sink.wait_until_published(PATIENCE)

    def test_a_bug_does_not_end_it_and_is_logged_once(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        sink = server.connect()
        sink.publish(NodeStatus({GPU: 1, None: 2}))  # type: ignore[dict-item]  # there it is
        server.wait_for(lambda: len(server.calls) >= 5)
        wait_for_problem(sink, server, "^a bug in devicecore: TypeError")
        [logged] = [record for record in caplog.records if record.name.startswith("devicecore")]
        assert logged.exc_info

    def test_an_idle_sink_sends_no_requests(self, server: Server) -> None:
        sink = server.connect()
        published(sink, status(4))
        asked = len(server.calls)
        published(sink, status(4))
        with pytest.raises(TimeoutError):
            server.wait_for(lambda: len(server.calls) > asked, timeout=0.2)


class TestCredentials:
    def test_a_token_file_is_read_again_when_its_token_has_expired(self, server: Server, directory: Path) -> None:
        server.bearer = "first"
        (directory / "token").write_text("first\n")
        server.config(directory, {"tokenFile": str(directory / "token")})
        sink = server.connect()
        published(sink, status(4))
        server.bearer = "second"
        sink.publish(status(5))
        problem = "^unauthorized: the API server does not know the credentials, or they have expired .Unauthorized.$"
        wait_for_problem(sink, server, problem)
        (directory / "token").unlink()
        wait_for_problem(sink, server, "^token file .*: No such file or directory$")
        (directory / "token").write_text("second\n")
        sink.wait_until_published(PATIENCE)
        assert server.status(NODE) == with_gpus("5", "5")

    def test_a_kubeconfig_is_read_again_when_its_token_has_expired(self, server: Server, directory: Path) -> None:
        server.bearer = "first"
        server.config(directory, {"token": "first"})
        sink = server.connect()
        published(sink, status(4))
        server.bearer = "second"
        sink.publish(status(5))
        wait_for_problem(sink, server, "^unauthorized")
        (directory / "kubeconfig").write_text("nonsense")
        wait_for_problem(sink, server, f"^cannot use kubeconfig '{directory}/kubeconfig': ")
        server.config(directory, {"token": "second"})
        sink.wait_until_published(PATIENCE)
        assert server.status(NODE) == with_gpus("5", "5")

    @pytest.mark.parametrize("version", ["v1", "v1beta1"])
    def test_a_token_program_is_run_again_when_a_token_has_expired(
        self, server: Server, directory: Path, version: str
    ) -> None:
        def make(token: str) -> None:
            server.bearer = token
            (directory / "credential.json").write_text(json.dumps({"status": {"token": token}}))

        program: dict[str, Any] = {
            "apiVersion": f"client.authentication.k8s.io/{version}",
            "command": "cat",
            "args": [str(directory / "credential.json")],
            "interactiveMode": "Never",
        }
        server.config(directory, {"exec": program})
        make("first")
        sink = server.connect()
        published(sink, status(4))
        make("second")
        published(sink, status(5))
        assert server.status(NODE) == with_gpus("5", "5")

    @pytest.mark.parametrize("kind", ["inline", "files", "one file"])
    def test_a_client_certificate_is_used(self, directory: Path, kind: str) -> None:
        files = {"client-certificate": certificates.NODE_CERTIFICATE, "client-key": certificates.NODE_KEY}
        user: dict[str, str] = {}
        for name, text in files.items():
            if kind == "inline":
                user[f"{name}-data"] = base64.b64encode(text.encode()).decode()
            else:  # a kubelet keeps both its certificate and its key in one file
                (directory / name).write_text(text if kind == "files" else "".join(files.values()))
                user[name] = name  # the path is relative to the kubeconfig

        def embed(cluster: dict[str, Any]) -> None:
            if kind == "inline":
                del cluster["certificate-authority"]
                cluster["certificate-authority-data"] = base64.b64encode(certificates.AUTHORITY.encode()).decode()

        with serving(directory, secure=True, mutual=True) as server:
            server.set_cluster(embed, user)
            published(server.connect(), status(4))
            assert server.status(NODE) == with_gpus("4", "4")

    def test_a_missing_client_certificate_is_reported(self, directory: Path) -> None:
        with serving(directory, secure=True, mutual=True) as server:
            server.failing(4, "^no TLS connection: .*CERTIFICATE")
            assert server.requests == []

    def test_a_server_certificate_that_is_not_trusted_is_refused(self, directory: Path) -> None:
        with serving(directory, secure=True) as server:
            server.set_cluster(lambda cluster: cluster.pop("certificate-authority"))
            sink = server.failing(4, "^the API server's certificate is not trusted: ")
            assert server.requests == []
            server.config(directory)
            sink.wait_until_published(PATIENCE)
            assert server.status(NODE) == with_gpus("4", "4")

    def test_a_server_that_speaks_no_tls_is_a_tls_failure(self, server: Server, directory: Path) -> None:
        path = server.config(directory)
        path.write_text(path.read_text().replace("http:", "https:"))
        server.failing(4, "^no TLS connection: ")

    def test_in_a_cluster_the_service_account_is_used(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with serving(directory, secure=True, bearer="of the pod") as server:
            server.config(directory)  # writes ca.crt
            (directory / "token").write_text("of the pod")
            (directory / "namespace").write_text("kube-system")
            host, port = server.address
            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
            published(server.connect(service_account=directory), status(4))
            assert server.status(NODE) == with_gpus("4", "4")
            with pytest.raises(ApiAccessError, match="No such file"):  # a kubeconfig that is named takes precedence
                KubeApiSink(NODE, Access(directory / "none", service_account=directory))

    def test_missing_credentials_are_an_error_at_once(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBECONFIG", str(directory / "none"))
        with pytest.raises(ApiAccessError, match=r"KUBECONFIG or ~/.kube/config: none of these files exists"):
            KubeApiSink(NODE, Access(service_account=directory))
        for name in ("token", "namespace"):
            (directory / name).write_text("")
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        with pytest.raises(ApiAccessError, match=r"\$KUBERNETES_SERVICE_HOST and"):
            KubeApiSink(NODE, Access(service_account=directory))

    @pytest.mark.parametrize(
        ("old", "new", "problem"),
        [
            ('"clusters"', '"klusters"', "contexts[0].context.cluster: there is no cluster 'devicecore'"),
            ('"server": "http://', '"server": "ftp://', "clusters[0].cluster.server: expected an http:// or https://"),
            ('cluster": "dev', 'cluster": "x', "contexts[0].context.cluster: there is no cluster 'xicecore'"),
            ('current-context": "dev', 'current-context": "x', "current-context: there is no context 'xicecore'"),
            ('"current-context"', '"current"', "current-context: it is missing; name a context"),
            ('"user": "devicecore"', '"user": "others"', "contexts[0].context.user: there is no user 'others'"),
            ('/ca.crt"', '/none"', "clusters[0].cluster.certificate-authority: /"),
            ('/ca.crt"', '/kubeconfig"', "certificate-authority: expected certificates in PEM format: "),
            (
                '"cluster": {',
                '"cluster": {"server": 3}, "x": {',
                "cluster.server: expected a string, got 3: put the value in q",
            ),
            ('"cluster": {', '"cluster": {"certificate-authority-data": "\u202e", ', "-data: expected base64: "),
            ('"server": "http://', '"server": "http://h:65536/', "clusters[0].cluster.server: expected an http:// "),
            ('"cluster": {', '"cluster": {"proxy-url": "socks5://x", ', "proxy-url: expected an http:// or https://"),
            ('"cluster": {', '"cluster": {"insecure-skip-tls-verify": "no", ', "expected true or false, got 'no'"),
            ("}", "", "expected ',' or '}'"),
            ("{", "[", ": "),
        ],
    )
    def test_a_broken_kubeconfig_is_refused_in_one_sentence(
        self, server: Server, directory: Path, old: str, new: str, problem: str
    ) -> None:
        path = server.config(directory)
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        self.assert_refused(path, problem)

    @pytest.mark.parametrize(
        ("user", "problem"),
        [
            ({"client-certificate-data": "x", "client-key-data": "x"}, "client-certificate-data: expected base64: "),
            ({"client-certificate": FILE, "client-key": FILE}, "client-certificate: expected a certificate and its"),
            ({"client-certificate": FILE}, "client-certificate: expected a client-certificate and a client-key, got"),
            ({"exec": {"apiVersion": "v9", "command": "x"}}, f"exec.apiVersion: expected one of {EXEC_V1}, "),
            ({"exec": {"apiVersion": EXEC_V1, "interactiveMode": "Always"}}, "exec.interactiveMode: a program that n"),
            ({"auth-provider": {"name": "gcp"}}, "auth-provider: it is not supp"),
            ({"as": "root", "as-groups": ["x"]}, "as-groups: it is not supported"),
            ({"as-user-extra": {"a": ["x"]}}, "as-user-extra: it is not supported"),
            ({"as-uid": "1"}, "as-uid: expected `as` next to it"),
            ({"token": "a\nb"}, "token: expected printable ASCII characters"),
        ],
    )
    def test_a_field_of_a_user_that_cannot_be_used_is_named(
        self, server: Server, directory: Path, user: dict[str, Any], problem: str
    ) -> None:
        where = "" if problem.startswith("client-certificate: ") else "users[0].user."
        self.assert_refused(server.config(directory, user), where + problem)

    @staticmethod
    def assert_refused(path: Path, problem: str) -> None:
        with pytest.raises(ApiAccessError, match=re.escape(problem)) as caught:
            KubeApiSink(NODE, Access(path))
        assert str(caught.value).startswith(f"cannot use kubeconfig '{path}': ")
        assert "\n" not in str(caught.value)

    def test_a_password_in_the_address_of_the_server_is_not_shown(self, server: Server, directory: Path) -> None:
        path = server.config(directory)
        text = path.read_text()
        path.write_text(re.sub('"server": "http://[^"]*', '"server": "http://name:se@cret@127.0.0.1:1', text))
        with KubeApiSink(NODE, Access(path)) as sink:
            sink.publish(status(4))
            problem = str(wait_for_problem(sink, server, "no connection"))
            assert "http://***@127.0.0.1:1" in problem
            assert "cret" not in problem

    @pytest.mark.parametrize("content", ["", "3", "nonsense", "- a\n- b", "a: b: c"])
    def test_a_file_that_is_not_a_kubeconfig_is_refused(self, directory: Path, content: str) -> None:
        (directory / "file").write_text(content)
        with pytest.raises(ApiAccessError):
            KubeApiSink(NODE, Access(directory / "file"))

    def test_another_context_can_be_chosen(self, server: Server) -> None:
        published(server.connect(context="devicecore"), status(4))
        with pytest.raises(ApiAccessError, match="current-context: there is no context 'others'"):
            server.connect(context="others")

    @pytest.mark.parametrize("name", ["", "Upper", "../etc", "a b", "-a", "a" * 254])
    def test_a_name_that_no_node_can_have_is_refused(self, directory: Path, name: str) -> None:
        with pytest.raises(NodeNameError, match="expected a node name"):
            KubeApiSink(name, Access(directory / "none"))


@pytest.fixture
def program(server: Server, directory: Path) -> Callable[..., Path]:
    """Return a function that writes a program that prints credentials, and a kubeconfig that names the program."""

    def write(script: str, **more: Any) -> Path:  # noqa: ANN401 - fields of a kubeconfig
        path = directory / "bin" / "credentials"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        command = {"apiVersion": EXEC_V1, "command": "./bin/credentials", "interactiveMode": "Never", **more}
        server.config(directory, {"exec": command})
        return path

    return write


class TestPrograms:
    def test_a_program_is_found_beside_the_kubeconfig_and_gets_the_cluster(
        self, server: Server, directory: Path, program: Callable[..., Path]
    ) -> None:
        server.bearer = "made"
        script = f"""echo "$KUBERNETES_EXEC_INFO" > {directory}/told; echo "$1 $MORE" > {directory}/arguments
        echo '{{"status": {{"token": "made"}}}}'"""
        more = [{"name": "MORE", "value": "more"}]
        program(script, args=["first"], env=more, provideClusterInfo=True)
        published(server.connect(), status(4))
        told = json.loads((directory / "told").read_text())
        assert (told["apiVersion"], told["kind"], told["spec"]["interactive"]) == (EXEC_V1, "ExecCredential", False)
        cluster = told["spec"]["cluster"]
        assert cluster["server"] == server.url
        assert base64.b64decode(cluster["certificate-authority-data"]).decode() == certificates.AUTHORITY
        assert (directory / "arguments").read_text() == "first more\n"

    def test_a_program_may_give_a_certificate(self, directory: Path) -> None:
        credentials = {"clientCertificateData": certificates.NODE_CERTIFICATE, "clientKeyData": certificates.NODE_KEY}
        (directory / "credentials").write_text(json.dumps({"status": credentials}))
        command = {"apiVersion": EXEC_V1, "command": "cat", "args": [str(directory / "credentials")]}
        with serving(directory, secure=True, mutual=True) as server:
            server.config(directory, {"exec": command})
            published(server.connect(), status(4))
            assert server.status(NODE) == with_gpus("4", "4")

    def test_a_program_that_hangs_is_reported_and_killed_with_its_children(
        self, server: Server, directory: Path, program: Callable[..., Path]
    ) -> None:
        program(f"sleep 1000 & echo $! > {directory}/child; wait")
        problem = "^exec program '.*/bin/credentials': did not end within 3 s and was killed$"
        server.failing(4, problem, program_timeout=3.0)
        child = int((directory / "child").read_text())
        with suppress(FileNotFoundError):
            while ") Z " not in Path(f"/proc/{child}/stat").read_text():
                time.sleep(0.01)

    def test_a_program_may_leave_a_child_with_open_streams(self, server: Server, program: Callable[..., Path]) -> None:
        server.bearer = "made"
        program("""sleep 1000 & echo '{"status": {"token": "made"}}'""")
        published(server.connect(program_timeout=PATIENCE / 2), status(4))

    @pytest.mark.parametrize(
        ("script", "problem"),
        [
            ("yes", "printed more than 1048576 bytes and was killed"),
            ("echo 'no \033[31m login' >&2; exit 3", "ended with status 3: no .x1b.31m login"),
            ("exit 1", "ended with status 1: it printed no reason"),
            ("echo nonsense", "expected an ExecCredential with a status, but reading it raised JSONDecodeError"),
            ("echo '{}'", "expected an ExecCredential with a status, but reading it raised KeyError: 'status'"),
            ("echo '{\"status\": {}}'", "expected a token, or a certificate with its key, got neither"),
            ('echo \'{"status": {"token": 5}}\'', "expected credentials that are ASCII strings"),
            ('echo \'{"status": {"token": "a\\\\nb"}}\'', "expected a token of printable characters"),
        ],
    )
    def test_a_program_that_gives_no_credentials_is_named_with_the_reason(
        self, server: Server, program: Callable[..., Path], script: str, problem: str
    ) -> None:
        program(script)
        sink = server.connect()
        sink.publish(status(4))
        found = wait_for_problem(sink, server, f"^exec program '.*/bin/credentials': .*{problem}")
        assert str(found).isprintable()

    def test_a_program_that_does_not_exist_is_named(self, server: Server, program: Callable[..., Path]) -> None:
        program("true").unlink()
        server.failing(4, "^exec program '.*/bin/credentials': cannot be run: No such file")

    def test_closing_ends_a_program(self, server: Server, directory: Path, program: Callable[..., Path]) -> None:
        program(f"mkfifo {directory}/started; echo > {directory}/started; sleep 1000")
        sink = server.connect(program_timeout=PATIENCE)
        sink.publish(status(4))
        while not (directory / "started").exists():
            time.sleep(0.01)
        (directory / "started").read_text()
        sink.stop(timeout=0.1)
        for thread in [one for one in threading.enumerate() if one.name.startswith("devicecore-kube-api")]:
            thread.join(PATIENCE / 2)
            assert not thread.is_alive()


class TestKubeconfigFields:
    def test_the_user_to_act_as_and_the_user_agent_are_sent(self, server: Server, directory: Path) -> None:
        server.config(directory, {"as": "system:node:worker-1", "as-uid": "7"})
        published(server.connect(), status(4))
        for request in server.requests:
            assert request.headers["Impersonate-User"] == "system:node:worker-1"
            assert request.headers["Impersonate-Uid"] == "7"
            assert re.fullmatch(r"devicecore/[0-9.]+", request.headers["User-Agent"])
            assert request.headers["Accept-Encoding"] == "identity"

    @pytest.mark.parametrize(("name", "works"), [("localhost", True), ("other.invalid", False)])
    def test_the_name_of_the_certificate_can_be_given(self, directory: Path, name: str, works: bool) -> None:
        with serving(directory, secure=True) as server:
            server.set_cluster(lambda cluster: cluster.update({"tls-server-name": name}))
            if works:
                published(server.connect(), status(4))
            else:
                server.failing(4, "certificate is not trusted: Hostname mismatch")

    @pytest.mark.parametrize("source", ["proxy-url", "environment"])
    def test_proxies_work(self, server: Server, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
        if source == "environment":
            monkeypatch.setenv("http_proxy", server.url)
        named = {source: server.url} if source == "proxy-url" else {}
        server.set_cluster(lambda cluster: cluster.update({"server": "http://api.invalid", **named}))
        published(server.connect(), status(4))
        assert server.requests[0].headers["Host"] == "api.invalid"

    def test_several_kubeconfigs_are_merged_and_a_missing_one_is_ignored(
        self, server: Server, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.bearer = "of the second"
        config = json.loads(server.config(directory).read_text())
        (directory / "second").mkdir()
        (directory / "second" / "token").write_text("of the second")
        config["users"][0]["user"] = {"tokenFile": "token"}
        (directory / "second" / "config").write_text(json.dumps(config))
        first = {"clusters": config["clusters"], "current-context": "devicecore"}
        (directory / "first").write_text(json.dumps(first))
        files = [directory / "missing", directory / "first", directory / "second" / "config"]
        monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
        published(server.connect(kubeconfig=None, service_account=directory / "none"), status(4))
        assert server.status(NODE) == with_gpus("4", "4")

    def test_new_credentials_are_used_at_once_when_the_old_ones_expire(
        self, server: Server, directory: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.bearer = "first"
        (directory / "token").write_text("first")
        server.config(directory, {"tokenFile": "token"})
        sink = server.connect(backoff=Backoff(PATIENCE, PATIENCE))
        published(sink, status(4))
        server.bearer = "second"
        (directory / "token").write_text("second")
        published(sink, status(5))
        assert [line for line in logged(caplog) if "cannot watch" not in line] == []

    def test_secrets_are_in_no_representation(self, server: Server, directory: Path) -> None:
        path = server.config(directory, {"token": "precious"})
        assert "precious" not in repr(load(path, None, directory))


def endless(part: bytes, seconds: float, until: threading.Event) -> Iterator[bytes]:
    while not until.wait(seconds):
        yield part


class TestLimits:
    @pytest.mark.parametrize("verb", ["get", "patch"])
    def test_a_slow_response_is_abandoned_at_the_deadline(self, server: Server, verb: str) -> None:
        over = threading.Event()
        server.inject(Chunks(endless(b" ", 0.02, over)), verb=verb)
        sink = server.failing(4, "^no complete answer from http.* in time$", timeout=0.3, backoff=Backoff(0.2, 0.2))
        sink.wait_until_published(PATIENCE)
        over.set()
        assert server.status(NODE) == with_gpus("4", "4")

    def test_slow_headers_are_abandoned_at_the_deadline(self, server: Server, directory: Path) -> None:
        over = threading.Event()
        with socket.create_server(("127.0.0.1", 0)) as slow:

            def answer() -> None:
                with slow.accept()[0] as connection:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                    with suppress(OSError):
                        for part in endless(b"x", 0.02, over):
                            connection.sendall(part)

            thread = threading.Thread(target=answer)
            thread.start()
            path = server.config(directory)
            path.write_text(path.read_text().replace(server.url, f"http://127.0.0.1:{slow.getsockname()[1]}"))
            sink = server.failing(4, "^no complete answer from http.* in time$", timeout=0.3)
            sink.stop()
            over.set()
            thread.join(PATIENCE)

    def test_an_answer_that_is_too_large_is_not_read_to_its_end(
        self, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        sent = 0

        def parts() -> Iterator[bytes]:
            nonlocal sent
            for _ in range(3000):  # megabytes
                sent += 1
                yield b"x" * 1_000_000

        server.inject(Chunks(parts()), verb="get")
        server.connect().publish(status(4))
        server.sinks[-1].wait_until_published(PATIENCE)
        assert f"the answer is longer than {MAX_ANSWER} bytes" in logged(caplog)[0]
        assert sent < 50

    @pytest.mark.parametrize("body", ["[" * 100_000, '{"metadata": ' * 50_000, "\x1b[31m", "9" * 10_000])
    def test_an_answer_that_is_not_a_node_is_one_printable_line(
        self, server: Server, body: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        sink = server.connect()
        server.inject(Answer(200, body, {"Content-Type": "application/json"}), Answer(500, body), verb="get")
        sink.publish(status(4))
        sink.wait_until_published(PATIENCE)
        assert all(line.isprintable() and len(line) < 1500 for line in logged(caplog))

    def test_a_patch_that_a_policy_denies_is_not_repeated_without_a_pause(self, server: Server) -> None:
        server.inject(*[Answer(422, {"message": "denied by a policy"})] * 10, verb="patch")
        problem = "^the patch is invalid, or a policy refuses it .denied by a policy.$"
        server.failing(4, problem, backoff=Backoff(1000, 1000))
        assert len(server.patches) == 1
        server.clear_faults()

    def test_at_most_two_patches_in_a_second_and_always_the_newest_state(self, server: Server) -> None:
        now = 0.0
        sink = server.connect(patches_per_second=2, clock=lambda: now)
        published(sink, status(1), status(2))
        for count in range(3, 1000):
            sink.publish(status(count))
        with pytest.raises(SinkError):
            sink.wait_until_published(0.3)
        assert len(server.patches) == 2
        now = 1.0  # a second has passed since the first patch
        sink.publish(status(1001))
        sink.wait_until_published(PATIENCE)
        assert [patch.body["status"]["allocatable"][GPU] for patch in server.patches] == ["1", "2", "1001"]


class TestWatching:
    @every_strategy
    def test_a_value_that_another_writer_overwrites_is_restored(self, server: Server, strategy: PatchStrategy) -> None:
        published(server.connect(strategy=strategy, resync=1000), status(4))
        for change in ({GPU: "9"}, {GPU: "0"}, {}):
            counts = {**FOREIGN["allocatable"], **change}
            server.write(NODE, partial(dict.update, allocatable=counts))
            server.wait_for(lambda: server.status(NODE) == with_gpus("4", "4"))

    def test_a_node_that_is_deleted_and_created_again_is_restored(self, server: Server) -> None:
        sink = server.connect(resync=1000, backoff=Backoff(0.01, 1000))
        published(sink, status(4))
        for _ in range(3):
            server.delete("Node", NODE)
            wait_for_problem(sink, server, "^there is no node")
            server.add_node(NODE, FOREIGN)
            server.wait_for(lambda: server.status(NODE) == with_gpus("4", "4"))
            sink.wait_until_published(PATIENCE)

    def test_a_node_created_later_is_noticed_at_once(self, server: Server) -> None:
        server.delete("Node", NODE)
        sink = server.failing(4, "^there is no node", resync=1000, backoff=Backoff(1000, 1000))
        server.wait_for(lambda: server.watches)
        server.add_node(NODE, FOREIGN)
        sink.wait_until_published(PATIENCE)
        assert server.status(NODE) == with_gpus("4", "4")

    def test_only_this_node_is_watched_and_its_own_patches_cause_no_request(self, server: Server) -> None:
        server.add_node("other", FOREIGN)
        sink = server.connect(resync=1000)
        published(sink, status(4))
        server.wait_for(lambda: server.watches)
        published(sink, status(5))
        asked = len(server.calls)
        server.write("other", lambda status: status.update(heartbeat=1))
        server.write(NODE, lambda status: status.update(heartbeat=1))
        with pytest.raises(TimeoutError):
            server.wait_for(lambda: len(server.calls) > asked, timeout=0.2)
        [watch] = server.watches
        assert watch.query["fieldSelector"] == f"metadata.name={NODE}"
        assert int(watch.query["resourceVersion"]) > 1000
        assert 0 < int(watch.query["timeoutSeconds"]) <= 300

    def test_a_watch_whose_version_is_too_old_is_restarted(
        self, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        published(server.connect(resync=1000), status(4))
        server.wait_for(lambda: server.watches)
        with server.store.transaction():
            server.add_node("other")  # the history is forgotten before the watch has seen this event
            server.store.forget_events()
        server.wait_for(lambda: len(server.watches) >= 2)
        server.write(NODE, lambda status: status["capacity"].pop(GPU))
        server.wait_for(lambda: server.status(NODE) == with_gpus("4", "4"))
        assert logged(caplog) == []

    @pytest.mark.parametrize(
        "fault",
        [
            Answer(500, "no"),
            Drop(),
            Chunks([b"nonsense\n"]),
            Chunks([b'{"type": "MODIFIED", "object": {}}\n']),
            Chunks([b'{"type": "MODIFIED", "object": ' + b"[" * 100_000]),
            Chunks([]),
        ],
    )
    def test_a_failed_watch_is_restarted(self, server: Server, fault: Answer | Drop | Chunks) -> None:
        server.inject(*[fault] * 3, verb="watch")
        published(server.connect(resync=1000), status(4))
        server.wait_for(lambda: len(server.watches) >= 4)
        server.write(NODE, lambda status: status["capacity"].pop(GPU))
        server.wait_for(lambda: server.status(NODE) == with_gpus("4", "4"))

    def test_without_the_permission_to_watch_the_node_is_compared_regularly(
        self, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.forbidden = {"watch nodes"}
        sink = server.connect(resync=1000)
        published(sink, status(4))
        server.wait_for(lambda: len(server.watches) >= 3)
        server.write(NODE, lambda status: status["capacity"].pop(GPU))
        server.wait_for(lambda: server.status(NODE) == with_gpus("4", "4"))
        [line] = logged(caplog)
        assert "forbidden: the permission to 'watch nodes' is missing" in line
        assert sink.problem is None

    def test_a_watch_that_is_refused_with_an_endless_answer_is_still_refused(
        self, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.inject(*[Answer(403, "x" * (MAX_WATCH + 1))] * 2, verb="watch")
        published(server.connect(resync=1000), status(4))
        server.wait_for(lambda: len(server.watches) >= 3)
        assert "forbidden: the permission to 'watch nodes' is missing" in logged(caplog)[0]


class TestClosing:
    def test_closing_makes_a_last_attempt_without_a_pause(self, server: Server) -> None:
        server.inject(Answer(429, {}, {"Retry-After": "1000"}), verb="get")
        sink = server.failing(4, "too many requests", backoff=Backoff(1000, 1000))
        sink.publish(status(5))
        began = time.monotonic()
        sink.stop()
        assert time.monotonic() - began < PATIENCE / 2
        assert server.status(NODE) == with_gpus("5", "5")

    def test_closing_right_after_publishing_loses_nothing(self, server: Server) -> None:
        for count in range(10):
            with server.connect() as sink:
                sink.publish(status(count))
            assert server.status(NODE) == with_gpus(str(count), str(count))

    def test_closing_reports_what_was_not_published(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        server.stop()
        with server.connect() as sink:
            sink.publish(status(4))
            wait_for_problem(sink, server, "^no connection")
        assert logged(caplog)[-1].startswith("stopped before everything was published: failed to publish ")

    def test_closing_waits_for_no_server_that_hangs(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        server.inject(Hang(), verb="get")
        sink = server.connect()
        sink.publish(status(4))
        server.wait_for(lambda: server.calls)
        [thread] = [thread for thread in threading.enumerate() if thread.name == "devicecore-kube-api"]
        began = time.monotonic()
        sink.stop(timeout=0.1)
        assert time.monotonic() - began < PATIENCE / 2
        assert logged(caplog) == [
            f"stopped before everything was published: no answer from node {NODE} at {server.url}"
        ]
        server.release()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert len(server.calls) == 1
        assert server.status(NODE) == FOREIGN

    def test_waiting_without_success_says_why(self, server: Server) -> None:
        server.inject(Hang(), verb="get")
        sink = server.connect()
        sink.publish(status(4))
        with pytest.raises(SinkError, match=r"no answer within 0\.01 s"):
            sink.wait_until_published(0.01)


class TestBackoff:
    def test_the_pauses_double_up_to_the_longest(self) -> None:
        backoff = Backoff(0.5, 30.0)
        assert [backoff.delay(failures, 1.0) for failures in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
        assert backoff.delay(10**9, 1.0) == 30

    def test_luck_takes_off_up_to_half(self) -> None:
        assert Backoff(2.0, 30.0).delay(1, 0.0) == 1.0

    def test_an_hour_without_a_server_is_some_hundred_attempts(self) -> None:
        attempts, waited = 0, 0.0
        while waited < 3600:
            attempts += 1
            waited += Backoff().delay(attempts, 0.5)
        assert 100 < attempts < 200
