"""`NodeClaims`, which connects pods with claims to DRA drivers, and how its state is shown."""

import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from devicecore_tools.command.kubelet.view import render
from devicecore_tools.node import claim_releases, engine, lanes
from devicecore_tools.node.dra import NodeClaimSource
from devicecore_tools.node.state import KubeletState
from tests.claims import DRIVER, claim, pod
from tests.command.node import GPU, PATIENCE, Node

from devicecore.adapters.memory import MemoryStore
from devicecore.adapters.pod_resources import get_pod, list_pods
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.errors import ClaimSourceError
from devicecore.domain.dra.health import SECOND, DraHealth, HealthCache, ReportedHealth
from devicecore.domain.dra.model import ClaimKey, ClaimRef, ClaimUid, DriverName, PreparedDevice
from devicecore.domain.dra.objects import resource_claim_of
from devicecore.domain.dra.state_file import ClaimEntry, decode, encode
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import DeviceId
from devicecore.domain.objects import pod_of
from devicecore.dra_manager import DraManager
from devicecore.dra_manager.health_record import HealthRecord
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices

Patch = pytest.MonkeyPatch
OTHER = "nic.example.com"


class CountingDriver:
    """A driver that records its calls, and can be told to refuse them or to leave them unanswered."""

    def __init__(self, name: str = DRIVER) -> None:
        self.name = DriverName(name)
        self.calls: list[tuple[str, str]] = []  # pairs of a method and a claim's name
        self.error = ""
        self.answers = threading.Event()
        self.answers.set()

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        self._called("prepare", claims)
        return {claim.uid: PrepareResult((self._device(claim),), self.error) for claim in claims}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        self._called("unprepare", claims)
        return {claim.uid: UnprepareResult(self.error) for claim in claims}

    def _device(self, claim: ClaimRef) -> PreparedDevice:
        return PreparedDevice("n1", "dev-0", None, ("gpu",), (f"{self.name}/device={claim.key.name}",))

    def _called(self, method: str, claims: Sequence[ClaimRef]) -> None:
        self.calls += [(method, claim.key.name) for claim in claims]
        self.answers.wait(PATIENCE)


class CdiPlugin(SimulatedPlugin):
    """A device plugin that returns CDI names."""

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        return ContainerAllocateResponse(cdi_devices=tuple(f"{GPU}={device}" for device in devices))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        yield node


def phases(state: KubeletState) -> dict[str, str]:
    return {one.name: one.phase for one in state.dra.claims}


def test_a_claim_is_prepared_once_for_its_pods_and_released_after_the_last(node: Node) -> None:
    node.register(driver := CountingDriver())
    node.put("claim", claim())
    node.put("a", pod("a"))
    node.put("b", pod("b"))
    node.wait_for_phases(a="Running", b="Running")
    node.remove("a")
    state = node.wait_until_settled()
    assert driver.calls == [("prepare", "shared")]
    assert phases(state) == {"shared": "prepared"}
    node.remove("b")
    state = node.wait_until_settled()
    assert driver.calls == [("prepare", "shared"), ("unprepare", "shared")]
    assert state.dra.claims == ()
    blob = node.claim_store.load()
    assert blob is not None
    assert decode(blob).entries == ()


def test_a_pod_waits_for_its_driver_and_runs_as_soon_as_it_registers(node: Node) -> None:
    node.put("all", claim(), pod("a"))
    reason = f"prepare dynamic resources: DRA driver {DRIVER} is not registered"
    state = node.wait_until(lambda state: state.pods and state.pods[0].reason == reason)
    (one,) = state.dra.claims
    assert (one.key, one.phase, one.reason, one.uid) == ("default/shared", "pending", reason, None)
    assert f"pod default/a: {reason}" in state.waits_for
    node.register(CountingDriver())
    node.wait_for_phases(a="Running")


