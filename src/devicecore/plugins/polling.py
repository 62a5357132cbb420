"""A base class for plugins that poll their devices.

Law: a change in the list (devices, their health or their NUMA nodes) is reported within one poll interval after
`devices` begins to return the changed list, unless `devices` has just raised an error. A plugin without a listener is
not polled.
"""

import threading
from collections.abc import Callable
from itertools import count

from devicecore.domain.checks import check_seconds, expected
from devicecore.ports.plugin import DevicePlugin, listed
from devicecore.runtime.background import SupervisedThread

_threads = count(1)


class PollingPlugin(DevicePlugin):
    """A `DevicePlugin` that calls its own `devices` every `poll_interval` seconds, and reports a changed list.

    Subclasses define `resource`, `devices` and `allocate`. `devices` must be quick, and must return its devices in the
    same order if nothing has changed. If `devices` raises an error, the error is logged, the kubelet keeps the last
    list, and the plugin continues after a pause.
    """

    poll_interval: float = 1.0
    """Seconds between two polls."""

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever the list has changed. Return a function that unsubscribes.

        Raises TypeError or ValueError if `poll_interval` is not a number of seconds, or is 0.
        """
        interval = f"{type(self).__name__}.poll_interval"
        check_seconds(interval, self.poll_interval)
        if not self.poll_interval:
            raise ValueError(expected(interval, "a number of seconds above 0, because a poll takes time", 0))
        seen = listed(self)

        def poll(stopping: threading.Event) -> None:
            nonlocal seen
            while not stopping.wait(self.poll_interval):
                now = listed(self)
                if stopping.is_set():
                    return  # the subscription ended while `devices` was running
                if now != seen:
                    seen = now
                    changed()

        thread = SupervisedThread(f"devicecore-poll-{next(_threads)}", poll)

        def end() -> None:
            thread.stop(0)  # do not wait for the thread to end, because it may be inside `devices`

        try:
            thread.start()
        except BaseException:  # an interrupt
            end()
            raise
        return end
