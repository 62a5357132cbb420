"""After a manager is killed, the next manager knows all completed admissions, and no device has two owners.

`test_crash.py` kills a manager at each system call of one write. Here, many admissions and evictions run over real
sockets, and the kill comes at any time.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from attrs import define, field

from devicecore import Admitted, Allocation, Container, DeviceManager, Pod, PodUid
from devicecore.adapters.file import FileStore
from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin
from devicecore.adapters.memory import MemorySink
from tests.reliability.child import Child
from tests.reliability.pods import plugin
from tests.reliability.scale import scale

RESOURCES = ("acme.io/gpu", "acme.io/nic")
THREADS = 4
ANSWERS = (12, 25, 7, 40, 1)
"""The number of answers after which each run is killed."""

Devices = list[list[str]]
"""The container, resource and device id for each device that a pod holds."""


def main(directory: str) -> None:
    """Run a manager, and print what was restored, and then every admission and eviction.

    Every third admitted pod is not evicted.
    """
    manager = DeviceManager(GrpcUnixTransport(directory), FileStore.in_directory(directory), MemorySink())
    with manager, ThreadPoolExecutor(THREADS) as threads:
        say(problem=str(manager.restored.problem or ""), held=devices(manager.state.ledger))
        manager.wait_for(lambda node: len(live := node.inventory.status().allocatable) == 2 and all(live.values()), 60)

        def admit(thread: int) -> None:
            number = 0
            while True:
                number += 1
                uid = PodUid(f"pod-{os.getpid()}-{thread}-{number}")
                gpu, nic = RESOURCES
                wanted = Pod(uid, containers=(Container("a", {gpu: 1, nic: 1}), Container("b", {gpu: 1})))
                verdict = manager.admit(wanted)
                if isinstance(verdict, Admitted):
                    say(admitted=uid, devices=devices(verdict.allocations)[uid])
                    if number % 3:
                        say(evicting=uid)
                        manager.evict([uid])

        for thread in [threads.submit(admit, thread) for thread in range(THREADS)]:
            thread.result()


def devices(allocations: Iterable[Allocation]) -> dict[str, Devices]:
    """Return the devices of each pod, as lists for JSON."""
    found: dict[str, Devices] = {}
    for held in allocations:
        found.setdefault(held.key.pod, []).extend([held.key.container, held.resource, id_] for id_ in held.devices)
    return found


def say(**words: object) -> None:
    """Print a line with one write, because several threads print."""
    os.write(1, json.dumps(words).encode() + b"\n")


@define
class Answers:
    """The answers that pods got in all runs. The pods in `evicting` may or may not still be in the file."""

    holding: dict[str, Devices] = field(factory=dict)
    evicting: set[str] = field(factory=set)

    def record(self, said: Any) -> bool:  # noqa: ANN401 - JSON is of any type
        """Record a line that a run has printed, and return whether the line reports an admission."""
        if "evicting" in said:
            self.evicting.add(said["evicting"])
            del self.holding[said["evicting"]]
            return False
        self.holding[said["admitted"]] = said["devices"]
        return True

    def check(self, restored: dict[str, Devices]) -> None:
        """Check that every answer is restored, no device is held twice, and at most `THREADS` pods have no answer."""
        assert self.holding.items() <= restored.items()
        unanswered = restored.keys() - self.holding.keys() - self.evicting
        assert len(unanswered) <= THREADS
        given = Counter((resource, id_) for of_pod in restored.values() for _, resource, id_ in of_pod)
        assert set(given.values()) <= {1}
        self.holding, self.evicting = dict(restored), set()


def test_every_answer_is_restored_after_a_kill_and_no_device_has_two_owners(directory: Path) -> None:
    answered = Answers()
    with (
        serve_plugin(plugin(RESOURCES[0], 600), directory, poll_interval=0.05),
        serve_plugin(plugin(RESOURCES[1], 600), directory, poll_interval=0.05),
    ):
        for number in range(scale(2, 25)):
            with Child("test_killed_manager", directory) as process:
                first = json.loads(process.line())
                assert first["problem"] == ""
                answered.check(first["held"])
                answers = 0
                while answers < ANSWERS[number % len(ANSWERS)]:
                    answers += answered.record(json.loads(process.line()))
                process.kill()
                assert process.stdout is not None
                for line in process.stdout:
                    if line.endswith("\n"):  # the last line may be incomplete
                        answered.record(json.loads(line))
    manager = DeviceManager(GrpcUnixTransport(directory), FileStore.in_directory(directory), MemorySink())
    with manager:
        assert manager.restored.problem is None
        answered.check(devices(manager.state.ledger))
    assert answered.holding


if __name__ == "__main__":
    main(sys.argv[1])
