"""Publishes device resources as capacity and allocatable in the status of a Node object on a kube-apiserver.

Laws: The sink changes only keys that a published status or the argument `leftovers` named, or that its field manager
wrote in an earlier run. The sink sends the newest state and never a queue of older states. `publish` never waits for
the network. This package needs the extra `kubernetes`.
"""

from devicecore.system.extras import needs_extra

with needs_extra("kubernetes"):
    from devicecore.adapters.kube_api.access import Access, NodeNameError
    from devicecore.adapters.kube_api.client_config import SERVICE_ACCOUNT, ApiAccessError
    from devicecore.adapters.kube_api.patches import PatchStrategy
    from devicecore.adapters.kube_api.publishing import Backoff
    from devicecore.adapters.kube_api.sink import KubeApiSink, Pace

__all__ = [
    "SERVICE_ACCOUNT",
    "Access",
    "ApiAccessError",
    "Backoff",
    "KubeApiSink",
    "NodeNameError",
    "Pace",
    "PatchStrategy",
]
