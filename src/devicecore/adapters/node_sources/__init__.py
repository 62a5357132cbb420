"""What can be read of a node without gRPC: the kubelet's directory, pods and the Node from files, CDI files.

Laws: reading changes nothing. Each function returns a `Reading` for any content of the files: with a value, or with a
sentence that says why there is none. Sizes, numbers of files and numbers of values are bounded.
"""

from devicecore.adapters.node_sources.cdi import CDI_DIRECTORIES, read_cdi
from devicecore.adapters.node_sources.claims import read_claims, read_slices, slices_in
from devicecore.adapters.node_sources.kubelet_directory import KubeletDirectory, read_checkpoint, read_sockets
from devicecore.adapters.node_sources.objects import node_in, pods_in, read_node, read_pods

__all__ = [
    "CDI_DIRECTORIES",
    "KubeletDirectory",
    "node_in",
    "pods_in",
    "read_cdi",
    "read_checkpoint",
    "read_claims",
    "read_node",
    "read_pods",
    "read_slices",
    "read_sockets",
    "slices_in",
]
