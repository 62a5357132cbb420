"""gRPC's messages about failed calls, and its settings for channels."""

import socket
from functools import partial
from pathlib import Path

import grpc
import pytest

from devicecore.system.grpc_settings import channel_options, own_details, target


@pytest.mark.parametrize(
    ("details", "own"),
    [
        ("Stream removed (Deadline Exceeded)", "Deadline Exceeded"),
        ("Stream removed (Socket closed (errno 9))", "Socket closed (errno 9)"),
        ("Stream removed", "Stream removed"),
        ("no such device (gpu-1)", "no such device (gpu-1)"),
        ("", ""),
    ],
)
def test_the_words_around_a_reason_are_left_out(details: str, own: str) -> None:
    assert own_details(details) == own


def test_a_server_is_called_by_the_name_localhost(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "p.sock"))
        listener.listen()
        with grpc.insecure_channel(target(str(directory / "p.sock")), channel_options(1000)) as channel:
            method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/service/Method")
            call, connection, received = method.future(b""), listener.accept()[0], b""
            connection.sendall(bytes.fromhex("000000040000000000"))  # SETTINGS; without it, no call is sent
            while b"/service/Method" not in received:
                received += connection.recv(4096)
            call.cancel()
            connection.close()
    assert b":authority\x09localhost" in received


def test_a_client_does_not_hang_up_on_a_server_that_is_slow_to_begin(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "p.sock"))
        listener.listen()
        with grpc.insecure_channel(target(str(directory / "p.sock")), channel_options(1000)) as channel:
            method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/service/Method")
            call, connection = method.future(b""), listener.accept()[0]
            connection.settimeout(0.5)
            with pytest.raises(TimeoutError):
                b"".join(iter(partial(connection.recv, 4096), b""))
            call.cancel()
            connection.close()
