"""A program that runs a manager while many plugins connect and disconnect, measures itself, and prints JSON.

`python -m tests.reliability.storm fleets DIRECTORY PLUGINS ROUNDS`: PLUGINS plugins in several processes, which are
killed or suspended while they send lists. `python -m tests.reliability.storm registrations DIRECTORY N`: a plugin
registers N times. In both scenarios, pods get devices of a healthy plugin all the time.
"""

import ctypes
import gc
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from devicecore import Admitted, DeviceManager, NodeState, ResourceName
from devicecore.adapters.file import FileStore, JsonFileSink
from devicecore.adapters.grpc_unix import GrpcUnixTransport, PluginLimits, serve_plugin
from devicecore.domain.inventory import GRACE_PERIOD
from tests.reliability.child import Child
from tests.reliability.pods import plugin, pod
from tests.reliability.registrar import RESOURCE
from tests.reliability.scale import PATIENCE, scale

HEALTHY = "acme.io/healthy"
PROCESSES = scale(2, 5)
SLACK = 8
"""The number of threads by which two measurements may differ, because thread pools grow and shrink."""
SETTLING = 60.0
"""Seconds until the number of threads must be within `SLACK`."""

Record = dict[str, Any]


class Clock:
    """A clock of monotonic seconds plus `ahead`, which is not changed while a thread holds `still`."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.still = threading.Lock()

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class SteadyClient(threading.Thread):
    """A thread that admits and evicts pods with devices of the healthy plugin, and records how long admissions take."""

    def __init__(self, manager: DeviceManager, clock: Clock) -> None:
        super().__init__(name="client")
        self.seconds: list[float] = []
        self.refusals: list[str] = []
        self._manager = manager
        self._clock = clock
        self._ended = threading.Event()

    def run(self) -> None:
        """Admit and evict pods until `end` is called."""
        while not self._ended.wait(0.005):
            wanted = pod(f"client-{len(self.seconds)}", 2, HEALTHY)
            with self._clock.still:
                began = time.monotonic()
                verdict = self._manager.admit(wanted)
            self.seconds.append(time.monotonic() - began)
            if not isinstance(verdict, Admitted):
                self.refusals.append(str(verdict))
            self._manager.evict([wanted.uid])

    def end(self) -> Record:
        """Stop, and return the measurements."""
        self._ended.set()
        self.join()
        ordered = sorted(self.seconds)
        return {
            "admissions": len(ordered),
            "refusals": self.refusals,
            "median": ordered[len(ordered) // 2],
            "p99": ordered[len(ordered) * 99 // 100],
            "longest": ordered[-1],
        }


def measured() -> Record:
    """Return the number of this process's threads and descriptors, and its memory."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (rss,) = re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return {
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208 - they appear and disappear while we look
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - as above
        "megabytes": round(int(rss) / 1024, 1),
    }


def settled(before: Record) -> Record:
    """Return the measurements once this process holds no more than in `before`, or after a while."""
    deadline = time.monotonic() + SETTLING
    while True:
        with suppress(AttributeError):  # memory that glibc keeps for later use does not count
            ctypes.CDLL(None).malloc_trim(0)
        now = measured()
        back = now["threads"] <= before["threads"] + SLACK and now["descriptors"] <= before["descriptors"]
        if back or time.monotonic() > deadline:
            return now
        time.sleep(0.1)  # the kernel sends no event when a descriptor is closed


def live(node: NodeState) -> list[ResourceName]:
    """Return the resources of fleets whose plugins are connected and have reported devices."""
    return [
        name
        for name, resource in node.inventory.resources.items()
        if name.startswith("acme.io/fleet-") and resource.plugins and resource.plugins[-1].report
    ]


