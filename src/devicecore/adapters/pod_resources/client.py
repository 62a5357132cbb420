"""The caller's side: ask a kubelet, real or not.

Law: every call ends in time, with an answer or with the last reason why there is none.
"""

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import grpc
from attrs import frozen
from google.protobuf.message import Message

from devicecore.adapters.pod_resources.api import SERVICE_V1
from devicecore.domain.errors import DeviceCoreError
from devicecore.system.sockets import target
from devicecore.wire import podresources

_LONGEST_ANSWER = 64 * 1024 * 1024  # bytes: 50,000 devices are more than gRPC's 4 MiB
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two attempts
_AGAIN = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)

Response = TypeVar("Response", bound=Message)


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
        call = self._channel.unary_unary(
            f"/{SERVICE_V1}/{method}", type(request).SerializeToString, response.FromString
        )
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
