"""Types for what each source of information about a node said.

Law: a source that could not be read has a reason instead of a value. Such a source is never mistaken for a source
without entries.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from itertools import accumulate
from typing import Generic, TypeVar

from attrs import field, frozen

from devicecore.domain.allocation.model import Taint, Toleration
from devicecore.domain.checkpoint import CheckpointData, FileReport, FileVerdict
from devicecore.domain.device_list import DeviceList
from devicecore.domain.model import ContainerKey, PluginOptions, Pod, ResourceName, is_extended_resource
from devicecore.domain.text import foreign_text
from devicecore.domain.topology import MAX_ALLOWABLE_NUMA_NODES
from devicecore_tools.numa import Holding

Key = TypeVar("Key")
Value = TypeVar("Value")

Device = tuple[str, str, str]
"""A DRA driver's device: driver, pool and name."""

PLUGINS_PREFIX, REGISTRY_PREFIX = "device-plugins/", "plugins_registry/"
"""Prefixes of socket paths, relative to the kubelet's root: for device plugins, and for the plugin watcher."""

NOT_GIVEN = "the caller did not name it"
"""Why a source has no value if the caller did not name it."""

NOT_RECORDED = "it is not in the record: add --cdi-dir"
"""The reason given for missing CDI files if a record has none."""

NO_NODE = "there is no node "
"""The beginning of the reason given if the API server has no Node with this name."""

ON_THE_NODE = "it is on the node: run doctor there"
"""Why the sources on a node have no value if only the API server was queried."""

NO_DIRECTORY = "none of these directories exists"
"""The note if there are no CDI files because their directory does not exist."""

NO_FILE = "there is no such file"
"""The beginning of a note or a reason about a file that does not exist on the node."""

NOBODY_LISTENS = "no process listens at the socket"
"""The problem reported for a socket whose process is gone."""

LIST_HAS = "its list has"
"""The beginning of the reason given if a plugin's list is too large to be read."""

NO_FILES = "there are no such files"
"""The reason why a kubelet's source has no value if the kubelet does not have such files."""

OF_PODS = ("allocated_pods_state", "actuated_pods_state", "pod_status_manager_state")
"""Files with the allocated and actuated resources of pods that can be resized.

Only kubelets before 1.33 write the last of these files.
"""

LIST_NAME, ALLOCATABLE_NAME = "pod-resources-list.json", "pod-resources-allocatable.json"
"""The files in a record that contain the answers of the pod-resources API."""

CONFIGURATION = "config.yaml"
"""The name of the kubelet's configuration in a record, and in the kubelet's root directory, where kubeadm writes it."""

MAX_NOTES = 10
"""The maximum number of notes that are kept per source."""


class Source(Enum):
    """The sources, by the names that reports use."""

    CHECKPOINT = "checkpoint"
    SOCKETS = "sockets"
    POD_RESOURCES = "pod-resources"
    PODS = "pods"
    NODE = "node"
    PLUGINS = "plugins"
    CDI = "cdi"
    CLAIMS = "claims"
    SLICES = "slices"
    ALLOCATIONS = "resourceclaims"
    HEALTH = "dra-health"
    EVENTS = "events"
    STATE_FILES = "state-files"


@frozen
class Reading(Generic[Value]):
    """What one source said.

    Attributes:
        place: the file, directory, socket or address that was read, empty if none was given.
        value: the source's content, or None if the source could not be read.
        problem: why there is no value, or an empty string if there is one.
        notes: one sentence for each part that could not be read, although the source as a whole was.
        is_whole: whether the source is known to contain the objects of all namespaces, which is never known for a file.
        is_recorded: whether the source comes from a record that does not say that objects may be missing.
    """

    place: str = ""
    value: Value | None = None
    problem: str = NOT_GIVEN
    notes: tuple[str, ...] = ()
    is_whole: bool = False
    is_recorded: bool = False

    @property
    def is_whole_or_recorded(self) -> bool:
        """Whether the source is complete, so that an object that it lacks did not exist."""
        return self.is_whole or self.is_recorded

    @property
    def was_refused(self) -> bool:
        """Whether an attempt to read the source has failed."""
        return self.value is None and bool(self.place)

    @classmethod
    def of(cls, place: str, value: Value, notes: tuple[str, ...] = ()) -> "Reading[Value]":
        """Return a source that was read.

        If there are more than `MAX_NOTES` notes, the last one says how many were left out.
        """
        if len(notes) > MAX_NOTES:
            notes = (*notes[: MAX_NOTES - 1], f"and {len(notes) - MAX_NOTES + 1:,} more such notes")
        return cls(place, value, "", notes)


