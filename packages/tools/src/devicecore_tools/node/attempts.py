"""Attempts to start pods: each admits a pod, prepares its claims, and starts its containers.

Law: an attempt waits for plugins and drivers in threads that pods with other resources or drivers do not need. The main
loop starts each attempt and collects its result.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from devicecore.domain.admission import Verdict
from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.model import Pod, PodUid
from devicecore.manager import DeviceManager
from devicecore_tools.node.claims import NodeClaims
from devicecore_tools.node.lanes import Lanes
from devicecore_tools.node.outcome import Facts, Outcome, OutcomeKind, PodRefusal, is_unanswered, outcome_of
from devicecore_tools.node.state import PENDING
from devicecore_tools.numa import NodeManagers

if TYPE_CHECKING:
    from devicecore_tools.node.dra_state import PreparationFacts

SILENCE = 10.0
"""Seconds to wait after an attempt in which a plugin did not answer or the disk failed."""

_log = logging.getLogger(__name__)


@define(eq=False)
class Lane:
    """The pods that request the same resources, which are usually tried one at a time."""

    resources: frozenset[str]
    silent_until: float = 0.0
    """The time before which no pod of the lane is tried, because a plugin did not answer (monotonic seconds)."""


@define(eq=False)
class PodEntry:
    """One pod and its progress."""

    pod: Pod
    lane: Lane
    phase: str = PENDING
    reason: str = "it has not been tried yet"
    outcome: Outcome | None = None
    facts: Facts = field(factory=dict)
    """What was known when the attempt that led to `outcome` started."""
    claim_facts: "PreparationFacts | None" = None
    """What was known about the pod's claims when the attempt that led to `outcome` started."""
    pinned_facts: object = None
    """The CPUs and memory that were free when the last attempt ended."""
    is_queued: bool = False
    is_gone: bool = False
    tried_at: float = 0.0
    start_failures: int = 0
    retry_at: float = float("inf")
    """When to try again even if nothing has changed (monotonic seconds)."""

    @property
    def name(self) -> str:
        """The pod's namespace and name."""
        return f"{self.pod.namespace}/{self.pod.name}"

    @property
    def is_waiting(self) -> bool:
        """Whether the pod may run later and is not being tried."""
        return self.phase == PENDING and not self.is_queued

    def next_try(self, now: float) -> float:
        """Return when to try the pod even if nothing has changed.

        A pod that has not been tried waits only for its lane.
        """
        if self.outcome is None and self.lane.silent_until > now:
            return self.lane.silent_until
        return max(self.retry_at, self.lane.silent_until)


@frozen
class Before:
    """What is known about a pod from before the start of this process.

    Attributes:
        has_run: whether the pod's containers were running.
        has_devices: whether the pod keeps its devices from the checkpoint, even if their plugins are not back yet.
        waits_for_plugins: whether a pod that has not run is admitted only once each of its resources has a plugin.
    """

    has_run: bool = False
    has_devices: bool = False
    waits_for_plugins: bool = False


@frozen
class Done:
    """A finished attempt. `outcome` is None if the pod was not tried, or was removed in the meantime."""

    entry: PodEntry
    outcome: Outcome | None
    facts: Facts


