"""Reads a pod's requirements concerning other pods: affinity, anti-affinity, topology spread and host ports.

Law: a term selects the pods that Kubernetes' own `AffinityTerm` or topology spread constraint selects.
"""

from collections.abc import Callable, Iterator, Sequence

from attrs import field, frozen

from devicecore.domain.documents import Value
from devicecore_tools.doctor.reading.cluster_nodes import Labels, labels_of
from devicecore_tools.doctor.reading.label_selectors import object_selector

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

Check = Callable[[Labels], bool]


@frozen
class PodTerm:
    """A term of a pod's affinity or anti-affinity, which selects other pods.

    Attributes:
        topology_key: the label whose values divide nodes into domains.
        selects: a function that returns whether a pod's labels match.
        namespaces: the selected namespaces.
        selects_namespace: a function that returns whether a namespace's labels match, or None if the term has no
            namespace selector.
        needs_namespaces: whether the result depends on namespace labels.
    """

    topology_key: str
    selects: Check = field(eq=False)
    namespaces: frozenset[str]
    selects_namespace: Check | None = field(default=None, eq=False)
    needs_namespaces: bool = False

    @classmethod
    def of(cls, term: Value, namespace: str, labels: Labels) -> "PodTerm":
        """Read a term of a pod's affinity. Raises DocumentError if a field has the wrong type."""
        of_namespaces = term["namespaceSelector"]
        named = frozenset(one.text("") for one in term["namespaces"].sequence())
        if not named and of_namespaces.data is None:
            named = frozenset([namespace])
        extra = [*_keys(term, "matchLabelKeys", labels, "In"), *_keys(term, "mismatchLabelKeys", labels, "NotIn")]
        return cls(
            term["topologyKey"].text(),
            object_selector(term["labelSelector"], extra),
            named,
            None if of_namespaces.data is None else object_selector(of_namespaces),
            bool(of_namespaces.data),
        )

    def matches(self, namespace: str, labels: Labels, of_namespace: Labels) -> bool:
        """Return whether the term selects a pod with this namespace and these labels."""
        is_there = namespace in self.namespaces
        if not is_there and self.selects_namespace is not None:
            is_there = self.selects_namespace(of_namespace)
        return is_there and self.selects(labels)


def _keys(term: Value, name: str, labels: Labels, operator: str) -> Iterator[dict[str, object]]:
    """Yield the requirements that a term's label keys add to its selector, with the values of the pod's own labels."""
    for one in term[name].sequence():
        if (key := one.text("")) in labels:
            yield {"key": key, "operator": operator, "values": [labels[key]]}


@frozen
class SpreadConstraint:
    """How evenly pods must be spread over the values of a node label."""

    topology_key: str
    selects: Check = field(eq=False)
    max_skew: int
    min_domains: int
    honors_affinity: bool
    honors_taints: bool
    counts_none: bool  # whether the selector is absent or empty, so that it matches no pods

    @classmethod
    def of(cls, one: Value, labels: Labels) -> "SpreadConstraint":
        """Read a topology spread constraint. Raises DocumentError if a field has the wrong type."""
        extra = list(_keys(one, "matchLabelKeys", labels, "In"))
        return cls(
            one["topologyKey"].text(),
            object_selector(one["labelSelector"], extra),
            one["maxSkew"].integer(),
            one["minDomains"].integer(1),
            one["nodeAffinityPolicy"].text("Honor") == "Honor",
            one["nodeTaintsPolicy"].text("Ignore") == "Honor",
            not any(one["labelSelector"][name].data for name in ("matchLabels", "matchExpressions")) and not extra,
        )


_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - the notation of Kubernetes, nothing listens there


@frozen
class HostPort:
    """A node's port that a container uses."""

    address: str
    protocol: str
    port: int

    def excludes(self, other: "HostPort") -> bool:
        """Return whether the two ports conflict on one node (Kubernetes: `HostPortInfo.CheckConflict`)."""
        same = (self.protocol, self.port) == (other.protocol, other.port)
        return same and (self.address == other.address or _ANY_ADDRESS in {self.address, other.address})


@frozen
class Wishes:
    """A pod's requirements concerning other pods."""

    near: Sequence[PodTerm] = ()
    apart: Sequence[PodTerm] = ()
    spread: Sequence[SpreadConstraint] = ()
    ports: Sequence[HostPort] = ()

    @classmethod
    def of(cls, pod: Value) -> "Wishes":
        """Read a pod's requirements, but not its preferences. Raises DocumentError as `Value` does."""
        metadata, spec = pod["metadata"], pod["spec"]
        namespace, labels = metadata["namespace"].text("default"), labels_of(metadata)
        near, apart = (
            tuple(PodTerm.of(term, namespace, labels) for term in spec["affinity"][kind][REQUIRED].sequence())
            for kind in ("podAffinity", "podAntiAffinity")
        )
        spread = tuple(
            SpreadConstraint.of(one, labels)
            for one in spec["topologySpreadConstraints"].sequence()
            if one["whenUnsatisfiable"].text("DoNotSchedule") == "DoNotSchedule"
        )
        return cls(near, apart, spread, tuple(_ports(spec))) if near or apart or spread or _has_ports(spec) else NONE

    @property
    def names(self) -> Iterator[str]:
        """Descriptions of the requirements that depend on other pods."""
        if self.near:
            yield "its affinity to other pods"
        if self.apart:
            yield "its anti-affinity to other pods"
        if self.spread:
            yield "its topology spread constraints"
        if self.ports:
            yield f"whether host port {', '.join(str(one.port) for one in self.ports[:3])} is free"


NONE = Wishes()


def _has_ports(spec: Value) -> bool:
    return next(_ports(spec), None) is not None


def _ports(spec: Value) -> Iterator[HostPort]:
    """Yield a pod's host ports. With the host network, every port is a host port (Kubernetes: `GetHostPorts`)."""
    sidecars = (one for one in spec["initContainers"].sequence() if one["restartPolicy"].data == "Always")
    is_on_host = spec["hostNetwork"].boolean()
    for container in (*sidecars, *spec["containers"].sequence()):
        for one in container["ports"].sequence():
            port = one["hostPort"].integer(0) or (one["containerPort"].integer(0) if is_on_host else 0)
            if port:
                yield HostPort(one["hostIP"].text(_ANY_ADDRESS), one["protocol"].text("TCP"), port)