def test_a_driver_that_refuses_is_asked_again_only_when_something_has_changed(node: Node) -> None:
    driver, other = CountingDriver(), CountingDriver(OTHER)
    driver.error = "no power"
    instance = node.register(driver)
    node.put("all", claim(), pod("a"))
    state = node.wait_until(lambda state: "no power" in state.pods[0].reason)
    expected = "prepare dynamic resources: NodePrepareResources failed for ResourceClaim shared: no power"
    assert state.pods[0].reason == state.dra.claims[0].reason == expected
    node.register(other)  # another driver does not affect the claim
    node.put("other", claim("other", OTHER), pod("b", "other"))
    node.wait_for_phases(b="Running")
    assert driver.calls == [("prepare", "shared")]
    driver.error = ""
    instance.remove()
    node.register(driver)
    node.wait_for_phases(a="Running")
    assert driver.calls == [("prepare", "shared")] * 2


@pytest.fixture
def few_threads(monkeypatch: Patch) -> None:
    """Limit each kind of thread to 20, in nodes that are created afterwards."""
    monkeypatch.setattr(lanes, "MAX_THREADS", 20)


@pytest.mark.usefixtures("few_threads")
def test_a_driver_that_hangs_delays_no_other_pod(node: Node) -> None:
    hung = CountingDriver()
    hung.answers.clear()
    node.register(hung)
    node.register(CountingDriver(OTHER))
    node.transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 50)))
    names = [f"hung-{number}" for number in range(30)]
    node.put("hung", *(one for name in names for one in (claim(name), pod(name, name))))
    while len(hung.calls) < lanes.THREADS_OF_LONG:
        node.turn()
    node.write("plain", gpu=1)
    node.put("other", claim("other", OTHER), pod("other", "other"))
    state = node.wait_for_phases(plain="Running", other="Running")
    assert not any(one.phase == "Running" for one in state.pods if one.pod.name.startswith("hung"))
    hung.answers.set()
    node.wait_until_settled()
    assert sorted(hung.calls) == sorted(("prepare", name) for name in names)
    hung.answers.clear()
    node.remove("hung")
    node.turn()
    node.remove("other")
    node.wait_until(lambda state: not any(one.name == "other" for one in state.dra.claims))
    hung.answers.set()
    node.wait_until_settled()


@pytest.mark.usefixtures("few_threads")
def test_pods_whose_drivers_are_not_known_delay_no_other(node: Node) -> None:
    hung = CountingDriver()
    hung.answers.clear()
    node.register(hung)
    node.register(CountingDriver(OTHER))
    names = [f"hung-{number}" for number in range(30)]
    for name in names:  # only the API server has the claims
        made = resource_claim_of({**claim(name), "metadata": {"name": name, "uid": f"c-{name}"}})
        node.api_claims.put(evolve(made, reserved_for=frozenset({f"u-{name}"})))
    node.put("hung", *(pod(name, name) for name in names))
    while len(hung.calls) < lanes.MAX_THREADS:
        node.turn()
    node.put("other", claim("other", OTHER), pod("other", "other"))
    node.wait_for_phases(other="Running")
    assert len(hung.calls) == lanes.MAX_THREADS  # the hanging calls still occupy all threads
    hung.answers.set()
    node.wait_until_settled()
    assert sorted(hung.calls) == sorted(("prepare", name) for name in names)


