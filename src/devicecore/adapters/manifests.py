"""Pods from a directory of manifests, like the kubelet's static pods.

Law: a file that cannot be used changes nothing. Its mistake is reported with file, line and field, what it said before
stays in force until it is mended or gone, and no other file suffers from it.

Every file counts but those that editors hide (`.x`) and back up (`x~`, `#x#`): YAML or JSON, one or many documents,
each a Pod or a List of pods. Limits count and requests do not, as in the device manager. A pod without `metadata.uid`
gets one made of its file's name and of all it says, so that a changed pod is a new pod (kubelet: `applyDefaults`).

There is no container runtime behind this, so what a kubelet would ask one after a restart is kept in a file: which pods
were given their devices and in which boot of the machine, and what each manifest said last. In the same boot, these
containers count as running (a kubelet restart); in another one, none do (a reboot; reference 4.5).
"""

import hashlib
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import yaml
from attrs import define, frozen

from devicecore.domain.errors import DirectoryError, InvalidQuantityError, ManifestError
from devicecore.domain.model import (
    Container,
    ContainerKey,
    Pod,
    PodUid,
    is_container_resource,
    is_extended_resource,
)
from devicecore.domain.quantity import is_integer, whole_quantity
from devicecore.ports.pods import PodSource

LONGEST = 1024 * 1024
"""Bytes of a manifest: an API server takes little more."""

_DEEPEST = 100  # levels of nesting; libyaml's composer overflows its stack on very many
_MOST_VALUES = 100_000  # in one file, aliases counted as often as they are used
_SETTLED = 2.0  # seconds after which a file's timestamp tells of every further change
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_log = logging.getLogger(__name__)


@frozen
class Changes:
    """What became of the manifests since the last look.

    `removed` are to be released before `added` are admitted: a pod that changed and kept its UID is in both. `problems`
    are those that were not there the last time, `mended` the files that had one.
    """

    added: tuple[Pod, ...] = ()
    removed: tuple[Pod, ...] = ()
    problems: tuple[ManifestError, ...] = ()
    mended: tuple[str, ...] = ()


class ManifestPods(PodSource):
    """A `PodSource` that is a directory of manifests. Whoever owns it calls `poll`, say once a second.

    Args:
        directory: where the manifests are.
        state: the file for what is to survive a restart.
        boot_id: which boot of the machine this is; by default the kernel is asked.

    Raises:
        DirectoryError: `directory` is none.
    """

    def __init__(
        self, directory: str | os.PathLike[str], state: str | os.PathLike[str], *, boot_id: str | None = None
    ) -> None:
        self._directory = Path(directory)
        if not self._directory.is_dir():
            cause = "it is not a directory" if self._directory.exists() else "there is no such directory"
            raise DirectoryError(str(directory), cause)
        self._state = _State(Path(state), _this_boot() if boot_id is None else boot_id)
        self._files = {name: _restored(name, text) for name, text in self._state.files.items()}
        self._trouble: ManifestError | None = None  # with the directory as a whole
        self._known: tuple[Pod, ...] = ()
        self._read = self._ready = False

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods as of the last `poll`, by file and in the order in which it has them."""
        return self._known

    @property
    def problems(self) -> tuple[ManifestError, ...]:
        """What is wrong now, by file."""
        of_files = (self._files[name].problem for name in sorted(self._files))
        return tuple(problem for problem in (self._trouble, *of_files) if problem)

    def active_pods(self) -> tuple[PodUid, ...]:
        """The UIDs of the pods."""
        return tuple(pod.uid for pod in self._known)

    def sources_ready(self) -> bool:
        """Whether all manifests were read once and the pods in them have had their turn."""
        return self._ready

    def running_containers(self) -> tuple[ContainerKey, ...]:
        """The containers of pods that ran when this was made; init containers that end are taken to have ended."""
        return tuple(
            pod.key(container)
            for file in self._files.values()
            for pod in file.pods
            if pod.uid in self._state.ran
            for container in pod.in_start_order
            if not pod.lends(container)
        )

    def mark_running(self, pod: PodUid) -> None:
        """Note that a pod's containers run, for the next start. Any thread may."""
        self._state.mark_running(pod)

    def mark_ready(self) -> None:
        """Say that the pods of the first complete `poll` have had their turn: a kubelet's sources are ready then.

        From now on, a pod that is not here is gone.
        """
        self._ready = self._read

    def poll(self) -> Changes:
        """Look at the directory: at files that are new, changed or gone."""
        problems = self.problems
        self._look()
        pods = tuple(chain.from_iterable(self._files[name].pods for name in sorted(self._files)))
        before, self._known = self._known, pods
        now = self.problems
        wrong = {problem.file for problem in now}
        changes = Changes(
            added=_without(pods, before),
            removed=_without(before, pods),
            problems=tuple(problem for problem in now if not any(problem is known for known in problems)),
            mended=tuple(problem.file for problem in problems if problem.file not in wrong),
        )
        if self._read:
            good = {name: file.good for name, file in self._files.items() if file.good is not None}
            self._state.keep(good, {pod.uid for pod in pods})
        return changes

    def _look(self) -> None:
        try:
            found = dict(_manifests_in(self._directory))
        except OSError as error:
            if self._trouble is None:
                self._trouble = ManifestError(str(self._directory), None, "", error.strerror or str(error))
            return
        self._trouble = None
        self._read = True
        self._files = {name: self._files.get(name, _File(name)) for name in found}
        for name, seen in found.items():
            self._files[name].look(self._directory / name, seen)
        _accept(self._files.values())


