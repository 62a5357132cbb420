"""The laws of a manager: each function is a law, and yields a sentence for each violation.

Law: a law compares the manager's state and the file with what `World` recorded, and changes neither.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

from devicecore.domain.admission import Admitted, NotReady, Refused, Verdict
from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, decode, entry_of, restore
from devicecore.domain.errors import CheckpointError, DeviceHeldError, NoHealthyDevicesError, UnregisteredDeviceError
from devicecore.domain.inventory import Resource
from devicecore.domain.ledger import Holding, Ledger
from devicecore.domain.model import Container, DeviceId, Health, Pod, PodUid, ResourceName, is_extended_resource
from devicecore.domain.topology import Policy
from devicecore.testing.faults import Call
from tests.simulation.world import Attempt, Holdings, World, holdings

Violations = Iterator[str]


# --- at any time, also during calls to plugins ------------------------------------------------------------------------


def no_device_has_two_owners(world: World) -> Violations:
    """A device is reserved by or allocated to at most one pod."""
    owners: dict[tuple[ResourceName, DeviceId], PodUid] = {}
    for holding in _all_holdings(world.node.ledger):
        for device in holding.devices:
            owner = owners.setdefault((holding.resource, device), holding.key.pod)
            if owner != holding.key.pod:
                yield f"{device} belongs to {owner} and to {holding.key.pod}"


def free_reserved_and_allocated_devices_are_all_devices(world: World) -> Violations:
    """Each device that is known or held is either free or held, and the devices in use are those that are held."""
    ledger = world.node.ledger
    for name in {**world.node.inventory.resources, **dict.fromkeys(ledger.resources)}:
        known = _known(world.node.inventory.resources.get(name))
        held = {device for holding in _all_holdings(ledger) if holding.resource == name for device in holding.devices}
        in_use = frozenset(ledger.in_use(name))
        if in_use != held or len(known - in_use) + len(held) != len(known | held):
            yield f"{_text(held)} of {name} are held, but in_use contains {_text(in_use)}"


def containers_of_a_pod_share_only_reusable_devices(world: World) -> Violations:
    """Later containers can reuse the devices of an init container that ends. No other devices are shared."""
    for uid, pod in world.specs.items():
        order = {container.name: place for place, container in enumerate(pod.in_start_order)}
        mine = [holding for holding in _all_holdings(world.node.ledger) if holding.key.pod == uid]
        for one, other in combinations(sorted(mine, key=lambda holding: order[holding.key.container]), 2):
            both = frozenset(one.devices) & frozenset(other.devices) if one.resource == other.resource else ()
            if both and not _ends(pod, pod.container(one.key.container)):
                yield f"{_text(both)} belong to {one.key.container} and {other.key.container} of {uid}"


def healthy_devices_are_known(world: World) -> Violations:
    """Every healthy device is known, and 0 <= allocatable <= capacity."""
    for name, resource in world.node.inventory.resources.items():
        healthy = frozenset(resource.report.healthy) if resource.report else frozenset()
        if not healthy <= _known(resource):
            yield f"{_text(healthy)} of {name} are healthy, but only {_text(_known(resource))} are known"
    status = world.node.inventory.status()
    for name, count in status.allocatable.items():
        if not 0 <= count <= status.capacity.get(name, 0):
            yield f"{count} of {status.capacity.get(name, 0)} devices of {name} are allocatable"


def no_reservation_outlives_its_admission(world: World) -> Violations:
    """Only a pod in admission has reservations."""
    for reservation in world.node.ledger.reservations:
        if reservation.key.pod not in world.admitting:
            yield f"{reservation.key.pod} has reserved {_text(reservation.devices)}, but its admission has ended"


def an_answered_admission_is_never_lost(world: World) -> Violations:
    """An active pod holds the devices of its last answer, even after a crash, a failure or the loss of a plugin."""
    allocations = world.node.ledger.allocations
    for pod, answered in world.answers.items():
        if (held := holdings(allocations.get(pod, ()))) != answered:
            yield f"the answer for {pod} was {_show(answered)}, but it holds {_show(held)}"


def the_manager_takes_over_what_plugins_report(world: World) -> Violations:
    """The healthy devices are those that the latest instance listed as healthy; without an instance, there are none."""
    for name, resource in world.node.inventory.resources.items():
        listed = world.plugin_record.latest_list(name)
        said = {device.id for device in listed or () if device.health is Health.HEALTHY}
        healthy = frozenset(resource.report.healthy) if resource.report else frozenset()
        if listed is None and world.plugin_record.live(name):
            continue  # the latest instance has sent no list yet, so the previous list is still valid
        if healthy != said:
            yield f"the plugins of {name} listed {_text(said)} as healthy, but the manager has {_text(healthy)}"


def sanitizing_never_lowers_allocatable(world: World) -> Violations:
    """Sanitizing a node's allocatable lowers no number, and each result is at least the number of devices in use."""
    allocatable = dict(world.node.inventory.status().allocatable)
    ledger = world.node.ledger
    for pod in list(ledger.allocations)[:1]:
        sanitized = world.manager.sanitize_allocatable(pod, allocatable)
        for name in {**allocatable, **dict.fromkeys(ledger.resources, 0)}:
            least = max(allocatable.get(name, 0), len(ledger.in_use(name)))
            if sanitized.get(name, 0) < least:
                yield f"{name} is sanitized to {sanitized.get(name, 0)}, which is less than {least}"


