"""A device plugin that is correct except for the one fault named in its second argument: `plugin.py DIR [FAULT]`.

The plugin uses protobuf messages and gRPC like third-party plugins, and does not use `serve_plugin`. If `PLUGIN_FAULTS`
names no check for a value of FAULT, that value does not select a fault, but something that correct plugins also do.

Law: without a fault, no check fails on the plugin.
"""

import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import grpc

from devicecore.wire import deviceplugin as api
from devicecore.wire import pluginregistration

DIRECTORY = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
FAULT = sys.argv[2] if len(sys.argv) > 2 else ""
RESOURCE = "chip" if FAULT == "bad-name" else "example.com/chip"
OTHER_RESOURCE = "example.com/board"
OF_TWO = {
    *("two-resources", "floods-for-one-of-two", "first-is-empty", "lists-devices-twice", "returns-with-one-of-two"),
    "sets-one-variable-for-two",
}
MOUNTING = {
    *("removes-former-mounts", "clears-its-mounts-at-sigterm", "gives-a-lost-path", "recreates-its-mounts"),
}
KUBELET = DIRECTORY / "kubelet.sock"
NAMES = {"start-second": f"dp.{int(time.time())}", "long-endpoint": f"{76 * 'c'}"}
SOCKET = DIRECTORY / NAMES.get(FAULT, "chip.sock")
OTHER_SOCKET = DIRECTORY / "board.sock"
SICK = DIRECTORY / "sick"
WAS_SICK_AT_START = SICK.exists()
MARKS = DIRECTORY / ".starts"
STATE = DIRECTORY / ".state"
CDI_FILE = DIRECTORY / ".cdi" / "chip.json"
STARTS = 0
if FAULT in {"numbers-anew", "prefers-at-its-first-start"}:
    STARTS = MARKS.stat().st_size if MARKS.exists() else 0
    MARKS.write_bytes(b"x" * (STARTS + 1))
POLL_INTERVAL = 0.02  # seconds
LOOK_AGAIN = 0.5  # seconds

Request = Any  # one of the API's requests
LATE = {"loses-a-later-change": 0.0, "slow-to-start": 4.0}  # seconds from the first stream to the first devices
# For how many seconds streams are open.
STREAMS = {
    "short-stream": 2.0,
    "ends-its-stream-after-five-seconds": 5.0,
    "ends-its-stream-after-fifteen-seconds": 15.0,
}
OPTIONS = {"pre_start_required": True, "get_preferred_allocation_available": True}
numbers = count()
others: list[grpc.Server] = []
boards: "list[Plugin]" = []
taken: set[str] = set()
half: set[str] = set()  # devices in a call that was refused
kept: dict[str, str] = {}  # variables from earlier calls
blocks: list[bytes] = []
latest: list[str] = []  # ids in the last call
favorites: list[str] = []  # ids that the plugin has preferred
initialized: set[str] = set()  # devices that a container was started with since they were allocated
marked: set[str] = set()  # devices that are being initialized
opened: list[int] = []
allocating = threading.Lock()
first: dict[int, list[str]] = {}  # by the number of ids: the ids in the first call with that many
UNKNOWN_ANSWERS = {"knows-everything": (), "no-answer": (), "empty-answer": (api.ContainerAllocateResponse(),)}
over = threading.Event()
mounting = threading.Lock()
streamed: list[float] = []  # when streams began
was_sick: list[bool] = []  # for each list so far, whether a device in it was sick


