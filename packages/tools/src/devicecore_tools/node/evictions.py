"""Evictions: the release of removed pods' devices.

Law: the main loop never waits for a disk, and a pod with a removed pod's UID is not tried before that pod is released.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterable

from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import PodUid
from devicecore.manager import DeviceManager
from devicecore_tools.node.lanes import Lanes
from devicecore_tools.numa import NodeManagers

_log = logging.getLogger(__name__)


class Evictions:
    """Releases devices in threads, which call `wake` when a release has finished."""

    def __init__(
        self,
        manager: DeviceManager,
        threads: Lanes,
        wake: Callable[[], None],
        managers: NodeManagers | None = None,
    ) -> None:
        self._manager = manager
        self._managers = managers
        self._threads = threads
        self._wake = wake
        self._pods: set[PodUid] = set()
        self._being_tried: set[PodUid] = set()
        self._ended: queue.SimpleQueue[frozenset[PodUid]] = queue.SimpleQueue()
        self.in_progress: int = 0
        """The number of unfinished releases."""

    def __contains__(self, pod: PodUid) -> bool:
        """Return whether a pod with this UID was removed but may still be given devices or hold some."""
        return pod in self._pods

    @property
    def waits_for(self) -> str:
        """What is being released, or an empty string if no release is in progress."""
        if not self.in_progress:
            return ""
        return "the release of removed pods" if self._pods else "the check for pods that ended before this start"

    def evict(self, gone: frozenset[PodUid], being_tried: Iterable[PodUid] = (), *, wait: float = 0.0) -> None:
        """Start to release the pods `gone`, and wait for at most `wait` seconds.

        For pods that are being tried, call `evict_again` after the attempt.
        """
        self._pods |= gone
        self._being_tried.update(being_tried)
        self._release(lambda: self._evict(gone), gone).wait(wait)

    def _evict(self, gone: frozenset[PodUid]) -> None:
        self._manager.evict(gone)
        if self._managers is not None:
            self._managers.release(gone)

    def evict_again(self, pod: PodUid) -> None:
        """Release again a pod that was removed during an attempt, because it may have been given devices since."""
        self._being_tried.discard(pod)
        self.evict(frozenset({pod}))

    def release_inactive(self) -> None:
        """Release the pods from an earlier run that are gone."""
        self._release(self._update, frozenset())

    def _update(self) -> None:
        self._manager.update_allocated_devices()
        if self._managers is not None:
            self._managers.release()

    def collect(self) -> bool:
        """Collect the finished releases. Return whether any release had finished."""
        has_ended = not self._ended.empty()
        while not self._ended.empty():
            self._pods -= self._ended.get() - self._being_tried
            self.in_progress -= 1
        return has_ended

    def _release(self, release: Callable[[], None], gone: frozenset[PodUid]) -> threading.Event:
        released = threading.Event()

        def work() -> None:
            try:
                release()
            except DeviceCoreError as error:
                _log.error("cannot release the devices of removed pods: %s", error)
            finally:
                released.set()
                self._ended.put(gone)
                self._wake()

        self.in_progress += 1
        # Each release has its own lane, because the previous release may be waiting for a disk that hangs.
        self._threads.submit(("release", gone), work)
        return released
