"""Replays recorded histories of a kubelet's DRA manager through a `DraManager` with in-memory adapters."""

from collections.abc import Mapping, Sequence
from typing import Any

from devicecore.adapters.memory import MemoryPods, MemoryStore
from devicecore.adapters.memory_dra import MemoryClaims, MemoryDriverInstance, MemoryDriverTransport
from devicecore.domain.dra.answers import PREPARE, UNPREPARE, PrepareResult, UnprepareResult
from devicecore.domain.dra.claims import ClaimCache
from devicecore.domain.dra.devices import DynamicResource
from devicecore.domain.dra.errors import DraError, DriverCallError
from devicecore.domain.dra.health import SECOND, ClaimHealth, ClaimHealthChanged, DraHealth, ReportedHealth
from devicecore.domain.dra.model import ClaimKey, ClaimRef, ClaimUid, DriverName, PreparedDevice, ResourceClaim
from devicecore.domain.dra.objects import resource_claim_of
from devicecore.domain.dra.state_file import decode
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import Pod, PodUid
from devicecore.domain.objects import pod_of
from devicecore.dra_manager import DraManager
from devicecore.ports.dra_driver import DraDriver

Json = Any  # recorded data, whose structure the replay itself checks

STATE_OPS = {"prepare", "unprepare", "reconcile", "restart"}
CODES = (
    *("OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists"),
    *("PermissionDenied", "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented"),
    *("Internal", "Unavailable", "DataLoss", "Unauthenticated"),
)
"""Go's names for gRPC's status codes, by number."""


class ScriptedDriver(DraDriver):
    """The driver in the recordings: it answers with the claim's allocation, unless its script says otherwise."""

    def __init__(self, replay: "Replay", step: Json) -> None:
        self.replay = replay
        self.name = DriverName(step["name"])
        self.instance = step.get("instance", "a")
        self.version = self.offered = self.next_offer = step.get("version", "v1")
        self.is_up = True
        self.timeout = step.get("timeout_ms", 45_000)
        self.script: Json = {}

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        script = self._called(PREPARE, claims, self.script.get("prepare", {}))
        answer = {claim.uid: self._prepared(claim, rule) for claim, rule in self._answered(claims, script)}
        return answer | {uid: PrepareResult((), extra.get("error", "")) for uid, extra in _extra(script).items()}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        script = self._called(UNPREPARE, claims, self.script.get("unprepare", {}))
        answer = {claim.uid: UnprepareResult(rule.get("error", "")) for claim, rule in self._answered(claims, script)}
        return answer | {uid: UnprepareResult(extra.get("error", "")) for uid, extra in _extra(script).items()}

    def _called(self, method: str, claims: Sequence[ClaimRef], script: Json) -> Json:
        assert script.keys() <= {"claims", "extra", "error", "delay_ms"}
        if self.offered != self.version:
            service = f"unknown service k8s.io.kubelet.pkg.apis.dra.{self.offered}.DRAPlugin"
            raise DriverCallError(method, "Unimplemented", service)
        refs = sorted((claim.key.namespace, claim.key.name, claim.uid) for claim in claims)
        self.replay.calls.append((self.name, self.instance, self.version, method, tuple(refs)))
        if script.get("delay_ms", 0) > self.timeout:
            raise DriverCallError(method, "DeadlineExceeded", "context deadline exceeded", unanswered=True)
        if "error" in script:
            raise DriverCallError(method, CODES[script["error"]["code"]], script["error"]["message"])
        return script

    def _answered(self, claims: Sequence[ClaimRef], script: Json) -> list[tuple[ClaimRef, Json]]:
        """Return the claims that the script does not leave out of the answer, each with the script's rule for it."""
        rules = script.get("claims", {})
        found = [(c, rules.get(c.uid) or rules.get(c.key.name) or rules.get("*") or {}) for c in claims]
        assert all(rule.keys() <= {"error", "missing", "devices"} for _, rule in found)
        return [(claim, rule) for claim, rule in found if not rule.get("missing")]

    def _prepared(self, claim: ClaimRef, rule: Json) -> PrepareResult:
        if rule.get("error"):
            return PrepareResult((), rule["error"])
        if "devices" in rule:
            return PrepareResult(tuple(map(_scripted_device, rule["devices"])))
        own = [result for result in self.replay.allocations.get(claim.uid, ()) if result.driver == self.name]
        return PrepareResult(
            tuple(
                PreparedDevice(
                    result.pool,
                    result.device,
                    result.share_id,
                    (result.request.partition("/")[0],),
                    (f"{self.name}/dev={claim.uid}-{result.device}",),
                )
                for result in own
            )
        )


