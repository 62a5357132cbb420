"""Tests whether a pod fits on a node, and finds the smallest change that makes it fit.

Laws: A trial decides nothing about devices itself. A `DeviceManager` with in-memory adapters admits the pod, so the
answer equals that of the node's own manager. The same applies to the CPU manager and memory manager, if they are
known. The trial then compares the pods' requests with the Node's resources, as a kubelet does. A change is proposed
only after a trial with that change has admitted the pod. A pod does not fit if the driver of one of its claims is gone.
The answer names the claims that were not decided, and is valid except for them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice, takewhile

from attrs import evolve, field, frozen

from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.admission import Admitted, Verdict
from devicecore.domain.allocation import UnallocatedClaim
from devicecore.domain.allocation.model import Toleration
from devicecore.domain.capacity import pod_request
from devicecore.domain.checkpoint import CheckpointData, encode, entry_of
from devicecore.domain.ledger import Allocation
from devicecore.domain.model import (
    ContainerKey,
    Device,
    DeviceId,
    Health,
    NumaNode,
    Pod,
    PodUid,
    Receipt,
    ResourceName,
    is_extended_resource,
)
from devicecore.domain.text import counted, foreign_text, listed
from devicecore.domain.topology import Policy, Topology
from devicecore.manager import DeviceManager
from devicecore.plugins.simulated import SimulatedPlugin
from devicecore_tools.budget import Budget
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.account.plugins import WhyAbsent, is_of_others, silent_plugins
from devicecore_tools.doctor.account.precedence import KubeletNow
from devicecore_tools.doctor.account.schedulable import why_closed
from devicecore_tools.doctor.look.topology_settings import TopologySettings
from devicecore_tools.doctor.look.values import NO_NODE, NOBODY_LISTENS
from devicecore_tools.doctor.pod.admission import why_refused
from devicecore_tools.doctor.pod.claim_trial import OF_TEMPLATE, ClaimsDecision, ClaimTrial
from devicecore_tools.doctor.pod.state import state_of
from devicecore_tools.numa import Pinned, PinnedNode

MAX_CHANGES = 64
"""The maximum number of devices or pods in one proposed change."""

MAX_PODS_TRIED = 200
"""The maximum number of pods that are tried one at a time, to find out whether ending a single pod suffices."""

MAX_WORK = 1_000_000
"""How many devices and allocations the trials of one kind of change may examine.

Without this limit, large nodes take minutes.
"""

MIN_ATTEMPTS = 10
"""How many changes of each kind may be tried even if they exceed `MAX_WORK`."""

CURES = {
    "kubelet-gone": "a kubelet is running on the node",
    "node-missing": "the kubelet creates its Node again",
    "node-not-ready": "the Node becomes Ready",
    "node-closed": "the Node accepts pods again",
}
"""The findings that keep every pod from starting, each with the change that ends it."""

_POLICIES = (Policy.SINGLE_NUMA_NODE, Policy.RESTRICTED, Policy.BEST_EFFORT, Policy.NONE)  # strictest first


UNKNOWN_HOLDER = PodUid("unknown")
"""Stands for the unknown owner of a description's devices. That owner is not a pod, so no proposed change ends it."""


