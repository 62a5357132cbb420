"""Server-side apply of the API server for tests, beside what the Go library of Kubernetes makes of the same requests.

`applied_fields.jsonl` has sequences of requests at random. Of each it has the refusals, and the object and its owners
after the last success, of `k8s.io/apimachinery/pkg/util/managedfields` 0.36.4, to which the recording added what
kube-apiserver does before and after it.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.testing.api_server import Json, LocalApiServer
from tests.kit.test_api_server import APPLY, MERGE, ask

CASES = (Path(__file__).parent.parent / "data" / "applied_fields.jsonl").read_text().splitlines()


META = ("labels", "annotations", "ownerReferences", "finalizers")


def filled(value: Json) -> Json:
    return {name: one for name, one in value.items() if one not in ({}, [])}


@pytest.mark.parametrize("line", CASES, ids=range(len(CASES)))
def test_fields_and_owners_are_those_of_the_go_library(line: str) -> None:
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
    assert {name: filled(one) for name, one in shown.items() if filled(one)} == case["object"]
