"""The pools of devices that a node can use.

Laws: of a pool, only the slices of the highest generation count that a node sees, and if these are not all, of the
highest that there is. A pool that is incomplete or contradicts itself gives no device. The order of pools, slices and
devices is that in which a scheduler tries them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from attrs import field, frozen

from devicecore.domain.allocation.model import Features, PoolDevice, PoolSlice, TargetNode
from devicecore.domain.quantity import Quantity

PoolKey = tuple[str, str]
"""The driver and the name of a pool."""


@frozen
class Pool:
    """The devices of a pool that a node may use.

    Attributes:
        devices: with their slices, in the order in which they are tried; those of other nodes are among them if their
            slice has devices of several nodes.
        elsewhere: the other devices of the pool. They consume its counters too.
        counters: quantities by counter, by the set of counters.
        problem: why the pool gives no device; empty if it does.
        is_incomplete: whether slices are missing.
    """

    key: PoolKey
    devices: tuple[tuple[PoolSlice, PoolDevice], ...] = ()
    elsewhere: tuple[PoolDevice, ...] = ()
    counters: Mapping[str, Mapping[str, Quantity]] = field(factory=dict)
    problem: str = ""
    is_incomplete: bool = False
    binds_late: bool = False

    def __str__(self) -> str:
        return "/".join(self.key)


class Slices:
    """ResourceSlices of a cluster, by pool and by node, so that looking for the pools of one node is fast."""

    def __init__(self, slices: Iterable[PoolSlice]) -> None:
        self._pools: dict[PoolKey, list[PoolSlice]] = defaultdict(list)
        nodes: dict[PoolKey, set[str]] = defaultdict(set)
        known = list(slices)
        # If slices say different counts, the first of them counts; those of a node come before those of several.
        self._rank = {one: (not (one.place and one.place.node), number) for number, one in enumerate(known)}
        for one in sorted(known, key=lambda one: (one.driver, one.pool, one.name)):
            self._pools[one.driver, one.pool].append(one)
            nodes[one.driver, one.pool].add(one.place.node if one.place else "")
        self._of_node: dict[str, list[PoolKey]] = defaultdict(list)
        for key, names in nodes.items():
            for name in [""] if "" in names else names:
                self._of_node[name].append(key)

    def pools(self, node: TargetNode, features: Features) -> list[Pool]:
        """Return the pools of which a node may use a device, in the order in which they are tried.

        Pools with devices that bind late, because they have binding conditions, come last.
        """
        keys = sorted(self._of_node.get(node.name, []) + self._of_node.get("", []))
        pools = [pool for key in keys if (pool := _pool(key, self._pools[key], node, features, self._rank))]
        return sorted(pools, key=lambda pool: pool.binds_late)


def _pool(
    key: PoolKey,
    slices: Sequence[PoolSlice],
    node: TargetNode,
    features: Features,
    rank: Mapping[PoolSlice, tuple[bool, int]],
) -> Pool | None:
    """Return what a node sees of a pool, None if it is nothing, or if newer slices are on their way."""
    known = [one for one in slices if features.partitionable_devices or (one.place is not None and not one.counters)]
    here = [one for one in known if (one.counters and one.is_visible(node)) or one.targets(node)]
    generation = max((one.generation for one in here), default=0)
    here = [one for one in here if one.generation == generation]
    if not here:
        return None
    current, count = here, here[0].count
    if any(one.count != count for one in here):
        count = min(here, key=rank.__getitem__).count
    if len(here) != count:
        if any(one.generation > generation for one in slices):
            return None
        current = [one for one in slices if one.generation == generation]
        if len(current) != count:
            problem = f"{len(current)} of {count} slices of generation {generation} are there"
            return Pool(key, problem=problem, is_incomplete=True)
    counters = {name: values for one in here for name, values in one.counters}
    return Pool(
        key,
        tuple((one, device) for one in here for device in one.devices),
        tuple(device for one in current if one not in here for device in one.devices),
        counters,
        _contradiction(here, current if features.partitionable_devices else (), counters),
        binds_late=any(device.conditions for one in here for device in one.devices),
    )


def _contradiction(
    here: Sequence[PoolSlice], consuming: Iterable[PoolSlice], counters: Mapping[str, Mapping[str, Quantity]]
) -> str:
    """Return what is wrong with a pool, empty if nothing is."""
    for what, names in (
        ("device", [device.key.device for one in here for device in one.devices]),
        ("counter set", [name for one in here for name, _ in one.counters]),
    ):
        if len(set(names)) < len(names):
            return f"the {what} {next(name for name in names if names.count(name) > 1)} is there twice"
    for device in (device for one in consuming for device in one.devices):
        for name, amounts in device.counters:
            unknown = [counter for counter in amounts if counter not in counters.get(name, {})]
            if name not in counters or unknown:
                return f"the device {device.key.device} consumes {'/'.join([name, *unknown[:1]])}, which is unknown"
    return ""
