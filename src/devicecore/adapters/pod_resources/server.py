"""The server of the pod-resources API, on a unix socket.

Laws: The server answers no more calls than its rate limit allows. A call that fails does not affect the next call.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from devicecore.adapters.pod_resources import api
from devicecore.domain.errors import DirectoryError, DirectoryInUseError, SetUpError
from devicecore.domain.text import foreign_text
from devicecore.runtime.background import SupervisedThread
from devicecore.runtime.in_time import in_time
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore.system.arguments import checks_arguments
from devicecore.system.directories import KeptDirectory
from devicecore.system.grpc_settings import target
from devicecore.system.rate import TokenBucket
from devicecore.system.sockets import OwnedSocket, check_socket_path, is_served
from devicecore.wire import podresources, podresources_v1alpha1

REQUESTS_PER_SECOND = 100.0
BURST = 10

MAX_SWEEP = 1.0
"""The maximum number of seconds that a List call waits for the sweep."""

_THREADS = 4
_STOP_GRACE = 1.0  # seconds for calls in progress to end
_LOOK_INTERVAL = 1.0  # seconds between two checks of our own socket

_Methods = Mapping[str, tuple[type[Message], Callable[[Any], Message]]]

_log = logging.getLogger(__name__)


class PodResourcesServer(HasLifecycle):
    """Serves the API, v1 and v1alpha1, on a unix socket.

    Starting raises `SetUpError` if the socket cannot be created, or if another process serves it. Stopping removes our
    socket, but not a socket of another process at the same path.

    Args:
        socket: the path of the socket. The server creates the socket's directory if only its last component is missing.
        look: returns the input for the responses. This function is called in a thread of this server.
        sweep: called before pods are listed, so that pods that have ended are left out (kubelet:
            `UpdateAllocatedDevices`).
        observe: called after each call that the rate limit allows, with the call's method, the API version and whether
            the call failed. The function must not block.
        allow_shared_directory: whether other users may write to the socket's directory.
        requests_per_second: calls per second in the long run, for all callers and methods together.
        burst: how many calls may come at once.
        clock: returns monotonic seconds, used to limit the rate.

    Raises:
        ValueError: the rate limit would reject every call.
    """

    @checks_arguments()
    def __init__(
        self,
        socket: str | os.PathLike[str],
        look: Callable[[], api.Snapshot],
        *,
        sweep: Callable[[], None] = lambda: None,
        observe: Callable[[str, str, bool], None] = lambda _method, _version, _failed: None,
        allow_shared_directory: bool = False,
        requests_per_second: float = REQUESTS_PER_SECOND,
        burst: int = BURST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.socket: Path = Path(socket).absolute()
        self._look = look
        self._sweep = sweep
        self._observe = observe
        self._bucket = TokenBucket(requests_per_second, burst, clock)
        self._directory = KeptDirectory(self.socket.parent, allow_shared=allow_shared_directory)
        self._socket = OwnedSocket(str(self.socket))
        self._server: grpc.Server | None = None
        self._keeper: SupervisedThread | None = None
        self._lifecycle = Lifecycle("the pod-resources server")

    def __repr__(self) -> str:
        return f"PodResourcesServer({str(self.socket)!r}, {'stopped' if self._server is None else 'running'})"

    def _begin(self) -> None:
        check_socket_path(str(self.socket))
        self._directory.make()
        self._serve_first()
        self._keeper = SupervisedThread("devicecore-pod-resources-socket", self._keep_socket)
        self._keeper.start()

    def _end(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()
        self._directory.close()
        if self._server is not None:
            self._socket.remove()
            try:
                self._server.stop(_STOP_GRACE).wait()
            except RuntimeError:  # gRPC could not get a thread in which to wait
                self._server.stop(None)
            self._server = None

    def _serve_first(self) -> None:
        try:
            is_in_use = is_served(str(self.socket))
        except OSError as error:
            raise DirectoryError(str(self.socket.parent), error.strerror or str(error)) from error
        if is_in_use:
            raise DirectoryInUseError(str(self.socket.parent))
        self._serve()

    def _serve(self) -> None:
        server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix="devicecore-pod-resources"))
        methods: _Methods = {
            "List": (podresources.ListPodResourcesRequest, lambda _: self._swept(api.list_pods)),
            "Get": (podresources.GetPodResourcesRequest, self._get),
            "GetAllocatableResources": (
                podresources.AllocatableResourcesRequest,
                lambda _: api.allocatable_resources(self._look()),
            ),
        }
        older: _Methods = {
            "List": (podresources_v1alpha1.ListPodResourcesRequest, lambda _: self._swept(api.list_pods_v1alpha1))
        }
        services = (
            self._service(api.SERVICE_V1, "v1", methods),
            self._service(api.SERVICE_V1ALPHA1, "v1alpha1", older),
        )
        try:
            with self._socket.binding() as private:
                server.add_insecure_port(target(private))
                server.start()
                # created now, because a server that fails to start is never freed
                server.add_generic_rpc_handlers(services)
        except BaseException as error:
            with suppress(ValueError):  # raised if the server is running
                server.start()  # gRPC does not close the socket of a server that was never started
            # The wait is limited: if the start got no thread, or was interrupted before it got one, gRPC never ends it.
            with suppress(RuntimeError):
                server.stop(0).wait(_STOP_GRACE)
            if not isinstance(error, OSError | RuntimeError):  # a RuntimeError comes from grpc, and gives no reason
                self._socket.remove()
                raise
            raise DirectoryError(str(self.socket.parent), getattr(error, "strerror", None) or str(error)) from error
        former, self._server = self._server, server
        if former is not None:
            former.stop(_STOP_GRACE)

    def _keep_socket(self, stopping: threading.Event) -> None:
        while not stopping.wait(_LOOK_INTERVAL):
            if self._socket.is_gone():
                try:
                    self._directory.look()
                    self._serve()
                except SetUpError as error:
                    self._socket.warn(f"it cannot be served again yet: {error}")
                else:
                    _log.info("%s is served again", foreign_text(self._socket.path))

    def _get(self, request: podresources.GetPodResourcesRequest) -> podresources.GetPodResourcesResponse:
        answer = api.get_pod(self._look(), request.pod_name, request.pod_namespace)
        if answer is None:
            message = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            raise _NotFoundError(message)
        return answer

    def _swept(self, answer: Callable[[api.Snapshot], Message]) -> Message:
        # The sweep may wait for a hanging disk, but a List call does not have to.
        with suppress(TimeoutError):
            in_time(self._sweep, MAX_SWEEP)
        return answer(self._look())

    def _service(self, name: str, version: str, methods: _Methods) -> grpc.GenericRpcHandler:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            method: grpc.unary_unary_rpc_method_handler(
                self._answering(method, version, answer), request.FromString, lambda sent: sent.SerializeToString()
            )
            for method, (request, answer) in methods.items()
        }
        return grpc.method_handlers_generic_handler(name, handlers)

    def _answering(
        self, method: str, version: str, answer: Callable[[Any], Message]
    ) -> Callable[[Any, grpc.ServicerContext], Message]:
        def respond(request: Message, context: grpc.ServicerContext) -> Message:
            return self._lifecycle.call("a call to the pod-resources API", answered, request, context)

        def answered(request: Message, context: grpc.ServicerContext) -> Message:
            if self._bucket.take():
                # A kubelet does not count rejected calls.
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            try:
                response = answer(request)
            except Exception as error:  # noqa: BLE001 - the caller gets every error as an answer
                self._observe(method, version, True)  # noqa: FBT003 - whether it failed
                if not isinstance(error, _NotFoundError):
                    _log.exception("pod-resources API: %s failed", method)
                # A plain error from a Go handler becomes UNKNOWN.
                context.abort(grpc.StatusCode.UNKNOWN, foreign_text(str(error)))
            self._observe(method, version, False)  # noqa: FBT003 - whether it failed
            return response

        return respond


class _NotFoundError(Exception):
    """The pod does not exist."""
