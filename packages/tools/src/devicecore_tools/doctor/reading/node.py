"""Reads the sources of a node for `doctor`, `why` and `fits`.

Law: an unreadable source is named with the reason, and the other sources are still read.
"""

import errno
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from attrs import define, evolve, field

from devicecore.adapters.file import CHECKPOINT_NAME
from devicecore.domain.allocation import DeviceKey, node_of
from devicecore.domain.allocation.search import REPELLING_EFFECTS
from devicecore.domain.documents import Value
from devicecore.domain.dra.health import MAX_LIMIT, SECOND
from devicecore.domain.dra.state_file import FILE_NAME as CLAIMS_NAME
from devicecore.domain.errors import DocumentError
from devicecore.domain.text import foreign_text
from devicecore.runtime.in_time import NOTICED
from devicecore.system.cdi import CDI_DIRECTORIES
from devicecore_tools.budget import Budget
from devicecore_tools.doctor import DEFAULT_ROOT
from devicecore_tools.doctor.look.topology_settings import TopologySettings
from devicecore_tools.doctor.look.values import (
    CONFIGURATION,
    LIST_NAME,
    NO_DIRECTORY,
    NO_FILES,
    NOBODY_LISTENS,
    NOT_RECORDED,
    OF_PODS,
    ON_THE_NODE,
    PLUGINS_PREFIX,
    REGISTRY_PREFIX,
    CdiSeen,
    CheckpointSeen,
    ClaimsSeen,
    Look,
    MachineSeen,
    NodeSeen,
    PluginSeen,
    PodResourcesSeen,
    PodSeen,
    PublishedDeviceSeen,
    Reading,
    SocketsSeen,
    Source,
    StateFileSeen,
)
from devicecore_tools.doctor.reading import record
from devicecore_tools.doctor.reading.cdi import read_cdi
from devicecore_tools.doctor.reading.claims import (
    allocations_in,
    elsewhere,
    published_by,
    read_claims,
    read_health,
    slices_in,
)
from devicecore_tools.doctor.reading.kubelet_directory import (
    KUBELET_SOCKETS,
    KubeletDirectory,
    not_a_file,
    read_checkpoint,
    read_sockets,
    why_unwritable,
)
from devicecore_tools.doctor.reading.kubelet_settings import (
    configuration_of,
    configuration_problem,
    read_topology,
    sees_files_of_kubelet,
)
from devicecore_tools.doctor.reading.large_documents import MAX_INPUT, parse_document, read_document_file
from devicecore_tools.doctor.reading.machine import seen_machine, this_machine, why_another_machine, why_other_pods
from devicecore_tools.doctor.reading.managers import ManagersSeen, read_managers
from devicecore_tools.doctor.reading.objects import events_in, node_in, pods_in, read_running_pods
from devicecore_tools.doctor.reading.state_files import read_state_files
from devicecore_tools.doctor.reading.taint_rules import TaintRule, added_taints, rules_in
from devicecore_tools.numa import MACHINE_FILE, NumaError, described_machine

_SHORT_LIFE = 60.0  # a plugin that recreates its socket within this many seconds counts as crashing repeatedly
_MAX_WAIT = 5.0  # seconds for a process to identify itself
_MAX_WAIT_FOR_ALL = 10.0  # seconds for all processes together, across all looks of a report

_KINDS = {
    record.NODE: "Node",
    record.PODS: "Pod",
    record.EVENTS: "Event",
    record.SLICES: "ResourceSlice",
    record.CLAIMS: "ResourceClaim",
    record.CLASSES: "DeviceClass",
    record.RULES: "DeviceTaintRule",
}
"""The kinds of the API server's objects, by the names of their files in a record."""

Seen = TypeVar("Seen")


class SourcesError(ValueError):
    """The given sources contradict each other, or one of them cannot be used without another."""


