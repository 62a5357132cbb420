"""Other managers that influence which NUMA nodes a container uses, such as a CPU manager.

Law: a provider only provides hints. The topology policy decides.
"""

from typing import Protocol

from devicecore.domain.model import Container, Pod
from devicecore.domain.topology import Hints


class HintProvider(Protocol):
    """The kubelet's `HintProvider`, except for the allocation, which the provider does itself."""

    def topology_hints(self, pod: Pod, container: Container | None) -> Hints:
        """Return hints for a container, or for the pod if `container` is None. An empty mapping means no preference."""
