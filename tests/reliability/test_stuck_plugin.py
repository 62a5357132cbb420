"""A plugin that is suspended during Allocate does not delay other pods, and its late answer is not used."""

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devicecore import Admitted, ContainerAllocateResponse, DeviceId, DeviceManager, Refused, ResourceName
from devicecore.adapters.file import CHECKPOINT_NAME, FileStore
from devicecore.adapters.grpc_unix import GrpcUnixTransport, PluginLimits, serve_plugin
from devicecore.adapters.memory import MemorySink
from devicecore.domain.errors import PluginCallError
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from tests.reliability.child import Child
from tests.reliability.pods import GPU, held, plugin, pod
from tests.reliability.scale import PATIENCE

STUCK = "acme.io/stuck"


class StuckPlugin(SimulatedPlugin):
    """A plugin that suspends its own process in its first Allocate, and answers after SIGCONT and a line of input."""

    def __init__(self) -> None:
        super().__init__(STUCK, simulated_devices("stuck", 2))
        self.calls = 0
        self.may_continue = threading.Event()

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        """Answer a request. The first answer is late."""
        self.calls += 1
        if self.calls == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            self.may_continue.wait()  # the signal may take effect slightly later
        print("answered", flush=True)  # noqa: T201 - what the test waits for
        return super().allocate(devices)


def main(directory: str) -> None:
    """Serve the stuck plugin."""
    stuck = StuckPlugin()
    with serve_plugin(stuck, directory):
        for _ in sys.stdin:
            stuck.may_continue.set()


def test_other_pods_are_admitted_meanwhile_and_the_late_answer_is_not_used(directory: Path) -> None:
    transport = GrpcUnixTransport(directory, limits=PluginLimits(allocate=12.0))
    manager = DeviceManager(transport, FileStore.in_directory(directory), MemorySink())
    with (
        manager,
        serve_plugin(plugin(), directory),
        Child("test_stuck_plugin", directory) as process,
        ThreadPoolExecutor(1) as caller,
    ):
        manager.wait_for(lambda node: len(node.inventory.status().allocatable) == 2, PATIENCE)
        ended = threading.Event()
        waiting = caller.submit(manager.admit, pod("pod-stuck", 1, STUCK))
        waiting.add_done_callback(lambda _: ended.set())
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # the process is suspended during Allocate

        verdicts = [manager.admit(pod(f"pod-{size}", size)) for size in (0, 1, 2)]
        assert [type(verdict) for verdict in verdicts] == [Admitted] * 3
        assert not ended.is_set()  # the other admissions did not wait for the plugin
        checkpoint = json.loads((directory / CHECKPOINT_NAME).read_bytes())
        assert {entry["ResourceName"] for entry in checkpoint["Data"]["PodDeviceEntries"]} == {GPU}

        verdict = waiting.result(PATIENCE)
        assert isinstance(verdict, Refused)
        assert isinstance(verdict.error, PluginCallError)
        assert "DeadlineExceeded" in str(verdict.error)
        assert held(manager).keys() == {"pod-1", "pod-2"}
        assert not manager.state.ledger.reservations
        before, blob = manager.state, (directory / CHECKPOINT_NAME).read_bytes()

        process.send_signal(signal.SIGCONT)
        process.send("go on")
        assert process.line() == "answered"
        again = manager.admit(pod("pod-again", 2, STUCK))  # both devices are free and the plugin answers again
        assert isinstance(again, Admitted)
        assert process.line() == "answered"
        assert before.ledger.in_use(ResourceName(STUCK)).isdisjoint(again.devices("main")[ResourceName(STUCK)])
        assert held(manager).keys() == {"pod-1", "pod-2", "pod-again"}
        assert b"pod-stuck" not in blob + (directory / CHECKPOINT_NAME).read_bytes()


if __name__ == "__main__":
    main(sys.argv[1])