def _extra(script: Json) -> Json:
    return script.get("extra", {})


def _scripted_device(row: Json) -> PreparedDevice:
    assert row.keys() <= {"requests", "pool", "device", "cdi", "share_id"}
    requests, ids = row.get("requests"), row.get("cdi")
    return PreparedDevice(
        row["pool"], row["device"], row.get("share_id"), tuple(requests or ()) or None, tuple(ids or ()) or None
    )


class Replay:
    """Plays one history step by step. `play` returns a step's outcome in the format of the recording."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.store, self.health_store = MemoryStore(), MemoryStore()
        self.pods = MemoryPods(ready=False)
        self.source = MemoryClaims()
        self.allocations: dict[ClaimUid, Any] = {}
        self.manifests: dict[PodUid, Json] = {}
        self.instances: dict[tuple[str, str], tuple[ScriptedDriver, MemoryDriverInstance]] = {}
        self.calls: list[Json] = []
        self.updates: list[list[str]] = []
        self._start()

    def _start(self) -> None:
        self.transport = MemoryDriverTransport()
        self.manager = DraManager(
            self.transport,
            self.source,
            self.store,
            pods=self.pods,
            health_store=self.health_store,
            observers=[self._updated],
            clock=lambda: self.now,
            wall_clock=lambda: int(self.now * SECOND),
        )
        self.manager.start()

    def _updated(self, notification: ClaimHealthChanged) -> None:
        self.updates.append(list(notification.pods))

    def play(self, step: Json) -> Json:
        self.calls.clear()
        self.updates.clear()
        try:
            outcome = {"ok": True, **getattr(self, step["op"])(step)}
        except DeviceCoreError as error:
            outcome = {"ok": False, "error": str(error)}
        outcome["calls"] = sorted(self.calls)
        if step["op"] in STATE_OPS:
            prepared = [str(key) for key, claim in self.manager.claims.claims.items() if claim.is_prepared]
            outcome |= {"state": self.state(), "prepared": sorted(prepared)}
        return outcome

    def state(self) -> ClaimCache:
        """Return the claims in the file, after checking that they are those in the manager's memory."""
        saved = ClaimCache() if self.store.blob is None else decode(self.store.blob).cache
        in_memory = {key: (claim.uid, claim.pods, claim.drivers) for key, claim in self.manager.claims.claims.items()}
        assert {key: (claim.uid, claim.pods, claim.drivers) for key, claim in saved.claims.items()} == in_memory
        return saved

    # --- drivers ------------------------------------------------------------------------------------------------------

    def driver_up(self, step: Json) -> Json:
        key = step["name"], step.get("instance", "a")
        driver = ScriptedDriver(self, step)
        if key in self.instances and self.instances[key][0].is_up:
            # The same process registers again, and may announce a different version.
            driver = self.instances[key][0]
            driver.next_offer = step.get("version", "v1")
        else:
            self.instances.pop(key, None)  # after the manager restarts, a new process registers last
        self.instances[key] = driver, self._register(driver)
        return {}

    def _register(self, driver: ScriptedDriver) -> MemoryDriverInstance:
        endpoint = f"{{DIR}}/plugins/{driver.name}/{driver.instance}.sock"
        instance = self.transport.register(driver, endpoint, [f"{driver.next_offer}.DRAPlugin"])
        driver.offered = driver.next_offer
        return instance

    def driver_script(self, step: Json) -> Json:
        self.instances[step["name"], step.get("instance", "a")][0].script = step["script"]
        return {}

    def driver_down(self, step: Json) -> Json:
        key = step["name"], step["instance"]
        driver, instance = self.instances[key]
        driver.is_up = step["mode"] == "deregister_only"
        if step["mode"] == "kill":
            instance.disconnect()
        else:
            assert step["mode"] in {"deregister", "deregister_only"}
            instance.remove()
        return {}

    def health(self, step: Json) -> Json:
        _, instance = self.instances[step["name"], "a"]
        if step.get("end"):
            instance.end_health()
            return {"updates": list(self.updates)}
        instance.report(
            *(
                ReportedHealth(
                    row["Pool"],
                    row["Device"],
                    HEALTHS.get(row["Health"], DraHealth.UNKNOWN),
                    row["Timeout"],
                    row["Message"],
                )
                for row in step["devices"]
            )
        )
        return {"applied": True, "updates": list(self.updates)}

    # --- objects ------------------------------------------------------------------------------------------------------

    def put_claim(self, step: Json) -> Json:
        claim: ResourceClaim = resource_claim_of(step["object"])
        self.source.put(claim)
        self.allocations[claim.uid] = claim.allocation or ()
        return {}

    def delete_claim(self, step: Json) -> Json:
        self.source.claims.pop(ClaimKey(step["namespace"], step["name"]), None)
        return {}

    def put_pod(self, step: Json) -> Json:
        self.manifests[pod_of(step["object"]).uid] = step["object"]
        return {}

    def _pod(self, step: Json) -> Pod:
        return pod_of(self.manifests[step["pod"]])

    # --- pods ---------------------------------------------------------------------------------------------------------

    def prepare(self, step: Json) -> Json:
        self.manager.prepare(self._pod(step))
        return {}

    def unprepare(self, step: Json) -> Json:
        self.manager.unprepare(self._pod(step).uid)
        return {}

    def all_resources(self, step: Json) -> Json:
        pod = self._pod(step)
        containers: dict[str, Json] = {}
        for container in pod.init_containers + pod.containers:
            try:
                ids = self.manager.claim_devices(pod, container.name)
                containers[container.name] = {"ok": True, "cdi": list(ids)}
            except DraError as error:
                containers[container.name] = {"ok": False, "error": str(error)}
        return {"containers": containers}

    def pod_resources(self, step: Json) -> Json:
        try:
            found = self.manager.dynamic_resources(self._pod(step), step["container"])
        except DraError as error:
            return {"dynamic_resources": [], "logged_error": str(error)}
        return {"dynamic_resources": [_dynamic_resource(resource) for resource in found]}

    def update_status(self, step: Json) -> Json:
        found = self.manager.allocated_resources_status(self._pod(step))
        statuses = {
            row["name"]: row.get("allocatedResourcesStatus", [])
            for row in self.manifests[step["pod"]]["status"].get("containerStatuses", [])
        }
        for name, rows in found.items():
            ours = [_status(row) for row in rows if row.resources]
            others = [row for row in statuses.get(name, []) if row["name"] not in {row.name for row in rows}]
            statuses[name] = others + ours
        return {"allocatedResourcesStatus": statuses}

    def pod_might_need(self, step: Json) -> Json:
        return {"value": self.manager.might_need_unprepare(PodUid(step["uid"]))}

    # --- time ---------------------------------------------------------------------------------------------------------

    def sleep(self, step: Json) -> Json:
        self.now += step["ms"] / 1_000
        return {}

    def reconcile(self, step: Json) -> Json:
        self.pods.active = set(map(PodUid, step["active"]))
        self.pods.ready = step["ready"]
        self.manager.reconcile()
        return {}

    def restart(self, step: Json) -> Json:
        """Start a new manager, as after SIGKILL: the old manager is not stopped."""
        self._start()
        again = step["reregister"]
        for key, (driver, _) in self.instances.items():
            if driver.is_up and (again is True or (again and driver.name in again)):
                self.instances[key] = driver, self._register(driver)
        return {}


HEALTHS = {"HEALTHY": DraHealth.HEALTHY, "UNHEALTHY": DraHealth.UNHEALTHY}


def _dynamic_resource(resource: DynamicResource) -> Json:
    return {
        "claim": resource.claim.name,
        "namespace": resource.claim.namespace,
        "resources": [
            {"driver": driver, "pool": device.pool, "device": device.name, "cdi": list(device.cdi_ids or ())}
            | ({} if device.share_id is None else {"share_id": device.share_id})
            for driver, device in resource.devices
        ],
    }


def _status(row: ClaimHealth) -> Json:
    return {
        "name": row.name,
        "resources": [
            {
                "resourceID": item.resource_id,
                "health": item.health.value,
                **({"message": item.message} if item.message else {}),
            }
            for item in row.resources
        ],
    }