@define(eq=False)
class Attempts:
    """Carries out attempts in threads."""

    _manager: DeviceManager
    _managers: NodeManagers | None  # the CPU and memory managers, if the node has them
    _claims: NodeClaims
    _before: Callable[[PodUid], Before]
    _refusal: Callable[[Pod], PodRefusal | None]  # returns why an admitted pod may not run here
    _threads: Lanes  # a lane for each set of resources
    _wake: Callable[[], None]  # called when there is a result, unless the main loop, in `begin`, sees the result anyway
    _clock: Callable[[], float]  # monotonic seconds
    _done: "queue.SimpleQueue[Done]" = field(factory=queue.SimpleQueue, init=False)
    _admitted: "queue.SimpleQueue[PodEntry]" = field(factory=queue.SimpleQueue, init=False)
    _beginning: int = field(default=0, init=False)  # the thread that is in `begin`

    # --- what the main loop calls -------------------------------------------------------------------------------------

    def begin(self, entry: PodEntry, facts: Facts) -> None:
        """Start an attempt. `facts` contains everything that the outcome may depend on."""
        entry.is_queued = True
        self._beginning = threading.get_ident()
        self._threads.submit(entry.lane.resources, partial(self._attempt, entry, facts, self._admit))
        self._beginning = 0

    @property
    def has_results(self) -> bool:
        """Whether `admitted` or `results` has something to yield."""
        return not (self._admitted.empty() and self._done.empty())

    def admitted(self) -> Iterator[PodEntry]:
        """Yield the pods that were given devices since the last call and whose claims are now being prepared."""
        while not self._admitted.empty():
            yield self._admitted.get()

    def results(self) -> Iterator[Done]:
        """Yield the attempts that ended since the last call."""
        while not self._done.empty():
            done = self._done.get()
            done.entry.is_queued = False
            yield done

    # --- what runs in threads --------------------------------------------------------------------------------------

    def _attempt(self, entry: PodEntry, facts: Facts, step: Callable[[PodEntry], Outcome | None]) -> None:
        """Execute one step of an attempt. Claims are prepared in another thread, because drivers may be slow."""
        outcome: Outcome | None = None
        try:
            outcome = step(entry)
        except Exception as error:  # noqa: BLE001 - a bug must not leave the pod queued forever
            _log.exception("pod %s cannot be tried", entry.name)
            outcome = Outcome(OutcomeKind.REFUSED, f"{type(error).__name__}: {error}")
        if outcome is not None and outcome.kind is OutcomeKind.NEEDS_CLAIMS:
            self._admitted.put(entry)
            self._note_result()
            self._claims.submit(entry.pod.uid, entry.claim_facts, partial(self._attempt, entry, facts, self._prepare))
            return
        self._done.put(Done(entry, outcome, facts))
        self._note_result()

    def _note_result(self) -> None:
        if threading.get_ident() != self._beginning:
            self._wake()

    def _admit(self, entry: PodEntry) -> Outcome | None:
        """Admit a pod in the thread of its lane. Return None if the pod is not tried."""
        if entry.is_gone or entry.lane.silent_until > self._clock():
            return None
        pod, before = entry.pod, self._before(entry.pod.uid)
        runs = before.has_run
        missing = sorted({resource for _, resource in self._manager.state.unhandled(pod)})
        if missing and not runs and before.waits_for_plugins:
            return Outcome(OutcomeKind.REFUSED, f"no plugin has registered {', '.join(missing)}", waits=True)
        outcome = Outcome(OutcomeKind.RUNS) if before.has_devices else outcome_of(self._admit_pod(pod))
        if outcome.kind is OutcomeKind.RUNS and not runs and (refusal := self._refusal(pod)) is not None:
            self._manager.evict([pod.uid])
            if self._managers is not None:
                self._managers.release([pod.uid])
            return Outcome(OutcomeKind.REFUSED, refusal.message, refusal=refusal)
        if outcome.kind is OutcomeKind.RUNS and pod.has_claims and not (runs and self._claims.are_entered(pod)):
            return Outcome(OutcomeKind.NEEDS_CLAIMS)
        if outcome.kind is OutcomeKind.RUNS and not runs:
            outcome = self._start(entry)
        if outcome.kind is OutcomeKind.NO_ANSWER:  # set here, because the lane's next attempt is about to start
            entry.lane.silent_until = self._clock() + SILENCE
        return outcome

    def _admit_pod(self, pod: Pod) -> Verdict:
        return self._manager.admit(pod) if self._managers is None else self._managers.admit(pod)

    def _prepare(self, entry: PodEntry) -> Outcome | None:
        """Prepare the claims of an admitted pod, and start its containers.

        Return None if the pod was removed in the meantime.
        """
        if entry.is_gone:
            return None
        try:
            self._claims.prepare(entry.pod)
        except DeviceCoreError as error:
            kind = OutcomeKind.CLAIMS_FAILED if self._claims.is_of_driver(error) else OutcomeKind.CLAIM_UNUSABLE
            return Outcome(kind, str(error), waits=True)
        return Outcome(OutcomeKind.RUNS) if self._before(entry.pod.uid).has_run else self._start(entry)

    def _start(self, entry: PodEntry) -> Outcome:
        """Get the options of each container of a pod, as a kubelet does before it starts the containers."""
        for container in entry.pod.in_start_order:
            try:
                if entry.pod.has_claims:
                    self._claims.cdi_devices(entry.pod, container.name)
                self._manager.start_container(entry.pod, container.name)
                if self._managers is not None:
                    self._managers.start_container(entry.pod, container.name)
            except DeviceCoreError as error:
                kind = OutcomeKind.NO_ANSWER if is_unanswered(error) else OutcomeKind.START_FAILED
                return Outcome(kind, f"container {container.name} cannot start: {error}", waits=True)
        return Outcome(OutcomeKind.RUNS)
