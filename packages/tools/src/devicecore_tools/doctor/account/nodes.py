"""The numbers of requested, held and free devices on nodes, and their holders, as printed by `devicecore nodes`.

Law: a number that a missing source could change is None, never 0. Devices are counted as a scheduler counts them: a
pod's requests count as soon as the pod is bound, even if no container has started.
"""

from collections.abc import Container, Iterable, Iterator, Mapping

from attrs import evolve, frozen

from devicecore.domain.capacity import pod_request
from devicecore.domain.device_set import in_natural_order
from devicecore.domain.model import DeviceId, Pod, PodUid
from devicecore_tools.doctor.account.dra import DraDevice
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.look.values import Device, Look, PodSeen, PoolCounters, grouped

_UNHEALTHY = "unhealthy"


@frozen
class Counts:
    """Counts of the devices that a node has for one resource or DRA driver. None means unknown.

    Attributes:
        allocatable: devices that a scheduler may allocate: for a plugin, as many as the Node says; for a driver, those
            without a taint that repels pods. If devices share counters, as many as can be allocated side by side.
        requested: devices that bound pods request, or that are allocated to claims. A share of a device counts as one.
        held: the part of `requested` whose pods a kubelet has started.
        free: devices that other pods may get at the same time.
        unhealthy: for a plugin, devices in the Node's capacity that are not allocatable; for a driver, devices with a
            taint that repels pods.
    """

    allocatable: int | None
    requested: int | None
    held: int | None
    free: int | None
    unhealthy: int | None

    def __add__(self, other: "Counts") -> "Counts":
        """Return the two counts added field by field. A sum with an unknown number is unknown."""
        mine, others = _numbers(self), _numbers(other)
        sums = [None if a is None or b is None else a + b for a, b in zip(mine, others, strict=True)]
        return Counts(*sums)


def _numbers(counts: Counts) -> tuple[int | None, ...]:
    return counts.allocatable, counts.requested, counts.held, counts.free, counts.unhealthy


@frozen
class DeviceUse:
    """A device and its holder, or several devices with unknown ids.

    Attributes:
        device: the plugin's id, or the driver's `pool/device`, or an empty string if no source names it.
        count: 1, or the number of unnamed devices.
        state: `held`, `requested` (the pod has not started), `free`, `unhealthy` or `unknown`; `held, unhealthy` if the
            pod's status says so.
        namespace, pod, container: the holder, empty if there is none or if it is unknown.
        claim: the ResourceClaim through which the device is held, as `namespace/name`.
    """

    device: str
    count: int
    state: str
    namespace: str = ""
    pod: str = ""
    container: str = ""
    claim: str = ""


@frozen
class ResourceOnNode:
    """A node's devices for one plugin's resource or one DRA driver."""

    name: str
    is_driver: bool
    counts: Counts
    devices: tuple[DeviceUse, ...]


def resources_of(look: Look) -> tuple[ResourceOnNode, ...]:
    """Return a node's resources and their holders, as far as the API server's objects show them."""
    facts = Facts(look)
    return (*_of_plugins(facts), *_of_drivers(facts))


def _requests(pod: Pod) -> Mapping[str, int]:
    """Return how many devices of each plugin resource a pod takes from a node."""
    if not pod.claimed:
        return pod_request(pod)
    app, init = (
        tuple(evolve(one, limits={name: _of_plugin(pod, one.name, name) for name in one.limits}) for one in containers)
        for containers in (pod.containers, pod.init_containers)
    )
    return pod_request(evolve(pod, containers=app, init_containers=init))


def _of_plugin(pod: Pod, container: str, resource: str) -> int:
    """Return a container's limit, or 0 if a claim provides the resource instead of a plugin."""
    return 0 if (container, resource) in pod.claimed else pod.container(container).limits.get(resource, 0)


# --- device plugins --------------------------------------------------------------------------------------------------


def _of_plugins(facts: Facts) -> Iterator[ResourceOnNode]:
    node, pods = facts.look.node.value, facts.look.pods.value
    if node is None:
        return
    bound = [one for one in pods or () if not one.has_ended]
    begun = {one.pod.uid for one in facts.pods.here}
    requests = [(_requests(one.pod), one.pod.uid in begun) for one in bound]
    wanted = {
        resource
        for one in bound
        for container in one.pod.in_start_order
        for resource, count in container.limits.items()
        if count and "/" in resource and resource in {*node.capacity, *node.allocatable}
    }
    for resource in sorted({*node.capacity, *node.allocatable, *wanted}):
        allocatable = node.allocatable.get(resource, 0)
        uses = tuple(use for one in bound for use in _held_of(one, resource, is_begun=one.pod.uid in begun))
        requested = sum(of_pod.get(resource, 0) for of_pod, _ in requests)
        held = sum(of_pod.get(resource, 0) for of_pod, is_begun in requests if is_begun)
        unhealthy = max(0, node.capacity.get(resource, 0) - allocatable)
        free = max(0, allocatable - requested)
        rest = (("free", free), (_UNHEALTHY, unhealthy))
        counts = Counts(allocatable, requested, held, free, unhealthy)
        if pods is None:
            counts, rest = Counts(allocatable, None, None, None, unhealthy), (("unknown", allocatable), rest[1])
        nobodys = tuple(DeviceUse("", count, state) for state, count in rest if count)
        yield ResourceOnNode(resource, is_driver=False, counts=counts, devices=(*uses, *nobodys))


