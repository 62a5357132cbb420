"""The five methods of the device plugin API, answered by a `DevicePlugin`.

Law: the plugin is called in worker threads, and an exception that it raises is its answer to the kubelet.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.limits import MAX_ERROR
from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import DeviceId
from devicecore.domain.text import foreign_text
from devicecore.ports.plugin import DevicePlugin
from devicecore.wire import deviceplugin
from devicecore.wire.conversion import from_devices, from_options, from_response

Context = grpc.aio.ServicerContext[Any, Any]
Result = TypeVar("Result")

logger: logging.Logger = logging.getLogger(__name__)


class PluginService:
    """The methods of one bound server. `dropped` is called when no stream is left, unless this ends them."""

    def __init__(self, plugin: DevicePlugin, loop: LoopThread, dropped: Callable[[], None]) -> None:
        self._plugin = plugin
        self._loop = loop
        self._dropped = dropped
        self._streams: set[asyncio.Event] = set()
        self._ending = False
        self.list_bytes: int = 0
        """The size of the list that was sent last."""

    def methods(self) -> dict[rpc.Method[Any, Any], rpc.Behaviour]:
        """Return the methods, for a server."""
        return {
            rpc.GET_DEVICE_PLUGIN_OPTIONS: self._unary(self._get_device_plugin_options),
            rpc.LIST_AND_WATCH: self._list_and_watch,
            rpc.GET_PREFERRED_ALLOCATION: self._unary(self._get_preferred_allocation),
            rpc.ALLOCATE: self._unary(self._allocate),
            rpc.PRE_START_CONTAINER: self._unary(self._pre_start_container),
        }

    def changed(self) -> None:
        """Have every stream send the list as it is now; changes that come too fast become one."""
        for stream in self._streams:
            stream.set()

    @property
    def streaming(self) -> bool:
        """Whether a stream of lists is open."""
        return bool(self._streams)

    def end(self) -> None:
        """Let every stream end."""
        self._ending = True
        self.changed()

    async def _list_and_watch(
        self, _: deviceplugin.Empty, context: Context
    ) -> AsyncIterator[deviceplugin.ListAndWatchResponse]:
        wake = asyncio.Event()
        wake.set()  # the first list is due at once
        self._streams.add(wake)

        def ended(_: object) -> None:
            self._streams.discard(wake)
            if not self._streams and not self._ending:
                self._dropped()

        # Not `finally`, which runs only when an abandoned generator is garbage-collected.
        context.add_done_callback(ended)  # type: ignore[arg-type]  # the stub wants a class for a callable
        while True:
            await wake.wait()
            if self._ending:
                return
            wake.clear()
            yield await self._ask(context, self._list)

    def _unary(self, answer: Callable[[Any], Result]) -> rpc.Behaviour:
        async def behaviour(request: object, context: Context) -> Result:
            return await self._ask(context, lambda: answer(request))

        return behaviour

    async def _ask(self, context: Context, question: Callable[[], Result]) -> Result:
        try:
            return await self._loop.in_worker(question)
        except (Exception, SystemExit) as error:  # an exit would end the loop, and everything else on it
            text = foreign_text(str(error) or type(error).__name__, MAX_ERROR)
            unexpected = not isinstance(error, DeviceCoreError)
            logger.warning("%s failed: %s", self._plugin.resource, text, exc_info=unexpected)
            await context.abort(grpc.StatusCode.UNKNOWN, text)

    def _list(self) -> deviceplugin.ListAndWatchResponse:
        response = from_devices(self._plugin.devices())
        self.list_bytes = response.ByteSize()
        return response

    def _get_device_plugin_options(self, _: deviceplugin.Empty) -> deviceplugin.DevicePluginOptions:
        return from_options(self._plugin.options)

    def _get_preferred_allocation(
        self, request: deviceplugin.PreferredAllocationRequest
    ) -> deviceplugin.PreferredAllocationResponse:
        response = deviceplugin.PreferredAllocationResponse()
        for container in request.container_requests:
            preferred = self._plugin.get_preferred_allocation(
                [DeviceId(device) for device in container.available_deviceIDs],
                [DeviceId(device) for device in container.must_include_deviceIDs],
                container.allocation_size,
            )
            response.container_responses.add(deviceIDs=preferred)
        return response

    def _allocate(self, request: deviceplugin.AllocateRequest) -> deviceplugin.AllocateResponse:
        return deviceplugin.AllocateResponse(
            container_responses=[
                from_response(self._plugin.allocate([DeviceId(device) for device in container.devices_ids]))
                for container in request.container_requests
            ]
        )

    def _pre_start_container(
        self, request: deviceplugin.PreStartContainerRequest
    ) -> deviceplugin.PreStartContainerResponse:
        self._plugin.pre_start_container([DeviceId(device) for device in request.devices_ids])
        return deviceplugin.PreStartContainerResponse()
