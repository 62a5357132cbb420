"""Drivers with one fault whose devices appear and disappear.

Law: each driver fails the checks that it names, and no others except those in `breaks_too`.
"""

import threading

import grpc

from devicecore_tools.conformance.faults.good_driver import SLICES, ClaimError, GoodDriver, Json, Message, fails


class HotPlugs(GoodDriver):
    """A chip is gone while the plugins directory contains a file named `unplugged`."""

    is_good = True
    options = ("--provoke-devices", "touch {plugins}/unplugged", "--undo-devices", "rm -f {plugins}/unplugged")

    def __init__(self) -> None:
        super().__init__()
        self.generation = 1
        self.publishing = threading.RLock()

    def is_unplugged(self) -> bool:
        return (self.directory.parent / "unplugged").exists()

    def devices(self) -> list[Json]:
        return super().devices()[1 if self.is_unplugged() else 0 :]

    def slices(self) -> list[Json]:
        return [spec | {"pool": spec["pool"] | {"generation": self.generation}} for spec in super().slices()]

    def serve(self) -> None:
        super().serve()
        threading.Thread(target=self.look, daemon=True).start()

    def look(self) -> None:
        before = self.is_unplugged()
        while not self.over.wait(0.1):
            if self.is_unplugged() != before:
                before = not before
                self.change()

    def change(self) -> None:
        """Publish the changed devices."""
        items = self.call("GET", SLICES)[1]["items"]
        self.reconcile([item for item in items if item["spec"]["driver"] == self.name])

    def reconcile(self, items: list[Json]) -> None:
        with self.publishing:
            own = [item["spec"] for item in items if item["spec"]["pool"]["name"] == self.pool]
            self.generation = max([self.generation, *(spec["pool"]["generation"] for spec in own)])
            if own and sorted(map(str, own)) != sorted(map(str, self.slices())):
                self.generation += 1
            super().reconcile(items)


@fails("publishes-a-change-of-devices", "publishes-a-valid-change")
class TaintsWithASentence(HotPlugs):
    """The taint of a removed device has a value that is not a valid label value."""

    settings = {"republishing": 5.0}

    def devices(self) -> list[Json]:
        devices = GoodDriver.devices(self)
        if self.is_unplugged():
            devices[0]["taints"] = [{"key": "example.org/hot", "value": "above 95 C", "effect": "NoSchedule"}]
        return devices


@fails("publishes-a-change-of-devices")
class PublishesNoChange(HotPlugs):
    settings = {"republishing": 5.0}

    def devices(self) -> list[Json]:
        return GoodDriver.devices(self)


@fails("publishes-a-change-of-devices", "keeps-a-changed-pool-whole")
class ChangesOneSlice(HotPlugs):
    """The driver raises the generation of only one of two slices, so its pool is incomplete."""

    settings = {"republishing": 5.0}

    def change(self) -> None:
        self.generation += 1
        first = self.slices()[0]
        for item in self.call("GET", SLICES)[1]["items"]:
            if item["spec"]["driver"] == self.name and item["metadata"]["name"].endswith("-0"):
                self.call("PUT", f"{SLICES}/{item['metadata']['name']}", item | {"spec": first})

    def reconcile(self, items: list[Json]) -> None:
        if not self.is_unplugged():
            super().reconcile(items)


class TaintsUnpluggedDevices(HotPlugs):
    """The removed chip stays published, with a taint."""

    is_good = True

    def devices(self) -> list[Json]:
        first, *others = GoodDriver.devices(self)
        taint = {"taints": [{"key": f"{self.name}/unplugged", "effect": "NoExecute"}]} if self.is_unplugged() else {}
        return [first | taint, *others]


@fails("keeps-a-changed-pool-whole")
class KeepsItsGeneration(HotPlugs):
    """Both slices change, but the generation does not."""

    def reconcile(self, items: list[Json]) -> None:
        GoodDriver.reconcile(self, items)


@fails("publishes-devices-that-come-back")
class NeverSeesDevicesAgain(HotPlugs):
    settings = {"republishing": 5.0}
    was_unplugged = False

    def is_unplugged(self) -> bool:
        self.was_unplugged = self.was_unplugged or super().is_unplugged()
        return self.was_unplugged


@fails("unprepares-a-claim-of-a-gone-device")
class HoldsGoneDevices(HotPlugs):
    def unprepare_claim(self, claim: Message) -> None:
        names = {device["name"] for device in self.devices()}
        if any(one["device"] not in names for one in self.claims.get(claim.uid, {}).get("results", ())):
            raise ClaimError("the device is gone")
        super().unprepare_claim(claim)


@fails("refuses-a-device-that-has-gone")
class PreparesGoneDevices(HotPlugs):
    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        try:
            return super().prepare_claim(claim, context)
        except ClaimError:
            if self.is_unplugged():
                return []
            raise


@fails("keeps-the-attributes-of-its-devices")
class LosesItsAttributes(HotPlugs):
    """While a device is missing, the others are published without attributes or capacity."""

    def devices(self) -> list[Json]:
        devices = super().devices()
        if self.is_unplugged():
            devices = [{"name": one["name"]} for one in devices]
        return devices