@frozen
class ReceiptSeen:
    """What a receipt in the checkpoint says about CDI, or why it cannot be read."""

    key: ContainerKey
    resource: ResourceName
    cdi_devices: tuple[str, ...] = ()
    problem: str = ""


@frozen
class CheckpointSeen:
    """The checkpoint file.

    `data` is None if nothing in the file could be read. A file with a wrong checksum can still be read.

    `receipts` holds the receipts that name CDI devices or cannot be read. `blob` is the content of the file, empty if
    `data` is None. `unwritable` says why a kubelet cannot write the file, or is empty if nothing seems to prevent that.
    """

    verdict: FileReport
    data: CheckpointData | None = None
    receipts: tuple[ReceiptSeen, ...] = ()
    blob: bytes = field(default=b"", repr=False)
    unwritable: str = ""


@frozen
class SocketsSeen:
    """The sockets in the kubelet's directories: its own, the plugins', and those for the plugin watcher.

    `registry` also contains the sockets of CSI and DRA drivers. Paths are relative to the directory that was read. The
    keys of `served` are paths relative to the kubelet's root, and its values say whether a process listens there.
    Sockets that could not be tried are missing. `named` contains the answer of each process that was asked for its
    identity: the type of plugin and its name, which is empty for a device plugin in the kubelet's own directory.
    `silent` says why a process has not answered, and `unusable` why a kubelet cannot call a driver that has answered.
    `made` contains the time at which each socket was created, in seconds since 1970. `remade` contains the sockets that
    were recreated, during the report, less than a minute after their first creation, although the kubelet's own sockets
    were not.
    """

    kubelet: bool = False
    plugins: tuple[str, ...] = ()
    registry: tuple[str, ...] = ()
    served: Mapping[str, bool] = field(factory=dict)
    named: Mapping[str, tuple[str, str]] = field(factory=dict)
    silent: Mapping[str, str] = field(factory=dict)
    made: Mapping[str, float] = field(factory=dict)
    remade: frozenset[str] = frozenset()
    unusable: Mapping[str, str] = field(factory=dict)


@frozen
class HoldingSeen:
    """A container's devices of one resource according to the kubelet, with the NUMA nodes of each device."""

    namespace: str
    pod: str
    container: str
    resource: str
    devices: Mapping[str, tuple[int, ...]]


class _DeviceSeen:
    """A device of a DRA driver."""

    driver: str
    pool: str
    device: str

    @property
    def key(self) -> Device:
        """The device's driver, pool and name."""
        return self.driver, self.pool, self.device


@frozen
class ClaimedDeviceSeen(_DeviceSeen):
    """A ResourceClaim's device that a container holds according to the kubelet, with the device's CDI names."""

    namespace: str
    pod: str
    container: str
    claim: str
    driver: str
    pool: str
    device: str
    share_id: str | None = None
    cdi_devices: tuple[str, ...] = ()


@frozen
class PreparedDeviceSeen(_DeviceSeen):
    """A device that a DRA driver has prepared for a ResourceClaim, which is named `namespace/name`."""

    claim: str
    driver: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...] = ()


