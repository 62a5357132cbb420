"""A DRA driver as a stranger writes it: with protoc's generated stubs, and nothing of devicecore.

One socket for everything, v1 only, synchronous. Arguments: the registry's directory. The test generates the modules
`dra_v1_pb2` and so on before it runs this.
"""

import os
import signal
import sys
import time
from concurrent import futures
from importlib import import_module
from typing import Any

import grpc

dra: Any = import_module("dra_v1_pb2")
dra_grpc: Any = import_module("dra_v1_pb2_grpc")
reg: Any = import_module("pluginregistration_pb2")
reg_grpc: Any = import_module("pluginregistration_pb2_grpc")
hlt: Any = import_module("dra_health_v1alpha1_pb2")
hlt_grpc: Any = import_module("dra_health_v1alpha1_pb2_grpc")

NAME = "npu.stranger.org"
SOCK = sys.argv[1] + "/" + NAME + ".sock"
have: dict[str, str] = {}


class Driver(dra_grpc.DRAPluginServicer, reg_grpc.RegistrationServicer, hlt_grpc.DRAResourceHealthServicer):  # type: ignore[misc]  # made by protoc just now, hence of type Any
    """One NPU for each claim; the claim called `hang` gets no answer."""

    def GetInfo(self, req: object, ctx: object) -> object:  # noqa: N802 - the API's name
        return reg.PluginInfo(type="DRAPlugin", name=NAME, supported_versions=["v1.DRAPlugin"])

    def NotifyRegistrationStatus(self, req: Any, ctx: object) -> object:  # noqa: ANN401, N802 - the API's name
        print("registered" if req.plugin_registered else req.error, flush=True)  # noqa: T201 - a log
        return reg.RegistrationStatusResponse()

    def NodePrepareResources(self, req: Any, ctx: object) -> object:  # noqa: ANN401, N802 - the API's name
        res = dra.NodePrepareResourcesResponse()
        for c in req.claims:
            print("prepare", c.namespace, c.name, c.uid, flush=True)  # noqa: T201 - a log
            if c.name == "hang":
                time.sleep(1000)
            if c.name == "full":
                res.claims[c.uid].error = "no npu left"
                continue
            n = have.setdefault(c.uid, f"n{len(have)}")
            d = res.claims[c.uid].devices.add(pool_name="node", device_name=n, cdi_device_ids=["stranger.org/npu=" + n])
            d.request_names.append("r")
        return res

    def NodeUnprepareResources(self, req: Any, ctx: object) -> object:  # noqa: ANN401, N802 - the API's name
        res = dra.NodeUnprepareResourcesResponse()
        for c in req.claims:
            have.pop(c.uid, None)
            res.claims[c.uid].error = ""
        return res

    def NodeWatchResources(self, req: object, ctx: grpc.ServicerContext) -> Any:  # noqa: ANN401, N802 - the API's name
        while ctx.is_active():
            ill = hlt.DeviceHealth(device=hlt.DeviceIdentifier(pool_name="node", device_name="n0"), health="UNHEALTHY")
            yield hlt.NodeWatchResourcesResponse(devices=[ill])
            time.sleep(0.1)


signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
if os.path.exists(SOCK):  # noqa: PTH110 - a stranger does as he likes
    os.unlink(SOCK)  # noqa: PTH108 - a stranger does as he likes
server = grpc.server(futures.ThreadPoolExecutor(8))
dra_grpc.add_DRAPluginServicer_to_server(Driver(), server)
reg_grpc.add_RegistrationServicer_to_server(Driver(), server)
hlt_grpc.add_DRAResourceHealthServicer_to_server(Driver(), server)
server.add_insecure_port("unix:" + SOCK)
server.start()
server.wait_for_termination()
