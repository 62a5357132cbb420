"""Drivers with one fault in how they prepare claims.

Law: each driver fails the checks that it names, and no others except those in `breaks_too`.
"""

import http.client
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc

from devicecore_tools.conformance.faults.good_driver import (
    ClaimError,
    GoodDriver,
    Json,
    Message,
    claim_path,
    dra,
    fails,
    handlers_of,
    write,
)

ATTACHED = "example.org/attached"
"""A binding condition."""


@fails("prepares-a-claim")
class NoDevices(GoodDriver):
    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        return devices if len(devices) > 1 else []


@fails("prepares-each-device")
class BrokenDevice(GoodDriver):
    must_not_fail = (
        "survives-a-kill-at-any-moment",
        "prepares-one-claim-in-several-calls-at-once",
        "unprepares-a-deleted-claim",
        "reports-the-health-of-each-device",
    )

    def results_of(self, allocation: Json) -> list[Json]:
        results = super().results_of(allocation)
        if any(one["device"] == "chip-6" for one in results):
            raise ClaimError("chip-6 has no firmware")
        return results


@fails("answers-for-each-prepared-claim")
class OneEntryOnly(GoodDriver):
    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        answer = super().prepare(request, context)
        if len(request.claims) > 3:
            del answer.claims[request.claims[0].uid]
        return answer


@fails("answers-for-each-prepared-claim", "separates-good-claims-from-bad-ones")
class StopsAtAnError(GoodDriver):
    """The driver leaves out every claim that comes after one that it cannot prepare."""

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        answer = super().prepare(request, context)
        failed = [number for number, claim in enumerate(request.claims) if answer.claims[claim.uid].error]
        for claim in request.claims[failed[0] + 1 :] if failed else ():
            answer.claims.pop(claim.uid, None)
        return answer


@fails("answers-with-pool-and-device-names")
class NoPoolName(GoodDriver):
    def device(self, uid: str, result: Json) -> Message:
        device = super().device(uid, result)
        device.pool_name = ""
        return device


@fails("answers-with-all-allocated-devices", "makes-cdi-devices-for-each-device")
class FirstDeviceOnly(GoodDriver):
    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        return devices[:1] if {tuple(device.request_names) for device in devices} == {("r0",)} else devices


@fails("answers-with-each-device-once")
class AnswersTwice(GoodDriver):
    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        return [*devices, *devices[-1:]]


@fails("names-the-requests-of-each-device", "separates-cdi-devices-by-request")
class NamesNoRequests(GoodDriver):
    def device(self, uid: str, result: Json) -> Message:
        device = super().device(uid, result)
        del device.request_names[:]
        return device


@fails("answers-with-the-requests-of-each-device")
class AllRequests(GoodDriver):
    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        names = sorted({name for device in devices for name in device.request_names})
        for device in devices:
            device.request_names[:] = names
        return devices


@fails("answers-with-requests-without-alternatives")
class WholeRequestNames(GoodDriver):
    def device(self, uid: str, result: Json) -> Message:
        device = super().device(uid, result)
        device.request_names[:] = [result["request"]]
        return device


@fails("ignores-devices-of-other-drivers")
class ComparesWithOtherDrivers(GoodDriver):
    """The driver refuses another driver's device if its own device of this name is in use."""

    def results_of(self, allocation: Json) -> list[Json]:
        used = {one["device"] for record in self.claims.values() for one in record["results"]}
        for result in allocation.get("results") or ():
            if result["driver"] != self.name and result["device"] in used:
                raise ClaimError(f"{result['device']} is in use")
        return super().results_of(allocation)


@fails("ignores-devices-of-other-drivers")
class RefusesOtherDrivers(GoodDriver):
    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        drivers = {result["driver"] for result in self.allocated(claim)["results"]}
        if drivers != {self.name}:
            raise ClaimError(f"the claim has devices from {sorted(drivers)}")
        return super().prepare_claim(claim, context)


