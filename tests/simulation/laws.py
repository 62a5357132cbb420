"""What must hold of a manager, whatever happens. One law, one function, which yields complaints.

Laws ask the manager for its `node`, the disk for its content, and judge them by what `World` has written down.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

from devicecore.domain.admission import Admitted, NotReady, Refused, Verdict
from devicecore.domain.checkpoint import CheckpointData, decode, entry_of, restore
from devicecore.domain.errors import (
    CheckpointError,
    DeviceHeldError,
    NoHealthyDevicesError,
    UnregisteredDeviceError,
)
from devicecore.domain.inventory import Resource
from devicecore.domain.ledger import Holding, Ledger
from devicecore.domain.model import Container, DeviceId, Health, Pod, PodUid, ResourceName, is_extended_resource
from devicecore.domain.topology import Policy
from devicecore.testing.faults import Call
from tests.simulation.world import Attempt, Holdings, World, holdings

Complaints = Iterator[str]


# --- at any time, also while plugins are being asked ------------------------------------------------------------------


def no_device_has_two_owners(world: World) -> Complaints:
    """Reserved or allocated, a device belongs to one pod."""
    owners: dict[tuple[ResourceName, DeviceId], PodUid] = {}
    for holding in _all_holdings(world.node.ledger):
        for device in holding.devices:
            owner = owners.setdefault((holding.resource, device), holding.key.pod)
            if owner != holding.key.pod:
                yield f"{device} belongs to {owner} and to {holding.key.pod}"


def free_reserved_and_allocated_are_all_there_is(world: World) -> Complaints:
    """Each device that is known or held is either free or held, and what is held is in use."""
    ledger = world.node.ledger
    for name in {**world.node.inventory.resources, **dict.fromkeys(ledger.resources)}:
        known = _known(world.node.inventory.resources.get(name))
        held = {device for holding in _all_holdings(ledger) if holding.resource == name for device in holding.devices}
        in_use = frozenset(ledger.in_use(name))
        if in_use != held or len(known - in_use) + len(held) != len(known | held):
            yield f"of {name} {_text(held)} are held, and {_text(in_use)} are said to be in use"


def inside_a_pod_only_what_is_lent_is_shared(world: World) -> Complaints:
    """An init container that has ended shares its devices with those after it; a sidecar and an app container never."""
    for uid, pod in world.specs.items():
        order = {container.name: place for place, container in enumerate(pod.in_start_order)}
        mine = [holding for holding in _all_holdings(world.node.ledger) if holding.key.pod == uid]
        for one, other in combinations(sorted(mine, key=lambda holding: order[holding.key.container]), 2):
            both = frozenset(one.devices) & frozenset(other.devices) if one.resource == other.resource else ()
            if both and not _ends(pod, pod.container(one.key.container)):
                yield f"{_text(both)} belong to {one.key.container} and {other.key.container} of {uid}"


def free_is_healthy_and_healthy_is_known(world: World) -> Complaints:
    """Free <= healthy <= known, and 0 <= allocatable <= capacity."""
    for name, resource in world.node.inventory.resources.items():
        healthy = frozenset(resource.report.healthy) if resource.report else frozenset()
        if not healthy <= _known(resource):
            yield f"of {name} {_text(healthy)} are healthy, and only {_text(_known(resource))} are known"
    status = world.node.inventory.status()
    for name, count in status.allocatable.items():
        if not 0 <= count <= status.capacity.get(name, 0):
            yield f"{count} of {status.capacity.get(name, 0)} devices of {name} are allocatable"


def reservations_never_outlive_their_admission(world: World) -> Complaints:
    """Whoever has reserved something is being admitted."""
    for reservation in world.node.ledger.reservations:
        if reservation.key.pod not in world.admitting:
            yield f"{reservation.key.pod} has reserved {_text(reservation.devices)}, and its admission is over"


def an_answered_admission_is_never_lost(world: World) -> Complaints:
    """What an active pod was told that it has, it has: whoever crashes, fails, leaves or is collected meanwhile."""
    allocations = world.node.ledger.allocations
    for pod, answered in world.answers.items():
        if (held := holdings(allocations.get(pod, ()))) != answered:
            yield f"{pod} was told that it has {_show(answered)}, and has {_show(held)}"


def plugins_are_believed(world: World) -> Complaints:
    """What the latest instance listed is what there is, and nothing is healthy without an instance."""
    for name, resource in world.node.inventory.resources.items():
        listed = world.heard.latest_list(name)
        said = {device.id for device in listed or () if device.health is Health.HEALTHY}
        healthy = frozenset(resource.report.healthy) if resource.report else frozenset()
        if listed is None and world.heard.live(name):
            continue  # registered and not listed yet: until then, what there was before is believed
        if healthy != said:
            yield f"of {name} the plugins say that {_text(said)} are healthy, and the manager {_text(healthy)}"


def sanitize_never_lowers(world: World) -> Complaints:
    """Not a number of anybody's, and what is in use is allowed for."""
    allocatable = dict(world.node.inventory.status().allocatable)
    ledger = world.node.ledger
    for pod in list(ledger.allocations)[:1]:
        sanitized = world.manager.sanitize_allocatable(pod, allocatable)
        for name in {**allocatable, **dict.fromkeys(ledger.resources, 0)}:
            least = max(allocatable.get(name, 0), len(ledger.in_use(name)))
            if sanitized.get(name, 0) < least:
                yield f"{name} is sanitized to {sanitized.get(name, 0)}, which is less than {least}"


