"""A thread that saves on request.

Law: once a request that waits has returned True, no save that started before the request is still running. The thread
ends when it is stopped, or when its last owner is gone.

A manager has its own thread or shares one with other managers. A shared thread performs one save after another, so a
disk that hangs delays all managers.
"""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from weakref import WeakMethod, finalize

from devicecore.domain.errors import ForkedError
from devicecore.runtime.run import process_id
from devicecore.runtime.thread import Thread
from devicecore.runtime.wake_up import WakeUp

_log = logging.getLogger(__name__)

Save = WeakMethod[Callable[[], None]]
"""The method that saves. The thread keeps only a weak reference to the method's object."""

_Requests = SimpleQueue[tuple[Save, WakeUp] | None]  # None ends the thread


class SaverThread:
    """Calls the requested methods: each method once for all of its waiting requests. Thread-safe."""

    def __init__(self) -> None:
        self._requests = _Requests()
        self._process = process_id()
        # `is_alive` is never called, because an interrupt inside `is_alive` makes it return False from then on.
        self._thread = Thread(target=_serve, args=(self._requests,), name="devicecore-saver", daemon=True)
        finalize(self, self._requests.put, None).atexit = False  # registered before the start, which may be interrupted
        self._thread.start()

    def request(self, save: Save, patience: float | None) -> bool:
        """Request a call to `save`, and wait until that call has returned.

        Return False if the wait took longer than `patience` seconds. Without `patience`, or in the saver's own thread,
        this method does not wait.

        Raises:
            ForkedError: this process is a fork, in which the thread does not exist.
        """
        if self._process != process_id():
            raise ForkedError(self._process, process_id())
        done = WakeUp()
        self._requests.put((save, done))
        if patience is None or threading.current_thread() is self._thread:
            return True
        return done.wait(patience)

    def end(self) -> None:
        """Wait until the requests made so far are served, and end the thread."""
        self._requests.put(None)
        self._thread.join()


def _serve(requests: _Requests) -> None:
    """Serve requests until a request is None. Errors do not end the thread."""
    is_last = False
    while not is_last:
        served: list[WakeUp] = []
        try:
            is_last = _serve_some(requests, served)
        except BaseException:  # noqa: BLE001 - an interrupt from outside; without this thread nothing would be saved
            _log.exception("the thread that saves the checkpoint was interrupted and continues")
        for done in served:
            done.wake()


def _serve_some(requests: _Requests, served: list[WakeUp]) -> bool:
    """Wait for a request, and call each method once for all its waiting requests. Return whether a request was None."""
    taken = [requests.get()]
    while not requests.empty():
        taken.append(requests.get())
    asked = [request for request in taken if request is not None]
    served += [done for _, done in asked]
    for save in {id(save): save for save, _ in asked}.values():
        if (save_now := save()) is not None:
            save_now()
    return None in taken
