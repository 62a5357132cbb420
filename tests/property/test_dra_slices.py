"""Laws of the ResourceSlices that a driver publishes: what it must write, no matter what the API server contains."""

from collections.abc import Iterable

import pytest
from attrs import evolve
from devicecore_tools.testing.api_server.causes import Field
from devicecore_tools.testing.api_server.slice_rules import slice_causes
from hypothesis import example, given
from hypothesis import strategies as st

from devicecore.domain.dra.errors import InvalidPoolError
from devicecore.domain.dra.model import DriverName
from devicecore.domain.dra.objects import slice_of
from devicecore.domain.dra.slices import (
    MAX_DEVICES,
    MAX_GENERATION,
    NUMA_NODE,
    AttributeValue,
    DevicePool,
    PublishedDevice,
    StoredSlice,
    Version,
    canonical,
    changes,
)

DRIVER, NODE, NODE_UID = DriverName("gpu.example.com"), "worker-1", "node-uid"


def pool_of(count: int, *, name: str = NODE, first: int = 0) -> DevicePool:
    devices = tuple(PublishedDevice(f"d{n}", {"n": n}) for n in range(first, first + count))
    return DevicePool(DRIVER, NODE, name, devices)


def partitions_of(count: int) -> DevicePool:
    """Return a pool of tainted devices, each of which uses up its own counter set."""
    counters = {"memory": {"value": "80Gi"}}
    taints = [{"key": "example.com/broken", "effect": "NoSchedule"}]
    names = [f"gpu-{n}" for n in range(count)]
    fields = ({"consumesCounters": [{"counterSet": name, "counters": counters}], "taints": taints} for name in names)
    devices = tuple(PublishedDevice(f"mig-{name}", fields=each) for name, each in zip(names, fields, strict=True))
    return DevicePool(DRIVER, NODE, NODE, devices, tuple({"name": name, "counters": counters} for name in names))


pools = st.one_of(
    st.builds(pool_of, st.sampled_from([0, 1, 3, 128, 129, 300]), name=st.sampled_from([NODE, "old/pool"])),
    st.builds(partitions_of, st.sampled_from([1, 8, 65])),
)


def shown(pool: DevicePool) -> list[object]:
    return [*pool.counters, *(device.as_json() for device in pool.devices)]


class Server:
    """The ResourceSlices on an API server, which a driver changes."""

    def __init__(self, stored: Iterable[StoredSlice] = ()) -> None:
        self.slices = {one.name: one for one in stored}
        self.writes = 0

    def bring(self, pool: DevicePool, *, writes: int = 1_000, least: int = 1) -> bool:
        """Make the driver's changes in at most this many writes, and return whether there was anything to change."""
        needed = changes(pool, NODE_UID, self.slices.values(), least_generation=least)
        for body in (*needed.create, *needed.update):
            assert list(slice_causes(dict(body), None)) == []
            if writes:
                written = slice_of(body)
                self.slices[written.name] = written
                self.writes += 1
                writes -= 1
        for one in needed.delete[:writes]:
            del self.slices[one.name]
            self.writes += 1
        return bool(needed)

    def visible(self) -> list[object] | None:
        """Return the devices that a scheduler sees in the pool, or None if the pool is incomplete."""
        newest = max((one.generation for one in self.slices.values()), default=0)
        current = [one for one in self.slices.values() if one.generation == newest]
        if not current or len(current) != current[0].count:
            return None
        return [device for one in sorted(current, key=lambda one: one.name) for device in one.devices]


