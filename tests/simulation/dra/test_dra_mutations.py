"""Each mutation removes one protection, and the test shows that the removal is noticed.

Many of the mutations do what a kubelet does, or what a developer who does not know the reasons for the code might
write.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from attrs import evolve

from devicecore.adapters.memory_dra import MemoryDriverTransport
from devicecore.domain.dra import devices, drivers, preparing, releasing
from devicecore.domain.dra.claims import ClaimCache, ClaimInfo, ClaimPhase
from devicecore.domain.dra.drivers import DriverEvent, DriverRegistry, HealthEnded, InstanceId, Wipe
from devicecore.domain.dra.errors import DriverNotRegisteredError
from devicecore.domain.dra.health import DEFAULT_LIMIT, DeviceHealth
from devicecore.domain.dra.lookup import claim_key
from devicecore.domain.dra.model import ClaimKey, DriverName, PreparedDevice, ResourceClaim
from devicecore.domain.dra.preparing import AskDriver, Changed
from devicecore.domain.dra.releasing import Leaving, Uncertain
from devicecore.domain.errors import DeviceCoreError, StoreError
from devicecore.domain.model import Pod, PodUid
from devicecore.dra_manager import preparation, release
from devicecore.dra_manager.driver_list import DriverList
from devicecore.dra_manager.health_record import HealthRecord
from devicecore.dra_manager.preparation import Preparation
from devicecore.dra_manager.saved_claims import SavedClaims
from devicecore.runtime.turns import Turn
from tests.mutations import Mutations, Patch
from tests.simulation.dra.test_dra_faults import BESIDE, SCENARIOS, places
from tests.simulation.dra.world import FAULTS, Fault, WatchedTurns, run
from tests.unit import test_dra_manager as unit

Anything = Any  # arguments that the mutation passes on to the real function


breaks = Mutations()
"""Mutations that break a law of the world, each with the law and a scenario in which the law is broken."""

fails = Mutations()
"""Mutations that make a test fail, each with the test."""


# --- what is saved, and when ------------------------------------------------------------------------------------------


def _not_saving(patch: Patch, what_is_not: str) -> None:
    save = SavedClaims.save

    def saving(self: SavedClaims, run_: Anything, what: str, change: Anything) -> Anything:
        return self.note(run_, change) if what == what_is_not else save(self, run_, what, change)

    patch.setattr(SavedClaims, "save", saving)


@breaks("M2 entered before called", "one pod")
def drivers_are_called_before_the_pod_is_saved(patch: Patch) -> None:
    _not_saving(patch, "cache")


@breaks("M10 the file is the cache", "one pod")
def answers_are_not_saved(patch: Patch) -> None:
    """kubernetes#140471: a kubelet saves answers only with the next write."""
    _not_saving(patch, "state")


@breaks("M10 the file is the cache", "one pod")
def what_cannot_be_saved_is_kept_in_memory(patch: Patch) -> None:
    save = SavedClaims.save

    def saving(self: SavedClaims, run_: Anything, what: str, change: Anything) -> Anything:
        store = self._saved._store  # noqa: SLF001 - the mutated part is private

        class Forgiving:
            def save(self, blob: bytes) -> None:
                try:
                    store.save(blob)
                except StoreError:
                    return

        self._saved._store = Forgiving()  # type: ignore[assignment]  # noqa: SLF001 - only `save` is called
        try:
            return save(self, run_, what, change)
        finally:
            self._saved._store = store  # noqa: SLF001 - as above

    patch.setattr(SavedClaims, "save", saving)


@breaks("M8 a failed check changes nothing", "two pods that share a claim")
def pods_are_entered_before_all_claims_are_checked(patch: Patch) -> None:
    checked = Preparation._checked  # noqa: SLF001 - the removed part is private

    def entering(self: Preparation, pod: Pod) -> Anything:
        saved, source = self._saved, self._source
        for entry in pod.claims:
            claim = source.get(claim_key(pod, entry.name))
            saved.save(saved.run(), "cache", lambda cache, claim=claim: preparing.enter(cache, pod.uid, [claim]))  # type: ignore[misc]  # mypy does not see the default
        return checked(self, pod)

    patch.setattr(Preparation, "_checked", entering)


