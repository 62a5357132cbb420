"""Other managers, such as a CPU manager, that influence which NUMA nodes a container uses.

Law: a provider only gives hints. The topology policy decides.
"""

from typing import Protocol

from devicecore.domain.model import Container, Pod
from devicecore.domain.topology import Hints


class HintProvider(Protocol):
    """The kubelet's `HintProvider`, without `Allocate`: a provider allocates by its own means."""

    def topology_hints(self, pod: Pod, container: Container | None) -> Hints:
        """Return hints for a container, or for the pod if `container` is None. An empty mapping means no preference."""
