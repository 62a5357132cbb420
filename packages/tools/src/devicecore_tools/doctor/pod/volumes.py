"""Which nodes the PersistentVolumeClaims of a pod keep it from.

Law: the answers are those of the scheduler's filters VolumeBinding and VolumeZone, in their words. The capacity that a
driver of volumes has left (CSIStorageCapacity) and the number of volumes of a node are not looked at.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import field, frozen

from devicecore.domain.allocation import TargetNode
from devicecore.domain.allocation.node_selectors import node_selector
from devicecore.domain.documents import Value
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text
from devicecore_tools.doctor.pod.machines import Obstacle
from devicecore_tools.doctor.reading.cluster_nodes import Labels, labels_of
from devicecore_tools.doctor.reading.label_selectors import object_selector

_ZONE_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_OLD_LABELS = ("failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region")
_SIZE = "storage"
_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
_NO_VOLUME = "node(s) didn't find available persistent volumes to bind"
_NO_ZONE = "node(s) had no available volume zone"


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
        """Read an object. Raises DocumentError if a field has the wrong type."""
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
        """Whether it has its volume (Kubernetes: `isPVCFullyBound`)."""
        return bool(self.volume) and self.phase == "Bound"


@frozen
class Volume:
    """A PersistentVolume. `claim` is the one that has it, `namespace/name`."""

    name: str
    storage_class: str
    phase: str
    claim: str
    size: Quantity
    modes: frozenset[str]
    volume_mode: str
    labels: Labels
    accepts: Callable[[TargetNode], bool] | None = field(eq=False)

    @classmethod
    def of(cls, item: Value) -> "Volume":
        """Read an object. Raises DocumentError if a field has the wrong type."""
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
        )

    def conflict(self, node: TargetNode) -> str:
        """Return why the volume cannot be used on a node, in a scheduler's words. The result is empty if it can."""
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
        """Return whether a claim may get the volume (Kubernetes: `FindMatchingVolume`)."""
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
    """A StorageClass. Each of `topologies` is a set of labels with the values of which a node has to have one."""

    name: str
    waits: bool
    provisions: bool
    topologies: Sequence[Mapping[str, Sequence[str]]]
    is_default: bool

    @classmethod
    def of(cls, item: Value) -> "StorageClass":
        """Read an object. Raises DocumentError if a field has the wrong type."""
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
        )

    def allows(self, node: TargetNode) -> bool:
        """Return whether volumes can be made for a node (Kubernetes: `MatchTopologySelectorTerms`)."""
        return not self.topologies or any(
            all(node.labels.get(key) in values for key, values in term.items()) for term in self.topologies
        )


@frozen
class Volumes:
    """The volumes of a cluster. `are_read` is whether its PersistentVolumeClaims were read."""

    claims: Mapping[str, VolumeClaim] = field(factory=dict)  # by `namespace/name`
    volumes: Mapping[str, Volume] = field(factory=dict)
    classes: Mapping[str, StorageClass] = field(factory=dict)
    are_read: bool = False

    def problem(self, namespace: str, names: Iterable[str]) -> Obstacle | None:
        """Return why no node takes a pod with claims of these names. Return None if no reason is known."""
        for name in names:
            claim, shown = self.claims.get(f"{namespace}/{name}"), foreign_text(name)
            if claim is None:
                because = f"namespace {foreign_text(namespace)} has no PersistentVolumeClaim of this name"
                return Obstacle(f'persistentvolumeclaim "{shown}" not found', because, "somebody creates it")
            if claim.phase == "Lost":
                says = f'persistentvolumeclaim "{shown}" bound to non-existent persistentvolume "{claim.volume}"'
                return Obstacle(says, "its phase is Lost", "the claim is created again, and its data restored")
            if claim.is_deleted:
                because = "it has a deletionTimestamp, and no new pod may use it"
                return Obstacle(f'persistentvolumeclaim "{shown}" is being deleted', because, "the pod uses another")
            of = self.classes.get(claim.storage_class)
            waits = of is not None and of.waits and not claim.volume
            if not claim.is_bound and not waits:
                says = "pod has unbound immediate PersistentVolumeClaims"
                cure = f"it is bound: kubectl describe pvc {shown} -n {foreign_text(namespace)} has the reason"
                return Obstacle(says, f"PersistentVolumeClaim {shown} is {claim.phase}", cure)
            if claim.is_bound and claim.volume not in self.volumes:
                says = f'persistentvolume "{foreign_text(claim.volume)}" not found'
                return Obstacle(says, f"PersistentVolumeClaim {shown} is bound to it", "the volume is there again")
        return None

    def obstacle(self, namespace: str, names: Sequence[str], node: TargetNode) -> Obstacle | None:
        """Return why a node cannot use claims that `problem` has nothing against. Return None if it can."""
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
                has = f"volume {foreign_text(claim.volume)}" if claim.volume else f"of {claim.storage_class}"
                where = f", node {node.name} has {foreign_text(labels)}" if labels else ""
                because = f"PersistentVolumeClaim {foreign_text(name)} has {has}{where}"
                return Obstacle(says, because, f"the volume of {foreign_text(name)} can be used on {node.name}")
        return None

    def _unbound_conflict(self, key: str, node: TargetNode, taken: set[str]) -> str:
        claim = self.claims[key]
        for volume in self._free(claim, key, node):
            if volume.name not in taken:
                taken.add(volume.name)
                return ""
        of = self.classes[claim.storage_class]
        return "" if of.provisions and of.allows(node) else _NO_VOLUME

    def _free(self, claim: VolumeClaim, key: str, node: TargetNode) -> Iterator[Volume]:
        """Yield the volumes that a claim may get on a node, the smallest first."""
        suiting = (one for one in self.volumes.values() if one.suits(claim, key) and not one.conflict(node))
        yield from sorted(suiting, key=lambda one: one.size.nanos)


def volume_claims_of(pod: Value) -> list[str]:
    """Return the names of the PersistentVolumeClaims of a pod, also of those that are made for it."""
    name = pod["metadata"]["name"].text("")
    volumes = pod["spec"]["volumes"].sequence()
    named = (one["persistentVolumeClaim"]["claimName"].text("") for one in volumes)
    made = (f"{name}-{one['name'].text('')}" for one in volumes if one["ephemeral"].data is not None)
    return [one for one in (*named, *made) if one]