def no_port_is_called_while_the_state_is_locked(world: World) -> Complaints:
    """Not the store, not the sink, not a plugin."""
    for method in world.locked_at:
        yield f"{method} was called under the lock"


def nothing_is_published_twice(world: World) -> Complaints:
    """The sink is called only if something has changed."""
    if world.board.repeated is not None:
        yield f"{world.board.repeated} was published, and published again"


AT_ANY_TIME: tuple[Callable[[World], Complaints], ...] = (
    no_port_is_called_while_the_state_is_locked,
    nothing_is_published_twice,
    no_device_has_two_owners,
    free_reserved_and_allocated_are_all_there_is,
    inside_a_pod_only_what_is_lent_is_shared,
    free_is_healthy_and_healthy_is_known,
    reservations_never_outlive_their_admission,
    an_answered_admission_is_never_lost,
    plugins_are_believed,
    sanitize_never_lowers,
)


# --- when nothing is under way ----------------------------------------------------------------------------------------


def the_file_restores_to_the_ledger_in_memory(world: World) -> Complaints:
    """If the last save succeeded, a crash now changes nothing."""
    if not world.disk.up_to_date or not world.is_new_pair(world.disk.content.blob, world.node):
        return
    data = _on_disk(world.disk.content.blob)
    restored = restore(data, world.clock())
    if list(restored.ledger) != list(world.node.ledger):
        yield f"on disk is {_show_ledger(restored.ledger)}, in memory {_show_ledger(world.node.ledger)}"
    reported = {name for name, resource in world.node.inventory.resources.items() if resource.report is not None}
    if set(data.registered_devices or ()) != reported:
        yield f"the file names {_text(data.registered_devices or ())}, and {_text(reported)} are known"


def the_sink_shows_what_the_node_has(world: World) -> Complaints:
    """If the sink took what it was told last, that is how things are."""
    status = world.node.inventory.status()
    shows = world.board.shows
    if shows is not None and (shows.capacity, shows.allocatable) != (status.capacity, status.allocatable):
        yield f"shown is {shows}, true is {status}"


AT_REST: tuple[Callable[[World], Complaints], ...] = (
    the_file_restores_to_the_ledger_in_memory,
    the_sink_shows_what_the_node_has,
)


# --- after a start ----------------------------------------------------------------------------------------------------


def a_good_file_is_used_and_a_bad_one_is_kept(world: World) -> Complaints:
    """A file that the store promised is read whole; any other is set aside as it is, before anything is written."""
    restored, content = world.manager.restored, world.disk.content
    if world.found_honest and (isinstance(restored.problem, CheckpointError) or restored.skipped):
        yield f"a good file was not used: {restored.problem} {restored.skipped}"
    kept = world.found is None or content.aside[-1:] == [world.found]
    if restored.problem and not (kept and content.blob is None):
        yield f"a file that could not be used was not kept: {restored.problem}"


AFTER_A_START: tuple[Callable[[World], Complaints], ...] = (a_good_file_is_used_and_a_bad_one_is_kept,)


# --- when a plugin is asked -------------------------------------------------------------------------------------------


