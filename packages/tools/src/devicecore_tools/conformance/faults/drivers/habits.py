"""Drivers that behave like real ones.

Law: no check fails on the correct drivers. The incorrect drivers are not injected faults, so a test chooses the checks
for each of them.
"""

import itertools
import json
import os
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from devicecore_tools.conformance.faults.drivers.slices import EvictsAllPodsAtARestart
from devicecore_tools.conformance.faults.good_driver import SLICES, ClaimError, GoodDriver, Json, Message, write

PANIC = "panic: assignment to entry in nil map\n\ngoroutine 1 [running]:\nmain.main()"
_PROCESSORS = 8


class WorksThroughTheRuntime(GoodDriver):
    """Like network device drivers: the driver is an NRI plugin, and exits when the container runtime does.

    The driver returns no devices and writes no CDI files, and sends its data to the runtime in pieces.
    """

    is_good = True

    def serve(self) -> None:
        super().serve()
        self.runtime = socket.socket(fileno=int(os.environ["NRI_PLUGIN_SOCKET"]))
        payload = field(1, self.name.encode()) + field(2, b"00")
        service = field(1, b"nri.pkg.api.v1alpha1.Runtime") + field(2, b"RegisterPlugin")
        register = service + field(3, payload)
        for piece in (struct.pack(">IIBB", len(register), 1, 1, 0), register[:9], register[9:]):
            self.runtime.sendall(struct.pack(">II", 2, len(piece)) + piece)
        for expected in (b"", b"Configure", b"Synchronize"):
            connection, _ = struct.unpack(">II", self.runtime.recv(8, socket.MSG_WAITALL))
            size, call, kind, _ = struct.unpack(">IIBB", self.runtime.recv(10, socket.MSG_WAITALL))
            body = self.runtime.recv(size, socket.MSG_WAITALL)
            if expected not in body or connection != (1 if expected else 2):
                sys.exit(f"expected {expected!r} from the runtime, got {body!r} on connection {connection}")
            if kind == 1:
                answer = struct.pack(">IIBB", 0, call, 2, 0)
                self.runtime.sendall(struct.pack(">II", connection, len(answer)) + answer)
        threading.Thread(target=self.end_with_the_runtime, daemon=True).start()

    def end_with_the_runtime(self) -> None:
        self.runtime.recv(1)
        print("the runtime is gone", flush=True)
        os._exit(1)

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        super().prepare_claim(claim, context)
        return []

    def write_cdi(self, uid: str, results: list[Json]) -> None:
        pass


def field(number: int, value: bytes) -> bytes:
    """Return a short field of a protobuf message."""
    return bytes([number << 3 | 2, len(value)]) + value


class SharesCapacity(GoodDriver):
    """Like CPU drivers: one device that many claims share up to its capacity, without a default request."""

    is_good = True

    def devices(self) -> list[Json]:
        capacity = {"chip.example.org/cpu": {"value": str(_PROCESSORS)}}
        attributes = {
            "resource.kubernetes.io/numaNode": {"ints": [0, 1]},
            "resource.kubernetes.io/pcieRoot": {"strings": ["pci0000:00", "pci0000:80"]},
        }
        return [{"name": "cpus", "allowMultipleAllocations": True, "capacity": capacity, "attributes": attributes}]

    def parts(self) -> list[list[Json]]:
        return [self.devices()]

    def results_of(self, allocation: Json) -> list[Json]:
        for one in allocation["results"]:
            if one["driver"] != self.name and one.keys() & {"shareID", "consumedCapacity"}:
                raise ClaimError("another driver's device has a share of one of this driver's devices")
        return super().results_of(allocation)

    def check_free(self, uid: str, results: list[Json]) -> None:
        held = [record["results"] for other, record in self.claims.items() if other != uid]
        amounts = [one["consumedCapacity"]["chip.example.org/cpu"] for many in (results, *held) for one in many]
        if sum(map(int, amounts)) > _PROCESSORS:
            raise ClaimError("there are too few processors")


class PublishesLate(GoodDriver):
    """At a start, the driver publishes slices without devices, registers, and adds the devices half a second later."""

    is_good = True
    is_ready = False

    def slices(self) -> list[Json]:
        return [spec | ({} if self.is_ready else {"devices": []}) for spec in super().slices()]

    def serve(self) -> None:
        self.publish_and_watch()
        super().serve()

    def watch(self, path: str, version: str) -> None:
        if self.is_ready:
            super().watch(path, version)
        elif self.servers:
            self.is_ready = self.over.wait(0.5) or True


