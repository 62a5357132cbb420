"""A whole node: `devicecore kubelet`, its plugins, an API server, and all sources that show who holds which device."""

import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.forks import Fork
from tests.node_server import NodeServer

from devicecore.adapters.file import CHECKPOINT_NAME
from devicecore.adapters.pod_resources import PodResourcesClient
from devicecore.domain.checkpoint import decode

Json = Any

NODE = "node-1"
FOREIGN: Json = {
    "capacity": {"cpu": "8", "example.org/dongle": "3", "acme.io/other": "1"},
    "allocatable": {"cpu": "7500m", "example.org/dongle": "3"},
    "conditions": [{"type": "Ready", "status": "True"}],
}
PATIENCE = 60.0  # seconds for something that takes one or two seconds, unless the machine is overloaded
_METRIC = re.compile(r'devicecore_devices\{resource_name="([^"]*)",state="([^"]*)"\} (\S+)')


class Plugin:
    """`devicecore plugin`, as a process."""

    def __init__(self, *arguments: str, log: Path) -> None:
        with log.open("a") as stderr:
            self.process = Fork(("plugin", *arguments), stdin=subprocess.PIPE, stderr=stderr, bufsize=1)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


class Kubelet:
    """`devicecore kubelet --json` as a process: every line that it prints is a state."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self.states: list[Json] = []
        self._log = log
        self._changed = threading.Condition()
        with log.open("a") as stderr:
            self.process = Fork(("kubelet", *arguments, "--json"), stdout=subprocess.PIPE, stderr=stderr)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.states.append(json.loads(line))
                self._changed.notify_all()

    def wait_for(self, condition: Callable[[Json], object], timeout: float = PATIENCE, *, settled: bool = True) -> Json:
        """Return the first state, current or later, that meets `condition` and, if `settled` is true, is settled."""

        def found() -> bool:
            last = self.states[-1] if self.states else None
            return last is not None and (last["settled"] or not settled) and bool(condition(last))

        with self._changed:
            assert self._changed.wait_for(found, timeout), self.states[-1:] or self._log.read_text()[-3000:]
            return self.states[-1]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    @property
    def seconds_of_cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class KubeletWorld:
    """The kubelet and its plugins, in one directory. When the context exits, nothing is left running."""

    def __init__(self, directory: Path, node: str = NODE) -> None:
        self.directory = directory
        self.root = directory / "root"
        self.manifests = directory / "pods"
        self.log = directory / "kubelet.log"
        places = (self.root / name for name in ("device-plugins", "plugins_registry", "plugins"))
        for place in (*places, self.manifests, directory / "cdi"):
            place.mkdir(0o750, parents=True)
        self.kubeconfig: Path | None = None
        self.node = node
        self.plugins: list[Plugin] = []
        self.kubelets: list[Kubelet] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.kubelets and self.kubelet.process.poll() is None:
            self.kill_kubelet()
        for plugin in self.plugins:
            if plugin.process.poll() is None:
                plugin.kill()

    @property
    def kubelet(self) -> Kubelet:
        """Return the kubelet that was started last."""
        return self.kubelets[-1]

    def start(self) -> Kubelet:
        """Start a kubelet."""
        self.log.write_text("")
        arguments = ["--root", self.root, "--manifests", self.manifests, "--numa-nodes", "0,1"]
        arguments += ["--node-name", self.node, "--metrics-port", "0"]
        arguments += ["--kubeconfig", self.kubeconfig] if self.kubeconfig is not None else []
        self.kubelets.append(Kubelet(*map(str, arguments), log=self.log))
        return self.kubelet

    def kill_kubelet(self) -> None:
        """Kill the kubelet with SIGKILL."""
        assert self.kubelet.end(signal.SIGKILL) == -signal.SIGKILL

    def end_kubelet(self) -> int:
        """Tell the kubelet to exit, and return its exit status."""
        return self.kubelet.end(signal.SIGTERM)

    def plugin(self, resource: str, count: int, *more: str) -> Plugin:
        """Start a plugin that registers with the kubelet and obeys commands."""
        directory = str(self.root / "device-plugins")
        options = ("--count", str(count), "--socket-dir", directory, "--commands")
        return self._plugin("simulated", resource, *options, *more)

    def watched_plugin(self, resource: str, count: int) -> Plugin:
        """Start a plugin that the kubelet's plugin watcher finds."""
        files = self.directory / "files"
        files.mkdir()
        for number in range(count):
            (files / f"file-{number}").touch()
        return self._plugin("directory", resource, "--registry", str(self.root / "plugins_registry"), str(files))

    def _plugin(self, kind: str, resource: str, *more: str) -> Plugin:
        plugin = Plugin(kind, "--resource", resource, *more, log=self.directory / "plugins.log")
        self.plugins.append(plugin)
        return plugin

    def put(self, name: str, *objects: Json | str) -> None:
        """Write a manifest that contains these objects; strings are written unchanged."""
        unfinished = self.manifests / f".{name}"  # the kubelet ignores names that begin with a dot
        unfinished.write_text("\n---\n".join(one if isinstance(one, str) else json.dumps(one) for one in objects))
        unfinished.rename(self.manifests / f"{name}.yaml")

    def remove(self, *names: str) -> None:
        """Delete manifests."""
        for name in names:
            (self.manifests / f"{name}.yaml").unlink()

    def wait_until_running(self, *names: str) -> Json:
        """Return the first state in which exactly these pods exist and all of them are running."""
        return self.kubelet.wait_for(lambda state: phases(state) == dict.fromkeys(names, "Running"))

    def metrics(self) -> str:
        """Return the kubelet's metrics."""
        (url,) = re.findall(r"metrics at (\S+)", self.log.read_text())
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310 - our own
            text: str = answer.read().decode()
        return text


