"""Drivers that harm the run or the machine, whatever the checks say of them."""

import os
import shutil
import subprocess
import threading
from pathlib import Path

import grpc

from devicecore.wire import pluginregistration
from tests.conformance.good_driver import ClaimError, GoodDriver, Json, Message


class StartsDaemons(GoodDriver):
    """It starts daemons without its environment, which keep its output open, and writes their ids to $PIDS."""

    def serve(self) -> None:
        daemon = subprocess.Popen(["/usr/bin/env", "-i", "setsid", "sleep", "600"])
        words = ["/bin/sh", "-c", "env -i setsid sleep 600 >/dev/stderr & echo $!"]
        orphan = subprocess.check_output(words, text=True)
        pids = Path(os.environ["PIDS"])
        unfinished = pids.with_suffix(".new")
        before = pids.read_text() if pids.exists() else ""
        unfinished.write_text(f"{before}{daemon.pid} {orphan.strip()}\n")
        unfinished.replace(pids)
        super().serve()


class NamesAnotherSocket(GoodDriver):
    """Its endpoint is the socket $VICTIM of another program, and its registration socket vanishes."""

    def get_info(self, _: Message, _context: grpc.ServicerContext) -> Message:
        return pluginregistration.PluginInfo(
            type=self.type, name=self.name, endpoint=os.environ["VICTIM"], supported_versions=self.versions
        )

    def notify(self, request: Message, context: grpc.ServicerContext) -> Message:
        threading.Timer(0.2, self.registration.unlink, [True]).start()
        return super().notify(request, context)


class DeletesItsDirectory(GoodDriver):
    """It deletes the directory of CDI files when it has prepared a claim."""

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        self.cdi.mkdir(exist_ok=True)
        answer = super().prepare(request, context)
        shutil.rmtree(self.cdi)
        return answer


class PublishesNonsense(GoodDriver):
    """The fields of its slices have wrong types."""

    def slices(self) -> list[Json]:
        return [{**spec, "devices": "none", "pool": {"name": 5}} for spec in super().slices()]


class AsksForV1beta1(GoodDriver):
    """It was written for an older version of the API."""

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        status, answer = super().call(method, path.replace("resource.k8s.io/v1/", "resource.k8s.io/v1beta1/"), body)
        if "metadata" in answer and "message" in answer:
            raise OSError(answer["message"])
        return status, answer


class AnswersNothing(GoodDriver):
    """It refuses to say who it is."""

    def get_info(self, _: Message, _context: grpc.ServicerContext) -> Message:
        raise ClaimError("not now")
