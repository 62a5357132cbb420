"""Drivers with one fault in how they unprepare claims.

Law: each driver fails the checks that it names, and no others except those in `breaks_too`.
"""

import http
import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import grpc

from devicecore_tools.conformance.faults.good_driver import (
    ClaimError,
    GoodDriver,
    Json,
    Message,
    check_uid,
    claim_path,
    dra,
    fails,
    write,
)


@fails("unprepares-a-claim", "unprepares-an-unknown-claim")
class RefusesPreparedClaims(GoodDriver):
    def unprepare_claim(self, claim: Message) -> None:
        if claim.uid in self.claims:
            raise ClaimError("not now")
        super().unprepare_claim(claim)


@fails("answers-for-each-unprepared-claim")
class AnswersOnlyFailures(GoodDriver):
    def unprepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        answer = super().unprepare(request, context)
        if len(request.claims) > 1:
            for uid in [uid for uid, entry in answer.claims.items() if not entry.error]:
                del answer.claims[uid]
        return answer


@fails("unprepares-the-claims-of-a-pod")
class UnpreparesTheFirstClaim(GoodDriver):
    """Of several claims in a request, the driver unprepares only the first, but answers for all."""

    def unprepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        answer = dra.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].error = ""
        for claim in request.claims[:1]:
            self.unprepare_claim(claim)
        return answer


@fails("unprepares-the-claims-of-a-pod")
class LeavesTheFilesOfLaterClaims(GoodDriver):
    """Of several claims in a request, the driver removes only the first one's CDI file."""

    def unprepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        kept = [self.cdi_file(claim.uid) for claim in list(request.claims)[1:]]
        contents = {path: path.read_text(encoding="utf-8") for path in kept if path.exists()}
        answer = super().unprepare(request, context)
        for path, text in contents.items():
            path.write_text(text, encoding="utf-8")
        return answer


class FileForEachDevice(GoodDriver):
    """The driver writes a CDI file for each device of a claim."""

    is_good = True

    def file_of(self, uid: str, number: int) -> Path:
        return self.cdi / f"{self.name}_{uid}.{number}.json"

    def write_cdi(self, uid: str, results: list[Json]) -> None:
        for number, result in enumerate(results):
            write(self.file_of(uid, number), json.dumps(self.spec(uid, [result])))

    def recover(self, error: Exception) -> None:
        for path in self.cdi.glob(f"{self.name}_*.json"):
            path.unlink()
        self.save()

    def release(self, uid: str) -> None:
        for path in self.files_to_remove(uid):
            path.unlink(missing_ok=True)
        super().release(uid)

    def files_to_remove(self, uid: str) -> list[Path]:
        return sorted(self.cdi.glob(f"{self.name}_{uid}.*.json"))


@fails("unprepares-a-claim-of-two-devices")
class LeavesTheSecondFile(FileForEachDevice):
    must_not_fail = ("unprepares-after-a-restart",)
    is_good = False

    def files_to_remove(self, uid: str) -> list[Path]:
        return super().files_to_remove(uid)[:1]


@fails("unprepares-a-claim-of-two-devices")
class FreesTheFirstDevice(GoodDriver):
    """The driver frees only the first device of a claim."""

    breaks_too = {
        "separates-claims-of-the-same-name": "This check needs a device that an earlier claim held as one of two."
    }

    def __init__(self) -> None:
        super().__init__()
        self.kept: set[str] = set()

    def release(self, uid: str) -> None:
        self.kept |= {one["device"] for one in self.claims.get(uid, {}).get("results", ())[1:]}
        super().release(uid)

    def check_free(self, uid: str, results: list[Json]) -> None:
        super().check_free(uid, results)
        if used := self.kept & {str(one["device"]) for one in results}:
            self.kept -= used
            raise ClaimError(f"{sorted(used)} is in use")


@fails("unprepares-after-a-restart", "unprepares-after-its-state-was-lost")
class LeavesTheSecondFileAfterARestart(FileForEachDevice):
    """A process that did not prepare the claim itself removes only the CDI file of the claim's first device."""

    must_not_fail = ("unprepares-a-claim-of-two-devices",)
    is_good = False

    def __init__(self) -> None:
        super().__init__()
        self.own: set[str] = set()

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        self.own.add(claim.uid)
        return super().prepare_claim(claim, context)

    def files_to_remove(self, uid: str) -> list[Path]:
        return super().files_to_remove(uid)[: None if uid in self.own else 1]


@fails("unprepare-is-idempotent")
class RefusesTheSecond(GoodDriver):
    def __init__(self) -> None:
        super().__init__()
        self.gone: set[str] = set()

    def unprepare_claim(self, claim: Message) -> None:
        if claim.uid in self.gone and claim.uid not in self.claims:
            raise ClaimError("the claim is not prepared")
        self.gone |= {claim.uid} & set(self.claims)
        super().unprepare_claim(claim)