Seen = tuple[int, int, int, int]
"""What a file looks like from outside: it is another file, or has changed, when this is different."""


@define(eq=False)
class _File:
    """One manifest: what it says now, and what of that is in force."""

    name: str
    good: str | None = None
    """The text that is in force."""
    pods: tuple[Pod, ...] = ()
    problem: ManifestError | None = None
    text: str | None = None
    """What it says now; None if that cannot be used."""
    wanted: tuple[Pod, ...] = ()
    """The pods of `text`."""
    _read: str | None = None
    _seen: Seen | None = None
    _certain: bool = False
    """Whether every change after the one that was seen has another timestamp."""

    def look(self, path: Path, seen: Seen) -> None:
        """Read the file again, if there may be anything new in it."""
        if seen == self._seen and self._certain:
            return
        self._seen, self._certain = seen, time.time() - seen[0] / 1e9 > _SETTLED
        try:
            text = _read(path)
            if text == self._read:
                return
            self._read = text
            self.wanted, self.text, self.problem = read_pods(text, self.name), text, None
        except ManifestError as problem:
            self.text = None
            self.refuse(problem)

    def accept(self) -> None:
        """Let what it says now be in force."""
        self.good, self.pods, self.problem = self.text, self.wanted, None

    def refuse(self, problem: ManifestError) -> None:
        """Leave in force what it said before."""
        if str(problem) != str(self.problem):  # else it is no news
            self.problem = problem


def _accept(files: Collection[_File]) -> None:
    """Put in force what files say, unless it is in the way of what stays in force in another one."""
    new = [file for file in files if file.text is not None and file.text != file.good]
    while new:
        taken = {name: file.name for file in files if file not in new for name in _names(file.pods)}
        for file in new:
            clash = next((name for name in _names(file.wanted) if name in taken), None)
            if clash:
                file.refuse(ManifestError(file.name, None, "", f"{clash} is in {taken[clash]} too"))
                new.remove(file)  # so what it said before is what others must not be in the way of
                break
            taken |= dict.fromkeys(_names(file.wanted), file.name)
        else:
            break
    for file in new:
        file.accept()


def _without(pods: Iterable[Pod], others: Iterable[Pod]) -> tuple[Pod, ...]:
    """The pods that are not among others; of these no two have the same UID."""
    known = {pod.uid: pod for pod in others}
    return tuple(pod for pod in pods if known.get(pod.uid) != pod)


def _names(pods: Iterable[Pod]) -> Iterator[str]:
    """What no two pods may have in common."""
    for pod in pods:
        yield f"pod {pod.namespace}/{pod.name}"
        yield f"uid {pod.uid}"


