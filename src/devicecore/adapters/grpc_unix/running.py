"""What both transports have between their start and their stop.

Law: if an interrupt ends a start, the loop is given back.
"""

from concurrent.futures import ThreadPoolExecutor

from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.adapters.grpc_unix.watcher import PluginWatcher

_LISTENER_THREADS = 8


class Running:
    """The event loop, the threads in which the listener is called, and the plugin watcher if there is one."""

    def __init__(self, listener_thread_name: str) -> None:
        self.watcher: PluginWatcher | None = None
        self._listeners = ThreadPoolExecutor(_LISTENER_THREADS, thread_name_prefix=listener_thread_name)
        self._loop: LoopThread | None = None

    @property
    def loop(self) -> LoopThread:
        """The event loop; `acquire_loop` comes first."""
        assert self._loop is not None, "acquire_loop comes first"  # noqa: S101  # for mypy
        return self._loop

    def acquire_loop(self) -> None:
        """Take the event loop, which the methods of a transport need.

        Raises:
            OSError: no loop can be made.
        """
        try:
            self._loop = LoopThread.acquire(self._close)
        except BaseException:
            LoopThread.forget(self._close)  # an interrupt may have come when it was acquired already
            raise

    def start(self) -> None:
        """Open what listens and looks for plugins."""
        self.loop.run(self._open())

    def stop(self) -> None:
        """Close it, and give the loop back. A call of the listener that is under way may return later."""
        if self._loop is not None:
            self._loop.release(self._close)
        self._listeners.shutdown(wait=False, cancel_futures=True)

    async def _open(self) -> None:
        if self.watcher is not None:
            await self.watcher.start()

    async def _close(self) -> None:
        if self.watcher is not None:
            await self.watcher.stop()