@fails("unprepares-an-unknown-claim", "unprepare-is-idempotent")
class RefusesWhatIsNotPrepared(GoodDriver):
    must_not_fail = ("late-prepare-leaves-nothing",)

    def unprepare_claim(self, claim: Message) -> None:
        if claim.uid not in self.claims:
            raise ClaimError("the claim is not prepared")
        super().unprepare_claim(claim)


@fails("unprepares-an-unknown-claim")
class RefusesUnknownClaims(GoodDriver):
    breaks_too = {"unprepares-after-its-state-was-lost": "Without its state, the driver knows no claims."}

    def load(self) -> None:
        super().load()
        self.seen = set(self.claims)

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        self.seen.add(claim.uid)
        return super().prepare_claim(claim, context)

    def unprepare_claim(self, claim: Message) -> None:
        if claim.uid not in self.seen and not self.is_other(claim):
            raise ClaimError("this claim was never prepared")
        super().unprepare_claim(claim)

    def is_other(self, claim: Message) -> bool:
        return any(record["name"] == claim.name for record in self.claims.values())


@fails("unprepares-a-deleted-claim")
class ReadsTheClaim(GoodDriver):
    """The driver reads the claim, and changes nothing if the claim is gone."""

    breaks_too = {
        "unprepares-a-claim-that-was-deleted-meanwhile": "In this check, the claim is also deleted.",
        "unprepares-with-a-slow-api-server": "The driver waits for the claim.",
    }

    def unprepare_claim(self, claim: Message) -> None:
        try:
            self.allocated(claim)
        except ClaimError as error:
            if "not found" in str(error) and claim.uid in self.claims:
                raise
        except OSError:
            pass
        super().unprepare_claim(claim)


@fails("unprepares-without-the-api-server")
class AsksTheApiServer(GoodDriver):
    def unprepare_claim(self, claim: Message) -> None:
        self.call("GET", "/api/v1/nodes")
        super().unprepare_claim(claim)


@fails("unprepares-by-uid")
class UnpreparesByName(GoodDriver):
    breaks_too = {"separates-claims-of-the-same-name": "The driver releases both claims."}

    def unprepare_claim(self, claim: Message) -> None:
        with self.lock:
            for uid in [uid for uid, record in self.claims.items() if record["name"] == claim.name]:
                self.release(uid)
        super().unprepare_claim(claim)


@fails("frees-the-device")
class NeverFreesDevices(GoodDriver):
    """The driver never frees its only device, so later checks need fresh directories."""

    breaks_too = dict.fromkeys(
        ["prepares-each-device", "unprepares-a-claim-that-was-deleted-meanwhile"], "The device was in an earlier claim."
    )

    must_not_fail = (
        "prepares-the-same-after-a-restart",
        "restores-cdi-devices-after-a-reboot",
        "answers-for-each-prepared-claim",
        "prepare-is-idempotent",
        "refuses-a-device-in-use",
        "prepares-one-claim-in-several-calls-at-once",
        "late-prepare-leaves-nothing",
    )

    def devices(self) -> list[Json]:
        return super().devices()[:1]

    def release(self, uid: str) -> None:
        self.cdi_file(uid).unlink(missing_ok=True)


@fails("unprepares-at-the-same-time")
class LosesUnprepares(GoodDriver):
    """Concurrent calls each write back what they read before, minus their own claim, so the last write wins."""

    breaks_too = {"survives-prepare-and-unprepare-at-the-same-time": "This check's calls are also concurrent."}

    def unprepare_claim(self, claim: Message) -> None:
        check_uid(claim.uid)
        claims = dict(self.claims)
        time.sleep(0.05)
        with self.lock:
            self.cdi_file(claim.uid).unlink(missing_ok=True)
            self.claims = {uid: record for uid, record in claims.items() if uid != claim.uid}
            self.save()


@fails("frees-the-device")
class KeepsDevices(GoodDriver):
    """The last released device stays reserved until one other claim for it has been refused."""

    breaks_too = dict.fromkeys(
        [
            "unprepares-a-claim-that-was-deleted-meanwhile",
            "prepares-many-devices-in-one-claim",
            "prepares-claims-at-the-same-time",
            "unprepares-after-a-failed-prepare",
            "survives-an-unknown-configuration",
        ],
        "These checks prepare a device that an earlier claim held.",
    )

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, str] = {}

    def release(self, uid: str) -> None:
        record = self.claims.get(uid)
        super().release(uid)
        if record is not None and len(record["results"]) == 1:
            self.kept = {record["results"][0]["device"]: uid}

    def check_free(self, uid: str, results: list[dict[str, object]]) -> None:
        super().check_free(uid, results)
        for result in results:
            if self.kept.get(str(result["device"]), uid) != uid:
                self.kept.clear()
                raise ClaimError(f"{result['device']} is being cleaned")