def no_port_is_called_while_the_state_is_locked(world: World) -> Violations:
    """The manager does not call the store, the sink or a plugin while it holds the lock of its state."""
    for method in world.locked_calls:
        yield f"{method} was called while the state was locked"


def nothing_is_published_twice(world: World) -> Violations:
    """The sink is called only if the status has changed."""
    if world.sink.repeated is not None:
        yield f"{world.sink.repeated} was published twice"


AT_ANY_TIME: tuple[Callable[[World], Violations], ...] = (
    no_port_is_called_while_the_state_is_locked,
    nothing_is_published_twice,
    no_device_has_two_owners,
    free_reserved_and_allocated_devices_are_all_devices,
    containers_of_a_pod_share_only_reusable_devices,
    healthy_devices_are_known,
    no_reservation_outlives_its_admission,
    an_answered_admission_is_never_lost,
    the_manager_takes_over_what_plugins_report,
    sanitizing_never_lowers_allocatable,
)


# --- when no call is in progress --------------------------------------------------------------------------------------


def the_file_restores_to_the_ledger_in_memory(world: World) -> Violations:
    """If the last save succeeded, a manager that restores the file gets the same ledger."""
    if not world.disk.up_to_date or not world.is_new_pair(world.disk.content.blob, world.node):
        return
    data = _on_disk(world.disk.content.blob)
    restored = restore(data, world.clock())
    if list(restored.ledger) != list(world.node.ledger):
        yield f"the file has {_show_ledger(restored.ledger)}, but memory has {_show_ledger(world.node.ledger)}"
    reported = {name for name, resource in world.node.inventory.resources.items() if resource.report is not None}
    if set(data.registered_devices or ()) != reported:
        yield f"the file names {_text(data.registered_devices or ())}, but {_text(reported)} are known"


def the_sink_has_the_current_status(world: World) -> Violations:
    """If the sink accepted the last status, that status is still true."""
    status = world.node.inventory.status()
    accepted = world.sink.accepted
    if accepted is not None and (accepted.capacity, accepted.allocatable) != (status.capacity, status.allocatable):
        yield f"the sink has {accepted}, but the status is {status}"


AT_REST: tuple[Callable[[World], Violations], ...] = (
    the_file_restores_to_the_ledger_in_memory,
    the_sink_has_the_current_status,
)


