"""Drivers with one fault in their CDI files.

Law: each driver fails the checks that it names, and no others except those in `breaks_too`.
"""

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc

from devicecore_tools.conformance.faults.drivers.habits import WritesMetadata
from devicecore_tools.conformance.faults.good_driver import ClaimError, GoodDriver, Json, Message, fails, write


def _parameters(mode: str) -> list[Json]:
    return [{"opaque": {"driver": "chip.example.org", "parameters": {"kind": "ChipConfig", "mode": mode}}}]


_REQUEST = {"name": "chip", "exactly": {"deviceClassName": "chips"}}
_CLAIM: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "fast"},
    "spec": {"devices": {"requests": [_REQUEST], "config": _parameters("fast")}},
}
_CLASS: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "chips"},
    "spec": {
        "selectors": [{"cel": {"expression": 'device.driver == "chip.example.org"'}}],
        "config": _parameters("slow"),
    },
}


@fails("answers-valid-cdi-names")
class CommaInName(GoodDriver):
    def device(self, uid: str, result: Json) -> Message:
        device = super().device(uid, result)
        device.cdi_device_ids.append(f"{self.kind}=chip,all")
        return device


@fails("answers-resolvable-cdi-names")
class NameOfNoDevice(GoodDriver):
    breaks_too = dict.fromkeys(
        [
            "prepares-claims-at-the-same-time",
            "separates-claims-of-the-same-name",
            "separates-shares-of-a-device",
            "prepares-two-shares-in-one-claim",
            "unprepares-at-the-same-time",
        ],
        "These checks also resolve the names of CDI devices.",
    )

    def device(self, uid: str, result: Json) -> Message:
        device = super().device(uid, result)
        device.cdi_device_ids[0] += "-x"
        return device


@fails("writes-valid-cdi-files")
class UnknownField(GoodDriver):
    def load(self) -> None:
        super().load()
        device = {"name": "all", "containerEdits": {"env": ["ALL=1"], "volumes": []}}
        spec = {"cdiVersion": "0.5.0", "kind": "example.org/chips", "devices": [device]}
        (self.cdi / f"{self.name}.json").write_text(json.dumps(spec))

    def recover(self, error: Exception) -> None:
        (self.cdi / f"{self.name}.json").unlink()
        super().recover(error)


@fails("writes-valid-cdi-files")
class SaysAnOldVersion(GoodDriver):
    """The CDI files have version 0.3.0, in which no name may start with a digit, as most UIDs do."""

    def spec(self, uid: str, results: list[Json]) -> Json:
        return super().spec(uid, results) | {"cdiVersion": "0.3.0"}


@fails("writes-valid-cdi-files")
class OldMetadata(WritesMetadata):
    """The driver behaves as if built with the first release of Kubernetes' helper that supports device metadata."""

    cdi_version = "0.3.0"


@fails("describes-its-devices-in-metadata")
class DescribesTheFirstDevice(WritesMetadata):
    """Each device's metadata contains the attributes of the first device in its request."""

    is_good = False

    def described(self, name: str, first: str) -> Json:
        return super().described(name, first) | {"attributes": super().described(first, first)["attributes"]}


@fails("describes-its-devices-in-metadata")
class DescribesOneDevice(WritesMetadata):
    """A request's metadata repeats its first device in place of the others."""

    is_good = False

    def described(self, _: str, first: str) -> Json:
        return super().described(first, first)


@fails("mounts-metadata-read-only")
class MountsWritableMetadata(WritesMetadata):
    is_good = False
    options_of_mounts = ("bind",)


@fails("writes-cdi-files-in-one-step")
class WritesInPlace(GoodDriver):
    def write_cdi(self, uid: str, results: list[Json]) -> None:
        self.cdi_file(uid).write_text(json.dumps(self.spec(uid, results)))


@fails("protects-its-cdi-files")
class AnybodyMayWrite(GoodDriver):
    def write_cdi(self, uid: str, results: list[Json]) -> None:
        super().write_cdi(uid, results)
        self.cdi_file(uid).chmod(0o666)


@fails("names-existing-paths-in-cdi-files")
class MissingLibrary(GoodDriver):
    def spec(self, uid: str, results: list[Json]) -> Json:
        mount = {"hostPath": "/no/such/libchip.so", "containerPath": "/usr/lib/libchip.so"}
        return super().spec(uid, results) | {"containerEdits": {"mounts": [mount]}}


@fails("removes-cdi-devices")
class LeavesFiles(GoodDriver):
    """The driver leaves files with unrelated names behind."""

    def write_cdi(self, uid: str, results: list[Json]) -> None:
        super().write_cdi(uid, results)
        number = time.time_ns()
        spec = self.spec(uid, results) | {"kind": "example.org/left"}
        for index, device in enumerate(spec["devices"]):
            device["name"] = f"n{number}-{index}"
        write(self.cdi / f"left-{number}.json", json.dumps(spec))


