"""What the engine needs of a source of pods, and what it reports of pods.

Law: the engine calls a feed from one thread, and every call answers from memory. A feed that waits for a disk or for a
server does so in threads of its own, and wakes the engine.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from devicecore.adapters.manifests import Changes, ManifestError, ManifestPods
from devicecore.domain.errors import SinkError
from devicecore.domain.health import ResourceHealth
from devicecore.domain.model import Pod, PodUid
from devicecore.domain.node_state import NodeState
from devicecore.ports.pods import PodSource
from devicecore.ports.sink import NodeStatusSink
from devicecore_tools.node.outcome import Outcome, PodRefusal
from devicecore_tools.numa import Zones

if TYPE_CHECKING:
    from devicecore.domain.dra.health import ClaimHealth
    from devicecore.domain.dra.model import ClaimKey, ResourceClaim


class PodFeed(PodSource, Protocol):
    """Where the pods of a node come from."""

    @property
    def problems(self) -> tuple[ManifestError, ...]:
        """What cannot be used as of the last `poll`."""

    @property
    def claims(self) -> "Mapping[ClaimKey, ResourceClaim]":
        """The ResourceClaims that came with the pods, as of the last `poll`. Any thread may ask."""

    @property
    def keeps_refused(self) -> bool:
        """Whether a refused pod waits and is tried again, because nobody could run it elsewhere. Otherwise it fails."""

    @property
    def next_poll(self) -> float:
        """When `poll` has something to do even if nothing wakes the engine (monotonic seconds)."""

    def poll(self) -> Changes:
        """Return how the pods have changed since the last call. A pod in `removed` need not have been added before."""

    def has_run(self, pod: PodUid) -> bool:
        """Whether the containers of a pod ran before the start of this process. Any thread may ask."""

    def refusal(self, pod: Pod, devices: Mapping[str, int]) -> PodRefusal | None:
        """Return why a pod that has its devices may not run on this node, or None if it may. Any thread may ask.

        If the pod has devices, `devices` is how many of each resource are healthy or in use; otherwise it is empty.
        """

    def object_of(self, pod: PodUid) -> Mapping[str, object]:
        """Return a pod as an object of the API, with its CPUs and memory, empty if it is gone. Any thread may ask."""

    def mark_running(self, pod: PodUid) -> None:
        """Remember for the next start that the containers of a pod run."""

    def mark_ready(self) -> None:
        """Note that the pods of the first complete `poll` were tried: from now on a missing pod is gone."""


@frozen
class PodReport:
    """The state of a pod on its node: the outcome of the last attempt, and the health of its devices.

    `health` has by container the devices of each resource and claim; init containers are left out.
    """

    outcome: Outcome
    health: "Mapping[str, Sequence[ResourceHealth | ClaimHealth]]"


class PodReporter(Protocol):
    """Receives what happens to pods. The engine's thread calls it, and it never waits."""

    def report(self, pod: Pod, report: PodReport) -> None:
        """Take what became of a pod. It replaces what was reported of this pod before."""

    def released(self, pod: PodUid) -> None:
        """Note that a removed pod no longer holds any device or claim."""


class ReportedPods(PodFeed, PodReporter, Protocol):
    """Pods that come from where what became of them is reported."""


class NodeSink(NodeStatusSink, Protocol):
    """Shows the counts of devices later."""

    @property
    def problem(self) -> SinkError | None:
        """Why the Node does not show what was published last. It is None if it does, or no problem is known."""


class Outside(Protocol):
    """What a node has from outside, as of a cluster."""

    @property
    def pods(self) -> ReportedPods | None:
        """Its pods, or None if it has none from there."""

    @property
    def sink(self) -> NodeSink | None:
        """Who shows the counts of devices on the Node, or None if there is nobody."""

    def start(self) -> None:
        """Begin to deliver pods. The engine runs, so it knows which pods had devices."""

    def publish(self, state: NodeState, zones: Zones) -> None:
        """Take a state of the device manager, and what CPUs and memory each NUMA node has."""


class ManifestFeed(ManifestPods, PodFeed):
    """The pods of a directory of manifests. Its owner looks once a second, or when the kernel says that it changed."""

    def has_run(self, pod: PodUid) -> bool:
        """Whether the containers of a pod ran before the start of this process."""
        return pod in self._ran

    def refusal(self, pod: Pod, devices: Mapping[str, int]) -> PodRefusal | None:
        """Return None: who wrote the manifest has chosen the node."""

    @cached_property
    def _ran(self) -> frozenset[PodUid]:
        return frozenset(key.pod for key in self.running_containers())

    @property
    def keeps_refused(self) -> bool:
        """Whether a refused pod waits: no scheduler could send it to another node."""
        return True

    @property
    def next_poll(self) -> float:
        """When `poll` has something to do: its owner knows."""
        return math.inf
