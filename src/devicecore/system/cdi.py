"""CDI files as container runtimes read them: according to version 1.1 of the CDI specification and of its Go library.

Laws: a problem is reported for every file that the library refuses. Directories are read in order of rising priority. A
name defined in two files of one directory cannot be resolved.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from attrs import field, fields_dict, frozen, has

from devicecore.domain.dra.answers import is_cdi_name
from devicecore.domain.errors import DocumentError
from devicecore.system.files import read_file
from devicecore.system.json_values import from_json, to_json

CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""The directories that runtimes read. A device in a later directory takes precedence (Go: `DefaultSpecDirs`)."""

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""The versions of the specification that the library accepts."""

MAX_BYTES = 4 * 1024 * 1024
"""The maximum size of a file, in bytes. A file for eight large devices takes about 200 KiB."""

MAX_DEVICES = 20_000
"""The maximum number of devices in a file."""

_REMEMBERED = 64  # files, so that resolving several names does not parse each file again

_ENDINGS = (".json", ".yaml")
_HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_NODE_TYPES = ("", "b", "c", "u", "p")
_NO_PERMISSIONS = "none"
_MAX_CLOS_ID = 4096  # bytes


# --- the content, with the field names of the files -----------------------------------------------------------------


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
    schemata: tuple[str, ...] | None = None
    enableMonitoring: bool = False


@frozen(kw_only=True)
class Edits:
    """The changes to a container."""

    env: tuple[str, ...] = ()
    deviceNodes: tuple[DeviceNode, ...] = ()
    netDevices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[MountEdit, ...] = ()
    intelRdt: IntelRdt | None = None
    additionalGids: tuple[int, ...] = ()

    @property
    def parts(self) -> frozenset[str]:
        """Each change as JSON with its kind, so that edits can be compared."""
        fields: dict[str, Any] = to_json(self)
        return frozenset(
            f"{kind} {json.dumps(part, sort_keys=True)}"
            for kind, parts in fields.items()
            for part in (parts if isinstance(parts, list | tuple) else [parts] if parts else [])
        )


@frozen(kw_only=True)
class CdiDevice:
    """A device: its name, and the changes to a container that uses it."""

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
        """The full names of the file's devices."""
        return tuple(f"{self.kind}={device.name}" for device in self.devices)


# --- reading ----------------------------------------------------------------------------------------------------------


@frozen
class NoCdiFileError(ValueError):
    """A file is not a CDI file. `problem` says why, without naming the file."""

    problem: str

    def __str__(self) -> str:
        return self.problem


def cdi_files(directory: Path) -> list[Path]:
    """Return the .json and .yaml files in a directory, sorted by name. Runtimes read only such files.

    Raises OSError if the directory cannot be listed. A missing directory counts as empty.
    """
    try:
        return sorted(path for path in directory.iterdir() if path.name.endswith(_ENDINGS) and not _is_directory(path))
    except FileNotFoundError:
        return []


def _is_directory(path: Path) -> bool:
    # The library checks the directory entry itself, so a symbolic link to a directory counts as an unreadable file.
    return not path.is_symlink() and path.is_dir()


def read_spec(path: Path) -> CdiDocument:
    """Read and parse a file, without checking it as `problems_of` does.

    Raises NoCdiFileError if the file is not a CDI file, and OSError if the file cannot be read.
    """
    return spec_in(read_file(path, MAX_BYTES, follow_links=True), path.name)


def spec_in(data: bytes, name: str) -> CdiDocument:
    """Return the content of a file called `name`. Raises NoCdiFileError if `data` is not the content of a CDI file."""
    content = _first_document(data, name)
    devices = content.get("devices") if isinstance(content, dict) else None
    if isinstance(devices, list) and len(devices) > MAX_DEVICES:
        raise NoCdiFileError(f"expected at most {MAX_DEVICES:,} devices, got {len(devices):,}")
    try:
        return from_json(_as_go_reads(content, CdiDocument), CdiDocument)
    except ValueError as error:
        raise NoCdiFileError(str(error)) from None