def devices() -> list[api.Device]:  # noqa: C901, PLR0912 - every fault is a branch
    """Return the list of devices."""
    ids = ["c0", "c1", "c2"]
    health = "Healthy"
    match FAULT:
        case "twice":
            ids.append("c2")
        case "lists-what-has-changed" if SICK.exists():
            ids = ids[:1]
        case "has-one-device":
            ids = ids[:1]
        case "lists-nothing-while-sick" if SICK.exists():
            return []
        case "accepts-what-is-gone" | "drops-sick-devices" if SICK.exists():
            ids = ids[1:]
        case "long-id":
            ids.append("c" * 64)
        case "new-ids":
            ids = [f"{id_}-{os.getpid()}" for id_ in ids]
        case "lists-copies" | "one-copy-is-sick" | "one-copy-of-a-slow-device-is-sick":
            ids = ["c0-0", "c0-1", "c1-0"]
        case "odd-health":
            health = "healthy"
        case "huge":
            ids += [f"{number:060}" for number in range(70_000)]
        case _:
            pass
    is_sick = (SICK.exists() and not (FAULT == "heals-at-its-start" and WAS_SICK_AT_START)) or (
        FAULT == "flickers" and len(was_sick) == 1
    )
    if is_sick and FAULT == "adds-a-device":
        ids.append("c3")
    listed = [api.Device(ID=id_, health="Healthy") for id_ in ids]
    listed[-1].health = health
    broken = int(FAULT == "blames-another-device" and True in was_sick and not all(was_sick[was_sick.index(True) :]))
    was_sick.append(is_sick)
    if (is_sick and FAULT not in {"never-sick", "adds-a-device", "accepts-what-is-gone", "drops-sick-devices"}) or (
        FAULT == "never-recovers" and any(was_sick)
    ):
        listed[broken].health = "Unhealthy"
        for other in {"lists-copies": listed[1:2], "blames-all-devices": listed[1:]}.get(FAULT, []):
            other.health = "Unhealthy"
    elif FAULT == "returns-unhealthy" and len(streamed) > 1:
        listed[1].health = "Unhealthy"
    elif FAULT == "recovers-in-lower-case" and any(was_sick):
        listed[0].health = "healthy"
    for device in listed:
        node = {"numa-minus-one": -1, "numa-minus-one-unsigned": (1 << 32) - 1}.get(FAULT)
        device.topology.nodes.add(ID=int(FAULT == "moves" and len(was_sick) > 1) if node is None else node)
    return listed


def variables(ids: list[str], name: str = "CHIPS") -> dict[str, str]:
    """Return the variables for a container with these devices."""
    long = {"CHIPS_MAP": 45_000 * "chip" if len(ids) > 2 else ""} if FAULT == "gives-a-long-variable" else {}
    given = long | {name: ids[-1] if FAULT == "sets-the-last" else ",".join(ids)}
    if FAULT == "prints-a-secret":
        given["CHIP_LICENSE_KEY"] = "a-key-that-is-secret"
        print(f"the container gets {given}", flush=True)
    if FAULT == "accumulates":
        kept.update({f"CHIP_{id_}": "1" for id_ in ids})
    return given | kept | ({"CHIP=0": "1"} if FAULT == "odd-variable" else {})


def refuse(context: grpc.ServicerContext, why: str, *, is_busy: bool = False) -> None:
    is_busy = is_busy or FAULT == "refuses-with-unavailable"
    context.abort(grpc.StatusCode.UNAVAILABLE if is_busy else grpc.StatusCode.INVALID_ARGUMENT, why)