@frozen
class TrialNode:
    """A node on which pods can be tried.

    Attributes:
        name: the name of the node in answers.
        devices: the devices that each resource's plugin lists, in the plugin's order.
        allocations: which container holds which devices.
        awaited: registered resources whose device list is unknown.
        absent: resources whose plugin is missing, with the devices that the plugin listed before. The kubelet
            allocates none of these devices now.
        requests: the requests of the pods on the node, by pod and resource.
        allocatable: how many devices of each resource the Node has. Resources that this mapping lacks are not counted.
        stopped: why the node admits no pods now, or an empty string if it admits pods.
        restart: the change after which a stopped node admits pods again.
        drivers_gone: the missing DRA drivers, each with the end of a sentence that says what is known about the driver.
        claims: the drivers of allocated claims, by the claim's `namespace/name`.
        pod_claims: decides about a pod's claims, or None if the necessary objects were not read.
        why_absent: a warning for each resource in `absent`.
        damage: why the checkpoint is ignored, or an empty string if it is intact or the kubelet's answer replaces it.
        of_others: resources that an administrator added to the Node, and that no plugin serves.
        unknown: warnings about problems that a pod may have after its admission, by resource.
        capacity: how many devices of each resource the Node has, including unhealthy devices.
        uncertain: why no source shows which devices of a resource are free, by resource. Answers do not name
            devices of such resources.
        topology_not_known: the settings in which the kubelet may differ from `topology`, or an empty string.
        blocked: why pods get no devices of a resource although the kubelet is running, by resource.
        topology: the NUMA nodes, the topology policy and the topology scope.
        managers: the kubelet's CPU manager and memory manager, or None if they refuse no pod or are unknown.
        managers_unknown: why the managers' decision about this pod is unknown, or an empty string.
        pod_names: the names of the holders in answers. A pod without a name is identified by its UID.
    """

    name: str
    devices: Mapping[ResourceName, Sequence[Device]]
    allocations: Sequence[Allocation] = ()
    awaited: Sequence[ResourceName] = field(default=(), kw_only=True)
    topology: Topology = field(default=Topology(), kw_only=True)
    pod_names: Mapping[PodUid, str] = field(factory=dict, kw_only=True)
    absent: Mapping[ResourceName, Sequence[Device]] = field(factory=dict, kw_only=True)
    requests: Mapping[PodUid, Mapping[str, int]] = field(factory=dict, kw_only=True)
    allocatable: Mapping[str, int] = field(factory=dict, kw_only=True)
    stopped: str = field(default="", kw_only=True)
    drivers_gone: Mapping[str, str] = field(factory=dict, kw_only=True)
    claims: Mapping[str, Sequence[str]] = field(factory=dict, kw_only=True)
    pod_claims: ClaimTrial | None = field(default=None, kw_only=True)
    unknown: Mapping[str, str] = field(factory=dict, kw_only=True)
    why_absent: Mapping[str, str] = field(factory=dict, kw_only=True)
    of_others: Collection[str] = field(default=(), kw_only=True)
    damage: str = field(default="", kw_only=True)
    restart: str = field(default=CURES["kubelet-gone"], kw_only=True)
    blocked: Mapping[str, str] = field(factory=dict, kw_only=True)
    capacity: Mapping[str, int] = field(factory=dict, kw_only=True)
    topology_not_known: str = field(default="", kw_only=True)
    managers: PinnedNode | None = field(default=None, kw_only=True)
    managers_unknown: str = field(default="", kw_only=True)
    uncertain: Mapping[str, str] = field(factory=dict, kw_only=True)

    def answer(self, pod: Pod) -> "Verdict | NotNow":
        """Return a kubelet's verdict on `pod` on this node, or why the pod cannot start there now.

        Undecided claims are ignored.
        """
        if refused := why_refused(pod):
            return NotNow(refused)
        if self.stopped:
            return NotNow(self.stopped)
        for name in _wanted(self, pod):
            if name in self.blocked:
                return NotNow(self.blocked[name])
        decision = self.decide_claims(pod)
        if decision.problem:
            return NotNow(decision.problem)
        pod = self.with_claims(pod)
        for claim in dict.fromkeys((*claim_names(pod), *decision.drivers)):
            drivers = self.claims.get(claim) or decision.drivers.get(claim, ())
            gone = [driver for driver in drivers if driver in self.drivers_gone]
            if gone:
                why = self.drivers_gone[gone[0]]
                return NotNow(f"ResourceClaim {claim} cannot be prepared: DRA driver {gone[0]} {why}")
        verdict = self.admit(pod)
        if isinstance(
            verdict, Admitted
        ):  # a kubelet allocates no devices of a resource without a plugin; it only counts them
            verdict = evolve(verdict, unhandled=tuple(one for one in verdict.unhandled if one[1] not in self.of_others))
        shortage = self._out_of(pod, verdict) if isinstance(verdict, Admitted) and _fits(verdict) else None
        return verdict if shortage is None else shortage

    def decide_claims(self, pod: Pod) -> ClaimsDecision:
        """Return the node's answer about a pod's claims only, regardless of the rest of the pod."""
        names = claim_names(pod)
        if self.pod_claims is None:
            return ClaimsDecision(undecided=tuple(names))
        return self.pod_claims.decide(pod.name, names, self._extended_claim(self.pod_claims, pod))

    def with_claims(self, pod: Pod) -> Pod:
        """Return the pod as a kubelet receives it, with a claim for extended resources that a DeviceClass serves.

        A plugin takes precedence as long as the Node has devices from it.
        """
        return pod if self.pod_claims is None else self.pod_claims.admitted(pod, self.name, self.allocatable)

    def _extended_claim(self, known: ClaimTrial, pod: Pod) -> UnallocatedClaim | None:
        """Return the claim that a scheduler creates for a pod's extended resources, or None if the pod needs none."""
        claim = self.with_claims(pod).extended_claim
        if claim is None or pod.extended_claim is not None:
            return None
        return known.extended_claim(pod, dict.fromkeys(row.resource for row in claim.mappings))

    def _out_of(self, pod: Pod, admitted: Admitted) -> "NotNow | None":
        """Return the refusal for the first resource of which the pods would request more than the Node has (`OutOf`).

        A kubelet counts at least the devices that it has allocated, including this pod's (kubelet.md 8.1).
        """
        for resource, size in sorted(requests_of(pod).items()):
            used = sum(of.get(resource, 0) for uid, of in self.requests.items() if uid != pod.uid)
            held = {
                device
                for one in (*self.allocations, *admitted.allocations)
                if one.resource == resource
                for device in one.numa_nodes
            }
            capacity = self.allocatable.get(resource)
            if capacity is not None and size and used + size > max(capacity, len(held)):
                numbers = f"requested: {size}, used: {used}, capacity: {capacity}"
                return NotNow(f"Node didn't have enough resource: {resource}, {numbers}")
            others = (one for one in self.allocations if one.resource == resource and one.key.pod != pod.uid)
            taken = {device for one in others for device in one.numa_nodes}
            if size and 0 < self.capacity.get(resource, 0) < len(taken) + size:
                has = (
                    f"pods hold {counted(len(taken), 'device')} of {resource}, but the Node has "
                    f"{self.capacity[resource]:,}"
                )
                return NotNow(f"{has}: the scheduler sends no pod that requests {size:,} more")
        return None

    def admit(self, pod: Pod) -> Verdict:
        """Return the verdict on `pod` by the node's device manager, and by its CPU and memory managers if known.

        The plugins' preferences are unknown, so the kubelet may choose other devices of the same kind. Reservations in
        progress on the real node are also unknown.
        """
        topology = self.topology
        with self._device_manager(pod) as manager:
            if self.managers is None:
                return manager.admit(pod)
            return self.managers.admit(manager, pod, topology.policy, topology.scope)

    def pinned(self, pod: Pod) -> tuple[Pinned, ...]:
        """Return the exclusive CPUs and the NUMA-local memory that a pod gets if it is admitted."""
        if self.managers is None:
            return ()
        with self._device_manager(pod) as manager:
            return self.managers.given(manager, pod, self.topology.policy, self.topology.scope)

    @contextmanager
    def _device_manager(self, pod: Pod) -> Iterator[DeviceManager]:
        """Yield a device manager in the node's state.

        If the CPU and memory managers are known, NUMA alignment is left to the topology manager that combines them all.
        """
        asked = {ResourceName(resource) for container in pod.in_start_order for resource in container.limits}
        entries = [entry_of(one) for one in self._held_of(asked, pod.uid)]
        registered = {str(name): () for name in (*self.devices, *self.awaited, *self.absent) if name in asked}
        store = MemoryStore()
        store.save(encode(CheckpointData(tuple(entries) or None, registered)))
        transport = MemoryTransport()
        topology = self.topology if self.managers is None else Topology(self.topology.numa_nodes)
        with DeviceManager(transport, store, MemorySink(), topology=topology) as manager:
            for resource in sorted(asked & self.devices.keys()):
                transport.connect(SimulatedPlugin(resource, self.devices[resource]))
            yield manager

    def _held_of(self, resources: Collection[ResourceName], pod: PodUid) -> Iterator[Allocation]:
        """Yield a pod's allocations, and for each resource a single allocation with the devices of all other pods.

        The pod's verdict does not depend on which other pod holds a device, and a single entry costs less.
        """
        others: dict[ResourceName, dict[DeviceId, tuple[NumaNode, ...]]] = {}
        for one in self.allocations:
            if one.resource in resources and one.key.pod == pod:
                yield evolve(one, receipt=Receipt(b""))
            elif one.resource in resources:
                others.setdefault(one.resource, {}).update(one.numa_nodes)
        key = ContainerKey(PodUid(f"not {pod}"), "main")
        for resource, numa_nodes in others.items():
            yield Allocation(key, resource, numa_nodes, Receipt(b""))

    @property
    def holders(self) -> frozenset[PodUid]:
        """The pods that hold or request devices."""
        return frozenset((*(one.key.pod for one in self.allocations), *self.requests))

    def pod_name(self, uid: PodUid) -> str:
        """Return the name of a pod for answers."""
        return self.pod_names.get(uid) or uid

    def without(self, pods: Iterable[PodUid]) -> "TrialNode":
        """Return the node without these pods."""
        gone = set(pods)
        return evolve(
            self,
            allocations=tuple(one for one in self.allocations if one.key.pod not in gone),
            requests={uid: of for uid, of in self.requests.items() if uid not in gone},
            managers=None if self.managers is None else self.managers.without(gone),
        )