def test_a_claim_in_a_manifest_has_to_be_allocated_there(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """A kubelet's own reason, `not allocated`, does not say that no scheduler will do this."""
    bare = claim("bare")
    del bare["status"]["allocation"]
    node.put("bare", bare)
    node.put("a", pod("a", "bare"))
    node.wait_until(lambda state: [one.reason[-13:] for one in state.pods] == ["not allocated"])
    node.put("b", pod("b", "bare"))
    node.wait_until(lambda state: [one.reason[-13:] for one in state.pods] == ["not allocated"] * 2)
    says = "claim default/bare is in a manifest, where no scheduler allocates it: write its status.allocation"
    assert caplog.messages.count(says) == 1


def test_a_claim_in_no_manifest_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    source = NodeClaimSource(None, None)
    for _ in range(2):
        with pytest.raises(ClaimSourceError, match='"gone" not found'):
            source.get(ClaimKey("default", "gone"))
    says = "claim default/gone is in no manifest: write a ResourceClaim with this name and its status.allocation"
    assert caplog.messages == [says]


def test_a_pod_waits_for_the_claim_of_its_template(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.register(CountingDriver())
    waiting = pod("a", resourceClaimTemplateName="gpus")
    made = claim("a-mine", reservedFor=[{"resource": "pods", "name": "a", "uid": "u-a"}])
    node.put("claim", made)
    node.put("a", waiting)
    node.wait_until(lambda state: state.pods and "not created yet" in state.pods[0].reason)
    (shown,) = node.turn().pods
    assert shown.reason == 'prepare dynamic resources: pod "default/a": ResourceClaim not created yet'
    (said,) = [text for text in caplog.messages if "from its template" in text]
    assert said.startswith("pod default/a: nothing creates the claim mine from its template for a pod in a manifest: ")
    statuses = {"resourceClaimStatuses": [{"name": "mine", "resourceClaimName": "a-mine"}]}
    node.put("a", {**waiting, "status": statuses})
    node.wait_until(lambda state: "Pod is not owner" in state.pods[0].reason)
    made["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "a", "uid": "u-a", "controller": True}]
    node.put("claim", made)
    node.wait_for_phases(a="Running")
    assert [text for text in caplog.messages if "from its template" in text] == [said]


def test_a_request_without_a_limit_is_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """An API server refuses such a pod. A kubelet's device manager only reads limits."""
    node.transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 1)))
    both = pod("both", limits={GPU: 1})
    both["spec"]["containers"][0]["resources"]["requests"] = {GPU: 1}
    only = pod("only", limits={})
    only["spec"]["containers"][0]["resources"]["requests"] = {GPU: 1, "cpu": 1}
    node.put("all", claim(), both, only)
    node.wait_until(lambda state: len(state.pods) == 2)
    (said,) = [text for text in caplog.messages if "request" in text]
    assert said.startswith(f"pod default/only: the request of container main for {GPU} has no effect: write the same")


def test_a_claim_on_the_api_server_is_read_again(node: Node, monkeypatch: Patch) -> None:
    monkeypatch.setattr(engine, "_CLAIMS_LOOK", 0.0)
    node.register(driver := CountingDriver())
    node.put("a", pod("a"))
    reason = 'prepare dynamic resources: fetch ResourceClaim shared: resourceclaims.resource.k8s.io "shared" not found'
    node.wait_until(lambda state: state.pods and state.pods[0].reason == reason)
    made = resource_claim_of({**claim(), "metadata": {"name": "shared", "uid": "c-1"}})
    node.api_claims.put(made)
    node.wait_until(lambda state: "is not allowed to use" in state.pods[0].reason)
    assert driver.calls == []
    node.api_claims.put(evolve(made, reserved_for=frozenset({"u-a"})))
    node.wait_for_phases(a="Running")
    node.put("claim", claim(reservedFor=[]))  # from now on, the claim in the manifest takes precedence
    node.put("b", pod("b"))
    node.wait_until(lambda state: len(state.pods) == 2 and "is not allowed to use" in state.pods[1].reason)


def test_claims_names_come_before_plugins_names(node: Node) -> None:
    node.register(CountingDriver())
    node.transport.connect(CdiPlugin(GPU, simulated_devices("gpu", 1)))
    node.put("all", claim(), pod("a", limits={GPU: 1}))
    state = node.wait_for_phases(a="Running")
    given: Any = state.to_json("n1")["pods"]
    assert given[0]["containers"]["main"]["cdi_devices"] == [f"{DRIVER}/device=shared", f"{GPU}=gpu-0"]
    assert given[0]["containers"]["main"]["claims"] == {"shared": [f"{DRIVER}/n1/dev-0"]}


