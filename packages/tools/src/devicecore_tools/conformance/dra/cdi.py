"""CDI files as container runtimes read them: the CDI specification, and its library in Go, version 1.1.

Laws: a file that the library refuses has a problem here. Directories are read in rising priority. A name that two files
of one directory have cannot be resolved.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import field, fields_dict, frozen

from devicecore.domain.dra.answers import is_cdi_name
from devicecore.domain.errors import DocumentError
from devicecore.system.documents import read_documents
from devicecore.system.files import read_file
from devicecore.system.json_values import from_json, to_json

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""The versions of the specification that the library accepts."""

MAX_BYTES = 16 * 1024 * 1024
"""Bytes of a file that is read."""

_ENDINGS = (".json", ".yaml")
_HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_NODE_TYPES = ("", "b", "c", "u", "p")
_MAX_CLOS_ID = 4096  # characters


# --- the content, with the names that it has in files -----------------------------------------------------------------


@frozen(kw_only=True)
class DeviceNode:
    """A device node that a container gets."""

    path: str
    hostPath: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    fileMode: int = 0
    permissions: str = ""
    uid: int = 0
    gid: int = 0


@frozen(kw_only=True)
class MountEdit:
    """A mount that a container gets."""

    hostPath: str
    containerPath: str
    type: str = ""
    options: tuple[str, ...] = ()


@frozen(kw_only=True)
class Hook:
    """A program that runs when a container starts or ends."""

    hookName: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int = 0


@frozen(kw_only=True)
class NetDevice:
    """A network device that a container gets."""

    hostInterfaceName: str
    name: str


@frozen(kw_only=True)
class IntelRdt:
    """Limits of Intel's Resource Director Technology."""

    closID: str = ""
    l3CacheSchema: str = ""
    memBwSchema: str = ""
    schemata: tuple[str, ...] = ()
    enableMonitoring: bool = False
    enableCMT: bool = False
    enableMBM: bool = False


@frozen(kw_only=True)
class Edits:
    """What changes in a container."""

    env: tuple[str, ...] = ()
    deviceNodes: tuple[DeviceNode, ...] = ()
    netDevices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[MountEdit, ...] = ()
    intelRdt: IntelRdt | None = None
    additionalGids: tuple[int, ...] = ()

    @property
    def parts(self) -> frozenset[str]:
        """Each single change, as JSON with its kind, so that edits can be compared."""
        fields: dict[str, Any] = to_json(self)
        return frozenset(
            f"{kind} {json.dumps(part, sort_keys=True)}"
            for kind, parts in fields.items()
            for part in (parts if isinstance(parts, list | tuple) else [parts] if parts else [])
        )


@frozen(kw_only=True)
class CdiDevice:
    """A device: its name, and its changes."""

    name: str
    annotations: Mapping[str, str] = field(factory=dict)
    containerEdits: Edits = field(factory=Edits)


@frozen(kw_only=True)
class CdiDocument:
    """The content of a file."""

    cdiVersion: str
    kind: str
    annotations: Mapping[str, str] = field(factory=dict)
    devices: tuple[CdiDevice, ...] = ()
    containerEdits: Edits = field(factory=Edits)

    @property
    def names(self) -> tuple[str, ...]:
        """The full names of its devices."""
        return tuple(f"{self.kind}={device.name}" for device in self.devices)


# --- reading ----------------------------------------------------------------------------------------------------------