def _first_document(data: bytes, name: str) -> Any:  # noqa: ANN401 - JSON
    """Return the document that the library reads: the first document, read as YAML, which includes JSON."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NoCdiFileError("it is not UTF-8") from None
    with suppress(json.JSONDecodeError, RecursionError):
        return json.loads(text, object_pairs_hook=_without_duplicates)
    from devicecore.system.documents import read_documents  # noqa: PLC0415 - needs PyYAML, unlike JSON

    try:
        documents = read_documents(text, name)
    except DocumentError as error:
        raise NoCdiFileError(error.problem if error.line is None else f"line {error.line}: {error.problem}") from None
    if not documents:
        raise NoCdiFileError("it is empty")
    return documents[0].data


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise NoCdiFileError(f"it has the key {twice!r:.60} twice")
    return found


def _as_go_reads(data: Any, cls: Any) -> Any:  # noqa: ANN401 - JSON
    """Return data as go-yaml would read it into a type: null means missing, and numbers and bools become strings."""
    if cls is str and (data is None or isinstance(data, int | float)):
        return "" if data is None else str(data).lower() if isinstance(data, bool) else str(data)
    if has(cls) and isinstance(data, dict):
        types = _types(cls)
        return {name: _as_go_reads(one, types.get(name)) for name, one in data.items() if one is not None}
    if get_origin(cls) is tuple and isinstance(data, list):
        return [_as_go_reads(one, get_args(cls)[0]) for one in data]
    if get_origin(cls) is Mapping and isinstance(data, dict):
        return {name: _as_go_reads(one, str) for name, one in data.items()}
    optional = [one for one in get_args(cls) if one is not type(None)]
    return _as_go_reads(data, optional[0]) if len(optional) == 1 and get_origin(cls) is not Mapping else data


_types = cache(get_type_hints)


@frozen
class UnresolvableError(Exception):
    """No runtime could resolve a name.

    `invalid` says what is wrong with a file that may define the name, or is empty.
    """

    problem: str
    invalid: str = ""

    def __str__(self) -> str:
        return f"{self.problem}; {self.invalid}" if self.invalid else self.problem


def resolve(name: str, directories: Sequence[Path]) -> Edits:
    """Return the changes to make to a container that uses the device called `name`.

    Args:
        name: the full name of the device.
        directories: the directories that runtimes read, in order of rising priority.

    Raises:
        UnresolvableError: a runtime would refuse the container.
    """
    found: tuple[CdiDocument, CdiDevice] | None = None
    for directory in directories:
        having = [(path, spec) for path, spec in _good_specs(directory) if name in spec.names]
        if len(having) > 1:  # an error even if a later directory defines the name (Go: `Cache.refresh`)
            both = " and ".join(path.name for path, _ in having)
            raise UnresolvableError(f"{both} both define {name}")
        for _, spec in having:
            found = spec, next(device for device in spec.devices if f"{spec.kind}={device.name}" == name)
    if found is not None:
        return _joined(found[0].containerEdits, found[1].containerEdits)
    problem = f"no valid file in {' or '.join(map(str, reversed(directories)))} defines {name}"
    raise UnresolvableError(problem, _invalid_file_with(name.partition("=")[2], directories))


def _invalid_file_with(device: str, directories: Sequence[Path]) -> str:
    """Return what is wrong with an ignored file whose text contains the name `device`, or "" if none does."""
    for path in (path for directory in reversed(directories) for path in cdi_files(directory)):
        with suppress(OSError):
            if device in read_file(path, MAX_BYTES, follow_links=True).decode(errors="replace") and (
                problem := problem_of(path)
            ):
                return f"{path.name} is ignored: {problem}"
    return ""


def problem_of_edits(edits: object) -> str:
    """Return why runtimes refuse a device with these `containerEdits`, or an empty string if they accept the device."""
    try:
        found = from_json(_as_go_reads(json.loads(json.dumps(edits)), Edits), Edits)
    except (TypeError, ValueError, RecursionError) as error:
        return str(error)
    return "; ".join(_edit_problems(found)) or ("" if found != Edits() else "expected a field that is not empty")


def problem_of(path: Path) -> str:
    """Return why runtimes ignore a file, or an empty string if they use the file.

    Raises OSError if the file cannot be read.
    """
    try:
        return "; ".join(problems_of(read_spec(path)))
    except NoCdiFileError as error:
        return str(error)


def names_in(directory: Path) -> Iterator[str]:
    """Yield the full names of the devices in a directory's files, except files that runtimes ignore."""
    return (name for _, spec in _good_specs(directory) for name in spec.names)


