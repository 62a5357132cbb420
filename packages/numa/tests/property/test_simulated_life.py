"""Random events on a node that pins CPUs and memory, such as restarts and files that cannot be written.

Laws: nothing is allocated twice, the shared pool contains the rest, reserved plus free memory equals the allocatable
memory, a refused pod holds nothing, and a restart changes nothing.
"""

from random import Random

from devicecore_numa.domain.cpu_policy import CpuState
from devicecore_numa.domain.memory_policy import MemoryState
from devicecore_numa.domain.requests import read_pod
from hypothesis import given
from hypothesis import strategies as st
from tests.numa_laws import check_cpus, check_memory

from devicecore.adapters.memory import MemoryStore
from devicecore.domain.errors import StoreError
from tests.oracle import numa
from tests.oracle.asking import Json


class FullDisk(MemoryStore):
    """A store whose next `failures` saves fail."""

    failures = 0

    def save(self, blob: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreError("state", "write", "no space left on device")
        super().save(blob)


class Life:
    """A node that continues after its files could not be written or its process was killed."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.replay = numa.NumaReplay(numa.admissions(random))
        self.disks = {name: FullDisk() for name in self.replay.stores}
        self.replay.stores = dict(self.disks.items())
        self.runs = self.replay.begin()["ok"]

    @property
    def states(self) -> tuple[CpuState, MemoryState]:
        return self.replay.cpus.state, self.replay.memory.state

    def step(self, step: Json) -> None:
        """Perform a step, and check the laws after it."""
        disk = self.random.choice([*self.disks.values()])
        disk.failures = self.random.choice((0, 0, 0, 1, 2))
        before = self.states
        uid = step["object"]["metadata"]["uid"] if step["op"] == "admit" else step.get("uid", "")
        had = {*before[0].assignments, *before[1].assignments}
        try:
            answer = self.replay.play(step)
        except StoreError:
            answer = {"ok": True}
        disk.failures = 0
        cpus, memory = self.states
        if step["op"] == "admit" and not answer["ok"] and uid not in had:
            assert uid not in {*cpus.assignments, *memory.assignments}
        check_cpus(self.replay.policy, cpus)
        check_memory(memory)

    def restart(self) -> None:
        """Kill the node and restart it. Once the node knows which pods exist, it has the same state as before."""
        self.replay.admission.forget()
        before = self.states
        assert self.replay.begin()["ok"]
        after = self.states
        assert (after[0].shared, after[0].assignments) == (before[0].shared, before[0].assignments)
        assert (after[1].nodes, after[1].assignments) == (before[1].nodes, before[1].assignments)

    def crash(self) -> None:
        """Kill the node, perhaps between two writes. After the restart, pods that no longer exist hold nothing."""
        known = {uid: read_pod(one) for uid, one in self.replay.pods.objects.items()}
        assert self.replay.begin()["ok"]
        self.replay.admission.forget()
        cpus, memory = self.states
        assert {*cpus.assignments, *memory.assignments} <= {*known}
        check_cpus(self.replay.policy, cpus)
        check_memory(memory)


@given(st.integers(0, 2**32))
def test_the_laws_hold_when_files_cannot_be_written_and_after_restarts(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - no secret
    life = Life(random)
    if not life.runs:
        return
    for step in life.replay.case["steps"]:
        if step["op"] != "connect":
            life.step(step)
            random.choice((life.restart, life.crash, lambda: None, lambda: None))()
    life.replay.stop()
