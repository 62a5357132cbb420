"""The methods of the DRA driver's API, and failed calls in the words of a kubelet.

Law: `unanswered` is false only if the driver itself must have sent the error, or if nothing was sent to the driver.
After any other error, it is unknown what the driver did.
"""

import re
from collections.abc import Collection
from typing import Any

import grpc
import grpc.aio

from devicecore.adapters.grpc_unix import rpc
from devicecore.domain.dra.answers import PREPARE, UNPREPARE
from devicecore.domain.dra.errors import DriverCallError
from devicecore.wire import dra_health_v1alpha1, dra_v1, dra_v1beta1

PLUGIN_TYPE = "DRAPlugin"
"""The plugin type that a DRA driver reports to a plugin watcher."""

PACKAGE = "k8s.io.kubelet.pkg.apis.dra"

MAX_DETAILS = 16 * 1024
"""The maximum number of characters of a status message that are kept."""

Method = rpc.Method[Any, Any]


def _methods(name: str) -> dict[str, Method]:
    return {
        f"{version}.DRAPlugin": rpc.Method(
            f"{PACKAGE}.{version}.DRAPlugin",
            name,
            getattr(messages, f"{name}Request"),
            getattr(messages, f"{name}Response"),
        )
        for version, messages in (("v1", dra_v1), ("v1beta1", dra_v1beta1))
    }


PREPARE_METHODS: dict[str, Method] = _methods(PREPARE)
"""The method NodePrepareResources of each service, by the service name in a driver's registration."""

UNPREPARE_METHODS: dict[str, Method] = _methods(UNPREPARE)
"""The method NodeUnprepareResources of each service, by the service name in a driver's registration."""

HEALTH_METHODS: dict[str, Method] = {
    service: rpc.Method(
        service,
        "NodeWatchResources",
        dra_health_v1alpha1.NodeWatchResourcesRequest,
        dra_health_v1alpha1.NodeWatchResourcesResponse,
        streams=True,
    )
    for service in ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
}
"""The method NodeWatchResources of each health service, by service name.

The messages of both services are the same; kubelets before 1.37 know only v1alpha1.
"""

CODES: dict[str, grpc.StatusCode] = {rpc.go_code(code): code for code in grpc.StatusCode}
"""Status codes by their Go names."""

# A status with one of these codes may come from the connection instead of the driver.
_AMBIGUOUS = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
}
_TOO_LARGE = re.compile(r"received message larger than max(.*)", re.IGNORECASE | re.DOTALL)
_CAUSES = ("connection refused", "permission denied", "no such file or directory")


def health_method(services: Collection[str]) -> Method:
    """Return the method of the health service: of v1 if the driver lists it, otherwise of v1alpha1, listed or not."""
    return next(HEALTH_METHODS[name] for name in HEALTH_METHODS if name in services or "alpha" in name)


def closing(method: str) -> DriverCallError:
    """Return the error for a call to an instance that is no longer registered."""
    return DriverCallError(method, "Canceled", "grpc: the client connection is closing", unanswered=True)


def call_error(method: str, endpoint: str, error: grpc.RpcError) -> DriverCallError:
    """Return the error for a failed call, in a kubelet's words.

    Only a status that the driver itself must have sent counts as its answer. After a status that the connection may
    have produced, such as Unavailable, it is unknown what the driver has done, unless there was no connection.
    """
    if not isinstance(error, grpc.aio.AioRpcError):  # the answer cannot be read
        return DriverCallError(method, "Internal", str(error).partition("desc = ")[2], unanswered=True)
    code, details = error.code(), error.details() or ""
    name = rpc.go_code(code)
    if rpc.was_not_reached(error):
        cause = next((cause for cause in _CAUSES if cause in details.lower()), "connection refused")
        text = f"transport: Error while dialing: dial unix {endpoint}: connect: {cause}"
        return DriverCallError(method, name, f'connection error: desc = "{text}"')
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and (too_large := _TOO_LARGE.search(details[:MAX_DETAILS])):
        return DriverCallError(method, name, f"grpc: received message larger than max{too_large[1]}", unanswered=True)
    is_unanswered = code in _AMBIGUOUS or details.startswith("Stream removed")
    return DriverCallError(method, name, rpc.go_details(error)[:MAX_DETAILS], unanswered=is_unanswered)