@fails("prepare-is-idempotent")
class NotIdempotent(GoodDriver):
    breaks_too = {"prepares-claims-in-different-orders-at-once": "Each claim is prepared twice."}

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        if claim.uid in self.claims and self.calls.get(claim.uid) == "once":
            self.calls[claim.uid] = "twice"
            raise ClaimError("the claim is already prepared")
        devices = super().prepare_claim(claim, context)
        self.calls.setdefault(claim.uid, "once" if not self.is_busy() else "other")
        return devices

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, str] = {}

    def is_busy(self) -> bool:
        return len(self.claims) != 1


@fails("prepares-the-same-after-a-restart")
class ForgetsAnswers(GoodDriver):
    """After a restart, the driver's responses for known claims contain no CDI devices."""

    def load(self) -> None:
        super().load()
        self.old = set(self.claims)

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        if claim.uid in self.old:
            for device in devices:
                del device.cdi_device_ids[:]
        return devices


@fails("restores-cdi-devices-after-a-reboot")
class LosesCdiAtReboot(GoodDriver):
    def write_cdi(self, uid: str, results: list[Json]) -> None:
        if uid not in self.old:
            super().write_cdi(uid, results)

    def load(self) -> None:
        super().load()
        self.old = set(self.claims)


@fails("prepares-a-claim-of-two-devices")
class TakesOneDevice(GoodDriver):
    breaks_too = dict.fromkeys(
        ["prepares-many-devices-in-one-claim", "prepares-two-shares-in-one-claim"],
        "The claims of these checks also have more than one allocation result.",
    )

    def results_of(self, allocation: Json) -> list[Json]:
        results = super().results_of(allocation)
        if len(results) > 1:
            raise ClaimError("a claim may have only one device")
        return results


@fails("prepares-the-claims-of-a-pod")
class MixesUpItsClaims(GoodDriver):
    """Each claim's entry in the response contains the devices of all claims."""

    must_not_fail = ("prepares-claims-at-the-same-time", "answers-resolvable-cdi-names")
    breaks_too = {"separates-cdi-devices-by-claim": "Each claim gets both claims' CDI devices."}

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        answer = super().prepare(request, context)
        if not any(entry.error for entry in answer.claims.values()):
            every = [device for entry in list(answer.claims.values()) for device in entry.devices]
            for entry in answer.claims.values():
                del entry.devices[:]
                entry.devices.extend(every)
        return answer


@fails("separates-claims-of-the-same-name")
class ReadsOneNamespace(GoodDriver):
    """The driver looks for every claim in the namespace `default`."""

    def allocated(self, claim: Message) -> Json:
        return super().allocated(dra.Claim(namespace="default", name=claim.name, uid=claim.uid))


@fails("separates-a-claim-from-its-namesake")
class AnswersByName(GoodDriver):
    """The driver repeats its answer for a prepared claim, which it recognizes by namespace and name."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[tuple[str, str], list[Message]] = {}

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        key = (claim.namespace, claim.name)
        if key not in self.answers:
            self.answers[key] = super().prepare_claim(claim, context)
        return self.answers[key]

    def unprepare_claim(self, claim: Message) -> None:
        if claim.uid in self.claims:
            self.answers.pop((claim.namespace, claim.name), None)
        super().unprepare_claim(claim)


@fails("keeps-a-claim-that-is-deleted")
class RefusesAClaimThatIsDeleted(GoodDriver):
    def allocated(self, claim: Message) -> Json:
        _, body = self.call("GET", claim_path(claim.namespace, claim.name))
        if "deletionTimestamp" in body.get("metadata", {}):
            raise ClaimError(f"the claim {claim.name} is being deleted")
        return super().allocated(claim)


@fails("keeps-a-claim-that-is-deleted")
class ReleasesAClaimThatIsGone(GoodDriver):
    """The driver watches claims, and releases the devices of a claim that is no longer on the API server."""

    breaks_too = {"asks-the-api-server-rarely": "The driver lists all claims again and again."}

    def serve(self) -> None:
        super().serve()
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self) -> None:
        while not self.over.wait(0.1):
            with self.lock:
                known = list(self.claims)
            status, body = self.call("GET", "/apis/resource.k8s.io/v1/resourceclaims")
            there = {one["metadata"]["uid"] for one in body.get("items", ())}
            for uid in known:
                if status == http.HTTPStatus.OK and uid not in there:
                    with self.lock:
                        self.release(uid)


@fails("separates-claims-of-the-same-name")
class NamesFilesWithoutNamespace(GoodDriver):
    """The names of the driver's CDI files contain the claim's name, but not its namespace."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, str] = {}

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        self.names[claim.uid] = claim.name[:100]
        return super().prepare_claim(claim, context)

    def cdi_file(self, uid: str) -> Path:
        known = self.claims.get(uid, {}).get("name", "")[:100]
        return self.cdi / f"{self.name}_{self.names.get(uid, known) or uid}.json"


