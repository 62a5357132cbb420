"""The devices that a plugin lists, and the calls made for them.

Law: the first response for each single device is reused, and the responses are kept in bounded memory.
"""

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from attrs import define, field

from devicecore.adapters.grpc_unix import rpc
from devicecore.system.cdi import CDI_DIRECTORIES, UnresolvableError, names_in, resolve
from devicecore.system.files import read_file
from devicecore.wire import deviceplugin
from devicecore_tools.conformance.connection import CallFailedError
from devicecore_tools.conformance.device_plugin.kubelet import PluginConnection
from devicecore_tools.conformance.device_plugin.process import ProcessUnderTest
from devicecore_tools.conformance.device_plugin.registration import PluginRegistration
from devicecore_tools.conformance.device_plugin.settings import Settings
from devicecore_tools.conformance.model import (
    NotYet,
    Skip,
    does_not_apply_if,
    skip_if,
    skipping,
    some,
    time_is_over,
)

_MAX_SINGLE_DEVICES = 64  # devices that are allocated one by one
_MAX_ANSWERS = 16 * 1024 * 1024  # bytes; the total of the answers for single devices, which are kept for comparison
_SHORTEST_CALL = 0.1  # seconds
_SLOW_CALL = 2.0  # seconds; if a call takes longer, a few devices must suffice
_QUICK_CALL = 0.3  # seconds; if a call to Allocate takes longer, few combinations of devices must suffice
_MAX_COMBINATIONS = 8  # of each kind, roughly: up to 15, because the step is a whole number
_MAX_CHANGES = 20  # recorded answers
_MAX_SOURCES = 200  # mounted paths
_MAX_FILES, _MAX_FILE = 64, 65_536  # files of a mounted directory, and bytes of a file
_SECRET = re.compile(r"token|secret|passw|credential|licen[cs]e|api_?key|(^|_)key($|_)", re.IGNORECASE)
_MIN_SECRET = 8  # characters
_CDI = "the CDI device "  # begins the entries for CDI devices among those for paths
_REWRITING = 0.1  # seconds
STARTING = 30.0
"""The number of seconds that a kubelet allows for PreStartContainer."""

PATIENCE = 60.0
"""The number of seconds allowed for Allocate, for which a kubelet sets no limit, until one call has timed out."""

REFUSAL = "refusal"
"""Takes the place of the part of an answer in `ListedDevices.changes` if a call was refused."""

_GONE = {"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED"}  # the plugin did not refuse the call

Answer = deviceplugin.ContainerAllocateResponse


