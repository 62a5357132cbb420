"""Drivers with one fault in what remains of claims after an event, or in their constant behavior.

Law: each driver fails the checks that it names, and no others except those in `breaks_too`.
"""

import http.client
import os
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import grpc

from devicecore_tools.conformance.faults.good_driver import SLICES, ClaimError, GoodDriver, Json, Message, fails


@fails("keeps-cdi-devices-while-nothing-happens")
class CleansUpAfterASecond(GoodDriver):
    """The driver removes a claim's files as leftovers if they have not been written for two seconds."""

    def serve(self) -> None:
        super().serve()
        threading.Thread(target=self.clean_up, daemon=True).start()

    def clean_up(self) -> None:
        while not self.over.wait(0.2):
            for path in self.cdi.glob(f"{self.name}_*.json"):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > 2.0:
                        path.unlink()


class ForgetsWhenRegistered(GoodDriver):
    """The driver starts over when a kubelet registers it again."""

    registered = 0

    def notify(self, message: Message, context: grpc.ServicerContext) -> Message:
        self.registered += 1
        if self.registered > 1:
            with self.lock:
                self.begin_anew()
        return super().notify(message, context)

    def begin_anew(self) -> None:
        """Do what a correct driver would not do."""


@fails("keeps-cdi-devices-after-a-new-registration")
class CleansItsFilesWhenRegistered(ForgetsWhenRegistered):
    def begin_anew(self) -> None:
        for path in self.cdi.glob(f"{self.name}_*.json"):
            path.unlink()


@fails("prepares-claims-after-a-new-registration")
class RenamesWhenRegistered(ForgetsWhenRegistered):
    def cdi_name(self, uid: str, result: Json) -> str:
        return super().cdi_name(uid, result) + ("-again" if self.registered > 1 else "")


@fails("frees-devices-after-a-new-registration")
class LosesItsClaimsWhenRegistered(ForgetsWhenRegistered):
    def begin_anew(self) -> None:
        self.claims = {f"unknown-{uid}": record for uid, record in self.claims.items()}
        self.save()

    def check_free(self, uid: str, results: list[Json]) -> None:
        if f"unknown-{uid}" not in self.claims:
            super().check_free(uid, results)


@fails("leaves-files-of-others-alone-after-a-kill")
class EmptiesTheRegistryAtStart(GoodDriver):
    """The driver treats every registration socket as its own."""

    breaks_too = {"leaves-files-of-others-alone-after-sigterm": "The driver is also restarted in this check."}

    def serve(self) -> None:
        for path in self.registration.parent.glob("*.sock"):
            path.unlink()
        super().serve()


@fails("leaves-files-of-others-alone-after-a-kill")
class SweepsByTheBeginningOfAName(GoodDriver):
    """At its start, the driver removes CDI files for claims that it does not know, and other drivers' with them."""

    breaks_too = {"leaves-files-of-others-alone-after-sigterm": "The driver is also restarted in this check."}

    def load(self) -> None:
        super().load()
        for path in self.cdi.glob(f"{self.name}*.json"):
            if path.stem.removeprefix(f"{self.name}_") not in self.claims:
                path.unlink()


@fails("leaves-files-of-others-alone-after-sigterm")
class EmptiesTheCdiDirectoryAtItsEnd(GoodDriver):
    breaks_too = {"keeps-cdi-devices-after-sigterm": "The driver's own files are also gone."}

    def leave(self) -> None:
        for path in self.cdi.glob("*.json"):
            path.unlink()
        super().leave()


@fails("frees-devices-after-sigterm")
class ForgetsItsClaimsAtItsEnd(GoodDriver):
    def leave(self) -> None:
        self.claims = {f"unknown-{uid}": record for uid, record in self.claims.items()}
        self.save()
        super().leave()

    def check_free(self, uid: str, results: list[Json]) -> None:
        if f"unknown-{uid}" not in self.claims:
            super().check_free(uid, results)


@fails("keeps-cdi-devices-after-a-kill", "keeps-cdi-devices-after-sigterm")
class CleansItsFilesAtStart(GoodDriver):
    """When the driver starts, it removes the claims' CDI files, and recreates them only for a prepare call."""

    def load(self) -> None:
        super().load()
        for path in self.cdi.glob(f"{self.name}_*.json"):
            path.unlink()


@fails("keeps-cdi-devices-after-a-corruption")
class CleansItsFilesAfterACorruption(GoodDriver):
    """If the driver cannot read its state, it starts without claims, and removes all CDI files as leftovers."""

    must_not_fail = ("survives-a-corrupt-checkpoint",)

    def recover(self, error: Exception) -> None:
        for path in self.cdi.glob(f"{self.name}_*.json"):
            path.unlink()


