"""The environment of a driver: directories, an API server, a Node, and files that a reboot changes.

Law: at the end, only the directories that the user named remain, without the files that the run created there.
"""

import errno
import fcntl
import os
import secrets
import stat
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from devicecore.system.cdi import MAX_BYTES, names_in
from devicecore.system.files import read_file
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from devicecore_tools.conformance.processes import adopted, as_environment, new_marker
from devicecore_tools.testing.api_server import ApiError, Json, LocalApiServer
from devicecore_tools.testing.api_server.versions import RESOURCE_VERSIONS
from devicecore_tools.testing.process import DRIVER_VARIABLES, POD_UID, with_texts
from devicecore_tools.testing.temporary import remove_tree, short_directory

DEVICE_CLASS = "devicecore-conformance"
"""The name of the DeviceClass that selects all of the driver's devices."""

MAX_CONTENTS = 64 * 1024 * 1024
"""The maximum total size, in bytes, of a driver's files that are kept in memory for comparison or to restore them."""

MAX_ENTRIES = 100_000
"""The maximum number of a driver's files and directories that are read."""

OTHER_NODE = "conformance-node-2"
"""The name of the second node, which has its own directories."""

_GET_FLAGS, _SET_FLAGS, _IMMUTABLE = 0x80086601, 0x40086602, 0x10  # ioctl_iflags(2)
_WITHOUT_WRITING = 0o555

CLAIM_KINDS = ("ResourceClaim", "ResourceClaimTemplate")


