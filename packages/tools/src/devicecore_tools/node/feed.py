"""The interfaces between the engine, a source of pods, and a receiver of reports about pods.

Law: the engine calls a feed from one thread, and every call answers from memory. A feed that waits for a disk or a
server does so in its own threads, and wakes the engine.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from devicecore.adapters.manifests import Changes, ManifestError, ManifestPods
from devicecore.domain.errors import SinkError
from devicecore.domain.health import ResourceHealth
from devicecore.domain.model import Pod, PodUid, is_extended_resource
from devicecore.domain.node_state import NodeState
from devicecore.ports.pods import PodSource
from devicecore.ports.sink import NodeStatusSink
from devicecore_tools.node.outcome import Outcome, PodRefusal
from devicecore_tools.numa import Zones

if TYPE_CHECKING:
    from devicecore.domain.dra.health import ClaimHealth
    from devicecore.domain.dra.model import ClaimKey, ResourceClaim


_log = logging.getLogger(__name__)


class PodFeed(PodSource, Protocol):
    """The source of a node's pods."""

    @property
    def problems(self) -> tuple[ManifestError, ...]:
        """The problems found by the last `poll`."""

    @property
    def claims(self) -> "Mapping[ClaimKey, ResourceClaim]":
        """The ResourceClaims found along with the pods, as of the last `poll`. Any thread may read this property."""

    @property
    def keeps_refused(self) -> bool:
        """Whether a refused pod waits and is retried, because no scheduler could place it on a different node.

        If this is False, a refused pod fails.
        """

    @property
    def next_poll(self) -> float:
        """When `poll` has something to do even if nothing wakes the engine (monotonic seconds)."""

    def poll(self) -> Changes:
        """Return the changes to the pods since the last call. A pod in `removed` need not have been added before."""

    def has_run(self, pod: PodUid) -> bool:
        """Return whether a pod's containers ran before the start of this process. Any thread may call this method."""

    def refusal(self, pod: Pod, devices: Mapping[str, int]) -> PodRefusal | None:
        """Return why a pod that has its devices may not run on this node, or None if it may run.

        Any thread may call this method.

        If the pod has devices, `devices` contains, for each resource, the number of healthy devices or of devices in
        use, whichever is larger. Otherwise, `devices` is empty.
        """

    def object_of(self, pod: PodUid) -> Mapping[str, object]:
        """Return a pod as an API object with its CPUs and memory, or an empty object if the pod is gone.

        Any thread may call this method.
        """

    def mark_running(self, pod: PodUid) -> None:
        """Remember for the next start that a pod's containers are running."""

    def mark_ready(self) -> None:
        """Record that the pods from the first complete `poll` were tried.

        From now on, a pod that is missing is treated as gone.
        """


@frozen
class PodReport:
    """The state of a pod on its node: the outcome of the last attempt, and the health of its devices.

    `health` contains, per container, the health of each resource's and each claim's devices. Init containers are left
    out.
    """

    outcome: Outcome
    health: "Mapping[str, Sequence[ResourceHealth | ClaimHealth]]"


class PodReporter(Protocol):
    """Receives reports about pods. The engine's thread calls the reporter, which never waits."""

    def report(self, pod: Pod, report: PodReport) -> None:
        """Receive the current state of a pod. The new report replaces earlier reports about this pod."""

    def released(self, pod: PodUid) -> None:
        """Record that a removed pod no longer holds any device or claim."""


class ReportedPods(PodFeed, PodReporter, Protocol):
    """A source of pods that also receives the reports about them."""


class NodeSink(NodeStatusSink, Protocol):
    """A sink that publishes the counts of devices some time after receiving them."""

    @property
    def problem(self) -> SinkError | None:
        """Why the Node does not show what was last published, or None if the Node shows it or no problem is known."""


class Outside(Protocol):
    """A node's connection to the outside, such as a cluster."""

    @property
    def pods(self) -> ReportedPods | None:
        """The source of pods, or None."""

    @property
    def sink(self) -> NodeSink | None:
        """The sink that shows the counts of devices on the Node, or None."""

    def start(self) -> None:
        """Start delivering pods. The engine is running, so it knows which pods had devices."""

    def publish(self, state: NodeState, zones: Zones) -> None:
        """Receive the state of the device manager, and the CPUs and memory of each NUMA node."""


class ManifestFeed(ManifestPods, PodFeed):
    """The pods of a manifest directory.

    The feed's owner checks the directory once a second, and when the kernel reports a change.
    """

    def poll(self) -> Changes:
        """Scan the directory, and log what keeps new pods from getting devices, which a kubelet would not mention."""
        changes = super().poll()
        for pod in changes.added:
            for problem in _problems_of(pod):
                _log.warning("pod %s/%s: %s", pod.namespace, pod.name, problem)
        return changes

    def has_run(self, pod: PodUid) -> bool:
        """Return whether a pod's containers ran before the start of this process."""
        return pod in self._ran

    def refusal(self, pod: Pod, devices: Mapping[str, int]) -> PodRefusal | None:
        """Return None, because the author of the manifest has chosen the node."""

    @cached_property
    def _ran(self) -> frozenset[PodUid]:
        return frozenset(key.pod for key in self.running_containers())

    @property
    def keeps_refused(self) -> bool:
        """Whether a refused pod waits, because no scheduler could place it on a different node."""
        return True

    @property
    def next_poll(self) -> float:
        """Infinity, because only the feed's owner knows when `poll` has something to do."""
        return math.inf


def _problems_of(pod: Pod) -> Iterator[str]:
    for container in pod.in_start_order:
        for resource in filter(is_extended_resource, container.requests):
            yield (
                f"the request of container {container.name} for {resource} has no effect: write the same number into "
                "resources.limits (an API server refuses a different one)"
            )
    for claim in pod.claims:
        if claim.template and claim.name not in pod.generated_claims:
            yield (
                f"nothing creates the claim {claim.name} from its template for a pod in a manifest: write a "
                "ResourceClaim into a manifest, and its name into the pod's resourceClaimName"
            )