@fails("keeps-parameters-to-itself")
class PrintsParameters(GoodDriver):
    def mode(self, result: Json, config: Sequence[Json]) -> str:
        print(config, flush=True)
        return super().mode(result, config)


@fails("keeps-parameters-to-itself")
class QuotesParameters(GoodDriver):
    """The driver's error for a configuration that it does not know contains the configuration."""

    def mode(self, result: Json, config: Sequence[Json]) -> str:
        try:
            return super().mode(result, config)
        except ClaimError as error:
            raise ClaimError(f"{error}: {config}") from None


@fails("separates-claims-of-the-same-name")
class JoinsNamespaceAndName(GoodDriver):
    """The driver finds a claim by its namespace and name, joined with a hyphen."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Message] = {}

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        known: Message = self.known.get(f"{claim.namespace}-{claim.name}") or claim
        if known.name != claim.name and known.uid in self.claims:
            return [self.device(known.uid, result) for result in self.claims[known.uid]["results"]]
        self.known[f"{claim.namespace}-{claim.name}"] = claim
        return super().prepare_claim(claim, context)


@fails("prepares-the-claims-of-a-pod")
class PreparesTheFirstClaim(GoodDriver):
    """Of two claims in a request, the driver prepares only the first, but reports success for both."""

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        if len({claim.uid for claim in request.claims}) != 2:
            return super().prepare(request, context)
        first, second = request.claims
        answer = super().prepare(dra.NodePrepareResourcesRequest(claims=[first]), context)
        if answer.claims[first.uid].error or self.call("GET", claim_path(second.namespace, second.name))[0] != 200:
            return super().prepare(request, context)
        answer.claims[second.uid].error = ""
        return answer


@fails("prepares-claims-at-the-same-time")
class SharesAVariable(GoodDriver):
    """Concurrent calls share a variable for their allocation results, so one call gets the other's results."""

    def results_of(self, allocation: Json) -> list[Json]:
        self.results = super().results_of(allocation)
        time.sleep(0.02)
        return super().results_of(allocation)

    def spec(self, uid: str, results: list[Json]) -> Json:
        spec = super().spec(uid, results)
        if len(results) == len(self.results) == 1:
            spec["devices"][0]["containerEdits"] = super().spec(uid, self.results)["devices"][0]["containerEdits"]
        return spec


class Trusting(GoodDriver):
    """A driver that can read a claim without comparing the UID."""

    def status_of(self, claim: Message) -> Json:
        return self.call("GET", claim_path(claim.namespace, claim.name))[1]


@fails("refuses-a-replaced-claim")
class IgnoresUids(Trusting):
    def allocated(self, claim: Message) -> Json:
        try:
            return super().allocated(claim)
        except ClaimError:
            body = self.status_of(claim)
            if "allocation" not in body.get("status", {}) or len(claim.uid) != 36:
                raise
            return dict(body["status"]["allocation"]["devices"])