class World(KubeletWorld):
    """A node with an API server that stores the Node, and a check that all sources agree."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.api = NodeServer()
        self.api.add_node(NODE, FOREIGN)

    def __enter__(self) -> Self:
        self.api.start()
        self.kubeconfig = self.api.config(self.directory)
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.api.stop()

    def check_all_sources(self, state: Json) -> None:
        """Check that every source agrees with `state` when nothing is in progress."""
        assert json.loads((self.root / "state.json").read_text()) == state
        held = holdings(state)
        assert self.in_pod_resources() == (held, free_or_held(state))
        given_up_at = time.monotonic() + PATIENCE
        while self.in_checkpoint() != (held, healthy(state)):  # plugins' lists are saved in the background
            assert time.monotonic() < given_up_at, self.in_checkpoint()
            time.sleep(0.05)
        assert self.in_metrics() == counts(state)
        self.api.wait_for(lambda: self.published() == (state["capacity"], state["allocatable"]), PATIENCE)
        status = self.api.status(NODE)
        for section in ("capacity", "allocatable"):
            assert FOREIGN[section].items() <= status[section].items()
        assert status["conditions"] == FOREIGN["conditions"]

    def published(self) -> tuple[Json, Json]:
        """Return the Node object's capacity and allocatable, without resources from other writers."""
        status = self.api.status(NODE)
        capacity, allocatable = (
            {name: int(count) for name, count in status[section].items() if name not in FOREIGN["capacity"]}
            for section in ("capacity", "allocatable")
        )
        return capacity, allocatable

    def in_pod_resources(self) -> tuple[Json, Json]:
        """Return what the pod-resources API says about pods and allocatable devices."""
        with PodResourcesClient(self.root / "pod-resources" / "kubelet.sock") as client:
            listed = {
                (pod.namespace, pod.name, container.name, device.resource_name, id_)
                for pod in client.list().pod_resources
                for container in pod.containers
                for device in container.devices
                for id_ in device.device_ids
            }
            allocatable = client.get_allocatable_resources().devices
            return listed, {(device.resource_name, id_) for device in allocatable for id_ in device.device_ids}

    def in_checkpoint(self) -> tuple[Json, Json]:
        """Return what the checkpoint says about pods and healthy devices."""
        data = decode((self.root / "device-plugins" / CHECKPOINT_NAME).read_bytes()).verified()
        names = {pod["uid"]: pod for pod in json.loads((self.root / "state.json").read_text())["pods"]}
        entries = {
            (pod["namespace"], pod["name"], entry.container_name, entry.resource_name, id_)
            for entry in data.entries or ()
            for pod in [names[entry.pod_uid]]
            for ids in (entry.device_ids or {}).values()
            for id_ in ids or ()
        }
        registered = {name: set(ids or ()) for name, ids in (data.registered_devices or {}).items()}
        return entries, registered

    def in_metrics(self) -> Json:
        """Return the number of devices by resource and state, according to the metrics."""
        text = self.metrics()
        for series in ("pod_resources_endpoint_requests_list", "device_plugin_registration_total"):
            assert f"kubelet_{series}{{" in text
        return Counter({(name, kind): int(float(count)) for name, kind, count in _METRIC.findall(text)})


def phases(state: Json) -> dict[str, str]:
    return {pod["name"]: pod["phase"] for pod in state["pods"]}


def holdings(state: Json) -> Json:
    """Return the namespace, pod, container, resource and device id for each holder of a device."""
    return {
        (owner["namespace"], owner["pod"], owner["container"], name, device["id"])
        for name, resource in state["resources"].items()
        for device in resource["devices"]
        for owner in device["owners"]
    }


def healthy(state: Json) -> Json:
    """Return the healthy devices by resource."""
    return {
        name: {device["id"] for device in resource["devices"] if device["health"] == "Healthy"}
        for name, resource in state["resources"].items()
    }


def free_or_held(state: Json) -> Json:
    """Return the resource and id of each healthy device."""
    return {(name, id_) for name, ids in healthy(state).items() for id_ in ids}


def counts(state: Json) -> Json:
    """Return the number of devices by resource and state, as in the metrics: a held unhealthy device counts twice."""
    found = Counter[tuple[str, str]]()
    for name, resource in state["resources"].items():
        found.update({(name, kind): 0 for kind in ("free", "reserved", "allocated", "unhealthy")})
        for device in resource["devices"]:
            found[name, "unhealthy"] += device["health"] == "Unhealthy"
            found[name, "allocated"] += bool(device["owners"])
            found[name, "free"] += device["health"] == "Healthy" and not device["owners"]
    return found
