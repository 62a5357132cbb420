"""Mutation tests: each removes one protection of the manager, and then a law or a race test must fail.

Law: every protection has a check that fails when the protection is removed. Each mutation is a mistake that a developer
could make, and many of them do what a kubelet does. To save time, each mutation names a seed that has broken the law.
If that seed no longer breaks the law, the test tries other seeds.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from devicecore import DeviceManager
from devicecore.domain.admission import NotReady, Refused
from devicecore.domain.capacity import NodeStatus
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import DeviceCoreError, StoreError
from devicecore.domain.inventory import DeviceReport, Inventory, Plugin, Resource
from devicecore.domain.ledger import Ledger, Reservation
from devicecore.domain.model import Container, ContainerKey, DeviceId, PluginId, Pod, PodUid, ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.domain.selection import AskPlugin, Decision, ResourceRequest
from devicecore.manager import publisher
from devicecore.manager.active_pods import ActivePods
from devicecore.manager.admissions import Admissions
from devicecore.manager.publisher import Publisher
from devicecore.manager.turns import AdmissionTurns
from devicecore.ports.store import CheckpointStore
from devicecore.runtime import saved_state
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.open_call import OpenCall
from devicecore.runtime.run import Run
from devicecore.runtime.saved_state import SavedState
from devicecore.runtime.turns import Turn
from devicecore.testing.faults import Fails
from tests.mutations import Mutations, Patch
from tests.simulation import test_races as races
from tests.simulation.run import Simulation
from tests.simulation.world import Disk

Untyped = Any  # arguments that the mutation passes on unchanged

SEEDS = range(60)
STEPS = 300

RESERVED = races.test_137534_a_reserved_device_goes_to_no_other_pod
HALF_FAILED = races.test_130145_a_half_failed_admission_leaks_nothing
TOO_LATE = races.test_117435_an_answer_after_the_budget_is_never_taken

breaks = Mutations()
"""Mutations that break a law of the simulation, each with the law and the seed that is tried first."""

fails = Mutations()
"""Mutations that make a race test fail, each with the test."""


def of_allocations_only(ledger: Ledger) -> Ledger:
    """Return the ledger with the devices in use rebuilt from allocations only, as in a kubelet."""
    nothing = {reservation.resource: DeviceSet() for reservation in ledger.reservations}
    rebuilt = Ledger.of(ledger)
    in_use = {**nothing, **{name: rebuilt.in_use(name) for name in rebuilt.resources}}
    return evolve(rebuilt, reservations=ledger.reservations, in_use=in_use)


# --- reservations -----------------------------------------------------------------------------------------------------


@breaks("free_reserved_and_allocated_devices_are_all_devices", 15)
@fails(partial(RESERVED, races.evict))
def in_use_is_rebuilt_when_pods_are_evicted(patch: Patch) -> None:
    """The bug of kubernetes#137534."""
    evict = Ledger.evict

    def rebuilding(self: Ledger, pods: Iterable[PodUid]) -> Ledger:
        left = evict(self, pods)
        return left if left is self else of_allocations_only(left)

    patch.setattr(Ledger, "evict", rebuilding)


@breaks("free_reserved_and_allocated_devices_are_all_devices", 0)
@fails(partial(RESERVED, races.fail_to_allocate))
def in_use_is_rebuilt_when_an_admission_fails(patch: Patch) -> None:
    """The bug of kubernetes#137534, caused by a failed admission."""
    release = Ledger.release
    patch.setattr(Ledger, "release", lambda self, key, resource: of_allocations_only(release(self, key, resource)))


@breaks("free_reserved_and_allocated_devices_are_all_devices", 0)
def in_use_forgets_reservations(patch: Patch) -> None:
    patch.setattr(Ledger, "in_use", lambda self, resource: DeviceSet.of(_allocated(self, resource)))


def _allocated(ledger: Ledger, resource: ResourceName) -> Iterator[DeviceId]:
    return (device for held in ledger if held.resource == resource for device in held.devices)


@breaks("nothing_but_its_own_errors_leaves_the_manager", 8)
@fails(partial(RESERVED, races.collect_garbage))
def eviction_drops_reservations(patch: Patch) -> None:
    evict = Ledger.evict
    patch.setattr(Ledger, "evict", lambda self, pods: Ledger.of(evict(self, pods)))


