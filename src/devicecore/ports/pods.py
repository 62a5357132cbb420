"""What the node knows about pods.

Law: a pod that is not listed may lose its devices once every source of pods has reported.
"""

from collections.abc import Collection
from typing import Protocol

from devicecore.domain.model import ContainerKey, PodUid


class PodSource(Protocol):
    """The kubelet's `activePods`, `sourcesReady` and set of running containers.

    All methods must answer at once, from memory.
    """

    def active_pods(self) -> Collection[PodUid]:
        """Return the pods that keep their devices. A pod in admission need not be included."""

    def sources_ready(self) -> bool:
        """Return whether every source of pods has reported.

        Until then, an unlisted pod may still be active.
        """

    def running_containers(self) -> Collection[ContainerKey]:
        """Return the containers that were running when the manager started.

        The manager calls this method once, when it starts.
        """
