"""Laws of the registry of drivers, and of the health that drivers report."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devicecore.domain.dra import drivers, health
from devicecore.domain.dra.errors import DriverAlreadyRegisteredError, DriverNotRegisteredError
from devicecore.domain.dra.health import DEFAULT_LIMIT, MAX_MESSAGE, SECOND, DraHealth, HealthCache, ReportedHealth
from devicecore.domain.dra.health_file import decode, encode
from devicecore.domain.dra.model import DriverName

GPU = DriverName("gpu.example.com")
INSTANCES = [drivers.InstanceId(GPU, f"/run/{number % 2}.sock", drivers.SERVICES[0], number) for number in range(4)]

instances = st.sampled_from(INSTANCES)
events: st.SearchStrategy[drivers.DriverEvent] = st.one_of(
    instances.map(drivers.DriverRegistered),
    instances.map(drivers.DriverConnected),
    instances.map(drivers.DriverDisconnected),
    instances.map(drivers.DriverRemoved),
    instances.map(drivers.HealthEnded),
    instances.map(lambda instance: drivers.HealthReported(instance, ())),
)
histories = st.lists(st.tuples(events, st.floats(0, 40)), max_size=15)


def played(history: Sequence[tuple[drivers.DriverEvent, float]]) -> list[tuple[float, drivers.DriverRegistry]]:
    """Return the time of each event and the registry after it. A refused event changes nothing."""
    now, registry = 0.0, drivers.DriverRegistry()
    states = [(now, registry)]
    for event, later in history:
        now += later
        try:
            registry = registry.apply(event, now)
        except DriverAlreadyRegisteredError:
            assert isinstance(event, drivers.DriverRegistered)
        states.append((now, registry))
    return states


@given(histories)
def test_the_newest_connected_instance_is_called_else_the_newest(
    history: Sequence[tuple[drivers.DriverEvent, float]],
) -> None:
    for _, registry in played(history):
        known = registry.instances.get(GPU, ())
        try:
            chosen = registry.choose(GPU)
        except DriverNotRegisteredError:
            assert not known
            continue
        connected = [instance for instance in known if instance in registry.connected]
        assert chosen == (connected or known)[-1]
        assert len({instance.endpoint for instance in known}) == len(known)


@given(histories)
def test_only_registered_instances_connect_or_report(history: Sequence[tuple[drivers.DriverEvent, float]]) -> None:
    for _, registry in played(history):
        assert registry.connected | registry.reporting <= set(registry.instances.get(GPU, ()))


@given(histories, st.floats(0, 100))
def test_slices_are_due_30_seconds_after_the_last_connection(
    history: Sequence[tuple[drivers.DriverEvent, float]], later: float
) -> None:
    states = played(history)
    now, registry = states[-1][0] + later, states[-1][1]
    ends = [*(start for start, _ in states[1:]), now]
    connected = [
        end for (start, state), end in zip(states, ends, strict=True) if state.is_connected(GPU) and end > start
    ]
    if any(end > now - drivers.WIPE_DELAY + 1e-6 for end in connected) or not any(GPU in state for _, state in states):
        assert registry.due(now) == ()
    if registry.due(now):
        assert registry.wiped(GPU).due(now) == ()


# --- health -----------------------------------------------------------------------------------------------------------

reports = st.builds(
    ReportedHealth,
    st.just("pool"),
    st.sampled_from(["d0", "d1"]),
    st.sampled_from(DraHealth),
    st.integers(-1, 60),
    st.sampled_from(["", "fine", "ä" * 600, "m" * 1_024, "m" * 1_025]),
)


@given(
    st.lists(
        st.tuples(st.lists(reports, max_size=2, unique_by=lambda item: item.device), st.integers(0, 90)), max_size=6
    )
)
def test_a_report_counts_until_its_limit_has_passed(history: Sequence[tuple[Sequence[ReportedHealth], int]]) -> None:
    cache, now = HealthCache(), 0
    last: dict[str, tuple[ReportedHealth, int]] = {}
    for reported, seconds in history:
        now += seconds * SECOND
        update = cache.report(GPU, reported, now)
        cache = update.cache
        assert {device for _, _, device in update.changed} <= {*last, *(item.device for item in reported)}
        last |= {item.device: (item, now) for item in reported}
        for device, (item, then) in last.items():
            limit = item.limit * SECOND if item.limit > 0 else DEFAULT_LIMIT
            found, message = cache.health(GPU, "pool", device, now)
            if now - then > limit:
                assert (found, message) == (DraHealth.UNKNOWN, "")
            else:
                assert found is item.health
                assert len(message.encode()) <= MAX_MESSAGE + 2  # a cut character has become U+FFFD
                assert message == item.message or message.endswith("...")
    assert cache.cleared(GPU).drivers == {}
    assert cache.report(GPU, [], now).changed == frozenset() or any(
        item.is_expired(now) for item in cache.drivers.get(GPU, {}).values()
    )


@given(st.lists(reports, min_size=1, max_size=2, unique_by=lambda item: item.device))
def test_the_same_report_again_says_nothing_new(reported: Sequence[ReportedHealth]) -> None:
    once = HealthCache().report(GPU, reported, 0)
    assert len(once.changed) == len(reported)
    assert once.cache.report(GPU, reported, SECOND).changed == frozenset()


@given(
    st.lists(
        st.tuples(
            st.sampled_from([GPU, DriverName("nic.example.com")]),
            st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True),
        ),
        max_size=10,
    )
)
def test_the_health_that_is_kept_has_a_bound(history: Sequence[tuple[DriverName, Sequence[int]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health, "MAX_SIZE_OF_DRIVER", 12 * 120)
        patch.setattr(health, "MAX_SIZE", 18 * 120)
        cache = HealthCache()
        for now, (driver, numbers) in enumerate(history):
            reported = [ReportedHealth("pool", f"device-{number:09}", DraHealth.HEALTHY) for number in numbers]
            update = cache.report(driver, reported, now)
            known = cache.drivers.get(driver, {}).keys() | {f"pool/{item.device}" for item in reported}
            cache = update.cache
            assert len(cache.drivers[driver]) + update.forgotten == len(known)
            kept = [cache.drivers[driver].get(f"pool/{item.device}") for item in reported]
            assert {item.updated for item in kept if item} <= {now}  # never an older report on the same device
            sizes = [len(devices) for devices in cache.drivers.values()]
            assert max(sizes) <= 12
            assert sum(sizes) <= 18
            if update.forgotten and len(cache.drivers) == 1:  # the last reported device is kept first
                assert {f"pool/{item.device}" for item in reported} <= cache.drivers[driver].keys()
        assert decode(encode(cache)).drivers == cache.drivers