class Plugin:
    """The five methods of the device plugin API."""

    def __init__(self, socket: Path = SOCKET) -> None:
        self.socket = socket
        self.streams = 0
        self.dropped = False
        self.is_listing = False

    def options(self, _: object, context: grpc.ServicerContext) -> api.DevicePluginOptions:
        if FAULT == "deaf-after-some-returns" and self.streams > 2:
            over.wait()
        if FAULT == "deaf-after-a-return" and self.is_listing and self.streams > 1:
            over.wait()  # as if ended streams occupied all other threads
        if FAULT == "no-options":
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "what options?")
        return api.DevicePluginOptions(**({} if FAULT == "forgets-its-options" else OPTIONS))

    def lists(self, request: object, context: grpc.ServicerContext) -> Iterator[api.ListAndWatchResponse]:
        if FAULT == "first-is-empty" and self.socket == OTHER_SOCKET:
            yield api.ListAndWatchResponse()
            over.wait()
        yield from self.full_lists(request, context)

    def full_lists(self, _: object, context: grpc.ServicerContext) -> Iterator[api.ListAndWatchResponse]:  # noqa: C901, PLR0912, PLR0915 - faults
        if FAULT == "odd-bytes":
            context.abort(grpc.StatusCode.INTERNAL, "string field contains invalid UTF-8")  # like gRPC for Go
        ended = threading.Event()
        if not context.add_callback(ended.set):
            ended.set()  # the stream had already ended
        self.streams += 1
        if FAULT == "forgets-its-containers":
            taken.clear()
        began = time.monotonic()
        streamed.append(began)
        sent: bool | None = None
        sent_at = began
        left = 2 if FAULT == "sends-two-lists" else math.inf
        self.is_listing = True
        try:
            while not ended.wait(POLL_INTERVAL) and not over.is_set():
                if time.monotonic() - began > STREAMS.get(FAULT, math.inf):
                    return
                if FAULT in LATE and sent is None:
                    yield api.ListAndWatchResponse()  # like plugins that discover their devices later
                    ended.wait(max(0.3, streamed[0] + LATE[FAULT] - time.monotonic()))
                now = SICK.exists()
                if now and sent is False and self.streams > 1 and FAULT == "dies-of-a-later-change":
                    os._exit(2)
                if now and self.streams > 1 and FAULT == "loses-a-later-change":
                    continue
                if FAULT == "returns-twice" and self.streams == 2:
                    now = False  # this stream ends soon
                if FAULT == "opens-files-forever":
                    opened.append(os.open("/dev/null", os.O_RDONLY))
                if FAULT == "lists-late" and sent is None:
                    ended.wait(4.0)
                if now and FAULT == "complains-of-a-sick-device":
                    print("c0 does not answer: " + 80 * "x", flush=True)
                repeats = FAULT == "repeats-its-list" or (FAULT == "repeats-its-list-while-sick" and now)
                is_new = (
                    FAULT == "chatters"
                    or (repeats and time.monotonic() > sent_at + 0.4)
                    or (FAULT == "flickers" and len(was_sick) < 3)
                )
                if (now != sent or is_new) and FAULT != "silent" and left:
                    left -= 1
                    sent_at = time.monotonic()
                    if FAULT == "begins-healthy" and sent is None and self.streams > 1 and now:
                        sent = now
                        yield api.ListAndWatchResponse(
                            devices=[api.Device(ID=f"c{n}", health="Healthy") for n in range(3)]
                        )
                        continue
                    sent = now
                    if now and FAULT == "clears-its-list-first":
                        yield api.ListAndWatchResponse()
                        ended.wait(0.3)
                    is_empty = FAULT == "returns-without-devices" and self.streams > 1
                    is_short = FAULT == "returns-with-fewer-devices" and self.streams > 1
                    yield api.ListAndWatchResponse(devices=() if is_empty else devices()[is_short:])
                    if now and FAULT == "ends-its-stream-after-a-change":
                        return
        finally:  # gRPC does not always resume a generator
            self.dropped = not over.is_set()
            self.is_listing = False

    def allocate(self, request: Request, context: grpc.ServicerContext) -> api.AllocateResponse:  # noqa: C901, PLR0912, PLR0915 - faults
        answer = api.AllocateResponse()
        if FAULT == "panics" and len(request.container_requests) > 1:
            print("panic: runtime error: index out of range [1] with length 1\n\ngoroutine 7 [running]:", flush=True)
            os._exit(2)
        for container in request.container_requests:
            ids = list(container.devices_ids)
            if FAULT == "waits-for-sick-devices":
                while SICK.exists() and not over.wait(POLL_INTERVAL):  # as if a lock were held during a reset
                    pass
            if FAULT == "keeps-its-first-answer":
                ids = first.setdefault(len(ids), ids)
            if FAULT == "mixes-calls":
                latest[:] = ids
                time.sleep(0.02)
                ids = list(latest)
            if FAULT == "gives-what-it-prefers" and favorites:
                ids = list(favorites)
                favorites.clear()
            initialized.difference_update(ids)
            if FAULT == "forgets-its-devices" and self.streams > 1:
                refuse(context, "there are no devices")
            match FAULT:
                case "refuses-one" if "c1" in ids:
                    refuse(context, "not this one")
                case "refuses-with-unavailable" if len(ids) > 1:
                    refuse(context, "only one share")
                case "refuses-all" if len(ids) > 2:
                    refuse(context, "not so many")
                case "once-only" if not taken.isdisjoint(ids):
                    refuse(context, f"{ids} is taken")
                case "refuses-what-has-recovered" if "c0" in ids and any(was_sick) and not SICK.exists():
                    refuse(context, "c0 has failed before")
                case "refuses-calls-at-once":
                    with allocating:
                        time.sleep(0.05)
                case "keeps-a-lock":
                    if not allocating.acquire(timeout=0.5):
                        refuse(context, "another call is still in progress")
                    time.sleep(0.01)
                    if not context.is_active():
                        return answer
                    allocating.release()
                case "answers-once" if not taken.isdisjoint(ids):
                    return answer
                case "answers-few" if len(ids) > 2:
                    return answer
                case "slow-at-first" | "one-copy-of-a-slow-device-is-sick" if not taken:
                    time.sleep(2.2)
                case "allocates-slowly":
                    time.sleep(1.2)
                case "dies" if not ids:
                    os._exit(7)
                case "stops-after-a-hundred" if next(numbers) > 100:
                    refuse(context, "no more than that")
                case "keeps-megabytes":
                    blocks.append(os.urandom(1 << 20))
                case "leaves-zombies":
                    os.posix_spawn("/bin/true", ["true"], {})
                case _:
                    pass
            if FAULT == "writes-its-state-in-place":
                STATE.write_bytes(b"{")
                time.sleep(0.02)
                STATE.write_bytes(b"{}")
            if FAULT == "removes-its-cdi-file":
                CDI_FILE.parent.mkdir(exist_ok=True)
                devices_of_file = [{"name": f"c{number}", "containerEdits": {"env": ["A=1"]}} for number in range(3)]
                content = {"cdiVersion": "0.6.0", "kind": "ex.org/chip", "devices": devices_of_file}
                CDI_FILE.write_text(json.dumps(content if len(streamed) < 2 else {}))
            if FAULT == "rewrites-its-cdi-file":
                CDI_FILE.parent.mkdir(exist_ok=True)
                edits = {"env": [f"CHIP={ids[0]}"]}
                every = [{"name": f"c{number}", "containerEdits": edits} for number in range(3)]
                CDI_FILE.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "ex.org/chip", "devices": every}))
            taken.update(ids)
            known = {device.ID for device in devices()}.issuperset(ids)
            if FAULT == "accepts-what-is-gone" and not known and ids == ["c0"]:
                known, ids = True, []
            if FAULT in {"reads-numbers", "shares"} and not known and all(id_[1:].isdigit() for id_ in ids):
                known, ids = True, ids if FAULT == "reads-numbers" else ["c0"]
            if not known and FAULT == "raises-for-unknown-devices":
                raise KeyError(ids[0])
            if FAULT == "keeps-half-a-call" and known and not half.isdisjoint(ids):
                half.difference_update(ids)
                refuse(context, f"{ids} is being allocated")
            if not known and FAULT not in UNKNOWN_ANSWERS:
                half.update(ids)
                is_busy = FAULT == "keeps-half-a-call" and len(ids) > 1
                refuse(context, f"unknown device in {ids}", is_busy=is_busy)
            if not known and FAULT != "knows-everything":
                answer.container_responses.extend(UNKNOWN_ANSWERS[FAULT])
            elif FAULT == "one-per-device" and len(ids) > 1:
                answer.container_responses.extend(self.given([id_]) for id_ in ids)
            elif FAULT == "repeats" and answer.container_responses:
                answer.container_responses.append(answer.container_responses[0])
            elif FAULT != "one-container" or not answer.container_responses:
                answer.container_responses.append(self.given(ids))
        return answer

    def given(self, ids: list[str]) -> api.ContainerAllocateResponse:  # noqa: C901 - every fault is a branch
        nodes = [id_[1:].split("-")[0] for id_ in ids]
        match FAULT:
            case "numbers-anew":
                nodes = [str((int(node) + STARTS) % 3) for node in nodes]
            case "numbers-the-healthy" if SICK.exists():
                nodes = [str(int(node) - 1) for node in nodes]
            case "spans" if nodes:
                nodes = [str(node) for node in range(int(min(nodes)), int(max(nodes)) + 1)]
            case "by-position" | "cdi-by-position":
                nodes = [str(place) for place in range(len(ids))]
            case "counts":
                nodes = [str(next(numbers)) for _ in ids]
            case "gives-one-of-a-pair" if len(ids) == 2:
                nodes = nodes[1:]
            case "gives-the-first" | "gives-the-first-path":
                nodes = nodes[:1]
            case "shares-a-node" if "c1" in ids:
                nodes = [node for node in nodes if node != "1"]
            case "lists-a-device-twice":
                nodes = ["0" if node == "1" else node for node in nodes]
            case _:
                pass
        if FAULT == "only-variables":
            return api.ContainerAllocateResponse(envs={"CHIPS": ",".join(ids)})
        kind = "chip" if self.socket == SOCKET or FAULT == "lists-devices-twice" else "board"
        paths = [f"/dev/{kind}ctl", *(f"/dev/{kind}{node}" for node in nodes)]
        if FAULT == "relative-path":
            paths[0] = "dev/chipctl"
        shown = f"/run/{next(numbers)}" if FAULT == "forgets" else "/run/chip"
        own = [api.Mount(host_path=f"/run/{id_}", container_path=f"/run/{id_}") for id_ in ids[:1]]
        mode = "0666" if FAULT == "file-mode" else "rw"
        return api.ContainerAllocateResponse(
            envs=variables(ids, "CHIPS" if self.socket == SOCKET or FAULT == "sets-one-variable-for-two" else "BOARDS"),
            devices=[
                api.DeviceSpec(host_path=on_host(path), container_path=inside(path), permissions=mode)
                for path in ([] if FAULT == "cdi-by-position" else paths)
            ],
            cdi_devices=[
                api.CDIDevice(name=one if FAULT == "short-cdi-name" else f"ex.org/chip={one}")
                for one in {
                    "cdi-by-position": nodes,
                    "names-two": ids[:2],
                    "joins-names": [",".join(ids)],
                    "names-all": [*ids, "all"],
                }.get(FAULT, ids)
            ],
            annotations={"cdi.k8s.io/chip": ",".join(ids)} if FAULT == "annotates-short-names" else {},
            mounts=[
                api.Mount(host_path=shown, container_path="/run/chip", read_only=True),
                *(own if FAULT == "mounts-the-first" else []),
                *(fresh_mounts(ids) if FAULT in MOUNTING else []),
                *([common_settings(ids)] if FAULT in {"writes-one-file-for-all", "moves-one-link-for-all"} else []),
                *([api.Mount(host_path="/opt/dev", container_path="/dev/")] if FAULT == "mounts-over-dev" else []),
                *([api.Mount(host_path="/dev", container_path="/host/dev")] if FAULT == "mounts-all-of-dev" else []),
            ],
        )

    def preferred(self, request: Request, context: grpc.ServicerContext) -> api.PreferredAllocationResponse:
        is_late = (FAULT == "prefers-before-a-restart" and self.streams > 1) or (
            FAULT == "prefers-at-its-first-start" and STARTS > 0
        )
        is_busy = FAULT == "refuses-calls-at-once" and allocating.locked()
        is_hurt = FAULT == "prefers-among-all" and SICK.exists()
        if FAULT == "prefers-nothing" or is_late or is_busy or is_hurt:
            context.abort(grpc.StatusCode.INTERNAL, "no preference")
        answer = api.PreferredAllocationResponse()
        for container in request.container_requests[: 1 if FAULT == "prefers-for-the-first" else None]:
            if FAULT == "panics-at-a-must" and container.must_include_deviceIDs:
                print("panic: runtime error: index out of range [1] with length 1", flush=True)
                os._exit(2)
            if FAULT == "expects-all" and "c0" not in container.available_deviceIDs:
                refuse(context, "list index out of range")
            must = [] if FAULT == "prefers-at-will" else list(container.must_include_deviceIDs)
            rest = [id_ for id_ in container.available_deviceIDs if id_ not in must]
            size = container.allocation_size - (FAULT == "prefers-too-few" and container.allocation_size > 2)
            chosen = (must + rest)[:size]
            if FAULT == "prefers-the-taken":
                chosen = ["c0", "c1", "c2"][:size] if not must else chosen
            favorites[:] = chosen
            if FAULT == "tires-of-preferring" and next(numbers) > 60:
                chosen = []
            answer.container_responses.add(deviceIDs=chosen)
        return answer

    def pre_start(self, request: Request, context: grpc.ServicerContext) -> api.PreStartContainerResponse:
        is_forgotten = FAULT == "forgets-its-containers" and not taken.issuperset(request.devices_ids)
        if FAULT == "starts-slowly":
            time.sleep(2.5)
        if FAULT == "starts-device-by-device":
            time.sleep(2.5 * len(request.devices_ids))
            if len(request.devices_ids) > 2:
                refuse(context, "it takes too long")
        if FAULT == "starts-one-at-a-time":
            with allocating:
                time.sleep(0.7)
        if FAULT == "marks-what-it-starts":
            if not marked.isdisjoint(request.devices_ids):
                refuse(context, "it is being initialized")
            marked.update(request.devices_ids)
            time.sleep(0.1)
            if not context.is_active():
                return api.PreStartContainerResponse()
            marked.difference_update(request.devices_ids)
        is_again = FAULT == "starts-once" and not initialized.isdisjoint(request.devices_ids)
        is_hurt = FAULT == "starts-nothing-while-sick" and SICK.exists()
        initialized.update(request.devices_ids)
        if is_again or is_hurt:
            refuse(context, "it is initialized" if is_again else "a device is sick")
        if FAULT == "no-pre-start" or (FAULT == "starts-one-device" and len(request.devices_ids) > 1) or is_forgotten:
            refuse(context, "it does not start")
        return api.PreStartContainerResponse()

    def info(self, _: object, __: grpc.ServicerContext) -> pluginregistration.PluginInfo:
        kind = "CSIPlugin" if FAULT == "watched-as-another" else "DevicePlugin"
        return pluginregistration.PluginInfo(type=kind, name=RESOURCE, supported_versions=["v1alpha1", "v1beta1"])

    def notified(self, _: object, context: grpc.ServicerContext) -> pluginregistration.RegistrationStatusResponse:
        if FAULT == "watched-deaf":
            refuse(context, "not interested")
        return pluginregistration.RegistrationStatusResponse()

    def serve(self) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(500 if FAULT == "registers-again" else 16))
        methods: dict[str, tuple[Any, Any]] = {
            "GetDevicePluginOptions": (self.options, api.Empty),
            "Allocate": (self.allocate, api.AllocateRequest),
            "GetPreferredAllocation": (self.preferred, api.PreferredAllocationRequest),
            "PreStartContainer": (self.pre_start, api.PreStartContainerRequest),
        }
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(method, request.FromString, lambda it: it.SerializeToString())
            for name, (method, request) in methods.items()
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(
            self.lists, api.Empty.FromString, lambda it: it.SerializeToString()
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),))
        if FAULT.startswith("watched"):
            watched: dict[str, Any] = {
                "GetInfo": grpc.unary_unary_rpc_method_handler(self.info, None, lambda it: it.SerializeToString()),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                    self.notified, None, lambda it: it.SerializeToString()
                ),
            }
            service = "pluginregistration.Registration"
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, watched),))
        server.add_insecure_port(f"unix:{self.socket}")
        server.start()
        return server


