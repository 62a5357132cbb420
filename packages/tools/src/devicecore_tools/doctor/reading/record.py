"""Reads and writes records. A record is a directory with the content of all sources, and is read like the node itself.

Laws: a file that is not in the record was not read. A file counts as missing on the node only if `sources.json` says
that it was missing. A saved pod has no environment and no volumes, and only the annotations with the UID of a static
pod.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from attrs import evolve, frozen

from devicecore.adapters.file import CHECKPOINT_NAME
from devicecore.domain.device_list import DeviceList
from devicecore.domain.dra.health import SECOND
from devicecore.domain.dra.state_file import FILE_NAME as CLAIMS_NAME
from devicecore.domain.errors import DocumentError
from devicecore.domain.json_size import MAX_BYTES
from devicecore.domain.model import Device
from devicecore.system.files import DurableFile, read_file
from devicecore_tools.doctor.look.values import (
    ALLOCATABLE_NAME,
    CONFIGURATION,
    LIST_NAME,
    OF_PODS,
    PLUGINS_PREFIX,
    REGISTRY_PREFIX,
    Look,
    PluginSeen,
    Reading,
    SocketsSeen,
    Source,
    grouped,
)
from devicecore_tools.doctor.reading.large_documents import read_document_file
from devicecore_tools.doctor.reading.objects import STATIC_UIDS
from devicecore_tools.numa import CPU_FILE, MEMORY_FILE

PODS, NODE, EVENTS, SLICES, CLAIMS = (
    "pods.json",
    "node.json",
    "events.json",
    "resourceslices.json",
    "resourceclaims.json",
)
"""The names of the files with the API server's objects."""

CLASSES, RULES = "deviceclasses.json", "devicetaintrules.json"

RUNNING = "pods_state"
"""The file in which `devicecore kubelet` saves which of its pods are running."""

PLUGINS, CDI = "plugins.json", "cdi.json"
"""The files with plugins' answers and with the device names in CDI files, in this program's format."""

LOOK_NAME = "look.json"
"""The file with the whole look, in this program's format."""

HEALTH_NAME = "dra_health_state"
LISTING_NAME = "listing.txt"
REASONS_NAME = "sources.json"
FILES = (CHECKPOINT_NAME, CLAIMS_NAME, HEALTH_NAME, CPU_FILE, MEMORY_FILE, *OF_PODS)
"""The kubelet's files, byte for byte."""

OF_SOURCES: Mapping[Source, tuple[str, ...]] = {
    Source.CHECKPOINT: (CHECKPOINT_NAME,),
    Source.SOCKETS: (LISTING_NAME,),
    Source.POD_RESOURCES: (LIST_NAME, ALLOCATABLE_NAME),
    Source.PODS: (PODS,),
    Source.NODE: (NODE,),
    Source.PLUGINS: (PLUGINS,),
    Source.CDI: (CDI,),
    Source.CLAIMS: (CLAIMS_NAME,),
    Source.SLICES: (SLICES, RULES),
    Source.ALLOCATIONS: (CLAIMS,),
    Source.HEALTH: (HEALTH_NAME,),
    Source.EVENTS: (EVENTS,),
    Source.STATE_FILES: (CPU_FILE, MEMORY_FILE, *OF_PODS),
}
"""The files of each source in a record, in addition to `look.json`."""

TAKEN = "taken"
"""The key for the time at which a record was taken."""

NOT_LOOKED_FOR = "not looked for, because there was no directory device-plugins"
"""Why a record has no checkpoint if the kubelet's root directory has no directory for plugins."""

PARTIAL = "pods"
"""The key for the note that a record may not include all pods on the node."""

ABSENT = "missing on the node"
"""What `sources.json` says about a missing file."""

_MODE = 0o600
_MAX_LISTING = 4 * 1024 * 1024
_DIRECTORIES = "device-plugins|plugins_registry|pod-resources"
_TRIED = re.compile(
    rf"(?:\S*/)?((?:{_DIRECTORIES})/\S+)  (?:(listener|no listener)\b)?"
    r"(?:, says (\S+) ([^\s,]*)(?:, but (.*))?|, no answer: (.*)|.*)"
)
_SERVICE = re.compile(r"(?:\S*/)?plugins/([^/\s]+)/\S+  (listener|no listener)\b.*")
_NO_PLUGINS = re.compile(
    r"ls: cannot access '[^']*device-plugins/?'|^there is no directory device-plugins$", re.MULTILINE
)
_LISTED = re.compile(rf"\$ ls \S+ (?:.*/)?({_DIRECTORIES})/?")
_SOCKET = re.compile(r"s[rwxst-]{9}\S?(?:\s+\S+){7}\s+(\S+)")
T = TypeVar("T")