@frozen
class NotNow:
    """The pod does not start on the node in its current state, for a reason outside the device manager."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@frozen
class Unknown(NotNow):
    """The sources do not show whether the pod fits."""


@frozen
class Change:
    """A change that makes the pod fit: its description, and how many devices, pods, settings or plugins it concerns."""

    sentence: str
    size: int


@frozen
class Fit:
    """A node's answer to the question whether a pod fits.

    Attributes:
        changes: the smallest change of each kind, smallest first.
        claims: the pod's claims that were not examined. Apart from these claims, the answer is valid.
        topology_not_known: the topology manager settings that were neither read nor passed, or an empty string.
        pinned: the exclusive CPUs and the NUMA-local memory that the pod gets.
        uncertain: why the pod may get different devices than the verdict names, or an empty string.
        warnings: sentences about missing information, or about possible problems although the kubelet admits the pod.
    """

    node: str
    verdict: Verdict | NotNow
    changes: tuple[Change, ...] = ()
    claims: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    topology_not_known: str = ""
    uncertain: str = ""
    pinned: tuple[Pinned, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the kubelet admits the pod with devices of every resource that it requests."""
        return _fits(self.verdict)

    @property
    def is_unknown(self) -> bool:
        """Whether the sources are not enough to decide if the pod fits."""
        return isinstance(self.verdict, Unknown)