def the_latest_instance_is_asked_for_healthy_devices(world: World, attempt: Attempt, call: Call) -> Complaints:
    """Allocate goes to the instance that registered last, for devices that are healthy, or lent by the pod itself."""
    assert call.plugin is not None
    name, devices = call.plugin.resource, frozenset(call.arguments[0])
    latest = world.heard.live(name)[-1:]
    if latest and latest != [call.plugin]:
        yield f"{call.plugin} was asked, and {latest[0]} has registered since"
    of_pod = [holding for holding in _all_holdings(world.node.ledger) if holding.key.pod == attempt.pod.uid]
    mine = [frozenset(holding.devices) for holding in of_pod if holding.resource == name]
    if mine[-1:] != [devices]:
        yield f"{_text(devices)} of {name} are asked for, and {attempt.pod.uid} has reserved {mine[-1:]}"
    own = frozenset[DeviceId]().union(*mine[:-1])
    report = world.node.inventory.current_report(name)
    if not devices <= own | frozenset(report.healthy if report else ()):
        yield f"{_text(devices)} of {name} are asked for, which are neither all healthy nor {attempt.pod.uid}'s own"


WHEN_A_PLUGIN_IS_ASKED: tuple[Callable[[World, Attempt, Call], Complaints], ...] = (
    the_latest_instance_is_asked_for_healthy_devices,
)


# --- when a pod is answered -------------------------------------------------------------------------------------------


def a_failed_admission_changed_nothing(world: World, attempt: Attempt, verdict: Verdict) -> Complaints:
    """Ledger, file and published status are as they were, but for what others did meanwhile."""
    pod = attempt.pod.uid
    if isinstance(verdict, Admitted):
        return
    before = attempt.before.ledger.of_pod(pod)
    if not attempt.ended and world.node.ledger.of_pod(pod) != before:
        yield f"{pod} was refused, and holds {_show(holdings(world.node.ledger.of_pod(pod)))}"
    if attempt.up_to_date and world.disk.up_to_date and not attempt.ended:
        on_disk = [entry for entry in _on_disk(world.disk.content.blob).entries or () if entry.pod_uid == pod]
        if on_disk != [entry_of(allocation) for allocation in before]:
            yield f"{pod} was refused, and the file says that it has {on_disk}"


def an_undisturbed_failure_leaves_everything(world: World, attempt: Attempt, verdict: Verdict) -> Complaints:
    """If nobody else did anything, the node is the same value, the file the same bytes, and the sink heard nothing."""
    if isinstance(verdict, Admitted) or _disturbed(world, attempt):
        return
    listed = world.pods.active | {attempt.pod.uid}
    ended = [pod for pod in attempt.before.ledger.allocations if pod not in listed]
    swept = attempt.before.ledger.evict(ended) if attempt.ready else attempt.before.ledger
    if world.node.inventory != attempt.before.inventory:
        yield f"the inventory was {attempt.before.inventory} and is {world.node.inventory}"
    if world.node.ledger != swept:
        yield f"the ledger was {_show_ledger(swept)}, and is {_show_ledger(world.node.ledger)}"
    comparable = swept is attempt.before.ledger and attempt.up_to_date and world.disk.up_to_date
    if comparable and world.disk.content.blob != attempt.blob:
        yield "the file is another one"
    if world.board.count != attempt.published:
        yield "something was published"


def an_admitted_pod_has_what_it_asks_for(world: World, attempt: Attempt, verdict: Verdict) -> Complaints:
    """Each extended resource is given in full or named as not ours, and what is known here is ours."""
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
                    yield f"{container.name} of {attempt.pod.uid} was told that {name} is not handled here"
                if given:
                    yield f"{container.name} of {attempt.pod.uid} has {name}, and was told that it is not handled"
            elif given != size and not (_ran_before(world, attempt.pod, container) and not attempt.ready):
                yield f"{container.name} of {attempt.pod.uid} wants {size} of {name}, and has {given}"


def an_admitted_pod_keeps_what_it_had(world: World, attempt: Attempt, verdict: Verdict) -> Complaints:
    """Whether anybody lists it or not: while it is being admitted it is not swept."""
    del world
    had = attempt.before.ledger.of_pod(attempt.pod.uid)
    if isinstance(verdict, Admitted) and not attempt.ended and verdict.allocations[: len(had)] != had:
        yield f"{attempt.pod.uid} had {_show(holdings(had))}, and now has {_show(holdings(verdict.allocations))}"


def a_late_answer_is_never_taken(world: World, attempt: Attempt, verdict: Verdict) -> Complaints:
    """What plugins answer after the budget of the admission, nobody gets."""
    del world
    if isinstance(verdict, Admitted) and attempt.called and attempt.answered_at >= attempt.deadline:
        yield f"{attempt.pod.uid} got what was answered {attempt.answered_at - attempt.deadline:g} seconds late"


