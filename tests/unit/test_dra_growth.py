"""The cost of a pod's claims, counted rather than timed, does not depend on how many claims exist.

The tests count driver calls, writes, rendered entries and all function calls. They do not count the bytes that are
joined and written, because the whole file has to be written.
"""

import tracemalloc
from collections.abc import Mapping, Sequence

import pytest
from attrs import define, evolve, field, frozen

from devicecore.adapters.memory import MemoryPods, MemoryStore
from devicecore.adapters.memory_dra import MemoryClaims, MemoryDriverTransport
from devicecore.domain.dra import model, state_file
from devicecore.domain.dra.answers import PrepareResult, UnprepareResult
from devicecore.domain.dra.claims import ClaimCache, ClaimInfo
from devicecore.domain.dra.state_file import ClaimEntry, StateWriter, encode
from devicecore.domain.model import Container, ContainerClaim, Pod, PodClaim, PodUid
from devicecore.dra_manager import DraManager
from devicecore.ports.dra_driver import DraDriver
from devicecore.testing.interrupts import Interrupts
from tests.counting import function_calls

GPU = model.DriverName("gpu.example.com")
SMALL, LARGE = 100, 1_000
MEGABYTE = 1_000_000


@define
class Work:
    """The amount of work since counting started."""

    driver_calls: int = 0
    writes: int = 0
    calls: int = 0


class Driver(DraDriver):
    name = GPU

    def __init__(self, work: Work) -> None:
        self.work = work

    def prepare(self, claims: Sequence[model.ClaimRef]) -> Mapping[model.ClaimUid, PrepareResult]:
        self.work.driver_calls += 1
        return {claim.uid: PrepareResult((device(claim.key.name),)) for claim in claims}

    def unprepare(self, claims: Sequence[model.ClaimRef]) -> Mapping[model.ClaimUid, UnprepareResult]:
        self.work.driver_calls += 1
        return {claim.uid: UnprepareResult() for claim in claims}


@define
class Store(MemoryStore):
    work: Work = field(factory=Work)

    def save(self, blob: bytes) -> None:
        self.work.writes += 1
        super().save(blob)


def device(name: str) -> model.PreparedDevice:
    return model.PreparedDevice("node-1", f"device-of-{name}", None, ("gpu",), (f"gpu.example.com/gpu={name}",))


def claim(name: str, *pods: str) -> model.ResourceClaim:
    """Return a claim that these pods may use."""
    devices = (model.AllocatedDevice(GPU, "node-1", f"device-of-{name}", "gpu"),)
    return model.ResourceClaim(
        model.ClaimKey("default", name), model.ClaimUid(f"uid-of-{name}"), "", devices, frozenset(pods)
    )


def entry(number: int) -> ClaimEntry:
    name = f"claim-{number:05d}"
    return ClaimEntry(f"uid-of-{name}", name, "default", (f"uid-of-pod-{number:05d}",), {GPU: (device(name),)})


@frozen
class Counting:
    """A manager with many claims, and counters of the work for one more."""

    manager: DraManager
    claims: MemoryClaims
    work: Work

    def one_more_pod(self) -> Work:
        """Prepare and release the claim of a new pod, and return the work for preparing it."""
        self.claims.put(claim("new", "uid-of-new-pod"))
        container = Container("main", claims=[ContainerClaim("new")])
        pod = Pod(PodUid("uid-of-new-pod"), name="pod", claims=(PodClaim("new", "new"),), containers=(container,))
        self.work.driver_calls = self.work.writes = 0
        calls = function_calls(lambda: self.manager.prepare(pod))
        counted = evolve(self.work, calls=calls)
        assert self.manager.claim_devices(pod, "main") == ("gpu.example.com/gpu=new",)
        self.manager.unprepare(pod.uid)
        return counted


def running(count: int) -> Counting:
    """Return a running manager that has restored this many claims, and counters of its work."""
    work = Work()
    transport, claims = MemoryDriverTransport(), MemoryClaims()
    manager = DraManager(transport, claims, Store(encode(map(entry, range(count))), work=work))
    manager.start()
    transport.register(Driver(work))
    counting = Counting(manager, claims, work)
    counting.one_more_pod()  # the first save renders the restored claims
    return counting


