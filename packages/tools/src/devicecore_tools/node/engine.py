"""The engine of a node: it runs pods, and reports their devices, claims, health and status.

Laws: A pod that cannot be admitted changes nothing, and does not occupy a thread that another pod needs. The engine
    handles no signals or sockets, and prints nothing.

A kubelet leaves a refused pod Failed, and starts a pod without devices if no plugin has registered the resource. If the
feed keeps refused pods, as the manifest feed does, a pod waits in both cases, because no scheduler could place it on a
different node. The pod is retried when its outcome may have changed (`outcome`).
"""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import define, field

from devicecore.adapters.manifests import ManifestError
from devicecore.adapters.pod_resources import Snapshot
from devicecore.domain.device_set import natural_key
from devicecore.domain.errors import StoreError
from devicecore.domain.health import ResourceHealth, allocated_resources_status
from devicecore.domain.inventory import DeviceReport, Phase
from devicecore.domain.model import Container, Pod, PodUid, ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.domain.text import foreign_text
from devicecore.manager import DeviceManager
from devicecore_tools.node.attempts import SILENCE, Attempts, Before, Lane, PodEntry
from devicecore_tools.node.claims import NodeClaims
from devicecore_tools.node.evictions import Evictions
from devicecore_tools.node.feed import PodFeed, PodReport, PodReporter
from devicecore_tools.node.identity import Identity
from devicecore_tools.node.lanes import Lanes, Workers
from devicecore_tools.node.outcome import Facts, FactsKeeper, Outcome, OutcomeKind, PodRefusal, may_differ, resources_of
from devicecore_tools.node.state import FAILED, PENDING, RUNNING, KubeletState, PodState
from devicecore_tools.numa import NO_ZONES, NodeManagers, Zones

if TYPE_CHECKING:
    from devicecore.domain.dra.health import ClaimHealth
    from devicecore.wire import podresources
    from devicecore_tools.node.dra_state import PreparationFacts

_CLAIMS_RETRY = 60.0  # seconds between two attempts to prepare a pod's claims, as in a kubelet
_CLAIMS_LOOK = 10.0  # seconds between two attempts that end before a driver is called
_MAX_START_BACKOFF = 300.0  # the maximum number of seconds between attempts to start a container, as in a kubelet
_CLAIM_KINDS = (OutcomeKind.CLAIMS_FAILED, OutcomeKind.CLAIM_UNUSABLE)
_RELEASE = 0.5  # seconds to wait for a release, so that a pod that gets the same devices next finds them free

_log = logging.getLogger(__name__)


@define
class _LastLook:
    """What the engine saw in its last pass. If nothing has changed since that pass, the next one does nothing."""

    state: NodeState | None = None
    claims: object = None
    told_inventory: object = None
    told_claims: object = None
    device_lists: Mapping[ResourceName, DeviceReport | None] = field(factory=dict)
    active_of: tuple[int, object, object] = (-1, None, None)
    """The engine's version, the allocations and the claims' users for which the active pods were last determined."""


