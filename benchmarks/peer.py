"""A device plugin in a process of its own, as bare as can be: what it says is serialized before anybody asks.

It obeys lines on stdin: `list N` sends the list with N devices and answers with the moment (monotonic nanoseconds).
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from workload import ANSWER, RESOURCE, devices

from devicecore.wire import deviceplugin
from devicecore.wire.conversion import from_devices, from_response

SERVICE = "v1beta1.DevicePlugin"


def _as_it_is(message: bytes) -> bytes:
    return message


async def main(directory: str, count: int) -> None:
    """Serve, register, and obey until stdin ends."""
    orders: asyncio.Queue[int] = asyncio.Queue()
    lists = {n: from_devices(devices(n)).SerializeToString() for n in (count, count - 1)}
    answer = deviceplugin.AllocateResponse(container_responses=[from_response(ANSWER)]).SerializeToString()

    async def options(_request: bytes, _context: object) -> bytes:
        return b""

    async def allocate(_request: bytes, _context: object) -> bytes:
        return answer

    async def list_and_watch(_request: bytes, _context: object) -> AsyncIterator[bytes]:
        while True:
            message = lists[await orders.get()]
            print(time.monotonic_ns(), flush=True)
            yield message

    server = grpc.aio.server()
    handlers = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(options, _as_it_is, _as_it_is),
        "Allocate": grpc.unary_unary_rpc_method_handler(allocate, _as_it_is, _as_it_is),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(list_and_watch, _as_it_is, _as_it_is),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"unix:{directory}/bench.sock")
    await server.start()
    async with grpc.aio.insecure_channel(
        f"unix:{directory}/kubelet.sock", options=[("grpc.default_authority", "localhost")]
    ) as channel:
        register = channel.unary_unary(
            "/v1beta1.Registration/Register", deviceplugin.RegisterRequest.SerializeToString, _as_it_is
        )
        await register(deviceplugin.RegisterRequest(version="v1beta1", endpoint="bench.sock", resource_name=RESOURCE))
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        orders.put_nowait(int(line.split()[1]))
    os._exit(0)  # whoever asked has all it wanted, and waits


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