@pytest.fixture
def rendering(monkeypatch: pytest.MonkeyPatch) -> list[ClaimInfo]:
    """Return a list that collects the claims that are rendered."""
    rendered: list[ClaimInfo] = []
    render = StateWriter._render  # noqa: SLF001 - the counted calls are private

    def counting(self: StateWriter, claim: ClaimInfo) -> tuple[bytes, bytes]:
        rendered.append(claim)
        return render(self, claim)

    monkeypatch.setattr(StateWriter, "_render", counting)
    return rendered


def test_one_claim_costs_one_call_and_a_write_before_and_after_it(rendering: list[ClaimInfo]) -> None:
    """After a crash, a kubelet needs the write that precedes the call. The second write contains the devices."""
    counting = running(LARGE)
    rendering.clear()
    work = counting.one_more_pod()
    assert (work.driver_calls, work.writes) == (1, 2)
    assert {claim.key.name for claim in rendering} == {"new"}


def test_one_claim_costs_the_same_function_calls_at_any_size() -> None:
    small, large = running(SMALL).one_more_pod(), running(LARGE).one_more_pod()
    assert small.calls == pytest.approx(large.calls, abs=30)  # at each of two writes, 4 calls for each of 3 more blocks
    assert large.calls < 1_000


def test_a_second_pod_of_a_prepared_claim_costs_one_write(rendering: list[ClaimInfo]) -> None:
    counting = running(SMALL)
    counting.claims.put(claim("shared", "a", "b"))
    for name, expected in (("a", (1, 2)), ("b", (0, 1)), ("b", (0, 0))):
        counting.work.driver_calls = counting.work.writes = 0
        counting.manager.prepare(Pod(PodUid(name), name=name, claims=(PodClaim("shared", "shared"),)))
        assert (counting.work.driver_calls, counting.work.writes) == expected
    assert len(rendering) > SMALL


def test_a_pod_without_claims_costs_no_write() -> None:
    """A kubelet writes its file for every pod."""
    counting = running(SMALL)
    counting.work.writes = 0
    counting.manager.prepare(Pod(PodUid("a")))
    counting.manager.unprepare(PodUid("a"))
    assert counting.work.writes == 0


def released(count: int, *, shared: bool) -> Work:
    """Return the work of releasing the claims of pods that are gone: one claim for each pod, or a shared claim."""
    work = Work()
    transport = MemoryDriverTransport()
    pods = tuple(f"uid-of-pod-{number:05d}" for number in range(count))
    entries = [evolve(entry(0), pods=pods)] if shared else map(entry, range(count))
    manager = DraManager(transport, MemoryClaims(), Store(encode(entries), work=work), pods=MemoryPods())
    manager.start()
    transport.register(Driver(work))
    work.calls = function_calls(manager.reconcile)
    assert manager.claims.claims == {}
    return work


def test_releasing_many_pods_costs_the_same_per_pod_at_any_size() -> None:
    small, large = released(SMALL, shared=False), released(LARGE, shared=False)
    assert (small.driver_calls, large.driver_calls) == (SMALL, LARGE)
    assert large.writes <= LARGE / 32 + 1
    assert large.calls / LARGE < 1.2 * small.calls / SMALL


def test_a_release_of_many_pods_of_one_claim_asks_the_driver_once() -> None:
    work = released(LARGE, shared=True)
    assert (work.driver_calls, work.writes) == (1, 2)
    assert work.calls < 10 * LARGE


def test_a_writer_that_was_interrupted_at_any_place_writes_the_next_file_right() -> None:
    claims = [one.claim for one in map(entry, range(600))]
    before, after = ClaimCache.of(claims), ClaimCache.of([*claims[:300], *claims[301:]])
    at, is_interrupted = 0, True
    while is_interrupted:
        writer = StateWriter()
        writer.encode(before)
        is_interrupted = Interrupts(at := at + 50, state_file).interrupt(lambda: writer.encode(after))  # noqa: B023 - called at once
        assert writer.encode(before) == encode(map(ClaimEntry.of, claims)), at
    assert at > 500


def test_ten_thousand_claims_fit_in_100_megabytes() -> None:
    """Only 1,000 claims are measured, against half of the limit, because the interpreter needs memory, too."""
    blob = encode(map(entry, range(1_000)))
    tracemalloc.start()
    try:
        counting = running(0)
        transport = MemoryDriverTransport()
        manager = DraManager(transport, counting.claims, Store(blob))
        manager.start()
        transport.register(Driver(Work()))
        Counting(manager, counting.claims, Work()).one_more_pod()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(manager.claims.claims) == 1_000
    assert peak < 50 * MEGABYTE / 10
