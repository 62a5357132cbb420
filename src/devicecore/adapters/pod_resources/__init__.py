"""The server and the client of the kubelet's pod-resources API, which says which container holds which devices.

`api` computes the answers, `server` serves them on a unix socket and limits the rate, `client` queries a kubelet.
"""

from devicecore.adapters.pod_resources.api import (
    MemoryBlock,
    PinnedResources,
    Snapshot,
    allocatable_resources,
    get_pod,
    list_pods,
    list_pods_v1alpha1,
)
from devicecore.adapters.pod_resources.client import PodResourcesClient, PodResourcesError
from devicecore.adapters.pod_resources.server import PodResourcesServer

__all__ = [
    "MemoryBlock",
    "PinnedResources",
    "PodResourcesClient",
    "PodResourcesError",
    "PodResourcesServer",
    "Snapshot",
    "allocatable_resources",
    "get_pod",
    "list_pods",
    "list_pods_v1alpha1",
]
