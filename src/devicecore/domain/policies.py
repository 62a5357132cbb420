"""Strategies for choosing a container's devices from the possible ones.

Law: a policy answers with `size` different devices from `available`, including all of `must_include`, and the same
question always gets the same answer. Ties are broken by the natural order of the ids.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

from attrs import field, frozen

from devicecore.domain.checks import repeated, tuple_of
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import PolicyError
from devicecore.domain.model import ContainerKey, DeviceId, NumaNode, ResourceName
from devicecore.domain.text import counted, foreign_text


@frozen
class Choice:
    """The question to a policy: which `size` devices should a container get?

    A kubelet puts the same question to a plugin.

    Attributes:
        resource: the extended resource.
        container: the container, with the UID of its pod.
        available: the devices that may be chosen, including `must_include`. If the topology manager has chosen NUMA
            nodes that have enough devices, these are only the devices on those nodes (kubelet.md 5.4).
        must_include: devices that the container gets regardless: those it reuses from an init container, and all
            devices of the chosen NUMA nodes if those nodes have too few devices.
        size: how many devices the container gets, including `must_include`.
        preferred: the plugin's unchecked answer to GetPreferredAllocation, which is empty if the plugin does not offer
            that call.
        numa_nodes: the NUMA nodes of each device that the plugin lists, empty for a device without topology.
        in_use: the resource's devices that containers hold.
        of_pod: for each resource, the devices that the pod's containers hold, with the devices' NUMA nodes.
        affinity: the NUMA nodes that the topology manager chose, or None if it has no preference.
    """

    resource: ResourceName
    container: ContainerKey
    available: DeviceSet
    must_include: DeviceSet
    size: int
    preferred: Sequence[DeviceId] = ()
    numa_nodes: Mapping[DeviceId, tuple[NumaNode, ...]] = field(factory=dict, hash=False, repr=False)
    in_use: DeviceSet = field(factory=DeviceSet)
    of_pod: Mapping[ResourceName, Mapping[DeviceId, tuple[NumaNode, ...]]] = field(factory=dict, hash=False, repr=False)
    affinity: tuple[NumaNode, ...] | None = None

    @property
    def missing(self) -> int:
        """The number of devices to choose in addition to `must_include`."""
        return self.size - len(self.must_include)

    @property
    def free(self) -> DeviceSet:
        """The devices to choose from: `available` without `must_include`."""
        return self.available - self.must_include

    def with_chosen(self, devices: Iterable[DeviceId]) -> DeviceSet:
        """Return `must_include`, filled up with the first of `devices`."""
        free = self.free
        chosen = list(dict.fromkeys(device for device in devices if device in free))[: self.missing]
        return self.must_include | self.available.index.select(chosen)


# --- the strategies ---------------------------------------------------------------------------------------------------


def kubelet_order(choice: Choice) -> DeviceSet:
    """Return the devices that the plugin prefers, then the others in natural order (kubelet: `devicesToAllocate`).

    If NUMA nodes were chosen, devices without a NUMA node come last. A manager without a policy chooses in this way.
    """
    others = choice.free
    if choice.affinity is not None:
        with_node = others.index.select(device for device in others if choice.numa_nodes.get(device))
        return choice.with_chosen((*choice.preferred, *with_node, *others))
    return choice.with_chosen((*choice.preferred, *others))


def packed(choice: Choice) -> DeviceSet:
    """Return devices on NUMA nodes that are nearly full, so that other NUMA nodes stay entirely free.

    Of the NUMA nodes with enough free devices, the policy takes the one with the fewest. If none has enough, the policy
    starts with the node that has the most.
    """
    return _by_numa_node(choice, Counter())


def aligned(choice: Choice) -> DeviceSet:
    """Return devices on as few NUMA nodes as possible, close to the devices of any resource that the pod holds.

    Of the NUMA nodes with enough free devices, the policy takes the one where the pod holds the most devices.
    """
    near = Counter(node for held in choice.of_pod.values() for nodes in held.values() for node in nodes)
    near.update(node for device in choice.must_include for node in choice.numa_nodes.get(device, ()))
    return _by_numa_node(choice, near)


def spread(choice: Choice) -> DeviceSet:
    """Choose devices one by one, each from the NUMA node with the fewest devices in use."""
    return _one_by_one(choice, lambda device: choice.numa_nodes.get(device, ()))


def distributed(choice: Choice) -> DeviceSet:
    """Choose replicas one by one, each from the card with the fewest replicas in use (NVIDIA: `distributed`).

    A replica's id is its card's id, `::` and a number, as in `GPU-1::0`.
    """
    return _one_by_one(choice, lambda device: device.partition("::")[0])


POLICIES: Mapping[str, Callable[[Choice], DeviceSet]] = {
    "kubelet": kubelet_order,
    "packed": packed,
    "spread": spread,
    "distributed": distributed,
    "aligned": aligned,
}
"""The policies of this module, by their names in the option `--policy`."""


def _by_numa_node(choice: Choice, near: Counter[NumaNode]) -> DeviceSet:
    """Take all free devices of one NUMA node after another. Nodes with higher counts in `near` are preferred."""
    free: dict[tuple[NumaNode, ...], list[DeviceId]] = {}
    for device in choice.free:
        free.setdefault(choice.numa_nodes.get(device, ()), []).append(device)
    chosen: list[DeviceId] = []
    while free and len(chosen) < choice.missing:
        wanted = choice.missing - len(chosen)
        nearness = {nodes: sum(near[node] for node in nodes) for nodes in free}
        enough = [nodes for nodes, devices in free.items() if len(devices) >= wanted]
        if enough:
            best = min(enough, key=lambda nodes: (-nearness[nodes], len(free[nodes]), nodes))
        else:
            best = min(free, key=lambda nodes: (-len(free[nodes]), -nearness[nodes], nodes))
        chosen += free.pop(best)
    return choice.with_chosen(chosen)


def _one_by_one(choice: Choice, group_of: Callable[[DeviceId], Hashable]) -> DeviceSet:
    """Take one device after another, each from the group with the fewest devices in use or chosen."""
    free: dict[Hashable, list[DeviceId]] = {}
    for device in choice.free:
        free.setdefault(group_of(device), []).append(device)
    used = Counter(map(group_of, choice.in_use | choice.must_include))
    chosen: list[DeviceId] = []
    while free and len(chosen) < choice.missing:
        group = min(free, key=used.__getitem__)  # ties are broken by the first device in natural order
        chosen.append(free[group].pop(0))
        used[group] += 1
        if not free[group]:
            del free[group]
    return choice.with_chosen(chosen)


# --- the answer -------------------------------------------------------------------------------------------------------


def answer(policy: Callable[[Choice], Collection[DeviceId]], choice: Choice) -> DeviceSet:
    """Ask a policy and check the answer.

    Raises:
        PolicyError: the policy raised an error, or its answer breaks the law of this module. The message names the
            policy.
    """
    name = foreign_text(getattr(policy, "__qualname__", None) or type(policy).__name__, 100)
    try:
        ids = tuple_of(policy(choice), str, "answer")
    except Exception as error:
        cause = foreign_text(f"{type(error).__name__}: {error}", 300)
        raise PolicyError(name, choice.resource, cause) from error
    if problem := _problem(choice, ids):
        raise PolicyError(name, choice.resource, f"{problem}, got {foreign_text(', '.join(ids) or 'none', 200)}")
    return choice.available.index.select(map(DeviceId, ids))


def _problem(choice: Choice, ids: Sequence[str]) -> str:
    """Return what is wrong with an answer, or an empty string if the answer is valid."""
    if strange := [device for device in ids if device not in choice.available]:
        return f"expected available devices, but {foreign_text(strange[0], 100)} is not available"
    if (twice := repeated(ids)) is not None:
        return f"expected different devices, but {foreign_text(twice, 100)} appears twice"
    if len(ids) != choice.size:
        return f"expected {counted(choice.size, 'device')}"
    if left_out := choice.must_include - set(map(DeviceId, ids)):
        return f"expected the devices that must be included, but {foreign_text(next(iter(left_out)), 100)} is missing"
    return ""