class WritesAndForgets(GoodDriver):
    """The driver watches its slices and keeps updating them, but does not recreate them."""

    def watch(self, path: str, version: str) -> None:
        threading.Thread(target=super().watch, args=(path, version), daemon=True).start()
        while not self.over.wait(0.3):
            for item in self.call("GET", SLICES)[1]["items"]:
                self.call("PUT", f"{SLICES}/{item['metadata']['name']}", item)


class RenamesItsDevices(GoodDriver):
    """The driver's devices have new names after each start, so claims from before the start hold none of them."""

    is_good = True

    def devices(self) -> list[Json]:
        return [device | {"name": f"{device['name']}-{os.getpid()}"} for device in super().devices()]


class KeepsADamagedFile(GoodDriver):
    """The driver starts despite a damaged file, and exits because of the damage only at the next start."""

    def load(self) -> None:
        marker = self.directory / "damaged"
        try:
            json.loads(self.state_file.read_text(encoding="utf-8"))
        except ValueError:
            if marker.exists():
                print("panic: page 3: invalid page type", flush=True)
                os._exit(2)
            marker.write_text("once", encoding="utf-8")
            self.claims = {}
            return
        except FileNotFoundError:
            pass
        super().load()

    def save(self) -> None:
        if not (self.directory / "damaged").exists():
            super().save()


class RefusesAllWithADamagedFile(GoodDriver):
    """While a damaged file hides which devices are in use, the driver prepares nothing but unprepares any claim."""

    is_damaged = False

    def recover(self, error: Exception) -> None:
        self.is_damaged = True

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        if self.is_damaged:
            raise ClaimError(f"{self.state_file} is damaged, so it is unknown which devices are in use")
        return super().prepare_claim(claim, context)


class HasTwoDevices(RefusesAllWithADamagedFile):
    """The driver has too few devices for all checks that share an event."""

    def parts(self) -> list[list[Json]]:
        return [self.devices()[:2]]


class PublishesOnceRegistered(GoodDriver):
    """The driver publishes its slices only after a kubelet has registered the driver."""

    def __init__(self) -> None:
        super().__init__()
        self.is_registered = threading.Event()

    def notify(self, status: Message, context: grpc.ServicerContext) -> Message:
        self.is_registered.set()
        return super().notify(status, context)

    def publish_for_ever(self) -> None:
        self.is_registered.wait()
        super().publish_for_ever()


class SwingsInOpenFiles(GoodDriver):
    """The driver constantly opens and closes many files."""

    is_good = True

    def serve(self) -> None:
        super().serve()
        threading.Thread(target=self.swing, daemon=True).start()

    def swing(self) -> None:
        for seconds in itertools.cycle((0.3, 0.6)):
            files = [Path(os.devnull).open("rb") for _ in range(80 if seconds > 0.5 else 0)]  # noqa: SIM115 - during the longer time, they stay open
            self.over.wait(seconds)
            for file in files:
                file.close()


class NeedsAllItsDevices(GoodDriver):
    """Like drivers for accelerators that only work together: the driver refuses claims for fewer than all devices."""

    def parts(self) -> list[list[Json]]:
        return super().parts()[:1]

    def check_free(self, uid: str, results: list[Json]) -> None:
        if len(results) != len(self.parts()[0]):
            raise ClaimError("a claim must have all devices")
        super().check_free(uid, results)


class HasNoSharedDevice(GoodDriver):
    """No device may be allocated several times."""

    is_good = True

    def devices(self) -> list[Json]:
        return [one for one in super().devices() if not one.get("allowMultipleAllocations")]


class HasOneDevice(GoodDriver):
    """The driver has one device, like a network driver on a node with a single card."""

    is_good = True

    def parts(self) -> list[list[Json]]:
        return [self.devices()[:1]]


class GivesNothingForAChip(GoodDriver):
    """For every second chip, containers need nothing, so the answer has no CDI device for such a chip."""

    is_good = True

    @staticmethod
    def needs(result: Json) -> bool:
        """Return whether containers need something for a device."""
        return int(result["device"][-1]) % 2 == 0

    def device(self, uid: str, result: Json) -> Message:
        device = super().device(uid, result)
        if not self.needs(result):
            del device.cdi_device_ids[:]
        return device

    def write_cdi(self, uid: str, results: list[Json]) -> None:
        super().write_cdi(uid, [result for result in results if self.needs(result)])