def test_an_extended_resource_of_a_claim_needs_no_plugin(node: Node) -> None:
    node.register(CountingDriver())
    mapping = {"containerName": "main", "resourceName": GPU, "requestName": "gpu"}
    extended = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "uid": "u-a"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: 1}}}, {"name": "side"}]},
        "status": {"extendedResourceClaimStatus": {"resourceClaimName": "shared", "requestMappings": [mapping]}},
    }
    node.put("all", claim(), extended)
    state = node.wait_for_phases(a="Running")
    assert state.resources == []
    given: Any = state.to_json("n1")["pods"]
    names = {name: one["cdi_devices"] for name, one in given[0]["containers"].items()}
    assert names == {"main": [f"{DRIVER}/device=shared"], "side": []}
    (listed,) = list_pods(node.engine.snapshot()).pod_resources
    assert [len(container.dynamic_resources) for container in listed.containers] == [1, 0]


def test_a_release_that_fails_is_tried_again_and_holds_back_a_pod_of_that_uid(node: Node, monkeypatch: Patch) -> None:
    monkeypatch.setattr(claim_releases, "_RETRY", 0.0)
    node.register(driver := CountingDriver())
    node.put("claim", claim())
    node.put("a", pod("a"))
    node.wait_for_phases(a="Running")
    driver.error = "busy"
    node.remove("a")
    state = node.wait_until(lambda state: any(one.reason for one in state.dra.claims))
    (shown,) = state.dra.claims
    problem = "unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim shared: busy"
    assert (shown.phase, shown.reason) == ("releasing", problem)
    assert f"the release of the claims held by pod default/a: {problem}" in state.waits_for
    node.put("a", pod("a"))
    tried = len(driver.calls)
    node.wait_until(lambda _: len(driver.calls) > tried)
    assert node.turn().pods[0].phase == "Pending"
    driver.error = ""
    node.wait_for_phases(a="Running")
    (first, *releases, last) = driver.calls
    assert (first, last) == (("prepare", "shared"), ("prepare", "shared"))
    assert set(releases) == {("unprepare", "shared")}


def test_a_claim_with_a_different_allocation_waits_until_the_older_one_is_released(node: Node) -> None:
    node.register(driver := CountingDriver())
    node.put("claim", claim())
    node.put("a", pod("a"))
    before = node.wait_for_phases(a="Running").dra.claims[0].uid
    another = claim()
    another["status"]["allocation"]["devices"]["results"][0]["device"] = "dev-1"
    node.put("claim", another)
    node.put("b", pod("b"))
    state = node.wait_until(lambda state: len(state.pods) == 2 and "old ResourceClaim" in state.pods[1].reason)
    assert f"same name shared and different UID {before} still exists" in state.pods[1].reason
    node.remove("a")
    state = node.wait_for_phases(b="Running")
    assert driver.calls == [("prepare", "shared"), ("unprepare", "shared"), ("prepare", "shared")]
    assert state.dra.claims[0].uid != before


def test_a_pod_that_goes_while_its_claim_is_prepared_leaves_nothing(node: Node) -> None:
    driver = CountingDriver()
    driver.answers.clear()
    node.register(driver)
    node.put("claim", claim())
    node.put("a", pod("a"))
    while not driver.calls:
        node.turn()
    node.remove("a")
    node.turn()
    driver.answers.set()
    state = node.wait_until_settled()
    assert driver.calls == [("prepare", "shared"), ("unprepare", "shared")]
    assert (state.pods, state.dra.claims) == ((), ())


def test_after_a_restart_a_running_pod_keeps_its_claim_and_a_pod_that_went_releases_it(tmp_path: Path) -> None:
    store, claim_store, driver = MemoryStore(), MemoryStore(), CountingDriver()
    with Node(tmp_path, store, claim_store) as node:
        node.register(driver)
        node.put("all", claim(), claim("own"), pod("a"), pod("b", "own"))
        node.wait_for_phases(a="Running", b="Running")
    assert sorted(driver.calls) == [("prepare", "own"), ("prepare", "shared")]
    driver.calls.clear()
    (tmp_path / "manifests" / "all.yaml").unlink()
    with Node(tmp_path, store, claim_store) as node:
        node.put("all", claim(), pod("a"))
        node.register(driver)
        state = node.wait_until(lambda state: driver.calls and len(state.dra.claims) == 1)
        assert driver.calls == [("unprepare", "own")]
        assert phases(state) == {"shared": "prepared"}
        assert state.pods[0].phase == "Running"


