"""`fits` on recorded nodes: it is never sure that a pod runs if a real kubelet refused the pod or kept it waiting."""

import json
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.command.main import main

Capsys = pytest.CaptureFixture[str]
Json = Any
DATA = Path(__file__).parents[1] / "data" / "unaccounted_nodes"


def recorded(name: str, where: Path) -> Json:
    """Write the files of a recorded node, and return their contents."""
    files = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    for file, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (where / file).write_text(text, encoding="utf-8")
    return files


def a_pod(requests: Json) -> Json:
    """Return a pod with a probe's claims and resources."""
    claims = requests.pop("claims", [])
    resources: Json = {"limits": {name: str(size) for name, size in requests.items()}}
    resources |= {"claims": [{"name": one} for one in claims]} if claims else {}
    spec: Json = {"containers": [{"name": "app", "image": "x", "resources": resources}]}
    spec |= {"resourceClaims": [{"name": one, "resourceClaimName": one} for one in claims]} if claims else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": "default"}, "spec": spec}


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("devices-on-a-numa-node-that-is-not-there", 3, "devices of acme.io/gpu are on NUMA node 7"),
        ("plugin-answers-allocate-after-40-seconds", 3, "has not admitted it in more than 10 s"),
        ("plugin-answers-allocate-with-nothing", 3, "Allocate failed due to no containers return in allocation"),
        ("plugin-in-crash-loop", 1, "the plugin for acme.io/gpu is missing"),
        ("plugin-of-another-api-version", 1, "no source names this resource"),
        ("same-id-listed-twice", 0, "fits"),
        ("cdi-device-that-the-runtime-does-not-know", 3, "a container got acme.io/gpu as a CDI device before"),
    ],
)
def test_a_pod_is_not_reported_as_certain_to_run_on_a_node_that_refused_it(
    name: str, status: int, says: str, tmp_path: Path, capsys: Capsys
) -> None:
    """If a pod was refused through no fault of its own, or is waiting, `fits` has doubts about other pods."""
    requests = recorded(name, tmp_path)["truth.json"]["probe"][0]["pod requests"]
    (tmp_path / "probe.json").write_text(json.dumps(a_pod(requests)), "utf-8")
    assert main(["fits", str(tmp_path / "probe.json"), "--root", str(tmp_path)]) == status
    assert says in capsys.readouterr().out


def test_devices_that_a_pod_does_not_request_are_no_reason_for_doubt(tmp_path: Path) -> None:
    recorded("devices-on-a-numa-node-that-is-not-there", tmp_path)
    (tmp_path / "probe.json").write_text(json.dumps(a_pod({})), "utf-8")
    assert main(["fits", str(tmp_path / "probe.json"), "--root", str(tmp_path)]) == 0