# --- preparing --------------------------------------------------------------------------------------------------------


@breaks("each device once", "a restart between")
def answers_are_appended(patch: Patch) -> None:
    """A kubelet does this: kubernetes#140471 and #141335."""
    store_answer = preparing.store_answer

    def appending(cache: ClaimCache, ask: AskDriver, answer: Anything) -> Changed:
        changed = store_answer(cache, ask, answer)
        claims = [
            evolve(
                claim,
                drivers={
                    **claim.drivers,
                    ask.driver: (cache.claims[claim.key].drivers[ask.driver] or ()) + (claim.drivers[ask.driver] or ()),
                },
            )
            for claim in changed.cache.present(ask.keys)
        ]
        return evolve(changed, cache=changed.cache.put(*claims))

    patch.setattr(preparation, "store_answer", appending)


@breaks("each device once", "one pod")
def answers_are_appended_within_one_run(patch: Patch) -> None:
    """Fixed in 1.37 by kubernetes#140274: a pod with two drivers is prepared again after one of them has failed."""
    answers_are_appended(patch)


@breaks("has two calls at once", "two pods that share a claim")
def nobody_waits_for_a_turn(patch: Patch) -> None:
    """As in a kubelet, two pods that share a claim and start at the same time both call the driver."""

    def at_once(_self: Anything, _keys: Anything, call: Anything, *_: Anything) -> Turn[Any]:
        return Turn((), call)

    patch.setattr(WatchedTurns, "begin", at_once)


@breaks("M6 calls only with cause", "two pods that share a claim")
def after_waiting_a_driver_is_asked_again(patch: Patch) -> None:
    patch.setattr(preparation, "begin_to_ask", lambda cache, ask: Changed(cache, ask=ask))


@breaks("which a.example.com has not prepared", "a release that is tried again")
def a_claim_that_may_be_released_is_used(patch: Patch) -> None:
    mark = releasing.mark_uncertain
    patch.setattr(release, "mark_uncertain", lambda cache, pod, ask: evolve(mark(cache, pod, ask), cache=cache))


@breaks("M5 the UID of an entry never changes", "a claim that is replaced")
def a_new_claim_takes_the_place_of_an_old_one_of_its_name(patch: Patch) -> None:
    enter = preparing.enter

    def entering(cache: ClaimCache, pod: PodUid, claims: Iterable[ResourceClaim]) -> Changed:
        listed = tuple(claims)
        replaced = [claim.key for claim in listed if cache.claims.get(claim.key, claim).uid != claim.uid]
        return enter(cache.without(frozenset(replaced)), pod, listed)

    patch.setattr(preparation, "enter", entering)


@breaks("M7 no call without allocation", "one pod")
def a_driver_is_asked_for_all_claims_of_the_pod(patch: Patch) -> None:
    advance = preparing.advance

    def asking_for_all(cache: ClaimCache, keys: Sequence[ClaimKey]) -> Changed:
        changed = advance(cache, keys)
        everything = tuple(claim.ref for claim in cache.present(keys))
        return evolve(changed, ask=changed.ask and evolve(changed.ask, claims=everything))

    patch.setattr(preparation, "advance", asking_for_all)
    patch.setattr(preparation, "begin_to_ask", lambda cache, ask: Changed(cache, ask=ask))


@breaks("M9 the ids of ", "one pod")
def a_container_gets_the_devices_of_one_driver(patch: Patch) -> None:
    claim_devices = devices.claim_devices

    def of_the_first(claim: ClaimInfo) -> tuple[tuple[DriverName, PreparedDevice], ...]:
        return tuple(one for one in claim_devices(claim) if one[0] == min(claim.drivers))

    patch.setattr(devices, "claim_devices", of_the_first)


@breaks("M11 nothing is prepared after a restart", "a restart between")
def what_was_prepared_before_a_restart_counts_after_it(patch: Patch) -> None:
    read = SavedClaims._read  # noqa: SLF001 - the mutated part is private

    def reading(self: SavedClaims, run_: Anything) -> Anything:
        cache, restored = read(self, run_)
        prepared = (evolve(claim, phase=ClaimPhase.PREPARED) for claim in cache.claims.values())
        return ClaimCache.of(prepared), restored

    patch.setattr(SavedClaims, "_read", reading)