def test_after_a_restart_a_claim_waits_for_its_driver_to_be_released(tmp_path: Path) -> None:
    claim_store, driver = MemoryStore(), CountingDriver()
    with Node(tmp_path, claim_store=claim_store) as node:
        node.register(driver)
        node.put("all", claim(), pod("a"))
        node.wait_for_phases(a="Running")
    (tmp_path / "manifests" / "all.yaml").unlink()
    with Node(tmp_path, claim_store=claim_store) as node:
        node.claims.start()
        problem = f"unprepare dynamic resources: DRA driver {DRIVER} is not registered"
        state = node.wait_until(lambda state: state.dra.claims[0].reason == problem)
        assert f"the release of the claims held by pod with UID u-a: {problem}" in state.waits_for
        node.register(driver)  # the release is tried again at once
        node.wait_until_settled()
    assert driver.calls == [("prepare", "shared"), ("unprepare", "shared")]


class CountingStore(MemoryStore):
    """A store that counts its saves."""

    saves = 0

    def save(self, blob: bytes) -> None:
        self.saves += 1
        super().save(blob)


def test_many_pods_that_went_before_the_start_are_released_with_a_few_writes(tmp_path: Path) -> None:
    """Each save writes the whole file, so one save per pod would take quadratic time."""
    pods = tuple(f"u-{number}" for number in range(2_000))
    store = CountingStore(encode([ClaimEntry("u-shared", "shared", "default", pods)]))
    with Node(tmp_path, claim_store=store) as node:
        node.claims.start()
        node.wait_until(lambda state: not state.dra.claims)
        node.wait_until_settled()
    assert store.saves < 10


def entries(driver: str, number: int) -> list[ClaimEntry]:
    """Return claims whose pods are all gone. The claims have devices unless `driver` is empty."""
    names = (f"{driver or 'none'}-{one}" for one in range(number))
    return [ClaimEntry(f"c-{n}", n, "default", (f"u-{n}",), {DriverName(driver): ()} if driver else {}) for n in names]


