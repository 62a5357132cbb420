"""Device plugins that behave like well-known Go plugins: `wild_plugin.py HABIT DIR`.

Kubelets accept all of this behavior. The plugins use protoc's stubs and nothing from devicecore.
"""

import os
import random
import signal
import sys
import threading
import time
from concurrent import futures
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc

api: Any = import_module("deviceplugin_pb2")
api_grpc: Any = import_module("deviceplugin_pb2_grpc")

HABIT, DIR = sys.argv[1:]
KUBELET = DIR + "/kubelet.sock"
UUIDS = ["GPU-8a5b2c1e-0f3d-4b6a-9c7e-1d2f3a4b5c6d", "GPU-91c0d7e2-5a4b-4c3d-8e9f-a0b1c2d3e4f5"]
REPLICAS = [f"{uuid}::{number}" for uuid in UUIDS for number in range(2)]
HEARTBEAT = 2.0  # seconds
LOOK = 0.02  # seconds
cuts = threading.Semaphore(0)


class Server(api_grpc.DevicePluginServicer):  # type: ignore[misc]  # protoc generates the base class during the test, so its type is Any
    """One resource on a separate socket."""

    def __init__(self, resource: str, endpoint: str, ids: list[str]) -> None:
        self.resource, self.endpoint, self.ids = resource, endpoint, ids
        self.server: Any = None

    def GetDevicePluginOptions(self, req: object, ctx: object) -> object:  # noqa: N802 - the API's name
        return api.DevicePluginOptions(get_preferred_allocation_available=HABIT == "nvidia")

    def ListAndWatch(self, req: object, ctx: grpc.ServicerContext) -> Any:  # noqa: ANN401, N802 - the API's name
        ctx.add_callback(cuts.release)
        yield api.ListAndWatchResponse()
        if not self.ids:
            time.sleep(3600)  # such a plugin never sends a second list, and does not notice when the stream is canceled
        while HABIT == "several" or ctx.is_active():
            listed = random.sample(self.ids, len(self.ids))
            yield api.ListAndWatchResponse(devices=[api.Device(ID=id_, health="Healthy") for id_ in listed])
            time.sleep(HEARTBEAT if HABIT == "several" else 3600)

    def GetPreferredAllocation(self, req: Any, ctx: grpc.ServicerContext) -> object:  # noqa: ANN401, N802 - the API's name
        if HABIT != "nvidia":
            ctx.abort(grpc.StatusCode.UNIMPLEMENTED, "method GetPreferredAllocation not implemented")
        response = api.PreferredAllocationResponse()
        for container in req.container_requests:
            must = list(container.must_include_deviceIDs)
            rest = [id_ for id_ in container.available_deviceIDs if id_ not in must]
            response.container_responses.add(deviceIDs=(must + rest)[: container.allocation_size])
        return response

    def Allocate(self, req: Any, ctx: grpc.ServicerContext) -> object:  # noqa: ANN401, N802 - the API's name
        response = api.AllocateResponse()
        for container in req.container_requests:
            asked = list(container.devices_ids)
            if not set(asked) <= set(self.ids):
                ctx.abort(grpc.StatusCode.UNKNOWN, f"invalid allocation request for {self.resource}: unknown device")
            if HABIT == "nvidia" and len(asked) > 1:
                ctx.abort(grpc.StatusCode.UNKNOWN, "maximum request size for shared resources is 1")
            name = self.resource.rpartition("/")[2]
            given = response.container_responses.add(envs={f"DEVICES_OF_{name}": ",".join(asked)})
            # Return a new key for each call, as NVIDIA's plugin does, and a new mount, as some other plugins do.
            given.annotations[f"cdi.k8s.io/{random.getrandbits(64):x}"] = "vendor.example/gpu=0"
            given.mounts.add(container_path=f"/run/{name}", host_path=f"/run/x-{random.getrandbits(64):x}")
            for id_ in asked:
                place = UUIDS.index(id_.partition("::")[0]) if HABIT == "nvidia" else id_
                given.devices.add(host_path=f"/dev/x{place}", container_path=f"/dev/x{place}", permissions="rw")
        return response

    def PreStartContainer(self, req: object, ctx: grpc.ServicerContext) -> object:  # noqa: N802 - the API's name
        ctx.abort(grpc.StatusCode.UNIMPLEMENTED, "method PreStartContainer not implemented")

    def serve(self) -> None:
        """Serve on the socket, even if there already is a file at the socket's path."""
        path = f"{DIR}/{self.endpoint}"
        if self.server is not None:
            # otherwise, Python stops the old server later, and deletes whatever is at the server's path by then
            self.server.stop(None).wait(0.5)
        Path(path).unlink(missing_ok=True)
        self.server = grpc.server(futures.ThreadPoolExecutor(20))
        api_grpc.add_DevicePluginServicer_to_server(self, self.server)
        self.server.add_insecure_port("unix://" + path)
        self.server.start()
        with grpc.insecure_channel("unix://" + path) as itself:  # NVIDIA's plugin also checks its own socket
            try:
                grpc.channel_ready_future(itself).result(1)
            except grpc.FutureTimeoutError:
                self.serve()  # a kubelet has deleted the socket

    def register(self) -> None:
        """Call Register with the socket's path as `:authority`, as old versions of grpc-go do."""
        with grpc.insecure_channel("unix://" + KUBELET, [("grpc.default_authority", KUBELET)]) as channel:
            request = api.RegisterRequest(version="v1beta1", endpoint=self.endpoint, resource_name=self.resource)
            api_grpc.RegistrationStub(channel).Register(request, timeout=5)


