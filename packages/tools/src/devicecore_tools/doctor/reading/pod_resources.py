"""Reads the answers of a kubelet's pod-resources API about devices, as one value.

Law: no matter what the process at the socket answers, the result is a `Reading`.
"""

from devicecore.adapters.pod_resources.client import PodResourcesClient, PodResourcesError
from devicecore.domain.text import foreign_text
from devicecore.system.sockets import is_served, socket_identity
from devicecore_tools.doctor.look.values import NOBODY_LISTENS, PodResourcesSeen, Reading
from devicecore_tools.doctor.reading.answers import by_resource, seen_of

_NOT_OFFERED = "UNIMPLEMENTED"
_MAX_CAUSE = 300


def read_pod_resources(socket: str, timeout: float = 10.0) -> Reading[PodResourcesSeen]:
    """Query the kubelet at `socket` with v1, or with v1alpha1 if it does not serve v1.

    `timeout` is in seconds per call.
    """
    if socket_identity(socket) is None:
        return Reading(socket, problem="there is no socket")
    try:
        if not is_served(socket):
            return Reading(socket, problem=NOBODY_LISTENS)
        with PodResourcesClient(socket, timeout=timeout) as client:
            return Reading.of(socket, _ask(client))
    except OSError as error:
        return Reading(socket, problem=error.strerror or str(error))
    except PodResourcesError as error:
        cause = foreign_text(error.cause, _MAX_CAUSE)
        return Reading(socket, problem=f"{error.method} failed with {error.code}: {cause}")


def _ask(client: PodResourcesClient) -> PodResourcesSeen:
    try:
        listed = client.list()
    except PodResourcesError as error:
        if error.code != _NOT_OFFERED:
            raise
        return seen_of("v1alpha1", client.list_v1alpha1(), None)
    try:
        devices = client.get_allocatable_resources().devices
    except PodResourcesError as error:
        if error.code != _NOT_OFFERED:  # before Kubernetes 1.23, this call is behind a feature gate
            raise
        return seen_of("v1", listed, None)
    return seen_of("v1", listed, by_resource(devices))