@breaks("no_reservation_outlives_its_admission", 0)
@fails(races.test_137317_a_failing_preference_leaks_nothing)
def a_failed_admission_releases_nothing(patch: Patch) -> None:
    patch.setattr(Ledger, "release", lambda self, _key, _resource: self)


@breaks("no_reservation_outlives_its_admission", 1)
@fails(partial(HALF_FAILED, Fails(), 3))
def a_failed_admission_keeps_its_first_container(patch: Patch) -> None:
    """The bug of kubernetes#130145."""

    def without_the_first(self: Untyped, pod: PodUid) -> None:
        reserved = [held for held in self._state.value.ledger.reservations if held.key.pod == pod]
        for held in reserved[1:]:
            self._state.replace(partial(_without, held))

    patch.setattr(AdmissionTurns, "give_back", without_the_first)


def _without(held: Reservation, state: NodeState) -> NodeState:
    return evolve(state, ledger=state.ledger.release(held.key, held.resource))


@breaks("the_ledger_is_never_asked_for_devices_in_use", 0)
@fails(races.test_137534_two_pods_get_the_same_preference)
def devices_are_not_chosen_again_after_the_plugin_was_asked(patch: Patch) -> None:
    decide = NodeState.devices_to_allocate
    asked: dict[tuple[ContainerKey, ResourceName], AskPlugin] = {}

    def first_decision(self: NodeState, pod: Pod, request: ResourceRequest, *, always_asks: bool) -> Decision:
        what = request.key, request.resource
        decision = asked.pop(what, None) or decide(self, pod, request, always_asks=always_asks)
        if isinstance(decision, AskPlugin):
            asked[what] = decision
        return decision

    patch.setattr(NodeState, "devices_to_allocate", first_decision)


@breaks("the_latest_instance_is_asked_for_healthy_devices", 16)
def preferences_are_not_checked(patch: Patch) -> None:
    def trusting(self: AskPlugin, preferred: Iterable[DeviceId]) -> DeviceSet:
        return DeviceSet.of([*self.must_include, *preferred][: self.size])

    patch.setattr(AskPlugin, "answer", trusting)


@breaks("containers_of_a_pod_share_only_reusable_devices", 7)
def devices_of_sidecars_are_reusable(patch: Patch) -> None:
    patch.setattr(Pod, "is_reusable", lambda self, container: container in self.init_containers)


@breaks("an_admitted_pod_keeps_what_it_had", 17)
def a_pod_in_admission_loses_its_devices(patch: Patch) -> None:
    patch.setattr(AdmissionTurns, "admitting", lambda _self: frozenset())


# --- deadlines --------------------------------------------------------------------------------------------------------


@breaks("a_late_answer_is_never_taken", 3)
@fails(partial(TOO_LATE, "Allocate"))
def an_answer_after_the_deadline_is_taken(patch: Patch) -> None:
    patch.setattr(Admissions, "_time_left", lambda self, _admission: self._budget)


# --- the disk ---------------------------------------------------------------------------------------------------------


@breaks("a_failed_admission_changed_nothing", 0)
@fails(races.test_140929_devices_that_cannot_be_saved_are_not_allocated)
def memory_is_changed_before_the_file(patch: Patch) -> None:
    """The bug of kubernetes#140929."""
    write = SavedState._write  # noqa: SLF001 - the mutated part is private

    def confirming(self: Untyped, value: NodeState, call: OpenCall) -> None:
        self._state.replace(lambda _: value)
        write(self, value, call)

    patch.setattr(SavedState, "_write", confirming)


@breaks("an_answered_admission_is_never_lost", 21)
def a_failed_save_is_ignored(patch: Patch) -> None:
    write = SavedState._write  # noqa: SLF001 - the mutated part is private

    def careless(self: Untyped, value: NodeState, call: OpenCall) -> None:
        with suppress(StoreError):
            write(self, value, call)

    patch.setattr(SavedState, "_write", careless)


