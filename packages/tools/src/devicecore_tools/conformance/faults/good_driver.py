"""A correct DRA driver, as other people write them: gRPC, HTTP and JSON, and nothing of devicecore but the messages.

With $STUBS, the directory of modules that protoc has generated, it uses those instead. The faulty drivers in `faults/`
are subclasses of it, each with one thing wrong. `run_driver.py` runs them.

Law: every check passes on it.
"""

import http.client
import json
import os
import re
import signal
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import grpc

if stubs := os.environ.get("STUBS"):
    sys.path.insert(0, stubs)
    dra: Any = import_module("dra_v1_pb2")
    reg: Any = import_module("pluginregistration_pb2")
    hlt: Any = import_module("dra_health_v1alpha1_pb2")
else:
    from devicecore.wire import dra_health_v1alpha1 as hlt
    from devicecore.wire import dra_v1 as dra
    from devicecore.wire import pluginregistration as reg

Message = Any  # one of the messages of the API, from either kind of stubs
Json = dict[str, Any]
T = TypeVar("T", bound=type)

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
RETRY = 0.3  # seconds after which the API server is asked again when it does not answer
SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


def fails(*checks: str) -> Callable[[T], T]:
    """Name the checks that fail on a faulty driver."""

    def mark(driver: T) -> T:
        driver.fails = checks  # type: ignore[attr-defined]  # it is a GoodDriver, which is defined below
        return driver

    return mark


class ClaimError(Exception):
    """A claim cannot be prepared or unprepared."""


