"""The kubelet's pod-resources API: which container holds which devices. Both sides of it.

Law: what is listed is what the ledger says, whatever plugins say now; one element for each device and each NUMA node it
was on (reference 10.2). The converse holds of allocatable devices: what plugins call healthy now, whoever holds it.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from attrs import frozen
from google.protobuf.message import Message

from devicecore.domain.errors import DeviceCoreError, DirectoryError, DirectoryInUseError
from devicecore.domain.model import Container, NumaNode, Pod
from devicecore.domain.node import Node
from devicecore.serving.rate import TokenBucket
from devicecore.serving.sockets import check_not_in_the_way, check_socket_path, is_served, target
from devicecore.wire import podresources, podresources_v1alpha1

SERVICE_V1 = "v1.PodResourcesLister"
SERVICE_V1ALPHA1 = "v1alpha1.PodResourcesLister"
REQUESTS_PER_SECOND = 100.0
BURST = 10

_LONGEST_ANSWER = 64 * 1024 * 1024  # bytes that the client takes: 50,000 devices are more than gRPC's 4 MiB
_THREADS = 4
_STOP_GRACE = 1.0  # seconds for calls in flight
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two attempts of the client
_AGAIN = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)

Response = TypeVar("Response", bound=Message)

_log = logging.getLogger(__name__)


@frozen
class Snapshot:
    """What is told: all that is known of devices, and the active pods, in the order in which they are listed."""

    node: Node
    pods: Sequence[Pod]


# --- the rules --------------------------------------------------------------------------------------------------------


def list_pods(snapshot: Snapshot) -> podresources.ListPodResourcesResponse:
    """Every active pod, with what its containers hold (kubelet: `List`)."""
    return podresources.ListPodResourcesResponse(pod_resources=[_pod(snapshot.node, pod) for pod in snapshot.pods])


def get_pod(snapshot: Snapshot, name: str, namespace: str) -> podresources.GetPodResourcesResponse | None:
    """One active pod; None if there is none of that name (kubelet: `Get`)."""
    for pod in snapshot.pods:
        if (pod.name, pod.namespace) == (name, namespace):
            return podresources.GetPodResourcesResponse(pod_resources=_pod(snapshot.node, pod))
    return None


def allocatable_resources(snapshot: Snapshot) -> podresources.AllocatableResourcesResponse:
    """Every healthy device, held or not (kubelet: `GetAllocatableResources`)."""
    elements = [
        element
        for name, resource in sorted(snapshot.node.inventory.resources.items())
        if resource.report is not None
        for device in resource.report.healthy
        # A topology without nodes makes no element at all, no topology makes one.
        for element in _elements(name, device, resource.report.devices[device].topology)
    ]
    return podresources.AllocatableResourcesResponse(devices=elements)


def list_pods_v1alpha1(snapshot: Snapshot) -> podresources_v1alpha1.ListPodResourcesResponse:
    """Every active pod in the older API, which knows neither NUMA nodes nor sidecars."""
    pods = [
        podresources_v1alpha1.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                podresources_v1alpha1.ContainerResources(
                    name=container.name,
                    devices=[
                        podresources_v1alpha1.ContainerDevices(
                            resource_name=held.resource_name, device_ids=held.device_ids
                        )
                        for held in _held(snapshot.node, pod, container)
                    ],
                )
                for container in pod.containers
            ],
        )
        for pod in snapshot.pods
    ]
    return podresources_v1alpha1.ListPodResourcesResponse(pod_resources=pods)


def _pod(node: Node, pod: Pod) -> podresources.PodResources:
    return podresources.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            podresources.ContainerResources(name=container.name, devices=_held(node, pod, container))
            for container in pod.in_start_order
            if not pod.lends(container)  # an init container that ends is never listed, a sidecar is
        ],
    )


def _held(node: Node, pod: Pod, container: Container) -> list[podresources.ContainerDevices]:
    key = pod.key(container)
    return [
        element
        for held in sorted(node.ledger.allocations.get(pod.uid, ()), key=lambda held: held.resource)
        if held.key == key
        for device in held.devices
        for element in _elements(held.resource, device, held.nodes[device] or None)  # stored under no node: key -1
    ]


def _elements(
    resource: str, device: str, topology: tuple[NumaNode, ...] | None
) -> Iterator[podresources.ContainerDevices]:
    if topology is None:
        yield podresources.ContainerDevices(resource_name=resource, device_ids=[device])
        return
    for node in topology:
        numa = podresources.TopologyInfo(nodes=[podresources.NUMANode(ID=node)])
        yield podresources.ContainerDevices(resource_name=resource, device_ids=[device], topology=numa)


# --- the server -------------------------------------------------------------------------------------------------------


class PodResourcesServer:
    """Serves the API, v1 and v1alpha1, on a unix socket.

    Args:
        socket: where; its directory is made, if only its last part is missing.
        look: what to tell. It is called in a thread of this server.
        sweep: called before pods are listed, so that those that are gone are not (kubelet: `UpdateAllocatedDevices`).
        observe: told of every call: method, API version, whether it failed. Must not block.
        requests_per_second: how many calls are answered in the long run, all callers and methods together.
        burst: how many may come at once.
        clock: monotonic seconds, for that.

    Raises:
        ValueError: nobody would be answered ever.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str],
        look: Callable[[], Snapshot],
        *,
        sweep: Callable[[], None] = lambda: None,
        observe: Callable[[str, str, bool], None] = lambda _method, _version, _failed: None,
        requests_per_second: float = REQUESTS_PER_SECOND,
        burst: int = BURST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.socket = Path(socket).absolute()
        self._look = look
        self._sweep = sweep
        self._observe = observe
        self._bucket = TokenBucket(requests_per_second, burst, clock)
        self._server: grpc.Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Serve.

        Raises:
            SocketPathTooLongError: the socket's path cannot be bound.
            DirectoryError: its directory cannot be made or used.
            DirectoryInUseError: somebody serves there already.
        """
        _prepare(self.socket)
        server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix="devicecore-pod-resources"))
        server.add_generic_rpc_handlers(
            (
                self._service(
                    SERVICE_V1,
                    "v1",
                    {
                        "List": (podresources.ListPodResourcesRequest, self._list),
                        "Get": (podresources.GetPodResourcesRequest, self._get),
                        "GetAllocatableResources": (podresources.AllocatableResourcesRequest, self._get_allocatable),
                    },
                ),
                self._service(
                    SERVICE_V1ALPHA1,
                    "v1alpha1",
                    {"List": (podresources_v1alpha1.ListPodResourcesRequest, self._list_v1alpha1)},
                ),
            )
        )
        try:
            server.add_insecure_port(target(str(self.socket)))
        except RuntimeError as error:
            raise DirectoryError(str(self.socket.parent), str(error)) from error
        server.start()
        self._server = server

    def stop(self) -> None:
        """Stop serving; the socket is gone on return. Twice is no error."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(_STOP_GRACE).wait()
            with suppress(OSError):
                self.socket.unlink()

    def _list(self, _: podresources.ListPodResourcesRequest) -> podresources.ListPodResourcesResponse:
        self._sweep()
        return list_pods(self._look())

    def _get(self, request: podresources.GetPodResourcesRequest) -> podresources.GetPodResourcesResponse:
        answer = get_pod(self._look(), request.pod_name, request.pod_namespace)
        if answer is None:
            raise _NotFoundError(request.pod_name, request.pod_namespace)
        return answer

    def _get_allocatable(
        self, _: podresources.AllocatableResourcesRequest
    ) -> podresources.AllocatableResourcesResponse:
        return allocatable_resources(self._look())

    def _list_v1alpha1(
        self, _: podresources_v1alpha1.ListPodResourcesRequest
    ) -> podresources_v1alpha1.ListPodResourcesResponse:
        self._sweep()
        return list_pods_v1alpha1(self._look())

    def _service(
        self, name: str, version: str, methods: Mapping[str, tuple[type[Message], Callable[[Any], Message]]]
    ) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            name,
            {
                method: grpc.unary_unary_rpc_method_handler(
                    self._answering(method, version, answer), request.FromString, _serialize
                )
                for method, (request, answer) in methods.items()
            },
        )

    def _answering(
        self, method: str, version: str, answer: Callable[[Any], Message]
    ) -> Callable[[Any, grpc.ServicerContext], Message]:
        def respond(request: Message, context: grpc.ServicerContext) -> Message:
            if self._bucket.take():
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")  # nobody counts these
            try:
                response = answer(request)
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
                self._observe(method, version, True)  # noqa: FBT003 - whether it failed
                if not isinstance(error, _NotFoundError):
                    _log.exception("%s of the pod-resources API failed", method)
                context.abort(grpc.StatusCode.UNKNOWN, str(error))  # a plain error of a Go handler is UNKNOWN
            self._observe(method, version, False)  # noqa: FBT003 - whether it failed
            return response

        return respond