@breaks("the_file_restores_to_the_ledger_in_memory", 0)
def evictions_are_not_saved(patch: Patch) -> None:
    """The bug of kubernetes#137010."""
    patch.setattr(SavedState, "request", lambda _self, **_: None)


@breaks("a_good_file_is_used_and_a_bad_one_is_kept", 6)
def a_bad_file_is_not_set_aside(patch: Patch) -> None:
    patch.setattr(Disk, "set_aside", lambda _: None)


# --- plugins ----------------------------------------------------------------------------------------------------------


def _instance(inventory: Inventory, id_: PluginId, same: Callable[[Plugin], bool]) -> PluginId:
    resource = inventory.resources.get(id_.resource)
    return next((plugin.id for plugin in reversed(resource.plugins if resource else ()) if same(plugin)), id_)


@breaks("the_manager_takes_over_what_plugins_report", 10)
@fails(races.test_135437_events_of_an_old_instance_on_the_same_socket_change_nothing)
def a_disconnect_is_matched_by_socket(patch: Patch) -> None:
    """The bug of kubernetes#135437."""
    disconnect = Inventory.disconnect

    def by_socket(self: Inventory, id_: PluginId, now: float) -> Inventory:
        return disconnect(self, _instance(self, id_, lambda plugin: plugin.id.socket == id_.socket), now)

    patch.setattr(Inventory, "disconnect", by_socket)


@breaks("the_manager_takes_over_what_plugins_report", 3)
@fails(races.test_121994_a_late_disconnect_does_not_touch_the_next_instance)
def a_disconnect_is_matched_by_resource(patch: Patch) -> None:
    """The bug of kubernetes#121994."""
    disconnect = Inventory.disconnect

    def by_resource(self: Inventory, id_: PluginId, now: float) -> Inventory:
        return disconnect(self, _instance(self, id_, lambda _: True), now)

    patch.setattr(Inventory, "disconnect", by_resource)


@breaks("the_manager_takes_over_what_plugins_report", 1)
@fails(races.test_135437_events_of_an_old_instance_on_the_same_socket_change_nothing)
def a_list_is_matched_by_resource(patch: Patch) -> None:
    report = Inventory.report

    def by_resource(self: Inventory, id_: PluginId, *others: Untyped) -> Inventory:
        return report(self, _instance(self, id_, lambda _: True), *others)

    patch.setattr(Inventory, "report", by_resource)


@breaks("the_manager_takes_over_what_plugins_report", 0)
@fails(races.test_a_plugin_lost_while_it_is_called_changes_no_other_allocation)
def devices_stay_healthy_when_their_plugin_goes(patch: Patch) -> None:
    patch.setattr(DeviceReport, "all_unhealthy", lambda self: self)


@breaks("the_latest_instance_is_asked_for_healthy_devices", 0)
def the_first_instance_is_asked(patch: Patch) -> None:
    def first(self: Resource) -> Plugin | None:
        return self.plugins[0] if self.plugins else self.stopped

    patch.setattr(Resource, "plugin", property(first, lambda *_: None))  # the constructor sets the attribute


@breaks("an_occupied_socket_is_refused", 0)
@fails(races.test_124716_a_socket_in_use_is_not_registered_again)
def a_socket_is_registered_twice(patch: Patch) -> None:
    connect = Inventory.connect

    def without_looking(self: Inventory, id_: PluginId, options: Untyped) -> Inventory:
        elsewhere = connect(self, evolve(id_, socket=f"{id_.socket}/{id_.generation}"), options)
        resource = elsewhere.resources[id_.resource]
        plugins = (*resource.plugins[:-1], evolve(resource.plugins[-1], id=id_))
        return Inventory({**elsewhere.resources, id_.resource: evolve(resource, plugins=plugins)})

    patch.setattr(Inventory, "connect", without_looking)


# --- restarts ---------------------------------------------------------------------------------------------------------


@breaks("the_file_restores_to_the_ledger_in_memory", 0)
def a_restart_forgets_which_resources_there_were(patch: Patch) -> None:
    patch.setattr(Inventory, "expect", lambda self, _names, _now: self)