@define
class NodeSources:
    """What to read about a node. Each call of `look` reads everything again.

    Raises SourcesError if sources contradict each other, or one of them cannot be used without another.
    """

    root: str | None = None
    checkpoint: str | None = None
    pod_resources: str | None = None
    pods: str | None = None
    node: str | None = None
    claims: str | None = None
    slices: str | None = None
    resourceclaims: str | None = None
    events: str | None = None
    kubeconfig: str | None = None
    in_cluster: bool = False
    node_name: str | None = None
    plugins: bool | None = None
    """Whether plugins are asked for their lists.

    If None, plugins are only asked to identify themselves. If False, plugins are not queried at all.
    """

    plugin_timeout: float = 10.0
    cdi_directories: tuple[str, ...] = ()
    events_of: tuple[str, str] | None = field(default=None, init=False)
    """Namespace and name of the pod whose events are read from the API server.

    If None, the events that `doctor` needs are read.
    """

    clock: Callable[[], int] = time.time_ns
    """Returns the current time, in nanoseconds since 1970. For a record, the time in the record is used instead."""

    documents: dict[str, Any] = field(init=False, factory=dict)
    """The API server's objects as last read, by the names of their files in a record."""
    _is_remote: bool = field(default=False, init=False)
    """Whether the node's kubelet is on another machine, so that only the API server is queried."""
    _may_be_remote: bool = field(default=False, init=False)
    """Whether an API server is queried, and no directory or socket of this machine was given."""

    _directory: KubeletDirectory | None = field(default=None, init=False)
    _reasons: dict[str, str] | None = field(default=None, init=False)
    _recorded: tuple[Look | None, dict[Source, Reading[Any]]] | None = field(default=None, init=False)
    _read_at: int | None = field(default=None, init=False)
    _piped: Any = field(default=None, init=False)
    _last_checkpoint: Reading[CheckpointSeen] | None = field(default=None, init=False)
    _patience: float = field(default=_MAX_WAIT_FOR_ALL, init=False)
    _listeners: Any = field(default=None, init=False)
    _first_made: dict[str, float] = field(factory=dict, init=False)
    _lists: Any = field(default=None, init=False)
    _budget: Budget = field(factory=Budget, init=False)
    """The budget for the documents of one look, which are all kept until the next look."""

    def __attrs_post_init__(self) -> None:
        if self.uses_api and not self.node_name and self.root != os.devnull:
            raise SourcesError("--kubeconfig and --in-cluster need --node-name, the name of the Node object.")
        files = (self.root, self.checkpoint, self.pods, self.node, self.slices, self.resourceclaims, self.events)
        if self.node_name and not self.uses_api and not any(files):
            raise SourcesError("--node-name names a Node on the API server: add --kubeconfig FILE or --in-cluster.")
        if self.root is None and self.checkpoint is None and self.pod_resources is None:
            self.root = DEFAULT_ROOT
            self._may_be_remote = self.uses_api and not self.plugins
            self._is_remote = self._may_be_remote and _is_absent(DEFAULT_ROOT)
        if self.root is not None and record.is_record(self.root):
            self._reasons = dict(record.reasons(self.root))
        elif self.root is not None:
            self._directory = KubeletDirectory.at(self.root)
        if self.plugins and self._reasons is not None:
            record_of = foreign_text(str(self.root))
            raise SourcesError(f"--plugins: {record_of} is a record, which contains no sockets: leave out --plugins.")
        if self.plugins and self._directory is None:
            raise SourcesError("--plugins needs --root, the directory of the plugins' sockets.")
        if not self.cdi_directories and (self._directory is not None or self.pod_resources is not None):
            self.cdi_directories = CDI_DIRECTORIES

    @property
    def uses_api(self) -> bool:
        """Whether the objects are read from an API server."""
        return self.in_cluster or self.kubeconfig is not None

    @property
    def is_live(self) -> bool:
        """Whether a second look can differ from the first even if no file was replaced."""
        return self._directory is not None or self.pod_resources is not None or self.uses_api

    def begin(self, patience: float | None) -> None:
        """Start a report. Processes are asked for their identity again.

        If `patience` is less than the default, it is the total number of seconds for querying the processes. The total
        time is always enough for one answer.
        """
        self._listeners = self._lists = None
        self._first_made = {}
        self._patience = _MAX_WAIT_FOR_ALL if patience is None else patience

    def look(self, budget: Budget | None = None) -> Look:
        """Read every source once, one after another, within a budget. The default is a new budget.

        Raises SourcesError if `node_name` is not the name of the Node that was read.
        """
        self._budget = budget or Budget()
        read = None if self._is_remote else self._look_here()
        if read is not None:
            found = read.node.value.name if read.node.value is not None else ""
            if self.node_name and not self.uses_api and found not in {"", self.node_name}:
                raise SourcesError(
                    f"--node-name {foreign_text(self.node_name)}: the files belong to Node {foreign_text(found)}. To "
                    "read a different Node from an API server, add --kubeconfig FILE."
                )
            return read
        away: Reading[Any] = Reading(problem=ON_THE_NODE)
        local: dict[str, Any] = {source.name.lower(): away for source in Source}
        return Look(**{**local, **self._read_objects(None)}, taken=self._time() / SECOND)

    def _look_here(self) -> Look | None:
        """Return a look at the node whose files are on this machine, or None if the Node belongs to another machine."""
        checkpoint = self._read_checkpoint()
        sockets = self._with_names(self._read_sockets())
        pod_resources = self._read_pod_resources()
        objects = self._read_objects(pod_resources.value)
        if self._is_remote:
            return None
        plugins = self._read_plugins(sockets)
        read = Look(
            checkpoint,
            sockets,
            pod_resources,
            plugins=plugins,
            cdi=self._read_cdi(),
            claims=self._read_claims(),
            health=self._read_health(),
            state_files=self._read_state_files(),
            machine=self._machine(),
            taken=None if (now := self._time()) == MAX_LIMIT else now / SECOND,
            **objects,
        )
        return read if self._reasons is None else self._as_recorded(read)

    def _as_recorded(self, read: Look) -> Look:
        """Return `read` with the parts of the record's saved look whose files in the record are unchanged."""
        if self._recorded is None and self.root is not None:
            self._recorded = record.read_look(self.root)
        whole, readings = self._recorded or (None, {})
        if whole is None:
            return read
        named = {
            Source.CHECKPOINT: self.checkpoint,
            Source.POD_RESOURCES: self.pod_resources,
            Source.PODS: self.pods or self.uses_api,
            Source.NODE: self.node or self.uses_api,
            Source.EVENTS: self.events or self.uses_api,
            Source.SLICES: self.slices or self.uses_api,
            Source.ALLOCATIONS: self.resourceclaims or self.uses_api,
            Source.CLAIMS: self.claims,
            Source.CDI: self.cdi_directories,
        }
        kept: dict[str, Any] = {source.name.lower(): one for source, one in readings.items() if not named.get(source)}
        for source, reading in read.readings.items():
            if source not in readings and reading.value is None and reading.problem != NO_FILES:
                says_why = reading.place and reading.problem != NOT_RECORDED
                why = reading.problem if says_why else "its file was removed from the record"
                kept[source.name.lower()] = evolve(reading, place=reading.place or self.root or "", problem=why)
        elsewhere = whole.elsewhere if "slices" in kept else read.elsewhere
        return evolve(read, **kept, machine=whole.machine, elsewhere=elsewhere)

    def _machine(self) -> MachineSeen | None:
        if self._directory is None:
            return None
        settings = read_topology(self._directory.root, TopologySettings())
        return seen_machine(self._directory.root, settings)

    def reads_in(self, directory: str) -> bool:
        """Return whether a record in this directory would overwrite files from which sources are read."""
        named = (self.checkpoint, self.pods, self.node, self.claims, self.slices, self.resourceclaims, self.events)
        places = [Path(file).parent for file in named if file is not None and file != "-"]
        places += [Path(self.root)] if self.root is not None else []
        places += [Path(self._directory.root), Path(self._directory.plugins)] if self._directory else []
        return Path(directory).resolve() in {place.resolve() for place in places}

    def save(self, directory: str, look: Look) -> None:
        """Save a look into a directory as a record. Raises OSError if a file cannot be written."""
        checkpoint = self.checkpoint or (self._directory.checkpoint if self._directory else None)
        notes = {record.PARTIAL: "they come from a file that --pods named"} if self.pods is not None else {}
        if look.node.place and look.node.value is None:
            notes[record.NODE] = look.node.problem
        record.save(directory, look, self._kubelet_root, checkpoint, self.documents, notes, taken=self._read_at)
        if self.root is not None and (configuration := configuration_of(self.root)):
            record.write_json(Path(directory) / CONFIGURATION, configuration)
        if (managers := self.managers()) is not None and managers.has_policy:
            # without the machine's description, `fits` cannot try CPUs and memory with the record, and says so
            with suppress(NumaError):
                record.write_json(Path(directory) / MACHINE_FILE, described_machine(managers.machine))

    def topology(self, default: TopologySettings | None = None) -> TopologySettings:
        """Return the settings of the kubelet's topology manager, or the defaults if no source has them."""
        settings = default or TopologySettings()
        return settings if self.root is None or settings.is_given else read_topology(self.root, settings)

    def managers(self) -> ManagersSeen | None:
        """Return the input for the kubelet's CPU and memory managers, or None without a directory to read it from."""
        return None if self._kubelet_root is None else read_managers(self._kubelet_root)

    # --- the kubelet's files ------------------------------------------------------------------------------------------

    @property
    def _kubelet_root(self) -> str | None:
        """The directory with the kubelet's files: the kubelet's own directory, or a record."""
        return self._directory.root if self._directory else self.root if self._reasons is not None else None

    def _in_record(self, name: str) -> str | None:
        """Return the path of a file in the record, or None if there is no record."""
        return None if self._reasons is None or self.root is None else str(Path(self.root) / name)

    def _not_in_record(self, name: str) -> str:
        """Return why a file is not in the record, or an empty string if it is there or was missing on the node."""
        path = self._in_record(name)
        if path is None or self._reasons is None or os.path.lexists(path):
            return ""
        reason = self._recorded_reason(name) or "it is not in the record"
        return "" if record.ABSENT in reason else reason

    def _recorded_reason(self, name: str) -> str:
        """Return the record's reason why it lacks a file, or an empty string."""
        reasons = self._reasons or {}
        return reasons.get(name) or reasons.get("", "")

    def _read_checkpoint(self) -> Reading[CheckpointSeen]:
        path = self.checkpoint or self._in_record(CHECKPOINT_NAME)
        if self.checkpoint is None and self._recorded_reason(CHECKPOINT_NAME) == os.strerror(errno.EISDIR):
            return Reading.of(path or "", not_a_file())
        if self.checkpoint is None and (reason := self._not_in_record(CHECKPOINT_NAME)):
            return Reading(path or "", problem=reason)
        is_missing = self.checkpoint is None and path is not None and not os.path.lexists(path)
        if is_missing and self.root is not None and record.has_no_directory_of_plugins(self.root):
            return Reading(path or "", problem=record.NOT_LOOKED_FOR)
        path = path or (self._directory.checkpoint if self._directory else None)
        if path is None:
            return Reading(problem=_add("--checkpoint", "--root"))
        self._last_checkpoint = seen = read_checkpoint(path, self._last_checkpoint)
        why = why_unwritable(path) if self._directory is not None and self.checkpoint is None else ""
        return evolve(seen, value=evolve(seen.value, unwritable=why)) if seen.value is not None and why else seen

    def _read_claims(self) -> Reading[ClaimsSeen]:
        if self.claims:
            return read_claims(self.claims, may_be_absent=False)
        path = self._in_record(CLAIMS_NAME)
        if path is not None:
            reason = self._not_in_record(CLAIMS_NAME)
            return Reading(path, problem=reason) if reason else read_claims(path, may_be_absent=True)
        if self._directory is None:
            return Reading(problem=_add("--claims", "--root"))
        return read_claims(self._directory.claims, may_be_absent=self._directory.has_root)

    def _read_health(self) -> Reading[Any]:
        if (root := self._kubelet_root) is None:
            return Reading(problem=_add("--root"))
        path = str(Path(root) / record.HEALTH_NAME)
        if self._reasons is not None and (reason := self._not_in_record(record.HEALTH_NAME)):
            return Reading(path, problem=reason)
        return read_health(path, self._time())

    def _time(self) -> int:
        """Return when the sources were read, or `MAX_LIMIT` for a record without a valid time."""
        try:
            taken = None if self._reasons is None else datetime.fromisoformat(self._reasons.get(record.TAKEN, ""))
        except ValueError:
            return MAX_LIMIT
        if taken is not None and (taken.tzinfo is None or taken.year not in range(1970, 2262)):
            return MAX_LIMIT
        self._read_at = self.clock() if taken is None else int(taken.timestamp() * SECOND)
        return self._read_at

    def _read_state_files(self) -> Reading[tuple[StateFileSeen, ...]]:
        if (root := self._kubelet_root) is None:
            return Reading(problem=_add("--root"))
        read = read_state_files(root, read_managers(root), self._why_lost)
        if problem := configuration_problem(root):
            wrong = StateFileSeen(CONFIGURATION, problem)
            return Reading.of(root, (*(read.value or ()), wrong), read.notes)
        return read

    def _why_lost(self, name: str) -> str:
        """Return why a state file is not in the record, or an empty string if it did not exist on the node."""
        if name in OF_PODS and not any(one in (self._reasons or {}) or self._beside(one) for one in OF_PODS):
            return ""  # the release that wrote the record did not read the files about resized pods
        return self._not_in_record(name)

    # --- sockets ------------------------------------------------------------------------------------------------------

    def _read_sockets(self) -> Reading[SocketsSeen]:
        if self._reasons is not None and self.root is not None:
            return record.read_listing(self.root)
        seen = read_sockets(self._directory) if self._directory else Reading[SocketsSeen](problem=_add("--root"))
        if seen.value is None:
            return seen
        made = seen.value.made
        if any(self._first_made.get(name) != made.get(name) for name in KUBELET_SOCKETS):
            self._first_made = {}  # a kubelet that starts removes the sockets of all plugins
        self._first_made = {**made, **self._first_made}
        remade = {name for name, at in made.items() if 0 < at - self._first_made[name] < _SHORT_LIFE}
        return evolve(seen, value=evolve(seen.value, remade=frozenset(remade)))

    def _with_names(self, sockets: Reading[SocketsSeen]) -> Reading[SocketsSeen]:
        """Return the sockets with the identity of each process, unless they are read from a record."""
        found, directory = sockets.value, self._directory
        if found is None or directory is None or self.plugins is False:
            return sockets
        try:
            from devicecore_tools.doctor.reading.plugin_sockets import Listeners, unknown, who_listens
        except ModuleNotFoundError as error:
            return evolve(
                sockets, notes=(*sockets.notes, f"no plugin was asked to identify itself: {_needs(error, 'grpcio')}")
            )
        places = {REGISTRY_PREFIX + one: str(Path(directory.registry) / one) for one in found.registry}
        if not self.plugins:  # if True, plugins are asked for their lists instead
            places |= {PLUGINS_PREFIX + one: str(Path(directory.plugins) / one) for one in found.plugins}
        living = {name: path for name, path in places.items() if found.served.get(name)}
        if not living:
            return sockets
        if self._listeners is None:
            answer = min(self.plugin_timeout, _MAX_WAIT)
            self._listeners = Listeners(answer, self._time_for_all(answer), who_listens)
        answers, silent, unasked = self._listeners.ask(living)
        notes = (*sockets.notes, unknown(unasked)) if unasked else sockets.notes
        named = {path: (one.kind, one.name) for path, one in answers.items()}
        unusable = {path: one.unusable for path, one in answers.items() if one.unusable}
        return evolve(sockets, value=evolve(found, named=named, silent=silent, unusable=unusable), notes=notes)

    def _time_for_all(self, answer: float) -> float:
        """Return how many seconds all processes together may take to answer, across all looks of a report."""
        return max(answer + NOTICED, min(self._patience, _MAX_WAIT_FOR_ALL))

    def _read_pod_resources(self) -> Reading[PodResourcesSeen]:
        if self.pod_resources is None and self._reasons is not None and self.root is not None:
            reason = self._reasons.get(LIST_NAME) or self._not_in_record(LIST_NAME)
            if "Connection refused" in reason:  # gRPC's own message is 240 characters long
                reason = NOBODY_LISTENS
            return Reading(self.root, problem=reason) if reason else self._saved_pod_resources(self.root)
        socket = self.pod_resources or (self._directory.pod_resources if self._directory else None)
        if socket is None:
            return Reading(problem=_add("--pod-resources", "--root"))
        if self.pod_resources is None and self.root and self._beside(LIST_NAME):
            return self._saved_pod_resources(self.root)
        try:
            from devicecore_tools.doctor.reading.pod_resources import read_pod_resources
        except ModuleNotFoundError as error:
            return Reading(socket, problem=_needs(error, "grpcio"))
        return read_pod_resources(socket, self.plugin_timeout)

    def _saved_pod_resources(self, root: str) -> Reading[PodResourcesSeen]:
        try:
            from devicecore_tools.doctor.reading.answers import read_saved_pod_resources
        except ModuleNotFoundError as error:
            return Reading(root, problem=_needs(error, "protobuf"))
        return read_saved_pod_resources(Path(root))

    def _read_plugins(self, sockets: Reading[SocketsSeen]) -> Reading[tuple[PluginSeen, ...]]:
        if (saved := self._beside(record.PLUGINS)) is not None and not self.plugins:
            answers = record.read_saved(saved, record.SavedPlugins)
            return Reading(saved, answers.value.seen if answers.value is not None else None, answers.problem)
        if not self.plugins or self._directory is None:
            return Reading(problem=_add("--plugins") if self._reasons is None else "it is not in the record")
        if sockets.value is None:
            return Reading(sockets.place, problem=sockets.problem)
        try:
            from devicecore_tools.doctor.reading.plugin_sockets import Listeners, lists_of, read_plugins
        except ModuleNotFoundError as error:
            return Reading(sockets.place, problem=_needs(error, "grpcio"))
        found, directory = sockets.value, self._directory
        if self._lists is None:
            self._lists = Listeners(self.plugin_timeout, self._time_for_all(self.plugin_timeout), lists_of)
        return read_plugins(directory.plugins, found.plugins, directory.registry, found.registry, self._lists)

    def _read_cdi(self) -> Reading[CdiSeen]:
        if (saved := self._beside(record.CDI)) is not None and not self.cdi_directories:
            return record.read_saved(saved, CdiSeen)
        if self.cdi_directories:
            seen = read_cdi(self.cdi_directories)
            if NO_DIRECTORY not in seen.notes or (self.root and sees_files_of_kubelet(self.root)):
                return seen
            return Reading(seen.place, problem=f"{NO_DIRECTORY}, as in a container that does not mount them")
        if self._reasons is None or self.root is None:
            return Reading(problem=_add("--cdi-dir", "--root"))
        return Reading(self.root if record.was_saved(self.root) else "", problem=NOT_RECORDED)

    # --- objects from the API server ----------------------------------------------------------------------------------

    def _read_objects(self, api: PodResourcesSeen | None) -> dict[str, Any]:
        answers = self._ask_api() if self.uses_api else {}
        node = self._object(record.NODE, self.node, answers, node_in, "--node")
        pods = self._object(record.PODS, self.pods, answers, pods_in, "--pods")
        if not pods.place and (running := self._beside(record.RUNNING)):
            pods = read_running_pods(running)
        if other := _why_another_node(api, pods.value, node.value):
            node = self._refused(record.NODE, node, other)
        if other := self._another_node(api, pods.value, node.value):
            node, pods = self._refused(record.NODE, node, other), self._refused(record.PODS, pods, other)
        if node.value is None:
            self.documents.pop(record.NODE, None)
        bound = {one.node for one in pods.value or () if one.node}
        name = self.node_name or (node.value.name if node.value else "") or (bound.pop() if len(bound) == 1 else "")

        rules = self._object(record.RULES, None, answers, rules_in, "--root")

        others: dict[str, tuple[str, ...]] = {}

        def published(document: Value) -> tuple[PublishedDeviceSeen, ...]:
            node = self.documents.get(record.NODE)
            slices = slices_in(document, self._budget)
            others.update(elsewhere(slices, name) if name else {})
            found = published_by(slices, name, None if node is None else node_of(node))
            kept_back = rules.value or ()
            return tuple(evolve(one, taint=one.taint or _taint_of(one, kept_back)) for one in found)

        slices = self._object(record.SLICES, self.slices, answers, published, "--slices")
        if slices.value is not None and rules.place and rules.value is None:
            note = f"DeviceTaintRules were not read, so a device that a rule taints may count as free: {rules.problem}"
            slices = evolve(slices, notes=(*slices.notes, note))
        claims = self._object(record.CLAIMS, self.resourceclaims, answers, allocations_in, "--resourceclaims")
        self._object(record.CLASSES, None, answers, lambda _: (), "--root")  # read only to be saved in a record
        events = self._object(record.EVENTS, self.events, answers, events_in, "--events")
        if other and self.uses_api:
            slices, events = self._refused(record.SLICES, slices, other), self._refused(record.EVENTS, events, other)
        found = {"node": node, "pods": pods, "slices": slices, "allocations": claims, "events": events}
        return {**found, "elsewhere": others if slices.value is not None else {}}

    def _refused(self, name: str, reading: Reading[Seen], why: str) -> Reading[Seen]:
        """Return a reading without its objects, because they belong to a different node.

        The objects are not saved in a record either.
        """
        self.documents.pop(name, None)
        return Reading(reading.place, problem=why)

    def _another_node(
        self, api: PodResourcesSeen | None, pods: tuple[PodSeen, ...] | None, node: NodeSeen | None
    ) -> str:
        """Return why the objects belong to a different node, or an empty string if they may belong to this node."""
        if self._is_remote:
            return ""
        if self._directory is not None and node is not None and (other := why_another_machine(node, this_machine())):
            self._is_remote = self._may_be_remote
            return other
        return why_other_pods(self.node_name or "", pods or (), api) if self.uses_api else ""

    def _ask_api(self) -> dict[str, Any]:
        try:
            from devicecore_tools.doctor.reading.api_server import read_objects
        except ModuleNotFoundError as error:
            return dict.fromkeys(_KINDS.values(), _needs(error, "httpx2"))
        return read_objects(self.node_name or "", self.kubeconfig, _KINDS.values(), self.events_of, budget=self._budget)

    def _object(
        self, name: str, given: str | None, answers: dict[str, Any], read: Callable[[Value], Seen], option: str
    ) -> Reading[Seen]:
        """Return the objects of one kind: from the given file, the API server, or the root."""
        beside = self._beside(name)
        # otherwise, the last look's document would stay in memory until the new document is read
        self.documents.pop(name, None)
        try:
            if given is not None:
                document, place = self._document(given)
            elif answers:
                answer, place = answers[_KINDS[name]], f"API server, node {self.node_name}"
                if isinstance(answer, str):
                    return Reading(place, problem=answer)
                kind = _KINDS[name]
                whole = (
                    {"kind": f"{kind}List", "items": answer} if isinstance(answer, list) else {**answer, "kind": kind}
                )
                document = Value(whole, place)
            elif beside is not None:
                document, place = read_document_file(beside, self._budget), beside
            else:
                is_lost = name == record.RULES and self._reasons is not None and record.was_saved(self.root or "")
                why = self._recorded_reason(name) or ("it is not in the record" if is_lost else "")
                return Reading(self.root or "" if is_lost else "", problem=why or _add(option, "--kubeconfig"))
            self.documents[name] = document.data
            is_recorded = given is None and not answers and record.PARTIAL not in (self._reasons or {})
            is_whole = given is None and bool(answers)
            return evolve(Reading.of(place, read(document)), is_whole=is_whole, is_recorded=is_recorded)
        except DocumentError as error:
            return Reading(str(error).partition(":")[0], problem=str(error))

    def _beside(self, name: str) -> str | None:
        """Return the path of a record's file in the root directory, or None if there is no such file."""
        path = Path(self.root) / name if self.root else None
        return str(path) if path is not None and os.path.lexists(path) else None

    def _document(self, place: str) -> tuple[Value, str]:
        if place != "-":
            return read_document_file(place, self._budget), place
        if self._piped is None:
            self._piped = parse_document(sys.stdin.buffer.read(MAX_INPUT), "standard input", self._budget)
        return self._piped, "standard input"