@frozen
class ClaimsSeen:
    """The kubelet's claims file.

    Attributes:
        devices: the prepared devices.
        drivers: the drivers that release each claim. Claims are named `namespace/name`.
        pods: the UIDs of each claim's pods.
        unanswered: for each claim, its drivers without devices in the file. A kubelet adds a claim to the file before
            it calls the drivers, and a driver may answer without devices.
        uids: the UID of each claim. A claim that was deleted and created again has a different UID.
        problem: why a kubelet cannot start with the file, or an empty string if the file is sound.
    """

    devices: tuple[PreparedDeviceSeen, ...] = ()
    drivers: Mapping[str, tuple[str, ...]] = field(factory=dict)
    pods: Mapping[str, tuple[str, ...]] = field(factory=dict)
    unanswered: Mapping[str, tuple[str, ...]] = field(factory=dict)
    problem: str = ""
    uids: Mapping[str, str] = field(factory=dict)


@frozen
class AllocatedClaimSeen:
    """A ResourceClaim on the API server, with the driver, pool and name of each allocated device.

    `pods` contains the UIDs of the pods that the claim is reserved for, or is None if the claim is reserved for
    something else. `nodes` names the nodes that the claim is allocated for, if the allocation names nodes.
    `only_watched` contains the devices to which the claim has only admin access, and `shared` those of which it has
    only a share. `remarks` contains what drivers say in the claim's status about devices that do not work.
    `allocated_at` is the time of the allocation, in seconds since 1970.
    """

    claim: str
    devices: tuple[Device, ...] = ()
    pods: tuple[str, ...] | None = ()
    nodes: tuple[str, ...] = field(default=(), kw_only=True)
    only_watched: frozenset[Device] = field(default=frozenset(), kw_only=True)
    shared: frozenset[Device] = field(default=frozenset(), kw_only=True)
    remarks: tuple[tuple[Device, str], ...] = field(default=(), kw_only=True)
    uid: str = field(default="", kw_only=True)
    is_deleting: bool = field(default=False, kw_only=True)
    allocated_at: float | None = field(default=None, kw_only=True)

    @property
    def is_local(self) -> bool:
        """Whether the allocation names nodes, in which case its devices belong to a node."""
        return bool(self.nodes)


@frozen
class EventSeen:
    """An event about a pod, with the time of its last occurrence, in UTC."""

    namespace: str
    pod: str
    pod_uid: str
    reason: str
    message: str
    last: str = ""


@frozen
class MachineSeen:
    """The machine that was examined: its machineID, its bootID, and its NUMA nodes, each empty if not known.

    `policy` is the topology manager policy of the machine's kubelet, empty if not known. `max_numa_nodes` is the
    maximum number of NUMA nodes that the kubelet accepts with a policy other than `none` (`max-allowable-numa-nodes`).
    """

    machine_id: str = ""
    boot_id: str = ""
    numa_nodes: tuple[int, ...] = ()
    policy: str = ""
    max_numa_nodes: int = MAX_ALLOWABLE_NUMA_NODES


@frozen
class StateFileSeen:
    """A state file that a kubelet reads when it starts.

    `problem` says why the kubelet cannot start with the file, or is empty if it can.

    `held` contains the exclusive resources of containers, if the file is the CPU manager's or the memory manager's.
    """

    name: str
    problem: str = ""
    held: tuple[Holding, ...] = ()


