"""A device plugin by another author: it uses the stubs that protoc generates, and nothing from devicecore.

It is careless but correct: it uses one large class and a global, sleeps and prints, and restarts completely with each
kubelet. The test generates `deviceplugin_pb2` and `deviceplugin_pb2_grpc` before it runs this.
"""

import os
import signal
import sys
import threading
import time
from concurrent import futures
from importlib import import_module
from typing import Any

import grpc

api: Any = import_module("deviceplugin_pb2")
api_grpc: Any = import_module("deviceplugin_pb2_grpc")

DIR = os.environ.get("DEVICE_PLUGIN_PATH", "/var/lib/kubelet/device-plugins")
KUBELET = DIR + "/kubelet.sock"
SOCK = "stranger.sock"
BAD = DIR + "/bad"
IDS = ["n0", "n1", "n2", "n3"]
halt = threading.Event()


class Npu(api_grpc.DevicePluginServicer):  # type: ignore[misc]  # protoc generates the base class during the test, so its type is Any
    """Four NPUs."""

    over = False

    def GetDevicePluginOptions(self, req: object, ctx: object) -> object:  # noqa: N802 - the API's name
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    def ListAndWatch(self, req: object, ctx: grpc.ServicerContext) -> Any:  # noqa: ANN401, N802 - the API's name
        last = None
        try:
            while ctx.is_active() and not halt.is_set():
                bad = os.path.exists(BAD)  # noqa: PTH110 - other authors need not use pathlib
                if bad != last:
                    last = bad
                    health = ["Unhealthy" if bad and i == "n1" else "Healthy" for i in IDS]
                    yield api.ListAndWatchResponse(
                        devices=[api.Device(ID=i, health=h) for i, h in zip(IDS, health, strict=True)]
                    )
                time.sleep(0.1)
        finally:
            print("stream over", flush=True)  # noqa: T201 - a log
            self.over = True

    def GetPreferredAllocation(self, req: Any, ctx: object) -> object:  # noqa: ANN401, N802 - the API's name
        res = api.PreferredAllocationResponse()
        for c in req.container_requests:
            rest = [d for d in c.available_deviceIDs if d not in c.must_include_deviceIDs]
            res.container_responses.add().deviceIDs.extend([*c.must_include_deviceIDs, *rest][: c.allocation_size])
        return res

    def Allocate(self, req: Any, ctx: grpc.ServicerContext) -> object:  # noqa: ANN401, N802 - the API's name
        print("allocate", req, flush=True)  # noqa: T201 - a log
        res = api.AllocateResponse()
        for c in req.container_requests:
            r = res.container_responses.add()
            r.envs["NPUS"] = ",".join(c.devices_ids)
            r.annotations["stranger/npus"] = str(len(c.devices_ids))
            r.cdi_devices.extend([api.CDIDevice(name="stranger.org/npu=" + d) for d in c.devices_ids])
            r.mounts.add(container_path="/lib/npu", host_path="/opt/npu", read_only=True)
            for d in c.devices_ids:
                if d not in IDS:
                    ctx.abort(grpc.StatusCode.NOT_FOUND, "no npu " + d)
                r.devices.add(host_path="/dev/npu" + d[1:], container_path="/dev/npu" + d[1:], permissions="rw")
            r.devices.add(host_path="/dev/npuctl", container_path="/dev/npuctl", permissions="rw")
        return res


def ino(path: str) -> int:
    """Return the number of a file's inode, or 0 if there is no file."""
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - other authors need not use pathlib
    except OSError:
        return 0


def stop(*_: object) -> None:
    """SIGTERM."""
    halt.set()


signal.signal(signal.SIGTERM, stop)
while not halt.is_set():
    kubelet = ino(KUBELET)
    if not kubelet:
        time.sleep(0.1)
        continue
    server = grpc.server(futures.ThreadPoolExecutor(10))
    npu = Npu()
    api_grpc.add_DevicePluginServicer_to_server(npu, server)
    server.add_insecure_port("unix://" + DIR + "/" + SOCK)
    server.start()
    try:
        with grpc.insecure_channel("unix://" + KUBELET) as ch:
            request = api.RegisterRequest(version="v1beta1", endpoint=SOCK, resource_name="stranger.org/npu")
            api_grpc.RegistrationStub(ch).Register(request, timeout=10)
        print("registered", flush=True)  # noqa: T201 - a log
        while not halt.is_set() and not npu.over and ino(DIR + "/" + SOCK) and ino(KUBELET) == kubelet:
            time.sleep(0.1)
    except grpc.RpcError as e:
        print("no luck:", e.details(), flush=True)  # noqa: T201 - a log
        time.sleep(0.5)
    server.stop(0.2).wait()
print("bye, threads left:", threading.active_count(), file=sys.stderr, flush=True)  # noqa: T201 - a log
