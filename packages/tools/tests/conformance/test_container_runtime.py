"""The stand-in for the container runtime, tested with drivers that violate its protocol."""

import struct
from collections.abc import Iterator
from contextlib import closing
from socket import socket

import pytest
from devicecore_tools.conformance.dra.container_runtime import RuntimeConnection


@pytest.fixture
def driver() -> Iterator[socket]:
    """The driver's end of a connection."""
    runtime = RuntimeConnection()
    with closing(runtime.peer.dup()) as driver:
        driver.settimeout(60)
        runtime.serve()
        yield driver
        runtime.close()


def frame(data: bytes) -> bytes:
    return struct.pack(">II", 2, len(data)) + data


@pytest.mark.parametrize(
    "sent",
    [
        frame(struct.pack(">IIBB", 1 << 31, 1, 1, 0)),  # the header of a message that would fill memory
        struct.pack(">II", 2, 1 << 31),  # the header of a piece that would fill memory
        struct.pack(">II", 7, 0),  # data for a connection that was never opened
        frame(struct.pack(">IIBB", 2, 1, 1, 0) + b"\xff\xff"),  # not a protocol buffer
    ],
    ids=["message", "piece", "connection", "garbage"],
)
def test_a_driver_that_violates_the_protocol_is_disconnected(driver: socket, sent: bytes) -> None:
    driver.sendall(sent)
    assert driver.recv(1) == b""


def test_the_runtime_answers_a_registration_and_configures_the_driver(driver: socket) -> None:
    service, method = b"nri.pkg.api.v1alpha1.Runtime", b"RegisterPlugin"
    call = b"\x0a" + bytes([len(service)]) + service + b"\x12" + bytes([len(method)]) + method
    driver.sendall(frame(struct.pack(">IIBB", len(call), 1, 1, 0) + call))
    received = b""
    while b"Configure" not in received:
        received += driver.recv(4096)
    assert b"nri.pkg.api.v1alpha1.Plugin" in received