def _manifests_in(directory: Path) -> Iterator[tuple[str, Seen]]:
    """The names that count, sorted, and what lies there."""
    for path in sorted(directory.iterdir()):
        if path.name.startswith(".") or path.name.endswith(("~", "#")):
            continue
        with suppress(OSError):  # it has just gone, or is a link to nowhere
            found = path.stat()  # follows links: mounted config maps are made of them
            if stat.S_ISREG(found.st_mode):
                yield path.name, (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
        if len(data) > LONGEST:
            raise ManifestError(path.name, None, "", f"it has more than {LONGEST} bytes")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise ManifestError(path.name, line, "", "it is not UTF-8 text") from error
    except OSError as error:
        raise ManifestError(path.name, None, "", error.strerror or str(error)) from error


# --- what a manifest says ---------------------------------------------------------------------------------------------


def read_pods(text: str, file: str) -> tuple[Pod, ...]:
    """The pods in a manifest. `file` is its name, for errors and for the UIDs of pods that have none.

    Raises:
        ManifestError: any of it cannot be used; also if there is no pod in it, as in a file that is being written.
    """
    pods: list[Pod] = []
    try:
        for document in _Reader(file).documents(text):
            pods.extend(_pods_in(document))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ManifestError(file, line, "", error.problem or "it is not YAML") from error
    except yaml.YAMLError as error:  # a character that YAML does not have
        raise ManifestError(file, None, "", " ".join(str(error).split())) from error
    except RecursionError as error:
        raise ManifestError(file, None, "", "something in it is a part of itself") from error
    if not pods:
        raise ManifestError(file, None, "", "there is no pod in it")
    seen: set[str] = set()
    for name in _names(pods):
        if name in seen:
            raise ManifestError(file, None, "", f"{name} is in it twice")
        seen.add(name)
    return tuple(pods)


def _pods_in(document: "_Place", *, default: tuple[str, str] | None = None) -> Iterator[Pod]:
    kind, version = document["kind"], document["apiVersion"]
    said = kind.text(default and default[0]), version.text(default and default[1])
    if said in {("List", "v1"), ("PodList", "v1")}:
        # The items of a PodList may leave out what they are.
        for item in document["items"].sequence():
            yield from _pods_in(item, default=("Pod", "v1") if said[0] == "PodList" else None)
        return
    if said != ("Pod", "v1"):
        kind.refuse(f"it is a {said[0]} of {said[1]}, and not a Pod of v1")
    metadata, spec = document["metadata"], document["spec"]
    name = metadata["name"].text()
    namespace = metadata["namespace"].text("default")
    containers = _containers(spec["containers"])
    init_containers = _containers(spec["initContainers"])
    if not containers:
        spec["containers"].refuse("a pod has at least one container")
    names = [container.name for container in (*init_containers, *containers)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        spec.refuse(f"two containers are called {twice!r}")
    uid = metadata["uid"].text(_uid(document, namespace, name))
    yield Pod(PodUid(uid), name, namespace, containers, init_containers)


def _containers(place: "_Place") -> tuple[Container, ...]:
    containers = []
    for container in place.sequence():
        policy = container["restartPolicy"]
        restartable = policy.text("") == "Always"
        containers.append(Container(container["name"].text(), _limits(container["resources"]["limits"]), restartable))
    return tuple(containers)


def _limits(place: "_Place") -> dict[str, int]:
    """Limits as an API server lets them pass: only a scheduler and a kubelet round what they are given."""
    limits = {}
    for resource, limit in place.mapping().items():
        if not is_container_resource(resource):
            limit.refuse(f"{resource!r} is not a resource that a container can have, such as cpu or example.com/gpu")
        limits[resource] = limit.quantity(integer=is_extended_resource(resource))
    return limits


def _uid(document: "_Place", namespace: str, name: str) -> str:
    """As long as a kubelet's, which is an MD5 of the same things."""
    said = json.dumps([document.file, namespace, name, document.plain()], sort_keys=True)
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


class _Reader:
    """Documents of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.constructor = yaml.constructor.SafeConstructor()
        self.values = 0

    def documents(self, text: str) -> Iterator["_Place"]:
        for part in _json_parts(text) or [text]:
            _check_depth(part, self.file)
            for node in yaml.compose_all(part, Loader=_LOADER):
                place = _Place(self, node, "")
                if place.plain() is not None:  # there is nothing between two `---`
                    yield place


class _Place:
    """A value in a manifest, which knows where it stands; perhaps one that is not there."""

    def __init__(self, reader: _Reader, node: yaml.Node | None, field: str, line: int | None = None) -> None:
        self._reader = reader
        self._node = None if node is not None and node.tag == "tag:yaml.org,2002:null" else node
        self._field = field
        self._line = line if node is None else node.start_mark.line + 1

    @property
    def file(self) -> str:
        return self._reader.file

    def refuse(self, problem: str, cause: Exception | None = None) -> NoReturn:
        """Say what is wrong here."""
        raise ManifestError(self.file, self._line, self._field, problem) from cause

    def __getitem__(self, key: str) -> "_Place":
        dotted = f"{self._field}.{key}" if self._field else key
        return self.mapping().get(key) or _Place(self._reader, None, dotted, self._line)

    def mapping(self) -> dict[str, "_Place"]:
        """Its values by key; none if it is not there."""
        if self._node is None:
            return {}
        if not isinstance(self._node, yaml.MappingNode):
            self.refuse("it has to be an object")
        self._reader.constructor.flatten_mapping(self._node)  # `<<: *other`
        places: dict[str, _Place] = {}
        for key, value in self._node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.refuse("a key has to be a text")
            name = f"[{key.value}]" if "/" in key.value else f".{key.value}"
            places[key.value] = _Place(self._reader, value, (self._field + name).removeprefix("."))
        return places

    def sequence(self) -> list["_Place"]:
        """Its items; none if it is not there."""
        if self._node is None:
            return []
        if not isinstance(self._node, yaml.SequenceNode):
            self.refuse("it has to be a list")
        return [_Place(self._reader, item, f"{self._field}[{at}]") for at, item in enumerate(self._node.value)]

    def text(self, default: str | None = None) -> str:
        """The text it is; `default` if it is not there."""
        value = default if self._node is None else self._scalar()
        if value is None:
            self.refuse("it is missing")
        if not isinstance(value, str) or (value == "" and default is None):
            self.refuse(f"it has to be a text, and is {value!r}")
        return value or default or ""

    def quantity(self, *, integer: bool) -> int:
        """The quantity it is, which has to be an `integer` or is rounded up."""
        value = self._scalar()
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self.refuse("it has to be a quantity such as 2, 500m or 1.5Gi")
        try:
            count = whole_quantity(str(value))
            if integer and not is_integer(str(value)):
                self.refuse(f"it must be an integer, and is {value}")
        except InvalidQuantityError as error:
            self.refuse(str(error), error)
        if count < 0:
            self.refuse(f"it has to be 0 or more, and is {value}")
        return count

    def plain(self) -> Any:  # noqa: ANN401 - what JSON can hold
        """It, as JSON has it."""
        self._reader.values += 1
        if self._reader.values > _MOST_VALUES:
            raise ManifestError(self.file, self._line, "", f"it has more than {_MOST_VALUES} values")
        if isinstance(self._node, yaml.MappingNode):
            return {key: value.plain() for key, value in self.mapping().items()}
        if isinstance(self._node, yaml.SequenceNode):
            return [item.plain() for item in self.sequence()]
        return self._scalar()

    def _scalar(self) -> str | int | float | bool | None:
        if self._node is None:
            return None
        if not isinstance(self._node, yaml.ScalarNode):
            self.refuse("it has to be one value")
        if self._node.tag.rpartition(":")[2] in {"int", "float", "bool"}:
            try:
                value: int | float | bool = self._reader.constructor.construct_object(self._node)
            except (ValueError, IndexError, KeyError) as error:
                self.refuse(f"{self._node.value!r} is not a value", error)
            return value
        return str(self._node.value)  # a timestamp is one too, as in JSON


def _json_parts(text: str) -> list[str]:
    """The documents of a text that is JSON, each on its old lines; none if it is not JSON."""
    parts = []
    decoder = json.JSONDecoder()
    start = end = len(text) - len(text.lstrip())
    if text[start : start + 1] != "{":
        return []
    while start < len(text):
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return []  # so YAML will have something to say about it
        # JSON may be indented with tabs, YAML may not; a tab inside a JSON string is written \t.
        parts.append("\n" * text.count("\n", 0, start) + text[start:end].replace("\t", " "))
        start = end + len(text[end:]) - len(text[end:].lstrip())
    return parts


def _check_depth(text: str, file: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                line = event.start_mark.line + 1 if event.start_mark else None
                raise ManifestError(file, line, "", f"it is nested deeper than {_DEEPEST} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


# --- what survives a restart ------------------------------------------------------------------------------------------


class _State:
    """What the manifests said last, and which pods ran, in a file.

    It is replaced by renaming and not synced to the disk: after a power failure another boot has begun, and what is in
    here of the last one is void.
    """

    def __init__(self, path: Path, boot: str) -> None:
        self._path = path
        self._boot = boot
        self._lock = threading.Lock()
        self._written: dict[str, object] = {}
        self._problem = ""
        try:
            before = json.loads(path.read_bytes())
            self.files: dict[str, str] = {str(name): str(text) for name, text in before["files"].items()}
            self._running = {PodUid(str(uid)) for uid in before["running"]} if before["boot"] == boot else set()
        except FileNotFoundError:
            self.files, self._running = {}, set()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            _log.warning("nothing is known of pods that ran before: %s cannot be read: %s", path, error)
            self.files, self._running = {}, set()
        self.ran = frozenset(self._running)

    def mark_running(self, pod: PodUid) -> None:
        with self._lock:
            self._running.add(pod)
            self._write()

    def keep(self, files: dict[str, str], pods: Collection[PodUid]) -> None:
        """Remember these texts, and of the pods that run only these."""
        with self._lock:
            self.files = files
            self._running = {uid for uid in self._running if uid in pods}
            self._write()

    def _write(self) -> None:
        wanted: dict[str, object] = {"boot": self._boot, "files": self.files, "running": sorted(self._running)}
        if wanted == self._written:
            return
        new = self._path.with_name(f".{self._path.name}.new")
        try:
            new.write_text(json.dumps(wanted, indent=1) + "\n")
            new.replace(self._path)
        except OSError as error:
            if str(error) != self._problem:  # once a second is too often
                _log.error("cannot note which pods run: %s", error)
            self._problem = str(error)
        else:
            self._written, self._problem = wanted, ""


def _restored(name: str, text: str) -> _File:
    """A file as it was in force before a restart."""
    try:
        return _File(name, text, read_pods(text, name))
    except ManifestError:  # an older version of this module took it
        return _File(name)


def _this_boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""  # a machine that does not say is never rebooted