@frozen
class PoolCounters:
    """The value of each counter in a pool, and what each device consumes, including devices on other nodes.

    All amounts are in billionths.
    """

    totals: Mapping[tuple[str, str], int]
    uses: Mapping[str, Mapping[tuple[str, str], int]]

    def beside(self, taken: Iterable[str]) -> Mapping[tuple[str, str], int]:
        """Return what is left of each counter while these devices are allocated."""
        left = Counter(self.totals)
        for device in taken:
            left.subtract(self.uses.get(device, {}))
        return left

    def suffice(self, device: str, left: Mapping[tuple[str, str], int]) -> bool:
        """Return whether enough is left of each counter that a device consumes."""
        return all(amount <= left.get(counter, 0) for counter, amount in self.uses.get(device, {}).items())

    def most_at_once(self, devices: Iterable[str], left: Mapping[tuple[str, str], int]) -> int | None:
        """Return how many of the devices can be allocated side by side, or None if that is hard to compute.

        For example, a GPU and its partitions consume the same counters, so a claim gets either the GPU or a partition.
        """
        rest, count = Counter(left), 0
        groups: dict[frozenset[str], list[Mapping[tuple[str, str], int]]] = {}
        for device in sorted(devices, key=lambda one: (self._share(one), one)):
            uses = self.uses.get(device, {})
            groups.setdefault(frozenset(name for name, _ in uses), []).append(uses)
            if self.suffice(device, rest):
                rest.subtract(uses)
                count += 1
        # No counter alone allows more than this. If taking the smallest devices first finds fewer, there may be a
        # better choice, and finding the best one is a knapsack problem.
        limit = sum(
            min([len(group), *(_fitting(group, counter, left) for counter in {key for uses in group for key in uses})])
            for group in groups.values()
        )
        return count if count == limit else None

    def _share(self, device: str) -> float:
        """Return which part of its counters a device consumes, added up."""
        return sum(amount / (self.totals.get(counter, 0) or 1) for counter, amount in self.uses.get(device, {}).items())


def _fitting(
    group: Iterable[Mapping[tuple[str, str], int]], counter: tuple[str, str], left: Mapping[tuple[str, str], int]
) -> int:
    """Return how many devices fit into what is left of one counter, the smallest first."""
    sums = accumulate(sorted(uses.get(counter, 0) for uses in group))
    return sum(amount <= left.get(counter, 0) for amount in sums)


@frozen
class PublishedDeviceSeen(_DeviceSeen):
    """A device that a DRA driver has published, with its string attributes.

    Attributes:
        numa_nodes: the value of the device's attribute `numaNode`, or None if there is none.
        taint: a taint that reserves the device for claims that tolerate it, or an empty string.
        remark: a taint without effect, which a driver uses for a remark about the device, or an empty string.
        pool_problem: why the device's pool provides no devices, or an empty string if it does.
        counters: the counters that the device shares with others in its pool, or None if it shares none.
        is_own: whether the device's ResourceSlice names this node, as the slices of the node's own driver do.
        is_usable: whether claims on this node can get the device, or None if that is not known or the pool is
            incomplete.
        needs_driver: whether a kubelet calls the driver for the device, in which case the driver has to run on the
            node.
    """

    driver: str
    pool: str
    device: str
    attributes: Mapping[str, str] = field(factory=dict)
    numa_nodes: tuple[int, ...] | None = field(default=None, kw_only=True)
    taint: str = field(default="", kw_only=True)
    counters: PoolCounters | None = field(default=None, kw_only=True)
    is_own: bool = field(default=True, kw_only=True)
    is_usable: bool | None = field(default=True, kw_only=True)
    needs_driver: bool = field(default=True, kw_only=True)
    remark: str = field(default="", kw_only=True)
    pool_problem: str = field(default="", kw_only=True)


@frozen
class PodResourcesSeen:
    """The answers of the pod-resources API.

    `version` is `v1` or `v1alpha1`. `pods` contains the namespace and name of each listed pod. `allocatable` contains
    the healthy devices by resource, with their NUMA nodes, or is None if the kubelet does not offer
    GetAllocatableResources. `claimed` contains the devices that containers hold by dynamic resource allocation, which
    kubelets have listed since 1.34.
    """

    version: str
    pods: frozenset[tuple[str, str]] = frozenset()
    holdings: tuple[HoldingSeen, ...] = ()
    allocatable: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None
    claimed: tuple[ClaimedDeviceSeen, ...] = ()


NOT_STARTED = frozenset(
    {"CreateContainerError", "RunContainerError", "PreCreateHookError", "StartError", "ContainerCannotRun"}
)
"""The `reason` values of containers that the kubelet or the runtime could not start."""

_REFUSED = "Pod was rejected: "
_REFUSALS = ("UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity", "OutOf")
"""How the message (`_REFUSED`) or the reason in a refused pod's status starts.

Kubelets before 1.30 write a different message.
"""


