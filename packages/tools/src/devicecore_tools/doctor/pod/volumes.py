"""Finds the nodes that a pod's PersistentVolumeClaims exclude.

Law: the answers equal those of the scheduler's filters VolumeRestrictions, NodeVolumeLimits, VolumeBinding and
VolumeZone, in their words. Volumes without a CSI driver have no limit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import field, frozen

from devicecore.domain.allocation import TargetNode
from devicecore.domain.allocation.node_selectors import node_selector
from devicecore.domain.documents import Value
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text
from devicecore_tools.doctor.pod.machines import Obstacle, volume_names, volumes_with_claims, written_selector
from devicecore_tools.doctor.reading.cluster_nodes import Labels, labels_of
from devicecore_tools.doctor.reading.label_selectors import object_selector

_ZONE_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_OLD_LABELS = ("failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region")
_SIZE = "storage"
_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
_NO_VOLUME = "node(s) didn't find available persistent volumes to bind"
_NO_ZONE = "node(s) had no available volume zone"
_NO_ROOM = "node(s) did not have enough free storage"
_IN_USE = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
_TOO_MANY = "node(s) exceed max volume count"
_ONE_POD = "ReadWriteOncePod"


@frozen
class VolumeClaim:
    """A PersistentVolumeClaim."""

    name: str
    volume: str
    storage_class: str
    phase: str
    is_deleted: bool
    size: Quantity
    modes: frozenset[str]
    volume_mode: str
    selects: Callable[[Labels], bool] | None = field(eq=False)

    @classmethod
    def of(cls, item: Value) -> "VolumeClaim":
        """Read a PersistentVolumeClaim object. Raises DocumentError if a field has the wrong type."""
        metadata, spec = item["metadata"], item["spec"]
        size = spec["resources"]["requests"][_SIZE]
        return cls(
            metadata["name"].text(),
            spec["volumeName"].text(""),
            spec["storageClassName"].text(""),
            item["status"]["phase"].text("Pending"),
            metadata["deletionTimestamp"].data is not None,
            Quantity(0) if size.data is None else size.amount(),
            frozenset(one.text("") for one in spec["accessModes"].sequence()),
            spec["volumeMode"].text("Filesystem"),
            None if spec["selector"].data is None else object_selector(spec["selector"]),
        )

    @property
    def is_bound(self) -> bool:
        """Whether the claim is bound to its volume (Kubernetes: `isPVCFullyBound`)."""
        return bool(self.volume) and self.phase == "Bound"


@frozen
class Volume:
    """A PersistentVolume. `claim` is the `namespace/name` of the claim that the volume is bound to.

    `handle` is the name of the CSI driver and the driver's name for the volume, both empty if there is no CSI driver.
    """

    name: str
    storage_class: str
    phase: str
    claim: str
    size: Quantity
    modes: frozenset[str]
    volume_mode: str
    labels: Labels
    accepts: Callable[[TargetNode], bool] | None = field(eq=False)
    handle: tuple[str, str] = ("", "")
    affinity: str = ""

    @classmethod
    def of(cls, item: Value) -> "Volume":
        """Read a PersistentVolume object. Raises DocumentError if a field has the wrong type."""
        metadata, spec = item["metadata"], item["spec"]
        required, by = spec["nodeAffinity"]["required"], spec["claimRef"]
        size = spec["capacity"][_SIZE]
        return cls(
            metadata["name"].text(),
            spec["storageClassName"].text(""),
            item["status"]["phase"].text("Available"),
            f"{by['namespace'].text('default')}/{by['name'].text('')}" if by.data is not None else "",
            Quantity(0) if size.data is None else size.amount(),
            frozenset(one.text("") for one in spec["accessModes"].sequence()),
            spec["volumeMode"].text("Filesystem"),
            labels_of(metadata),
            None if required.data is None else node_selector(required),
            (spec["csi"]["driver"].text(""), spec["csi"]["volumeHandle"].text("")),
            written_selector(required),
        )

    def conflict(self, node: TargetNode) -> str:
        """Return why the volume cannot be used on a node, in a scheduler's words, or an empty string if it can."""
        if self.accepts is not None and not self.accepts(node):
            return _CONFLICT
        if any(label in node.labels for label in (*_ZONE_LABELS, *_OLD_LABELS)):
            for old, new in zip(_OLD_LABELS, _ZONE_LABELS, strict=True):
                for label in (old, new):
                    here = node.labels.get(label, node.labels.get(new))
                    if (places := self.labels.get(label)) is not None and here not in places.split("__"):
                        return _NO_ZONE
        return ""

    def suits(self, claim: VolumeClaim, key: str) -> bool:
        """Return whether a claim can be bound to the volume (Kubernetes: `FindMatchingVolume`)."""
        is_free = self.claim == key or (not self.claim and self.phase in {"Available", "Pending"})
        return (
            is_free
            and self.storage_class == claim.storage_class
            and self.volume_mode == claim.volume_mode
            and claim.modes <= self.modes
            and self.size.nanos >= claim.size.nanos
            and (claim.selects is None or claim.selects(self.labels))
        )