@frozen
class _NotFoundError(Exception):
    """There is no such pod."""

    name: str
    namespace: str

    def __str__(self) -> str:
        return f"pod {self.name} in namespace {self.namespace} not found"


def _prepare(socket: Path) -> None:
    check_socket_path(str(socket))
    try:
        with suppress(FileExistsError):
            socket.parent.mkdir(0o750)
        check_not_in_the_way(str(socket))
        if is_served(str(socket)):
            raise DirectoryInUseError(str(socket.parent))
    except OSError as error:
        raise DirectoryError(str(socket.parent), error.strerror or str(error)) from error


# --- the client -------------------------------------------------------------------------------------------------------


@frozen
class PodResourcesError(DeviceCoreError):
    """The pod-resources API does not answer, or answers that it cannot. `code` is gRPC's name for it."""

    socket: str
    method: str
    code: str
    cause: str

    def __str__(self) -> str:
        return f"{self.method} at {self.socket!r} failed with {self.code}: {self.cause}"


class PodResourcesClient:
    """Asks a kubelet, real or not. It may be made before there is one.

    A call waits for the socket, and tries again when the kubelet has too much to do or has just gone, until it is
    answered or `timeout` seconds are over. Thread-safe.
    """

    def __init__(
        self, socket: str | os.PathLike[str] = "/var/lib/kubelet/pod-resources/kubelet.sock", *, timeout: float = 10.0
    ) -> None:
        self.socket = str(socket)
        self._timeout = timeout
        self._channel = grpc.insecure_channel(
            target(str(Path(socket).absolute())),
            options=[
                ("grpc.default_authority", "localhost"),  # strict servers refuse a path there
                ("grpc.max_receive_message_length", _LONGEST_ANSWER),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection. Twice is no error."""
        self._channel.close()

    def list(self) -> podresources.ListPodResourcesResponse:
        """Every active pod, with what its containers hold.

        Raises:
            PodResourcesError: there was no answer in time, or it was an error.
        """
        return self._call("List", podresources.ListPodResourcesRequest(), podresources.ListPodResourcesResponse)

    def get(self, name: str, namespace: str = "default") -> podresources.GetPodResourcesResponse:
        """One pod. A kubelet before 1.34 has to be told to offer this.

        Raises:
            PodResourcesError: there is no such pod, there was no answer in time, or it was another error.
        """
        request = podresources.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        return self._call("Get", request, podresources.GetPodResourcesResponse)

    def get_allocatable_resources(self) -> podresources.AllocatableResourcesResponse:
        """Every healthy device.

        Raises:
            PodResourcesError: there was no answer in time, or it was an error.
        """
        request = podresources.AllocatableResourcesRequest()
        return self._call("GetAllocatableResources", request, podresources.AllocatableResourcesResponse)

    def _call(self, method: str, request: Message, response: type[Response]) -> Response:
        call = self._channel.unary_unary(f"/{SERVICE_V1}/{method}", _serialize, response.FromString)
        deadline = time.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        while True:
            try:
                answer: Response = call(request, timeout=max(deadline - time.monotonic(), 0.001), wait_for_ready=True)
            except grpc.RpcError as error:
                code = error.code()
                if code not in _AGAIN or time.monotonic() + pause >= deadline:
                    raise PodResourcesError(self.socket, method, code.name, error.details() or "") from error
            else:
                return answer
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