@fails("keeps-cdi-devices-after-sigterm")
class CleansItsFilesAtItsEnd(GoodDriver):
    def leave(self) -> None:
        for path in self.cdi.glob(f"{self.name}_*.json"):
            path.unlink()
        super().leave()


@fails("prepares-claims-after-sigterm")
class RenamesAfterItsEnd(GoodDriver):
    """After the driver has been stopped, the CDI devices have different names."""

    def leave(self) -> None:
        self.directory.joinpath("ended").touch()
        super().leave()

    def cdi_name(self, uid: str, result: Json) -> str:
        return super().cdi_name(uid, result) + ("-again" if self.directory.joinpath("ended").exists() else "")


class KeepsDevices(GoodDriver):
    """The driver unprepares some claims without releasing their devices."""

    def keeps(self, uid: str) -> bool:
        """Return whether the driver keeps this claim's devices."""
        raise NotImplementedError

    def unprepare_claim(self, claim: Message) -> None:
        with self.lock:
            if self.keeps(claim.uid):
                self.cdi_file(claim.uid).unlink(missing_ok=True)
            else:
                super().unprepare_claim(claim)


@fails("frees-devices-after-a-kill")
class KeepsDevicesOfFormerProcesses(KeepsDevices):
    breaks_too = {
        "frees-devices-after-a-reboot": "A reboot also ends the process.",
        "frees-devices-after-a-corruption": "The event that corrupts the files also ends the process.",
    }
    former: frozenset[str] = frozenset()

    def load(self) -> None:
        super().load()
        self.former = frozenset(self.claims)

    def keeps(self, uid: str) -> bool:
        return uid in self.former


@fails("frees-devices-after-a-reboot")
class KeepsDevicesWithoutFiles(KeepsDevices):
    def keeps(self, uid: str) -> bool:
        return uid in self.claims and not self.cdi_file(uid).exists()


@fails("frees-devices-after-a-corruption")
class LosesWhoHasItsDevices(GoodDriver):
    def recover(self, error: Exception) -> None:
        super().recover(error)
        self.claims = {f"unknown-{uid}": record for uid, record in self.claims.items()}
        self.save()


@fails("frees-devices-after-its-state-was-lost")
class TakesWhatItDoesNotKnow(LosesWhoHasItsDevices):
    breaks_too = {"frees-devices-after-a-corruption": "The driver does the same if its files are corrupt."}

    def load(self) -> None:
        super().load()
        if not self.state_file.exists():
            self.recover(FileNotFoundError(str(self.state_file)))


@fails("gives-each-variable-and-path-once")
class SetsOneVariable(GoodDriver):
    def spec(self, uid: str, results: list[Json]) -> Json:
        body = super().spec(uid, results)
        for device, result in zip(body["devices"], results, strict=True):
            device["containerEdits"]["env"].append(f"VISIBLE_CHIPS={result['device']}")
        return body


@fails("prints-little")
class PrintsAllTheTime(GoodDriver):
    def serve(self) -> None:
        super().serve()
        threading.Thread(target=self.print_for_ever, daemon=True).start()

    def print_for_ever(self) -> None:
        while True:
            print("\n".join(["nothing has happened since the last message " * 10] * 200), flush=True)
            time.sleep(0.02)


@fails("prepares-many-claims")
class WorksForTwentyClaims(GoodDriver):
    seen: frozenset[str] = frozenset()

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        self.seen |= {claim.uid}
        if len(self.seen) > 20:
            raise ClaimError("the table of claims is full")
        return super().prepare_claim(claim, context)


@fails("grows-with-no-claim")
class KeepsMegabytesOfEachClaim(GoodDriver):
    must_not_fail = ("prepares-many-claims",)
    kept: tuple[bytes, ...] = ()

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        self.kept = (*self.kept, os.urandom(1 << 22))
        return super().prepare_claim(claim, context)


@fails("grows-with-no-claim")
class LeavesALockForEachClaim(GoodDriver):
    """For each claim, the driver leaves a file whose name does not contain the claim's UID."""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        (self.directory / f"{time.time_ns()}.lock").touch()
        return super().prepare_claim(claim, context)


