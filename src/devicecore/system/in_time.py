"""Waits no longer than allowed for work that may never end.

gRPC ends a call only when its last write to the socket has ended, even if the call's deadline is over or the call was
cancelled. If a server reads nothing, for example because its process is stopped, and the socket is full (200 KiB), that
write does not end. Then neither a call nor the closing of its channel ends before the server reads again or ends.

Law: `in_time` returns or raises within its seconds, whatever the work does.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")

NOTICED = 1.0
"""Seconds after which gRPC must have noticed that the time of a call is over, or that a channel was closed."""


def in_time(work: Callable[[], Result], seconds: float) -> Result:
    """Do the work in a thread of its own and return its result. Work that takes longer does not keep the process alive.

    Raises TimeoutError if the work takes longer than `seconds`.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            outcome.set_exception(error)

    threading.Thread(target=run, name="devicecore-in-time", daemon=True).start()
    return outcome.result(seconds)
