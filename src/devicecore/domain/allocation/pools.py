"""The pools of devices that a node can use.

Laws: only slices of one generation count. This is the highest generation that the node sees, or, if the node does not
see all slices of that generation, the highest that exists. Counters belong to the whole pool, no matter which node
their slice names. A pool that is incomplete or whose slices contradict each other provides no devices. Pools, slices
and devices are in the order in which a scheduler tries them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from attrs import field, frozen

from devicecore.domain.allocation.faults import KubernetesFault
from devicecore.domain.allocation.model import Features, PoolDevice, PoolSlice, TargetNode
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import counted

PoolKey = tuple[str, str]
"""A pool's driver and name."""


@frozen
class Pool:
    """The devices of a pool that a node may use.

    Attributes:
        devices: the devices with their slices, in the order in which they are tried. Devices of other nodes are
            included if a slice has devices of several nodes.
        elsewhere: the other devices of the pool, which also consume its counters.
        counters: quantities by counter, grouped by counter set.
        problem: why the pool provides no devices, or an empty string if the pool provides devices.
        is_incomplete: whether the number of slices differs from the number that the slices declare.
        has_surplus: whether there are more slices than the slices declare, as for a node that an autoscaler simulates.
        is_obsolete: whether a newer generation contains nothing for the node, in which case nothing is missing.
    """

    key: PoolKey
    devices: tuple[tuple[PoolSlice, PoolDevice], ...] = ()
    elsewhere: tuple[PoolDevice, ...] = ()
    counters: Mapping[str, Mapping[str, Quantity]] = field(factory=dict)
    problem: str = ""
    is_incomplete: bool = False
    has_surplus: bool = False
    is_obsolete: bool = False
    binds_late: bool = False

    def __str__(self) -> str:
        return "/".join(self.key)

    @property
    def blocks_all(self) -> bool:
        """Whether a request for all devices cannot be answered because of this pool."""
        return bool(self.problem) and not self.is_obsolete


class Slices:
    """ResourceSlices of a cluster, by pool and by node, so that finding one node's pools is fast."""

    def __init__(self, slices: Iterable[PoolSlice]) -> None:
        self._pools: dict[PoolKey, list[PoolSlice]] = defaultdict(list)
        nodes: dict[PoolKey, set[str]] = defaultdict(set)
        known = list(slices)
        # If slices declare different counts, the first slice wins. Slices of one node come before slices of several
        # nodes.
        self._rank = {one: (not (one.place and one.place.node), number) for number, one in enumerate(known)}
        # Kubernetes 1.36 treats slices with counters as slices of several nodes.
        self._rank_of_1_36 = {one: (rank or bool(one.counters), at) for one, (rank, at) in self._rank.items()}
        for one in sorted(known, key=lambda one: (one.driver, one.pool, one.name)):
            self._pools[one.driver, one.pool].append(one)
            nodes[one.driver, one.pool].add(one.place.node if one.place else "")
        self._of_node: dict[str, list[PoolKey]] = defaultdict(list)
        for key, names in nodes.items():
            for name in [""] if "" in names else names:
                self._of_node[name].append(key)
        self._foreign: dict[Features, list[Pool]] = {}

    def pools(
        self, node: TargetNode, features: Features, faults: frozenset[KubernetesFault] = frozenset()
    ) -> list[Pool]:
        """Return the pools with devices that a node may use, in the order in which they are tried.

        Pools with devices that bind late, because they have binding conditions, come last. `faults` are the faults to
        apply when slices are read: none, or the faults of a Kubernetes release.
        """
        keys = self._of_node.get(node.name, []) + self._of_node.get("", [])
        pools = [pool for key in keys if (pool := self._pool(key, node, features, faults))]
        if KubernetesFault.FOREIGN_COUNTERS in faults:
            pools += (pool for pool in self._broken_elsewhere(features) if pool.key not in keys)
        return sorted(pools, key=lambda pool: (pool.binds_late, pool.key))

    def _broken_elsewhere(self, features: Features) -> list[Pool]:
        """Return the pools that provide no devices when only counters are checked, as in Kubernetes 1.36."""
        if features not in self._foreign:
            nowhere, faults = TargetNode(""), frozenset({KubernetesFault.FOREIGN_COUNTERS})
            found = (self._pool(key, nowhere, features, faults) for key in self._pools)
            self._foreign[features] = [pool for pool in found if pool and pool.blocks_all]
        return self._foreign[features]

    def _pool(
        self, key: PoolKey, node: TargetNode, features: Features, faults: frozenset[KubernetesFault]
    ) -> Pool | None:
        """Return the part of a pool that a node sees, or None if the node sees none of the pool."""
        slices, has_counters = self._pools[key], features.partitionable_devices
        known = [one for one in slices if has_counters or (one.place is not None and not one.counters)]
        everywhere = KubernetesFault.FOREIGN_COUNTERS in faults
        here = [one for one in known if (everywhere and one.counters) or one.targets(node)]
        generation = max((one.generation for one in here), default=0)
        here = [one for one in here if one.generation == generation]
        if not here:
            return None
        current, count = here, here[0].count
        if any(one.count != count for one in here):
            rank = self._rank_of_1_36 if everywhere else self._rank
            count = min(here, key=rank.__getitem__).count
        devices = tuple((one, device) for one in here for device in one.devices)
        if len(here) != count:
            newest = max(one.generation for one in slices)
            if newest > generation:
                problem = f"its slices for the node have generation {generation}, but generation {newest} exists"
                return Pool(key, devices, problem=problem, is_obsolete=True)
            current = [one for one in slices if one.generation == generation]
            if len(current) != count:
                problem = f"it has only {len(current)} of {counted(count, 'slice')} of generation {generation}"
                if has_surplus := len(current) > count:
                    problem = f"its resourceSliceCount is {count}, but it has {counted(len(current), 'slice')}"
                return Pool(key, devices, problem=problem, is_incomplete=True, has_surplus=has_surplus)
        sets = [one for one in current if one.counters] if has_counters else []
        counters = {name: values for one in sets for name, values in one.counters}
        return Pool(
            key,
            devices,
            tuple(device for one in current if one not in here for device in one.devices),
            counters,
            _contradiction(here, sets, current if has_counters else (), counters),
            binds_late=any(device.conditions for one in here for device in one.devices),
        )


def _contradiction(
    here: Sequence[PoolSlice],
    sets: Sequence[PoolSlice],
    consuming: Iterable[PoolSlice],
    counters: Mapping[str, Mapping[str, Quantity]],
) -> str:
    """Return what is wrong with a pool, or an empty string if nothing is."""
    for what, names in (
        ("device", [device.key.device for one in here for device in one.devices]),
        ("counter set", [name for one in sets for name, _ in one.counters]),
    ):
        if len(set(names)) < len(names):
            return f"the {what} {next(name for name in names if names.count(name) > 1)} appears twice"
    for device in (device for one in consuming for device in one.devices):
        for name, amounts in device.counters:
            unknown = [counter for counter in amounts if counter not in counters.get(name, {})]
            if name not in counters or unknown:
                return f"the device {device.key.device} consumes {'/'.join([name, *unknown[:1]])}, which is unknown"
    return ""