def is_record(path: str) -> bool:
    """Return whether a directory is a record: it has some of a record's files, and no device plugin directory."""
    root = Path(path)
    named = (LIST_NAME, REASONS_NAME, LISTING_NAME, PODS, NODE, EVENTS)
    try:
        return not (root / "device-plugins").is_dir() and any((root / name).is_file() for name in named)
    except OSError:
        return False


def was_saved(path: str) -> bool:
    """Return whether `--save` wrote the record. A handwritten record may lack files of sources that were read."""
    return any(os.path.lexists(Path(path) / name) for name in (LOOK_NAME, PLUGINS, CDI, RULES, CONFIGURATION))


def reasons(path: str) -> Mapping[str, str]:
    """Return the reasons why files are not in a record, by file name. The empty name stands for the default reason."""
    place = Path(path) / REASONS_NAME
    try:
        document = read_document_file(str(place)).mapping() if os.path.lexists(place) else {}
    except DocumentError as error:
        return {"": f"it is not in the record, which does not say why: {error}"}
    return {name: reason.data for name, reason in document.items() if isinstance(reason.data, str)}


def read_saved(path: str, cls: type[T]) -> Reading[T]:
    """Return the value in a file that this program wrote into a record."""
    from devicecore.system.json_values import from_json  # importing cattrs takes a long time

    try:
        return Reading.of(path, from_json(read_document_file(path).data, cls))
    except DocumentError as error:
        return Reading(path, problem=str(error))
    except ValueError as error:
        return Reading(path, problem=f"{path}: {error}")


@frozen
class SavedPlugins:
    """The answers of plugins. `devices` contains the list of each plugin, or None if the plugin sent none."""

    plugins: tuple[PluginSeen, ...]
    devices: tuple[tuple[Device, ...] | None, ...]

    @classmethod
    def of(cls, plugins: tuple[PluginSeen, ...]) -> "SavedPlugins":
        """Return the answers with the lists separated, because a `DeviceList` has no JSON form."""
        bare = tuple(evolve(one, devices=None) for one in plugins)
        return cls(bare, tuple(None if one.devices is None else tuple(one.devices) for one in plugins))

    @property
    def seen(self) -> tuple[PluginSeen, ...]:
        """The answers, with their lists put back."""
        lists = (None if devices is None else DeviceList.of(devices) for devices in self.devices)
        return tuple(evolve(one, devices=of) for one, of in zip(self.plugins, lists, strict=False))


def read_look(path: str) -> tuple[Look | None, dict[Source, Reading[Any]]]:
    """Return the look in a record, and its readings of the sources whose other files are unchanged.

    The look is None if the record has no saved look that can be read, for example because a later release wrote it.
    """
    root = Path(path)
    if not os.path.lexists(root / LOOK_NAME):
        return None, {}
    from devicecore_tools.doctor.reading import look_file  # importing cattrs takes a long time

    try:
        look, files = look_file.look_in(read_file(root / LOOK_NAME, look_file.MAX_BYTES, follow_links=True))
    except (OSError, ValueError):
        return None, {}
    return look, look_file.unchanged(look, files, root)


def read_listing(path: str) -> Reading[SocketsSeen]:
    """Return the sockets in a record's listing, and whether a process listened on each."""
    place = Path(path) / LISTING_NAME
    try:
        text = read_file(place, _MAX_LISTING, follow_links=True).decode(errors="replace")
    except FileNotFoundError:
        return Reading(str(place), problem="it is not in the record")
    except OSError as error:
        return Reading(str(place), problem=error.strerror or str(error))
    tried = list(filter(None, (_TRIED.fullmatch(line.strip()) for line in text.splitlines())))
    found = dict.fromkeys((*_listed(text), *(one[1] for one in tried)))
    if not found and "device-plugins" not in text:
        return Reading(str(place), problem="it lists no kubelet directory")
    plugins = [name.removeprefix(PLUGINS_PREFIX) for name in found if name.startswith(PLUGINS_PREFIX)]
    registry = [name.removeprefix(REGISTRY_PREFIX) for name in found if name.startswith(REGISTRY_PREFIX)]
    named = {one[1]: (one[3], one[4]) for one in tried if one[3]}
    seen = SocketsSeen(
        "kubelet.sock" in plugins,
        tuple(name for name in sorted(plugins) if name != "kubelet.sock"),
        tuple(sorted(registry)),
        {one[1]: one[2] == "listener" for one in tried if one[2]},
        named,
        {one[1]: one[6] for one in tried if one[6]},
        unusable=dict(_without_service(text, registry, named)) | {one[1]: one[5] for one in tried if one[5]},
    )
    return Reading.of(str(place), seen)