def fresh_mounts(ids: list[str]) -> list[api.Mount]:
    """Return a mount for each device. One fault first removes the mounts of all other devices."""
    mounted = DIRECTORY / ".mounted"
    with mounting:
        if FAULT == "removes-former-mounts" or (FAULT == "gives-a-lost-path" and len(streamed) > 1):
            shutil.rmtree(mounted, ignore_errors=True)
        for id_ in ids if FAULT != "gives-a-lost-path" or len(streamed) < 2 else ():
            if FAULT == "recreates-its-mounts":
                shutil.rmtree(mounted / id_, ignore_errors=True)
            (mounted / id_).mkdir(parents=True, exist_ok=True)
    return [api.Mount(host_path=str(mounted / id_), container_path=f"/run/{id_}") for id_ in ids]


def common_settings(ids: list[str]) -> api.Mount:
    """Write the settings of a container into a file, or move a link, that all containers mount."""
    settings = DIRECTORY / ".settings"
    if FAULT == "moves-one-link-for-all":
        settings.unlink(missing_ok=True)
        settings.symlink_to(ids[0])
    else:
        settings.write_text(",".join(ids))
    return api.Mount(host_path=str(settings), container_path="/etc/chip/settings", read_only=True)


def inside(path: str) -> str:
    """Return the path of a node in a container."""
    return "/dev/chip" if FAULT == "one-container-path" and path[-1].isdigit() else f"/{path.lstrip('/')}"


