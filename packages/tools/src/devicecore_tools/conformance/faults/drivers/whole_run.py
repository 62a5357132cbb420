"""Drivers with one fault that shows only in some of a run's calls, or after some of its events.

Law: each driver fails the checks that it names, and no others except those in `breaks_too`.
"""

import time

import grpc

from devicecore_tools.conformance.faults.good_driver import GoodDriver, Json, Message, claim_path, fails, write


@fails("keeps-prepared-claims-as-they-are")
class RemovesFilesAfterARestart(GoodDriver):
    """When a process writes its first CDI file, the process removes those that an earlier process has written."""

    must_not_fail = ("frees-devices-after-a-kill", "prepares-the-same-after-a-restart", "unprepares-after-a-restart")
    is_new = True

    def write_cdi(self, uid: str, results: list[Json]) -> None:
        if self.is_new:
            self.is_new = False
            for path in self.cdi.glob(f"{self.name}_*.json"):
                path.unlink()
        super().write_cdi(uid, results)


@fails("prepares-later-claims-as-fast")
class TakesLongerEachTime(GoodDriver):
    """The driver takes much longer for a claim if it has prepared many others."""

    must_not_fail = ("prepares-many-claims",)
    prepared = 0

    def write_cdi(self, uid: str, results: list[Json]) -> None:
        super().write_cdi(uid, results)
        self.prepared += 1
        if self.prepared > 30:
            time.sleep(0.15)


@fails("prepares-later-claims-as-fast")
class TakesLongerToReadEachTime(GoodDriver):
    """Once the driver has prepared many claims, it waits before it reads the next one."""

    must_not_fail = ("prepares-many-claims",)
    prepared = 0

    def allocated(self, claim: Message) -> Json:
        self.prepared += 1
        if self.prepared > 36:
            time.sleep(0.3)
        return super().allocated(claim)


@fails("answers-correctly-each-time")
class DescribesTwoDevices(GoodDriver):
    """The CDI file for a claim describes at most two devices."""

    must_not_fail = ("prepares-many-devices-in-one-claim", "prepares-a-claim-of-two-devices")

    def spec(self, uid: str, results: list[Json]) -> Json:
        return super().spec(uid, results[:2])


@fails("leaves-nothing-of-unprepared-claims")
class LeavesFilesOfManyDevices(GoodDriver):
    """The driver does not remove the CDI file of a claim for more than two devices."""

    must_not_fail = ("prepares-many-devices-in-one-claim", "prepares-a-claim-of-two-devices")

    def release(self, uid: str) -> None:
        path, known = self.cdi_file(uid), self.claims.get(uid, {"results": []})
        text = path.read_text(encoding="utf-8") if len(known["results"]) > 2 and path.exists() else ""
        super().release(uid)
        if text:
            write(path, text)


@fails("releases-the-devices-of-each-claim")
class KeepsConfiguredDevices(GoodDriver):
    """The driver does not release the devices of claims with a configuration for another driver."""

    must_not_fail = ("ignores-the-configuration-of-other-drivers", "prepares-a-claim")

    def allocated(self, claim: Message) -> Json:
        allocation = super().allocated(claim)
        for result in allocation["results"]:
            result["configured"] = any(one["opaque"]["driver"] != self.name for one in allocation.get("config") or ())
        return allocation

    def release(self, uid: str) -> None:
        known = self.claims.get(uid)
        super().release(uid)
        if known is not None and any(one.get("configured") for one in known["results"]):
            self.claims[f"former-{uid}"] = known
            self.save()


@fails("writes-only-its-part-of-claims")
class GuardsClaimsForTwoDevices(GoodDriver):
    """While a claim for several devices is prepared, the driver has a finalizer on the claim."""

    must_not_fail = ("prepares-a-claim-of-two-devices", "leaves-claims-as-they-are")

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        if len(devices) > 1:
            self.guard(claim, [f"{self.name}/prepared"])
        return devices

    def unprepare_claim(self, claim: Message) -> None:
        super().unprepare_claim(claim)
        self.guard(claim, [])

    def guard(self, claim: Message, finalizers: list[str]) -> None:
        """Replace the claim's finalizers, if they differ."""
        path = claim_path(claim.namespace, claim.name)
        body = self.call("GET", path)[1]
        if body.get("metadata", {}).get("finalizers", []) != finalizers:
            body["metadata"]["finalizers"] = finalizers
            self.call("PUT", path, body)


@fails("publishes-its-devices-after-each-event")
class PublishesFreeDevicesAtAStart(GoodDriver):
    """When the driver starts, it publishes only devices that no claim holds."""

    must_not_fail = ("keeps-prepared-claims-as-they-are", "prepares-the-same-after-a-restart", "replaces-stale-sockets")

    def load(self) -> None:
        super().load()
        self.held = {one["device"] for record in self.claims.values() for one in record["results"]}

    def devices(self) -> list[Json]:
        return [one for one in super().devices() if one["name"] not in self.held]
