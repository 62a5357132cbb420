"""What the services of plugins and of drivers share: calls in worker threads, streams, and the watcher's two calls.

Law: a plugin or driver is called in worker threads, and an exception that it raises is its answer to the kubelet.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.limits import MAX_ERROR
from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.text import foreign_text
from devicecore.wire import pluginregistration

Context = grpc.aio.ServicerContext[Any, Any]
Methods = Mapping[rpc.Method[Any, Any], rpc.Behaviour]
Message = TypeVar("Message")
Answer = TypeVar("Answer")

logger: logging.Logger = logging.getLogger(__name__)


class Service(ABC):
    """The methods of one plugin or driver. Apart from `methods`, only the event loop's thread uses it.

    `name` is what the log calls it.
    """

    def __init__(self, name: str, loop: LoopThread) -> None:
        self._name = name
        self._loop = loop
        self._streams: set[asyncio.Event] = set()
        self._is_ending = False

    @abstractmethod
    def methods(self) -> Methods:
        """Return the methods, for a server."""

    @property
    def is_streaming(self) -> bool:
        """Whether a stream is open."""
        return bool(self._streams)

    def changed(self) -> None:
        """Have every stream send what is new; changes that come too fast become one."""
        for stream in self._streams:
            stream.set()

    def end(self) -> None:
        """Let every stream end."""
        self._is_ending = True
        self.changed()

    async def stream(
        self, context: Context, ask: Callable[[], Awaitable[Message | None]], period: float | None = None
    ) -> AsyncIterator[Message]:
        """Yield what `ask` returns, unless that is None: at once, after each change, and after `period` seconds."""
        wake = asyncio.Event()
        self._streams.add(wake)
        # Not `finally`, which runs only when an abandoned generator is garbage-collected.
        context.add_done_callback(lambda _: self._ended(wake))  # type: ignore[arg-type]  # the stub wants a class for a callable
        while not self._is_ending:
            wake.clear()
            message = await ask()
            if message is not None:
                yield message
            with suppress(TimeoutError):
                async with asyncio.timeout(period):
                    await wake.wait()

    async def answer(self, context: Context, question: Callable[[], Answer]) -> Answer:
        """Return what `question` returns in a worker thread. If it raises, the call ends with `status` of the error."""
        try:
            return await self._loop.in_worker(question)
        except (Exception, SystemExit) as error:  # an exit would end the loop, and everything else on it
            code, text = self.status(error)
            text = foreign_text(text, MAX_ERROR)
            unexpected = not isinstance(error, DeviceCoreError)
            logger.warning("%s failed: %s", self._name, text, exc_info=unexpected)
            await context.abort(code, text)

    def unary(self, ask: Callable[[Any], Answer]) -> rpc.Behaviour:
        """Return what answers a method with what `ask` returns of its request."""

        async def behaviour(request: object, context: Context) -> Answer:
            return await self.answer(context, partial(ask, request))

        return behaviour

    def status(self, error: BaseException) -> tuple[grpc.StatusCode, str]:
        """Return the status with which a call ends that has raised `error`."""
        return grpc.StatusCode.UNKNOWN, str(error) or type(error).__name__

    def _ended(self, wake: asyncio.Event) -> None:
        self._streams.discard(wake)


def registration_methods(
    info: Callable[[], pluginregistration.PluginInfo], answered: Callable[[str], object]
) -> Methods:
    """Return the two methods that a plugin watcher calls.

    `info` returns what this plugin or driver is. `answered` is called with "" if a kubelet has registered it, else with
    the reason why not.
    """

    async def get_info(_: pluginregistration.InfoRequest, __: Context) -> pluginregistration.PluginInfo:
        return info()

    async def notify(
        status: pluginregistration.RegistrationStatus, _: Context
    ) -> pluginregistration.RegistrationStatusResponse:
        answered("" if status.plugin_registered else status.error or "the kubelet refuses, and does not say why")
        return pluginregistration.RegistrationStatusResponse()

    return {rpc.GET_INFO: get_info, rpc.NOTIFY_REGISTRATION_STATUS: notify}
