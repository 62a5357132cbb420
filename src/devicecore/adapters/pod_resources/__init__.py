"""The kubelet's pod-resources API: which container holds which devices. Both sides of it.

Read `api` for what is told, `server` for who tells it and how often, and `client` for who asks.
"""

from devicecore.adapters.pod_resources.api import (
    SERVICE_V1,
    SERVICE_V1ALPHA1,
    Snapshot,
    allocatable_resources,
    get_pod,
    list_pods,
    list_pods_v1alpha1,
)
from devicecore.adapters.pod_resources.client import PodResourcesClient, PodResourcesError
from devicecore.adapters.pod_resources.server import BURST, REQUESTS_PER_SECOND, PodResourcesServer

__all__ = [
    "BURST",
    "REQUESTS_PER_SECOND",
    "SERVICE_V1",
    "SERVICE_V1ALPHA1",
    "PodResourcesClient",
    "PodResourcesError",
    "PodResourcesServer",
    "Snapshot",
    "allocatable_resources",
    "get_pod",
    "list_pods",
    "list_pods_v1alpha1",
]
