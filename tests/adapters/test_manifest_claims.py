"""ResourceClaims in the directory of manifests, and the pods that name these claims."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devicecore.adapters.manifests import ManifestError, ManifestPods
from devicecore.adapters.manifests.pods import Manifest, read_manifest
from devicecore.domain.dra.lookup import extended_requests
from devicecore.domain.dra.model import ClaimKey
from devicecore.domain.model import ContainerClaim, PodClaim

KEY = ClaimKey("default", "shared")


def claim(**status: object) -> dict[str, Any]:
    allocation = {"devices": {"results": [{"request": "gpu", "driver": "gpu.example.com", "pool": "n", "device": "d"}]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "shared"},
        "spec": {"devices": {"requests": [{"name": "gpu"}]}},
        "status": {"allocation": allocation, **status},
    }


def pod(name: str, uid: str | None = None, **entry: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **({"uid": uid} if uid else {})},
        "spec": {
            "resourceClaims": [{"name": "mine", **(entry or {"resourceClaimName": "shared"})}],
            "containers": [{"name": "main", "resources": {"claims": [{"name": "mine", "request": "gpu"}]}}],
        },
    }


def documents(*objects: dict[str, Any]) -> str:
    return "\n---\n".join(map(json.dumps, objects))


def read(*objects: dict[str, Any]) -> Manifest:
    return read_manifest(documents(*objects), "x.yaml")


def source(directory: Path) -> ManifestPods:
    (directory / "pods").mkdir(exist_ok=True)
    return ManifestPods(directory / "pods", directory / "pods.json", boot_id="b")


def test_a_pod_and_its_claim_may_share_a_file() -> None:
    manifest = read(claim(), pod("a"))
    (known,) = manifest.pods
    assert (known.name, known.namespace) == ("a", "default")
    assert known.claims == (PodClaim("mine", "shared"),)
    assert known.container("main").claims == (ContainerClaim("mine", "gpu"),)
    assert [one.claim.key for one in manifest.claims] == [KEY]


def test_a_claim_without_reservations_is_for_the_pods_that_name_it(tmp_path: Path) -> None:
    pods = source(tmp_path)
    (tmp_path / "pods" / "claim.yaml").write_text(documents(claim()))
    (tmp_path / "pods" / "pods.yaml").write_text(documents(pod("a", "u-a"), pod("b", "u-b")))
    pods.poll()
    assert pods.claims[KEY].reserved_for == {"u-a", "u-b"}
    (tmp_path / "pods" / "pods.yaml").write_text(documents(pod("b", "u-b")))
    pods.poll()
    assert pods.claims[KEY].reserved_for == {"u-b"}


@pytest.mark.parametrize(("reserved", "expected"), [([], set()), ([{"resource": "pods", "uid": "z"}], {"z"})])
def test_a_claim_with_reservations_is_for_these_pods_only(tmp_path: Path, reserved: object, expected: set[str]) -> None:
    pods = source(tmp_path)
    (tmp_path / "pods" / "all.yaml").write_text(documents(claim(reservedFor=reserved), pod("a", "u-a")))
    pods.poll()
    assert pods.claims[KEY].reserved_for == expected


def test_the_uid_of_a_claim_without_one_changes_only_with_its_allocation() -> None:
    (first,), (reserved,) = read(claim()).claims, read(claim(reservedFor=[])).claims
    (moved,) = read_manifest(documents(claim()), "other.yaml").claims
    (unallocated,) = read(claim(allocation=None)).claims
    assert first.claim.uid == reserved.claim.uid == moved.claim.uid
    assert first.claim.uid != unallocated.claim.uid
    assert unallocated.claim.allocation is None


def test_a_template_is_resolved_by_the_status_of_the_pod() -> None:
    plain = pod("a", "u-a", resourceClaimTemplateName="gpus")
    assert read(plain).pods[0].generated_claims == {}
    named = {**plain, "status": {"resourceClaimStatuses": [{"name": "mine", "resourceClaimName": "a-mine-x"}]}}
    assert read(named).pods[0].generated_claims == {"mine": "a-mine-x"}


def test_a_claims_extended_resources_are_not_a_plugins() -> None:
    extended = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "uid": "u-a"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"example.com/gpu": 1}}}]},
        "status": {
            "extendedResourceClaimStatus": {
                "resourceClaimName": "shared",
                "requestMappings": [
                    {"containerName": "main", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"}
                ],
            }
        },
    }
    (known,) = read(extended).pods
    assert known.claimed == {("main", "example.com/gpu")}
    assert known.extended_claim is not None
    assert known.extended_claim.claim == "shared"
    assert extended_requests(known, known.container("main")) == ("container-0-request-0",)


def test_a_pod_whose_claims_change_is_replaced(tmp_path: Path) -> None:
    pods = source(tmp_path)
    (tmp_path / "pods" / "a.yaml").write_text(documents(pod("a", "u-a")))
    pods.poll()
    (tmp_path / "pods" / "a.yaml").write_text(documents(pod("a", "u-a", resourceClaimName="other")))
    changes = pods.poll()
    assert [one.uid for one in changes.removed] == [one.uid for one in changes.added] == ["u-a"]


def test_a_claim_that_is_in_two_files_is_refused_in_the_second(tmp_path: Path) -> None:
    pods = source(tmp_path)
    (tmp_path / "pods" / "a.yaml").write_text(documents(claim()))
    pods.poll()
    (tmp_path / "pods" / "b.yaml").write_text(documents(claim(reservedFor=[])))
    (problem,) = pods.poll().problems
    assert str(problem) == "b.yaml: ResourceClaim default/shared is also in a.yaml"
    assert list(pods.claims) == [KEY]


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (claim(allocation=3), "x.yaml:1: status.allocation: expected an object, got 3"),
        (claim(reservedFor={}), "x.yaml:1: status.reservedFor: expected a list, got an object"),
        (
            claim(allocation={"devices": {"results": [{"driver": 7}]}}),
            "x.yaml:1: status.allocation.devices.results[0].driver: expected a string, got 7: put the value in quotes",
        ),
        ({**claim(), "metadata": {"name": "Shared"}}, "x.yaml:1: metadata.name: expected a DNS name"),
        ({**claim(), "apiVersion": "resource.k8s.io/v1beta1"}, "x.yaml:1: apiVersion: expected resource.k8s.io/v1 for"),
        (
            {**pod("a"), "spec": {**pod("a")["spec"], "resourceClaims": []}},
            "x.yaml:1: spec.containers[0].resources.claims[0].name: expected the name of an entry in",
        ),
        (
            {**pod("a"), "spec": {**pod("a")["spec"], "resourceClaims": [{"name": "mine"}, {"name": "mine"}]}},
            "x.yaml:1: spec.resourceClaims[1].name: two entries have the name 'mine'",
        ),
        ({**pod("a"), "status": {"resourceClaimStatuses": 1}}, "x.yaml:1: status.resourceClaimStatuses: expected a"),
        (
            {**pod("a"), "spec": {**pod("a")["spec"], "resourceClaims": [{"name": "mine", "source": {}}]}},
            "x.yaml:1: spec.resourceClaims[0]: expected either resourceClaimName or resourceClaimTemplateName, got nei",
        ),
        (
            {**pod("a"), "spec": {**pod("a")["spec"], "resourceClaims": [{"name": "mine", "resourceClaim": "c"}]}},
            "x.yaml:1: spec.resourceClaims[0].resourceClaim: there is no such field; expected 'resourceClaimName'",
        ),
        (
            {**claim(), "spec": {"allocation": {}}},
            "x.yaml:1: spec.allocation: there is no such field; expected status.allocation",
        ),
        (
            {**claim(), "status": {"allocated": {}}},
            "x.yaml:1: status.allocated: there is no such field; expected 'alloc",
        ),
        (
            claim(allocation={"results": []}),
            "x.yaml:1: status.allocation.results: there is no such field; expected status.allocation.devices.results",
        ),
        (
            claim(allocation={"devices": {"results": [{"driver": "d.com", "device": "a"}]}}),
            "x.yaml:1: status.allocation.devices.results[0].pool: it is missing; a device has a driver, a pool and a n",
        ),
    ],
)
def test_a_mistake_is_reported_with_line_and_field(broken: dict[str, Any], problem: str) -> None:
    with pytest.raises(ManifestError) as refused:
        read_manifest("---\n" + json.dumps(broken), "x.yaml")
    assert str(refused.value).replace("x.yaml:2", "x.yaml:1").startswith(problem)


def test_pods_without_claims_load_nothing_of_dra() -> None:
    script = (
        "import sys; from devicecore.adapters.manifests import read_pods\n"
        "read_pods('{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: main}]}}', 'x')\n"
        "print(*(name for name in sys.modules if 'dra' in name.split('.')))"
    )
    run = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout == "\n"
