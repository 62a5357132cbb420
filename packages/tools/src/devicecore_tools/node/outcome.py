"""The outcome of an attempt to start a pod, and when the pod is retried.

Law: a plugin is called again only after a change in something its answer may depend on: which plugin serves the
resource, which devices it lists, and which devices pods hold. If the plugin did not answer or the disk failed, the pod
is retried later. A DRA driver is called again after a minute, as by a kubelet, or after a change in something its
answer may depend on: which instance serves the driver, and the claims in files. A claim that is not usable yet is read
again sooner, because the API server does not notify this process of changes.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from attrs import frozen

from devicecore.domain.admission import Admitted, NotReady, Refused, Verdict
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import (
    AdmissionTimeoutError,
    DeviceCoreError,
    NotEnoughDevicesError,
    PluginCallError,
    StoreError,
)
from devicecore.domain.inventory import DeviceReport
from devicecore.domain.model import PluginId, Pod, ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.domain.text import foreign_text

_NO_ANSWER = "code = DeadlineExceeded"  # part of the error from a call that timed out


class OutcomeKind(Enum):
    """The kinds of outcomes."""

    RUNS = "the pod runs"
    REFUSED = "a plugin or the device manager has refused the pod"
    TOO_FEW = "too few devices are free"
    NO_ANSWER = "the plugin has not answered, or the disk has failed"
    NEEDS_CLAIMS = "the pod has its devices, and its claims must be prepared"
    CLAIM_UNUSABLE = "the pod has its devices, but a claim cannot be used yet, so no driver was called"
    CLAIMS_FAILED = "the pod has its devices, but a driver has not prepared a claim"
    START_FAILED = "the pod has its devices, but a container cannot start"


@frozen
class PodRefusal:
    """What a kubelet reports for a refused pod.

    Attributes:
        reason: the short reason.
        message: the message, without the prefix in the status of a refused pod.
    """

    reason: str
    message: str


@frozen
class Outcome:
    """The outcome of one attempt.

    `waits` is whether the pod may run later without a change to its manifest or its devices. `lacks` says how many
    devices of which resource are missing, and is None unless the kind is TOO_FEW. `refusal` is None if a kubelet would
    admit the pod.
    """

    kind: OutcomeKind
    reason: str = ""
    waits: bool = False
    lacks: NotEnoughDevicesError | None = None
    refusal: PodRefusal | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether a kubelet would not admit the pod. Other pods that do not run are retried."""
        return self.refusal is not None

    @property
    def is_start_failure(self) -> bool:
        """Whether the pod was admitted but a container cannot start, perhaps because a plugin has not answered."""
        return self.kind in (OutcomeKind.START_FAILED, OutcomeKind.NO_ANSWER) and not self.is_refusal

    @property
    def kubelet_message(self) -> str:
        """The message in a kubelet's words, without the prefix in the status of a refused pod."""
        return foreign_text(self.refusal.message if self.refusal is not None else self.reason)


def outcome_of(verdict: Verdict) -> Outcome:
    """Return the outcome of an admission. `RUNS` may still become `START_FAILED` when the containers start."""
    if isinstance(verdict, Admitted):
        return Outcome(OutcomeKind.RUNS)
    error = verdict.error
    refused = verdict if isinstance(verdict, Refused) else Refused(error, verdict.container)
    refusal = PodRefusal(refused.reason, refused.message)
    if isinstance(error, NotEnoughDevicesError):
        return Outcome(OutcomeKind.TOO_FEW, str(verdict), lacks=error, refusal=refusal)
    if is_unanswered(error):
        return Outcome(OutcomeKind.NO_ANSWER, str(verdict), waits=True, refusal=refusal)
    return Outcome(OutcomeKind.REFUSED, str(verdict), waits=isinstance(verdict, NotReady), refusal=refusal)


def is_unanswered(error: DeviceCoreError) -> bool:
    """Return whether an error means that a plugin did not answer in time, or that the disk failed."""
    if isinstance(error, PluginCallError):
        return _NO_ANSWER in error.cause
    return isinstance(error, AdmissionTimeoutError | StoreError)


@frozen(eq=False)
class ResourceFacts:
    """What a plugin's answer may depend on, for one resource.

    `allocated` are the devices that pods hold. Devices that are only reserved do not count; otherwise, two refused pods
    would keep making each other retry.
    """

    plugin: PluginId | None
    report: DeviceReport | None
    allocated: DeviceSet

    def is_like(self, other: "ResourceFacts") -> bool:
        """Return whether these facts are the same as `other`.

        If a plugin sends the same list again, its report is the same object.
        """
        return self.report is other.report and self.plugin == other.plugin and self.allocated == other.allocated

    @property
    def free(self) -> int:
        """The number of healthy devices that no pod holds."""
        return len(self.report.healthy - self.allocated) if self.report else 0


Facts = Mapping[str, ResourceFacts]
"""Facts by resource. Within one `FactsKeeper`, equal facts are the same object."""


class FactsKeeper:
    """Computes facts from states; as long as nothing changes for a resource, its facts are the same object."""

    def __init__(self) -> None:
        self._state: NodeState | None = None
        self._known: dict[str, ResourceFacts] = {}

    def look(self, state: NodeState) -> None:
        """Compute facts from `state` from now on."""
        if state is self._state:
            return
        self._state = state
        for resource in {*state.inventory.resources, *state.ledger.resources, *self._known}:
            facts = _facts(state, ResourceName(resource))
            before = self._known.get(resource)
            if before is None or not before.is_like(facts):
                self._known[resource] = facts

    def of(self, resources: Iterable[str]) -> Facts:
        """Return the facts of `resources`. There are no facts for an unknown resource."""
        return {resource: self._known[resource] for resource in resources if resource in self._known}


def _facts(state: NodeState, name: ResourceName) -> ResourceFacts:
    resource = state.inventory.resources.get(name)
    plugin = resource.plugins[-1].id if resource and resource.plugins else None
    allocated = state.ledger.in_use(name)
    for reservation in state.ledger.reservations:
        if reservation.resource == name:
            allocated = allocated - reservation.devices
    return ResourceFacts(plugin, resource.report if resource else None, allocated)


def may_differ(outcome: Outcome, before: Facts, now: Facts) -> bool:
    """Return whether an attempt given the facts `now` may end differently from `outcome`, which `before` led to."""
    if before.keys() == now.keys() and all(before[resource] is now[resource] for resource in now):
        return False
    lacks = outcome.lacks
    return lacks is None or lacks.resource not in now or now[lacks.resource].free >= lacks.requested


def resources_of(pod: Pod) -> frozenset[str]:
    """Return the names of the resources that the pod's containers have limits for."""
    return frozenset(
        resource for container in pod.in_start_order for resource, size in container.limits.items() if size
    )