@fails("unprepares-while-its-device-is-requested")
class WaitsForItsDevice(GoodDriver):
    """The driver waits until a device is free, and meanwhile holds a lock that unprepare calls need, too."""

    must_not_fail = ("frees-the-device",)
    settings = {"call": 4.0}
    breaks_too = {"refuses-a-device-in-use": "The driver does not answer."}

    def check_free(self, uid: str, results: list[Json]) -> None:
        until = time.monotonic() + 20.0
        while True:
            try:
                return super().check_free(uid, results)
            except ClaimError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.05)


class RefusesSomeClaims(GoodDriver):
    """The driver refuses to unprepare the claims in `refused`."""

    reason = ""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    def unprepare_claim(self, claim: Message) -> None:
        if claim.uid in self.refused:
            raise ClaimError(self.reason)
        super().unprepare_claim(claim)


@fails("unprepares-after-a-failed-prepare")
class KeepsHalfClaims(RefusesSomeClaims):
    reason = "the claim is in the state PrepareStarted"

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        try:
            return super().prepare_claim(claim, context)
        except ClaimError as error:
            if "no-such-device" in str(error) and len(self.allocated(claim)["results"]) > 1:
                self.refused.add(claim.uid)
            raise


@fails("unprepares-after-a-failed-prepare")
class ReservesOneByOne(GoodDriver):
    """The driver reserves each device, even one that does not exist, and releases only those of prepared claims."""

    def load(self) -> None:
        super().load()
        self.reserved: dict[str, str] = {}

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        for one in self.allocated(claim)["results"]:
            is_own = one["driver"] == self.name and not one.get("shareID") and not one.get("adminAccess")
            if is_own and self.reserved.setdefault(one["device"], claim.uid) != claim.uid:
                raise ClaimError(f"{one['device']} is in use")
        return super().prepare_claim(claim, context)

    def unprepare_claim(self, claim: Message) -> None:
        if claim.uid in self.claims:
            self.reserved = {device: uid for device, uid in self.reserved.items() if uid != claim.uid}
        super().unprepare_claim(claim)


@fails("unprepares-after-a-failed-prepare")
class LeavesTheFileOfAFailure(GoodDriver):
    """The driver writes the CDI file before it has checked all devices, and removes only the files of known claims."""

    def results_of(self, allocation: Json) -> list[Json]:
        try:
            return super().results_of(allocation)
        except ClaimError as error:
            if "no-such-device" in str(error) and len(allocation["results"]) > 1:
                uid = self.present
                write(
                    self.cdi / f"{self.name}-half-{uid}.json",
                    json.dumps(self.spec(uid, [allocation["results"][0] | {"mode": "x"}])),
                )
            raise

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        self.present = claim.uid
        return super().prepare_claim(claim, context)


@fails("unprepares-after-a-failed-prepare")
class KeepsTheShareOfAHalfPreparedClaim(GoodDriver):
    """All devices are shared. The driver records results one by one, and unprepares a claim only if it recorded all."""

    def __init__(self) -> None:
        super().__init__()
        self.half: set[str] = set()

    def devices(self) -> list[Json]:
        *others, shared = super().devices()
        return [shared | {"name": one["name"]} for one in others] + [shared]

    def results_of(self, allocation: Json) -> list[Json]:
        try:
            return super().results_of(allocation)
        except ClaimError:
            first = allocation["results"][0]
            if len(allocation["results"]) > 1 and first["driver"] == self.name:
                self.half.add(self.present)
                self.remember(self.present, {"results": [first | {"mode": "default"}], "name": ""})
            raise

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        self.present = claim.uid
        return super().prepare_claim(claim, context)

    def release(self, uid: str) -> None:
        if uid not in self.half:
            super().release(uid)


@fails("unprepares-a-claim-of-several-drivers")
class CountsDevices(RefusesSomeClaims):
    reason = "there are devices of another driver"

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        self.refused |= {claim.uid} if len(self.allocated(claim)["results"]) > len(devices) else set()
        return devices


@fails("unprepares-a-claim-of-several-drivers")
class RemovesAllFilesOfAClaim(GoodDriver):
    """The driver removes each CDI file whose name contains the UID of an unprepared claim, whoever wrote the file."""

    def release(self, uid: str) -> None:
        for path in self.cdi.glob(f"*{uid}*"):
            path.unlink()
        super().release(uid)


@fails("reports-that-it-cannot-remove")
class ForgetsClaimsWhoseFilesRemain(GoodDriver):
    """If a CDI file cannot be removed, the driver forgets the claim nevertheless, and reports success."""

    def release(self, uid: str) -> None:
        with suppress(OSError):
            self.cdi_file(uid).unlink(missing_ok=True)
        self.remember(uid, None)


