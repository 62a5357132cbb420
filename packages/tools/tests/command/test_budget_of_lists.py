"""An API server whose lists are each small enough to be read, but too large together."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.budget import MAX_DOCUMENTS
from devicecore_tools.command.main import main

LARGE = MAX_DOCUMENTS * 2 // 5 // 300
"""The length of a list of empty objects, which count as 300 bytes each. Two such lists may be read, but not three."""

TOO_MUCH = "with this answer, everything read from the API server for this question takes more than 420 MB of memory"

NODE = {
    "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.36.0"}},
}
SLICE = {
    "metadata": {"name": "s1"},
    "spec": {
        "driver": "gpu.example.com",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    },
}
CLASS: dict[str, Any] = {"metadata": {"name": "gpu"}, "spec": {}}
REQUESTS = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "wanted", "namespace": "default"},
    "spec": {"devices": {"requests": REQUESTS}},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": {
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "wanted"}],
    },
}
OBJECTS = {"nodes": [NODE], "resourceslices": [SLICE], "deviceclasses": [CLASS], "resourceclaims": [CLAIM]}


@contextmanager
def served(directory: Path, large: Mapping[str, int]) -> Iterator[str]:
    """Serve the objects and, for each plural in `large`, one more object that contains that number of empty objects.

    Yield a kubeconfig.
    """

    class Lists(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            plural = self.path.partition("?")[0].rpartition("/")[2]
            if plural == "n1":
                return self.answer(json.dumps(NODE).encode())
            listed = [json.dumps(one) for one in OBJECTS.get(plural, ())]
            if count := large.get(plural, 0):
                name = json.dumps({"name": "large", "namespace": "default"})
                listed.append(f'{{"metadata": {name}, "spec": {{}}, "junk": [{"{}," * count}0]}}')
            return self.answer(f'{{"metadata": {{}}, "items": [{",".join(listed)}]}}'.encode())

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Lists) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
        }
        (directory / "config").write_text(json.dumps(config))
        try:
            yield str(directory / "config")
        finally:
            server.shutdown()
            thread.join()


def asked(directory: Path, large: Mapping[str, int], *arguments: str) -> int | None:
    """Run a command against the server and return its exit status."""
    with served(directory, large) as config:
        return main([*arguments, "--kubeconfig", config])


def file_of(directory: Path, manifest: object) -> str:
    (directory / "asked.json").write_text(json.dumps(manifest))
    return str(directory / "asked.json")


@pytest.mark.parametrize("alone", ["pods", "namespaces", "priorityclasses"])
def test_each_list_alone_may_be_read(alone: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(tmp_path, {alone: LARGE}, "why", file_of(tmp_path, POD)) == 0
    assert "train on n1: gets its devices" in capsys.readouterr().out


def test_a_claim_is_not_judged_without_the_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = dict.fromkeys(["resourceclaimtemplates", "devicetaintrules", "nodes"], LARGE)
    assert asked(tmp_path, large, "why", file_of(tmp_path, CLAIM)) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"Nodes are not known, so neither is the answer: {TOO_MUCH}" in printed.err


def test_a_name_is_not_looked_up_once_the_budget_is_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = dict.fromkeys(["pods", "resourceclaims"], LARGE * 3 // 2)
    assert asked(tmp_path, large, "why", "claim", "wanted") == 3
    assert f"ResourceClaims are not known, so neither is the answer: {TOO_MUCH}" in capsys.readouterr().err


def test_a_pod_is_not_sure_of_its_node_without_the_other_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = dict.fromkeys(["resourceclaimtemplates", "devicetaintrules", "pods"], LARGE)
    assert asked(tmp_path, large, "why", file_of(tmp_path, POD)) == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "n1 has its devices, but not everything that the pod" in shown
    assert f"not checked the Pods: {TOO_MUCH}" in shown


def test_a_message_is_explained_with_the_sources_that_could_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "Allocate failed due to requested number of devices unavailable for x.com/gpu. Requested: 1, Available: 0"
    large = dict.fromkeys(["pods", "events", "resourceslices"], LARGE)
    assert asked(tmp_path, large, "why", message, "--node-name", "n1") == 3
    assert TOO_MUCH in capsys.readouterr().err


def test_nodes_names_the_list_that_it_did_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = dict.fromkeys(["nodes", "pods", "resourceclaims"], LARGE)
    assert asked(tmp_path, large, "nodes") == 3
    assert f"not read: ResourceClaims: {TOO_MUCH}" in capsys.readouterr().out


@pytest.mark.parametrize("nodes", [("--node-name", "n1"), ("--all-nodes",)])
def test_doctor_does_not_rule_out_what_a_list_may_show(
    nodes: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = dict.fromkeys(["events", "pods", "resourceclaims"], LARGE)
    assert asked(tmp_path, large, "doctor", *nodes) == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert TOO_MUCH in shown
    assert "not ruled out" in shown