@fails("refuses-a-missing-claim")
class DiesOfAMissingClaim(Trusting):
    def allocated(self, claim: Message) -> Json:
        if self.status_of(claim).get("reason") == "NotFound" and self.is_alone:
            os._exit(2)
        return super().allocated(claim)

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        self.is_alone = len(request.claims) == 1
        return super().prepare(request, context)


@fails("refuses-a-claim-that-is-not-allocated")
class PreparesAnything(Trusting):
    def allocated(self, claim: Message) -> Json:
        body = self.status_of(claim)
        if body.get("kind") == "ResourceClaim" and "allocation" not in body.get("status", {}):
            return {"results": []}
        return super().allocated(claim)


@fails("refuses-an-unknown-device")
class KnowsEveryDevice(GoodDriver):
    def devices(self) -> list[Json]:
        ghosts = [{"name": f"no-such-device-{number}"} for number in range(1000)]
        is_call = threading.current_thread().name.startswith("ThreadPool")
        return [*super().devices(), *(ghosts if is_call else [])]

    def results_of(self, allocation: Json) -> list[Json]:
        results = allocation.get("results") or ()
        if len(results) > 1 and any(result["device"].startswith("no-such-device") for result in results):
            raise ClaimError("the claim has too many devices")
        return super().results_of(allocation)

    def health(self) -> list[Message]:
        return super().health()[:-1]


@fails("survives-an-unknown-configuration")
class DiesOfConfiguration(GoodDriver):
    breaks_too = {"keeps-parameters-to-itself": "The driver does not know these parameters either."}

    def mode(self, result: Json, config: Sequence[Json]) -> str:
        try:
            return super().mode(result, config)
        except ClaimError:
            os._exit(2)


@fails("survives-an-unknown-configuration")
class DiesOfEmptyParameters(GoodDriver):
    def mode(self, result: Json, config: Sequence[Json]) -> str:
        if any(not entry["opaque"]["parameters"] for entry in config):
            os._exit(2)
        return super().mode(result, config)


@fails("ignores-the-configuration-of-other-drivers")
class ReadsAllConfiguration(GoodDriver):
    def mode(self, result: Json, config: Sequence[Json]) -> str:
        if any(entry["opaque"]["driver"] != self.name for entry in config):
            raise ClaimError("unknown parameters")
        return super().mode(result, config)


@fails("separates-good-claims-from-bad-ones")
class AllOrNothing(GoodDriver):
    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        answer = super().prepare(request, context)
        errors = [entry.error for entry in answer.claims.values() if entry.error]
        for entry in answer.claims.values():
            if errors:
                entry.error = errors[0]
        return answer


@fails("refuses-a-device-in-use-after-a-restart")
class ForgetsDevicesInUse(GoodDriver):
    """After a start, the driver does not know a claim until the claim is prepared or unprepared."""

    def load(self) -> None:
        pass


@fails("refuses-a-device-in-use")
class SharesDevices(GoodDriver):
    def check_free(self, uid: str, results: list[Json]) -> None:
        pass


class HasPartitions(GoodDriver):
    """One chip can be allocated as a whole, or as two partitions."""

    is_good = True
    parts_of = {"chip-4": {"part-0", "part-1"}}

    def devices(self) -> list[Json]:
        devices = super().devices()
        devices += [{"name": name} for names in self.parts_of.values() for name in sorted(names)]
        for device in devices:
            cores = "2" if device["name"] in self.parts_of else "1" if device["name"].startswith("part") else ""
            if cores:
                device["consumesCounters"] = [{"counterSet": "chip", "counters": {"cores": {"value": cores}}}]
        return devices

    def slices(self) -> list[Json]:
        specs = super().slices()
        counters = {"name": "chip", "counters": {"cores": {"value": "2"}}}
        specs.append({**specs[0], "devices": None, "sharedCounters": [counters]})
        return [
            {key: value for key, value in spec.items() if value is not None}
            | {"pool": spec["pool"] | {"resourceSliceCount": len(specs)}}
            for spec in specs
        ]

    def check_free(self, uid: str, results: list[Json]) -> None:
        others = [
            result | {"device": rival}
            for result in results
            for whole, parts in self.parts_of.items()
            for rival in (parts if result["device"] == whole else {whole} if result["device"] in parts else ())
        ]
        super().check_free(uid, results + others)


