"""A node with a DRA driver: `devicecore kubelet` and `devicecore dra-driver simulated` in one directory."""

import re
import signal
from pathlib import Path

from tests.e2e.world import KubeletWorld
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
        """The operations so far: `prepared` or `released`, and the claim's name."""
        return _CALL.findall(self._log.read_text())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process, and wait until it has ended."""
        self.process.kill()
        self.process.wait()


class ClaimWorld(KubeletWorld):
    """A kubelet, its plugins, and one driver at a time."""

    def __init__(self, directory: Path, driver: str, node: str) -> None:
        super().__init__(directory, node)
        self._driver_name = driver
        self._drivers: list[Driver] = []

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._drivers:
            self.kill_driver()

    @property
    def driver(self) -> Driver:
        """Return the driver that was started last."""
        return self._drivers[-1]

    def start_driver(self) -> None:
        """Start a driver with four devices, the last of them unhealthy."""
        source = ("--manifests", self.manifests) if self.kubeconfig is None else ("--kubeconfig", self.kubeconfig)
        arguments = (
            *("--name", self._driver_name, "--node", self.node, "--count", "4", "--unhealthy", "3"),
            *("--registry", self.root / "plugins_registry", "--plugin-dir", self.root / "plugins"),
            *(*source, "--cdi-dir", self.directory / "cdi"),
        )
        self._drivers.append(Driver(*map(str, arguments), log=self.directory / f"driver-{len(self._drivers)}.log"))

    def kill_driver(self) -> None:
        """Kill the driver, which leaves its sockets behind."""
        self.driver.kill()

    def calls(self) -> list[str]:
        """Return the operations of all drivers so far, in chronological order."""
        return [did for driver in self._drivers for did, _ in driver.calls]

    def cdi_files(self) -> list[str]:
        """Return the existing CDI files."""
        return sorted(path.name for path in (self.directory / "cdi").iterdir())