def fit(node: TrialNode, pod: Pod, budget: Budget | None = None) -> Fit:
    """Try `pod` on `node`. If the pod does not fit, find the smallest changes after which it fits.

    `budget` is the budget of the question that this trial is part of; by default a new one.
    """
    budget = budget or Budget()
    if why := budget.spent():
        return Fit(node.name, Unknown(f"the pod was not tried: {why}"))
    if refused := why_refused(pod):
        return Fit(node.name, NotNow(refused))
    verdict = node.answer(pod)
    claims = node.decide_claims(pod).undecided
    damage = (node.damage,) if node.damage and _wanted(node, pod) else ()
    if damage and isinstance(verdict, Admitted) and verdict.unhandled:
        names = ", ".join(sorted({resource for _, resource in verdict.unhandled}))
        return Fit(node.name, Unknown(f"no trusted source names {names}"), claims=claims, warnings=damage)
    if _fits(verdict) and node.managers_unknown:
        return Fit(node.name, Unknown(node.managers_unknown), claims=claims, warnings=damage)
    if _fits(verdict):
        pinned = node.pinned(pod)
        warnings = damage + tuple(node.unknown[name] for name in _wanted(node, pod) if name in node.unknown)
        not_known = node.topology_not_known if _wanted(node, pod) else ""
        why = next((node.uncertain[name] for name in _wanted(node, pod) if name in node.uncertain), "")
        return Fit(node.name, verdict, (), claims, warnings, topology_not_known=not_known, uncertain=why, pinned=pinned)
    missing = [name for name in _wanted(node, pod) if name in node.absent]
    warnings = damage + tuple(node.why_absent[name] for name in missing if name in node.why_absent)
    for one in node.allocations:
        if one.key.pod == UNKNOWN_HOLDER and one.resource in _wanted(node, pod):
            what = f"{counted(len(one.numa_nodes), 'device')} of {one.resource}"
            warnings += (
                f"{what} counted as held, because the holder is unknown: name the holder, or write owner: free",
            )
    if isinstance(verdict, Admitted) and verdict.unhandled and node.devices:
        warnings += (f"the node's resources are {listed(sorted(node.devices), 5)}: check the spelling",)
    attempts = max(MIN_ATTEMPTS, MAX_WORK // (1 + len(node.allocations) + sum(map(len, node.devices.values()))))
    kinds: tuple[Iterator[_Attempt], ...] = (_recovery(node, pod),)
    if not node.stopped and not missing:
        kinds = (
            _healing(node, pod),
            _release(node, pod),
            _policy(node, pod),
            _addition(node, pod),
            _reduction(node, pod),
        )
    tried = (takewhile(lambda _: not budget.spent(), islice(kind, attempts)) for kind in kinds)
    found = [change for kind in tried if (change := _first_that_helps(kind)) is not None]
    return Fit(node.name, verdict, tuple(sorted(found, key=lambda change: change.size)), claims, warnings)


def claim_names(pod: Pod) -> list[str]:
    """Return the ResourceClaims of a pod, as `namespace/name`.

    A claim that does not exist yet has no name, so it is listed as a claim of its template.
    """
    named = []
    for one in pod.claims:
        name = one.claim or pod.generated_claims.get(one.name)
        made = f"{one.name} {OF_TEMPLATE}{pod.namespace}/{one.template}"
        named.append(made if name is None and one.template else f"{pod.namespace}/{name or one.name}")
    return named


def requests_of(pod: Pod) -> dict[str, int]:
    """Return how many devices of each resource a pod requests, counted as schedulers and kubelets count them."""
    claimed = {name for one in pod.in_start_order for name in one.limits if (one.name, name) in pod.claimed}
    return {name: size for name, size in pod_request(pod).items() if is_extended_resource(name) and name not in claimed}


def _fits(verdict: Verdict | NotNow) -> bool:
    return isinstance(verdict, Admitted) and not verdict.unhandled


_Attempt = tuple[Change, TrialNode, Pod]


def _first_that_helps(attempts: Iterator[_Attempt]) -> Change | None:
    return next((change for change, node, pod in attempts if _has_enough(node, pod) and _fits(node.answer(pod))), None)


def _has_enough(node: TrialNode, pod: Pod) -> bool:
    """Return whether enough devices are free and healthy, because a trial would otherwise waste time.

    A pod's app containers do not share devices. A pod that already holds devices may need no others.
    """
    if pod.claimed or any(one.key.pod == pod.uid for one in node.allocations):
        return True
    for name in _wanted(node, pod):
        together = sum(container.limits.get(name, 0) for container in pod.containers)
        needed = max((together, *(container.limits.get(name, 0) for container in pod.init_containers)))
        healthy = {device.id for device in node.devices.get(name, ()) if device.health is Health.HEALTHY}
        for held in node.allocations:
            if held.resource == name:
                healthy.difference_update(held.numa_nodes)
        if name in node.devices and len(healthy) < needed:
            return False
    return True


def _wanted(node: TrialNode, pod: Pod) -> tuple[ResourceName, ...]:
    """Return the names of the device resources that the pod requests, in order, whether or not the node has them."""
    pod = node.with_claims(pod)
    limits = {
        resource
        for container in pod.in_start_order
        for resource, size in container.limits.items()
        if size and (container.name, resource) not in pod.claimed
    }
    known = {*node.devices, *node.awaited, *node.absent}
    return tuple(sorted(ResourceName(name) for name in limits if name in known or is_extended_resource(name)))


def _recovery(node: TrialNode, pod: Pod) -> Iterator[_Attempt]:
    """Yield the change in which the kubelet starts, plugins register their previous lists again, and drivers return."""
    returned = {name: node.absent[name] for name in _wanted(node, pod) if node.absent.get(name)}
    parts = [node.restart] if node.stopped else []
    parts += [f"the plugin for {name} registers again" for name in returned]
    drivers = [*node.decide_claims(pod).drivers.values(), *(node.claims.get(claim, ()) for claim in claim_names(pod))]
    gone = sorted({one for of_claim in drivers for one in of_claim if one in node.drivers_gone})
    parts += [f"DRA driver {name} registers again" for name in gone]
    if parts:
        left = {name: devices for name, devices in node.absent.items() if name not in returned}
        devices = {**node.devices, **returned}
        counts: dict[str, int] = {name: len(of) for name, of in returned.items()}
        allocatable = {**node.allocatable, **counts}
        healed = evolve(node, devices=devices, absent=left, allocatable=allocatable, stopped="", drivers_gone={})
        yield Change(" and ".join(parts), len(parts)), healed, pod


def _healing(node: TrialNode, pod: Pod) -> Iterator[_Attempt]:
    """Yield changes in which unhealthy devices become healthy: first one device, then two, and so on."""
    unhealthy = [
        (name, device.id)
        for name in _wanted(node, pod)
        for device in node.devices.get(name, ())
        if device.health is Health.UNHEALTHY
    ]
    for size in range(1, min(len(unhealthy), MAX_CHANGES) + 1):
        healed = unhealthy[:size]
        devices = {
            name: [evolve(one, health=Health.HEALTHY) if (name, one.id) in healed else one for one in listed]
            for name, listed in node.devices.items()
        }
        verb = "becomes" if size == 1 else "become"
        yield Change(f"{_listed(healed)} {verb} healthy", size), evolve(node, devices=devices), pod


def _release(node: TrialNode, pod: Pod) -> Iterator[_Attempt]:
    """Yield changes in which pods end: one pod at first, starting with pods that hold few devices, and then several."""
    sizes: dict[PodUid, int] = {}
    wanted = _wanted(node, pod)
    for allocation in node.allocations:
        if allocation.resource in wanted and allocation.key.pod not in {pod.uid, UNKNOWN_HOLDER}:
            sizes[allocation.key.pod] = sizes.get(allocation.key.pod, 0) + len(allocation.numa_nodes)
    for uid, requested in node.requests.items():
        if uid != pod.uid and (size := sum(requested.get(name, 0) for name in wanted)):
            sizes.setdefault(uid, size)
    if node.managers is not None:
        for holder, size in node.managers.holders.items():
            if holder != pod.uid:
                sizes.setdefault(PodUid(holder), size)
    holders = sorted(sizes, key=lambda uid: sizes[uid])
    for uid in islice(holders, MAX_PODS_TRIED):
        yield Change(f"pod {node.pod_name(uid)} ends", 1), node.without([uid]), pod
    largest = holders[::-1]
    for size in range(2, min(len(largest), MAX_CHANGES) + 1):
        names = ", ".join(map(node.pod_name, largest[:size]))
        yield Change(f"these {size} pods end: {names}", size), node.without(largest[:size]), pod


def _policy(node: TrialNode, pod: Pod) -> Iterator[_Attempt]:
    """Yield laxer topology policies, strictest first."""
    for policy in _POLICIES[_POLICIES.index(node.topology.policy) + 1 :]:
        laxer = evolve(node, topology=evolve(node.topology, policy=policy))
        yield Change(f"the kubelet's topology policy is {policy.value}", 1), laxer, pod


def _addition(node: TrialNode, pod: Pod) -> Iterator[_Attempt]:
    """Yield changes in which the node gets more healthy devices of a resource, on each NUMA node in turn."""
    for name in _wanted(node, pod):
        places: tuple[tuple[NumaNode, ...] | None, ...] = (None,)
        if any(device.topology for device in node.devices.get(name, ())):
            places = tuple((numa_node,) for numa_node in node.topology.numa_nodes)
        for size in range(1, MAX_CHANGES + 1):
            for place in places:
                new = tuple(islice(_new_devices(node.devices.get(name, ()), place), size))
                devices = {**node.devices, name: (*node.devices.get(name, ()), *new)}
                where = f" on NUMA node {place[0]}" if place else ""
                what = "one more healthy device" if size == 1 else f"{size} more healthy devices"
                yield Change(f"the node gets {what} of {name}{where}", size), evolve(node, devices=devices), pod


def _new_devices(listed: Sequence[Device], topology: tuple[NumaNode, ...] | None) -> Iterator[Device]:
    taken = {device.id for device in listed}
    names = (DeviceId(f"new-{number}") for number in count())
    return (Device(name, topology=topology) for name in names if name not in taken)


def _reduction(node: TrialNode, pod: Pod) -> Iterator[_Attempt]:
    """Yield changes in which the container with the largest request for a resource requests fewer devices of it."""
    for name in _wanted(node, pod):
        container = max(pod.in_start_order, key=lambda one: one.limits.get(name, 0))
        asked = container.limits[name]
        for size in range(asked - 1, max(asked - MAX_CHANGES, 1) - 1, -1):
            smaller = evolve(container, limits={**container.limits, name: size})
            containers = tuple(smaller if one is container else one for one in pod.containers)
            init_containers = tuple(smaller if one is container else one for one in pod.init_containers)
            sentence = f"container {container.name} requests {size} of {name} instead of {asked}"
            smaller_pod = evolve(pod, containers=containers, init_containers=init_containers)
            yield Change(sentence, asked - size), node, smaller_pod


def _listed(devices: Sequence[tuple[ResourceName, DeviceId]]) -> str:
    noun = "device" if len(devices) == 1 else "devices"
    return f"{noun} {', '.join(f'{device} of {name}' for name, device in devices)}"


_DEFAULT = TopologySettings()


def trial_node(
    name: str,
    facts: Facts,
    topology: TopologySettings = _DEFAULT,
    pod_claims: ClaimTrial | None = None,
    tolerations: Sequence[Toleration] | None = None,
) -> TrialNode:
    """Return the node for trials, as its sources describe it.

    A plugin's own list is the best source for its devices. If this list was not read, the lists of healthy devices from
    the kubelet and the checkpoint are used. The holders come from `doctor.state_of`: pods that are certainly gone are
    excluded because a kubelet frees their devices before it admits a pod.

    Args:
        name: the name of the node in answers.
        facts: the facts from the sources.
        pod_claims: decides about claims.
        topology: the settings of the kubelet's topology manager. If these settings list no NUMA nodes, the devices'
            NUMA nodes are used.
        tolerations: the tolerations of the pod to be tried, or None if they are unknown.
    """
    state = state_of(facts)
    reports = {ResourceName(one): state.inventory.current_report(ResourceName(one)) for one in facts.lists.resources}
    devices = {one: tuple(report.devices.values()) if report else () for one, report in reports.items()}
    known = sorted({one for places in facts.numa_nodes.values() for nodes in places.values() for one in nodes}) or [0]
    machine = topology.on(map(NumaNode, known))
    stopped, restart = _stopped(facts, tolerations)
    if not stopped and (stopped := topology.problem_on(machine)):
        restart = "allow that many NUMA nodes there, or use the policy none, and restart the kubelet"
    # A static pod has one UID in the kubelet and a different one on the API server.
    here = {
        PodUid(next(iter(pod.other_uids), pod.pod.uid)): pod for pod in (*facts.pods.here, *facts.pods.perhaps_here)
    }
    names = {PodUid(one.owner.uid): one.owner.identity for one in facts.holders.allocations if one.owner.uid}
    absent = dict(_absent(facts))
    listed = {resource: of for resource, of in devices.items() if of and resource not in absent}
    return TrialNode(
        name,
        listed,
        tuple(state.ledger),
        awaited=[resource for resource in devices if resource not in listed and resource not in absent],
        topology=machine,
        pod_names=names | {uid: pod.identity for uid, pod in here.items()},
        absent=absent,
        requests={uid: requests_of(pod.pod) for uid, pod in here.items()},
        allocatable=_counts(facts, listed),
        stopped=stopped,
        drivers_gone={one: facts.dra.why_gone(one) for one, of in facts.dra.drivers.items() if of.prepares_nothing},
        claims=facts.dra.allocated,
        pod_claims=pod_claims,
        unknown=dict(_unknown(facts)),
        why_absent={resource: one.warning for resource, one in facts.absent.items()},
        of_others=[one for one in _published(facts) if is_of_others(facts.look, facts.lists, one)],
        damage=facts.look.damage if facts.lists.allocatable is None else "",
        restart=restart,
        blocked=dict(_blocked(facts)),
        capacity=facts.look.node.value.capacity if facts.look.node.value else {},
        topology_not_known=topology.not_known_on(machine),
        uncertain=dict(_uncertain(facts)),
    )


def _published(facts: Facts) -> Mapping[str, int]:
    return facts.look.node.value.allocatable if facts.look.node.value else {}


def _absent(facts: Facts) -> Iterator[tuple[ResourceName, Sequence[Device]]]:
    """Yield the resources for which the kubelet has no devices now, with the devices that it had for them before."""
    for resource, one in facts.absent.items():
        if one.why is not WhyAbsent.NEVER:  # a kubelet ignores a resource that no plugin has registered
            nodes = {id_: tuple(map(NumaNode, facts.numa_nodes.get(resource, {}).get(id_, ()))) for id_ in one.devices}
            yield ResourceName(resource), tuple(Device(DeviceId(id_), topology=of or None) for id_, of in nodes.items())


def _counts(facts: Facts, listed: Mapping[ResourceName, Sequence[Device]]) -> dict[str, int]:
    """Return how many devices of each resource the Node has according to its status, or else how many are healthy."""
    healthy = {str(name): sum(one.health is Health.HEALTHY for one in of) for name, of in listed.items()}
    return {**healthy, **_published(facts)}


def _stopped(facts: Facts, tolerations: Sequence[Toleration] | None) -> tuple[str, str]:
    """Return why no pod can start, whatever it requests, and the remedy, or two empty strings if pods may start."""
    if facts.kubelet is KubeletNow.STOPPED:
        return "no kubelet is running on this node, so no pod starts", CURES["kubelet-gone"]
    if facts.kubelet is KubeletNow.SILENT:
        return "the kubelet does not answer, so no pod starts", CURES["kubelet-gone"]
    node = facts.look.node.value
    if facts.look.node.problem.startswith(NO_NODE):
        return "the API server has no Node with this name, so no pods are scheduled to it", CURES["node-missing"]
    if node is not None and node.ready in {"False", "Unknown"}:
        why = f" ({foreign_text(node.why_not_ready, 300)})" if node.why_not_ready else ""
        return f"the Node is not Ready{why}, so no pods are scheduled to it", CURES["node-not-ready"]
    closed = why_closed(node, facts.pods, tolerations)
    return ("", "") if closed is None else (closed.why[0].lower() + closed.why[1:], closed.cure)


def _uncertain(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield each resource whose free devices are uncertain, and the reason."""
    of_all = facts.not_free.get("") or facts.claimed.missing or facts.claimed.unidentified
    for resource in facts.lists.resources:
        if why := of_all or facts.not_free.get(resource):
            yield resource, why


def _blocked(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield each resource of which no pod can get a device now, and the reason."""
    why = facts.look.unwritable
    if why:
        for resource in facts.lists.resources:
            refuses = "so it refuses every pod that would get devices"
            yield resource, f"the kubelet cannot write its checkpoint, because {why}, {refuses}"
    for resource, plugin in facts.hanging.items():
        at = foreign_text(plugin.socket, 300)
        yield resource, f"the plugin for {resource} at {at} {_HANGS.format(resource)}"


_HANGS = "does not answer: it hangs, and after the first pod that requests {}, the kubelet admits no pod"


def _unknown(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield resources, each with a warning about a problem that an admitted pod may have."""
    for plugin, _, candidates in silent_plugins(facts.look, facts.lists):
        if plugin.problem != NOBODY_LISTENS and len(candidates) > 1:
            for resource in candidates:
                at = foreign_text(plugin.socket, 300)
                yield resource, f"the plugin at {at}, which may be the plugin for {resource}, {_HANGS.format(resource)}"
    for resource in sorted(facts.lists.left_out):
        yield resource, f"the kubelet's answer lists no device of {resource}: if the plugin has exited, no pod gets any"
    for one in facts.holders.missing:
        if is_of_others(facts.look, facts.lists, one.resource):
            continue
        yield (
            one.resource,
            f"no record shows the devices that pod {one.pod.identity} requests: the kubelet can give them to this pod",
        )
    yield from _of_claims(facts)


def _of_claims(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield each resource of which a pod can get a device that a claim holds or may hold, with a warning."""
    for resource in facts.lists.resources:
        free = [one for one in facts.lists.devices[resource] if one not in facts.holders.in_use.get(resource, ())]
        for device in free:
            if same := facts.claimed.find(resource, device):
                claim = same.prepared.claim
                yield resource, f"the kubelet can give this pod {device}, which ResourceClaim {claim} holds"
                break
        else:
            # Slices that are older than the plugin's list do not show for certain that the plugin and the driver have
            # the same devices.
            may = () if facts.claimed.missing else (facts.claimed.perhaps(resource, device) for device in free)
            if why := next(filter(None, may), ""):
                yield resource, f"the kubelet can give this pod a device that a ResourceClaim may hold: {why}"
