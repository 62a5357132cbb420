"""What a kubelet's configuration says of its topology manager.

Law: a file that cannot be read, or says nothing of it, changes nothing.
"""

from pathlib import Path

from attrs import evolve

from devicecore.domain.errors import DocumentError
from devicecore.domain.topology import Policy, Scope
from devicecore_tools.doctor.sources.large_documents import read_document_file
from devicecore_tools.doctor.trial import TopologySettings

CONFIGURATION = "config.yaml"
"""The file below a kubelet's root directory, as kubeadm writes it."""


def read_topology(root: str, default: TopologySettings) -> TopologySettings:
    """Return the settings of a kubelet whose configuration is in its root directory, or else the default."""
    place = Path(root) / CONFIGURATION
    try:
        document = read_document_file(str(place))
        if document["kind"].text("") != "KubeletConfiguration":
            return default
        policy = Policy(document["topologyManagerPolicy"].text(Policy.NONE.value))
        scope = Scope(document["topologyManagerScope"].text(Scope.CONTAINER.value))
    except (DocumentError, ValueError, OSError):
        return default
    return evolve(default, policy=policy, scope=scope, is_given=True)
