"""Admits pods.

Law: an admission that fails leaves everything as it was, and an admission that succeeds is in the store before its
result is returned.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from attrs import define, evolve, field

from devicecore.domain import policies
from devicecore.domain.admission import Admitted, NotReady, Refused, Verdict
from devicecore.domain.errors import (
    AdmissionTimeoutError,
    CalledFromInsideError,
    DeviceCoreError,
    ManagerStoppedError,
    NoHealthyDevicesError,
    StoreError,
    UnregisteredDeviceError,
)
from devicecore.domain.inventory import Phase
from devicecore.domain.ledger import Reservation
from devicecore.domain.model import Container, Pod, Receipt, ResourceName
from devicecore.domain.node_state import NodeState, answers_warning
from devicecore.domain.notifications import Allocated, Notification, Released
from devicecore.domain.selection import AskPlugin, Decision, ResourceRequest, choice_of
from devicecore.domain.text import foreign_text
from devicecore.manager.active_pods import ActivePods
from devicecore.manager.affinities import Affinities
from devicecore.manager.plugins import Plugins
from devicecore.manager.turns import AdmissionTurns, Affinity
from devicecore.ports.policy import AllocationPolicy
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.observers import Observers
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.run import Run
from devicecore.runtime.saved_state import SavedState

Settle = Callable[[AskPlugin], Decision]
"""A function from a question for the plugin to the choice that follows from the plugin's answer."""

_log = logging.getLogger(__name__)


@define(eq=False)
class _Admission:
    """The progress of one admission.

    `prepared` contains the reservations for which plugins have answered Allocate, each with the answer. `at` is the
    container that is being admitted, or None before the first one.
    """

    pod: Pod
    run: Run
    deadline: float
    at: Container | None = None
    prepared: list[tuple[Reservation, Receipt]] = field(factory=list)