class NodeEngine:
    """Runs the pods from `pods` on the node that `manager` manages.

    Only one thread may use the engine, except for `snapshot`. That thread calls `poll` when it is woken or at
    `next_due`, then `advance`, and `tick` every 10 seconds.

    Args:
        manager: allocates the devices. The engine starts and stops this manager.
        pods: where pods come from, or None if there are none.
        claims: prepares and releases the claims of pods. The first pod or driver that needs the DRA manager starts it;
            the engine stops that manager.
        wake: called from other threads when `advance` has something to do.
        reporter: receives the outcomes of pods.
        observe: called at the end of each `advance`, with the state of the device manager and what is pinned on each
            NUMA node.
        workers: the threads for admissions and releases, which several nodes may share; by default, the engine's own.
        clock: returns monotonic seconds.
        managers: the managers of CPUs and memory, or None if the node pins neither.
    """

    def __init__(
        self,
        manager: DeviceManager,
        pods: PodFeed | None,
        claims: NodeClaims,
        wake: Callable[[], None] = lambda: None,
        *,
        reporter: PodReporter | None = None,
        observe: Callable[[NodeState, Zones], None] | None = None,
        workers: Workers | None = None,
        clock: Callable[[], float] = time.monotonic,
        managers: NodeManagers | None = None,
    ) -> None:
        self._manager = manager
        self._managers = managers
        self._pods = pods
        self._claims = claims
        self._reporter = reporter
        self._observe = observe
        self._clock = clock
        self._entries: dict[PodUid, PodEntry] = {}
        self._pending: dict[PodUid, PodEntry] = {}  # pods that may still be tried; other pods do not slow down a pass
        self._threads = Lanes(workers=workers)
        self._evictions = Evictions(manager, self._threads, wake, managers)
        self._attempts = Attempts(manager, managers, claims, self._before, self._refusal, self._threads, wake, clock)
        self._keeps_refused = pods is None or pods.keeps_refused
        self._held: frozenset[PodUid] = frozenset()
        self._leaving: set[PodUid] = set()
        self._facts = FactsKeeper()
        self._last = _LastLook()
        self._lanes_of: dict[frozenset[str], Lane] = {}
        self._is_ticking = threading.Lock()
        self._active: tuple[Pod, ...] = ()
        self._version = 0
        self._has_new = False
        self._next_look = math.inf

    def start(self) -> None:
        """Start the device manager.

        Raises StoreError if a checkpoint can be neither used nor set aside, and SetUpError if an adapter cannot start.
        """
        self._manager.start()
        if self._managers is not None:
            assert self._pods is not None  # noqa: S101 - for mypy: code that creates managers has pods
            self._managers.start(self._manager, self._pods)
        self._held = frozenset(self._manager.state.ledger.allocations)

    def stop(self) -> None:
        """Start no more admissions, and stop the DRA and device managers, so that admissions in progress end."""
        self._threads.close()
        self._claims.stop()
        self._manager.stop()

    def snapshot(self) -> Snapshot:
        """Return the pods that run or hold devices or claims, which the pod-resources API lists."""
        return Snapshot(self._manager.state, self._active, self._dynamic_resources, self._managers)

    def _dynamic_resources(self, pod: Pod, container: Container) -> "Sequence[podresources.DynamicResource]":
        return self._claims.dynamic_resources(pod, container.name) if pod.has_claims else ()

    @property
    def problems(self) -> tuple[ManifestError, ...]:
        """The problems found in manifests."""
        return self._pods.problems if self._pods else ()

    @property
    def is_busy(self) -> bool:
        """Whether some pods are not known yet, have not been tried yet, or are being tried or released."""
        is_ready = self._pods is None or self._pods.sources_ready()
        return (
            not is_ready
            or self._evictions.in_progress > 0
            or any(entry.is_queued or entry.outcome is None for entry in self._entries.values())
        )

    # --- what the main loop calls -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Tell the manager, in another thread, that time has passed. The manager may have to write to the disk."""
        if self._is_ticking.acquire(blocking=False):
            self._threads.submit("tick", self._tick)
        self._claims.tick()

    def _tick(self) -> None:
        try:
            self._manager.tick()
            if self._managers is not None:
                self._managers.release()
        except StoreError as error:
            _log.error("cannot write a state file, and will try again: %s", error)
        finally:
            self._is_ticking.release()

    @property
    def next_due(self) -> float:
        """When `poll` and `advance` have something to do even if nothing wakes the engine (monotonic seconds)."""
        return min(self._next_look, self._claims.next_due, self.next_poll)

    @property
    def next_poll(self) -> float:
        """When `poll` has something to do even if nothing wakes the engine (monotonic seconds)."""
        return self._pods.next_poll if self._pods else math.inf

    def poll(self) -> bool:
        """Poll the feed: release removed pods and record new ones. Return whether all pods have been read."""
        if self._pods is None:
            return True
        changes = self._pods.poll()
        for problem in changes.problems:
            _log.error("%s", problem)
        for file in changes.mended:
            _log.info("%s can be used again", file)
        self._release(changes.removed)
        for pod in changes.added:
            resources = resources_of(pod)
            lane = self._lanes_of.setdefault(resources, Lane(resources))
            self._entries[pod.uid] = self._pending[pod.uid] = PodEntry(pod, lane)
        if changes.added or changes.removed or changes.problems or changes.mended:
            self._version += 1
            self._has_new = True
        return changes.is_complete

    def advance(self) -> None:
        """Collect the results of attempts, and start the attempts whose outcome may have changed."""
        has_results = True
        while has_results:  # without threads, an attempt ends before `_submit_due` returns
            self._collect()
            self._claims.advance()
            self._submit_due()
            has_results = self._attempts.has_results
        self._become_ready()
        self._tell_health()
        self._tell_released()
        self._update_active()
        if self._observe is not None:
            self._observe(self._manager.state, NO_ZONES if self._managers is None else self._managers.zones)

    def _update_active(self) -> None:
        holders, users = self._manager.state.ledger.allocations, self._claims.users
        version, of_holders, of_users = self._last.active_of
        if version != self._version or of_holders is not holders or of_users is not users:
            active = [  # a pod whose containers cannot start also holds its devices and claims
                entry.pod
                for entry in self._entries.values()
                if entry.phase == RUNNING or entry.pod.uid in holders or entry.pod.uid in users
            ]
            self._active = tuple(active)
            self._last.active_of = self._version, holders, users

    @property
    def phases(self) -> Mapping[str, int]:
        """The number of pods in each phase."""
        return Counter(entry.phase for entry in self._entries.values())

    def state(self, sink_problem: str | None = None) -> KubeletState:
        """Return the current state, with the pods in natural order of their names."""
        entries = sorted(self._entries.values(), key=lambda entry: natural_key(entry.name))
        pods = tuple(PodState(entry.pod, entry.phase, entry.reason) for entry in entries)
        waits_for = tuple(self._waits_for())
        dra = self._claims.state(state for state in pods if state.pod.has_claims)
        return KubeletState(self._manager.state, pods, self.problems, waits_for, sink_problem, dra)

    @property
    def version(self) -> object:
        """A value that changes whenever `state` may have changed."""
        state = self._manager.state
        ready = self._pods is None or self._pods.sources_ready()
        return self._version, Identity(state.inventory), Identity(state.ledger), ready, self._claims.version

    # --- releases -----------------------------------------------------------------------------------------------------

    def _release(self, removed: Iterable[Pod]) -> None:
        gone = frozenset(pod.uid for pod in removed)
        if not gone:
            return
        entries = [self._entries.pop(uid) for uid in gone if uid in self._entries]
        for entry in entries:
            entry.is_gone = True
            self._pending.pop(entry.pod.uid, None)
            # an API server keeps a pod whose containers have exited
            is_kept = self._pods is not None and self._pods.object_of(entry.pod.uid)
            _log.info("pod %s %s", entry.name, "has ended" if is_kept else "is gone")
        for pod in removed:
            if pod.has_claims:
                self._claims.release(pod)
        self._leaving |= gone
        self._active = tuple(pod for pod in self._active if pod.uid not in gone)
        self._evictions.evict(gone, [entry.pod.uid for entry in entries if entry.is_queued], wait=_RELEASE)

    # --- attempts -----------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        for entry in self._attempts.admitted():
            if not entry.is_gone:
                self._tell(entry, Outcome(OutcomeKind.NEEDS_CLAIMS))
        if self._evictions.collect():
            self._version += 1
            self._has_new = True
        for done in self._attempts.results():
            if done.entry.is_gone:
                self._evictions.evict_again(done.entry.pod.uid)
                if done.entry.pod.has_claims:
                    self._claims.release(done.entry.pod)
            elif done.outcome is not None:
                self._note(done.entry, done.outcome, done.facts)
            self._version += 1
            self._has_new = True

    def _note(self, entry: PodEntry, outcome: Outcome, facts: Facts) -> None:
        phase = RUNNING if outcome.kind is OutcomeKind.RUNS else PENDING
        if outcome.is_refusal and not self._keeps_refused:
            phase = FAILED
        reason = foreign_text(outcome.reason)
        if (entry.phase, entry.reason) != (phase, reason):
            _log.info("pod %s: %s%s", entry.name, phase, reason and f", {reason}")
        entry.phase, entry.reason, entry.outcome, entry.facts = phase, reason, outcome, facts
        entry.pinned_facts = self._pinned_facts()
        if phase != PENDING:  # the pod is not tried again
            self._pending.pop(entry.pod.uid, None)
        entry.tried_at = now = self._clock()
        entry.retry_at = math.inf
        if outcome.kind is OutcomeKind.NO_ANSWER:
            entry.retry_at = now + SILENCE
        elif outcome.kind in _CLAIM_KINDS:
            entry.retry_at = now + (_CLAIMS_RETRY if outcome.kind is OutcomeKind.CLAIMS_FAILED else _CLAIMS_LOOK)
        elif outcome.kind is OutcomeKind.START_FAILED:
            entry.retry_at = now + min(SILENCE * 2**entry.start_failures, _MAX_START_BACKOFF)
            entry.start_failures = min(entry.start_failures + 1, 10)
        elif outcome.kind is OutcomeKind.RUNS and self._pods is not None:
            self._pods.mark_running(entry.pod.uid)
        self._tell(entry, outcome)

    def _submit_due(self) -> None:
        state, now = self._manager.state, self._clock()
        claims = self._claims.version, self._pods and self._pods.claims, self._pinned_facts()
        is_unchanged = state is self._last.state and claims == self._last.claims
        if is_unchanged and not self._has_new and now < self._next_look:
            return
        self._last.state, self._last.claims, self._has_new = state, claims, False
        self._facts.look(state)
        due = [entry for entry in self._pending.values() if self._is_due(entry, now)]
        # The pods tried least recently come first, so that a pod whose plugin hangs cannot always come first.
        for entry in sorted(due, key=lambda entry: entry.tried_at):
            entry.claim_facts = self._claim_facts(entry)
            self._attempts.begin(entry, self._facts.of(entry.lane.resources))
        times = (entry.next_try(now) for entry in self._pending.values() if entry.is_waiting)
        self._next_look = min(times, default=math.inf)

    def _is_due(self, entry: PodEntry, now: float) -> bool:
        if not entry.is_waiting or entry.pod.uid in self._evictions or entry.lane.silent_until > now:
            return False
        if self._claims.is_releasing(entry.pod.uid):
            return False
        if entry.outcome is None or now >= entry.retry_at:
            return True
        if entry.outcome.kind in _CLAIM_KINDS:
            before, after = entry.claim_facts, self._claim_facts(entry)
            return before is not None and after is not None and not before.is_like(after)
        if entry.outcome.is_refusal and entry.pinned_facts != self._pinned_facts():
            return True
        return may_differ(entry.outcome, entry.facts, self._facts.of(entry.lane.resources))

    def _pinned_facts(self) -> object:
        return None if self._managers is None else tuple(map(Identity, self._managers.states))

    def _claim_facts(self, entry: PodEntry) -> "PreparationFacts | None":
        return self._claims.facts(entry.pod, self._pods.claims) if entry.pod.has_claims and self._pods else None

    def _before(self, pod: PodUid) -> Before:
        """Return what is known about a pod from before this process started."""
        assert self._pods is not None, "the pod comes from this feed"  # noqa: S101 - for mypy
        if self._pods.sources_ready():
            return Before(waits_for_plugins=self._keeps_refused)
        return Before(
            has_run=self._pods.has_run(pod),
            # If the feed keeps refused pods, the device manager itself knows which containers are running.
            has_devices=not self._keeps_refused and pod in self._held,
            waits_for_plugins=self._keeps_refused,
        )

    def _refusal(self, pod: Pod) -> PodRefusal | None:
        """Return why a pod that has its devices may not run on this node, or None if it may run."""
        assert self._pods is not None, "the pod comes from this feed"  # noqa: S101 - for mypy
        state = self._manager.state
        devices: dict[str, int] = {}
        if pod.uid in state.ledger.allocations:
            for name in state.ledger.resources:
                resource = state.inventory.resources.get(name)
                healthy = len(resource.report.healthy) if resource is not None and resource.report is not None else 0
                devices[name] = max(healthy, len(state.ledger.in_use(name)))
        return self._pods.refusal(pod, devices)

    # --- reports ------------------------------------------------------------------------------------------------------

    def _tell(self, entry: PodEntry, outcome: Outcome) -> None:
        if self._reporter is None:
            return
        devices = allocated_resources_status(self._manager.state, entry.pod)
        claims = self._claims.allocated_resources_status(entry.pod) if entry.pod.has_claims else {}
        health: dict[str, tuple[ResourceHealth | ClaimHealth, ...]] = {
            name: (*devices.get(name, ()), *claims.get(name, ())) for name in sorted({*devices, *claims})
        }
        self._reporter.report(entry.pod, PodReport(outcome, health))

    def _tell_health(self) -> None:
        """Report the running pods whose device health may have changed since the last pass."""
        if self._reporter is None:
            return
        state = self._manager.state
        pods: set[PodUid] = set()
        last = self._last
        if state.inventory is not last.told_inventory:
            last.told_inventory = state.inventory
            before, after = last.device_lists, {name: one.report for name, one in state.inventory.resources.items()}
            changed = {name for name in {*before, *after} if before.get(name) is not after.get(name)}
            last.device_lists = after
            if changed:
                pods = {allocation.key.pod for allocation in state.ledger if allocation.resource in changed}
        if self._claims.version != last.told_claims:
            last.told_claims = self._claims.version
            pods |= {uid for uid, entry in self._entries.items() if entry.pod.has_claims}
        if pods:
            for uid in [uid for uid in self._entries if uid in pods]:
                entry = self._entries[uid]
                if entry.phase == RUNNING and entry.outcome is not None:
                    self._tell(entry, entry.outcome)

    def _tell_released(self) -> None:
        """Report the removed pods that no longer hold anything."""
        released = [uid for uid in self._leaving if uid not in self._evictions and not self._claims.is_releasing(uid)]
        self._leaving.difference_update(released)
        if self._reporter is not None:
            for uid in released:
                self._reporter.released(uid)

    # --- readiness ----------------------------------------------------------------------------------------------------

    def _become_ready(self) -> None:
        """Mark the feed as ready once the pods that ran or held devices before the start have been tried again."""
        if self._pods is None or self._pods.sources_ready():
            return
        feed, entries = self._pods, self._entries.items()
        if all(entry.outcome is not None for uid, entry in entries if feed.has_run(uid) or uid in self._held):
            self._pods.mark_ready()
            if not self._pods.sources_ready():
                return
            self._version += 1
            self._evictions.release_inactive()
            self._claims.release_all_but(self._entries.keys())

    def _waits_for(self) -> Iterator[str]:
        """Yield what may still happen without a change of manifests or devices."""
        for name, resource in sorted(self._manager.state.inventory.resources.items()):
            if resource.phase is Phase.AWAITED:
                yield f"the plugin for {name}, which was registered before the restart"
            elif resource.phase is Phase.REGISTERED:
                yield f"the devices of {name}"
        for entry in self._entries.values():
            if entry.is_queued:
                yield f"pod {entry.name}, whose admission is in progress"
            elif entry.outcome is None or entry.outcome.waits:
                yield f"pod {entry.name}: {entry.reason}"
        yield from self._claims.waits_for()
        if releases := self._evictions.waits_for:
            yield releases
        elif self._pods is not None and not self._pods.sources_ready():
            yield "the manifests, which have not been read" if self._keeps_refused else "the pods from the API server"
