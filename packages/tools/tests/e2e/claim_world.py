"""A node with a DRA driver: `devicecore kubelet` and `devicecore dra-driver simulated`, in one directory."""

import json
import re
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.e2e.world import PATIENCE, Json, Kubelet, Plugin
from tests.forks import Fork

_CALL = re.compile(r" (prepared|released) ResourceClaim (\S+)$", re.MULTILINE)


class Driver:
    """`devicecore dra-driver simulated`, as a process."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self._log = log
        with log.open("a") as stderr:
            self.process = Fork(("dra-driver", "simulated", *arguments), stderr=stderr)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """What it has done, each with the claim."""
        return _CALL.findall(self._log.read_text())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()


class ClaimWorld:
    """Both processes, and what they write. A context manager that leaves nothing running."""

    def __init__(self, directory: Path, driver: str, node: str) -> None:
        self.directory = directory
        self.root = directory / "root"
        self.manifests = directory / "pods"
        for place in (self.root / "plugins", self.manifests, directory / "cdi"):
            place.mkdir(0o755, parents=True)
        self.kubeconfig: Path | None = None
        self._driver_name = driver
        self._node = node
        self._drivers: list[Driver] = []
        self._kubelets: list[Kubelet] = []
        self._plugins: list[Plugin] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kubelets and self.kubelet.process.poll() is None:
            self.kill_kubelet()
        if self._drivers:
            self.kill_driver()
        for plugin in self._plugins:
            if plugin.process.poll() is None:
                plugin.kill()

    # --- processes ----------------------------------------------------------------------------------------------------

    @property
    def kubelet(self) -> Kubelet:
        """The kubelet that was started last."""
        return self._kubelets[-1]

    @property
    def driver(self) -> Driver:
        """The driver that was started last."""
        return self._drivers[-1]

    def start(self) -> None:
        """Start a kubelet."""
        arguments = ["--root", str(self.root), "--manifests", str(self.manifests), "--node-name", self._node]
        arguments += ["--metrics-port", "0"]
        if self.kubeconfig is not None:
            arguments += ["--kubeconfig", str(self.kubeconfig)]
        self._kubelets.append(Kubelet(*arguments, log=self.directory / "kubelet.log"))

    def start_driver(self) -> None:
        """Start a driver with four devices, the last of them unhealthy."""
        if self.kubeconfig is None:
            claims = ("--manifests", str(self.manifests))
        else:
            claims = ("--kubeconfig", str(self.kubeconfig))
        self._drivers.append(
            Driver(
                *("--name", self._driver_name, "--node", self._node, "--count", "4", "--unhealthy", "3"),
                *("--registry", str(self.root / "plugins_registry"), "--plugin-dir", str(self.root / "plugins")),
                *(*claims, "--cdi-dir", str(self.directory / "cdi")),
                log=self.directory / f"driver-{len(self._drivers)}.log",
            )
        )

    def plugin(self, resource: str, count: int) -> Plugin:
        """Start a device plugin."""
        plugins = self.root / "device-plugins"
        plugins.mkdir(0o755, exist_ok=True)
        arguments = ("simulated", "--resource", resource, "--count", str(count), "--socket-dir", str(plugins))
        self._plugins.append(Plugin(*arguments, log=self.directory / "plugins.log"))
        return self._plugins[-1]

    def kill_kubelet(self) -> None:
        """Kill the kubelet, which can do nothing about it."""
        self.kubelet.end(signal.SIGKILL)

    def end_kubelet(self) -> int:
        """Ask the kubelet to end; its exit status."""
        return self.kubelet.end(signal.SIGTERM)

    def kill_driver(self) -> None:
        """Kill the driver. Its sockets stay."""
        self.driver.kill()

    # --- manifests and states -----------------------------------------------------------------------------------------

    def put(self, name: str, *objects: Json) -> None:
        """Write a manifest of these objects."""
        unfinished = self.manifests / f".{name}"  # a name that does not count
        unfinished.write_text("\n---\n".join(map(json.dumps, objects)))
        unfinished.rename(self.manifests / f"{name}.yaml")

    def remove(self, *names: str) -> None:
        """Delete manifests."""
        for name in names:
            (self.manifests / f"{name}.yaml").unlink()

    def wait_for(self, condition: Callable[[Json], object], *, settled: bool = True) -> Json:
        """The first state of the kubelet from now on that is as it should be."""
        return self.kubelet.wait_for(condition, PATIENCE, settled=settled)

    def wait_until_running(self, *names: str) -> Json:
        """The first state with these pods and no others, all of them running."""
        expected = dict.fromkeys(names, "Running")
        return self.wait_for(lambda state: {pod["name"]: pod["phase"] for pod in state["pods"]} == expected)

    def calls(self) -> list[str]:
        """What all drivers so far have done, in order."""
        return [did for driver in self._drivers for did, _ in driver.calls]

    def metrics(self) -> str:
        """The metrics of the kubelet that was started last."""
        url = re.findall(r"metrics at (\S+)", (self.directory / "kubelet.log").read_text())[-1]
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310 - our own
            text: str = answer.read().decode()
        return text

    def cdi_files(self) -> list[str]:
        """The CDI files that are there."""
        return sorted(path.name for path in (self.directory / "cdi").iterdir())
