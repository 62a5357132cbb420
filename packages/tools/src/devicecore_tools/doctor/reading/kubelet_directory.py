"""The kubelet's directory: the checkpoint, and the sockets of the kubelet and of plugins.

Law: only the checkpoint is opened. Each socket is connected to at most once, to see whether a process listens. Nothing
is sent.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from attrs import frozen

from devicecore.adapters.file import CHECKPOINT_NAME
from devicecore.domain.checkpoint import CheckpointData, FileReport, FileVerdict, judge
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.dra.state_file import FILE_NAME as CLAIMS_NAME
from devicecore.domain.errors import UnreadableReceiptError
from devicecore.domain.json_size import MAX_BYTES
from devicecore.domain.model import ContainerKey, PodUid, Receipt, ResourceName
from devicecore.system.files import read_file
from devicecore.system.sockets import is_served, socket_identity
from devicecore_tools.doctor.look.formats import examine
from devicecore_tools.doctor.look.values import (
    NO_FILE,
    PLUGINS_PREFIX,
    REGISTRY_PREFIX,
    CheckpointSeen,
    Reading,
    ReceiptSeen,
    SocketsSeen,
)

MAX_ENTRIES = 10_000
"""The maximum number of files that are examined in a directory and below it."""

MAX_TRIED = 256
"""The maximum number of sockets to connect to."""

DEFAULT_PLUGINS = "/var/lib/kubelet/device-plugins"
"""The device plugin directory of every kubelet (kubelet: `DevicePluginPath`)."""

_MAX_DEPTH = 3  # directories below `plugins_registry`
_KUBELET = "kubelet.sock"
_POD_RESOURCES = "pod-resources/kubelet.sock"
KUBELET_SOCKETS = (PLUGINS_PREFIX + _KUBELET, _POD_RESOURCES)
"""The sockets of the kubelet itself, by their names in `SocketsSeen.made`.

A kubelet creates these sockets one after another when it starts.
"""
_CDI_ANNOTATION = "cdi.k8s.io/"


@frozen
class KubeletDirectory:
    """The locations of a kubelet's files: below its root directory, or only in a device plugin directory."""

    root: str
    plugins: str
    registry: str
    pod_resources: str

    @classmethod
    def at(cls, path: str) -> "KubeletDirectory":
        """Return the directories of a kubelet whose root, or whose `device-plugins` directory, is `path`."""
        root = Path(path)
        plugins = root / "device-plugins"
        # In another user's directory, os.path functions return False, whereas Path methods raise.
        if not os.path.isdir(plugins) and (  # noqa: PTH112 - see above
            root.name == "device-plugins" or os.path.exists(root / CHECKPOINT_NAME)  # noqa: PTH110 - see above
        ):
            plugins, root = root, root.parent
        elif not os.path.isdir(plugins) and os.path.isdir(root / "pod-resources"):  # noqa: PTH112 - see above
            plugins = Path(DEFAULT_PLUGINS)  # the same for all kubelets, regardless of the root directory
        sockets = str(root / "plugins_registry"), str(root / "pod-resources" / _KUBELET)
        return cls(str(root), str(plugins), *sockets)

    @property
    def has_root(self) -> bool:
        """Whether the files next to the directory `plugins` belong to a kubelet, judging by the directory's name."""
        return Path(self.plugins).absolute().name == "device-plugins"

    @property
    def claims(self) -> str:
        """The path of the claim checkpoint."""
        return str(Path(self.root) / CLAIMS_NAME)

    @property
    def checkpoint(self) -> str:
        """The path of the checkpoint."""
        return str(Path(self.plugins) / CHECKPOINT_NAME)


IS_DIRECTORY = "it is a directory"
"""Why a kubelet can neither read nor write a checkpoint."""


def why_unwritable(path: str) -> str:
    """Return why no process can rewrite a file, or an empty string if a process may be able to.

    A read-only mount proves nothing, because our mounts may differ from the kubelet's.
    """
    if os.path.isdir(path):  # noqa: PTH112 - raises nothing
        return IS_DIRECTORY
    with suppress(OSError):
        of = os.statvfs(Path(path).parent)
        if of.f_blocks and not of.f_bfree:
            return "its file system is full"
        if of.f_files and not of.f_ffree:
            return "its file system has no inodes left"
    return ""


def not_a_file() -> CheckpointSeen:
    """Return the result of reading a checkpoint that is a directory."""
    return CheckpointSeen(FileReport(FileVerdict.MALFORMED, problem=IS_DIRECTORY), unwritable=IS_DIRECTORY)


