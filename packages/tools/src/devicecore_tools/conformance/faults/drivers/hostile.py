"""Drivers that a run must survive: they harm the run or other programs, hang, or do things that no check expects.

Law: these are not injected faults, because they test the run, not a single check.
"""

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from devicecore.wire import pluginregistration
from devicecore_tools.conformance.faults.good_driver import ClaimError, GoodDriver, Json, Message


class StartsDaemons(GoodDriver):
    """The driver starts daemons that lack its environment but keep its output open, and writes their ids to $PIDS."""

    def serve(self) -> None:
        daemon = subprocess.Popen(["/usr/bin/env", "-i", "setsid", "sleep", "600"])
        words = ["/bin/sh", "-c", "env -i setsid sleep 600 >/dev/stderr & echo $!"]
        orphan = subprocess.check_output(words, text=True)  # noqa: S603 - this is its purpose
        pids = Path(os.environ["PIDS"])
        unfinished = pids.with_suffix(".new")
        before = pids.read_text() if pids.exists() else ""
        unfinished.write_text(f"{before}{daemon.pid} {orphan.strip()}\n")
        unfinished.replace(pids)
        super().serve()


class NamesAnotherSocket(GoodDriver):
    """The driver's endpoint is another program's socket, $VICTIM, and its registration socket disappears."""

    def get_info(self, _: Message, _context: grpc.ServicerContext) -> Message:
        return pluginregistration.PluginInfo(
            type=self.type, name=self.name, endpoint=os.environ["VICTIM"], supported_versions=self.versions
        )

    def notify(self, request: Message, context: grpc.ServicerContext) -> Message:
        threading.Timer(0.2, self.registration.unlink, [True]).start()
        return super().notify(request, context)


class DeletesItsDirectory(GoodDriver):
    """The driver deletes the CDI directory after preparing a claim."""

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        self.cdi.mkdir(exist_ok=True)
        answer = super().prepare(request, context)
        shutil.rmtree(self.cdi)
        return answer


class PublishesNonsense(GoodDriver):
    """Two fields of the driver's slices have wrong types."""

    def slices(self) -> list[Json]:
        return [{**spec, "devices": "none", "pool": {"name": 5}} for spec in super().slices()]


class AsksForV1alpha3(GoodDriver):
    """The driver was written for an alpha version of the API."""

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        status, answer = super().call(method, path.replace("resource.k8s.io/v1/", "resource.k8s.io/v1alpha3/"), body)
        if "metadata" in answer and "message" in answer:
            raise OSError(answer["message"])
        return status, answer


class UsesV1beta1(GoodDriver):
    """The driver was written for Kubernetes 1.32, and is correct."""

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        if body is not None:
            body = {**body, "apiVersion": "resource.k8s.io/v1beta1"}
        status, answer = super().call(method, path.replace("resource.k8s.io/v1/", "resource.k8s.io/v1beta1/"), body)
        if answer.get("kind") == "ResourceClaim":
            for one in answer["spec"]["devices"]["requests"]:
                if "exactly" in one or "deviceClassName" not in one:
                    raise OSError(f"not a v1beta1 request: {one}")
        return status, answer

    def slices(self) -> list[Json]:
        specs = super().slices()
        for spec in specs:
            spec["devices"] = [{"name": device.pop("name"), "basic": device} for device in spec["devices"]]
        return specs

    def watch(self, path: str, version: str) -> None:
        super().watch(path.replace("resource.k8s.io/v1/", "resource.k8s.io/v1beta1/"), version)


class PublishesAnEmptyPool(GoodDriver):
    """The driver has no devices, and publishes an empty pool."""

    def parts(self) -> list[list[Json]]:
        return [[]]


class FindsItsDevicesLate(PublishesAnEmptyPool):
    """The driver publishes an empty pool first, and its devices two seconds later."""

    began = time.monotonic()

    @property
    def has_found(self) -> bool:
        return time.monotonic() - self.began > 2.0

    def parts(self) -> list[list[Json]]:
        return GoodDriver.parts(self) if self.has_found else super().parts()

    def slices(self) -> list[Json]:
        specs = super().slices()  # at first one slice, with generation 1; later two, with generation 2
        return [{**spec, "pool": {**spec["pool"], "generation": len(specs)}} for spec in specs]

    def watch(self, path: str, version: str) -> None:
        if self.has_found:
            super().watch(path, version)
        else:
            self.over.wait(2.1)


class AnswersNothing(GoodDriver):
    """The driver refuses to identify itself."""

    def get_info(self, _: Message, _context: grpc.ServicerContext) -> Message:
        raise ClaimError("not now")


class Hangs(GoodDriver):
    """The driver ignores SIGTERM, and calls to its DRA and health services hang.

    With HANGS_WITH=claims, calls without claims are answered.
    """

    def serve(self) -> None:
        super().serve()
        signal.signal(signal.SIGTERM, lambda *_: None)

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        self.hang(request)
        return super().prepare(request, context)

    def unprepare(self, request: Message, _context: grpc.ServicerContext) -> Message:
        self.hang(request)
        return super().unprepare(request, _context)

    def hang(self, request: Message) -> None:
        if request.claims or os.environ.get("HANGS_WITH") != "claims":
            self.over.wait()

    def watch_health(self, _: Message, _context: grpc.ServicerContext) -> Iterator[Message]:
        self.over.wait()
        yield from ()


class RegistersThroughALink(GoodDriver):
    """The driver's registration socket is in its own directory, and the registry contains a link to it."""

    def __init__(self) -> None:
        super().__init__()
        self.public = self.registration
        self.registration = self.directory / "reg.sock"

    def serve(self) -> None:
        super().serve()
        self.public.unlink(missing_ok=True)
        self.public.symlink_to(self.registration)

    def leave(self) -> None:
        super().leave()
        self.public.unlink(missing_ok=True)


class MakesAPipe(RegistersThroughALink):
    """The driver creates a named pipe in place of its registration socket."""

    def serve(self) -> None:
        super().serve()
        self.public.unlink()
        os.mkfifo(self.public)


class ServesNothing(GoodDriver):
    """The driver listens on its service socket, but never answers."""

    def serve(self) -> None:
        super().serve()
        self.servers[0].stop(None).wait()
        self.service.unlink(missing_ok=True)
        self.mute = socket.socket(socket.AF_UNIX)
        self.mute.bind(str(self.service))
        self.mute.listen()


class HangsInGetInfo(GoodDriver):
    """The driver does not answer GetInfo."""

    def get_info(self, _: Message, context: grpc.ServicerContext) -> Message:
        while context.is_active():
            time.sleep(0.05)
        raise ClaimError("the kubelet has given up")


class WritesCdiFilesElsewhere(GoodDriver):
    """The driver writes CDI files where no runtime finds them."""

    def cdi_file(self, uid: str) -> Path:
        return self.state_file.parent / super().cdi_file(uid).name


class PutsPipes(GoodDriver):
    """The driver puts a pipe, a link to a device and a link to itself among its CDI files."""

    def serve(self) -> None:
        if not (self.cdi / "a.json").exists():
            os.mkfifo(self.cdi / "a.json")
            (self.cdi / "b.json").symlink_to("b.json")
            (self.cdi / "c.json").symlink_to("/dev/zero")
        super().serve()