def on_host(path: str) -> str:
    """Return the path of a node on the host."""
    if FAULT == "gives-paths-in-its-container":
        return "/host/dev/null"
    if FAULT in {
        "mounts-a-missing-path",
        "drops-sick-devices",
        "lists-nothing-while-sick",
    }:  # the device nodes of these faults exist on every machine
        return f"/dev/{('zero', 'full', 'random')[int(path[-1])]}" if path[-1].isdigit() else "/dev/null"
    if FAULT in {"gives-a-missing-node", "gives-a-file"}:
        odd = "/dev/chip0" if FAULT == "gives-a-missing-node" else sys.argv[0]
        return {"0": odd, "1": "/dev/zero", "2": "/dev/full"}.get(path[-1], "/dev/null")
    return "/dev/null" if FAULT == "gives-the-first-path" and path[-1].isdigit() else path


def register() -> grpc.StatusCode:
    """Register all resources. Return the status of the last call."""
    if FAULT == "registers-two-names":
        register_as(OTHER_RESOURCE, SOCKET)
    if FAULT in OF_TWO:
        while others:
            others.pop().stop(None).wait()  # the server deletes its socket
        OTHER_SOCKET.unlink(missing_ok=True)
        has_returned = bool(boards)
        boards[:] = [Plugin(OTHER_SOCKET)]
        others.append(boards[0].serve())
        status = register_as(OTHER_RESOURCE, OTHER_SOCKET)
        if FAULT != "floods-for-one-of-two" and status is not grpc.StatusCode.OK:
            return status
        if FAULT == "returns-with-one-of-two" and has_returned:
            return status
    return register_as(RESOURCE, SOCKET)