class Environment:
    """The environment of a driver, as a context manager.

    Attributes:
        api: the API server.
        registry: the kubelet's directory for registration sockets.
        plugins: the kubelet's directory for plugins.
        cdi: the directory for dynamic CDI files, which a reboot empties.
        run: another directory that a reboot empties.
    """

    def __init__(self, settings: DriverTestSettings) -> None:
        self.node: str = settings.node
        seed = secrets.randbits(64) if settings.seed is None else settings.seed
        self.api: LocalApiServer = LocalApiServer(seed=seed, resource_versions=RESOURCE_VERSIONS)
        self.api.store.similar_uids = True  # a driver that shortens UIDs then gives two claims the same CDI file
        self.marker: str = new_marker()
        """An environment variable that each process of the driver has, so that all of them can be found."""
        self.others: frozenset[int] | None = frozenset(adopted()) if settings.owns_children else None
        """The children of this process that do not belong to the driver, or None if more of them may appear later."""
        self.has_cdi: bool = True
        """Whether the CDI directory exists: `without_cdi` replaces it with a file."""
        self._settings = settings
        self._kept: dict[Path, frozenset[str]] = {}
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            root = Path(stack.enter_context(short_directory()))
            self._root = root
            self.registry: Path = self._made(stack, self._settings.registry, root / "plugins_registry")
            self.plugins: Path = self._made(stack, self._settings.plugins, root / "plugins")
            self.cdi: Path = self._made(stack, self._settings.cdi, root / "cdi")
            self.run: Path = self._made(stack, None, root / "run")
            self._write_boot_id()
            stack.enter_context(self.api)
            self.api.kubeconfig(root / "kubeconfig")
            self.api.create(_node(self.node))
            for one in sorted(self._settings.objects, key=lambda one: one.get("kind") != "Namespace"):
                if one.get("kind") not in CLAIM_KINDS:
                    self._add(one)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def placeholders(self) -> Mapping[str, str]:
        """The values of the placeholders in the driver's command and environment."""
        return {
            "{kubeconfig}": str(self._root / "kubeconfig"),
            "{node}": self.node,
            "{registry}": str(self.registry),
            "{plugins}": str(self.plugins),
            "{cdi}": str(self.cdi),
            "{run}": str(self.run),
            "{boot_id}": str(self._root / "boot_id"),
            "{api}": self.api.url,
        }

    @property
    def has_places(self) -> bool:
        """Whether the user has named a directory, in which case a driver on a second node might use the same one."""
        return any((self._settings.registry, self._settings.plugins, self._settings.cdi))

    @contextmanager
    def second_node(self) -> Iterator[Mapping[str, str]]:
        """In this block, provide a second node with empty directories. Yield the second node's placeholders."""
        with short_directory() as root, suppress(ApiError):
            self.api.create(_node(OTHER_NODE))
            own = {name: Path(root) / name for name in ("registry", "plugins", "cdi", "run")}
            for path in (*own.values(), own["plugins"] / self._settings.data):
                path.mkdir(mode=0o755, exist_ok=True)
            try:
                yield {**{f"{{{name}}}": str(path) for name, path in own.items()}, "{node}": OTHER_NODE}
            finally:
                self.api.delete("Node", OTHER_NODE)

    def variables(self, texts: Mapping[str, str] = {}) -> dict[str, str]:
        """Return the driver's environment variables. The placeholders in `texts` take precedence."""
        variables = {**DRIVER_VARIABLES, **self._settings.environment}
        return {key: self.expand(text, texts) for key, text in variables.items()} | as_environment(self.marker)

    def expand(self, text: str, texts: Mapping[str, str] = {}) -> str:
        """Replace the placeholders in a string. The placeholders in `texts` take precedence."""
        return with_texts(text, {**self.placeholders, "{pod_uid}": POD_UID, **texts})

    def make_data_directory(self) -> None:
        """Create the directory that the driver needs when it starts, if one is needed and does not exist."""
        (self.plugins / self._settings.data).mkdir(mode=0o755, parents=True, exist_ok=True)

    @property
    def others_cdi(self) -> frozenset[str]:
        """The names of the CDI files that are not the driver's: those from before the run and from checks."""
        return self._kept.get(self.cdi, frozenset())

    def plant_cdi(self, name: str, text: str) -> Path:
        """Write another vendor's CDI file, which remains when the directories are emptied.

        Return the path of this file.
        """
        return self._plant(self.cdi, name, text)

    def plant_state(self, driver: str, text: str) -> Path:
        """Write another driver's state, which remains when the directories are emptied. Return the file's path."""
        return self._plant(self.plugins, f"{driver}/state.json", text)

    def _plant(self, directory: Path, name: str, text: str) -> Path:
        path = directory / name
        self._kept[directory] = self._kept.get(directory, frozenset()) | {path.relative_to(directory).parts[0]}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    @contextmanager
    def read_only(self, root: Path) -> Iterator[None]:
        """In this block, let nobody add, rename or remove files in a directory or below it. Files can be read.

        Raises OSError if this is not possible.
        """
        with ExitStack() as stack:
            for path in [str(root), *(path for path in _below(root) if stat.S_ISDIR(os.lstat(path).st_mode))]:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                stack.callback(os.close, descriptor)
                if os.geteuid() == 0:  # root may write whatever the mode is
                    flags = struct.unpack("l", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))[0]
                    fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("l", flags | _IMMUTABLE))
                    stack.callback(fcntl.ioctl, descriptor, _SET_FLAGS, struct.pack("l", flags))
                else:
                    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
                    os.fchmod(descriptor, mode & _WITHOUT_WRITING)
                    stack.callback(os.fchmod, descriptor, mode)
            yield

    @property
    def owns_plugins(self) -> bool:
        """Whether the plugins directory was made for the run."""
        return self._settings.plugins is None

    @property
    def owns_cdi(self) -> bool:
        """Whether the CDI directory was made for the run."""
        return self._settings.cdi is None

    @contextmanager
    def without_cdi(self) -> Iterator[None]:
        """Replace the CDI directory with a file, so that nobody, not even root, can write files there."""
        away = self.cdi.with_name("cdi.away")
        self.cdi.rename(away)
        self.has_cdi = False
        try:
            self.cdi.touch()
            yield
        finally:
            remove_tree(self.cdi)  # a driver may have replaced the file with a directory
            away.rename(self.cdi)
            self.has_cdi = True

    def _add(self, one: Mapping[str, Any]) -> None:
        """Create one of the user's objects, and its namespace if that does not exist.

        If the object describes the run's own Node, merge the object into that Node.
        """
        metadata = one.get("metadata") or {}
        known = {space["metadata"]["name"] for space in self.api.objects("Namespace")}
        if metadata.get("namespace", "default") not in known:
            self.api.create({"kind": "Namespace", "metadata": {"name": metadata["namespace"]}})
        if (one["kind"], metadata.get("name")) != ("Node", self.node):
            self.api.create(dict(one))
            return

        def describe(node: Json) -> None:
            for field in ("labels", "annotations"):
                node["metadata"][field] = {**node["metadata"].get(field, {}), **(metadata.get(field) or {})}
            node.update({field: one[field] for field in ("spec", "status") if one.get(field)})

        self.api.change("Node", self.node, describe)

    def reboot(self) -> None:
        """Empty the directories that do not survive a reboot, and change the boot id."""
        self._empty(self.cdi, self.run)
        self._write_boot_id()

    def clear(self) -> None:
        """Empty the directories for CDI files, state and `run`, except for what others have put there."""
        self._clear(self.cdi, self.run, self.plugins)

    def _clear(self, *directories: Path) -> None:
        """Empty these directories, unless the driver has removed them."""
        self._empty(*filter(Path.is_dir, directories))

    def _empty(self, *directories: Path) -> None:
        for directory in directories:
            for entry in directory.iterdir():
                if entry.name not in self._kept.get(directory, ()):
                    remove_tree(entry)

    def state_files(self) -> dict[Path, bytes]:
        """Return the regular files below the plugins directory with their contents.

        Empty files and files larger than 4 MiB are left out.

        Raises:
            OSError: there are too many files, or the files are too large.
        """
        return _contents(self.plugins, self._state_paths())

    def delete_state_files(self) -> None:
        """Delete the regular files below the plugins directory, except empty ones.

        Raises:
            OSError: there are too many files.
        """
        for path in self._state_paths():
            path.unlink(missing_ok=True)

    def _state_paths(self) -> list[Path]:
        return [Path(path) for path in _below(self.plugins) if _size(path)]

    def cdi_files(self) -> dict[Path, bytes]:
        """Return the files of up to 4 MiB in the CDI directory with their contents.

        Raises:
            OSError: the directory was removed, there are too many files, or the files are too large.
        """
        return _contents(self.cdi, sorted(self.cdi.iterdir()), follow_links=True)  # as container runtimes do

    def cdi_names(self) -> set[str]:
        """Return the names of all devices in the CDI directory's files."""
        return set(names_in(self.cdi))

    def contains(self, path: str) -> bool:
        """Return whether a path is below the registry, the plugins directory or a directory made for the run."""
        real = Path(path).resolve()
        return any(real.is_relative_to(root.resolve()) for root in (self._root, self.registry, self.plugins))

    def files(self) -> set[Path]:
        """Return the paths of all files and directories in the run's directories.

        Raises:
            OSError: there are too many files.
        """
        roots = (self._root, self.registry, self.plugins, self.cdi)
        return {Path(path) for root in roots for path in _below(root)}

    def _made(self, stack: ExitStack, named: Path | None, default: Path) -> Path:
        """Return the directory, which is created if missing.

        At the end, a directory that the user named keeps only its current entries.
        """
        directory = (named or default).absolute()
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if named is not None:
            self._kept[directory] = frozenset(entry.name for entry in directory.iterdir())
            stack.callback(self._clear, directory)
        return directory

    def _write_boot_id(self) -> None:
        (self._root / "boot_id").write_text(f"{uuid.uuid4()}\n", encoding="ascii")