def _good_specs(directory: Path) -> Iterator[tuple[Path, CdiDocument]]:
    for path in cdi_files(directory):
        try:
            spec = _good_spec(read_file(path, MAX_BYTES, follow_links=True), path.name)
        except OSError:  # runtimes ignore these files, too
            continue
        if spec is not None:
            yield path, spec


@lru_cache(maxsize=_REMEMBERED)
def _good_spec(data: bytes, name: str) -> CdiDocument | None:
    """Return the content of a file called `name`, or None if runtimes ignore the file."""
    try:
        spec = spec_in(data, name)
    except NoCdiFileError:
        return None
    return None if any(problems_of(spec)) else spec


def _joined(one: Edits, other: Edits) -> Edits:
    lists = {name: getattr(one, name) + getattr(other, name) for name in fields_dict(Edits) if name != "intelRdt"}
    return Edits(**lists, intelRdt=other.intelRdt or one.intelRdt)


# --- rules ------------------------------------------------------------------------------------------------------------


def problems_of(spec: CdiDocument) -> Iterator[str]:
    """Yield each reason why the library would refuse a file with this content."""
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
    counts = Counter(device.name for device in spec.devices)
    yield from (f"two devices are called {name!r}" for name, count in sorted(counts.items()) if count > 1)
    yield from _edit_problems(spec.containerEdits)
    for device in spec.devices:
        if not is_cdi_name(f"vendor/class={device.name}"):
            yield f"a device has the invalid name {device.name!r}"
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
    if node.permissions.strip("rwm") and node.permissions != _NO_PERMISSIONS:
        yield f"the device node {node.path} has the permissions {node.permissions!r}, expected some of rwm, or none"
    if node.major < 0 or node.minor < 0:
        yield f"the device node {node.path} has the number {node.major}:{node.minor}, expected no negative numbers"


def _variable_problems(variables: Iterable[str]) -> Iterator[str]:
    yield from (f"the variable {one!r} is not NAME=value" for one in variables if one.find("=") < 1)


def _network_problems(devices: Sequence[NetDevice]) -> Iterator[str]:
    for names in ([device.hostInterfaceName for device in devices], [device.name for device in devices]):
        if "" in names:
            yield "a network device needs both names"
        if len(set(names)) < len(names):
            yield f"two network devices have the same name: {', '.join(names)}"


def _rdt_problems(clos_id: str) -> Iterator[str]:
    if (
        clos_id in (".", "..")
        or len(clos_id.encode()) >= _MAX_CLOS_ID
        or (clos_id != "/" and re.search(r"[/\n]", clos_id))
    ):
        yield f"the closID {clos_id!r:.60} is not valid"


def _needed_version(spec: CdiDocument) -> str:
    """Return the oldest version that supports everything that the file uses."""
    every = [spec.containerEdits, *(device.containerEdits for device in spec.devices)]
    rdts = [edits.intelRdt for edits in every if edits.intelRdt is not None]
    uses = {
        "1.1.0": any(edits.netDevices for edits in every)
        or any(rdt.schemata is not None or rdt.enableMonitoring for rdt in rdts),
        "0.7.0": rdts or any(edits.additionalGids for edits in every),
        "0.6.0": spec.annotations
        or any(device.annotations for device in spec.devices)
        or "." in spec.kind.partition("/")[2],
        "0.5.0": any(node.hostPath for edits in every for node in edits.deviceNodes)
        or any(device.name[:1].isdigit() for device in spec.devices),
        "0.4.0": any(mount.type for edits in every for mount in edits.mounts),
    }
    return next((version for version, is_used in uses.items() if is_used), VERSIONS[0])
