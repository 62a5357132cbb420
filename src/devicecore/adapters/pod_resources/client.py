"""A client for the pod-resources API of `devicecore kubelet` or a real kubelet.

Law: Every call ends at most a second after its timeout, with an answer or with the reason for the last failure.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc
from attrs import field, frozen
from google.protobuf.message import DecodeError, Message

from devicecore.adapters.pod_resources.api import SERVICE_V1, SERVICE_V1ALPHA1
from devicecore.domain.checks import check_seconds, expected
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.text import foreign_text
from devicecore.runtime.in_time import NOTICED, in_time
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore.system.arguments import checks_arguments
from devicecore.system.grpc_settings import channel_options, target
from devicecore.wire import podresources, podresources_v1alpha1

_MAX_ANSWER = 64 * 1024 * 1024  # bytes: 50,000 devices take more than gRPC's default of 4 MiB
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 1.0  # seconds between two attempts
_TRANSIENT = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)

Response = TypeVar("Response", bound=Message)


@frozen
class PodResourcesError(DeviceCoreError):
    """A call to the pod-resources API failed. `code` is the name of gRPC's status code."""

    socket: str
    method: str
    code: str
    cause: str = field(converter=foreign_text)
    _text = "{method} at {socket!r} failed with {code}: {cause}"


class PodResourcesClient(HasLifecycle):
    """A client of a kubelet, which need not be running when the client is started. Thread-safe.

    A call waits for the socket. While the kubelet is unavailable or its rate limit rejects the call, the call is
    repeated, until there is an answer or `timeout` seconds have passed. Each call raises `PodResourcesError` if no
    answer came in time or the answer was an error, and `NotStartedError` if the client is not started.
    """

    @checks_arguments("timeout")
    def __init__(
        self, socket: str | os.PathLike[str] = "/var/lib/kubelet/pod-resources/kubelet.sock", *, timeout: float = 10.0
    ) -> None:
        self.socket: str = str(socket)
        if "://" in self.socket:
            raise ValueError(expected("PodResourcesClient", "the path of a unix socket", self.socket))
        check_seconds("PodResourcesClient: timeout", timeout)
        self._timeout = timeout
        self._lifecycle = Lifecycle("the client of the pod-resources API")
        self._channel: grpc.Channel | None = None

    def _begin(self) -> None:
        where = target(str(Path(self.socket).absolute()))
        self._channel = grpc.insecure_channel(where, options=channel_options(_MAX_ANSWER))

    def _end(self) -> None:
        if self._channel is not None:
            with suppress(TimeoutError):
                in_time(self._channel.close, NOTICED)

    def list(self) -> podresources.ListPodResourcesResponse:
        """Return every active pod, with the devices of its containers."""
        return self._call("List", podresources.ListPodResourcesRequest(), podresources.ListPodResourcesResponse)

    def get(self, name: str, namespace: str = "default") -> podresources.GetPodResourcesResponse:
        """Return one pod. Before Kubernetes 1.34, a kubelet offers this call only with a feature gate."""
        request = podresources.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        return self._call("Get", request, podresources.GetPodResourcesResponse)

    def get_allocatable_resources(self) -> podresources.AllocatableResourcesResponse:
        """Return every healthy device, and the CPUs and the memory that can be allocated."""
        request = podresources.AllocatableResourcesRequest()
        return self._call("GetAllocatableResources", request, podresources.AllocatableResourcesResponse)

    def list_v1alpha1(self) -> podresources_v1alpha1.ListPodResourcesResponse:
        """Return every pod, using the older API, the only version that kubelets before 1.20 have."""
        request = podresources_v1alpha1.ListPodResourcesRequest()
        return self._call("List", request, podresources_v1alpha1.ListPodResourcesResponse, SERVICE_V1ALPHA1)

    def _parsed(self, answer: bytes, method: str, response: type[Response]) -> Response:
        # grpc must not parse answers, because it would log a traceback for an unreadable one.
        try:
            return response.FromString(answer)
        except (DecodeError, UnicodeDecodeError) as error:  # protobuf in pure Python raises a UnicodeDecodeError
            raise PodResourcesError(self.socket, method, "INTERNAL", f"the answer cannot be read: {error}") from error

    def _cause(self, details: str) -> str:
        """Return why a call failed. gRPC does not report a missing socket, which is the most frequent reason."""
        return details if Path(self.socket).exists() else "there is no such socket: is a kubelet running on this node?"

    def _call(self, method: str, request: Message, response: type[Response], service: str = SERVICE_V1) -> Response:
        self._lifecycle.check_running()
        assert self._channel is not None, "the client is started"  # noqa: S101 - for mypy
        call: Callable[..., bytes] = self._channel.unary_unary(
            f"/{service}/{method}", request_serializer=type(request).SerializeToString
        )
        deadline = time.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        while True:
            left = max(deadline - time.monotonic(), 0.001)
            try:
                answer = in_time(partial(call, request, timeout=left, wait_for_ready=True), left + NOTICED)
            except TimeoutError as error:
                cause = f"no answer within {self._timeout:g} s"
                raise PodResourcesError(self.socket, method, "DEADLINE_EXCEEDED", self._cause(cause)) from error
            except grpc.RpcError as error:
                code = error.code()
                if code not in _TRANSIENT or time.monotonic() + pause >= deadline:
                    cause = self._cause(error.details() or "")
                    raise PodResourcesError(self.socket, method, code.name, cause) from error
            else:
                return self._parsed(answer, method, response)
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)