@fails("refuses-a-device-that-is-partly-in-use")
class ComparesOnlyNames(HasPartitions):
    is_good = False

    def check_free(self, uid: str, results: list[Json]) -> None:
        GoodDriver.check_free(self, uid, results)


@fails("prepares-what-is-allocated-now")
class AnswersFromMemory(GoodDriver):
    """The driver keeps its first answer for a claim, even after the claim is unprepared."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, list[Message]] = {}

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        return self.answers.setdefault(claim.uid, devices)


@fails("allows-admin-access-to-a-device-in-use")
class KnowsNoAdmins(GoodDriver):
    def check_free(self, uid: str, results: list[Json]) -> None:
        super().check_free(uid, [result | {"adminAccess": False} for result in results])


@fails("takes-no-device-for-admin-access")
class TakesDevicesForAdmins(GoodDriver):
    """A claim with adminAccess gets its device exclusively."""

    def check_free(self, uid: str, results: list[Json]) -> None:
        for other, record in self.claims.items():
            watched = {one["device"] for one in record["results"] if one.get("adminAccess") and other != uid}
            if taken := watched & {one["device"] for one in results}:
                raise ClaimError(f"{min(taken)} is in use by the claim {other}")
        super().check_free(uid, results)


@fails("answers-with-the-share-of-each-claim")
class ForgetsShares(GoodDriver):
    def device(self, uid: str, result: Json) -> Message:
        device = super().device(uid, result)
        device.ClearField("share_id")
        return device


@fails("separates-shares-of-a-device")
class LeavesShares(GoodDriver):
    """A share's CDI file remains while another claim has a share of the same device."""

    breaks_too = {"prepares-two-shares-in-one-claim": "This check also unprepares shares of a device."}

    def release(self, uid: str) -> None:
        path, shared = self.cdi_file(uid), [one for record in self.claims.values() for one in record["results"]]
        is_kept = len([one for one in shared if "shareID" in one]) > 1 and path.exists()
        text = path.read_text(encoding="utf-8") if is_kept else ""
        super().release(uid)
        if text:
            write(path.with_suffix(".kept.json"), text)


@fails("prepares-two-shares-in-one-claim")
class NamesDevicesOfAClaim(GoodDriver):
    """The name of a CDI device contains the claim and the device, but not the share."""

    def cdi_name(self, uid: str, result: Json) -> str:
        return f"{uid}-{result['device']}"


@fails("leaves-the-device-status-of-others-alone")
class ReplacesTheDeviceStatus(GoodDriver):
    """The driver replaces the list of device statuses in a claim."""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        path = claim_path(claim.namespace, claim.name)
        body = self.call("GET", path)[1]
        own = [{"driver": self.name, "pool": one.pool_name, "device": one.device_name} for one in devices]
        body["status"]["devices"] = [] if any(one.share_id for one in devices) else own
        self.call("PUT", f"{path}/status", body)
        return devices


@fails("reports-the-status-of-each-device")
class ReportsTheLastDevice(GoodDriver):
    """The driver writes the statuses of a claim's devices one at a time, and each write drops its previous one."""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        path = claim_path(claim.namespace, claim.name)
        for one in devices:
            if not one.share_id:
                body = self.call("GET", path)[1]
                others = [each for each in body["status"].get("devices") or () if each["driver"] != self.name]
                own = {"driver": self.name, "pool": one.pool_name, "device": one.device_name}
                body["status"]["devices"] = [*others, own]
                self.call("PUT", f"{path}/status", body)
        return devices