def read_checkpoint(path: str, before: Reading[CheckpointSeen] | None = None) -> Reading[CheckpointSeen]:
    """Return the checkpoint at `path`, or `before` if the file is unchanged."""
    try:
        blob = read_file(path, MAX_BYTES, follow_links=True)
    except FileNotFoundError:
        if not Path(path).parent.is_dir():
            return Reading(path, problem=f"there is no directory {Path(path).parent}")
        return Reading.of(path, CheckpointSeen(judge(None)), (NO_FILE,))
    except OSError as error:
        if isinstance(error, IsADirectoryError):
            return Reading.of(path, not_a_file())
        return Reading(path, problem=error.strerror or str(error))
    if before and before.value and before.value.data and before.value.blob == blob:
        return before
    verdict, data = examine(blob)
    receipts, notes = ((), ()) if data is None else _receipts(data)
    return Reading.of(path, CheckpointSeen(verdict, data, receipts, blob if data is not None else b""), notes)


def read_sockets(directory: KubeletDirectory) -> Reading[SocketsSeen]:
    """Return the sockets in the directories of plugins, by their paths relative to these directories."""
    notes: list[str] = []
    try:
        found = _sockets(directory.plugins, 1, notes)
    except FileNotFoundError:
        return Reading(directory.plugins, problem="there is no such directory")
    except OSError as error:
        return Reading(directory.plugins, problem=error.strerror or str(error))
    try:
        registry = _sockets(directory.registry, _MAX_DEPTH, notes)
    except FileNotFoundError:
        registry = []
    except OSError as error:
        notes.append(f"{directory.registry}: {error.strerror}")
        registry = []
    plugins = tuple(name for name in found if name != _KUBELET)
    served = {PLUGINS_PREFIX + name: str(Path(directory.plugins) / name) for name in found}
    served |= {REGISTRY_PREFIX + name: str(Path(directory.registry) / name) for name in registry}
    served[_POD_RESOURCES] = directory.pod_resources
    seen = SocketsSeen(_KUBELET in found, plugins, tuple(registry), dict(_tried(served)), made=dict(_made(served)))
    return Reading.of(directory.plugins, seen, tuple(notes))


def _tried(sockets: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield the name of each socket to which a connection can be tried, and whether a process listens there."""
    for name, path in islice(sockets.items(), MAX_TRIED):
        if socket_identity(path) is not None:
            with suppress(OSError):
                yield name, is_served(path)


def _made(sockets: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Yield the name and creation time of each socket, except for sockets that are deleted in the meantime."""
    for name, path in sockets.items():
        with suppress(OSError):
            yield name, Path(path).lstat().st_mtime


def _sockets(directory: str, depth: int, notes: list[str]) -> list[str]:
    """Return the names of sockets, sorted. A name that starts with a dot is not a plugin's (kubelet.md 2.8)."""
    found = []
    for number, (name, mode) in enumerate(_entries(directory, depth, notes)):
        if number == MAX_ENTRIES:
            notes.append(f"{directory}: only the first {MAX_ENTRIES:,} files are examined")
            break
        if stat.S_ISSOCK(mode):
            found.append(name)
    return sorted(found)


def _entries(directory: str, depth: int, notes: list[str], below: str = "") -> Iterator[tuple[str, int]]:
    """Yield the names and modes of the files in and below a directory.

    Hidden files have mode 0. Files that are deleted in the meantime are left out.
    """
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                mode = 0 if entry.name.startswith(".") else entry.stat(follow_symlinks=False).st_mode
                yield below + entry.name, mode
                if not stat.S_ISDIR(mode) or depth == 1:
                    continue
                try:
                    yield from _entries(entry.path, depth - 1, notes, f"{below}{entry.name}/")
                except PermissionError as error:
                    notes.append(f"{entry.path}: {error.strerror}")


def _receipts(data: CheckpointData) -> tuple[tuple[ReceiptSeen, ...], tuple[str, ...]]:
    """Return the receipts that name CDI devices or cannot be read, and a note if none could be read."""
    try:
        from devicecore.wire.conversion import read_receipt
    except ModuleNotFoundError:
        return (), ("the plugins' answers in it are not read, because protobuf is not installed",)
    seen: list[ReceiptSeen] = []
    for entry in data.entries or ():
        key, resource = ContainerKey(PodUid(entry.pod_uid), entry.container_name), ResourceName(entry.resource_name)
        try:
            response = read_receipt(Receipt(entry.alloc_resp or b""))
        except UnreadableReceiptError as error:
            seen.append(ReceiptSeen(key, resource, (), str(error)))
        else:
            if names := _cdi_devices(response):
                seen.append(ReceiptSeen(key, resource, names))
    return tuple(seen), ()


def _cdi_devices(response: ContainerAllocateResponse) -> tuple[str, ...]:
    """Return the CDI devices in a plugin's answer. Before Kubernetes 1.28, only annotations named CDI devices."""
    annotated = [value for key, value in response.annotations.items() if key.startswith(_CDI_ANNOTATION)]
    return tuple(dict.fromkeys((*response.cdi_devices, *(name for value in annotated for name in value.split(",")))))
