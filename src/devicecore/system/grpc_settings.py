"""The options of every gRPC channel in this library, and the form in which gRPC takes the path of a unix socket.

Law: every channel uses these options, so all parts of the library accept and refuse the same servers.
"""

import os
from urllib.parse import quote

MAX_METADATA_BYTES = 1024 * 1024
"""The maximum size of an answer's headers in bytes.

The headers contain the text of an error; by default, gRPC accepts only 8 KiB.
"""

_REMOVED = "Stream removed ("

MAX_RECONNECT_PAUSE = 1000  # milliseconds
_CONNECTING = 1000  # milliseconds; with 5,000, a program did not end while a server flooded it with PINGs


def own_details(details: str) -> str:
    """Return the details of a failed call without the words that the gRPC client adds."""
    return details.removeprefix(_REMOVED).removesuffix(")") if details.startswith(_REMOVED) else details


def target(path: str) -> str:
    """Return a path as gRPC needs it, because gRPC reads paths as URIs."""
    return "unix:" + quote(os.fsencode(path))


def channel_options(max_message_bytes: int) -> list[tuple[str, int | str]]:
    """Return options for a channel to a unix socket that accepts answers of up to `max_message_bytes` bytes."""
    return [
        ("grpc.default_authority", "localhost"),  # the default, a path, is refused by strict servers, such as Rust's
        ("grpc.max_receive_message_length", max_message_bytes),
        # gRPC repeats, without a pause, a call that the server has not started. If a server sends GOAWAY and keeps the
        # connection open, the repetitions use a whole CPU and 400 MB of memory per second.
        ("grpc.enable_retries", 0),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.use_local_subchannel_pool", 1),  # a new channel must not reuse a connection to an old process
        ("grpc.initial_reconnect_backoff_ms", 100),
        # the time limit for each attempt to connect, which on a busy machine may take more than 100 ms
        ("grpc.min_reconnect_backoff_ms", _CONNECTING),
        ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_PAUSE),
    ]
