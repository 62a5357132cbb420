"""`devicecore kubelet` as a process whose directory of manifests contains hostile files."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.world import Json, KubeletWorld

from tests.adapters.peers import environment
from tests.hostile_documents import HOSTILE
from tests.reliability.scale import PATIENCE, scale

MANIFESTS = scale(200, 10_000)
LARGE_PODS = scale(8, 100)


def manifest(name: str) -> Json:
    spec = {"containers": [{"name": "main"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": name}, "spec": spec}


def running(state: Json) -> set[str]:
    return {pod["name"] for pod in state["pods"] if pod["phase"] == "Running"}


@pytest.fixture
def world(directory: Path) -> Iterator[KubeletWorld]:
    with KubeletWorld(directory) as world:
        yield world


def memory(process: int, name: str) -> int:
    """Return a process's memory in bytes: what it uses now (`VmRSS`), or its peak (`VmHWM`)."""
    (kilobytes,) = re.findall(rf"{name}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(kilobytes) * 1024


def test_hostile_manifests_neither_end_the_process_nor_delay_another_pod(world: KubeletWorld) -> None:
    world.put("z", manifest("first"))
    kubelet = world.start()
    world.wait_until_running("first")
    before = memory(kubelet.process.pid, "VmHWM")
    for number, text in enumerate(HOSTILE.values()):
        (world.manifests / f"{number:02}.yaml").write_text(text)
    (world.manifests / "\x1b[31mred.yaml").write_text("\x1b[31m")
    os.mkfifo(world.manifests / "pipe.yaml")
    world.put("z2", manifest("second"))
    state = kubelet.wait_for(
        lambda state: running(state) == {"first", "second"} and len(state["problems"]) == len(HOSTILE) + 2, PATIENCE
    )
    assert memory(kubelet.process.pid, "VmHWM") - before < 60_000_000
    assert all(problem[part].isprintable() for problem in state["problems"] for part in ("file", "problem"))
    assert "\x1b" not in world.log.read_text() + (world.root / "state.json").read_text()
    assert world.end_kubelet() == 0
    world.start()  # pods_state contains a copy of the manifests, which must not prevent the start
    world.kubelet.wait_for(lambda state: running(state) == {"first", "second"}, PATIENCE)
    assert world.end_kubelet() == 0


def test_many_large_pods_do_not_delay_a_small_one(world: KubeletWorld) -> None:
    world.put("first", manifest("first"))
    kubelet = world.start()
    world.wait_until_running("first")
    names = {f"large{number:02}" for number in range(LARGE_PODS)}
    containers = [{"name": f"c{number}", "image": "x" * 150} for number in range(900)]
    kubelet.process.send_signal(signal.SIGSTOP)  # so that the kubelet finds all pods at once
    for name in sorted(names):
        world.put(name, {**manifest(name), "spec": {"containers": containers}})
    world.put("small", manifest("small"))
    kubelet.process.send_signal(signal.SIGCONT)
    kubelet.wait_for(lambda state: running(state) == {"first", "small", *names}, PATIENCE)
    assert world.end_kubelet() == 0
    admitted = re.findall(r"pod default/(\w+): Running", world.log.read_text())
    assert admitted.index("small") < LARGE_PODS // 2


def test_many_manifests_are_admitted_and_the_process_exits_on_request(world: KubeletWorld) -> None:
    for number in range(MANIFESTS):
        world.put(f"{number:05}", manifest(f"p{number}"))
    began = time.monotonic()
    world.start()
    world.kubelet.wait_for(lambda state: len(running(state)) == MANIFESTS, PATIENCE)
    took = time.monotonic() - began
    began = time.monotonic()
    assert world.end_kubelet() == 0
    ended = time.monotonic() - began
    sys.stderr.write(f"{MANIFESTS} manifests: all run after {took:.1f} s, ended after {ended:.1f} s\n")
    assert len(json.loads((world.root / "pods_state").read_text().splitlines()[0])["files"]) == MANIFESTS


READ_EACH = """
import json, os, resource, sys, time
from devicecore.adapters.manifests import ManifestError, read_pods
from tests.hostile_documents import HOSTILE

for name, text in HOSTILE.items():
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        read_pods(text, "x.yaml")
    except ManifestError as error:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(json.dumps([name, time.process_time() - began, used * 1024, str(error)]), flush=True)
    os._exit(0)
"""


@pytest.mark.slow
def test_a_hostile_manifest_takes_little_time_and_memory() -> None:
    """Each manifest is read in a separate process, because the peak memory of a process never decreases."""
    command = [sys.executable, "-c", READ_EACH]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=PATIENCE, env=environment())
    results = {name: rest for name, *rest in map(json.loads, ran.stdout.splitlines())}
    assert results.keys() == HOSTILE.keys()
    for name, (seconds, used, message) in results.items():
        assert seconds < scale(4, 1), name  # seconds of processor time, which can double because of other processes
        assert used < 50_000_000, name
        assert message.startswith("x.yaml:")