@frozen
class PodSeen:
    """A pod, its phase, and the UIDs by which a kubelet may know it.

    The API server's copy of a static pod has its own UID. The kubelet's UID for the pod is in an annotation.

    Attributes:
        node: the node that the pod is bound to, or an empty string.
        is_acknowledged: whether a kubelet has written the pod's status.
        is_deleting: whether the pod has a deletionTimestamp.
        bound_at: when the pod was bound to its node, in seconds since 1970, or None if that is not known.
        ends_by: the pod's deletionTimestamp, at which its grace period ends, in seconds since 1970, or None if it has
            none.
        has_sandbox: whether the status says that the pod has a sandbox, in which case the pod's claims have been
            prepared.
        lacks_sandbox: whether the status says that the pod has no sandbox.
        statuses: the health of each device in the pod's status, by container and resource, as the kubelet last wrote
            it.
        tolerations: the pod's tolerations for Node taints.
        labels: the pod's labels with their values, except those that controllers add.
        made_at: the pod's creation time according to the API server, in seconds since 1970, or None if unknown.
        said: the reason and message in the pod's status, such as a kubelet's refusal.
        waiting: by container name, the reason and message of each container that is waiting or could not be started.
    """

    pod: Pod
    phase: str = ""
    other_uids: tuple[str, ...] = ()
    node: str = ""
    is_acknowledged: bool = False
    is_deleting: bool = False
    has_sandbox: bool = False
    statuses: Mapping[tuple[str, str], Mapping[str, str]] = field(factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    labels: frozenset[tuple[str, str]] = frozenset()
    ends_by: float | None = None
    bound_at: float | None = None
    made_at: float | None = None
    said: tuple[str, str] = ("", "")
    waiting: Mapping[str, tuple[str, str]] = field(factory=dict)
    lacks_sandbox: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """The pod's namespace, name and UID. The UID is needed because a recreated pod has the same name."""
        return (self.pod.namespace, self.pod.name, str(self.pod.uid))

    @property
    def was_refused(self) -> bool:
        """Whether a kubelet has refused the pod (kubelet: `rejectPod`), so its containers never ran."""
        reason, message = self.said
        return self.phase == "Failed" and (message.startswith(_REFUSED) or reason.startswith(_REFUSALS))

    @cached_property
    def asks_for_devices(self) -> bool:
        """Whether a container requests an extended resource or a claim."""
        return any(one.claims or any(map(is_extended_resource, one.limits)) for one in self.pod.in_start_order) or bool(
            self.pod.extended_claim
        )

    @cached_property
    def claims(self) -> Mapping[str, tuple[str, ...]]:
        """The ResourceClaims, as `namespace/name`, of each container that uses any."""
        of_entry = {one.name: one.claim or self.pod.generated_claims.get(one.name) for one in self.pod.claims}
        found: dict[str, dict[str, None]] = {}
        for container in self.pod.in_start_order:
            for used in container.claims:
                if name := of_entry.get(used.name):
                    found.setdefault(container.name, {})[f"{self.pod.namespace}/{name}"] = None
        extended = self.pod.extended_claim
        if extended is not None and extended.claim:
            for mapping in extended.mappings:
                found.setdefault(mapping.container, {})[f"{self.pod.namespace}/{extended.claim}"] = None
        return {container: tuple(names) for container, names in found.items()}

    @cached_property
    def told_of_claims(self) -> Mapping[str, list[str]]:
        """For each device of a ResourceClaim, its health values in the pod's status."""
        of_claims = (devices for (_, resource), devices in self.statuses.items() if resource.startswith(CLAIM))
        return grouped(told for devices in of_claims for told in devices.items())

    @cached_property
    def reusable(self) -> frozenset[str]:
        """The init containers that end, whose devices later containers may therefore reuse (kubelet.md 5.2)."""
        return frozenset(one.name for one in self.pod.init_containers if not one.restartable)

    def told_health(self, resource: str) -> Iterator[tuple[str, str]]:
        """Yield the devices of a resource that the pod's status names, each with its health."""
        return (told for (_, name), devices in self.statuses.items() if name == resource for told in devices.items())

    @property
    def has_ended(self) -> bool:
        """Whether none of the pod's containers is running or will ever run again (kubelet: `isAdmittedPodTerminal`)."""
        return self.phase in {"Succeeded", "Failed"}

    @cached_property
    def all_claims(self) -> tuple[str, ...]:
        """The ResourceClaims of all containers, each once."""
        return tuple(dict.fromkeys(claim for of_container in self.claims.values() for claim in of_container))

    @property
    def place(self) -> tuple[str, str]:
        """The pod's namespace and name."""
        return self.pod.namespace, self.pod.name

    @property
    def identity(self) -> str:
        """The pod's namespace and name in one string."""
        return f"{self.pod.namespace}/{self.pod.name}"


@frozen
class NodeSeen:
    """The parts of a Node object that concern devices. The resources are extended resources only.

    Attributes:
        name: the Node's name.
        kubelet_version: the version of the kubelet that last wrote the Node's status.
        capacity: the number of devices of each resource.
        allocatable: the number of healthy devices of each resource.
        ready: the status of the condition Ready, empty if there is none. `Unknown` means that the API server has not
            heard from the kubelet for about 40 s or more.
        why_not_ready: the reason and message of the condition Ready.
        machine: the machineID and bootID of the machine, empty if not known.
        taints: the Node's taints. A cordoned Node also has the taint that the scheduler assumes for it.
        pressures: the pressure conditions that are true, such as DiskPressure, each with its message.
        max_pods: the maximum number of pods that the kubelet admits, or None if not known.
        unsettled: the other conditions that differ from those of a sound node, each with its message.
        heard_at: when the kubelet last wrote the condition Ready, in seconds since 1970, or None if not known.
    """

    name: str = ""
    kubelet_version: str = ""
    capacity: Mapping[str, int] = field(factory=dict)
    allocatable: Mapping[str, int] = field(factory=dict)
    ready: str = ""
    why_not_ready: str = ""
    machine: tuple[str, str] = ("", "")
    taints: tuple[Taint, ...] = ()
    pressures: Mapping[str, str] = field(factory=dict)
    max_pods: int | None = None
    unsettled: Mapping[str, str] = field(factory=dict)
    heard_at: float | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the API server has stopped hearing from the kubelet."""
        return self.ready == "Unknown"


@frozen
class PluginSeen:
    """What a plugin answered on its socket.

    Attributes:
        socket: the path of the socket, relative to the directory that was read.
        resource: the resource that the plugin reported to the plugin watcher, or an empty string for a plugin in the
            kubelet's own directory, because no other call returns the resource.
        options: the plugin's options, or None if the plugin did not answer.
        devices: the plugin's first list, or None if the plugin sent none in time.
        list_bytes: the size of that list as a message.
        seconds: how long the options and the list took together.
        problem: why `options` or `devices` is None.
    """

    socket: str
    resource: str = ""
    options: PluginOptions | None = None
    devices: DeviceList | None = None
    list_bytes: int = 0
    seconds: float = field(default=0.0, eq=False)
    problem: str = ""


@frozen
class CdiSpec:
    """One CDI file: its directory, its name, its kind (`vendor/class`), and the names of its devices.

    `problem` says why runtimes ignore the file; it is empty if they do not.
    """

    directory: str
    file: str
    kind: str
    devices: tuple[str, ...] = ()
    problem: str = ""

    @property
    def names(self) -> Iterator[str]:
        """The full names of the file's devices."""
        return (f"{self.kind}={device}" for device in self.devices)


@frozen
class CdiSeen:
    """The CDI files of all directories. `is_complete` says whether all of them could be read."""

    specs: tuple[CdiSpec, ...] = ()
    is_complete: bool = True

    @property
    def valid(self) -> tuple[CdiSpec, ...]:
        """The files that runtimes do not ignore."""
        return tuple(one for one in self.specs if not one.problem)

    @property
    def defined(self) -> frozenset[str]:
        """The full names of the devices that the valid files define."""
        return frozenset(name for spec in self.valid for name in spec.names)


@frozen
class Look:
    """What each source said when all of them were read once, one after another.

    `taken` is the time in seconds since 1970, or None if that is not known. The time is not compared, so looks taken at
    different times may be equal. `machine` is None if the sources were not read on the node itself, or if that is not
    known. `elsewhere` contains, for each driver, the other nodes that its ResourceSlices name, as far as slices of
    other nodes were read.
    """

    checkpoint: Reading[CheckpointSeen] = Reading()
    sockets: Reading[SocketsSeen] = Reading()
    pod_resources: Reading[PodResourcesSeen] = Reading()
    pods: Reading[tuple[PodSeen, ...]] = Reading()
    node: Reading[NodeSeen] = Reading()
    plugins: Reading[tuple[PluginSeen, ...]] = Reading()
    cdi: Reading[CdiSeen] = Reading()
    claims: Reading[ClaimsSeen] = Reading()
    slices: Reading[tuple[PublishedDeviceSeen, ...]] = Reading()
    allocations: Reading[tuple[AllocatedClaimSeen, ...]] = Reading()
    health: Reading[Mapping[Device, str]] = Reading()
    events: Reading[tuple[EventSeen, ...]] = Reading()
    state_files: Reading[tuple[StateFileSeen, ...]] = Reading()
    machine: MachineSeen | None = None
    elsewhere: Mapping[str, tuple[str, ...]] = field(factory=dict)
    taken: float | None = field(default=None, eq=False)

    @property
    def readings(self) -> "dict[Source, Reading[object]]":
        """Each source and what it said."""
        return {source: getattr(self, source.name.lower()) for source in Source}

    @property
    def is_of_server(self) -> bool:
        """Whether only the API server was queried, in which case sources on the node do not count."""
        return self.sockets.problem == ON_THE_NODE

    @property
    def claimed(self) -> tuple[ClaimedDeviceSeen, ...]:
        """The claims' devices that the kubelet lists."""
        return self.pod_resources.value.claimed if self.pod_resources.value else ()

    @property
    def is_unheard(self) -> bool:
        """Whether the API server has stopped hearing from the kubelet and the kubelet's sockets were not examined."""
        return self.sockets.value is None and self.node.value is not None and self.node.value.is_silent

    @property
    def damage(self) -> str:
        """Why an existing checkpoint is ignored as a whole, or an empty string if it is sound or was not read."""
        file = self.checkpoint.value
        if file is None or file.verdict.verdict not in {FileVerdict.CHECKSUM, FileVerdict.MALFORMED}:
            return ""
        return f"nothing in the checkpoint is trusted, because it is damaged: {foreign_text(file.verdict.problem, 300)}"

    @property
    def unwritable(self) -> str:
        """Why a kubelet cannot write its checkpoint, or an empty string if nothing seems to prevent that."""
        return self.checkpoint.value.unwritable if self.checkpoint.value else ""

    @cached_property
    def events_of_pods(self) -> Mapping[tuple[str, str], list[EventSeen]]:
        """The events about each pod, by namespace and name."""
        return grouped(((one.namespace, one.pod), one) for one in self.events.value or ())

    @property
    def is_enough(self) -> bool:
        """Whether anything is known about devices, from the checkpoint, the pod-resources API, claims or a plugin."""
        file = self.checkpoint.value
        return bool(
            (file and file.verdict.verdict is not FileVerdict.ABSENT)
            or self.pod_resources.value
            or (self.claims.value and self.claims.value.devices)
            or any(plugin.devices is not None for plugin in self.plugins.value or ())
        )


CLAIM = "claim:"
"""The prefix of a resource name in a pod's status if the name stands for a ResourceClaim."""


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Group values by key in a dict, keeping their order."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