@fails("removes-cdi-devices")
class LeavesMetadata(WritesMetadata):
    def remove_metadata(self, claim: Message) -> None:
        pass


@fails("keeps-the-cdi-devices-of-other-claims")
class OneFileForAll(GoodDriver):
    """All claims share one CDI device, which changes with the number of claims."""

    breaks_too = {"separates-claims-of-the-same-name": "This check also uses two claims."}

    def device(self, uid: str, result: Json) -> Message:
        device = super().device(uid, result)
        device.cdi_device_ids.append(f"{self.kind}s=all")
        return device

    def write_cdi(self, uid: str, results: list[Json]) -> None:
        super().write_cdi(uid, results)
        shared = {"name": "all", "containerEdits": {"env": [f"CLAIMS={len(self.claims)}"]}}
        spec = {"cdiVersion": "0.5.0", "kind": f"{self.kind}s", "devices": [shared]}
        write(self.cdi / f"{self.name}.json", json.dumps(spec))

    def recover(self, error: Exception) -> None:
        (self.cdi / f"{self.name}.json").unlink(missing_ok=True)
        super().recover(error)


@fails("gives-new-claims-new-cdi-devices")
class NamesOfDevices(GoodDriver):
    breaks_too = {
        "separates-shares-of-a-device": "Both shares of a device have the same name.",
        "prepares-two-shares-in-one-claim": "Both shares of a device have the same name.",
        "gives-each-variable-and-path-once": "Two claims of a pod set the same variable.",
    }

    def cdi_name(self, uid: str, result: Json) -> str:
        return str(result["device"])

    def spec(self, uid: str, results: list[Json]) -> Json:
        spec = super().spec(uid, results)
        for device in spec["devices"]:
            device["containerEdits"]["env"].append(f"CLAIM={uid}")
        return spec


@fails("separates-cdi-devices-by-request")
class AllForEach(GoodDriver):
    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        names = [name for device in devices for name in device.cdi_device_ids]
        for device in devices:
            device.cdi_device_ids[:] = names
        return devices


@fails("answers-resolvable-cdi-names")
class WrongNameOfTheSecondDevice(GoodDriver):
    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        first, *others = super().prepare_claim(claim, context)
        for device in others:
            device.cdi_device_ids[0] += "-x"
        return [first, *others]


@fails("makes-cdi-devices-for-each-device")
class OnlyTheFirstDevice(GoodDriver):
    """All devices of a request get the first device's CDI device."""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        devices = super().prepare_claim(claim, context)
        first: dict[str, list[str]] = {}
        for device in devices:
            device.cdi_device_ids[:] = first.setdefault(" ".join(device.request_names), list(device.cdi_device_ids))
        return devices


@fails("separates-cdi-devices-by-claim")
class AllClaimsOfTheCall(GoodDriver):
    """Each claim in a call gets the CDI devices of all the call's claims."""

    breaks_too = {"prepares-the-claims-of-a-pod": "A claim in a separate call has different CDI devices."}

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        answer = super().prepare(request, context)
        entries = list(answer.claims.values())
        names = [name for entry in entries for device in entry.devices for name in device.cdi_device_ids]
        if len(entries) > 1 and all(len(entry.devices) == 1 for entry in entries):
            for entry in entries:
                entry.devices[0].cdi_device_ids[:] = names
        return answer


@fails("makes-cdi-devices-of-the-allocated-device")
class TakesTheNextDevice(GoodDriver):
    """The driver counts from one, although its devices are numbered from zero."""

    def spec(self, uid: str, results: list[Json]) -> Json:
        spec = super().spec(uid, results)
        names = [device["name"] for device in self.devices()]
        for device, result in zip(spec["devices"], results, strict=True):
            following = names[(names.index(result["device"]) + 1) % len(names)]
            device["containerEdits"]["env"] = [f"CHIP_{following.upper().replace('-', '_')}={result['mode']}"]
        return spec


@fails("reports-that-it-cannot-write")
class IgnoresItsErrors(GoodDriver):
    breaks_too = {"reports-that-it-cannot-remove": "The driver also ignores that it cannot remove a file."}

    def release(self, uid: str) -> None:
        with suppress(OSError):
            super().release(uid)

    def write_cdi(self, uid: str, results: list[Json]) -> None:
        with suppress(OSError):
            super().write_cdi(uid, results)


@fails("reports-that-it-cannot-write")
class AnswersWithoutDevices(GoodDriver):
    """The driver reports success, without a device, if it cannot write."""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        try:
            return super().prepare_claim(claim, context)
        except OSError:
            return []


@fails(
    "answers-resolvable-cdi-names",
    "keeps-the-cdi-devices-of-claims-of-one-call",
    "keeps-the-cdi-devices-of-other-claims",
)
class ShortensUids(GoodDriver):
    """Two claims whose UIDs begin with the same characters share one CDI file."""

    def cdi_file(self, uid: str) -> Path:
        return super().cdi_file(uid[:8])