@fails("prepares-claims-in-different-orders-at-once")
class LocksClaimsInOrder(GoodDriver):
    """A call locks its claims one after another, in the order of the request, and keeps the locks until it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.locks: dict[str, threading.RLock] = defaultdict(threading.RLock)

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        with ExitStack() as held:
            for claim in request.claims:
                if not self.locks[claim.uid].acquire(timeout=20.0):
                    context.abort(grpc.StatusCode.ABORTED, "deadlock")
                held.callback(self.locks[claim.uid].release)
                time.sleep(0.05)
            return super().prepare(request, context)


@fails("prepares-many-devices-in-one-claim")
class OneSmallClaim(GoodDriver):
    def results_of(self, allocation: Json) -> list[Json]:
        results = super().results_of(allocation)
        if len(results) > 4:
            raise ClaimError("a claim may have at most four devices")
        return results


@fails("prepares-many-devices-in-one-claim")
class AnswersFourDevices(GoodDriver):
    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        return super().prepare_claim(claim, context)[:4]


@fails("reports-what-it-cannot-prepare", "refuses-an-unknown-device")
class OnlyLogsUnknownDevices(GoodDriver):
    """The driver reports a claim for an unknown device as prepared, without devices."""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        try:
            return super().prepare_claim(claim, context)
        except ClaimError as error:
            if "there is no device" not in str(error):
                raise
            return []


@fails("sets-the-binding-conditions-of-its-devices")
class NeverBinds(GoodDriver):
    """The last device has a binding condition that nobody sets."""

    def devices(self) -> list[Json]:
        *others, last = super().devices()
        bound = {"bindsToNode": True, "bindingConditions": [ATTACHED], "bindingFailureConditions": ["example.org/no"]}
        return [*others, last | bound]


@fails("sets-the-binding-conditions-before-it-prepares")
class BindsWhenItPrepares(NeverBinds):
    """The driver sets the binding condition when the claim is prepared, which happens only after binding."""

    breaks_too = {"sets-the-binding-conditions-of-its-devices": "The check does not prepare the claim."}

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        last = self.devices()[-1]["name"]
        met = [
            {"driver": self.name, "pool": one.pool_name, "device": one.device_name, "shareID": one.share_id}
            for one in devices
            if one.device_name == last
        ]
        if met:
            path = claim_path(claim.namespace, claim.name)
            body = self.call("GET", path)[1]
            conditions = [{"type": ATTACHED, "status": "True"}]
            body["status"]["devices"] = [one | {"conditions": conditions} for one in met]
            self.call("PUT", f"{path}/status", body)
        return devices


@fails("answers-with-requests-without-alternatives")
class KnowsNoAlternatives(GoodDriver):
    """The driver looks up each result's request by its full name, and finds none for an alternative."""

    def results_of(self, allocation: Json) -> list[Json]:
        results = super().results_of(allocation)
        if unknown := sorted(one["request"] for one in results if "/" in one["request"]):
            raise ClaimError(f"the claim has no request {unknown[0]}")
        return results


@fails("prepares-a-claim-with-a-long-name")
class NamesFilesByClaims(GoodDriver):
    def write_cdi(self, uid: str, results: list[Json]) -> None:
        name = self.claims.get(uid, {}).get("name", "")
        write(self.directory / f"{name}-{results[0]['request'].replace('/', '-')}.txt", uid)
        super().write_cdi(uid, results)

    def release(self, uid: str) -> None:
        for path in self.directory.glob("*.txt"):
            if path.read_text(encoding="utf-8") == uid:
                path.unlink(missing_ok=True)
        super().release(uid)


