"""A program with protoc's own modules of the API, which are imported first, and with devicecore.

`test_wire.py` runs it. A plugin that uses the generated modules registers with our transport and is called; then a
generated kubelet stub calls a plugin that we serve.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from threading import Event
from typing import Any

import grpc

api: Any = import_module("api_pb2")
api_grpc: Any = import_module("api_pb2_grpc")

from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin  # noqa: E402 - after the generated modules
from devicecore.domain.events import DevicesReported  # noqa: E402 - after the generated modules
from devicecore.domain.model import DeviceId  # noqa: E402 - after the generated modules
from tests.adapters.peers import Gpus, Recorder  # noqa: E402 - after the generated modules


class Generated(api_grpc.DevicePluginServicer):  # type: ignore[misc]  # made by protoc just now, hence of type Any
    """A plugin as its author would write it."""

    def __init__(self) -> None:
        self.ended = Event()

    def GetDevicePluginOptions(self, *_: object) -> object:  # noqa: N802 - the API's name
        return api.DevicePluginOptions()

    def ListAndWatch(self, _: object, context: grpc.ServicerContext) -> Any:  # noqa: ANN401, N802 - the API's name
        yield api.ListAndWatchResponse(devices=[api.Device(ID="g0", health="Healthy")])
        context.add_callback(self.ended.set)
        self.ended.wait()

    def Allocate(self, request: Any, _: object) -> object:  # noqa: ANN401, N802 - the API's name
        (container,) = request.container_requests
        answer = api.ContainerAllocateResponse(envs={"GPUS": container.devices_ids[0]})
        return api.AllocateResponse(container_responses=[answer])


def main(directory: str) -> None:
    """Serve and call with both code bases at once, and print the results."""
    recorder = Recorder()
    transport = GrpcUnixTransport(directory)
    transport.start(recorder)
    server = grpc.server(ThreadPoolExecutor(4))
    api_grpc.add_DevicePluginServicer_to_server(Generated(), server)
    server.add_insecure_port(f"unix:{directory}/p.sock")
    server.start()
    with grpc.insecure_channel(f"unix:{directory}/kubelet.sock") as channel:
        request = api.RegisterRequest(version="v1beta1", endpoint="p.sock", resource_name="acme.io/gpu")
        api_grpc.RegistrationStub(channel).Register(request)
    (report,) = recorder.wait(DevicesReported)
    print("registered", *(device.id for device in report.devices))  # noqa: T201 - what the test reads
    receipt = transport.allocate(report.plugin, [DeviceId("d0")])
    print("allocated", transport.read(receipt).envs["GPUS"])  # noqa: T201 - what the test reads
    transport.stop()
    server.stop(1).wait()
    with serve_plugin(Gpus("d0"), directory) as served, grpc.insecure_channel(f"unix:{served.socket}") as channel:
        (listed,) = next(api_grpc.DevicePluginStub(channel).ListAndWatch(api.Empty())).devices
        print("served", listed.ID)  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(sys.argv[1])
