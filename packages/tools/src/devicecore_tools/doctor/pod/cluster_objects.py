"""Reads the cluster objects that determine which devices pods get.

Law: any parsed JSON results in objects, or in an error that names the field.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import count, repeat
from operator import attrgetter, itemgetter

from attrs import evolve, field, frozen

from devicecore.domain.allocation import (
    DeviceClass,
    DeviceKey,
    Features,
    Held,
    PoolDevice,
    PoolSlice,
    Release,
    TargetNode,
    UnallocatedClaim,
    claim_of,
    class_of,
    held_by,
    node_of,
    slice_of,
)
from devicecore.domain.documents import Value
from devicecore.domain.model import is_extended_resource
from devicecore_tools.budget import Budget
from devicecore_tools.doctor.pod.admission import Admission, Quota, limited_namespaces
from devicecore_tools.doctor.pod.machines import (
    CRITICAL,
    BoundPod,
    DisruptionBudget,
    PriorityClass,
    bound_pod,
)
from devicecore_tools.doctor.pod.volumes import (
    StorageClass,
    StorageRoom,
    Volume,
    VolumeClaim,
    Volumes,
    volume_limits_of,
)
from devicecore_tools.doctor.reading.cluster_nodes import ClusterNode, Labels, labels_of
from devicecore_tools.doctor.reading.taint_rules import TaintRule, added_taints, rule_of

OF_A_CLASS = "deviceclass.resource.kubernetes.io/"
"""The prefix of the resource that every DeviceClass serves under its own name."""


def may_be_of_a_class(resource: str) -> bool:
    """Return whether a DeviceClass may serve a resource (Kubernetes: `IsDRAExtendedResourceName`)."""
    return is_extended_resource(resource) or resource.startswith(OF_A_CLASS)


@frozen
class ClusterObjects:
    """The known objects that determine which devices claims get."""

    slices: tuple[PoolSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    nodes: tuple[TargetNode, ...] = ()
    held: tuple[Held, ...] = ()
    extended: Mapping[str, str] = {}  # the DeviceClass that serves each extended resource
    uncertain: Mapping[str, str] = {}  # the resources that not every scheduler knows, with the conflicting class
    claims: Mapping[str, Value] = {}  # claims and templates, by `namespace/name`
    templates: Mapping[str, UnallocatedClaim] = {}
    versions: tuple[str, ...] = ()  # the kubelets' versions
    rules: Mapping[str, TaintRule] = {}  # by name
    machines: Mapping[str, ClusterNode] = {}  # the scheduling data of each Node, by its name
    bound: Mapping[str, Sequence[BoundPod]] | None = None  # the pods of each node, or None if no pods were read
    namespaces: Mapping[str, Labels] | None = None  # the labels of each namespace, or None if none were read
    priorities: Mapping[str, PriorityClass] = CRITICAL  # by name; the default has an empty name
    budgets: Sequence[DisruptionBudget] = ()
    volumes: Volumes = field(factory=Volumes)
    admission: Admission = field(factory=Admission)

    @property
    def releases(self) -> tuple[Release, ...]:
        """The possible releases of the scheduler, newest first. A scheduler cannot be older than a kubelet."""
        known = [release for one in self.versions if (release := Release.of(one)) is not None]
        order = list(Release)
        oldest = max(map(order.index, known), default=0)
        return tuple(reversed(order[oldest:]))

    @cached_property
    def devices(self) -> Mapping[DeviceKey, PoolDevice]:
        """All published devices, each from the newest generation of its pool that includes the device."""
        slices = sorted(self.slices, key=attrgetter("generation"))
        return {device.key: device for one in slices for device in one.devices}

    @cached_property
    def features(self) -> Features:
        """The scheduler's feature gates, inferred from the devices.

        An API server stores list attributes only if the gate for them is on.
        """
        # Devices in slices of an older generation count, too.
        listed = (device for one in self.slices for device in one.devices)
        attributes = (one for device in listed for one in device.attributes.values())
        return Features(list_attributes=any(one.is_list for one in attributes))

    def protected(self, pods: Sequence[BoundPod]) -> list[BoundPod]:
        """Return the pods whose eviction, in this order, violates a budget (`filterPodsWithPDBViolation`)."""
        left = [one.allowed for one in self.budgets]
        found = []
        for pod in pods:
            mine = [number for number, one in enumerate(self.budgets) if one.matches(pod)]
            for number in mine:
                left[number] -= 1
            if any(left[number] < 0 for number in mine):
                found.append(pod)
        return found

    def target_nodes(self, only: str | None = None) -> list[TargetNode]:
        """Return the nodes to try: the node `only`, or by default the known Nodes, or else the nodes in slices."""
        known = {one.name: one for one in self.nodes}
        named = {one.place.node for one in self.slices if one.place and one.place.node}
        named |= {device.place.node for one in self.slices for device in one.devices if device.place}
        for name in [only] if only else sorted(named - {""}) or ["the node"]:
            if only or not self.nodes:
                known.setdefault(name, TargetNode(name))
        return [one for name, one in sorted(known.items()) if only in (None, name)]


@frozen
class _Objects:
    """The objects read so far, by name. If two objects have the same kind and name, the first one is used."""

    budget: Budget = field(factory=Budget)
    slices: dict[str, PoolSlice] = field(factory=dict)
    classes: dict[str, tuple[str, str, DeviceClass]] = field(factory=dict)  # creation time, resource, class
    nodes: dict[str, tuple[TargetNode, str]] = field(factory=dict)  # each node with the version of its kubelet
    machines: dict[str, ClusterNode] = field(factory=dict)
    claims: dict[str, Value] = field(factory=dict)
    templates: dict[str, UnallocatedClaim] = field(factory=dict)
    rules: dict[str, TaintRule] = field(factory=dict)
    bound: dict[str, BoundPod] = field(factory=dict)
    namespaces: dict[str, Labels] = field(factory=dict)
    priorities: dict[str, PriorityClass] = field(factory=lambda: dict(CRITICAL))
    budgets: dict[str, DisruptionBudget] = field(factory=dict)
    volume_claims: dict[str, VolumeClaim] = field(factory=dict)
    volumes: dict[str, Volume] = field(factory=dict)
    storage_classes: dict[str, StorageClass] = field(factory=dict)
    volume_limits: dict[str, dict[str, int]] = field(factory=dict)
    tracked: dict[str, bool] = field(factory=dict)
    rooms: dict[str, StorageRoom] = field(factory=dict)
    runtimes: dict[str, Value] = field(factory=dict)
    quotas: dict[str, Quota] = field(factory=dict)
    limits: dict[str, Value] = field(factory=dict)

    def add(self, kind: str, name: str, item: Value) -> None:
        """Add an object of a kind. Raises DocumentError if a field has the wrong type."""
        reader = _READERS.get(kind)
        if reader is not None:
            reader(self, name, item)

    def add_slice(self, name: str, item: Value) -> None:
        """Add a ResourceSlice."""
        if name not in self.slices:
            self.slices[name] = slice_of(self.budget.keep_slice(item))

    def add_class(self, name: str, item: Value) -> None:
        """Add a DeviceClass."""
        if name not in self.classes:
            created = item["metadata"]["creationTimestamp"].text("")
            self.classes[name] = created, item["spec"]["extendedResourceName"].text(""), class_of(item)

    def add_node(self, name: str, item: Value) -> None:
        """Add a Node."""
        if name not in self.nodes:
            machine = ClusterNode.of(item)
            self.nodes[name] = node_of(item), item["status"]["nodeInfo"]["kubeletVersion"].text("")
            self.machines[machine.target.name] = machine

    def add_claim(self, name: str, item: Value) -> None:
        """Add a ResourceClaim."""
        self.claims.setdefault(name, item)

    def add_template(self, name: str, item: Value) -> None:
        """Add a ResourceClaimTemplate."""
        if name not in self.templates:
            self.templates[name] = template_of(item)

    def add_rule(self, name: str, item: Value) -> None:
        """Add a DeviceTaintRule."""
        if name not in self.rules:
            self.rules[name] = rule_of(item)

    def add_pod(self, name: str, item: Value) -> None:
        """Add a Pod."""
        if (pod := bound_pod(item)) is not None:
            self.bound.setdefault(name, pod)

    def add_namespace(self, _name: str, item: Value) -> None:
        """Add a Namespace."""
        self.namespaces.setdefault(item["metadata"]["name"].text(""), labels_of(item["metadata"]))

    def add_priority(self, _name: str, item: Value) -> None:
        """Add a PriorityClass."""
        found = PriorityClass.of(item)
        self.priorities.setdefault(item["metadata"]["name"].text(""), found)
        if found.is_default:
            self.priorities.setdefault("", found)

    def add_budget(self, name: str, item: Value) -> None:
        """Add a PodDisruptionBudget."""
        self.budgets.setdefault(name, DisruptionBudget.of(item))

    def add_volume_claim(self, name: str, item: Value) -> None:
        """Add a PersistentVolumeClaim."""
        self.volume_claims.setdefault(name, VolumeClaim.of(item))

    def add_volume(self, _name: str, item: Value) -> None:
        """Add a PersistentVolume."""
        found = Volume.of(item)
        self.volumes.setdefault(found.name, found)

    def add_storage_class(self, _name: str, item: Value) -> None:
        """Add a StorageClass."""
        found = StorageClass.of(item)
        self.storage_classes.setdefault(found.name, found)

    def add_volume_limits(self, _name: str, item: Value) -> None:
        """Add a CSINode."""
        self.volume_limits.setdefault(item["metadata"]["name"].text(""), volume_limits_of(item))

    def add_driver(self, _name: str, item: Value) -> None:
        """Add a CSIDriver."""
        self.tracked.setdefault(item["metadata"]["name"].text(""), item["spec"]["storageCapacity"].boolean())

    def add_room(self, name: str, item: Value) -> None:
        """Add a CSIStorageCapacity."""
        self.rooms.setdefault(name, StorageRoom.of(item))

    def add_runtime(self, _name: str, item: Value) -> None:
        """Add a RuntimeClass."""
        self.runtimes.setdefault(item["metadata"]["name"].text(""), item)

    def add_quota(self, name: str, item: Value) -> None:
        """Add a ResourceQuota."""
        self.quotas.setdefault(name, Quota.of(item))

    def add_limits(self, name: str, item: Value) -> None:
        """Add a LimitRange."""
        self.limits.setdefault(name, item)

    @property
    def uncertain(self) -> dict[str, str]:
        """The classes' own resource names that a scheduler may not know, each with the DeviceClass that is the reason.

        A scheduler skips a class's own name if it sees the class after a newer class for the same resource (Kubernetes:
        `updateResourceName2class`).
        """
        served = self.served
        named = {one.name: resource for _, resource, one in self.classes.values() if resource}
        return {OF_A_CLASS + name: served[resource] for name, resource in named.items() if served[resource] != name}

    @property
    def served(self) -> dict[str, str]:
        """The DeviceClass that serves each resource: the newest, or the first by name among equally new classes."""
        classes = sorted(self.classes.values(), key=lambda of: of[2].name, reverse=True)
        classes.sort(key=itemgetter(0))
        named = {resource: one.name for _, resource, one in classes}
        return named | {OF_A_CLASS + one.name: one.name for _, _, one in classes}


_READERS: Mapping[str, Callable[[_Objects, str, Value], None]] = {
    "ResourceSlice": _Objects.add_slice,
    "DeviceClass": _Objects.add_class,
    "Node": _Objects.add_node,
    "ResourceClaim": _Objects.add_claim,
    "ResourceClaimTemplate": _Objects.add_template,
    "DeviceTaintRule": _Objects.add_rule,
    "Pod": _Objects.add_pod,
    "Namespace": _Objects.add_namespace,
    "PriorityClass": _Objects.add_priority,
    "PodDisruptionBudget": _Objects.add_budget,
    "PersistentVolumeClaim": _Objects.add_volume_claim,
    "PersistentVolume": _Objects.add_volume,
    "StorageClass": _Objects.add_storage_class,
    "CSINode": _Objects.add_volume_limits,
    "CSIDriver": _Objects.add_driver,
    "CSIStorageCapacity": _Objects.add_room,
    "RuntimeClass": _Objects.add_runtime,
    "ResourceQuota": _Objects.add_quota,
    "LimitRange": _Objects.add_limits,
}


def objects_of(
    documents: Iterable[Value], kinds: Iterable[str] = repeat(""), budget: Budget | None = None
) -> ClusterObjects:
    """Return the objects in documents: lists from `kubectl get -o json`, or single objects. Other kinds are ignored.

    If several objects have the same kind and name, for example because a file is passed twice, the first one is used.

    Args:
        documents: lists or objects.
        kinds: the kind of each document's objects if the objects do not include it, as in an API server's lists.
        budget: the budget for all slices; by default a new one.

    Raises:
        DocumentError: an object has a field of the wrong type, or the slices have too many devices.
    """
    found = _Objects(budget or Budget())
    given, numbers = iter(kinds), count()
    lists: set[str] = set()  # the kinds of objects in lists, and of empty typed lists
    for document in documents:
        kind = next(given, "")
        if (whole := document["kind"].text("")).endswith("List"):
            lists.add(whole.removesuffix("List"))
        for item in document["items"].sequence() if document["items"].data is not None else [document]:
            metadata = item["metadata"]
            own = metadata["name"].text("")
            name = f"{metadata['namespace'].text('default')}/{own}" if own else str(next(numbers))
            found.add(item["kind"].text(kind), name, item)
            if item is not document:
                lists.add(item["kind"].text(kind))
        # Free the memory of each file of a large cluster before the next file is read.
        document = item = metadata = Value(None, "")  # noqa: PLW2901 - see above
    rules = tuple(found.rules.values())
    bound: dict[str, list[BoundPod]] = defaultdict(list)
    for pod in found.bound.values():
        of = found.priorities.get(pod.priority_class) if pod.priority_class is not None else None
        bound[pod.node].append(pod if of is None else evolve(pod, priority=of.value))
    are_volumes_read = "PersistentVolumeClaim" in lists or bool(found.volume_claims)
    return ClusterObjects(
        tuple(_tainted(one, rules) for one in found.slices.values()),
        tuple(one for _, _, one in found.classes.values()),
        tuple(node for node, _ in found.nodes.values()),
        tuple(held for one in found.claims.values() for held in held_by(one)),
        found.served,
        found.uncertain,
        found.claims,
        found.templates,
        tuple(version for _, version in found.nodes.values()),
        {name.partition("/")[2]: rule for name, rule in found.rules.items()},
        found.machines,
        bound if bound or "Pod" in lists else None,
        found.namespaces or None,
        found.priorities,
        tuple(found.budgets.values()),
        Volumes(
            found.volume_claims,
            found.volumes,
            found.storage_classes,
            are_volumes_read,
            found.volume_limits if "CSINode" in lists else None,
            frozenset(name for name, is_tracked in found.tracked.items() if is_tracked)
            if "CSIDriver" in lists
            else None,
            tuple(found.rooms.values()),
        ),
        Admission(
            found.runtimes,
            tuple(found.quotas.values()),
            limited_namespaces(found.limits.values()),
            frozenset(lists),
            frozenset(found.priorities),
        ),
    )


def template_of(template: Value) -> UnallocatedClaim:
    """Return the requests of a ResourceClaimTemplate's claims. Raises DocumentError as `claim_of` does."""
    fields = {name: template[name].data for name in ("apiVersion", "metadata")}
    return claim_of(Value({**fields, "spec": template["spec"]["spec"].data}, template, "spec"))


def _tainted(one: PoolSlice, rules: Sequence[TaintRule]) -> PoolSlice:
    """Return a slice with the taints that DeviceTaintRules add to its devices."""

    def with_taints(device: PoolDevice) -> PoolDevice:
        added = added_taints(device.key, rules)
        return evolve(device, taints=(*device.taints, *added)) if added else device

    return evolve(one, devices=tuple(map(with_taints, one.devices))) if rules else one