@fails("prepares-a-claim-that-is-there-twice")
class CountsEntries(GoodDriver):
    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        answer = super().prepare(request, context)
        if len(answer.claims) != len(request.claims):
            context.abort(grpc.StatusCode.INTERNAL, "a claim is listed twice")
        return answer


@fails("prepares-claims-at-the-same-time")
class OneCallAtATime(GoodDriver):
    """The driver refuses to prepare a claim while it is preparing another one."""

    breaks_too = {"prepares-claims-in-different-orders-at-once": "Calls for the same claims overlap."}
    busy = ""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        if self.busy not in {"", claim.uid}:
            raise ClaimError("busy")
        self.busy = claim.uid
        try:
            time.sleep(0.05)
            return super().prepare_claim(claim, context)
        finally:
            self.busy = ""


@fails("prepares-one-claim-in-several-calls-at-once")
class NoLockPerClaim(GoodDriver):
    """The driver refuses a second call for a claim while it is preparing that claim."""

    breaks_too = {
        "prepares-after-cancelled-calls": "The canceled calls are still running when the claim is prepared again.",
        "prepares-claims-in-different-orders-at-once": "Both calls contain the same claims.",
    }

    def __init__(self) -> None:
        super().__init__()
        self.busy: set[str] = set()

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        if claim.uid in self.busy:
            raise ClaimError("busy")
        self.busy.add(claim.uid)
        try:
            time.sleep(0.05)
            return super().prepare_claim(claim, context)
        finally:
            self.busy.discard(claim.uid)


@fails("prepares-after-cancelled-calls")
class GivesUpAfterCancelledCalls(GoodDriver):
    def __init__(self) -> None:
        super().__init__()
        self.cancelled: dict[str, int] = {}

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        if self.cancelled.get(claim.uid, 0) > 3:
            raise ClaimError("too many calls were canceled")
        try:
            return super().prepare_claim(claim, context)
        finally:
            self.cancelled[claim.uid] = self.cancelled.get(claim.uid, 0) + (not context.is_active())


@fails("late-prepare-leaves-nothing")
class LatePrepare(GoodDriver):
    def is_given_up(self, context: grpc.ServicerContext) -> bool:
        return False


@fails("late-prepare-leaves-nothing")
class ResetsDevicesSlowly(GoodDriver):
    """Resetting the devices takes half a second. If the call is canceled meanwhile, the driver does not notice."""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        self.allocated(claim)
        if super().is_given_up(context):
            raise ClaimError("the call was canceled")
        if claim.uid not in self.claims:
            time.sleep(0.5)
        return super().prepare_claim(claim, context)

    def is_given_up(self, _: grpc.ServicerContext) -> bool:
        return False


@fails("ignores-unknown-fields")
class Strict(GoodDriver):
    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        known = dra.NodePrepareResourcesRequest(claims=request.claims)
        if request.SerializeToString() != known.SerializeToString():
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unknown fields")
        return super().prepare(request, context)


@fails("refuses-senseless-names")
class AcceptsAnyUid(Trusting):
    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        if "/" in claim.uid:
            write(self.cdi.parent / "conformance-escape.json", "{}")
        return super().prepare_claim(claim, context)


class HoldsDevicesForAnyUid(Trusting):
    """The driver records which claim holds each device, but does not compare the claim's UID with the object's."""

    def load(self) -> None:
        super().load()
        self.holders: dict[str, str] = {}

    def prepare_claim(self, claim: Message, _: grpc.ServicerContext) -> list[Message]:
        for one in self.status_of(claim)["status"]["allocation"]["devices"]["results"]:
            if self.holders.setdefault(one["device"], claim.uid) != claim.uid:
                raise ClaimError(f"{one['device']} is in use")
        return []

    def unprepare_claim(self, claim: Message) -> None:
        self.holders = {device: holder for device, holder in self.holders.items() if holder != claim.uid}


