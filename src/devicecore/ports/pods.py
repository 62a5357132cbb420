"""What the rest of the node knows about pods."""

from collections.abc import Collection
from typing import Protocol

from devicecore.domain.model import ContainerKey, PodUid


class PodSource(Protocol):
    """The kubelet's `activePods`, `sourcesReady` and container running set. All three answer at once, from memory."""

    def active_pods(self) -> Collection[PodUid]:
        """The pods that still have a right to their devices. The pod being admitted need not be among them."""

    def sources_ready(self) -> bool:
        """Whether every source of pods has delivered once; before that, a missing pod means nothing."""

    def running_containers(self) -> Collection[ContainerKey]:
        """The containers that were running when the manager started. Asked once, at start."""
