"""Drivers with one fault in their registration.

Law: each driver fails the checks that it names, and no others except those in `breaks_too`.
"""

import os
import socket
import sys
import time
from pathlib import Path

import grpc

from devicecore_tools.conformance.faults.good_driver import SERVICES, GoodDriver, Json, Message, fails


@fails("makes-a-registration-socket")
class HiddenSocket(GoodDriver):
    settings = {"starting": 2.0}

    def __init__(self) -> None:
        super().__init__()
        self.registration = self.registration.with_name(".chip-reg.sock")


@fails("answers-get-info")
class SlowInfo(GoodDriver):
    def get_info(self, request: Message, context: grpc.ServicerContext) -> Message:
        time.sleep(1.5)
        return super().get_info(request, context)


@fails("says-that-it-is-a-dra-plugin")
class WrongType(GoodDriver):
    type = "DRAplugin"


@fails("has-a-valid-name")
class NameWithUnderscore(GoodDriver):
    name = "chip_driver.example.org"
    published_name = "chip-driver.example.org"


@fails("has-a-name-in-lower-case")
class UpperCase(GoodDriver):
    name = "Chip.example.org"


@fails("has-a-usable-endpoint")
class EndpointWithScheme(GoodDriver):
    settings = {"returning": 10.0}

    def get_info(self, request: Message, context: grpc.ServicerContext) -> Message:
        info = super().get_info(request, context)
        info.endpoint = f"unix://{info.endpoint}"
        return info


@fails("announces-known-versions")
class BareVersion(GoodDriver):
    versions = ("v1beta1",)


@fails("announces-v1-first")
class OldestFirst(GoodDriver):
    versions = tuple(reversed(SERVICES))


@fails("accepts-its-registration")
class RefusesStatus(GoodDriver):
    settings = {"returning": 10.0}

    def notify(self, _: Message, context: grpc.ServicerContext) -> Message:
        context.abort(grpc.StatusCode.INTERNAL, "what status?")


@fails("serves-what-it-announces")
class ShortServiceName(GoodDriver):
    settings = {"returning": 10.0}

    def services(self) -> Json:
        return {name.removeprefix("k8s.io.kubelet.pkg.apis.dra."): value for name, value in super().services().items()}


@fails("answers-get-info-again")
class CountsCalls(GoodDriver):
    number = 0

    def get_info(self, request: Message, context: grpc.ServicerContext) -> Message:
        self.number += 1
        info = super().get_info(request, context)
        if self.number > 20:
            info.supported_versions.append("v1.Tired")
        return info


@fails("survives-a-refused-registration")
class StopsAfterRefusal(GoodDriver):
    def notify(self, status: Message, context: grpc.ServicerContext) -> Message:
        if not status.plugin_registered:
            self.servers[0].stop(None)
        return super().notify(status, context)


@fails("protects-its-sockets")
class OpenSockets(GoodDriver):
    def serve(self) -> None:
        super().serve()
        self.service.chmod(0o777)


@fails("serves-any-authority")
class StrictAuthority(GoodDriver):
    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        if context._rpc_event.call_details.host != b"localhost":  # type: ignore[attr-defined]  # gRPC shows it nowhere else
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "who?")
        return super().prepare(request, context)


@fails("replaces-stale-sockets")
class TakesAnotherName(GoodDriver):
    """On a later start, the driver registers under a different name."""

    def get_info(self, request: Message, context: grpc.ServicerContext) -> Message:
        info = super().get_info(request, context)
        started = self.directory / f"{os.getpid()}.started"
        started.touch()
        if len(list(self.directory.glob("*.started"))) > 1:
            info.name = "other.example.org"
        return info


@fails("replaces-stale-sockets")
class StaleSocket(GoodDriver):
    settings = {"returning": 10.0}

    def served(self, path: Path, services: Json) -> grpc.Server:
        if path.exists():
            print(f"{path} exists; another instance seems to be running", flush=True)
            sys.exit(1)
        return super().served(path, services)


@fails("keeps-its-socket-names")
class NewNames(GoodDriver):
    def __init__(self) -> None:
        super().__init__()
        self.registration = self.registration.with_name(f"chip-{os.getpid()}-reg.sock")


@fails("registers-with-a-restarted-kubelet")
class RegistersOnce(GoodDriver):
    """The driver accepts only one registration."""

    settings = {"returning": 10.0}
    breaks_too = {"survives-a-refused-registration": "The registration after the refusal is also a second one."}

    is_first = True

    def notify(self, status: Message, context: grpc.ServicerContext) -> Message:
        if not self.is_first:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "I am registered")
        self.is_first = False
        return super().notify(status, context)


@fails("waits-for-a-late-kubelet")
class Impatient(GoodDriver):
    """After each start but the first, the driver exits unless it is registered soon."""

    was_asked = False

    def notify(self, status: Message, context: grpc.ServicerContext) -> Message:
        self.was_asked = True
        return super().notify(status, context)

    def publish_for_ever(self) -> None:
        marker = self.directory / "started"
        if marker.exists() and not self.over.wait(1.5) and not self.was_asked:
            os._exit(3)
        marker.touch()
        super().publish_for_ever()


@fails("removes-its-sockets")
class LeavesSockets(GoodDriver):
    def leave(self) -> None:
        os._exit(0)


@fails("serves-before-it-registers")
class RegistersTooEarly(GoodDriver):
    def serve(self) -> None:
        registrar = self.served(self.registration, self.registrar())
        time.sleep(1.5)
        self.servers = [self.served(self.service, self.services()), registrar]


@fails("serves-before-it-registers")
class ListensBeforeItServes(GoodDriver):
    """The driver registers while its service accepts connections but does not answer."""

    def serve(self) -> None:
        self.service.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.service))
            listener.listen()
            registrar = self.served(self.registration, self.registrar())
            time.sleep(1.5)
        self.servers = [self.served(self.service, self.services()), registrar]
