"""What a kubelet's configuration says about its topology, CPU and memory managers.

Laws: the process that serves the kubelet's socket takes precedence over a file in the root directory. A source that is
    unreadable or incomplete changes nothing. Only a process with the kubelet's name is trusted.
"""

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from attrs import evolve, frozen

from devicecore.domain.documents import Value
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import NumaNode
from devicecore.domain.text import foreign_text
from devicecore.domain.topology import Policy, PolicyOptions, Scope
from devicecore_tools.doctor.look.topology_settings import TopologySettings
from devicecore_tools.doctor.look.values import CONFIGURATION
from devicecore_tools.doctor.reading.large_documents import read_document_file
from devicecore_tools.doctor.reading.machine import numa_distances, numa_nodes_of
from devicecore_tools.numa import FIELDS, FLAGS, fields_of_flags

_SOCKETS = ("pod-resources/kubelet.sock", "device-plugins/kubelet.sock")
_DEFAULTS = {
    "topologyManagerPolicy": "none",
    "topologyManagerScope": "container",
    "cpuManagerPolicy": "none",
    "memoryManagerPolicy": "None",
}
_PROCESSES = Path("/proc")
_SECONDS = 1.0  # seconds to connect to a socket
_CREDENTIALS = "3i"  # process, user and group


@frozen
class _Process:
    """A process on this machine, given by its directory in /proc."""

    place: Path

    @property
    def is_kubelet(self) -> bool:
        """Whether the process has the kubelet's name."""
        return (self.place / "comm").read_text().strip() == "kubelet"

    @property
    def flags(self) -> dict[str, str]:
        """The flags of the process with their values. If a flag is repeated, the last value is used."""
        words = (self.place / "cmdline").read_bytes().decode(errors="replace").split("\0")
        found = {}
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, has_value, value = word.partition("=")
            if name.startswith("--"):
                found[name.removeprefix("--")] = value if has_value else following
        return found

    def file(self, name: str) -> Path:
        """Return our path to a file, given the path that the process uses for the file."""
        beside = "root" if name.startswith("/") else "cwd"
        return self.place / beside / name.lstrip("/")


def read_topology(root: str, default: TopologySettings) -> TopologySettings:
    """Return the settings of the kubelet whose root directory or record is `root`, or the defaults."""
    process = _process_of(root)
    fields, nodes = known_fields(root, process), default.numa_nodes
    if "topologyManagerPolicy" not in fields:
        return default
    with suppress(ValueError, DocumentError):
        scope = Scope(fields.get("topologyManagerScope") or Scope.CONTAINER.value)
        policy = Policy(fields["topologyManagerPolicy"])
        texts = Value(fields.get("topologyManagerPolicyOptions") or {}, "topologyManagerPolicyOptions").mapping()
        options = PolicyOptions.of({name: one.text() for name, one in texts.items()})
        if process is not None and not nodes:
            nodes = tuple(map(NumaNode, numa_nodes_of(root)))
        distances = default.distances or (numa_distances(nodes) if process is not None else ())
        settings = evolve(default, policy=policy, scope=scope, options=options)
        return evolve(settings, numa_nodes=nodes, distances=distances, is_given=True)
    return default


def configuration_of(root: str) -> dict[str, object]:
    """Return the configuration that a record needs to give the same results, or an empty dict if none is known."""
    fields = known_fields(root, _process_of(root))
    return {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", **fields} if fields else {}


def configuration_problem(root: str) -> str:
    """Return why a kubelet cannot start with the settings of its resource managers, or an empty string."""
    process = _process_of(root)
    file = process.file(process.flags.get("config") or CONFIGURATION) if process else Path(root) / CONFIGURATION
    try:
        if not file.is_file() or not os.access(file, os.R_OK):
            return ""
        fields = _fields_in(file)
    except DocumentError as error:
        return str(error).partition(": ")[2] or str(error)
    except (OSError, ValueError):
        return ""
    for name, known in _KNOWN.items():
        if fields.get(name, known[0]) not in known:
            return (
                f"{name}: expected {', '.join(known[:-1])} or {known[-1]}, got {foreign_text(str(fields[name]), 50)!r}"
            )
    return ""


_KNOWN = {
    "topologyManagerPolicy": [one.value for one in Policy],
    "topologyManagerScope": [one.value for one in Scope],
    "cpuManagerPolicy": ["none", "static"],
    "memoryManagerPolicy": ["None", "Static"],
}
"""The values that a kubelet accepts.

A kubelet does not start with any other value (kubelet: `ValidateKubeletConfiguration`, `NewManager`).
"""


def serves(root: str) -> bool:
    """Return whether a kubelet on this machine serves a socket below a root directory."""
    return _process_of(root) is not None


def known_fields(root: str, process: "_Process | None") -> dict[str, object]:
    """Return the configuration fields that are certain: all fields of the process, or else the fields in the file."""
    with suppress(OSError, DocumentError, ValueError):
        return _fields_in(Path(root) / CONFIGURATION) if process is None else {**_DEFAULTS, **_fields_of(process)}
    return {}


def sees_files_of_kubelet(root: str) -> bool:
    """Return whether this process shares the file system of the process that serves a socket below a root directory.

    The result is False if there is no such process, or if only some of that process's directories are mounted into our
    container. The result is True if permission to find out is missing.
    """
    server = _server_of(root)
    if server is None:
        return False
    with suppress(PermissionError):
        try:
            return (server.place / "ns" / "mnt").readlink() == (_PROCESSES / "self" / "ns" / "mnt").readlink()
        except FileNotFoundError:  # the process is in another PID namespace
            return False
    return True


def _process_of(root: str) -> _Process | None:
    """Return the kubelet that serves a socket below a root directory, or None if there is none on this machine."""
    process = _server_of(root)
    with suppress(OSError):
        return process if process is not None and process.is_kubelet else None
    return None


def _server_of(root: str) -> _Process | None:
    """Return the process that serves a kubelet's socket below a root directory, or None."""
    for name in _SOCKETS:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_SECONDS)
            client.connect(str(Path(root) / name))
            size = struct.calcsize(_CREDENTIALS)
            data = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return _Process(_PROCESSES / str(struct.unpack(_CREDENTIALS, data)[0]))
    return None


def _fields_of(process: _Process) -> dict[str, object]:
    """Return the fields as a kubelet reads them: first from its file, then from `--config-dir`, then from its flags."""
    flags, found = process.flags, dict[str, object]()
    if file := flags.get("config"):
        found |= _fields_in(process.file(file))
    if directory := flags.get("config-dir"):
        for one in sorted(process.file(directory).iterdir()):
            if one.suffix == ".conf":
                found |= _fields_in(one)
    return found | fields_of_flags({flag: flags[flag] for flag in FLAGS if flag in flags})


def _fields_in(file: Path) -> dict[str, object]:
    """Return the fields of a configuration. Raises DocumentError if the document is not a configuration."""
    document = read_document_file(str(file))
    if document["kind"].text("") != "KubeletConfiguration":
        document["kind"].refuse("expected KubeletConfiguration")
    known = {name: document[name] for name in FIELDS}
    for name in _DEFAULTS:
        known[name].text("")
    return {name: one.data for name, one in known.items() if one.data not in (None, "")}