@fails("gives-each-device-its-own-edits")
class SameEditsForAll(GoodDriver):
    def spec(self, uid: str, results: list[Json]) -> Json:
        spec = super().spec(uid, results)
        for device in spec["devices"]:
            device["containerEdits"]["env"] = ["CHIPS=some"]
        return spec


@fails("keeps-the-cdi-devices-of-claims-of-one-call")
class RemovesTheFilesOfACall(GoodDriver):
    """When one claim from a call is unprepared, all claims from that call lose their CDI devices."""

    def __init__(self) -> None:
        super().__init__()
        self.together: dict[str, str] = {}

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        if len(request.claims) > 1:
            first = request.claims[0].uid
            self.together |= {claim.uid: self.together.get(claim.uid, first) for claim in request.claims}
        return super().prepare(request, context)

    def unprepare_claim(self, claim: Message) -> None:
        for other, first in self.together.items():
            if first == self.together.get(claim.uid):
                self.cdi_file(other).unlink(missing_ok=True)
        super().unprepare_claim(claim)


@fails("keeps-the-cdi-devices-of-other-claims")
class CleansUpAfterAFailure(GoodDriver):
    """When a claim's device does not exist, the driver removes the CDI files of all claims."""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        try:
            return super().prepare_claim(claim, context)
        except ClaimError as error:
            if "no-such-device" in str(error):
                for path in self.cdi.glob(f"{self.name}_*.json"):
                    path.unlink()
            raise


@fails("leaves-cdi-files-of-others-alone")
class CleansUp(GoodDriver):
    def load(self) -> None:
        super().load()
        for path in self.cdi.glob("*.json"):
            if not path.name.startswith(self.name):
                Path(path).unlink()


@fails("keeps-the-cdi-devices-of-other-claims", "keeps-the-cdi-devices-of-claims-of-one-call")
class RemovesTheMountsOfOthers(GoodDriver):
    """Containers mount their claim's directory; when one claim is unprepared, all claims' directories are removed."""

    def spec(self, uid: str, results: list[Json]) -> Json:
        mounted = self.directory / "mounts" / uid
        mounted.mkdir(parents=True, exist_ok=True)
        body = super().spec(uid, results)
        for device in body["devices"]:
            mount = {"hostPath": str(mounted), "containerPath": f"/run/{device['name']}"}
            device["containerEdits"]["mounts"] = [mount]
        return body

    def release(self, uid: str) -> None:
        if uid in self.claims:
            shutil.rmtree(self.directory / "mounts", ignore_errors=True)
        super().release(uid)


@fails("names-absolute-paths-in-cdi-files")
class MountsOverTheDevices(GoodDriver):
    def spec(self, uid: str, results: list[Json]) -> Json:
        body = super().spec(uid, results)
        for device in body["devices"]:
            device["containerEdits"]["mounts"] = [{"hostPath": str(self.directory), "containerPath": "/dev/"}]
        return body


class HasAUsersClaim(GoodDriver):
    """The user's claim and its DeviceClass have parameters for the driver."""

    is_good = True
    settings = {"objects": [_CLAIM, _CLASS]}


@fails("applies-parameters-to-the-requests-they-name")
class AppliesParametersToAllRequests(HasAUsersClaim):
    is_good = False

    def mode(self, result: Json, config: Sequence[Json]) -> str:
        return super().mode(result, [{"opaque": one["opaque"]} for one in config])


@fails("applies-parameters-to-the-requests-they-name")
class AppliesNoParametersForSubrequests(HasAUsersClaim):
    """The parameters for a request do not apply to its subrequests, whose names begin with the request's name."""

    is_good = False

    def mode(self, result: Json, config: Sequence[Json]) -> str:
        return super().mode(
            result, [one for one in config if result["request"] in one.get("requests", [result["request"]])]
        )


@fails("applies-parameters-to-the-requests-they-name")
class AppliesNoParametersOfClasses(HasAUsersClaim):
    is_good = False

    def mode(self, result: Json, config: Sequence[Json]) -> str:
        return super().mode(result, [one for one in config if one["source"] == "FromClaim"])


@fails("prefers-the-parameters-of-a-claim")
class PrefersTheParametersOfClasses(HasAUsersClaim):
    is_good = False

    def mode(self, result: Json, config: Sequence[Json]) -> str:
        return super().mode(result, sorted(config, key=lambda one: str(one["source"])))


@fails("keeps-a-claim-beside-many-others")
class KeepsTheFilesOfTwelveClaims(GoodDriver):
    """The driver keeps only the twelve CDI files that it has written last, whether or not older ones are in use."""

    must_not_fail = ("prepares-many-claims",)

    def load(self) -> None:
        super().load()
        self.recent = list(self.claims)

    def write_cdi(self, uid: str, results: list[Json]) -> None:
        super().write_cdi(uid, results)
        self.recent = [*(one for one in self.recent if one != uid), uid]
        for old in self.recent[:-12]:
            self.cdi_file(old).unlink(missing_ok=True)