@fails("grows-with-no-claim")
class LeavesAZombieForEachClaim(GoodDriver):
    """For each claim, the driver starts a command and does not wait for the command to exit."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[subprocess.Popen[bytes]] = []

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        self.started.append(subprocess.Popen(["/bin/true"]))
        return super().prepare_claim(claim, context)


@fails("stays-up")
class EndsByItselfOnce(GoodDriver):
    must_not_fail = ("prepares-many-claims",)  # this check takes longer than the driver's grace period

    def serve(self) -> None:
        super().serve()
        threading.Thread(target=self.end_once, daemon=True).start()

    def end_once(self) -> None:
        self.over.wait(0.5)
        marker = self.directory / "has-ended"
        if not marker.exists():
            marker.touch()
            os._exit(0)


@fails("publishes-devices-for-claims")
class TaintsAllDevices(GoodDriver):
    def devices(self) -> list[Json]:
        return [one | {"taints": [{"key": "example.org/new", "effect": "NoSchedule"}]} for one in super().devices()]


@fails("keeps-its-devices")
class PublishesNothingForAMoment(GoodDriver):
    breaks_too = {"keeps-nodes-apart": "The driver's slices keep changing."}
    is_away = False

    def serve(self) -> None:
        super().serve()
        threading.Thread(target=self.flicker, daemon=True).start()

    def flicker(self) -> None:
        own = f"spec.driver%3D{self.published_name}"
        while not self.over.wait(0.1):
            self.is_away = bool(self.node_uid) and not self.is_away
            with suppress(OSError):  # the other thread has also written the file
                self.reconcile(self.call("GET", f"{SLICES}?fieldSelector={own}")[1]["items"])

    def parts(self) -> list[list[Json]]:
        return [[], []] if self.is_away else super().parts()


@fails("mounts-what-it-has-made")
class MountsAFileThatIsNotThere(GoodDriver):
    def spec(self, uid: str, results: list[Json]) -> Json:
        body = super().spec(uid, results)
        for device in body["devices"]:
            mount = {"hostPath": f"{self.directory}/{device['name']}.json", "containerPath": f"/run/{device['name']}"}
            device["containerEdits"]["mounts"] = [mount]
        return body


@fails("keeps-cdi-devices-after-a-kill", "keeps-cdi-devices-after-sigterm")
class EmptiesItsMountsAtStart(GoodDriver):
    """When the driver starts, it removes files that containers mount, and recreates them only for a prepare call."""

    def load(self) -> None:
        for path in self.directory.glob("*.conf"):
            path.unlink()
        super().load()

    def mounted(self, uid: str) -> Path:
        return self.directory / f"{uid}.conf"

    def spec(self, uid: str, results: list[Json]) -> Json:
        body = super().spec(uid, results)
        self.mounted(uid).touch()
        for device in body["devices"]:
            mount = {"hostPath": str(self.mounted(uid)), "containerPath": f"/run/{device['name']}"}
            device["containerEdits"]["mounts"] = [mount]
        return body

    def release(self, uid: str) -> None:
        self.mounted(uid).unlink(missing_ok=True)
        super().release(uid)


@fails("names-absolute-paths-in-cdi-files")
class NamesAHookFromItsPath(GoodDriver):
    def spec(self, uid: str, results: list[Json]) -> Json:
        body = super().spec(uid, results)
        for device in body["devices"]:
            device["containerEdits"]["hooks"] = [{"hookName": "createContainer", "path": "chip-hook"}]
        return body


@fails("keeps-cdi-devices-without-the-api-server")
class RemovesWhatItCannotList(GoodDriver):
    """Every half second, the driver removes the files of claims that it does not find on the API server."""

    breaks_too = {"asks-the-api-server-rarely": "Each list of claims is a request."}

    def serve(self) -> None:
        super().serve()
        threading.Thread(target=self.clean_up, daemon=True).start()

    def clean_up(self) -> None:
        while not self.over.wait(0.5):
            self.remove_unlisted()

    def remove_unlisted(self) -> None:
        try:
            found = self.call("GET", "/apis/resource.k8s.io/v1/resourceclaims")[1].get("items", [])
        except (OSError, http.client.HTTPException):
            found = []
        uids = {one["metadata"]["uid"] for one in found}
        with self.lock:
            for uid in self.claims.keys() - uids:
                self.cdi_file(uid).unlink(missing_ok=True)


@fails("keeps-cdi-devices-at-a-start-without-the-api-server")
class RemovesAtAStartWhatItCannotList(RemovesWhatItCannotList):
    """At each start, the driver removes the files of claims that it does not find on the API server."""

    breaks_too = {}

    def clean_up(self) -> None:
        self.remove_unlisted()


@fails("keeps-cdi-devices-after-sigterm")
class RemovesItsHookAtSigterm(GoodDriver):
    """Each process has its own copy of a hook, and removes it when it ends."""

    breaks_too = {"prepares-claims-after-sigterm": "The claims' hook is missing."}

    def load(self) -> None:
        self.hook = self.directory / f"hook-{os.getpid()}"
        self.hook.write_text("#!/bin/sh\n", encoding="utf-8")
        super().load()

    def leave(self) -> None:
        super().leave()
        self.hook.unlink()

    def spec(self, uid: str, results: list[Json]) -> Json:
        hook = {"hookName": "createContainer", "path": str(self.hook)}
        return super().spec(uid, results) | {"containerEdits": {"hooks": [hook]}}

    def write_cdi(self, uid: str, results: list[Json]) -> None:
        if not self.cdi_file(uid).exists():
            super().write_cdi(uid, results)