def one_fleet(directory: str, manager: DeviceManager, clock: Clock, number: int) -> Record:
    """Start `number` plugins, suspend or kill them, and return the measurements."""
    share = -(-number // PROCESSES)
    with ExitStack() as stack:
        fleet = [
            stack.enter_context(Child("fleet", directory, str(first), str(min(first + share, number))))
            for first in range(0, number, share)
        ]
        assert [process.line() for process in fleet] == ["ready"] * len(fleet)
        manager.wait_for(lambda node: len(live(node)) == number, PATIENCE)
        during = measured()
        fleet[0].send_signal(signal.SIGSTOP)  # a suspended fleet neither answers nor ends
        for process in fleet[1:]:
            process.send_signal(signal.SIGKILL)
        manager.wait_for(lambda node: len(live(node)) <= share, PATIENCE)
        stopped = len(live(manager.state))
        fleet[0].send_signal(signal.SIGKILL)
        manager.wait_for(lambda node: not live(node), PATIENCE)
    with clock.still:
        clock.ahead += GRACE_PERIOD + 1
    removed = len(manager.tick().removed)
    return {"during": during, "stopped": stopped, "removed": removed}


def fleets(directory: str, number: str, rounds: str) -> Iterator[Record]:
    """Run several fleets one after another, and yield the measurements."""
    with managed(directory) as (manager, clock):
        one_fleet(directory, manager, clock, 2 * PROCESSES)  # creates the objects that are kept from then on
        before = measured()
        client = SteadyClient(manager, clock)
        client.start()
        records = []
        for _ in range(int(rounds)):
            record = one_fleet(directory, manager, clock, int(number))
            records.append({**record, "after": settled(before)})
        yield {"before": before, "rounds": records, "client": client.end(), "after": settled(before)}


def registrations(directory: str, number: str) -> Iterator[Record]:
    """Run a plugin that registers this many times, and yield the measurements."""

    def one_plugin(node: NodeState) -> bool:
        known = node.inventory.resources.get(ResourceName(RESOURCE))
        return known is not None and len(known.plugins) == 1 and known.plugins[0].report is not None

    def storm(count: str) -> tuple[Any, Record]:
        with Child("registrar", directory, count) as registrar:
            answers = json.loads(registrar.line())
            manager.wait_for(one_plugin, PATIENCE)
            return answers, measured() if not baseline else settled(baseline)

    baseline: Record = {}
    with managed(directory) as (manager, clock):
        _, baseline = storm("8")
        client = SteadyClient(manager, clock)
        client.start()
        answers, after = storm(number)
        yield {"before": baseline, "answers": answers, "after": after, "client": client.end()}


@contextmanager
def managed(directory: str) -> Generator[tuple[DeviceManager, Clock], None, None]:
    """Run a manager, and a healthy plugin in a separate process."""
    clock = Clock()
    # Registrations are not limited: otherwise, 10,000 of them would take minutes. The limit has its own tests.
    transport = GrpcUnixTransport(directory, limits=PluginLimits(registrations_per_second=None))
    sink = JsonFileSink(f"{directory}/status.json")
    manager = DeviceManager(transport, FileStore.in_directory(directory), sink, clock=clock)
    with manager, Child("storm", "healthy", directory) as healthy:
        assert healthy.line() == "ready"
        manager.wait_for(lambda node: node.inventory.status().allocatable.get(ResourceName(HEALTHY)) == 8, PATIENCE)
        first = pod("first", 2, HEALTHY)
        assert isinstance(manager.admit(first), Admitted)  # this opens the connection for calls, which stays open
        manager.evict([first.uid])
        yield manager, clock


def healthy(directory: str) -> Iterator[str]:
    """Serve the plugin that always works."""
    with serve_plugin(plugin(HEALTHY, 8), directory) as served:
        served.wait_registered(PATIENCE)
        yield "ready"
        sys.stdin.read()


def main(scenario: str, *arguments: str) -> None:
    """Run a scenario, and print its results."""
    scenarios: dict[str, Callable[..., Iterator[Record | str]]] = {
        "fleets": fleets,
        "registrations": registrations,
        "healthy": healthy,
    }
    for line in scenarios[scenario](*arguments):
        print(line if isinstance(line, str) else json.dumps(line), flush=True)  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(*sys.argv[1:])