def test_a_driver_that_hangs_delays_no_report_of_many_releases(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(claim_releases, "_LOOK", 0)
    hung = CountingDriver()
    hung.answers.clear()
    gone = [*entries(DRIVER, 40), *entries(OTHER, 40), *entries("", 40)]
    with Node(tmp_path, claim_store=MemoryStore(encode(gone))) as node:
        node.register(hung)
        node.register(CountingDriver(OTHER))
        while len(waits_for := node.turn().waits_for) != 40:
            assert len(waits_for) > 40
        assert all(DRIVER in one for one in waits_for)
        hung.answers.set()
        node.wait_until_settled()


def test_releases_that_are_tried_again_read_the_claims_once(tmp_path: Path, monkeypatch: Patch) -> None:
    read, reads = vars(DraManager)["claims"].fget, []

    def claims(manager: DraManager) -> object:
        reads.append(threading.current_thread())
        return read(manager)

    with Node(tmp_path, claim_store=MemoryStore(encode(entries(DRIVER, 40)))) as node:
        node.claims.start()
        node.wait_until(lambda state: sum("not registered" in one for one in state.waits_for) == 40)
        node.drivers.register(CountingDriver())
        monkeypatch.setattr(DraManager, "claims", property(claims))
        node.claims.advance()
        assert reads.count(threading.main_thread()) < 10
        node.wait_until_settled()


@pytest.mark.parametrize("error", ["", "RuntimeError"])
def test_pods_that_are_not_released_together_are_released_later(tmp_path: Path, monkeypatch: Patch, error: str) -> None:
    def reconcile(_: DraManager) -> Mapping[None, DeviceCoreError]:
        if error:
            raise RuntimeError
        return {}  # an empty answer, as if the pod sources were not ready yet

    monkeypatch.setattr(DraManager, "reconcile", reconcile)
    hung = CountingDriver()
    hung.answers.clear()
    with Node(tmp_path, claim_store=MemoryStore(encode([*entries(DRIVER, 1), *entries("", 40)]))) as node:
        node.register(hung)
        if error:
            node.wait_until(lambda state: sum(one.endswith(f": {error}") for one in state.waits_for) == 40)
            assert node.claims.next_due < math.inf
        else:
            node.wait_until(lambda state: len(state.dra.claims) == len(state.waits_for) == 1)
        hung.answers.set()


def test_claims_that_were_lost_are_prepared_again_before_their_pod_counts_as_running(tmp_path: Path) -> None:
    store, driver = MemoryStore(), CountingDriver()
    for _ in range(2):  # the second run starts without the claims file
        with Node(tmp_path, store) as node:
            node.register(driver)
            node.put("all", claim(), pod("a"))
            node.wait_for_phases(a="Running")
    assert driver.calls == [("prepare", "shared")] * 2


def test_pod_resources_lists_the_devices_of_claims(node: Node) -> None:
    node.register(CountingDriver())
    node.put("all", claim(), pod("a"), pod("b", "missing"))
    node.wait_for_phases(a="Running")
    (listed,) = list_pods(node.engine.snapshot()).pod_resources
    (found,) = listed.containers[0].dynamic_resources
    assert (found.claim_name, found.claim_namespace) == ("shared", "default")
    (device,) = found.claim_resources
    assert (device.driver_name, device.pool_name, device.device_name) == (DRIVER, "n1", "dev-0")
    assert [one.name for one in device.cdi_devices] == [f"{DRIVER}/device=shared"]
    assert not device.HasField("share_id")
    answer = get_pod(node.engine.snapshot(), "a", "default")
    assert answer is not None
    assert answer.pod_resources == listed


def test_a_tick_looks_at_claimed_devices_only_if_a_report_came_or_expired(node: Node, monkeypatch: Patch) -> None:
    looked: list[str] = []
    health, times = HealthCache.health, [SECOND]

    def counted(self: HealthCache, driver: DriverName, pool: str, name: str, now: int) -> tuple[DraHealth, str]:
        looked.append(name)
        return health(self, driver, pool, name, now)

    monkeypatch.setattr(HealthCache, "health", counted)
    monkeypatch.setattr(DraManager, "now", property(lambda _: times[0]))
    monkeypatch.setattr(HealthRecord, "now", property(lambda _: times[0]))
    instance = node.register(CountingDriver())
    node.put("all", claim(), pod("a"))
    node.wait_for_phases(a="Running")
    instance.report(ReportedHealth("n1", "dev-0", DraHealth.HEALTHY, 60))
    found = []
    for seconds in (0, 0, 60, 1, 0, -61, 0):
        times[0] += seconds * SECOND
        looked.clear()
        before = node.claims.version
        node.claims.tick()
        found.append((len(looked), node.claims.version != before))
    assert found == [(1, True), (0, False), (0, False), (1, True), (0, False), (1, True), (0, False)]


def test_the_health_of_claimed_devices_is_shown_and_escaped(node: Node) -> None:
    instance = node.register(CountingDriver())
    node.put("all", claim(), pod("a"))
    node.wait_for_phases(a="Running")
    before = node.engine.version
    instance.report(ReportedHealth("n1", "dev-0", DraHealth.UNHEALTHY, 60, "too \x1b[31mhot"))
    assert node.engine.version != before
    state = node.turn()
    shown: Any = state.to_json("n1")["claims"]
    (device,) = shown[0]["devices"]
    assert (device["health"], device["message"]) == ("Unhealthy", "too \\x1b[31mhot")
    text = render(state, "n1", (), 200, None).plain
    assert f"a default/shared  {DRIVER} n1/dev-0 (unhealthy: too \\x1b[31mhot)" in text
    assert f"claims  1 prepared   drivers: {DRIVER}" in text
    assert "main  claim shared: n1/dev-0" in text
    instance.disconnect()
    assert f"drivers: {DRIVER} (not connected)" in render(node.turn(), "n1", (), 200, None).plain


def test_text_of_drivers_is_bounded_and_escaped(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    hostile = "\x1b]0;owned\x07\nFORGED\u202e" + "x" * 3_000

    class Hostile(CountingDriver):
        def _device(self, claim: ClaimRef) -> PreparedDevice:
            return PreparedDevice(hostile, hostile, hostile, None, (hostile,) * 70)

    driver, other = Hostile(), CountingDriver(OTHER)
    other.error = hostile
    instance = node.register(driver)
    node.register(other)
    node.put("all", claim(), pod("a"), claim("other", OTHER), pod("b", "other"))
    node.wait_for_phases(a="Running")
    instance.report(ReportedHealth(hostile, hostile, DraHealth.UNHEALTHY, 60, hostile))
    driver.error = hostile
    node.wait_until(lambda state: "owned" in state.pods[1].reason)
    node.remove("all")
    state = node.wait_until(lambda state: any("owned" in one.reason for one in state.dra.claims))
    document = json.dumps(state.to_json("n1"), ensure_ascii=False)
    outputs = document, render(state, "n1", (), 1_000, None).plain, caplog.text
    assert all("owned" in output for output in outputs)
    for output in outputs:
        assert "\x1b" not in output
        assert "\nFORGED" not in output
        assert len(output) < 1_000_000
    assert "\u202e" not in outputs[1] + outputs[2]
    assert len(caplog.records) < 50  # fewer than one record for each of the 70 names


@pytest.mark.parametrize("changes", [1, 3, 5])
def test_the_version_differs_after_any_number_of_changes(changes: int, node: Node) -> None:
    """New values may have the same `id` as earlier values that no longer exist."""
    node.register(CountingDriver())
    node.put("claim", claim())
    node.put("a", pod("a"))
    node.wait_for_phases(a="Running")
    manager = node.claims.manager
    assert manager is not None
    mine = pod_of(pod("a"))
    for _ in range(20):
        version, seen = node.claims.version, manager.claims.pods
        assert node.claims.version == version
        for _ in range(changes):
            if manager.claims.pods:
                manager.unprepare(mine.uid)
            else:
                manager.prepare(mine)
        assert manager.claims.pods != seen
        assert node.claims.version != version


def test_the_view_with_claims_fits_any_size(node: Node) -> None:
    node.register(CountingDriver())
    node.put("all", *(claim(f"c-{number}") for number in range(9)), *(pod(f"p-{at}", f"c-{at}") for at in range(9)))
    node.wait_for_phases(**{f"p-{number}": "Running" for number in range(9)})
    state = node.turn()
    for height in range(1, 40):
        lines = render(state, "n1", ("event",) * 9, 60, height).plain.split("\n")
        assert len(lines) <= height
        assert max(map(len, lines)) <= 60


def test_without_claims_and_drivers_nothing_of_dra_is_loaded_or_written(tmp_path: Path) -> None:
    (tmp_path / "pods").mkdir()
    text = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: main}]}}"
    (tmp_path / "pods" / "a.yaml").write_text(text)
    arguments = ["kubelet", "--root", str(tmp_path), "--manifests", str(tmp_path / "pods"), "--once", "--wait", "0"]
    script = (
        "import atexit, runpy, sys\n"
        "command = 'devicecore_tools.command.dra_driver'\n"
        "names = lambda: (name for name in sys.modules if '.dra' in name and name != command)\n"
        "atexit.register(lambda: print('loaded', *names()))\n"
        f"sys.argv = {json.dumps(['devicecore', *arguments])}\n"
        "runpy.run_module('devicecore_tools', run_name='__main__')"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, run.stderr
    assert "default/a" in run.stdout
    assert "loaded" in run.stdout.splitlines()
    assert {"dra_manager_state", "dra_health_state"}.isdisjoint(path.name for path in tmp_path.iterdir())