class HasTwoPools(GoodDriver):
    """The devices of the driver's two pools have the same names. Their edits distinguish them by PCI address."""

    def slices(self) -> list[Json]:
        (spec,) = super().slices()
        return [spec | {"pool": spec["pool"] | {"name": pool}, "devices": self.devices_in(pool)} for pool in self.pools]

    def parts(self) -> list[list[Json]]:
        return [self.devices()[:2]]

    @property
    def pools(self) -> list[str]:
        return [f"{self.pool}-{number}" for number in range(2)]

    def address(self, pool: str, device: str) -> str:
        return f"{self.pools.index(pool):04}:{device[-1:]:>02}:00.0"

    def devices_in(self, pool: str) -> list[Json]:
        return [
            {
                "name": one["name"],
                "attributes": {"resource.kubernetes.io/pciBusID": {"string": self.address(pool, one["name"])}},
            }
            for one in self.parts()[0]
        ]

    def results_of(self, allocation: Json) -> list[Json]:
        own = [one for one in allocation["results"] if one["driver"] == self.name]
        found = super().results_of(allocation | {"results": [one | {"pool": self.pool} for one in own]})
        return [result | {"pool": one["pool"]} for result, one in zip(found, own, strict=True)]

    def spec(self, uid: str, results: list[Json]) -> Json:
        spec = super().spec(uid, results)
        for device, result in zip(spec["devices"], results, strict=True):
            device["containerEdits"]["env"] = [f"CHIP={self.address(result['pool'], result['device'])}"]
        return spec


class TakesTheOtherPool(HasTwoPools):
    """A container gets the device that has the same name in the other pool."""

    def spec(self, uid: str, results: list[Json]) -> Json:
        first, second = self.pools
        other = {first: second, second: first}
        return super().spec(uid, [one | {"pool": other[one["pool"]]} for one in results])


class LosesItsOnlyDevice(HasOneDevice):
    """The driver does not release the device of a claim with a very long name."""

    def unprepare_claim(self, claim: Message) -> None:
        if len(claim.name) < 200:
            super().unprepare_claim(claim)


class UnpreparesLate(HasOneDevice):
    """The first call to unprepare a claim takes half a second, and does nothing if the kubelet has canceled it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def unprepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        new = {claim.uid for claim in request.claims} - self.seen
        self.seen |= new
        if new:
            time.sleep(0.5)
            if self.is_given_up(context):
                raise ClaimError("the call was canceled")
        return super().unprepare(request, context)


class NeverUnprepares(HasOneDevice):
    """A call to unprepare a claim never ends."""

    def unprepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        self.over.wait()
        return super().unprepare(request, context)


class WritesMetadata(GoodDriver):
    """Like Go drivers with device metadata: one file per request, mounted through a separate CDI device."""

    is_good = True
    cdi_version = "0.5.0"
    options_of_mounts: tuple[str, ...] = ("ro", "bind")

    def devices(self) -> list[Json]:
        """Return two devices without a taint, and others with one."""
        taints = [{"key": "broken", "effect": "NoSchedule"}]
        return [one | {"taints": taints if number > 1 else []} for number, one in enumerate(super().devices())]

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        with self.lock:  # two calls may prepare the same claim
            self.write_metadata(claim, devices)
        return devices

    def write_metadata(self, claim: Message, devices: list[Message]) -> None:
        """Write the metadata of each request, and add a CDI device that mounts it."""
        for request in sorted({device.request_names[0] for device in devices}):
            of_request = [device for device in devices if device.request_names[0] == request]
            path = self.metadata_of(claim) / request / "metadata.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [self.described(device.device_name, of_request[0].device_name) for device in of_request]
            write(path, json.dumps({"kind": "DeviceMetadata", "requests": [{"name": request, "devices": rows}]}))
            mount = {
                "hostPath": str(path),
                "containerPath": f"/var/run/kubernetes.io/{claim.name}/{request}.json",
                "options": self.options_of_mounts,
            }
            device = {"name": f"{claim.uid}_{request}", "containerEdits": {"mounts": [mount]}}
            spec = {"cdiVersion": self.cdi_version, "kind": f"{self.name}/metadata", "devices": [device]}
            (self.cdi / f"{self.name}_metadata_{claim.uid}_{request}.json").write_text(json.dumps(spec))
            for one in of_request:
                one.cdi_device_ids.append(f"{self.name}/metadata={claim.uid}_{request}")

    def described(self, name: str, _first: str) -> Json:
        """Return the metadata of a device. `_first` is the name of the first device in the request."""
        attributes = next(one.get("attributes", {}) for one in self.devices() if one["name"] == name)
        return {"driver": self.name, "pool": self.pool, "name": name, "attributes": attributes}

    def unprepare_claim(self, claim: Message) -> None:
        super().unprepare_claim(claim)
        for path in self.cdi.glob(f"{self.name}_metadata_{claim.uid}_*.json"):
            path.unlink()
        self.remove_metadata(claim)

    def metadata_of(self, claim: Message) -> Path:
        return self.directory / "dra-device-metadata" / str(claim.uid)

    def remove_metadata(self, claim: Message) -> None:
        shutil.rmtree(self.metadata_of(claim), ignore_errors=True)


class NamesMetadataByClaims(WritesMetadata):
    """Like Kubernetes' kubeletplugin, which cannot name its directory after a claim with a very long name."""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        if self.has_metadata(claim):
            return super().prepare_claim(claim, context)
        return GoodDriver.prepare_claim(self, claim, context)

    def metadata_of(self, claim: Message) -> Path:
        return self.directory / "dra-device-metadata" / f"{claim.namespace}_{claim.name}"

    def has_metadata(self, claim: Message) -> bool:
        return len(self.metadata_of(claim).name) <= os.pathconf(self.directory, "PC_NAME_MAX")

    def remove_metadata(self, claim: Message) -> None:
        if not self.has_metadata(claim):
            raise ClaimError(f"remove metadata directory {self.metadata_of(claim)}: file name too long")
        super().remove_metadata(claim)


