"""A plugin whose devices are files: each file below a folder is a device, named as the file is.

Law: what is listed is what lies there now. A file that appears or goes is reported within a poll interval.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.model import MAX_DEVICE_ID_LENGTH, Device, DeviceId, ResourceName, resource_name
from devicecore.plugins.responses import environment_list, refuse_unknown
from devicecore.ports.plugin import DevicePlugin

logger: logging.Logger = logging.getLogger(__name__)


class DirectoryPlugin(DevicePlugin):
    """A `DevicePlugin` that offers the files below `path`; a folder that does not exist yet has none.

    A device's id is its file's name relative to `path`. Files whose name cannot be an id are left out, with a warning.

    Args:
        resource: the extended resource name.
        path: the folder.
        answer: what a container with these devices is given; by default the variable `DEVICES` lists them.
        poll_interval: seconds between two looks at the folder, while somebody listens.

    Raises:
        InvalidResourceNameError: the name is not one that a kubelet takes.
    """

    def __init__(
        self,
        resource: str,
        path: str | os.PathLike[str],
        answer: Callable[[Sequence[DeviceId]], ContainerAllocateResponse] | None = None,
        *,
        poll_interval: float = 0.5,
    ) -> None:
        self.resource: ResourceName = resource_name(resource)
        self.path: Path = Path(path)
        self._answer = answer or (lambda devices: environment_list(devices, "DEVICES"))
        self._poll_interval = poll_interval
        self._left_out: set[str] = set()

    def devices(self) -> Sequence[Device]:
        """The files that lie there now, by name."""
        names = sorted(os.path.relpath(path, self.path) for path in _files(self.path))
        return [Device(DeviceId(name)) for name in names if self._can_be_an_id(name)]

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        """Give a container the files.

        Raises:
            DeviceRefusedError: one of them does not lie there.
        """
        refuse_unknown(self.resource, devices, {device.id for device in self.devices()})
        return self._answer(devices)

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Look at the folder from now on, and call `changed` when other files lie there."""
        ended = threading.Event()

        def watch(seen: Sequence[Device]) -> None:
            while not ended.wait(self._poll_interval):
                now = self.devices()
                if now != seen:
                    seen = now
                    changed()

        thread = threading.Thread(
            target=watch, args=(self.devices(),), name=f"devicecore-watch-{self.path.name}", daemon=True
        )
        thread.start()
        return ended.set

    def _can_be_an_id(self, name: str) -> bool:
        possible = len(name) <= MAX_DEVICE_ID_LENGTH and name.isprintable()
        if not possible and name not in self._left_out:
            self._left_out.add(name)
            logger.warning("%r in %s is left out: it cannot be a device's id", name, self.path)
        return possible


def _files(folder: Path) -> Iterator[str]:
    """Every file below `folder`; what goes away meanwhile, or cannot be read, is not there."""
    for here, _, names in os.walk(folder):
        yield from (os.path.join(here, name) for name in names)  # noqa: PTH118 - thousands of times a second