@define(eq=False, repr=False, kw_only=True)
class Admissions:
    """The order of an admission's effects: reserve, call the plugin, save, commit, notify. This class owns no lock.

    `budget` is the number of seconds for one admission, and `clock` returns monotonic seconds.
    """

    _state: CurrentState[NodeState]
    _turns: AdmissionTurns
    _plugins: Plugins
    _saver: SavedState[NodeState]
    _pods: ActivePods
    _affinities: Affinities
    _observers: Observers[Notification]
    _policy: AllocationPolicy | None
    _budget: float
    _clock: Callable[[], float]

    def admit(self, pod: Pod, containers: Sequence[Container], affinity: Affinity) -> Verdict:
        """Allocate devices to all `containers` of a pod, or to none of them.

        Raises CalledFromInsideError if the call comes from inside an admission of the same pod, or from inside the
        store.
        """
        turn = self._turns.begin((pod.uid,), OpenCall(), self._budget, "admit")
        if turn is None:
            return Refused(AdmissionTimeoutError(pod.uid, self._budget))
        try:
            return self._admit(pod, containers, affinity)
        finally:
            self._turns.end(turn)

    def _admit(self, pod: Pod, containers: Sequence[Container], affinity: Affinity) -> Verdict:
        is_swept = self._pods.sweep()
        if (run := self._state.run) is None:
            return Refused(ManagerStoppedError())
        admission = _Admission(pod, run, self._clock() + self._budget)
        try:
            # For the whole admission, this state decides which requests are for plugin devices.
            before = self._state.value
            self._allocate_all(admission, containers, affinity, before)
            if admission.prepared:
                self._commit(admission)
                is_swept = False  # the commit has also saved the freed devices
        except BaseException as error:
            # A save that failed may have written a state that never became current.
            if is_swept or isinstance(error, StoreError):
                self._saver.request(wait=False)
            if isinstance(error, DeviceCoreError) and not isinstance(error, CalledFromInsideError):
                return self._verdict(error, admission.at)
            raise
        if is_swept:
            self._saver.request(wait=False)
        return Admitted(pod, self._state.value.ledger.of_pod(pod.uid), before.unhandled(pod))

    def _allocate_all(
        self, admission: _Admission, containers: Sequence[Container], affinity: Affinity, before: NodeState
    ) -> None:
        pod = admission.pod
        choose = self._affinities.chooser(pod, containers) if affinity is None else lambda _: affinity
        for container in containers:
            admission.at = container
            # NUMA nodes are chosen inside the loop, because the preceding containers have already taken devices
            numa_nodes = choose(container)
            for resource, size in before.requests(pod, container):
                is_running = self._pods.is_already_running(pod, container)
                self._allocate(admission, ResourceRequest(pod.key(container), resource, size, numa_nodes, is_running))

    def _allocate(self, admission: _Admission, request: ResourceRequest) -> None:
        """Reserve devices and have the plugin prepare them."""
        if reservation := self._reserve(admission, request):
            devices, time_left = tuple(reservation.devices), self._time_left(admission)
            admission.prepared.append((reservation, self._plugins.allocate(request.resource, devices, time_left)))

    def _reserve(self, admission: _Admission, request: ResourceRequest) -> Reservation | None:
        """Choose devices and reserve them in one step.

        If the plugin is consulted, choose again after it has answered.
        """
        settle: Settle | None = None
        while True:
            reserve = partial(_reserved, admission.pod, request, settle, self._policy is not None)
            decision, reservation = self._state.take(reserve, run=admission.run)
            if not isinstance(decision, AskPlugin):
                return reservation
            settle = self._ask(request, decision, self._time_left(admission))

    def _ask(self, request: ResourceRequest, question: AskPlugin, time_left: float) -> Settle:
        """Ask the plugin or, if there is a policy, the policy. A policy also gets the plugin's preference, if any."""
        state, policy = self._state.value, self._policy
        if policy is None:
            preferred = self._plugins.preferred(request.resource, question, time_left)
            return lambda asked: asked.answer(preferred)
        choice = choice_of(request, question, state.inventory, state.ledger)
        if self._plugins.offers_preference(request.resource):
            choice = evolve(choice, preferred=tuple(self._plugins.preferred(request.resource, question, time_left)))
        chosen = policies.answer(policy, choice)
        # If another container has taken a device in the meantime, the question has changed, and the policy is consulted
        # again.
        return lambda asked: chosen if asked == question else asked

    def _commit(self, admission: _Admission) -> None:
        """Turn the reservations into allocations: first in the store, then in the state."""
        self._time_left(admission)  # if the last answer came too late, this raises an error, so that the pod is refused
        after = self._saver.commit(admission.run, partial(_confirmed, admission.prepared))
        for reservation, receipt in admission.prepared:
            if warning := answers_warning(after.ledger, reservation.resource, receipt):
                _log.warning("%s", foreign_text(warning))
        if self._observers.exist:
            self._notify(admission, after)

    def _notify(self, admission: _Admission, after: NodeState) -> None:
        pod = admission.pod.uid
        requested = {(reservation.key, reservation.resource) for reservation, _ in admission.prepared}
        allocations = [
            allocation
            for allocation in after.ledger.allocations[pod]
            if (allocation.key, allocation.resource) in requested
        ]
        self._observers.notify(Allocated(pod, allocation) for allocation in allocations)
        # If the pod was evicted in the meantime, `Released` may have come before `Allocated`, so `Released` is
        # repeated.
        left = self._state.value.ledger.of_pod(pod)
        self._observers.notify(Released(pod, allocation) for allocation in allocations if allocation not in left)

    def _verdict(self, error: DeviceCoreError, at: Container | None) -> Refused | NotReady:
        container = at.name if at else None
        if isinstance(error, UnregisteredDeviceError | NoHealthyDevicesError):
            resource = self._state.value.inventory.resources.get(ResourceName(error.resource))
            if resource and resource.phase in {Phase.AWAITED, Phase.REGISTERED}:
                return NotReady(error, resource.name, container)
        return Refused(error, container)

    def _time_left(self, admission: _Admission) -> float:
        left = admission.deadline - self._clock()
        if left <= 0:
            raise AdmissionTimeoutError(admission.pod.uid, self._budget)
        return left


def _reserved(
    pod: Pod,
    request: ResourceRequest,
    settle: Settle | None,
    always_asks: bool,  # noqa: FBT001 - `partial` passes it
    state: NodeState,
) -> tuple[NodeState, tuple[Decision, Reservation | None]]:
    """Return the state with the chosen devices reserved, the decision, and the reservation if there is one."""
    decision = state.devices_to_allocate(pod, request, always_asks=always_asks)
    if settle is not None and isinstance(decision, AskPlugin):
        decision = settle(decision)
    if isinstance(decision, AskPlugin) or not decision:
        return state, (decision, None)
    state = state.reserve(pod, request, decision)
    return state, (decision, state.ledger.reservations[-1])


def _confirmed(prepared: Sequence[tuple[Reservation, Receipt]], state: NodeState) -> tuple[NodeState, NodeState]:
    """Turn the reservations into allocations. Return the new state twice: as the next value and as the commit's result.

    Existing allocations stay.

    Raises:
        KeyError: a reservation was released because an interrupt ended its admission.
    """
    for reservation, receipt in prepared:
        key, resource = reservation.key, reservation.resource
        if reservation in state.ledger.reservations:
            state = state.confirm(key, resource, receipt)
        elif state.ledger.allocation(key, resource) is None:
            raise KeyError(key, resource)
        # otherwise, an earlier call saved this allocation, but was interrupted before it could record the save
    return state, state