def register_as(resource: str, socket: Path) -> grpc.StatusCode:
    """Call Register. Return the status."""
    options = {} if FAULT == "other-options" else OPTIONS
    request = api.RegisterRequest(
        version="v1alpha1" if FAULT == "old-version" else "v1beta1",
        endpoint=str(socket) if FAULT == "absolute-endpoint" else socket.name,
        resource_name="example.com/board" if FAULT == "returns-under-another-name" and next(numbers) else resource,
        options=api.DevicePluginOptions(**options),
    )
    target = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"unix:{KUBELET}", target) as channel:
        call: Any = channel.unary_unary(
            "/v1beta1.Registration/Register", lambda it: it.SerializeToString(), api.Empty.FromString
        )
        try:
            call(request, timeout=2 if FAULT == "registers-early" else 15)
        except grpc.RpcError as error:
            return error.code()
    if FAULT == "returns-twice" and next(numbers) == 1:
        threading.Timer(0.4, SOCKET.unlink).start()
    return grpc.StatusCode.OK


def identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def waits_before_return() -> bool:
    """Return whether the plugin must wait before it registers again, because a device is sick."""
    return FAULT == "hides-while-sick" and SICK.exists() and not over.wait(POLL_INTERVAL)


def watch(plugin: Plugin) -> None:  # noqa: C901, PLR0912, PLR0915 - every fault is a branch
    """Serve and register, and do so again after each restart of the kubelet."""
    server = None if FAULT in {"registers-first", "registers-early"} else plugin.serve()
    registered_with = None
    status = grpc.StatusCode.OK
    retry_at = registered_at = 0.0
    while not over.is_set():
        kubelet = identity(KUBELET)
        if FAULT == "exits" and plugin.dropped:
            os._exit(1)
        if FAULT == "never-returns" and registered_with:
            break
        if FAULT == "returns-once" and plugin.streams > 1:
            break
        if FAULT == "ends-after-a-while" and registered_with and time.monotonic() > registered_at + 1.5:
            os._exit(3)
        dropped = any(one.dropped for one in (plugin, *boards)) and FAULT not in {"watches-files", "watches-its-socket"}
        gone = server is not None and identity(SOCKET) is None
        if FAULT == "looks-up-late" and registered_with == kubelet:
            gone = dropped = False
        is_due = kubelet != registered_with and not (FAULT == "watches-its-socket" and registered_with and not gone)
        is_due = is_due or (FAULT == "registers-each-five-seconds" and time.monotonic() > registered_at + 5)
        is_back = FAULT == "registers-after-a-return" and plugin.streams > 1
        is_due = is_due or (is_back and time.monotonic() > registered_at + 0.7)
        if plugin.streams and kubelet != registered_with and waits_before_return():
            continue
        if FAULT == "slow-to-return" and registered_with and (dropped or kubelet != registered_with):
            over.wait(5.0)
            kubelet, gone = identity(KUBELET), identity(SOCKET) is None
        if kubelet and FAULT != "never-registers" and (dropped or gone or is_due) and time.monotonic() >= retry_at:
            if gone and server is not None:
                server.stop(None).wait()
                server = plugin.serve()
            plugin.dropped = False
            status = register()
            registered_at = time.monotonic()
            if FAULT.startswith("ends-when-refused") and status is grpc.StatusCode.UNKNOWN:
                over.wait(2.0 if FAULT == "ends-when-refused-later" else 0.0)
                os._exit(1)
            is_done = status is grpc.StatusCode.OK or FAULT == "ignores-refusals"
            registered_with = kubelet if is_done and FAULT != "registers-again" else None
            if FAULT == "looks-up-late":
                over.wait(1.5)
                registered_with = identity(KUBELET)
            retry_at = time.monotonic() + (0.02 if FAULT == "complains-without-end" else 0.3)
            retry_at = 0.0 if registered_with else retry_at
            if server is None and (registered_with or FAULT == "registers-early"):
                server = plugin.serve()
        away = status is grpc.StatusCode.UNAVAILABLE
        if FAULT == "complains-without-end" and away:
            print("cannot register: " + 80 * "x", flush=True)
        if FAULT == "gives-up" and away:
            break
        if (
            FAULT in {"floods", "floods-for-one-of-two"} and status is grpc.StatusCode.UNKNOWN
        ) or FAULT == "registers-again":
            retry_at = 0.0
        elif not (FAULT == "spins" and away) and not (FAULT == "spins-without-a-socket" and kubelet is None):
            over.wait(POLL_INTERVAL)
    over.wait()
    for each in (*others, *([server] if server is not None else [])):
        each.stop(0.2).wait()


