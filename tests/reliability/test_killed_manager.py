"""A manager that is killed while it admits has lost nothing that it had answered, and its next life doubles nothing.

`test_crash.py` kills at each system call of one write; here many admissions and evictions are under way over real
sockets, and the kill comes when it comes.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field

from devicecore import Admitted, Allocation, Container, DeviceManager, Pod, PodUid
from devicecore.adapters.file import FileStore
from devicecore.adapters.grpc_unix import GrpcUnixTransport, serve_plugin
from devicecore.adapters.memory import MemorySink
from tests.adapters.peers import environment
from tests.reliability.pods import plugin
from tests.reliability.scale import scale

RESOURCES = ("acme.io/gpu", "acme.io/nic")
THREADS = 4
ANSWERS = (12, 25, 7, 40, 1)
"""After how many answers a manager is killed, one life after the other."""

Devices = list[list[str]]
"""Container, resource and device, of each device that a pod has."""


def main(directory: str) -> None:
    """Manage; say what was restored, and then what every pod is told. The pods of each third admission stay."""
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
    """What each pod has, as JSON has it."""
    found: dict[str, Devices] = {}
    for held in allocations:
        found.setdefault(held.key.pod, []).extend([held.key.container, held.resource, id_] for id_ in held.devices)
    return found


def say(**words: object) -> None:
    """Print a line in one piece: several threads do."""
    os.write(1, json.dumps(words).encode() + b"\n")


@define
class Memory:
    """What pods were told, by a life after another. Those `going` may be gone or not."""

    holding: dict[str, Devices] = field(factory=dict)
    going: set[str] = field(factory=set)

    def hear(self, said: Any) -> bool:  # noqa: ANN401 - JSON is of any type
        """Take note; whether it was an admission."""
        if "evicting" in said:
            self.going.add(said["evicting"])
            del self.holding[said["evicting"]]
            return False
        self.holding[said["admitted"]] = said["devices"]
        return True

    def check(self, restored: dict[str, Devices]) -> None:
        """Whether everything is there, nothing twice, and of what was never answered no more than was under way."""
        assert self.holding.items() <= restored.items()
        unheard = restored.keys() - self.holding.keys() - self.going
        assert len(unheard) <= THREADS
        given = Counter((resource, id_) for of_pod in restored.values() for _, resource, id_ in of_pod)
        assert set(given.values()) <= {1}
        self.holding, self.going = dict(restored), set()


@contextmanager
def life(directory: Path) -> Generator["subprocess.Popen[str]", None, None]:
    """A manager's process, killed in the end."""
    command = [sys.executable, "-m", "tests.reliability.test_killed_manager", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            yield process
        finally:
            process.kill()


def test_what_was_answered_is_there_in_the_next_life_and_nothing_is_there_twice(directory: Path) -> None:
    memory = Memory()
    with (
        serve_plugin(plugin(RESOURCES[0], 600), directory, poll_interval=0.05),
        serve_plugin(plugin(RESOURCES[1], 600), directory, poll_interval=0.05),
    ):
        for number in range(scale(2, 25)):
            with life(directory) as process:
                assert process.stdout is not None
                first = json.loads(process.stdout.readline())
                assert first["problem"] == ""
                memory.check(first["held"])
                answers = 0
                while answers < ANSWERS[number % len(ANSWERS)]:
                    answers += memory.hear(json.loads(process.stdout.readline()))
                process.kill()
                for line in process.stdout:
                    if line.endswith("\n"):  # the last may have been cut off
                        memory.hear(json.loads(line))
    manager = DeviceManager(GrpcUnixTransport(directory), FileStore.in_directory(directory), MemorySink())
    with manager:
        assert manager.restored.problem is None
        memory.check(devices(manager.state.ledger))
    assert memory.holding


if __name__ == "__main__":
    main(sys.argv[1])
