"""The five methods of the device plugin API, answered by a `DevicePlugin`.

Law: each stream of lists begins with the list as it is, and sends it again after each change.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

from devicecore.adapters.grpc_unix import rpc
from devicecore.adapters.grpc_unix.loop import LoopThread
from devicecore.adapters.grpc_unix.service import Context, Methods, Service
from devicecore.domain.model import DeviceId
from devicecore.ports.plugin import DevicePlugin, allocated, listed, preferred
from devicecore.wire import deviceplugin
from devicecore.wire.conversion import from_devices, from_options, from_response


class PluginService(Service):
    """The methods of one bound server. `dropped` is called when no stream is left, unless this ends them."""

    def __init__(self, plugin: DevicePlugin, loop: LoopThread, dropped: Callable[[], None]) -> None:
        super().__init__(plugin.resource, loop)
        self._plugin = plugin
        self._dropped = dropped
        self.list_bytes: int = 0
        """The size of the list that was sent last."""

    def methods(self) -> Methods:
        """Return the methods, for a server."""
        return {
            rpc.GET_DEVICE_PLUGIN_OPTIONS: self.unary(self._get_device_plugin_options),
            rpc.LIST_AND_WATCH: self._list_and_watch,
            rpc.GET_PREFERRED_ALLOCATION: self.unary(self._get_preferred_allocation),
            rpc.ALLOCATE: self.unary(self._allocate),
            rpc.PRE_START_CONTAINER: self.unary(self._pre_start_container),
        }

    async def _list_and_watch(
        self, _: deviceplugin.Empty, context: Context
    ) -> AsyncIterator[deviceplugin.ListAndWatchResponse]:
        async for response in self.stream(context, partial(self.answer, context, self._list)):
            yield response

    def _ended(self, wake: asyncio.Event) -> None:
        super()._ended(wake)
        if not self._streams and not self._is_ending:
            self._dropped()

    def _list(self) -> deviceplugin.ListAndWatchResponse:
        response = from_devices(listed(self._plugin))
        self.list_bytes = response.ByteSize()
        return response

    def _get_device_plugin_options(self, _: deviceplugin.Empty) -> deviceplugin.DevicePluginOptions:
        return from_options(self._plugin.options)

    def _get_preferred_allocation(
        self, request: deviceplugin.PreferredAllocationRequest
    ) -> deviceplugin.PreferredAllocationResponse:
        response = deviceplugin.PreferredAllocationResponse()
        for container in request.container_requests:
            ids = preferred(
                self._plugin,
                [DeviceId(device) for device in container.available_deviceIDs],
                [DeviceId(device) for device in container.must_include_deviceIDs],
                container.allocation_size,
            )
            response.container_responses.add(deviceIDs=ids)
        return response

    def _allocate(self, request: deviceplugin.AllocateRequest) -> deviceplugin.AllocateResponse:
        return deviceplugin.AllocateResponse(
            container_responses=[
                from_response(allocated(self._plugin, [DeviceId(device) for device in container.devices_ids]))
                for container in request.container_requests
            ]
        )

    def _pre_start_container(
        self, request: deviceplugin.PreStartContainerRequest
    ) -> deviceplugin.PreStartContainerResponse:
        self._plugin.pre_start_container([DeviceId(device) for device in request.devices_ids])
        return deviceplugin.PreStartContainerResponse()