@st.composite
def leftovers(draw: st.DrawFn) -> list[StoredSlice]:
    """Slices from an earlier run, some of them changed or deleted by others, and a slice from a different node."""
    server = Server()
    for pool in draw(st.lists(pools, max_size=2)):
        server.bring(pool, least=draw(st.sampled_from([1, 7, MAX_GENERATION])))
    stored = []
    for one in server.slices.values():
        devices = draw(st.sampled_from([one.devices, [], [{"name": "x"}]]))
        generation = draw(st.sampled_from([one.generation, 1, 9]))
        if draw(st.booleans()):
            where = ("uid", "1", DRIVER, NODE, one.pool, generation)
            stored.append(StoredSlice(one.name, *where, one.count, one.metadata, devices))
    foreign = StoredSlice("foreign", "uid", "1", draw(st.sampled_from(["nic.example.com", DRIVER])), "n2", "p", 1, 1)
    return [*stored, foreign]


@given(leftovers(), pools)
def test_two_rounds_of_changes_show_the_wanted_devices_only(stored: list[StoredSlice], pool: DevicePool) -> None:
    server = Server(stored)
    server.bring(pool)
    server.bring(pool)  # a second round only if the highest generation of all had to go first
    assert not server.bring(pool)
    foreign = server.slices.pop("foreign")
    assert foreign in stored
    assert server.visible() == shown(pool)
    assert {one.pool for one in server.slices.values()} == {pool.name}


@given(leftovers(), pools, st.lists(st.integers(0, 3), max_size=4))
def test_a_driver_that_is_killed_between_two_writes_never_shows_a_mixture(
    stored: list[StoredSlice], pool: DevicePool, kills: list[int]
) -> None:
    server = Server([one for one in stored if (one.node, one.pool) == (NODE, pool.name)])
    whole = shown(pool)
    before = server.visible()
    for writes in kills:
        server.bring(pool, writes=writes)
        assert server.visible() in (None, whole, before)
    server.bring(pool)
    server.bring(pool)
    assert server.visible() == whole


@given(pools)
@example(pool_of(300))
def test_one_slice_that_was_deleted_costs_one_write_and_no_new_generation(pool: DevicePool) -> None:
    server = Server()
    server.bring(pool)
    first = min(server.slices)
    lost = server.slices.pop(first)
    server.writes = 0
    server.bring(pool)
    assert (server.writes, server.slices[first].generation) == (1, lost.generation)


def test_a_change_of_the_devices_gets_a_higher_generation_in_all_slices() -> None:
    server = Server()
    server.bring(pool_of(300))
    server.bring(pool_of(300, first=1))
    assert {one.generation for one in server.slices.values()} == {2}


@pytest.mark.parametrize("count", [2, 4])
def test_a_slice_that_says_another_number_of_slices_is_not_shown(count: int) -> None:
    """A scheduler sees none of a pool's devices if the number of slices differs from what they state."""
    server = Server()
    server.bring(pool_of(300))
    first = min(server.slices)
    server.slices[first] = evolve(server.slices[first], count=count)
    assert server.bring(pool_of(300))
    assert server.visible() == shown(pool_of(300))
    assert {one.generation for one in server.slices.values()} == {2}


def test_a_pool_without_devices_has_one_slice_and_a_large_one_full_slices() -> None:
    assert [len(part) for part in pool_of(0).slices().values()] == [0]
    assert [len(part) for part in pool_of(300).slices().values()] == [MAX_DEVICES, MAX_DEVICES, 44]
    devices = [device for _, part in sorted(pool_of(300).slices().items()) for device in part]
    assert devices == [device.as_json() for device in pool_of(300).devices]


def test_devices_that_the_server_changes_are_not_written_again_and_again() -> None:
    pool = pool_of(1)
    (stored,) = (slice_of(body) for body in changes(pool, NODE_UID, ()).create)
    devices = [{"name": "d0", "attributes": None}]
    kept = StoredSlice(stored.name, "", "", DRIVER, NODE, NODE, 1, 1, stored.metadata, devices)
    assert changes(pool, NODE_UID, [kept])
    returned = {canonical(stored.devices): canonical(kept.devices)}
    assert not changes(pool, NODE_UID, [kept], returned=returned)