@breaks("M17 no lock over calls", "one pod")
def the_claims_are_locked_while_a_driver_is_called(patch: Patch) -> None:
    ask = MemoryDriverTransport.prepare
    managers: list[SavedClaims] = []
    start = SavedClaims.begin

    def starting(self: SavedClaims, run_: Anything) -> Anything:
        managers[:] = [self]
        return start(self, run_)

    def asking(self: MemoryDriverTransport, instance: Anything, claims: Anything) -> Anything:
        with managers[0]._saved._lock:  # noqa: SLF001 - the mutated part is private
            return ask(self, instance, claims)

    patch.setattr(SavedClaims, "begin", starting)
    patch.setattr(MemoryDriverTransport, "prepare", asking)


# --- releasing --------------------------------------------------------------------------------------------------------


@breaks("is released while", "a claim that is replaced")
def any_pod_releases_a_claim_that_one_pod_uses(patch: Patch) -> None:
    """A kubelet does this: kubernetes#140212."""
    leave = releasing.leave

    def leaving(cache: ClaimCache, pod: PodUid | None, keys: Sequence[ClaimKey]) -> Leaving:
        found = leave(cache, pod, keys)
        alone = tuple(claim.key for claim in cache.present(keys) if len(claim.pods) == 1)
        for claim in cache.present(alone):
            found = evolve(found, cache=found.cache.put(evolve(claim, pods=frozenset({pod or PodUid("")}))))
        return evolve(found, last=tuple(dict.fromkeys((*found.last, *alone))))

    patch.setattr(release, "leave", leaving)
    patch.setattr(ClaimCache, "of_pod", lambda cache, _pod: tuple(cache.claims))


@breaks("M1 prepared and then without devices", "one pod")
def a_claim_is_forgotten_although_another_pod_has_entered(patch: Patch) -> None:
    """A kubelet does this: kubernetes#140527."""
    remove = releasing.remove

    def removing(cache: ClaimCache, pod: PodUid | None, keys: Collection[ClaimKey], released: Anything) -> Changed:
        return Changed(remove(cache, pod, keys, released).cache.without(frozenset(keys)))

    patch.setattr(release, "remove", removing)


@breaks("M6 calls only with cause", "one pod")
def drivers_release_a_claim_that_another_pod_has_entered(patch: Patch) -> None:
    def asking(cache: ClaimCache, pod: PodUid | None, ask: AskDriver) -> Uncertain:
        return evolve(releasing.mark_uncertain(cache, pod, ask), ask=ask)

    def next_of_all(
        cache: ClaimCache, _pod: Anything, keys: Iterable[ClaimKey], released: Mapping[Any, Any]
    ) -> Anything:
        for claim in cache.present(keys):
            for driver in sorted(
                set(claim.drivers) - (released[claim.key].drivers if claim.key in released else frozenset())
            ):
                return AskDriver(driver, (claim.ref,))
        return None

    patch.setattr(release, "mark_uncertain", asking)
    patch.setattr(release, "next_to_release", next_of_all)


@breaks("M3 forgotten after called", "one pod")
def claims_are_forgotten_without_asking_all_drivers(patch: Patch) -> None:
    next_to_release = releasing.next_to_release

    def first_only(cache: ClaimCache, pod: Anything, keys: Sequence[ClaimKey], released: Mapping[Any, Any]) -> Anything:
        return None if released else next_to_release(cache, pod, keys, released)

    def removing(cache: ClaimCache, _pod: Anything, keys: Collection[ClaimKey], _released: Anything) -> Changed:
        return Changed(cache.without(frozenset(keys)))

    patch.setattr(release, "next_to_release", first_only)
    patch.setattr(release, "remove", removing)


@breaks("M4 every entry is reachable", "one pod")
def a_released_claim_stays_without_pods(patch: Patch) -> None:
    remove = releasing.remove

    def emptying(cache: ClaimCache, pod: PodUid | None, keys: Collection[ClaimKey], released: Anything) -> Changed:
        after = remove(cache, pod, keys, released).cache
        gone = [evolve(claim, pods=frozenset()) for claim in cache.present(keys) if claim.key not in after.claims]
        return Changed(after.put(*gone))

    patch.setattr(release, "remove", emptying)