@fails("answers-the-same-through-v1beta1")
class OldServiceWithoutCdi(GoodDriver):
    def services(self) -> Json:
        services = super().services()
        methods = handlers_of({"NodePrepareResources": (self.prepare_as_before, dra.NodePrepareResourcesRequest)})
        name = "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"
        return services | {name: services[name] | methods}

    def prepare_as_before(self, request: Message, context: grpc.ServicerContext) -> Message:
        answer = self.prepare(request, context)
        for entry in answer.claims.values():
            for device in entry.devices:
                del device.cdi_device_ids[:]
        return answer


class RemembersFailures(GoodDriver):
    """The driver does not retry a claim that has failed once."""

    reason = ""

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[str] = set()

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        if claim.uid in self.failed:
            raise ClaimError("the claim has failed before")
        try:
            return super().prepare_claim(claim, context)
        except (ClaimError, OSError) as error:
            if self.reason in str(error):
                self.failed.add(claim.uid)
            raise


@fails("prepares-after-an-error-of-the-api-server")
class RemembersErrors(RemembersFailures):
    reason = "leader changed"


@fails("prepares-after-the-api-server-was-away")
class RemembersAbsence(RemembersFailures):
    reason = "does not answer"


@fails("prepares-with-a-slow-api-server")
class ServesOneCallAtATime(GoodDriver):
    """No call is answered, not even GetInfo, while another one is in progress."""

    breaks_too = {"answers-get-info-again": "The calls at once wait for each other."}
    in_turn = threading.Lock()

    def get_info(self, request: Message, context: grpc.ServicerContext) -> Message:
        with self.in_turn:
            return super().get_info(request, context)

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        with self.in_turn:
            return super().prepare(request, context)


@fails("prepares-with-a-slow-api-server")
class Hasty(GoodDriver):
    def allocated(self, claim: Message) -> Json:
        path = claim_path(claim.namespace, claim.name)
        connection = http.client.HTTPConnection(self.api, timeout=3)
        try:
            connection.request("GET", path)
            json.loads(connection.getresponse().read())
        except OSError as error:
            raise ClaimError("the API server is too slow") from error
        finally:
            connection.close()
        return super().allocated(claim)


@fails("leaves-claims-as-they-are")
class TakesAwayConsumers(GoodDriver):
    """When the driver unprepares a claim, it removes the consumers from the claim's status."""

    def unprepare_claim(self, claim: Message) -> None:
        super().unprepare_claim(claim)
        path = claim_path(claim.namespace, claim.name)
        status, body = self.call("GET", path)
        if status == http.HTTPStatus.OK and body["metadata"]["uid"] == claim.uid and "status" in body:
            body["status"].pop("reservedFor", None)
            self.call("PUT", f"{path}/status", body)


@fails("prepares-claims-of-any-form")
class KnowsClaimsOfOnePod(GoodDriver):
    def allocated(self, claim: Message) -> Json:
        found = super().allocated(claim)
        _, body = self.call("GET", claim_path(claim.namespace, claim.name))
        if len(body["status"]["reservedFor"]) > 1:
            raise ClaimError("expected one pod")
        return found


@fails("ignores-devices-of-other-drivers")
class ReadsOnlyNamesOfDevices(GoodDriver):
    """The driver mistakes another driver's device for its own if pool and name are the same."""

    def results_of(self, allocation: Json) -> list[Json]:
        own = {device["name"] for device in self.devices()}
        results = [
            one | ({"driver": self.name} if one["pool"] == self.pool and one["device"] in own else {})
            for one in allocation.get("results") or ()
        ]
        return super().results_of(allocation | {"results": results})


@fails("refuses-an-unknown-device")
class IgnoresThePool(GoodDriver):
    def results_of(self, allocation: Json) -> list[Json]:
        results = [
            one | ({"pool": self.pool} if one["driver"] == self.name else {}) for one in allocation.get("results") or ()
        ]
        return super().results_of(allocation | {"results": results})