# --- after a start ----------------------------------------------------------------------------------------------------


def a_good_file_is_used_and_a_bad_one_is_kept(world: World) -> Violations:
    """A file that a correct store can contain is read completely; any other file is set aside before the first save."""
    restored, content = world.manager.restored, world.disk.content
    if world.found_honest and (isinstance(restored.problem, CheckpointError) or restored.skipped):
        yield f"a valid file was not used: {restored.problem} {restored.skipped}"
    kept = world.found is None or content.aside[-1:] == [world.found]
    if restored.problem and not (kept and content.blob is None):
        yield f"an invalid file was not set aside: {restored.problem}"


AFTER_A_START: tuple[Callable[[World], Violations], ...] = (a_good_file_is_used_and_a_bad_one_is_kept,)


# --- when a plugin is asked -------------------------------------------------------------------------------------------


def the_latest_instance_is_asked_for_healthy_devices(world: World, attempt: Attempt, call: Call) -> Violations:
    """Allocate goes to the instance that registered last, for devices that are healthy or reused within the pod."""
    assert call.plugin is not None
    name, devices = call.plugin.resource, frozenset(call.arguments[0])
    latest = world.plugin_record.live(name)[-1:]
    if latest and latest != [call.plugin]:
        yield f"{call.plugin} was asked, but {latest[0]} registered later"
    of_pod = [holding for holding in _all_holdings(world.node.ledger) if holding.key.pod == attempt.pod.uid]
    mine = [frozenset(holding.devices) for holding in of_pod if holding.resource == name]
    if mine[-1:] != [devices]:
        yield f"{_text(devices)} of {name} were requested, but {attempt.pod.uid} has reserved {mine[-1:]}"
    own = frozenset[DeviceId]().union(*mine[:-1])
    report = world.node.inventory.current_report(name)
    if not devices <= own | frozenset(report.healthy if report else ()):
        yield f"{_text(devices)} of {name} were requested, but some are neither healthy nor held by {attempt.pod.uid}"


WHEN_A_PLUGIN_IS_ASKED: tuple[Callable[[World, Attempt, Call], Violations], ...] = (
    the_latest_instance_is_asked_for_healthy_devices,
)


# --- when a pod is answered -------------------------------------------------------------------------------------------


def a_failed_admission_changed_nothing(world: World, attempt: Attempt, verdict: Verdict) -> Violations:
    """A refused pod holds what it held before, both in memory and in the file."""
    pod = attempt.pod.uid
    if isinstance(verdict, Admitted):
        return
    before = attempt.before.ledger.of_pod(pod)
    if not attempt.ended and world.node.ledger.of_pod(pod) != before:
        yield f"{pod} was refused, but holds {_show(holdings(world.node.ledger.of_pod(pod)))}"
    if attempt.up_to_date and world.disk.up_to_date and not attempt.ended:
        on_disk, was_on_disk = _entries(world.disk.content.blob, pod), _entries(attempt.blob, pod)
        # `was_on_disk` differs from `before` if an admission in progress has released the pod but not saved it yet.
        if on_disk not in (was_on_disk, [entry_of(allocation) for allocation in before]):
            yield f"{pod} was refused, but the file contains {on_disk}"


def an_undisturbed_failure_changes_nothing(world: World, attempt: Attempt, verdict: Verdict) -> Violations:
    """If nothing else happened, the state and the file are unchanged, and the sink was not called."""
    if isinstance(verdict, Admitted) or _disturbed(world, attempt):
        return
    listed = world.pods.active | {attempt.pod.uid}
    ended = [pod for pod in attempt.before.ledger.allocations if pod not in listed]
    expected = attempt.before.ledger.evict(ended) if attempt.ready else attempt.before.ledger
    if world.node.inventory != attempt.before.inventory:
        yield f"expected the inventory {attempt.before.inventory}, got {world.node.inventory}"
    if world.node.ledger != expected:
        yield f"expected the ledger {_show_ledger(expected)}, got {_show_ledger(world.node.ledger)}"
    comparable = expected is attempt.before.ledger and attempt.up_to_date and world.disk.up_to_date
    if comparable and world.disk.content.blob != attempt.blob:
        yield "the file was changed"
    if world.sink.count != attempt.published:
        yield "a status was published"