@fails("reports-that-it-cannot-remove")
class ForgetsClaimsFirst(GoodDriver):
    """The driver forgets a claim before it removes the CDI file, and does nothing in a second call."""

    def release(self, uid: str) -> None:
        if uid in self.claims:
            self.remember(uid, None)
            self.cdi_file(uid).unlink(missing_ok=True)


@fails("unprepares-at-the-same-time")
class OneUnprepareAtATime(GoodDriver):
    def __init__(self) -> None:
        super().__init__()
        self.one = threading.Lock()

    def unprepare_claim(self, claim: Message) -> None:
        if not self.one.acquire(blocking=False):
            raise ClaimError("busy")
        try:
            time.sleep(0.05)
            super().unprepare_claim(claim)
        finally:
            self.one.release()


@fails("survives-prepare-and-unprepare-at-the-same-time")
class DiesOfAnOverlap(GoodDriver):
    busy = ""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        self.busy = claim.uid
        try:
            time.sleep(0.1)
            return super().prepare_claim(claim, context)
        finally:
            self.busy = ""

    def unprepare_claim(self, claim: Message) -> None:
        time.sleep(0.05)  # until a prepare call that started a little earlier or later is in progress
        if self.busy == claim.uid:
            self.overlaps += 1
        if self.overlaps > 3:
            os._exit(2)
        super().unprepare_claim(claim)

    def __init__(self) -> None:
        super().__init__()
        self.overlaps = 0


@fails("unprepares-with-a-slow-api-server")
class WaitsForTheApiServer(GoodDriver):
    def unprepare_claim(self, claim: Message) -> None:
        with suppress(ClaimError, OSError):
            self.allocated(claim)
        super().unprepare_claim(claim)


@fails("unprepares-after-a-restart")
class LeavesCdiOfFormerProcesses(GoodDriver):
    breaks_too = {
        "survives-a-kill-at-any-moment": ("The next process unprepares the claim that the killed process prepared.")
    }

    def load(self) -> None:
        super().load()
        self.old = {uid for uid, record in self.claims.items() if self.still_there(record["name"])}

    def still_there(self, name: str) -> bool:
        path = claim_path("default", name)
        return bool(name) and self.call("GET", path)[0] == 200 and self.cdi_count() > 0

    def cdi_count(self) -> int:
        return len(list(self.cdi.glob("*.json")))

    def unprepare_claim(self, claim: Message) -> None:
        if claim.uid in self.old and self.cdi_file(claim.uid).exists():
            raise ClaimError("another process has prepared this claim")
        super().unprepare_claim(claim)


@fails("keeps-devices-free-after-a-restart")
class SavesNoUnprepare(GoodDriver):
    """An unprepared claim stays in the state file until the next claim is prepared."""

    def release(self, uid: str) -> None:
        self.cdi_file(uid).unlink(missing_ok=True)
        self.claims.pop(uid, None)


@fails("leaves-no-files-of-a-claim")
class LeavesAFileOfEachClaim(GoodDriver):
    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        (self.directory / f"{claim.uid}.log").touch()
        return devices


@fails("unprepares-a-claim-that-was-deleted-meanwhile")
class RefusesStaleEntries(RefusesSomeClaims):
    reason = "the claim is not on the API server"

    def load(self) -> None:
        super().load()
        named = {uid: one["name"] for uid, one in self.claims.items() if one["name"]}
        self.refused = {uid for uid, name in named.items() if self.call("GET", claim_path("default", name))[0] == 404}


@fails("unprepares-after-a-reboot")
class NeedsItsCdiFile(GoodDriver):
    def unprepare_claim(self, claim: Message) -> None:
        check_uid(claim.uid)
        if claim.uid in self.claims and not self.cdi_file(claim.uid).exists():
            raise ClaimError("the CDI file does not exist")
        super().unprepare_claim(claim)


@fails("unprepares-after-its-state-was-lost")
class UnpreparesOnlyWhatItKnows(GoodDriver):
    def release(self, uid: str) -> None:
        if uid in self.claims:
            super().release(uid)


@fails("unprepares-a-claim-that-was-deleted-meanwhile")
class ReadsItsClaimsAtAStart(GoodDriver):
    """When the driver starts, it reads all prepared claims, and exits if one of them is gone."""

    must_not_fail = ("prepares-a-claim", "stays-up", "frees-devices-after-a-reboot", "prepare-is-idempotent")

    def serve(self) -> None:
        super().serve()
        for uid, record in self.claims.items():
            status, body = self.call("GET", claim_path("default", record["name"]))
            if status != http.HTTPStatus.OK or body["metadata"]["uid"] != uid:
                print(f"cannot restore the claim {uid}", flush=True)
                os._exit(1)