class GoodDriver:
    """Seven chips in two slices, one of them shareable, a state file, and a CDI file for each claim."""

    fails: tuple[str, ...] = ()
    is_good = False
    """Whether nothing is wrong with it, although it has an unusual habit."""
    must_not_fail: tuple[str, ...] = ()
    """Checks that are made, too, when our tests try it, because a mistake in its fault could make them fail."""
    breaks_too: Mapping[str, str] = {}
    """Other checks that cannot pass on a faulty driver either, with the reason. They are made only in a storm."""
    settings: Mapping[str, float] = {}
    """Fields of `DriverTestSettings` with which its fault shows sooner."""
    environment: Mapping[str, str] = {}
    """Environment variables that it needs."""
    options: tuple[str, ...] = ()
    """Options of `devicecore conformance driver` with which its fault shows."""
    name = "chip.example.org"
    type = "DRAPlugin"
    kind = "example.org/chip"
    versions: tuple[str, ...] = (*SERVICES, *HEALTH_SERVICES)
    health_seconds = 10.0  # between two reports

    def __init__(self) -> None:
        self.node = os.environ["NODE_NAME"]
        self.cdi = Path(os.environ["CDI_ROOT"])
        self.directory = Path(os.environ["KUBELET_PLUGINS_DIRECTORY_PATH"]) / self.name
        self.registration = Path(os.environ["KUBELET_REGISTRAR_DIRECTORY_PATH"]) / f"{self.name}-reg.sock"
        self.service = self.directory / "dra.sock"
        self.state_file = self.directory / "state.json"
        config = json.loads(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))
        self.api = urllib.parse.urlsplit(config["clusters"][0]["cluster"]["server"]).netloc
        self.lock = threading.RLock()
        self.over = threading.Event()
        self.claims: dict[str, Json] = {}
        self.servers: list[grpc.Server] = []
        self.node_uid = ""

    # --- its run ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.over.set())
        self.directory.mkdir(parents=True, exist_ok=True)
        self.cdi.mkdir(parents=True, exist_ok=True)
        self.load()
        self.serve()
        threading.Thread(target=self.publish_for_ever, daemon=True).start()
        self.over.wait()
        self.leave()
        os._exit(0)  # threads of gRPC may wait for a stream

    def serve(self) -> None:
        """Make both sockets, the service's first."""
        self.servers = [self.served(self.service, self.services()), self.served(self.registration, self.registrar())]

    def served(self, path: Path, services: Json) -> grpc.Server:
        """Serve on a socket. What a former process has left there is removed."""
        path.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(64))
        for service, handlers in services.items():
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        return server

    def leave(self) -> None:
        """Remove the sockets."""
        for server, path in zip(self.servers, (self.service, self.registration), strict=True):
            server.stop(None)
            path.unlink(missing_ok=True)

    # --- registration -------------------------------------------------------------------------------------------------

    def registrar(self) -> Json:
        """The registration service."""
        methods = {
            "GetInfo": (self.get_info, reg.InfoRequest),
            "NotifyRegistrationStatus": (self.notify, reg.RegistrationStatus),
        }
        return {"pluginregistration.Registration": handlers_of(methods)}

    def get_info(self, _: Message, _context: grpc.ServicerContext) -> Message:
        """Say who this is."""
        service = str(self.service)
        return reg.PluginInfo(type=self.type, name=self.name, endpoint=service, supported_versions=self.versions)

    def notify(self, _: Message, _context: grpc.ServicerContext) -> Message:
        """Take note of the registration."""
        return reg.RegistrationStatusResponse()

    # --- the service --------------------------------------------------------------------------------------------------

    def services(self) -> Json:
        """The services of the driver by name."""
        methods = {
            "NodePrepareResources": (self.prepare, dra.NodePrepareResourcesRequest),
            "NodeUnprepareResources": (self.unprepare, dra.NodeUnprepareResourcesRequest),
        }
        services = {f"k8s.io.kubelet.pkg.apis.dra.{one}": handlers_of(methods) for one in SERVICES}
        health = grpc.unary_stream_rpc_method_handler(
            self.watch_health, hlt.NodeWatchResourcesRequest.FromString, serialize
        )
        return services | {one: {"NodeWatchResources": health} for one in HEALTH_SERVICES}

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        """Prepare each claim of the request."""
        answer = dra.NodePrepareResourcesResponse()
        for claim in request.claims:
            entry = answer.claims[self.key(claim)]
            try:
                entry.devices.extend(self.prepare_claim(claim, context))
            except (ClaimError, OSError) as error:
                entry.error = str(error)
        return answer

    def unprepare(self, request: Message, _context: grpc.ServicerContext) -> Message:
        """Release each claim of the request."""
        answer = dra.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            entry = answer.claims[self.key(claim)]
            try:
                self.unprepare_claim(claim)
            except (ClaimError, OSError) as error:
                entry.error = str(error)
        return answer

    def key(self, claim: Message) -> str:
        """The key of a claim in an answer."""
        return str(claim.uid)

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        """Prepare one claim, and return its devices."""
        check_uid(claim.uid)
        results = self.results_of(self.allocated(claim))
        with self.lock:
            if self.is_given_up(context):
                raise ClaimError("the call was cancelled")
            known = self.claims.get(claim.uid)
            if known is None or known["results"] != results:
                self.check_free(claim.uid, results)
                self.release(claim.uid)
                self.claims[claim.uid] = {"results": results, "name": claim.name}
                self.save()
            self.write_cdi(claim.uid, results)
            return [self.device(claim.uid, result) for result in results]

    def is_given_up(self, context: grpc.ServicerContext) -> bool:
        """Whether the kubelet has given up the call, and may have unprepared the claim since."""
        return not context.is_active()

    def unprepare_claim(self, claim: Message) -> None:
        """Release one claim; one that is not known is released already."""
        check_uid(claim.uid)
        with self.lock:
            self.release(claim.uid)

    def release(self, uid: str) -> None:
        """Undo everything of a claim."""
        self.cdi_file(uid).unlink(missing_ok=True)
        if self.claims.pop(uid, None) is not None:
            self.save()

    def allocated(self, claim: Message) -> Json:
        """Read the claim's allocation from the API server."""
        status, body = self.call("GET", claim_path(claim.namespace, claim.name))
        if status != http.HTTPStatus.OK:
            raise ClaimError(f"cannot read ResourceClaim {claim.name}: {body.get('message', status)}")
        if body["metadata"]["uid"] != claim.uid:
            raise ClaimError(f"ResourceClaim {claim.name} was replaced: it has the UID {body['metadata']['uid']}")
        allocation = body.get("status", {}).get("allocation")
        if allocation is None:
            raise ClaimError(f"ResourceClaim {claim.name} is not allocated")
        devices: Json = allocation["devices"]
        return devices

    def results_of(self, allocation: Json) -> list[Json]:
        """The results of an allocation that are for this driver, with the configuration that applies to each."""
        known = {device["name"] for device in self.devices()}
        results = []
        for result in allocation.get("results") or ():
            if result["driver"] != self.name:
                continue
            if result["pool"] != self.pool or result["device"] not in known:
                raise ClaimError(f"there is no device {result['pool']}/{result['device']}")
            results.append(result | {"mode": self.mode(result, allocation.get("config") or ())})
        return results

    def mode(self, result: Json, config: Sequence[Json]) -> str:
        """The mode that the configuration chooses for a result; later entries win."""
        mode = "default"
        for entry in config:
            opaque, requests = entry["opaque"], entry.get("requests")
            if opaque["driver"] != self.name:
                continue
            if requests and not {result["request"], result["request"].partition("/")[0]} & set(requests):
                continue
            parameters = opaque.get("parameters")
            if not isinstance(parameters, dict) or parameters.get("kind") != "ChipConfig":
                raise ClaimError(f"unknown configuration {json.dumps(parameters)[:100]}")
            mode = str(parameters.get("mode", mode))
        return mode

    def check_free(self, uid: str, results: list[Json]) -> None:
        """Refuse devices that another claim holds, unless this is a claim of an administrator."""
        held = {
            (one["device"], one.get("shareID")): other
            for other, record in self.claims.items()
            for one in record["results"]
            if other != uid and not one.get("adminAccess")
        }
        for one in results:
            if not one.get("adminAccess") and (other := held.get((one["device"], one.get("shareID")))):
                raise ClaimError(f"{one['device']} is in use by the claim {other}")

    def device(self, uid: str, result: Json) -> Message:
        """The answer for one result."""
        return dra.Device(
            request_names=[result["request"].partition("/")[0]],
            pool_name=result["pool"],
            device_name=result["device"],
            cdi_device_ids=[f"{self.kind}={self.cdi_name(uid, result)}"],
            share_id=result.get("shareID"),
        )

    # --- files --------------------------------------------------------------------------------------------------------

    def cdi_name(self, uid: str, result: Json) -> str:
        """The name of a CDI device."""
        share = f"-{result['shareID']}" if "shareID" in result else ""
        return f"{uid}-{result['request'].replace('/', '-')}-{result['device']}{share}"

    def cdi_file(self, uid: str) -> Path:
        """The CDI file of a claim."""
        return self.cdi / f"{self.name}-{uid}.json"

    def spec(self, uid: str, results: list[Json]) -> Json:
        """The contents of a CDI file."""
        devices = [
            {
                "name": self.cdi_name(uid, result),
                "containerEdits": {"env": [f"CHIP_{result['device'].upper().replace('-', '_')}={result['mode']}"]},
            }
            for result in results
        ]
        return {"cdiVersion": "0.5.0", "kind": self.kind, "devices": devices}

    def write_cdi(self, uid: str, results: list[Json]) -> None:
        """Write the CDI file of a claim, in one step."""
        if results:
            write(self.cdi_file(uid), json.dumps(self.spec(uid, results), indent=1))

    def load(self) -> None:
        """Read the state file. If it is damaged, the CDI files say which claims are prepared."""
        try:
            saved = json.loads(self.state_file.read_text(encoding="utf-8"))
            text = json.dumps(saved["claims"], sort_keys=True)
            if saved["checksum"] != sha256(text.encode()).hexdigest():
                raise ValueError("wrong checksum")
            self.claims = saved["claims"]
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            self.recover(error)

    def recover(self, error: Exception) -> None:
        """Go on without the state file: what has a CDI file is prepared."""
        print(f"{self.state_file} is damaged ({error}), starting from the CDI files", flush=True)
        for path in self.cdi.glob(f"{self.name}-*.json"):
            names = [device["name"] for device in json.loads(path.read_text(encoding="utf-8"))["devices"]]
            results = [{"device": "-".join(name.split("-")[-2:]), "request": ""} for name in names]
            self.claims[path.stem.removeprefix(f"{self.name}-")] = {"results": results, "name": ""}
        self.save()

    def save(self) -> None:
        """Write the state file, in one step."""
        text = json.dumps(self.claims, sort_keys=True)
        write(self.state_file, json.dumps({"claims": self.claims, "checksum": sha256(text.encode()).hexdigest()}))

    # --- slices -------------------------------------------------------------------------------------------------------

    @property
    def published_name(self) -> str:
        """The name of the driver in its slices."""
        return self.name

    @property
    def pool(self) -> str:
        """The name of the pool."""
        return self.node

    def devices(self) -> list[Json]:
        """The devices, as slices have them."""
        return [
            {
                "name": f"chip-{number}",
                "attributes": {
                    "model": {"string": "c1"},
                    "resource.kubernetes.io/numaNode": {"int": number % 2},
                    "resource.kubernetes.io/pciBusID": {"string": f"0000:0{number}:00.0"},
                },
            }
            for number in range(6)
        ] + [
            {
                "name": "chip-6",
                "allowMultipleAllocations": True,
                "capacity": {
                    "memory": {"value": "8Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi"}}}
                },
            }
        ]

    def parts(self) -> list[list[Json]]:
        """The devices of each slice."""
        devices = self.devices()
        return [devices[:4], devices[4:]]

    def slices(self) -> list[Json]:
        """The specs of the slices. Their generation is 1."""
        parts = self.parts()
        return [
            {
                "driver": self.published_name,
                "nodeName": self.node,
                "pool": {"name": self.pool, "generation": 1, "resourceSliceCount": len(parts)},
                "devices": part,
            }
            for part in parts
        ]

    def publish_for_ever(self) -> None:
        """Keep the slices as they should be: list, write, watch for changes, and again."""
        while not self.over.is_set():
            try:
                self.publish_and_watch()
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(RETRY)

    def publish_and_watch(self) -> None:
        """Write what differs, and return when a slice was changed."""
        own = f"spec.driver={self.published_name},spec.nodeName={self.node}"
        query = urllib.parse.urlencode({"fieldSelector": own})
        if not self.node_uid:
            self.node_uid = self.call("GET", f"/api/v1/nodes/{self.node}")[1]["metadata"]["uid"]
        _, listed = self.call("GET", f"{SLICES}?{query}")
        self.reconcile(listed["items"])
        self.watch(f"{SLICES}?{query}&watch=true&timeoutSeconds=600", listed["metadata"]["resourceVersion"])

    def reconcile(self, items: list[Json]) -> None:
        """Create the slices that are missing, and delete those that should not be there."""
        left = {item["metadata"]["name"]: item for item in items}
        for number, spec in enumerate(self.slices()):
            name = f"{self.node}-{self.name}-{number}".replace("_", "-").lower()
            body: Json = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": spec}
            body["metadata"] = {"name": name, "ownerReferences": self.owners()}
            before = left.pop(name, None)
            if before is None:
                self.written(self.call("POST", SLICES, body))
            elif self.differs(before["spec"], spec):
                body["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
                self.written(self.call("PUT", f"{SLICES}/{name}", body))
        for name in left:
            self.call("DELETE", f"{SLICES}/{name}")

    def differs(self, before: Json, wanted: Json) -> bool:
        """Whether a slice has to be written."""
        return before != wanted

    def written(self, answer: tuple[int, Json]) -> None:
        """Look at the answer to a write. One that was refused because of a conflict is tried again."""
        if answer[0] >= http.HTTPStatus.BAD_REQUEST:
            raise OSError(str(answer[1].get("message")))

    def owners(self) -> list[Json]:
        """The owners of the slices."""
        return [{"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.node_uid, "controller": True}]

    def watch(self, path: str, version: str) -> None:
        """Return when something has happened that this driver did not do itself, or when the watch has ended."""
        connection = http.client.HTTPConnection(self.api, timeout=700)
        try:
            connection.request("GET", f"{path}&resourceVersion={version}")
            wanted = [spec["pool"] for spec in self.slices()]
            for line in connection.getresponse():
                event = json.loads(line)
                if event["type"] in {"DELETED", "ERROR"} or event["object"]["spec"]["pool"] not in wanted:
                    return
        finally:
            connection.close()

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        """Ask the API server. Return status and body of its answer."""
        connection = http.client.HTTPConnection(self.api, timeout=30)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"{}")
        except (OSError, http.client.HTTPException) as error:
            raise OSError(f"the API server does not answer: {error}") from error
        finally:
            connection.close()

    # --- health -------------------------------------------------------------------------------------------------------

    def watch_health(self, _: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        """Report all devices now and then."""
        while context.is_active() and not self.over.is_set():
            yield hlt.NodeWatchResourcesResponse(devices=self.health())
            self.over.wait(self.health_seconds)

    def health(self) -> list[Message]:
        """The health of all devices."""
        return [
            hlt.DeviceHealth(
                device=hlt.DeviceIdentifier(pool_name=self.pool, device_name=device["name"]),
                health="HEALTHY",
                last_updated_time=int(time.time()),
                health_check_timeout_seconds=30,
                message="all is well",
            )
            for device in self.devices()
        ]


def check_uid(uid: str) -> None:
    """Refuse an invalid UID, because it becomes the name of a file."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", uid):
        raise ClaimError(f"{uid!r} is no UID")


def handlers_of(methods: Json) -> Json:
    """The handlers of unary methods."""
    return {
        name: grpc.unary_unary_rpc_method_handler(behavior, request.FromString, serialize)
        for name, (behavior, request) in methods.items()
    }


def serialize(message: Message) -> bytes:
    """The bytes of a message."""
    return bytes(message.SerializeToString())


def claim_path(namespace: str, name: str) -> str:
    """The path of a claim on the API server."""
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


def write(path: Path, text: str) -> None:
    """Replace a file in one step."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
