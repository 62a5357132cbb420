"""The node's status on a kube-apiserver: extended resources in the capacity and allocatable of `nodes/NAME/status`.

Laws: a key that no published status has named is never changed, whatever the API server holds. What is sent is the
newest state, never a queue of older ones. `publish` never waits for the network. Needs the extra `kubernetes`.
"""

from lightkube.config.kubeconfig import SERVICE_ACCOUNT

from devicecore.adapters.kube_api.access import ApiAccessError, NodeNameError
from devicecore.adapters.kube_api.patches import Way
from devicecore.adapters.kube_api.sink import Backoff, KubeApiSink

__all__ = ["SERVICE_ACCOUNT", "ApiAccessError", "Backoff", "KubeApiSink", "NodeNameError", "Way"]
