"""`devicecore kubelet` as a process: whenever nothing is in progress, all sources agree."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.world import PATIENCE, Json, Kubelet, Plugin, World, holdings, phases

GPU, NIC, FILE = "acme.io/gpu", "acme.io/nic", "acme.io/file"


def pod(name: str, gpus: int, nics: int = 0, files: int = 0, *, sidecar: bool = False) -> Json:
    limits = {resource: count for resource, count in {GPU: gpus, NIC: nics, FILE: files}.items() if count}
    spec: Json = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    if sidecar:
        spec["initContainers"] = [{"name": "proxy", "restartPolicy": "Always", "resources": {"limits": {GPU: "1000m"}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def of(pod: str, state: Json) -> Json:
    return {holding for holding in holdings(state) if holding[1] == pod}


@pytest.fixture
def world(directory: Path) -> Iterator[World]:
    with World(directory) as world:
        yield world


def test_all_sources_agree_whenever_nothing_is_under_way(world: World) -> None:
    world.put("a", pod("a", 2, 1, 1, sidecar=True))  # the pod appears before any plugin exists
    gpus = world.plugin(GPU, 4, "--numa-nodes", "0,1")
    world.plugin(NIC, 2)
    files = world.watched_plugin(FILE, 2)
    kubelet = world.start()
    state = world.wait_until_running("a")
    assert len(of("a", state)) == 5
    world.check_all_sources(state)
    pods_come_and_change(world, kubelet)
    a_device_becomes_unhealthy(world, kubelet, gpus)
    kubelet = the_kubelet_is_killed(world, kubelet)
    a_plugin_is_killed(world, kubelet, gpus)
    files.kill()
    world.check_all_sources(kubelet.wait_for(lambda state: state["allocatable"][FILE] == 0))
    world.remove("a")
    state = kubelet.wait_for(lambda state: not state["pods"])
    assert holdings(state) == set()
    world.check_all_sources(state)
    assert kubelet.end(signal.SIGTERM) == 0
    assert "kubelet.sock" not in {path.name for path in world.root.rglob("*") if path.is_socket()}


def pods_come_and_change(world: World, kubelet: Kubelet) -> None:
    world.put("b", pod("b", 1))
    world.put("broken", "apiVersion: v1\nkind: Pod\nmetadata: [broken]")
    state = kubelet.wait_for(lambda state: len(phases(state)) == 2 and state["problems"])
    assert phases(state) == {"a": "Running", "b": "Running"}
    (problem,) = state["problems"]
    assert (problem["file"], problem["line"], problem["field"]) == ("broken.yaml", 3, "metadata")
    world.check_all_sources(state)
    world.put("c", pod("c", 2))  # not enough devices are left
    state = kubelet.wait_for(lambda state: "c" in phases(state))
    assert phases(state)["c"] == "Pending"
    assert f"requested number of devices unavailable for {GPU}" in state["pods"][-1]["reason"]
    world.check_all_sources(state)
    world.remove("broken")
    world.remove("c")
    world.put("b", pod("b", 0, 1))  # a pod with a changed spec counts as a new pod
    state = kubelet.wait_for(lambda state: {device[3] for device in of("b", state)} == {NIC})
    assert not state["problems"]
    world.check_all_sources(state)


def a_device_becomes_unhealthy(world: World, kubelet: Kubelet, gpus: Plugin) -> None:
    took: list[float] = []
    for health, healthy in {"unhealthy": 3, "healthy": 4}.items():
        gpus.send(f"{health} 0")  # pod a holds this device
        began = time.monotonic()
        world.api.wait_for(lambda healthy=healthy: world.published()[1].get(GPU) == healthy, PATIENCE)  # type: ignore[misc] # mypy cannot infer it
        took.append(time.monotonic() - began)
        world.check_all_sources(kubelet.wait_for(lambda state, healthy=healthy: state["allocatable"][GPU] == healthy))  # type: ignore[misc] # nor that
    assert min(took) < 10  # the shorter time counts, because the machine may be busy


def the_kubelet_is_killed(world: World, kubelet: Kubelet) -> Kubelet:
    before = of("a", kubelet.states[-1])
    world.kill_kubelet()
    world.remove("b")  # the pod is removed while no kubelet is running
    kubelet = world.start()
    state = kubelet.wait_for(lambda state: state["allocatable"] == {GPU: 4, NIC: 2, FILE: 2})
    assert phases(state) == {"a": "Running"}
    assert holdings(state) == before
    world.check_all_sources(state)
    return kubelet


def a_plugin_is_killed(world: World, kubelet: Kubelet, gpus: Plugin) -> None:
    before = of("a", kubelet.states[-1])
    gpus.kill()
    state = kubelet.wait_for(lambda state: state["allocatable"][GPU] == 0)
    assert state["capacity"][GPU] == 4
    assert of("a", state) == before
    world.check_all_sources(state)
    world.plugin(GPU, 4, "--numa-nodes", "0,1")
    world.check_all_sources(kubelet.wait_for(lambda state: state["allocatable"][GPU] == 4))


def test_changes_take_effect_soon_and_idling_costs_next_to_nothing(world: World) -> None:
    world.plugin(GPU, 4)
    kubelet = world.start()
    kubelet.wait_for(lambda state: state["allocatable"].get(GPU) == 4)
    wanted: list[str] = ["a", "b", ""] * 2
    took: list[float] = []
    for name in wanted:
        began = time.monotonic()
        if name:
            world.put("pod", pod(name, 1))
        else:
            world.remove("pod")
        kubelet.wait_for(lambda state, name=name: phases(state) == ({name: "Running"} if name else {}))  # type: ignore[misc] # mypy cannot infer it
        took.append(time.monotonic() - began)
    # The faster of the two runs of each kind counts, because the machine may be busy.
    assert all(min(pair) < 10 for pair in zip(took[:3], took[3:], strict=True)), took
    seen = 0
    while seen < len(kubelet.states):  # effects of the last change may arrive later
        seen = len(kubelet.states)
        time.sleep(1)
    used = kubelet.seconds_of_cpu
    time.sleep(3)  # during this time, nothing happens
    assert kubelet.seconds_of_cpu - used <= 0.3  # the kubelet needs 0.03 seconds on an idle machine
    assert len(kubelet.states) == seen


def test_an_unavailable_api_server_misses_only_what_is_over(world: World) -> None:
    world.api.stop()
    world.plugin(GPU, 4)
    world.put("a", pod("a", 1))
    kubelet = world.start()
    world.wait_until_running("a")
    world.api.start()
    world.api.wait_for(lambda: world.published()[0].get(GPU) == 4, PATIENCE)
    world.check_all_sources(kubelet.states[-1])
    assert kubelet.end(signal.SIGINT) == 0


def test_a_plugin_that_does_not_answer_delays_no_other_pod(world: World) -> None:
    hung = world.plugin("acme.io/hung", 50)
    world.plugin(GPU, 4)
    kubelet = world.start()
    kubelet.wait_for(lambda state: set(state["capacity"]) == {"acme.io/hung", GPU})
    hung.process.send_signal(signal.SIGSTOP)
    for name in ("a", *(f"a{number}" for number in range(40))):
        world.put(name, json.dumps(pod(name, 1)).replace(GPU, "acme.io/hung"))
    world.put("b", pod("b", 1))

    def b_runs() -> bool:
        return any(phases(state).get("b") == "Running" for state in kubelet.states)

    until = time.monotonic() + PATIENCE
    while not b_runs() and time.monotonic() < until:
        time.sleep(0.05)  # the state is not settled, so no wait method can be used
    assert b_runs()
    assert phases(kubelet.states[-1])["a"] == "Pending"
    assert kubelet.end(signal.SIGTERM) == 0  # the kubelet exits long before the plugin's deadline
    hung.process.send_signal(signal.SIGCONT)
