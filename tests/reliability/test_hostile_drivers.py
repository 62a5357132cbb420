"""DRA drivers that flood, hang up in the middle of a response, or do not speak gRPC, alongside a driver that works."""

import socket
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import grpc
import pytest

from devicecore.adapters.grpc_unix.dra import DriverLimits, GrpcDriverTransport
from devicecore.adapters.memory import MemoryStore
from devicecore.adapters.memory_dra import MemoryClaims
from devicecore.domain.dra import health
from devicecore.domain.dra.drivers import DriverRegistered
from devicecore.domain.dra.errors import DriverCallError
from devicecore.domain.dra.model import DriverName
from devicecore.dra_manager import DraManager
from devicecore.testing.contracts.dra_drivers import GPU_DRIVER, NIC_DRIVER, AnsweringDriver, DriverEvents
from devicecore.wire import dra_health_v1alpha1
from tests.adapters.peers import listening
from tests.adapters.test_grpc_unix_dra import CLAIM, PREPARED, WATCH_PATH, raw_driver, served, started
from tests.reliability.scale import PATIENCE, scale

DEVICES = scale(1_000, 10_000)
CALLS = scale(100, 1_000)
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""The frame that an HTTP/2 server sends first."""


def test_a_flood_of_health_reports_with_new_names_is_bounded(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = scale(200_000, health.MAX_SIZE_OF_DRIVER)
    monkeypatch.setattr(health, "MAX_SIZE_OF_DRIVER", room)

    def flood(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        for number in count():
            if not context.is_active():
                return
            yield dra_health_v1alpha1.NodeWatchResourcesResponse(
                devices=[
                    {"device": {"pool_name": f"pool-{number}", "device_name": f"{device}-{'x' * 60}"}, "health": 1}
                    for device in range(DEVICES)
                ]
            ).SerializeToString()

    nic = AnsweringDriver(NIC_DRIVER)
    nic.prepared = PREPARED
    transport = GrpcDriverTransport(directory)
    with (
        DraManager(transport, MemoryClaims(), MemoryStore(), health_store=MemoryStore()) as manager,
        raw_driver(directory, {WATCH_PATH: flood}),
        served(directory, nic),
    ):
        given_up_at = time.monotonic() + PATIENCE
        while "is not kept" not in caplog.text or DriverName(NIC_DRIVER) not in manager.drivers.instances:
            assert time.monotonic() < given_up_at
            time.sleep(0.01)
        instance = next(iter(manager.drivers.instances[DriverName(NIC_DRIVER)]))
        for _ in range(CALLS):
            assert transport.prepare(instance, [CLAIM]) == PREPARED  # with a deadline of 45 seconds
            kept = manager.health.drivers.get(DriverName(GPU_DRIVER), {}).values()
            assert sum(len(item.pool) + len(item.device) for item in kept) < room
    assert caplog.text.count(f"of {GPU_DRIVER} is not kept, because the driver's reports are too large") == 1


def closing_after(answer: Callable[[socket.socket], None]) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        with connection:
            answer(connection)

    return serve


def hang_up(_: socket.socket) -> None:
    """Close the connection at once."""


def speak_no_grpc(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(range(256)) * 256)


def hang_up_after_the_request(connection: socket.socket) -> None:
    connection.sendall(SETTINGS)
    connection.recv(65_536)


def hang_up_in_the_middle_of_an_answer(connection: socket.socket) -> None:
    connection.sendall(SETTINGS)
    connection.recv(65_536)
    connection.sendall(b"\x00\x10\x00\x00\x00\x00\x00\x00\x01" + b"\x00\x00\x00\x0f\xff")


@pytest.mark.parametrize(
    "answer", [hang_up, speak_no_grpc, hang_up_after_the_request, hang_up_in_the_middle_of_an_answer]
)
def test_a_malformed_answer_is_an_error_of_one_line_and_delays_no_other(
    directory: Path, answer: Callable[[socket.socket], None]
) -> None:
    heard, nic = DriverEvents(), AnsweringDriver(NIC_DRIVER)
    nic.prepared = PREPARED
    endpoint = directory / "bad.sock"
    with (
        listening(endpoint, closing_after(answer)),
        started(directory / "r", heard, limits=DriverLimits(call=PATIENCE)) as transport,
        raw_driver(directory / "r", {}, endpoint=str(endpoint)),
        served(directory / "r", nic),
    ):
        instances = {instance.driver: instance for instance in heard.wait_for(DriverRegistered, 2)}
        for _ in range(scale(3, 100)):
            with pytest.raises(DriverCallError) as failed:
                transport.prepare(instances[DriverName(GPU_DRIVER)], [CLAIM])
            assert str(failed.value).isprintable()
            assert len(str(failed.value)) < 17_000
            assert transport.prepare(instances[DriverName(NIC_DRIVER)], [CLAIM]) == PREPARED