def _without_service(
    text: str, registry: Iterable[str], named: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield, with the reason, the registration socket of each driver whose service socket is listed as not served."""
    tried = filter(None, (_SERVICE.fullmatch(line.strip()) for line in text.splitlines()))
    services = grouped((one[1], one[2] == "listener") for one in tried)
    for socket in registry:
        path = REGISTRY_PREFIX + socket
        driver = named[path][1] if path in named else socket.removesuffix("-reg.sock")
        if not any(services.get(driver, [True])):
            yield path, f"no process listens at its socket in plugins/{driver}"


def has_no_directory_of_plugins(path: str) -> bool:
    """Return whether a record's listing says that there was no device plugin directory on the node.

    A kubelet keeps that directory below `/var/lib/kubelet`, regardless of its root directory.
    """
    try:
        text = read_file(Path(path) / LISTING_NAME, _MAX_LISTING, follow_links=True).decode(errors="replace")
    except OSError:
        return False
    return bool(_NO_PLUGINS.search(text))


def _listed(text: str) -> Iterator[str]:
    """Yield the directory and the name of each socket in the output of `ls -l`."""
    directory = ""
    for line in text.splitlines():
        if line.startswith("$"):
            listed = _LISTED.fullmatch(line.strip())
            directory = listed[1] if listed else ""
        elif directory and (found := _SOCKET.fullmatch(line.strip())):
            yield f"{directory}/{found[1]}"


# --- writing ----------------------------------------------------------------------------------------------------------


def save(
    directory: str,
    look: Look,
    root: str | None,
    checkpoint: str | None,
    objects: Mapping[str, Any],
    notes: Mapping[str, str],
    *,
    taken: int | None,
) -> None:
    """Save what was read into a directory, which is created if missing.

    Args:
        directory: the target directory.
        look: the contents of the sources.
        root: the kubelet's directory, whose files are copied, or None if it was not read.
        checkpoint: the checkpoint's own path, if it is not below `root`.
        objects: the API server's objects as read, by the names of their files.
        notes: additional entries of `sources.json`.
        taken: when the sources were read, in nanoseconds since 1970, or None if unknown.

    Raises:
        OSError: a file cannot be written.
    """
    target = Path(directory)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    reasons_ = {**notes, **_when(taken)}
    for name in FILES:
        place = checkpoint if name == CHECKPOINT_NAME and checkpoint else root and str(Path(root) / name)
        if not place:
            reasons_[name] = "not read"
            continue
        try:
            _write(target / name, read_file(place, MAX_BYTES, follow_links=True))
        except FileNotFoundError:
            reasons_[name] = ABSENT if Path(place).parent.is_dir() else NOT_LOOKED_FOR
        except OSError as error:
            reasons_[name] = error.strerror or str(error)
    if look.pod_resources.value is not None:
        from devicecore_tools.doctor.reading.answers import saved_pod_resources

        for name, document in saved_pod_resources(look.pod_resources.value).items():
            write_json(target / name, document)
    else:
        reasons_[LIST_NAME] = look.pod_resources.problem
    if look.sockets.value is not None:
        _write(target / LISTING_NAME, _listing(look.sockets.value).encode())
    for name, document in objects.items():
        write_json(target / name, _without_secrets(document))
    for name, document in _own_form(look):
        write_json(target / name, document)
    write_json(target / REASONS_NAME, reasons_)
    from devicecore_tools.doctor.reading import look_file  # importing cattrs takes a long time

    digests = {
        source: {name: look_file.digest(target / name) for name in names} for source, names in OF_SOURCES.items()
    }
    _write(target / LOOK_NAME, look_file.text_of(look, digests))


def _when(taken: int | None) -> Mapping[str, str]:
    return {} if taken is None else {TAKEN: datetime.fromtimestamp(taken / SECOND, UTC).isoformat()}


def _own_form(look: Look) -> Iterator[tuple[str, object]]:
    from devicecore.system.json_values import to_json

    if look.plugins.value is not None:
        yield PLUGINS, to_json(SavedPlugins.of(look.plugins.value))
    if look.cdi.value is not None:
        yield CDI, to_json(look.cdi.value)


def _write(path: Path, blob: bytes) -> None:
    DurableFile(path, _MODE).replace(blob)


def write_json(path: Path, document: object) -> None:
    """Write a document into a record. Raises OSError if the file cannot be written."""
    _write(path, json.dumps(document, indent=1).encode() + b"\n")


def _listing(sockets: SocketsSeen) -> str:
    names = [PLUGINS_PREFIX + name for name in (*(("kubelet.sock",) if sockets.kubelet else ()), *sockets.plugins)]
    names += [REGISTRY_PREFIX + name for name in sockets.registry]
    names += [name for name in sockets.served if name not in names]
    said = {True: "listener", False: "no listener (Connection refused)", None: "not tried"}
    lines = ["$ ls -la device-plugins", "", "$ connect() to every socket file of these folders"]
    for name in names:
        kind, own = sockets.named.get(name, ("", ""))
        but = f", but {sockets.unusable[name]}" if name in sockets.unusable else ""
        asked = f", says {kind} {own}{but}" if kind else ""
        asked = f", no answer: {sockets.silent[name]}" if name in sockets.silent else asked
        lines.append(f"{name}  {said[sockets.served.get(name)]}{asked}")
    return "\n".join([*lines, ""])


_KEPT: Mapping[str, Any] = {
    "apiVersion": True,
    "kind": True,
    "metadata": {
        "name": True,
        "namespace": True,
        "uid": True,
        "labels": True,
        "creationTimestamp": True,
        "deletionTimestamp": True,
        "annotations": dict.fromkeys(STATIC_UIDS, True),
    },
    # pods
    "spec": {
        "nodeName": True,
        "schedulerName": True,
        "restartPolicy": True,
        "resourceClaims": True,
        "containers": (kept_container := {"name": True, "resources": True, "restartPolicy": True}),
        "initContainers": kept_container,
        # nodes
        "taints": True,
        "unschedulable": True,
        # slices and claims
        "skipNodeOperations": True,
        **dict.fromkeys(
            ("driver", "pool", "nodeSelector", "allNodes", "perDeviceNodeSelection", "sharedCounters"), True
        ),
        "devices": dict.fromkeys(
            (
                # the fields of a claim, without its configuration, which may contain secrets
                *("requests", "constraints"),
                *("name", "attributes", "capacity", "basic", "taints", "consumesCounters", "allowMultipleAllocations"),
                *("nodeName", "nodeSelector", "allNodes", "bindsToNode", "bindingConditions"),
            ),
            True,
        ),
        # classes
        "selectors": True,
        "extendedResourceName": True,
        # rules for taints
        "deviceSelector": True,
        "taint": True,
    },
    "status": {
        **dict.fromkeys(("phase", "reason", "message", "conditions", "startTime", "allocatedResourcesStatus"), True),
        **dict.fromkeys(("resourceClaimStatuses", "extendedResourceClaimStatus"), True),
        "containerStatuses": (
            kept_status := {
                **dict.fromkeys(("name", "ready", "started", "restartCount", "allocatedResourcesStatus"), True),
                "state": {"waiting": True, "running": True, "terminated": {"reason": True, "exitCode": True}},
            }
        ),
        "initContainerStatuses": kept_status,
        **dict.fromkeys(("capacity", "allocatable", "nodeInfo"), True),
        "allocation": {"devices": {"results": True}, "nodeSelector": True, "allocationTimestamp": True},
        "reservedFor": True,
    },
    # events
    **dict.fromkeys(("involvedObject", "regarding", "reason", "message", "note", "type", "count", "series"), True),
    **dict.fromkeys(("firstTimestamp", "lastTimestamp", "eventTime", "deprecatedLastTimestamp"), True),
    **dict.fromkeys(("reportingComponent", "source"), True),
}
"""The fields of an object that are kept. Any other field may contain a secret."""


def _without_secrets(document: Any) -> Any:  # noqa: ANN401 - JSON has no better type
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        return {
            **_kept(document, {"apiVersion": True, "kind": True}),
            "items": [_kept(one, _KEPT) for one in document["items"]],
        }
    return _kept(document, _KEPT)


def _kept(value: Any, rule: Any) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, list):
        return [_kept(one, rule) for one in value]
    if not isinstance(value, dict) or rule is True:
        return value
    return {key: _kept(one, rule[key]) for key, one in value.items() if key in rule}