def cdi_files(directory: Path) -> list[Path]:
    """Return the files of a directory that runtimes read, by name."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.name.endswith(_ENDINGS) and not path.is_dir())


def read_spec(path: Path) -> CdiDocument:
    """Read a file without looking at what it says.

    Raises ValueError if it is no CDI file. The text says why, without the path. Raises OSError if it cannot be read.
    """
    try:
        documents = read_documents(read_file(path, MAX_BYTES, follow_links=True).decode(), path.name)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except DocumentError as error:
        raise ValueError(error.problem if error.line is None else f"line {error.line}: {error.problem}") from None
    if len(documents) != 1:
        raise ValueError("it is empty" if not documents else f"it has {len(documents)} documents")
    return from_json(_without_nulls(documents[0].data), CdiDocument)


def _without_nulls(data: Any) -> Any:  # noqa: ANN401 - JSON
    """A field that is null counts as missing."""
    if isinstance(data, dict):
        return {key: _without_nulls(value) for key, value in data.items() if value is not None}
    return [_without_nulls(value) for value in data] if isinstance(data, list) else data


@frozen
class UnresolvableError(Exception):
    """No runtime could resolve a name. `invalid` is the problem of a file that may have it, or empty."""

    problem: str
    invalid: str = ""

    def __str__(self) -> str:
        return f"{self.problem}; {self.invalid}" if self.invalid else self.problem


def resolve(name: str, directories: Sequence[Path]) -> Edits:
    """Return what a container gets that uses this device.

    Args:
        name: the full name of the device.
        directories: where runtimes look, in rising priority.

    Raises:
        UnresolvableError: a runtime would refuse the container.
    """
    for directory in reversed(directories):
        having = [(path, spec) for path, spec in _good_specs(directory) if name in spec.names]
        if len(having) > 1:
            raise UnresolvableError(f"{' and '.join(path.name for path, _ in having)} both have {name}")
        for _, spec in having:
            (device,) = (device for device in spec.devices if f"{spec.kind}={device.name}" == name)
            return _joined(spec.containerEdits, device.containerEdits)
    problem = f"no valid file in {' or '.join(map(str, reversed(directories)))} has {name}"
    raise UnresolvableError(problem, _invalid_file_with(name.partition("=")[2], directories))


def _invalid_file_with(device: str, directories: Sequence[Path]) -> str:
    """Return the problem of a file that runtimes ignore, and that has this name in its text, or an empty text."""
    for path in (path for directory in reversed(directories) for path in cdi_files(directory)):
        with suppress(OSError):
            if device in read_file(path, MAX_BYTES, follow_links=True).decode(errors="replace") and (
                problem := problem_of(path)
            ):
                return f"{path.name} is ignored: {problem}"
    return ""


def problem_of(path: Path) -> str:
    """Return why runtimes ignore a file. The text is empty if they do not. Raises OSError if it cannot be read."""
    try:
        return "; ".join(problems_of(read_spec(path)))
    except ValueError as error:
        return str(error)


def _good_specs(directory: Path) -> Iterator[tuple[Path, CdiDocument]]:
    for path in cdi_files(directory):
        try:
            spec = read_spec(path)
        except (ValueError, OSError):  # a runtime goes on without it, too
            continue
        if not list(problems_of(spec)):
            yield path, spec


def _joined(one: Edits, other: Edits) -> Edits:
    lists = {name: getattr(one, name) + getattr(other, name) for name in fields_dict(Edits) if name != "intelRdt"}
    return Edits(**lists, intelRdt=other.intelRdt or one.intelRdt)


# --- rules ------------------------------------------------------------------------------------------------------------


def problems_of(spec: CdiDocument) -> Iterator[str]:
    """Yield why the library would refuse a file with this content."""
    version = spec.cdiVersion.removeprefix("v")
    needed = _needed_version(spec)
    if version not in VERSIONS:
        yield f"cdiVersion is {spec.cdiVersion!r}, expected one of {', '.join(VERSIONS)}"
    elif VERSIONS.index(version) < VERSIONS.index(needed):
        yield f"cdiVersion is {spec.cdiVersion!r}, but the content needs {needed}"
    if not is_cdi_name(f"{spec.kind}=x"):
        yield f"kind is {spec.kind!r}, expected vendor/class"
    if not spec.devices:
        yield "it has no devices"
    names = [device.name for device in spec.devices]
    yield from (f"two devices are called {name!r}" for name in sorted({one for one in names if names.count(one) > 1}))
    yield from _edit_problems(spec.containerEdits)
    for device in spec.devices:
        if not is_cdi_name(f"vendor/class={device.name}"):
            yield f"a device is called {device.name!r}"
        if device.containerEdits == Edits():
            yield f"the device {device.name!r} has no containerEdits"
        yield from (f"device {device.name!r}: {problem}" for problem in _edit_problems(device.containerEdits))


def _edit_problems(edits: Edits) -> Iterator[str]:
    yield from _variable_problems(edits.env)
    for node in edits.deviceNodes:
        yield from _node_problems(node)
    for mount in edits.mounts:
        if not mount.hostPath or not mount.containerPath:
            yield f"a mount of {mount.hostPath!r} to {mount.containerPath!r} needs both paths"
    for hook in edits.hooks:
        if hook.hookName not in _HOOKS:
            yield f"a hook is called {hook.hookName!r}, expected one of {', '.join(_HOOKS)}"
        if not hook.path:
            yield f"the hook {hook.hookName} has no path"
        yield from _variable_problems(hook.env)
    yield from _network_problems(edits.netDevices)
    if edits.intelRdt is not None:
        yield from _rdt_problems(edits.intelRdt.closID)


def _node_problems(node: DeviceNode) -> Iterator[str]:
    if not node.path:
        yield "a device node has no path"
    if node.type not in _NODE_TYPES:
        yield f"the device node {node.path} has the type {node.type!r}, expected b, c, u or p"
    if set(node.permissions) - set("rwm"):
        yield f"the device node {node.path} has the permissions {node.permissions!r}, expected letters of rwm"


def _variable_problems(variables: Iterable[str]) -> Iterator[str]:
    yield from (f"the variable {one!r} is not NAME=value" for one in variables if one.find("=") < 1)


def _network_problems(devices: Sequence[NetDevice]) -> Iterator[str]:
    for names in ([device.hostInterfaceName for device in devices], [device.name for device in devices]):
        if "" in names:
            yield "a network device needs both names"
        if len(set(names)) < len(names):
            yield f"two network devices have the same name: {', '.join(names)}"


def _rdt_problems(clos_id: str) -> Iterator[str]:
    if clos_id in (".", "..") or len(clos_id) >= _MAX_CLOS_ID or (clos_id != "/" and re.search(r"[/\n]", clos_id)):
        yield f"closID is {clos_id!r:.60}"


def _needed_version(spec: CdiDocument) -> str:
    """Return the oldest version that has all that is used."""
    every = [spec.containerEdits, *(device.containerEdits for device in spec.devices)]
    rdts = [edits.intelRdt for edits in every if edits.intelRdt is not None]
    uses = {
        "1.1.0": any(edits.netDevices for edits in every) or any(rdt.schemata or rdt.enableMonitoring for rdt in rdts),
        "0.7.0": rdts or any(edits.additionalGids for edits in every),
        "0.6.0": spec.annotations
        or any(device.annotations for device in spec.devices)
        or "." in spec.kind.partition("/")[2],
        "0.5.0": any(node.hostPath for edits in every for node in edits.deviceNodes)
        or any(device.name[:1].isdigit() for device in spec.devices),
        "0.4.0": any(mount.type for edits in every for mount in edits.mounts),
    }
    return next((version for version, is_used in uses.items() if is_used), VERSIONS[0])
