"""Drivers with one fault in their device health reports.

Law: each driver fails the checks that it names, and no others except those in `breaks_too`.
"""

import os
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from devicecore_tools.conformance.faults.good_driver import (
    HEALTH_SERVICES,
    GoodDriver,
    Json,
    Message,
    fails,
    hlt,
)


class WithoutHealth(GoodDriver):
    """A good driver that does not report health, which is optional, but announces it as Kubernetes' helper does."""

    def services(self) -> Json:
        return {name: methods for name, methods in super().services().items() if name not in HEALTH_SERVICES}


@fails("survives-being-asked-for-health")
class AbortsTheHealthCall(WithoutHealth):
    def services(self) -> Json:
        def refuse(_: Message, context: grpc.ServicerContext) -> Iterator[Message]:
            yield from ()
            context.abort(grpc.StatusCode.UNKNOWN, "not yet")

        handler: Any = grpc.unary_stream_rpc_method_handler(refuse)
        return super().services() | {one: {"NodeWatchResources": handler} for one in HEALTH_SERVICES}


@fails("survives-being-asked-for-health")
class DiesOfTheHealthCall(GoodDriver):
    must_not_fail = ("reports-the-health-of-each-device", "serves-new-connections")

    def watch_health(self, _: Message, _context: grpc.ServicerContext) -> Iterator[Message]:
        os.write(2, b"panic: no health\n")
        os._exit(2)


@fails("reports-the-health-of-each-device")
class ForgetsADevice(GoodDriver):
    def health(self) -> list[Message]:
        return super().health()[1:]


@fails("answers-while-its-health-is-watched")
class HasOneThread(GoodDriver):
    """A call must wait until the previous one has ended."""

    breaks_too = {"serves-health-again-and-again": "One of two streams waits until the other has ended."}
    health_seconds = 0.1
    thread = threading.Lock()

    def watch_health(self, request: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        with self.thread:
            yield from super().watch_health(request, context)

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        with self.thread:
            return super().prepare(request, context)


@fails("answers-while-its-health-is-watched")
class KeepsAThreadForEachStream(GoodDriver):
    """Ten threads serve all calls, and a stream keeps its thread after the kubelet has gone."""

    breaks_too = {"serves-health-again-and-again": "No thread is left for another stream."}
    settings = {"call": 3.0}

    def __init__(self) -> None:
        super().__init__()
        self.threads = threading.Semaphore(10)

    def watch_health(self, request: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        self.threads.acquire()
        yield from super().watch_health(request, context)

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        with self.threads:
            return super().prepare(request, context)


@fails("reports-the-health-of-published-devices")
class OtherPool(GoodDriver):
    def health(self) -> list[Message]:
        reported = super().health()
        device = hlt.DeviceIdentifier(pool_name="chips", device_name="chip-0")
        when = reported[0].last_updated_time
        return [*reported, hlt.DeviceHealth(device=device, health="HEALTHY", last_updated_time=when)]


@fails("taints-unhealthy-devices")
class OffersAnUnhealthyDevice(GoodDriver):
    """One of two unhealthy devices has a taint."""

    def devices(self) -> list[Json]:
        first, *others = super().devices()
        return [first | {"taints": [{"key": f"{self.name}/broken", "effect": "NoSchedule"}]}, *others]

    def health(self) -> list[Message]:
        health = super().health()
        health[0].health = health[1].health = 2
        return health


@fails("reports-known-states-of-health")
class FourthState(GoodDriver):
    def health(self) -> list[Message]:
        health = super().health()
        health[0].health = 3
        return health


@fails("reports-short-messages")
class LongMessage(GoodDriver):
    def health(self) -> list[Message]:
        health = super().health()
        health[0].message = "é" * 600
        return health


@fails("reports-limits-that-count")
class NegativeLimit(GoodDriver):
    def health(self) -> list[Message]:
        health = super().health()
        health[0].health_check_timeout_seconds = -1
        return health


@fails("serves-health-again-and-again")
class OneCallOnly(GoodDriver):
    is_watched = threading.Lock()

    def watch_health(self, request: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        if not self.is_watched.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "someone is watching")
        context.add_callback(self.is_watched.release)
        yield from super().watch_health(request, context)


@fails("serves-health-again-and-again")
class CountsTheStreams(GoodDriver):
    """The driver serves eight streams, and never notices that one has ended."""

    streams = 0

    def watch_health(self, request: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        self.streams += 1
        while self.streams > 8 and context.is_active():
            self.over.wait(0.1)
        yield from super().watch_health(request, context)


@fails("keeps-the-health-stream-open")
class EndsTheStream(GoodDriver):
    def watch_health(self, _: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        for _number in range(2):
            yield hlt.NodeWatchResourcesResponse(devices=self.health())
            self.over.wait(0.1)


@fails("repeats-its-reports-of-health")
class ReportsOnce(GoodDriver):
    def watch_health(self, _: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        yield hlt.NodeWatchResourcesResponse(devices=self.health())
        while context.is_active():
            self.over.wait(0.1)

    def health(self) -> list[Message]:
        health = super().health()
        for one in health:
            one.health_check_timeout_seconds = 1
        return health


@fails("reports-no-change-without-a-reason")
class ReportsSicknessOfAMoment(GoodDriver):
    health_seconds = 0.5
    reports = 0

    def health(self) -> list[Message]:
        self.reports += 1
        listed = super().health()
        if self.reports % 3 == 0:
            listed[0].health = "UNHEALTHY"
        return listed


@fails("reports-when-it-looked")
class ReportsMilliseconds(GoodDriver):
    def health(self) -> list[Message]:
        listed = super().health()
        for one in listed:
            one.last_updated_time *= 1000
        return listed