def an_admitted_pod_has_what_it_asks_for(world: World, attempt: Attempt, verdict: Verdict) -> Violations:
    """Each request is satisfied or, if the manager does not know the resource, named as unhandled."""
    if not isinstance(verdict, Admitted) or attempt.ended:
        return
    has, unhandled = holdings(verdict.allocations), set(verdict.unhandled)
    listed = world.pods.active | world.admitting | {attempt.pod.uid}
    held = {holding.resource for holding in _all_holdings(attempt.before.ledger) if holding.key.pod in listed}
    on_disk = _on_disk(attempt.blob).registered_devices if attempt.up_to_date else ()
    known = held | attempt.before.inventory.resources.keys() | set(on_disk or ())
    for container in attempt.containers:
        for name, size in _asked(attempt.pod, container).items():
            given = len(has.get((container.name, name), ()))
            if (container.name, name) in unhandled:
                if size and name in known and not given:
                    yield f"{container.name} of {attempt.pod.uid} got `unhandled` for {name}, which the manager knows"
                if given:
                    yield f"{container.name} of {attempt.pod.uid} has {name}, and got `unhandled` for it"
            elif given != size and not (_ran_before(world, attempt.pod, container) and not attempt.ready):
                yield f"{container.name} of {attempt.pod.uid} requests {size} of {name}, but has {given}"


def an_admitted_pod_keeps_what_it_had(world: World, attempt: Attempt, verdict: Verdict) -> Violations:
    """A pod in admission keeps its devices even if no source lists it as active."""
    del world
    had = attempt.before.ledger.of_pod(attempt.pod.uid)
    if isinstance(verdict, Admitted) and not attempt.ended and verdict.allocations[: len(had)] != had:
        yield f"{attempt.pod.uid} had {_show(holdings(had))}, but now has {_show(holdings(verdict.allocations))}"


def a_late_answer_is_never_taken(world: World, attempt: Attempt, verdict: Verdict) -> Violations:
    """No pod gets an answer that arrived after the deadline of its admission."""
    del world
    if isinstance(verdict, Admitted) and attempt.called and attempt.answered_at >= attempt.deadline:
        yield f"{attempt.pod.uid} got an answer that was {attempt.answered_at - attempt.deadline:g} seconds late"


def a_pod_waits_only_for_a_plugin_that_has_not_reported(world: World, attempt: Attempt, verdict: Verdict) -> Violations:
    """The verdict is `NotReady` if no plugin has listed the resource since the start, and `Refused` otherwise."""
    if isinstance(verdict, Admitted) or _disturbed(world, attempt):
        return
    if isinstance(verdict.error, NoHealthyDevicesError | UnregisteredDeviceError):
        name = ResourceName(verdict.error.resource)
        waits = name in world.node.inventory.resources and name not in world.plugin_record.reported
        if isinstance(verdict, NotReady) != waits:
            yield f"{attempt.pod.uid} got {type(verdict).__name__} because of {name}: {verdict}"


def a_running_pod_survives_a_restart(world: World, attempt: Attempt, verdict: Verdict) -> Violations:
    """Until all pods are known again, a running container is admitted as is, and no plugin is called for it."""
    wants = [container for container in attempt.containers if _asked(attempt.pod, container)]
    if world.pods.ready or not all(_ran_before(world, attempt.pod, container) for container in wants):
        return
    if isinstance(verdict, Refused | NotReady) and world.topology.policy is Policy.NONE:
        yield f"{attempt.pod.uid} runs, but was not admitted: {verdict}"
    if attempt.called:
        yield f"{attempt.pod.uid} runs, but a plugin was asked"