@frozen
class StorageClass:
    """A StorageClass. Each of `topologies` maps labels to their allowed values on a node."""

    name: str
    waits: bool
    provisions: bool
    topologies: Sequence[Mapping[str, Sequence[str]]]
    is_default: bool
    provisioner: str = ""

    @classmethod
    def of(cls, item: Value) -> "StorageClass":
        """Read a StorageClass object. Raises DocumentError if a field has the wrong type."""
        topologies = [
            {
                one["key"].text(""): [value.text("") for value in one["values"].sequence()]
                for one in term["matchLabelExpressions"].sequence()
            }
            for term in item["allowedTopologies"].sequence()
        ]
        annotations = item["metadata"]["annotations"]
        return cls(
            item["metadata"]["name"].text(),
            item["volumeBindingMode"].text("Immediate") == "WaitForFirstConsumer",
            item["provisioner"].text("") not in {"", "kubernetes.io/no-provisioner"},
            topologies,
            annotations["storageclass.kubernetes.io/is-default-class"].data == "true",
            item["provisioner"].text(""),
        )

    def allows(self, node: TargetNode) -> bool:
        """Return whether volumes can be provisioned for a node (Kubernetes: `MatchTopologySelectorTerms`)."""
        return not self.topologies or any(
            all(node.labels.get(key) in values for key, values in term.items()) for term in self.topologies
        )


@frozen
class StorageRoom:
    """A CSIStorageCapacity: the maximum size of a StorageClass's volumes on some nodes."""

    storage_class: str
    largest: Quantity
    reaches: Callable[[Labels], bool] = field(eq=False)

    @classmethod
    def of(cls, item: Value) -> "StorageRoom":
        """Read a CSIStorageCapacity object. Raises DocumentError if a field has the wrong type."""
        size = item["capacity"] if item["maximumVolumeSize"].data is None else item["maximumVolumeSize"]
        largest = Quantity(0) if size.data is None else size.amount()
        return cls(item["storageClassName"].text(""), largest, object_selector(item["nodeTopology"]))


def volume_limits_of(item: Value) -> dict[str, int]:
    """Return how many volumes of each driver a node can attach, according to its CSINode."""
    drivers = item["spec"]["drivers"].sequence()
    return {
        one["name"].text(""): one["allocatable"]["count"].integer()
        for one in drivers
        if one["allocatable"]["count"].data is not None
    }