@breaks("M16 no claim is left", "pods that vanish")
def pods_that_are_gone_are_not_looked_for(patch: Patch) -> None:
    patch.setattr("devicecore.dra_manager.manager.DraManager.reconcile", lambda _self: {})


@breaks("M14 exactly one sample per call", "one pod")
def failures_are_counted_as_successes(patch: Patch) -> None:
    """Kubelets before 1.36 do this."""
    measure = "devicecore.adapters.memory_dra.MemoryDraMetrics.dra_operation"
    patch.setattr(measure, lambda self, name, seconds, *, failed: self.operations.append((name, seconds, not failed)))


# --- finding them -------------------------------------------------------------------------------------------------


def plays(scenario: str) -> Iterator[Callable[[], object]]:
    """Yield runs of a scenario: one without faults, one for each fault, and one for each action alongside each call."""
    actions = SCENARIOS[scenario]
    yield lambda: run(actions, {})
    found = list(places(actions))
    for number, call, port in found:
        for kind in FAULTS[port]:
            fault = Fault(call, kind)
            yield lambda number=number, fault=fault: run(actions, {number: [fault]})  # type: ignore[misc]  # mypy does not see the defaults
        for action in BESIDE if port != "disk" else ():
            if action[1:] != actions[number][1:]:
                fault = Fault(call, "beside", action)
                yield lambda number=number, fault=fault: run(actions, {number: [fault]})  # type: ignore[misc]  # as above


@pytest.mark.parametrize(("take_out", "law", "scenario"), breaks, ids=breaks.names)
def test_a_protection_that_is_taken_out_is_missed(
    take_out: Callable[[Patch], None], law: str, scenario: str, monkeypatch: Patch
) -> None:
    todo = plays(scenario)
    take_out(monkeypatch)
    noticed: list[str] = []
    try:
        for play in todo:
            try:
                play()
            except AssertionError as broken:
                noticed.append(str(broken))
                if law in noticed[-1]:
                    return
    except AssertionError as broken:  # raised by `places`, which plays the scenario without faults
        noticed.append(str(broken))
    assert any(law in problem for problem in noticed), noticed[:3]


# --- drivers and their health -----------------------------------------------------------------------------------------
# Time does not advance in the scenarios, so named tests check these.


@fails(unit.test_slices_are_deleted_30_seconds_after_the_last_connection)
def no_connection_is_seen(patch: Patch) -> None:
    """M12: the slices of a connected driver are deleted."""
    patch.setattr(DriverRegistry, "is_connected", lambda _self, _driver: False)


@fails(unit.test_slices_are_deleted_30_seconds_after_the_last_connection)
def slices_are_deleted_at_once(patch: Patch) -> None:
    """M12: a driver that restarts loses its slices."""
    patch.setattr(drivers, "WIPE_DELAY", 0)


@fails(unit.test_slices_of_a_driver_that_is_back_within_30_seconds_stay)
def a_deletion_is_not_called_off(patch: Patch) -> None:
    """M12: a driver that returns within 30 seconds loses its slices."""
    with_wipe = drivers._with_wipe  # noqa: SLF001 - the mutated part is private

    def keeping(registry: DriverRegistry, driver: DriverName, now: float) -> DriverRegistry:
        after = with_wipe(registry, driver, now)
        return evolve(after, wipes={**after.wipes, **registry.wipes})

    patch.setattr(drivers, "_with_wipe", keeping)


@fails(unit.test_a_driver_that_goes_step_by_step_puts_no_deletion_off)
def each_event_puts_a_deletion_off(patch: Patch) -> None:
    """M12: the slices of a driver that disconnects step by step stay for more than 30 seconds."""
    with_wipe = drivers._with_wipe  # noqa: SLF001 - the mutated part is private
    patch.setattr(drivers, "_with_wipe", lambda registry, driver, now: with_wipe(registry.wiped(driver), driver, now))