def test_a_recreated_node_becomes_the_owner() -> None:
    server = Server()
    server.bring(pool_of(1))
    needed = changes(pool_of(1), "another-uid", server.slices.values())
    (body,) = needed.update
    assert slice_of(body).metadata["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "another-uid", "controller": True}
    ]
    assert slice_of(body).generation == 1


def test_the_longest_names_make_valid_slices() -> None:
    node = ".".join(["n" * 63] * 3 + ["n" * 61])
    pool = DevicePool(DriverName("d" * 63), node, node, (PublishedDevice("x" * 63),))
    (body,) = changes(pool, NODE_UID, ()).create
    (name,) = pool.slices()
    assert list(slice_causes(dict(body), None)) == []
    field = Field("metadata.name", name)
    field.subdomain()
    assert field.causes == []


@pytest.mark.parametrize(
    ("name", "attributes", "capacity"),
    [
        *((name, {}, {}) for name in ("Upper", "a" * 64)),
        *(("a", {name: 1}, {}) for name in ("1x", "Bad_Domain/x", "x" * 33)),
        *(("a", {"x": Version(text)}, {}) for text in ("v1.2.3", "1.2.3-01", "1.2.3-a..b")),
        *(("a", {"x": value}, {}) for value in ("y" * 65, 2**63, -(2**63) - 1, (0, 2**63), (), (0, True))),
        ("a", {f"x{number}": number for number in range(33)}, {}),
        ("a", {}, {"memory": "16 GB"}),
    ],
)
def test_a_device_that_an_api_server_would_refuse_is_refused_at_once(
    name: str, attributes: dict[str, AttributeValue], capacity: dict[str, str]
) -> None:
    with pytest.raises(InvalidPoolError):
        PublishedDevice(name, attributes, capacity)


@pytest.mark.parametrize(
    ("driver", "node", "pool", "devices"),
    [("GPU", NODE, NODE, ""), (DRIVER, "", NODE, ""), (DRIVER, NODE, "a//b", ""), (DRIVER, NODE, NODE, "aa")],
)
def test_a_pool_that_no_api_server_takes_is_refused_at_once(driver: str, node: str, pool: str, devices: str) -> None:
    with pytest.raises(InvalidPoolError):
        DevicePool(DriverName(driver), node, pool, map(PublishedDevice, devices))


def test_values_of_every_type_are_accepted_by_the_api_server() -> None:
    device = PublishedDevice(
        "a",
        {
            "b": True,
            "i": -(2**63),
            "s": "text",
            "v": Version("1.2.3-rc.1"),
            "resource.kubernetes.io/numaNode": 0,
            "resource.kubernetes.io/pcieRoot": ("pci0000:00", "pci0000:80"),
        },
    )
    device = PublishedDevice("a", device.attributes, {"memory": "16Gi"})
    (body,) = changes(DevicePool(DRIVER, NODE, NODE, (device,)), NODE_UID, ()).create
    assert list(slice_causes(dict(body), None)) == []
    assert device.as_json()["attributes"] == {
        "b": {"bool": True},
        "i": {"int": -(2**63)},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "resource.kubernetes.io/pcieRoot": {"strings": ["pci0000:00", "pci0000:80"]},
        "s": {"string": "text"},
        "v": {"version": "1.2.3-rc.1"},
    }


def test_slices_with_lists_have_as_many_devices_as_the_api_server_takes() -> None:
    devices = [PublishedDevice(f"d{number}", {NUMA_NODE: (0, 1)}) for number in range(65)]
    bodies = changes(DevicePool(DRIVER, NODE, NODE, devices), NODE_UID, ()).create
    assert [cause for body in bodies for cause in slice_causes(dict(body), None)] == []


def test_what_a_stored_slice_does_not_say_is_empty_or_0() -> None:
    """JSON from an API server leaves out numbers that are 0."""
    stored = slice_of({"metadata": {"name": "one"}, "spec": {"driver": DRIVER, "pool": {"name": "p"}}})
    assert stored == StoredSlice("one", "", "", DRIVER, "", "p", 0, 0, {"name": "one"}, [])
