"""Drivers with habits of real ones, in which nothing is wrong."""

import grpc

from tests.conformance.good_driver import ClaimError, GoodDriver, Json, Message

_PROCESSORS = 8


class WorksThroughTheRuntime(GoodDriver):
    """As drivers of network devices with NRI: it answers no devices, and writes no CDI files."""

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        super().prepare_claim(claim, context)
        return []

    def write_cdi(self, uid: str, results: list[Json]) -> None:
        pass


class SharesCapacity(GoodDriver):
    """As drivers of processors: one device that many claims share, up to its capacity, of which none is the default."""

    def devices(self) -> list[Json]:
        capacity = {"chip.example.org/cpu": {"value": str(_PROCESSORS)}}
        return [{"name": "cpus", "allowMultipleAllocations": True, "capacity": capacity}]

    def slices(self) -> list[Json]:
        spec = super().slices()[0]
        return [spec | {"pool": {**spec["pool"], "resourceSliceCount": 1}}]

    def check_free(self, uid: str, results: list[Json]) -> None:
        held = [record["results"] for other, record in self.claims.items() if other != uid]
        amounts = [one["consumedCapacity"]["chip.example.org/cpu"] for many in (results, *held) for one in many]
        if sum(map(int, amounts)) > _PROCESSORS:
            raise ClaimError("there are too few processors")