@fails(unit.test_slices_of_all_drivers_are_deleted_at_the_start)
def nothing_is_deleted_at_the_start(patch: Patch) -> None:
    """M12: the slices of drivers that ended while the kubelet was down stay."""
    begin = DriverList.begin

    def beginning(self: DriverList, run_: Anything) -> None:
        begin(self, run_)
        self._state.value = DriverRegistry()

    patch.setattr(DriverList, "begin", beginning)


@fails(unit.test_a_deletion_of_slices_that_fails_is_tried_again_forever)
def a_failed_deletion_is_not_tried_again(patch: Patch) -> None:
    """M12: a kubelet gives up after nine tries."""
    patch.setattr(Wipe, "after_failure", lambda self, _now: evolve(self, due=float("inf")))


@fails(unit.test_a_call_goes_to_the_newest_connected_instance)
def the_oldest_connected_instance_is_called(patch: Patch) -> None:
    """The mutation breaks law M13."""

    def choosing(self: DriverRegistry, driver: DriverName) -> InstanceId:
        known = self.instances[driver]
        return next((instance for instance in known if instance in self.connected), known[-1])

    patch.setattr(DriverRegistry, "choose", choosing)


@fails(unit.test_a_call_goes_to_the_newest_connected_instance)
def the_newest_instance_is_called_connected_or_not(patch: Patch) -> None:
    """The mutation breaks law M13."""
    patch.setattr(DriverRegistry, "choose", lambda self, driver: self.instances[driver][-1])


@fails(unit.test_a_call_goes_to_the_newest_connected_instance)
def a_driver_without_a_connection_counts_as_not_registered(patch: Patch) -> None:
    """M13: the error says that the driver does not exist, not that it cannot be reached."""
    choose = DriverRegistry.choose

    def choosing(self: DriverRegistry, driver: DriverName) -> InstanceId:
        if not self.is_connected(driver):
            raise DriverNotRegisteredError(driver)
        return choose(self, driver)

    patch.setattr(DriverRegistry, "choose", choosing)


@fails(unit.test_the_health_of_claimed_devices_is_reported)
def a_report_does_not_count_at_its_limit(patch: Patch) -> None:
    """M15: a report has expired only when it is older than the limit."""
    patch.setattr(DeviceHealth, "is_expired", lambda self, now: now - self.updated >= self.limit)


@fails(unit.test_health_survives_a_restart_and_a_bad_file_means_no_health)
def each_report_has_the_default_limit(patch: Patch) -> None:
    """The mutation breaks law M15."""
    patch.setattr(DeviceHealth, "is_expired", lambda self, now: now - self.updated > DEFAULT_LIMIT)


@fails(unit.test_health_stays_while_another_instance_reports)
def health_stays_when_the_last_stream_ends(patch: Patch) -> None:
    """The mutation breaks law M15."""
    patch.setattr(HealthRecord, "clear", lambda _self, _run, _driver: None)


@fails(unit.test_health_stays_while_another_instance_reports)
def health_goes_when_any_stream_ends(patch: Patch) -> None:
    """The mutation breaks law M15, as in kubernetes#140818."""

    def stopped(_before: Anything, _after: Anything, event: DriverEvent) -> bool:
        return isinstance(event, HealthEnded)

    patch.setattr("devicecore.dra_manager.manager.has_stopped_reporting", stopped)


@fails(unit.test_health_survives_a_restart_and_a_bad_file_means_no_health)
def health_is_not_saved(patch: Patch) -> None:
    """The mutation breaks law M15."""
    patch.setattr(HealthRecord, "_save", lambda _self: None)


@fails(unit.test_the_health_of_claimed_devices_is_reported)
@fails(unit.test_a_report_that_changes_nothing_is_not_saved)
def each_report_is_a_change(patch: Patch) -> None:
    """M15: the file is written and observers are notified even if the health of no device has changed."""
    patch.setattr(DeviceHealth, "differs_from", lambda _self, _other: True)


@pytest.mark.parametrize(("take_out", "test"), fails, ids=fails.names)
def test_the_named_test_fails_without_the_protection(
    take_out: Callable[[Patch], None], test: Callable[[unit.Node], None], monkeypatch: Patch
) -> None:
    test(unit.Node())
    take_out(monkeypatch)
    with pytest.raises((AssertionError, DeviceCoreError)):
        test(unit.Node())