def _held_of(one: PodSeen, resource: str, *, is_begun: bool) -> Iterator[DeviceUse]:
    """Yield the devices of each container: those named in the pod's status, and the number of unnamed ones."""
    state = "held" if is_begun else "requested"
    for container in one.pod.in_start_order:
        count = _of_plugin(one.pod, container.name, resource)
        # Kubelets since 1.31 write the ids if the feature gate ResourceHealthStatus is on.
        named = one.statuses.get((container.name, resource), {}) if count else {}
        for device in in_natural_order([*map(DeviceId, named)]):
            told = f"{state}, {_UNHEALTHY}" if named[device] == "Unhealthy" else state
            yield DeviceUse(device, 1, told, *one.place, container.name)
        if count > len(named):
            yield DeviceUse("", count - len(named), state, *one.place, container.name)


# --- DRA drivers -----------------------------------------------------------------------------------------------------


def _of_drivers(facts: Facts) -> Iterator[ResourceOnNode]:
    look = facts.look
    claims, pods, is_published = look.allocations.value, look.pods.value, look.slices.value is not None
    published = {one.key: one.counters for one in look.slices.value or ()}
    users: dict[str, list[tuple[PodSeen, str]]] = {}
    for one in pods or ():
        if not one.has_ended:
            for container, names in one.claims.items():
                for claim in names:
                    users.setdefault(claim, []).append((one, container))
    begun = {one.pod.uid for one in facts.pods.here}
    shared = {key for claim in claims or () for key in claim.shared}
    of_driver = grouped((key[0], (key, one)) for key, one in facts.dra.devices.items())
    for driver in sorted(of_driver):
        uses, free = list[DeviceUse](), list[Device]()
        is_free_known = claims is not None and is_published
        requested = held = unhealthy = 0
        for key, device in of_driver[driver]:
            names = (*device.claims, *device.pending)
            unhealthy += device.is_tainted
            requested += len(names)
            uses += [use for claim in names for use in _of_claim(key, claim, users.get(claim, ()), begun)]
            held += sum(any(one.pod.uid in begun for one, _ in users.get(claim, ())) for claim in names)
            is_free = _is_free(device, is_taken=bool(names), has_shares=key in shared)
            is_free_known &= is_free is not None
            free += [key] if is_free else []
            if not names:
                state = _UNHEALTHY if device.is_tainted else {None: "unknown", True: "free"}.get(is_free, "unknown")
                uses.append(DeviceUse("/".join(key[1:]), 1, state if claims is not None else "unknown"))
        usable = [key for key, device in of_driver[driver] if not device.is_tainted]
        taken = [key for key, device in of_driver[driver] if device.claims or device.pending]
        counts = Counts(
            _at_once(usable, published, ()) if is_published else None,
            None if claims is None else requested,
            None if claims is None or pods is None else held,
            _at_once(free, published, taken) if is_free_known else None,
            unhealthy if is_published else None,
        )
        yield ResourceOnNode(driver, is_driver=True, counts=counts, devices=tuple(uses))


def _at_once(
    devices: Iterable[Device], counters: Mapping[Device, PoolCounters | None], taken: Iterable[Device]
) -> int | None:
    """Return how many devices can be allocated beside the ones in `taken`, or None if that is hard to compute."""
    found, taken_in = 0, grouped((key[:2], key[2]) for key in taken)
    for pool, keys in grouped((key[:2], key) for key in devices).items():
        of_pool = next((one for key in keys if (one := counters.get(key)) is not None), None)
        if of_pool is None:
            found += len(keys)
            continue
        count = of_pool.most_at_once([key[2] for key in keys], of_pool.beside(taken_in.get(pool, ())))
        if count is None:
            return None
        found += count
    return found


def _of_claim(
    key: Device, claim: str, users: Iterable[tuple[PodSeen, str]], begun: Container[PodUid]
) -> Iterator[DeviceUse]:
    device = "/".join(key[1:])
    for one, container in users:
        state = "held" if one.pod.uid in begun else "requested"
        yield DeviceUse(device, 1, state, *one.place, container, claim)
    if not users:  # the pod is on a different node or gone, or no pod has used the claim yet
        yield DeviceUse(device, 1, "requested", claim=claim)


def _is_free(device: DraDevice, *, is_taken: bool, has_shares: bool) -> bool | None:
    """Return whether one more claim may get a device, or None if it is unknown whether enough of the device is left."""
    if device.is_tainted or device.has_room is False:
        return False
    if is_taken:
        return None if has_shares else False
    return device.has_room


def totals(nodes: Mapping[str, tuple[ResourceOnNode, ...]]) -> dict[tuple[str, bool], Counts]:
    """Return the sum over all nodes for each resource and driver."""
    found: dict[tuple[str, bool], Counts] = {}
    for resources in nodes.values():
        for one in resources:
            key = one.name, one.is_driver
            found[key] = found[key] + one.counts if key in found else one.counts
    return dict(sorted(found.items()))