def _below(root: Path) -> Iterator[str]:
    """Yield everything below a directory, except what cannot be listed, such as a directory that was removed."""
    pending, number = [str(root)], 0
    while pending:
        try:
            with os.scandir(pending.pop()) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError:
            continue
        number += len(entries)
        if number > MAX_ENTRIES:
            raise OSError(errno.EFBIG, f"more than {MAX_ENTRIES} files and directories", str(root))
        yield from (entry.path for entry in entries)
        pending += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _size(path: str) -> int:
    """Return the size of a regular file in bytes, or 0 for anything else."""
    try:
        found = os.lstat(path)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _contents(root: Path, paths: Iterable[Path], *, follow_links: bool = False) -> dict[Path, bytes]:
    """Return the contents of the regular files among these, except files larger than `MAX_BYTES`."""
    found: dict[Path, bytes] = {}
    left = MAX_CONTENTS
    for path in paths:
        with suppress(OSError):  # the path is a directory, or was removed in the meantime
            found[path] = read_file(path, MAX_BYTES, follow_links=follow_links)
            left -= len(found[path])
        if left < 0:
            raise OSError(errno.EFBIG, f"the files are larger than {MAX_CONTENTS} bytes in total", str(root))
    return found


def _node(name: str) -> dict[str, object]:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": os.uname().machine}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