def wait_to_be_found(plugin: Plugin) -> None:
    """Serve, and create a new socket when the stream ends, because a kubelet contacts every socket once."""
    SOCKET.unlink(missing_ok=True)
    while not over.is_set():
        server = plugin.serve()
        while not plugin.dropped and not over.wait(POLL_INTERVAL):
            pass
        plugin.dropped = False
        server.stop(0.2).wait()


def burn() -> None:
    """Keep a processor busy."""
    while not over.is_set():
        pass


def end(*_: object) -> None:
    if FAULT == "fails-at-sigterm":
        SOCKET.unlink(missing_ok=True)
        os._exit(1)
    if FAULT == "leaves-its-socket":
        os._exit(0)
    if FAULT == "empties-its-directory":
        for path in DIRECTORY.iterdir():
            if path not in {KUBELET, SICK}:
                path.unlink()
    if FAULT == "clears-its-mounts-at-sigterm":
        shutil.rmtree(DIRECTORY / ".mounted", ignore_errors=True)
    if FAULT == "deletes-the-kubelets-socket":
        KUBELET.unlink(missing_ok=True)
    if FAULT == "panics-at-sigterm":
        print("panic: close of closed channel\n\ngoroutine 1 [running]:", flush=True)
        SOCKET.unlink()
        os._exit(2)
    if FAULT != "ignores-sigterm" and not (FAULT == "waits-through-sigterm" and not KUBELET.exists()):
        over.set()