def ino(path: str) -> tuple[int, int]:
    """Return a file's inode number and modification time, or zeros if there is no file."""
    try:
        found = Path(path).stat()
    except OSError:
        return (0, 0)
    return found.st_ino, found.st_mtime_ns


def nvidia() -> None:
    """Watches only for a new kubelet.sock, and tries again 10 seconds after a failure (NVIDIA's plugin: 30 seconds)."""
    server = Server("nvidia.com/gpu.shared", "nvidia-gpu.shared.sock", REPLICAS)
    while True:
        seen = ino(KUBELET)
        server.serve()
        again = float("inf")
        try:
            server.register()
        except grpc.RpcError as error:
            print("could not register:", error, flush=True)  # noqa: T201 - a log
            again = time.monotonic() + 10
        while ino(KUBELET) in (seen, (0, 0)) and time.monotonic() < again:
            time.sleep(LOOK)
        server.server.stop(None)


def fatal() -> None:
    """Exits whenever something is not as expected, and relies on being started again."""
    server = Server("vendor.example/qat", "qat", [f"qat-{number}" for number in range(3)])
    server.serve()
    try:
        server.register()
    except grpc.RpcError as error:
        print(f"could not contact the kubelet: {error}", flush=True)  # noqa: T201 - a log
        os._exit(1)  # sys.exit would wait for ListAndWatch to end, if it has started
    seen = ino(KUBELET)
    while ino(KUBELET) == seen and not cuts.acquire(timeout=LOOK):
        pass
    print("panic: the kubelet has gone", flush=True)  # noqa: T201 - a log
    os._exit(2)


def several() -> None:
    """Serves three resources, and registers each of them twice at the same time, before its server is up.

    The second registration makes the kubelet cut the first stream, so a cut stream does not make this plugin start
    again.
    """
    servers = [
        Server(f"vendor.example/kind-{kind}", f"dp.{kind}=.0", [f"{kind}.{number}" for number in range(3)])
        for kind in range(3)
    ]
    while True:
        for server in servers:
            threading.Thread(target=keep_trying, args=(server,)).start()
            threading.Thread(target=keep_trying, args=(server,)).start()
            threading.Thread(target=server.serve).start()
        seen = ino(KUBELET)
        while ino(KUBELET) in (seen, (0, 0)):
            time.sleep(LOOK)
        for server in servers:
            server.server.stop(None).wait()


def keep_trying(server: Server) -> None:
    """Try to register until the kubelet accepts, at most 20 times."""
    for _ in range(20):
        try:
            server.register()
        except grpc.RpcError:
            time.sleep(1)
        else:
            return


def empty() -> None:
    """Has no devices, and reports this once."""
    server = Server("vendor.example/none", "none.sock", [])
    while True:
        seen = ino(KUBELET)
        server.serve()
        try:
            server.register()
        except grpc.RpcError:
            time.sleep(0.3)
            server.server.stop(None)
            continue
        while ino(KUBELET) == seen and not cuts.acquire(timeout=LOOK):
            pass
        server.server.stop(None)


def alpha() -> None:
    """Behaves like a plugin from 2017."""
    with grpc.insecure_channel("unix://" + KUBELET) as channel:
        call: Any = channel.unary_unary("/deviceplugin.Registration/Register")
        try:
            call(b"")
        except grpc.RpcError as error:
            sys.exit(f"cannot register: {error.code()}")


signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
{"nvidia": nvidia, "fatal": fatal, "several": several, "empty": empty, "alpha": alpha}[HABIT]()