@breaks("an_admitted_pod_has_what_it_asks_for", 24)
def a_resource_without_a_plugin_is_not_ours(patch: Patch) -> None:
    patch.setattr(NodeState, "knows", lambda self, resource: resource in self.inventory.resources)


@breaks("a_running_pod_survives_a_restart", 2)
@fails(races.test_118559_a_pod_that_runs_survives_a_restart)
def running_containers_are_not_recognized(patch: Patch) -> None:
    """The bug of kubernetes#118559."""
    patch.setattr(ActivePods, "is_already_running", lambda *_: False)


@breaks("a_running_pod_survives_a_restart", 21)
@fails(races.test_138446_an_ended_init_container_does_not_reject_its_pod)
def ended_init_containers_need_their_plugin(patch: Patch) -> None:
    """The bug of kubernetes#138446."""

    def runs(self: Untyped, pod: Pod, container: Container) -> bool:
        return not (self._pods is None or self._pods.sources_ready()) and pod.key(container) in self._running

    patch.setattr(ActivePods, "is_already_running", runs)


@breaks("a_pod_waits_only_for_a_plugin_that_has_not_reported", 0)
@fails(races.test_109595_after_a_reboot_a_pod_waits_for_its_plugin)
def not_ready_is_a_refusal(patch: Patch) -> None:
    verdict = Admissions._verdict  # noqa: SLF001 - the mutated part is private

    def refusing(self: Admissions, error: DeviceCoreError, at: Container | None) -> Refused:
        found = verdict(self, error, at)
        return Refused(found.error, found.container) if isinstance(found, NotReady) else found

    patch.setattr(Admissions, "_verdict", refusing)


# --- published values -------------------------------------------------------------------------------------------------


@breaks("sanitizing_never_lowers_allocatable", 0)
def sanitizing_returns_only_devices_in_use(patch: Patch) -> None:
    def in_use(self: NodeState, _pod: PodUid, _allocatable: Untyped) -> dict[ResourceName, int]:
        return {name: len(self.ledger.in_use(name)) for name in self.ledger.resources}

    patch.setattr(NodeState, "sanitize_allocatable", in_use)


@breaks("the_sink_has_the_current_status", 0)
def nothing_is_published(patch: Patch) -> None:
    def status(self: Untyped, removed: Iterable[ResourceName] = ()) -> Untyped:
        return evolve(self._state.value.inventory.status(), removed=tuple(removed))

    patch.setattr(Publisher, "publish", status)


@breaks("a_pod_that_has_ended_holds_nothing", 9)
def ended_pods_keep_their_devices(patch: Patch) -> None:
    patch.setattr(ActivePods, "sweep", lambda _self: False)


@breaks("nothing_is_published_twice", 0)
def everything_is_published_again(patch: Patch) -> None:
    anything_new = property(lambda _self: NodeStatus(), lambda _self, _published: None)
    patch.setattr(Publisher, "_published", anything_new, raising=False)


@breaks("no_port_is_called_while_the_state_is_locked", 0)
def the_sink_is_called_under_the_lock_of_the_state(patch: Patch) -> None:
    publish = Publisher.publish

    def locking(self: Publisher, removed: Iterable[ResourceName] = ()) -> NodeStatus:
        with self._state._lock:  # noqa: SLF001 - this is the mistake
            return publish(self, removed)

    patch.setattr(Publisher, "publish", locking)


@breaks("a_started_container_is_given_what_it_holds", 7)
def a_container_is_given_what_its_pod_holds(patch: Patch) -> None:
    patch.setattr(Ledger, "of_container", lambda self, key: self.of_pod(key.pod))


# --- laws of the simulation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("remove", "law", "first"), breaks, ids=breaks.names)
def test_the_simulation_finds_the_missing_protection(
    remove: Callable[[Patch], None], law: str, first: int, monkeypatch: Patch
) -> None:
    remove(monkeypatch)
    problems = (Simulation(seed, STEPS).run().problem for seed in (first, *SEEDS))
    # A run may break a different law first, so several seeds are tried.
    assert any(problem and problem.law == law for problem in problems)


# --- tests of races ---------------------------------------------------------------------------------------------------