@frozen
class Volumes:
    """The volumes of a cluster.

    Attributes:
        claims: the PersistentVolumeClaims, by `namespace/name`.
        are_read: whether the cluster's PersistentVolumeClaims were read.
        limits: how many volumes of each driver each node can attach, or None if no CSINode was read.
        tracked: the drivers that publish their storage capacity, or None if no CSIDriver was read.
        rooms: the capacities that these drivers publish.
    """

    claims: Mapping[str, VolumeClaim] = field(factory=dict)
    volumes: Mapping[str, Volume] = field(factory=dict)
    classes: Mapping[str, StorageClass] = field(factory=dict)
    are_read: bool = False
    limits: Mapping[str, Mapping[str, int]] | None = None
    tracked: frozenset[str] | None = None
    rooms: Sequence[StorageRoom] = ()

    def unread(self, namespace: str, names: Iterable[str]) -> Iterator[str]:
        """Yield the assumptions made for claims with these names because objects that matter were not read."""
        keys = [f"{namespace}/{name}" for name in names]
        if self.limits is None and any(self._handle(key)[0] for key in keys):
            yield "no node has reached its volume limit, because no CSINode was read"
        elif self.limits and any(self._handle(key)[0] for key in keys):
            yield "nodes have only the volumes of their pods, because VolumeAttachments are not read"
        made = (self.claims[key] for key in keys if key in self.claims and not self.claims[key].volume)
        classes = (self.classes.get(one.storage_class) for one in made)
        if self.tracked is None and any(of is not None and of.waits and of.provisions for of in classes):
            yield "drivers have capacity for new volumes, because no CSIDriver was read"

    def restriction(self, namespace: str, names: Iterable[str], users: Mapping[str, str]) -> Obstacle | None:
        """Return an obstacle if a claim is limited to one pod and is in use. `users` maps each used claim to a pod."""
        for name in names:
            key = f"{namespace}/{name}"
            if key in users and key in self.claims and _ONE_POD in self.claims[key].modes:
                shown = foreign_text(users[key])
                return Obstacle(_IN_USE, f"pod {shown} uses {foreign_text(name)}", f"pod {shown} ends")
        return None

    def limit(self, node: str, wanted: Iterable[str], used: Iterable[str]) -> Obstacle | None:
        """Return why a node cannot attach the pod's volumes, or None if no limit is known to prevent it.

        The claims of the pod and of the node's pods are given as `namespace/name`.

        A volume counts once, no matter how many pods use it (scheduler: `CSILimits`).
        """
        limits = (self.limits or {}).get(node)
        if not limits:
            return None
        has = {self._handle(key) for key in used}
        new = {self._handle(key) for key in wanted} - has
        for driver, most in limits.items():
            more, count = (sum(of[0] == driver for of in handles) for handles in (new, has))
            if more and more + count > most:
                because = (
                    f"the node has {count} of {most} volumes of {foreign_text(driver)}, and the pod needs {more} more"
                )
                return Obstacle(_TOO_MANY, because, f"pods on {node} that use volumes end")
        return None

    def _handle(self, key: str) -> tuple[str, str]:
        """Return the driver and the name of a claim's volume, or two empty strings if no CSI driver serves it."""
        claim = self.claims.get(key)
        if claim is None:
            return "", ""
        if claim.volume:
            found = self.volumes.get(claim.volume)
            return found.handle if found is not None else ("", "")
        of = self.classes.get(claim.storage_class)
        return (of.provisioner, key) if of is not None and of.provisions else ("", "")

    def problem(self, namespace: str, names: Iterable[str]) -> Obstacle | None:
        """Return why no node can run a pod that uses the claims with these names, or None if no reason is known."""
        for name in names:
            claim, shown = self.claims.get(f"{namespace}/{name}"), foreign_text(name)
            if claim is None:
                because = f"namespace {foreign_text(namespace)} has no PersistentVolumeClaim with this name"
                return Obstacle(f'persistentvolumeclaim "{shown}" not found', because, "it is created")
            if claim.phase == "Lost":
                says = f'persistentvolumeclaim "{shown}" bound to non-existent persistentvolume "{claim.volume}"'
                return Obstacle(says, "its phase is Lost", "the claim is created again, and its data is restored")
            if claim.is_deleted:
                because = "it has a deletionTimestamp, so no new pod may use it"
                return Obstacle(
                    f'persistentvolumeclaim "{shown}" is being deleted', because, "the pod uses a different claim"
                )
            of = self.classes.get(claim.storage_class)
            waits = of is not None and of.waits and not claim.volume
            if not claim.is_bound and not waits:
                says = "pod has unbound immediate PersistentVolumeClaims"
                cure = f"it is bound: kubectl describe pvc {shown} -n {foreign_text(namespace)} gives the reason"
                return Obstacle(says, f"PersistentVolumeClaim {shown} is {claim.phase}", cure)
            if claim.is_bound and claim.volume not in self.volumes:
                says = f'persistentvolume "{foreign_text(claim.volume)}" not found'
                return Obstacle(says, f"PersistentVolumeClaim {shown} is bound to it", "the volume exists again")
        return None

    def obstacle(self, namespace: str, names: Sequence[str], node: TargetNode) -> Obstacle | None:
        """Return why these claims, which pass `problem`, cannot be used on a node, or None if they can be."""
        taken: set[str] = set()
        for name in names:
            key = f"{namespace}/{name}"
            claim = self.claims[key]
            if claim.is_bound:
                says = self.volumes[claim.volume].conflict(node)
            else:
                says = self._unbound_conflict(key, node, taken)
            if says:
                labels = ", ".join(f"{label}={node.labels[label]}" for label in _ZONE_LABELS if label in node.labels)
                volume = self.volumes.get(claim.volume)
                has = f"volume {foreign_text(claim.volume)}" if claim.volume else f"StorageClass {claim.storage_class}"
                only = f", which needs nodes with {foreign_text(volume.affinity)}" if volume and volume.affinity else ""
                where = f", and node {node.name} has {foreign_text(labels)}" if labels else ""
                because = f"PersistentVolumeClaim {foreign_text(name)} has {has}{only}{where}"
                return Obstacle(says, because, f"the volume of {foreign_text(name)} can be used on {node.name}")
        return None

    def _unbound_conflict(self, key: str, node: TargetNode, taken: set[str]) -> str:
        claim = self.claims[key]
        for volume in self._free(claim, key, node):
            if volume.name not in taken:
                taken.add(volume.name)
                return ""
        of = self.classes[claim.storage_class]
        if not (of.provisions and of.allows(node)):
            return _NO_VOLUME
        rooms = (one for one in self.rooms if one.storage_class == of.name and one.largest.nanos >= claim.size.nanos)
        is_tracked = of.provisioner in (self.tracked or ())
        return "" if not is_tracked or any(one.reaches(node.labels) for one in rooms) else _NO_ROOM

    def _free(self, claim: VolumeClaim, key: str, node: TargetNode) -> Iterator[Volume]:
        """Yield the volumes that a claim can be bound to on a node, smallest first."""
        suiting = (one for one in self.volumes.values() if one.suits(claim, key) and not one.conflict(node))
        yield from sorted(suiting, key=lambda one: one.size.nanos)


def claims_made_for(pod: Value) -> dict[str, VolumeClaim]:
    """Return the PersistentVolumeClaims that controllers create for a pod, by name, in their state before binding."""
    found = {}
    for one, name in zip(volumes_with_claims(pod), volume_names(pod), strict=True):
        template = one["ephemeral"]["volumeClaimTemplate"]
        if template.data is not None:
            body = {"metadata": {"name": name}, "spec": template["spec"].data}
            found[name] = VolumeClaim.of(Value(body, template, "spec"))
    return found
