"""A signal while `devicecore kubelet` starts, admits, saves or publishes ends the process, and no socket is left."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.e2e.world import Plugin

from tests.adapters.peers import environment
from tests.reliability.scale import PATIENCE, STORM

GPU = "example.com/gpu"
PHASES = [
    "device-plugins/.devicecore.lock",
    "pod-resources/kubelet.sock",
    "device-plugins/kubelet_internal_checkpoint",
    "device-plugins/kubelet.sock",
    "plugins_registry",
    "pod-resources",
    "node.json",
    "pods_state",
    "state.json",
]
"""For each phase, the file that appears when the phase starts."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT] if STORM else [signal.SIGTERM])
@pytest.mark.parametrize("phase", PHASES if STORM else PHASES[:1])
def test_a_signal_in_any_phase_ends_the_kubelet_cleanly(phase: str, number: signal.Signals) -> None:
    with tempfile.TemporaryDirectory(prefix="dc", dir="/tmp") as place:
        root, pods, log = Path(place, "root"), Path(place, "pods"), Path(place, "log")
        root.mkdir()
        pods.mkdir()
        for name in range(20):
            containers = [{"name": "c", "resources": {"limits": {GPU: 1}}}]
            spec = {"containers": containers}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{name}"}, "spec": spec}
            (pods / f"{name}.json").write_text(json.dumps(pod))
        arguments = ("--resource", GPU, "--count", "20", "--socket-dir", str(root / "device-plugins"))
        plugin = Plugin("simulated", *arguments, log=log)
        command = [sys.executable, "-m", "devicecore_tools", "kubelet", "--root", str(root), "--manifests", str(pods)]
        try:
            with log.open("a") as output:
                kubelet = subprocess.Popen(command, stdout=output, stderr=output, env=environment())
            given_up_at = time.monotonic() + PATIENCE
            while not os.path.lexists(root / phase):
                assert time.monotonic() < given_up_at
                time.sleep(0.001)
            kubelet.send_signal(number)
            assert kubelet.wait(PATIENCE) == 0, log.read_text()
        finally:
            plugin.kill()
        assert f"ended by {number.name}" in log.read_text()
        assert "Traceback" not in log.read_text()
        left = [path.name for path in root.rglob("kubelet.sock")] + [path.name for path in root.rglob(".*.new")]
        assert left == []