class DescribesDevicesOnce(WritesMetadata):
    """One permanent CDI file contains all devices. Only the CDI device that mounts the metadata belongs to a claim."""

    @property
    def standing(self) -> Path:
        return self.cdi / f"{self.name}-all.json"

    def load(self) -> None:
        super().load()
        self.write_cdi("", [])

    def cdi_name(self, _uid: str, result: Json) -> str:
        return str(result["device"])

    def write_cdi(self, uid: str, _results: list[Json]) -> None:
        results = [{"device": one["name"], "mode": "default"} for one in super().devices()]
        write(self.standing, json.dumps(self.spec(uid, results)))

    def recover(self, _: Exception) -> None:
        self.save()


class PanicsWhenItIsRefused(GoodDriver):
    """The driver crashes when its registration is refused, and its supervisor restarts it."""

    def notify(self, status: Message, context: grpc.ServicerContext) -> Message:
        if not status.plugin_registered:
            print(f"before\n{PANIC}", flush=True)
            os._exit(2)
        return super().notify(status, context)


class PanicsOverTwoDevices(GoodDriver):
    """The driver crashes on each claim for two devices, and its supervisor restarts it."""

    def results_of(self, allocation: Json) -> list[Json]:
        results = super().results_of(allocation)
        if len(results) > 1:
            print(PANIC, flush=True)
            os._exit(2)
        return results


class KnowsNoAdministrators(GoodDriver):
    """The driver refuses every claim with adminAccess."""

    is_good = True

    def results_of(self, allocation: Json) -> list[Json]:
        if any(one.get("adminAccess") for one in allocation["results"]):
            raise ClaimError("adminAccess to these devices is not possible")
        return super().results_of(allocation)


class RestartsItself(GoodDriver):
    """The driver exits with status 0 for reasons of its own, and its supervisor restarts it."""

    def end_once(self, occasion: str) -> None:
        marker = self.directory / occasion
        if not marker.exists():
            marker.touch()
            os._exit(0)

    def get_info(self, request: Message, context: grpc.ServicerContext) -> Message:
        with (self.directory / "asked").open("a+") as asked:
            asked.write(".")
            if asked.tell() == 3:  # the second call follows the driver's restart, and this one follows the kubelet's
                self.end_once("asked-again")
        return super().get_info(request, context)

    def watch_health(self, request: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        threading.Timer(1.0, self.end_once, ["watched"]).start()
        return super().watch_health(request, context)


class PreparesSlowly(GoodDriver):
    """Like drivers that reset or partition a device for each claim: preparing a claim takes 0.3 seconds."""

    is_good = True

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        time.sleep(0.3)
        return super().prepare_claim(claim, context)


class PreparesOneByOne(PreparesSlowly):
    """The driver prepares slowly, one claim at a time, and never one with a long name."""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        while len(claim.name) > 200 and not self.is_given_up(context):
            self.over.wait(0.1)
        with self.lock:
            return super().prepare_claim(claim, context)


class WarmsUp(EvictsAllPodsAtARestart):
    """For a second after each start, no claim without a toleration gets one of the devices."""

    is_good = True
    fails = ()
    effect = "NoSchedule"

    def __init__(self) -> None:
        super().__init__()
        self.is_ready = False
