"""A plugin whose devices are the files below a directory. A device's id is the relative path of its file.

Law: the list shows the current contents of the directory. A file that appears or disappears is reported within one poll
interval.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.model import MAX_DEVICE_ID_LENGTH, Device, DeviceId, ResourceName, resource_name
from devicecore.domain.text import foreign_text
from devicecore.plugins.polling import PollingPlugin
from devicecore.plugins.responses import environment_list, refuse_unknown
from devicecore.system.arguments import checks_arguments

__all__ = ["DirectoryPlugin"]

logger: logging.Logger = logging.getLogger(__name__)


class DirectoryPlugin(PollingPlugin):
    """A `DevicePlugin` that offers the files below `path`. If the directory does not exist, there are no devices.

    A device's id is its file's path relative to `path`. A file whose path cannot be an id is left out, with a warning.
    To pass the files into containers as device nodes, use `devicecore.plugins.responses.device_nodes` as `answer`.

    Args:
        resource: the extended resource name.
        path: the directory that contains the files.
        answer: returns what a container gets for given devices. By default, the variable `DEVICES` lists the devices.
        poll_interval: seconds between two reads of the directory, while the plugin is served.

    Raises:
        InvalidResourceNameError: a kubelet would not accept the name.
    """

    @checks_arguments("resource")
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
        self.poll_interval = poll_interval
        self._answer = answer or (lambda devices: environment_list(devices, "DEVICES"))
        self._left_out: set[str] = set()

    def __repr__(self) -> str:
        return f"DirectoryPlugin({self.resource!r}, {str(self.path)!r})"

    def devices(self) -> Sequence[Device]:
        """Return the current files, sorted by name."""
        names = sorted(os.path.relpath(path, self.path) for path in _files(self.path))
        return [Device(DeviceId(name)) for name in names if self._can_be_an_id(name)]

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        """Return what a container gets for these files.

        Raises:
            DeviceRefusedError: one of the files does not exist.
        """
        refuse_unknown(self.resource, devices, {device.id for device in self.devices()})
        return self._answer(devices)

    def _can_be_an_id(self, name: str) -> bool:
        possible = len(name) <= MAX_DEVICE_ID_LENGTH and name.isprintable()
        if not possible and name not in self._left_out:
            self._left_out.add(name)
            expected = f"a device id, which has at most {MAX_DEVICE_ID_LENGTH} printable characters"
            logger.warning(
                "the file %s in %s is left out: its name cannot be used as %s", foreign_text(name), self.path, expected
            )
        return possible


def _files(folder: Path) -> Iterator[str]:
    """Yield every file below `folder`, except in directories so deep that the names in them are too long for an id."""
    longest = len(str(folder)) + len("/") + MAX_DEVICE_ID_LENGTH
    pending = [str(folder)]
    while pending:
        here = pending.pop()
        try:
            with os.scandir(here) as entries:
                found = list(entries)
        except OSError:
            continue  # the directory is gone or unreadable, so it contains no devices
        pending += [entry.path for entry in found if entry.is_dir(follow_symlinks=False) and len(entry.path) < longest]
        yield from (entry.path for entry in found if not os.path.isdir(entry.path))  # noqa: PTH112 - raises nothing