@define(eq=False)
class ListedDevices:
    """The plugin's devices.

    Attributes:
        first: the devices before any change of health was provoked, or None if there was no list.
        first_at: when the devices in `first` were read, as a `time.monotonic()` timestamp.
        was_allocated: whether the plugin has answered a call to Allocate.
        slowest: how long the plugin's slowest answer to Allocate took, in seconds.
        is_silent: whether a call to Allocate got no answer at all.
        usual: how long the plugin's answers to Allocate took on average, in seconds.
        usual_start: how long the plugin's answers to PreStartContainer took on average, in seconds.
        took: for each method, how long its fastest answer took, in seconds.
        existing: the device nodes, mounted paths and CDI devices that existed when they were given to a container.
        vanished: a sentence for each later answer with a device node or mount that no longer existed.
        secrets: values of variables that seem to be secret, such as passwords, each with the name of its variable.
        printed: the variables whose secret values the plugin has printed.
        starts_nothing: whether a call to PreStartContainer got no answer at all.
        answered: each method, with its request, that the plugin has answered without an error.
        check: the name of the check that is running.
        needs_few: whether that check should make few calls, because the plugin is slow.
        changes: what has changed in a later answer to Allocate for the same ids. Each entry is the part of the answer
            and a sentence.
        sources: for each mounted path and CDI device that existed when it was given, the ids for which it was given.
        directories: a file descriptor for each of these paths that is a directory. While it is open, the number of the
            directory's inode is not used again.
        gone: mounted paths that no longer exist or were recreated, and what happened to them during which check.
        preferred: the requests for preferences that were answered with a fitting set.
        misfits: a sentence for each answer that does not fit although an earlier answer to the same request did.
        compared: how many answers to Allocate were compared with an earlier one.
    """

    registration: PluginRegistration
    process: ProcessUnderTest
    settings: Settings
    first: tuple[deviceplugin.Device, ...] | None = None
    first_at: float = 0.0
    was_allocated: bool = False
    slowest: float = 0.0
    is_silent: bool = False
    usual: float = 0.0
    usual_start: float = 0.0
    took: dict[str, float] = field(factory=dict)
    existing: set[str] = field(factory=set)
    vanished: list[str] = field(factory=list)
    secrets: dict[str, str] = field(factory=dict)
    printed: set[str] = field(factory=set)
    starts_nothing: bool = False
    answered: set[tuple[str, bytes]] = field(factory=set)
    check: str = ""
    needs_few: bool = False
    changes: list[tuple[str, str]] = field(factory=list)
    compared: int = 0
    sources: dict[str, str] = field(factory=dict)
    directories: dict[str, int] = field(factory=dict)
    gone: dict[str, str] = field(factory=dict)
    preferred: set[tuple[frozenset[str], frozenset[str], int]] = field(factory=set)
    misfits: list[str] = field(factory=list)
    _allocated: int = 0  # answers to Allocate
    _started: int = 0  # answers to PreStartContainer
    _together: dict[tuple[str, ...], list[bytes]] = field(factory=dict)
    _singles: dict[str, bytes] = field(factory=dict)
    _firsts: dict[tuple[str, ...], bytes] = field(factory=dict)  # the first answer for one container, by ids
    _unsteady: frozenset[str] | None = None
    _looked_into: deviceplugin.ListAndWatchResponse | None = None
    _healthy: list[str] = field(factory=list)
    _waited_for_healthy: bool = False

    def require_list(self) -> PluginConnection:
        """Wait for the first list and return the connection. Raises Skip if there is no list."""
        connection = self.registration.streaming()
        skip_if(not connection.list_count, "the plugin has sent no list")
        return connection

    @property
    def devices(self) -> tuple[deviceplugin.Device, ...]:
        """The last list. If the first list has no healthy device, the first use waits for a list that has one.

        Raises Skip if there is no list.
        """
        connection = self.require_list()
        if not self._waited_for_healthy:  # wait only once, because some plugins never have a healthy device
            self._waited_for_healthy = True
            self.process.wait(lambda: self._healthy_ids(connection), self.settings.timeout)
        devices = tuple(connection.last_list.devices)
        if not self.first:
            self.first, self.first_at = devices, time.monotonic()
        return devices

    @property
    def known(self) -> Sequence[deviceplugin.Device] | None:
        """The devices before any change of health, or the latest ones, or None if there was no list."""
        connections = (one.connection for one in reversed(self.registration.kubelet.registrations))
        lists = (one.last_list.devices for one in connections if one and one.list_count)
        return self.first or next(lists, None)

    @property
    def healthy(self) -> list[str]:
        """The ids of healthy devices, spread over the list: at most 64, or two if the plugin is slow.

        Raises NotYet if there are none.
        """
        ids = self._healthy_ids(self.require_list()) if self.devices else []
        if not ids:
            raise NotYet("the plugin lists no healthy device")
        if self.needs_few and len(ids) > 2:
            return [ids[0], self._different_from(ids)]
        return ids[:: -(-len(ids) // _MAX_SINGLE_DEVICES)]

    def _different_from(self, ids: Sequence[str]) -> str:
        """Return a device whose answer is known to differ from the first device's, or else the last device.

        Many checks do not apply to devices with equal answers.
        """
        parts = {id_: _parts_of(answer) for id_, answer in self.known_answers.items()}
        first = parts.get(ids[0])
        return next((id_ for id_ in ids[1:] if id_ in parts and parts[id_] != first), ids[-1])

    @property
    def known_answers(self) -> dict[str, Answer]:
        """The first answer for each device that has been allocated alone so far."""
        return {id_: Answer.FromString(one) for id_, one in self._singles.items()}

    @property
    def every_healthy(self) -> list[str]:
        """The ids of all healthy devices, but at most 64, even if few devices must suffice for a check."""
        return self._healthy_ids(self.require_list())[:_MAX_SINGLE_DEVICES]

    def begin(self, check: str) -> None:
        """Note the name of the check that begins, and how many devices must suffice for it."""
        self.check, self.needs_few = check, self.starts_slowly or not self.is_quick

    def wait_for_devices(self) -> None:
        """If the plugin has allocated a device before, wait until it lists a healthy one.

        A new process may do so late.
        """
        if self.was_allocated:
            self.wait_for_healthy(self.settings.timeout)

    def wait_for_healthy(self, limit: float) -> None:
        """Wait until the plugin lists a healthy device, but no longer than the given number of seconds."""
        with suppress(Skip):  # there is no time left, or the plugin is gone
            self.process.wait(lambda: self._healthy_ids(self.require_list()), limit)

    def _healthy_ids(self, connection: PluginConnection) -> list[str]:
        """Return the ids of the healthy devices in the last list."""
        last = connection.last_list
        if last is not self._looked_into:
            self._looked_into = last
            self._healthy = sorted({device.ID for device in last.devices if device.health == "Healthy"})
        return self._healthy

    def two_devices(self) -> tuple[str, str]:
        """Return two healthy devices. Raises Skip if there is only one healthy device."""
        ids = self.healthy
        others = {device.ID for device in self.first or () if device.health == "Healthy"}.difference(ids)
        skip_if(len(ids) == 1 and others, f"{some(sorted(others))} is no longer healthy")
        does_not_apply_if(len(ids) == 1, "the plugin has only one healthy device")
        return ids[0], ids[-1]

    def allocate(
        self, *containers: Sequence[str], patience: float = PATIENCE
    ) -> list[deviceplugin.ContainerAllocateResponse]:
        """Call Allocate once for `containers`, each given as a list of device ids, and return the answers.

        The plugin has `patience` seconds to answer, and never less than `Settings.timeout`. If it has left a call to
        Allocate without an answer, it has only `Settings.timeout`.

        Raises CallFailedError if the plugin returned an error or did not respond in time.
        """
        began, limit = time.monotonic(), self.settings.timeout if self.is_silent else patience
        try:
            answer = self.call(rpc.ALLOCATE, allocate_request(*containers), limit)
        except CallFailedError as error:
            self.is_silent = self.is_silent or error.is_late
            if len(containers) == 1 and tuple(containers[0]) in self._firsts and error.code not in _GONE:
                self._note(containers[0], REFUSAL, f"was refused: {error}")
            raise
        took, self.was_allocated = time.monotonic() - began, True
        self.slowest = max(self.slowest, took)
        self._allocated += 1
        self.usual += (took - self.usual) / self._allocated
        self.process.deadline += took if took > _SLOW_CALL else 0.0  # few plugins are this slow
        if len(containers) == len(answer.container_responses) == 1:
            self._compare(containers[0], answer.container_responses[0])
        for given in answer.container_responses:
            for name, value in given.envs.items():
                if _SECRET.search(name) and len(value) >= _MIN_SECRET and len(self.secrets) < _MAX_SOURCES:
                    self.secrets.setdefault(value, name)
            self._look_at_paths(given, some([id_ for ids in containers for id_ in ids]))
        return list(answer.container_responses)

    def _look_at_paths(self, given: Answer, ids: str) -> None:
        """Record which paths in an answer exist, and which have existed before."""
        names = [f"{_CDI}{one.name}" for one in given.cdi_devices]
        mounted = [mount.host_path for mount in given.mounts]
        for path in [*(node.host_path for node in given.devices), *mounted, *names]:
            if _exists(path, was_there=path in self.existing):
                if len(self.existing) < _MAX_SOURCES:
                    self.existing.add(path)
            elif path in self.existing and len(self.vanished) < _MAX_CHANGES:
                text = f"during {self.check}, the answer for {ids} contained {path}, which no longer existed"
                self.vanished.append(text)
        for path in [*mounted, *names]:
            if path not in self.sources and len(self.sources) < _MAX_SOURCES and path in self.existing:
                self.sources[path] = ids
                with suppress(OSError):  # it is not a directory
                    self.directories[path] = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def forget_sources(self) -> None:
        """Forget the mounted paths that have just vanished, because the user's command may have deleted them."""
        for path in [path for path in self.sources if path not in self.gone and not _exists(path)]:
            del self.sources[path]
            if path in self.directories:
                os.close(self.directories.pop(path))

    def close(self) -> None:
        """Close all directories."""
        while self.directories:
            os.close(self.directories.popitem()[1])

    def pre_start(self, ids: Sequence[str]) -> None:
        """Call PreStartContainer for a container with these devices, with as much time as a kubelet allows.

        Raises CallFailedError if the plugin returned an error or did not respond in time.
        """
        began = time.monotonic()
        limit = self.settings.timeout if self.starts_nothing else STARTING
        try:
            self.call(rpc.PRE_START_CONTAINER, deviceplugin.PreStartContainerRequest(devices_ids=ids), limit)
        except CallFailedError as error:
            self.starts_nothing = self.starts_nothing or error.is_late
            raise
        took = time.monotonic() - began
        self._started += 1
        self.usual_start += (took - self.usual_start) / self._started
        self.process.deadline += took if took > _SLOW_CALL else 0.0

    def look_for_secrets(self) -> None:
        """Record which secrets are in the latest output of the plugin's process."""
        left = {value: name for value, name in self.secrets.items() if name not in self.printed}
        output = self.process.running.output if left and self.process.running else ""
        self.printed |= {name for value, name in left.items() if value in output}

    def look_for_sources(self) -> None:
        """Record which mounted paths have vanished, and which directories have been replaced by new ones."""
        for path in self.sources.keys() - self.gone.keys():
            if not _exists(path):
                self.gone[path] = f"has been gone since {self.check}"
            elif path in self.directories and not os.path.samestat(os.fstat(self.directories[path]), Path(path).stat()):
                self.gone[path] = f"was deleted and created again during {self.check}"

    def note_preference(self, available: Sequence[str], must: Sequence[str], size: int, answer: Sequence[str]) -> None:
        """Record whether an answer fits its request, as it should if an earlier answer to the same request fit."""
        request = frozenset(available), frozenset(must), size
        fits = len(answer) == len(set(answer)) == size and set(must) <= set(answer) <= set(available)
        if fits:
            self.preferred.add(request)
        elif request in self.preferred and len(self.misfits) < _MAX_CHANGES:
            asked = f"{size} of {some(available)}{f' with {some(must)}' if must else ''}"
            self.misfits.append(f"during {self.check}, the answer for {asked} was {some(answer) or 'empty'}")

    @property
    def is_quick(self) -> bool:
        """Whether answers to Allocate usually do not take long. A busy machine may delay a single one."""
        return self.usual <= _SLOW_CALL

    @property
    def starts_slowly(self) -> bool:
        """Whether PreStartContainer usually takes so long that a few calls must suffice."""
        return self.usual_start > _SLOW_CALL

    def _compare(self, ids: Sequence[str], answer: Answer) -> None:
        """Compare an answer with the first one for the same ids, whatever has happened between the two calls."""
        known = self._firsts.get(tuple(ids))
        if known is None:
            if sum(map(len, self._firsts.values())) + answer.ByteSize() <= _MAX_ANSWERS:
                self._firsts[tuple(ids)] = answer.SerializeToString()
            return
        self.compared += 1
        former = Answer.FromString(known)
        if self.has_vanished(former):  # the device was given another path
            self._firsts[tuple(ids)] = answer.SerializeToString()
            return
        before, now = _parts_of(former), _parts_of(answer)
        for part, names in before.items():
            texts = [f"lacked {one}" for one in sorted(names - now[part])]
            texts += [f"had {one} in addition" for one in sorted(now[part] - names)]
            if texts:
                self._note(ids, part, some(texts))

    def has_vanished(self, answer: Answer) -> bool:
        """Return whether a device node in an answer existed when it was given, but no longer exists."""
        return any(one.host_path in self.existing and not Path(one.host_path).exists() for one in answer.devices)

    def _note(self, ids: Sequence[str], part: str, what: str) -> None:
        if len(self.changes) < _MAX_CHANGES:
            self.changes.append((part, f"during {self.check}, the answer for {some(ids)} {what}"))

    @property
    def unsteady(self) -> frozenset[str]:
        """The parts of answers to Allocate that differ even if the same call is made twice in a row.

        Raises Skip if the plugin does not answer.
        """
        if self._unsteady is None:
            ids, number = self.healthy[:1], len(self.changes)
            with skipping(CallFailedError):
                answers = [self.allocate(ids) for _ in range(2)]
            del self.changes[number:]
            skip_if(not all(answers), "an answer to Allocate has no container response")
            first, second = (_parts_of(each[0]) for each in answers)
            self._unsteady = frozenset(part for part in first if first[part] != second[part])
        return self._unsteady

    def together(self, ids: Sequence[str]) -> list[Answer]:
        """Return the answers for one container with these devices. Allocate is not called if the answers are known.

        Raises CallFailedError if the plugin returned an error or did not respond in time.
        """
        known = self._together.get(tuple(ids))
        if known is None:
            known = [one.SerializeToString() for one in self.allocate(ids)]
            if sum(len(one) for each in self._together.values() for one in each) <= _MAX_ANSWERS:
                self._together[tuple(ids)] = known
        return [Answer.FromString(one) for one in known]

    def combinations(self) -> list[list[str]]:
        """Return the lists of ids to request together: all ids in two orders, pairs of neighbors, and longer prefixes.

        If the plugin is slow, return only the first two lists. Raises Skip if there is only one device.
        """
        self.two_devices()
        ids = self.healthy
        found = [ids, ids[::-1]]
        if self.usual <= _QUICK_CALL:
            step = max(len(ids) // _MAX_COMBINATIONS, 1)
            found += [[ids[place], ids[place - 1]] for place in range(0, len(ids), step)]
            found += [ids[:number] for number in range(3, len(ids), step)]
        return found

    def alone(self, device: str) -> deviceplugin.ContainerAllocateResponse:
        """Return the first answer for a container with only this device. Allocate is not called if the answer is known.

        Raises:
            Skip: the plugin did not allocate the device (another check reports that), or the responses are too large to
                keep.
        """
        with skipping(CallFailedError):
            answer = self.first_answer(device)
        if answer is None:
            raise Skip(f"the answer to Allocate for {device} has no container response")
        too_large = f"the answers to Allocate for single devices exceed {_MAX_ANSWERS} bytes in total"
        skip_if(device not in self._singles, too_large)
        return answer

    def first_answer(self, device: str) -> deviceplugin.ContainerAllocateResponse | None:
        """Return the first answer for a container with only this device, or None if it contains no container response.

        Raises CallFailedError if the plugin returned an error or did not respond in time.
        """
        if device not in self._singles:
            answers = self.allocate([device])
            if not answers:
                return None
            self._singles[device] = answers[0].SerializeToString()  # a parsed message may take much more memory
            if sum(map(len, self._singles.values())) > _MAX_ANSWERS:
                self._singles.clear()
                return answers[0]
        return deviceplugin.ContainerAllocateResponse.FromString(self._singles[device])

    def call(
        self, method: rpc.Method[rpc.Request, rpc.Response], request: rpc.Request, timeout: float = 0.0
    ) -> rpc.Response:
        """Call any method, with at least `timeout` seconds for the answer unless the run has less time left.

        Raises CallFailedError if the plugin returned an error or did not respond in time.
        """
        connection = self.registration.connected()
        self.process.require_time()
        wanted = max(self.settings.timeout, timeout)
        limit = min(wanted, max(self.process.time_left, _SHORTEST_CALL))
        began = time.monotonic()
        try:
            response = connection.call(method, request, limit)
        except CallFailedError as error:
            if error.code == "DEADLINE_EXCEEDED" and limit < wanted:
                raise time_is_over(self.settings.budget) from None
            raise
        took = time.monotonic() - began
        self.took[method.name] = min(self.took.get(method.name, took), took)
        self.answered.add((method.path, request.SerializeToString(deterministic=True)))
        return response

    def has_answered(self, method: rpc.Method[rpc.Request, rpc.Response], request: rpc.Request) -> bool:
        """Return whether the plugin has answered this call before, at any time during the run."""
        return (method.path, request.SerializeToString(deterministic=True)) in self.answered


def _exists(path: str, *, was_there: bool = True) -> bool:
    """Return whether a path exists, or, if `path` is the name of a CDI device after `_CDI`, whether a file defines it.

    If a CDI device was there before, its file may just be being rewritten, so the files are read again a moment later.
    """
    if not path.startswith(_CDI):
        return Path(path).exists()
    for pause in (0.0, _REWRITING) if was_there else (0.0,):
        time.sleep(pause)
        if any(path.removeprefix(_CDI) in names_in(Path(directory)) for directory in CDI_DIRECTORIES):
            return True
    return False


def contents_of(answer: Answer) -> Mapping[str, object]:
    """Return what the paths and CDI devices in an answer contain on this machine, by name.

    Only the contents of small files, the targets of links and the edits of CDI devices are read.
    """
    found: dict[str, object] = {}
    for name in (one.name for one in answer.cdi_devices):
        with suppress(UnresolvableError):
            found[f"the CDI device {name}"] = resolve(name, [*map(Path, CDI_DIRECTORIES)])
    paths = [*(one.host_path for one in answer.devices), *(one.host_path for one in answer.mounts)]
    for place in map(Path, paths):
        files = [place]
        with suppress(OSError):  # it vanishes, or cannot be read
            if place.is_symlink():
                found[f"the link {place}"] = place.readlink()
            if place.is_dir():
                files = sorted(islice(place.iterdir(), _MAX_FILES))
        for path in files:
            with suppress(OSError):  # as above, or it is too long
                if path.is_file():  # opening a device may have an effect
                    found[f"the file {path}"] = read_file(path, _MAX_FILE, follow_links=True)
    return found


def _parts_of(answer: Answer) -> Mapping[str, frozenset[str]]:
    """Return what an answer gives a container, by part.

    The sources of mounts and the values of variables and annotations are left out, because they may differ for each
    container.
    """
    return {
        "device nodes": frozenset(
            f"{one.host_path} at {one.container_path} ({''.join(sorted(one.permissions))})" for one in answer.devices
        ),
        "CDI devices": frozenset(f"the CDI device {one.name}" for one in answer.cdi_devices),
        "mounts": frozenset(f"a mount at {one.container_path}" for one in answer.mounts),
        "variables": frozenset(f"the variable {name}" for name in answer.envs),
        "annotations": frozenset(f"the annotation {name}" for name in answer.annotations),
    }


def allocate_request(*containers: Sequence[str]) -> deviceplugin.AllocateRequest:
    """Return a request for containers, each given as a list of device ids."""
    requests = [deviceplugin.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    return deviceplugin.AllocateRequest(container_requests=requests)


def health_of(devices: Sequence[deviceplugin.Device]) -> Mapping[str, str]:
    """Return the health of each device."""
    return {device.ID: device.health for device in devices}


def health_changes(before: Mapping[str, str], now: Mapping[str, str]) -> Mapping[str, str]:
    """Return the devices whose health has changed or that are gone. A new device is not a change of health."""
    return {id_: now.get(id_, "gone") for id_ in sorted(before) if now.get(id_) != before[id_]}