def _is_absent(root: str) -> bool:
    """Return whether there is certainly no kubelet directory."""
    try:
        Path(root).stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _taint_of(one: PublishedDeviceSeen, rules: Iterable[TaintRule]) -> str:
    """Return the first taint from rules that prevents claims from getting a device, or an empty string."""
    added = added_taints(DeviceKey(one.driver, one.pool, one.device), rules)
    return next((str(taint) for taint in added if taint.effect in REPELLING_EFFECTS), "")


def _add(*options: str) -> str:
    """Return the hint to add one of these options."""
    return f"add {' or '.join(options)}"


def _needs(error: ModuleNotFoundError, package: str) -> str:
    return f"it is skipped, because {package} is not installed ({error.name} is missing)"


def _why_another_node(api: PodResourcesSeen | None, pods: tuple[PodSeen, ...] | None, node: NodeSeen | None) -> str:
    """Return why `node` is not the kubelet's Node, to which the kubelet's pods are bound, or an empty string."""
    listed = api.pods if api else frozenset()
    bound = {one.node for one in pods or () if one.node and (one.pod.namespace, one.pod.name) in listed}
    if node is None or not node.name or not bound or node.name in bound:
        return ""
    return f"it is Node {foreign_text(node.name)}, but the pods that the kubelet lists are bound to a different one"