def the_ledger_is_never_asked_for_devices_in_use(world: World, attempt: Attempt, verdict: Verdict) -> Violations:
    """The ledger would raise `DeviceHeldError`, but the manager never relies on that check."""
    del world
    if isinstance(verdict, Refused) and isinstance(verdict.error, DeviceHeldError):
        yield f"{attempt.pod.uid}: {verdict}"


WHEN_A_POD_IS_ANSWERED: tuple[Callable[[World, Attempt, Verdict], Violations], ...] = (
    a_failed_admission_changed_nothing,
    an_undisturbed_failure_changes_nothing,
    an_admitted_pod_has_what_it_asks_for,
    an_admitted_pod_keeps_what_it_had,
    a_late_answer_is_never_taken,
    a_pod_waits_only_for_a_plugin_that_has_not_reported,
    a_running_pod_survives_a_restart,
    the_ledger_is_never_asked_for_devices_in_use,
)


WHEN_A_CONTAINER_HAS_STARTED = (a_failed_admission_changed_nothing,)


# --- after garbage collection -----------------------------------------------------------------------------------------


def a_pod_that_has_ended_holds_nothing(world: World) -> Violations:
    """Once all pods are known, only active pods and pods in admission hold devices."""
    if world.pods.ready:
        for pod in world.node.ledger.allocations.keys() - world.pods.active - world.admitting:
            yield f"{pod} is not active, but holds {_show(holdings(world.node.ledger.allocations[pod]))}"


AFTER_GARBAGE_COLLECTION: tuple[Callable[[World], Violations], ...] = (a_pod_that_has_ended_holds_nothing,)


# --- shared by the laws ----------------------------------------------------------------------------------------------


def _all_holdings(ledger: Ledger) -> Iterator[Holding]:
    yield from ledger
    yield from ledger.reservations


def _known(resource: Resource | None) -> frozenset[DeviceId]:
    return frozenset(resource.report.devices) if resource and resource.report else frozenset()


def _asked(pod: Pod, container: Container) -> dict[ResourceName, int]:
    """Return a container's requests for plugins' resources.

    A request for 0 counts, because it still requires the plugin.
    """
    return {
        ResourceName(name): size
        for name, size in container.limits.items()
        if is_extended_resource(name) and (container.name, name) not in pod.claimed
    }


def _on_disk(blob: bytes | None) -> CheckpointData:
    return CheckpointData(None, {}) if blob is None else decode(blob).verified()


def _entries(blob: bytes | None, pod: PodUid) -> list[PodDevicesEntry]:
    return [entry for entry in _on_disk(blob).entries or () if entry.pod_uid == pod]


def _ends(pod: Pod, container: Container) -> bool:
    """Return whether the container is an init container that ends before the next one starts."""
    return container in pod.init_containers and not container.restartable


def _ran_before(world: World, pod: Pod, container: Container) -> bool:
    """Return whether a container ran when the manager started, or is an init container that had ended before."""
    later = pod.in_start_order[pod.in_start_order.index(container) + 1 :]
    has_ended = _ends(pod, container) and any(pod.key(other) in world.was_running for other in later)
    return has_ended or pod.key(container) in world.was_running


def _disturbed(world: World, attempt: Attempt) -> bool:
    """Return whether something else happened during the admission, or another admission is in progress."""
    return world.actions_done != attempt.actions_done or bool(world.in_flight)


def _text(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids)) or "none"


def _show(held: Holdings) -> str:
    return "; ".join(f"{container}: {_text(devices)}" for (container, _), devices in sorted(held.items())) or "nothing"


def _show_ledger(ledger: Ledger) -> str:
    return " | ".join(f"{pod} {_show(holdings(of_pod))}" for pod, of_pod in ledger.allocations.items()) or "nothing"