if __name__ == "__main__":
    if FAULT == "slow-to-start":
        time.sleep(3.0)
    if FAULT in {"finds-its-socket", "start-second"} and SOCKET.exists():
        sys.exit("bind: address already in use")
    if FAULT == "writes-its-state-in-place" and STATE.exists() and not STATE.read_bytes().endswith(b"}"):
        sys.exit("the state cannot be read")
    if FAULT == "needs-healthy-devices" and SICK.exists():
        sys.exit("a device is lost")
    if FAULT == "needs-a-kubelet" and not KUBELET.exists():
        signal.pause()
    if FAULT in {"deletes-other-sockets", "deletes-sockets-like-its-own"}:
        for path in DIRECTORY.glob("*.sock" if FAULT == "deletes-other-sockets" else "chip*.sock"):
            if path != KUBELET:
                path.unlink()
    signal.signal(signal.SIGTERM, end)
    print(f"chips on {SOCKET}, fault: {FAULT or 'none'}", flush=True)
    if FAULT == "busy":
        threading.Thread(target=burn, daemon=True).start()
    # Done in a thread, because a signal handler would wait forever for a lock that the main thread itself holds.
    work = threading.Thread(target=wait_to_be_found if FAULT.startswith("watched") else watch, args=(Plugin(),))
    work.start()
    while work.is_alive():  # a signal that arrives just before a wait, or in another thread, does not end it
        work.join(LOOK_AGAIN)