@fails(races.test_one_pod_that_is_admitted_twice_at_once_is_admitted_once)
def admissions_of_one_pod_run_side_by_side(patch: Patch) -> None:
    patch.setattr(AdmissionTurns, "begin", lambda _self, keys, call, *_: Turn(keys, call))
    patch.setattr(AdmissionTurns, "end", lambda self, turn: self.give_back(turn.keys[0]))


@fails(races.test_an_older_state_is_never_saved_last)
def saves_run_side_by_side(patch: Patch) -> None:
    patch.setattr(saved_state, "threading", SimpleNamespace(Lock=nullcontext))


@fails(races.test_an_older_status_is_never_published_last)
def publications_run_side_by_side(patch: Patch) -> None:
    patch.setattr(publisher, "threading", SimpleNamespace(Lock=nullcontext))


@fails(races.test_a_pod_admitted_while_ended_pods_are_removed_is_kept)
def holders_are_listed_after_active_pods(patch: Patch) -> None:
    """An earlier version of the manager did this."""

    def looking_too_late(self: Untyped) -> bool:
        in_admission_before = {*self._turns.admitting()}
        active = {*self._pods.active_pods(), *in_admission_before}
        self.forget([pod for pod in self._state.value.ledger.allocations if pod not in active])
        return True

    patch.setattr(ActivePods, "sweep", looking_too_late)


@fails(races.test_a_manager_restarted_while_a_plugin_is_called_allocated_nothing)
@fails(races.test_a_manager_that_has_stopped_writes_nothing)
@fails(races.test_a_stopped_manager_frees_nothing_and_admits_no_pod)
def runs_of_a_manager_are_not_distinguished(patch: Patch) -> None:
    """An earlier version of the manager did this."""
    take = CurrentState.take

    def commit(self: Untyped, _run: Run, change: Untyped) -> Untyped:
        self._write(change(self._state.value)[0], OpenCall())
        return self._state.take(change)

    patch.setattr(CurrentState, "take", lambda self, change, **_: take(self, change))
    patch.setattr(CurrentState, "end", lambda _self: None)
    patch.setattr(SavedState, "commit", commit)


@fails(races.test_a_save_that_is_under_way_ends_before_the_stop)
def a_stop_does_not_wait_for_a_save(patch: Patch) -> None:
    patch.setattr(SavedState, "end", lambda self: self._state.end())


@fails(races.test_what_the_last_owner_saved_just_before_it_stopped_is_restored)
def the_file_is_read_before_the_directory_is_claimed(patch: Patch) -> None:
    """A kubelet does this, and an earlier version of the manager did."""
    init = SavedState.__init__

    def reading(self: Untyped, store: CheckpointStore, *parts: Untyped, **named: Untyped) -> None:
        init(self, store, *parts, **named)
        found = store.load()
        self.load = lambda: found

    patch.setattr(SavedState, "__init__", reading)


@fails(races.test_a_plugin_that_registers_while_the_file_is_read_waits)
def events_are_handled_before_the_file_is_read(patch: Patch) -> None:
    on_event: Callable[..., None] = vars(DeviceManager)["_on_event"]

    def without_waiting(self: DeviceManager, run: Run, event: Untyped) -> None:
        run.is_restored.set()
        on_event(self, run, event)

    patch.setattr(DeviceManager, "_on_event", without_waiting)


@fails(races.test_a_resource_that_expires_during_an_admission_is_still_required)
def requests_are_computed_per_container(patch: Patch) -> None:
    """A kubelet does this, and an earlier version of the manager did."""
    managers: list[DeviceManager] = []
    start, requests = DeviceManager.start, NodeState.requests

    def starting(self: DeviceManager) -> None:
        managers.append(self)
        start(self)

    patch.setattr(DeviceManager, "start", starting)
    patch.setattr(NodeState, "requests", lambda _, pod, container: requests(managers[-1].state, pod, container))


@pytest.mark.parametrize(("remove", "race"), fails, ids=fails.names)
def test_the_named_test_fails_without_the_protection(
    remove: Callable[[Patch], None], race: Callable[[], None], monkeypatch: Patch
) -> None:
    remove(monkeypatch)
    with pytest.raises((AssertionError, KeyError, pytest.fail.Exception)):
        race()