def not_yet_is_not_no(world: World, attempt: Attempt, verdict: Verdict) -> Complaints:
    """A resource that nobody has reported since the start makes a pod wait; one that was reported as ill does not."""
    if isinstance(verdict, Admitted) or _disturbed(world, attempt):
        return
    if isinstance(verdict.error, NoHealthyDevicesError | UnregisteredDeviceError):
        name = ResourceName(verdict.error.resource)
        waits = name in world.node.inventory.resources and name not in world.heard.reported
        if isinstance(verdict, NotReady) != waits:
            yield f"{attempt.pod.uid} got {type(verdict).__name__} because of {name}: {verdict}"


def a_running_pod_survives_a_restart(world: World, attempt: Attempt, verdict: Verdict) -> Complaints:
    """Until all pods are known again, a container that runs is left alone, and no plugin is asked for it."""
    wants = [container for container in attempt.containers if _asked(attempt.pod, container)]
    if world.pods.ready or not all(_ran_before(world, attempt.pod, container) for container in wants):
        return
    if isinstance(verdict, Refused | NotReady) and world.topology.policy is Policy.NONE:
        yield f"{attempt.pod.uid} runs, and was turned away: {verdict}"
    if attempt.called:
        yield f"{attempt.pod.uid} runs, and a plugin was asked"


def the_ledger_is_never_asked_for_what_is_held(world: World, attempt: Attempt, verdict: Verdict) -> Complaints:
    """That is the last line of defence, and the manager does not lean on it."""
    del world
    if isinstance(verdict, Refused) and isinstance(verdict.error, DeviceHeldError):
        yield f"{attempt.pod.uid}: {verdict}"


WHEN_A_POD_IS_ANSWERED: tuple[Callable[[World, Attempt, Verdict], Complaints], ...] = (
    a_failed_admission_changed_nothing,
    an_undisturbed_failure_leaves_everything,
    an_admitted_pod_has_what_it_asks_for,
    an_admitted_pod_keeps_what_it_had,
    a_late_answer_is_never_taken,
    not_yet_is_not_no,
    a_running_pod_survives_a_restart,
    the_ledger_is_never_asked_for_what_is_held,
)


WHEN_A_CONTAINER_HAS_STARTED = (a_failed_admission_changed_nothing,)


# --- when garbage was collected ---------------------------------------------------------------------------------------


def who_is_over_has_nothing(world: World) -> Complaints:
    """Once all pods are known, a pod that nobody lists has nothing, unless it is just being admitted."""
    if world.pods.ready:
        for pod in world.node.ledger.allocations.keys() - world.pods.active - world.admitting:
            yield f"nobody lists {pod}, and it has {_show(holdings(world.node.ledger.allocations[pod]))}"


AFTER_GARBAGE_COLLECTION: tuple[Callable[[World], Complaints], ...] = (who_is_over_has_nothing,)


# --- how they look ----------------------------------------------------------------------------------------------------


def _all_holdings(ledger: Ledger) -> Iterator[Holding]:
    yield from ledger
    yield from ledger.reservations


def _known(resource: Resource | None) -> frozenset[DeviceId]:
    return frozenset(resource.report.devices) if resource and resource.report else frozenset()


def _asked(pod: Pod, container: Container) -> dict[ResourceName, int]:
    """What a container asks of device plugins. To ask for 0 is to ask: a kubelet looks whether the plugin is there."""
    return {
        ResourceName(name): size
        for name, size in container.limits.items()
        if is_extended_resource(name) and (container.name, name) not in pod.claimed
    }


def _on_disk(blob: bytes | None) -> CheckpointData:
    return CheckpointData(None, {}) if blob is None else decode(blob).verified()


def _ends(pod: Pod, container: Container) -> bool:
    """Whether it is an init container that comes to an end."""
    return container in pod.init_containers and not container.restartable


def _ran_before(world: World, pod: Pod, container: Container) -> bool:
    """Whether a container ran when the manager started, or is an init container that had ended by then."""
    later = pod.in_start_order[pod.in_start_order.index(container) + 1 :]
    has_ended = _ends(pod, container) and any(pod.key(other) in world.was_running for other in later)
    return has_ended or pod.key(container) in world.was_running


def _disturbed(world: World, attempt: Attempt) -> bool:
    """Whether anything else happened during the admission, or it happened during something else."""
    return world.moment != attempt.moment or bool(world.in_flight)


def _text(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids)) or "none"


def _show(held: Holdings) -> str:
    return "; ".join(f"{container}: {_text(devices)}" for (container, _), devices in sorted(held.items())) or "nothing"


def _show_ledger(ledger: Ledger) -> str:
    return " | ".join(f"{pod} {_show(holdings(of_pod))}" for pod, of_pod in ledger.allocations.items()) or "nothing"
