"""The kinds of objects that the API server serves, as a table.

Law: a path or field selector that is not in this table is refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

from attrs import field, frozen

from devicecore_tools.testing.api_server import claim_rules, node_rules, pod_rules, slice_rules
from devicecore_tools.testing.api_server.causes import Field
from devicecore_tools.testing.api_server.definition_rules import definition_causes
from devicecore_tools.testing.api_server.status import ApiError, Cause, Json, UnknownKindError, bad_request

Rules = Callable[[Json, Json | None], Sequence[Cause]]
"""Returns what is wrong with a new object. The second argument is the old object, or None if there is none."""

RESOURCE_GROUP = "resource.k8s.io"


@frozen
class Kind:
    """A kind of object. `more_selectable` contains the paths that field selectors support in addition to names.

    Objects are stored in `version`. `causes` and `status_causes` are the kind's rules. `complete` sets the fields of a
    new object, and `set_defaults` those of every written object. `ending` starts a graceful deletion: it is passed the
    object, the number of seconds the client requested (or None), and the time. `needs_version` is whether an update
    must name the version it changes. With `creates_on_update`, an update creates an object that does not exist.
    """

    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    short_names: tuple[str, ...] = ()
    namespaced: bool = False
    has_status: bool = False
    has_generation: bool = False
    needs_version: bool = False
    creates_on_update: bool = False
    is_custom: bool = False
    actions: tuple[str, ...] = ()
    more_selectable: tuple[str, ...] = ()
    causes: Rules = field(default=lambda _new, _old: (), eq=False)
    status_causes: Callable[[Json, Json], Sequence[Cause]] = field(default=lambda _new, _old: (), eq=False)
    complete: Callable[[Json], None] = field(default=lambda _: None, eq=False)
    set_defaults: Callable[[Json], None] = field(default=lambda _: None, eq=False)
    ending: Callable[[Json, int | None, datetime], Json | None] | None = field(default=None, eq=False)

    @property
    def resource(self) -> str:
        """The plural and its group, as shown in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """The `apiVersion` that objects are stored in."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def selectable(self) -> tuple[str, ...]:
        """The paths that field selectors support."""
        return ("metadata.name", *(("metadata.namespace",) if self.namespaced else ()), *self.more_selectable)

    @property
    def qualified(self) -> str:
        """The kind and its group, as shown in messages about invalid objects."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def name_causes(self, name: str) -> list[Cause]:
        """Return what is wrong with an object's name."""
        field = Field("metadata.name", name)
        (field.label if self.plural == "namespaces" else field.subdomain)()
        return field.causes

    def unknown_selector(self, path: str, api_version: str) -> ApiError:
        """Return the error for a field selector that the kind does not support."""
        if self.plural == "resourceslices":
            return bad_request(f"field label not supported for {api_version}, Kind={self.kind}: {path}")
        if self.plural in ("events", "namespaces", "nodes", "pods", "secrets"):
            return bad_request(f"field label not supported: {path}")
        return bad_request(f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"')


NAMESPACE = Kind("Namespace", "namespaces", short_names=("ns",), has_status=True, more_selectable=("status.phase",))
DEFINITION = Kind(
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "apiextensions.k8s.io",
    short_names=("crd", "crds"),
    has_generation=True,
    causes=definition_causes,
)
KINDS = (
    NAMESPACE,
    Kind(
        "Node",
        "nodes",
        short_names=("no",),
        has_status=True,
        more_selectable=("spec.unschedulable",),
        causes=node_rules.node_causes,
        complete=node_rules.add_taint,
        set_defaults=node_rules.follow_readiness,
    ),
    Kind(
        "Pod",
        "pods",
        short_names=("po",),
        namespaced=True,
        has_status=True,
        has_generation=True,
        actions=("binding", "eviction"),
        more_selectable=(
            *(
                f"spec.{name}"
                for name in ("nodeName", "restartPolicy", "schedulerName", "serviceAccountName", "hostNetwork")
            ),
            *(f"status.{name}" for name in ("phase", "podIP", "nominatedNodeName")),
        ),
        causes=pod_rules.pod_causes,
        status_causes=pod_rules.pod_status_causes,
        complete=pod_rules.complete,
        set_defaults=pod_rules.set_defaults,
        ending=pod_rules.ending,
    ),
    Kind(
        "Event",
        "events",
        short_names=("ev",),
        namespaced=True,
        more_selectable=("reason", *(f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid"))),
        causes=node_rules.event_causes,
    ),
    Kind(
        "ResourceSlice",
        "resourceslices",
        RESOURCE_GROUP,
        has_generation=True,
        more_selectable=("spec.nodeName", "spec.driver"),
        causes=slice_rules.slice_causes,
    ),
    Kind(
        "ResourceClaim",
        "resourceclaims",
        RESOURCE_GROUP,
        namespaced=True,
        has_status=True,
        causes=claim_rules.claim_causes,
        status_causes=claim_rules.claim_status_causes,
    ),
    Kind(
        "ResourceClaimTemplate",
        "resourceclaimtemplates",
        RESOURCE_GROUP,
        namespaced=True,
        causes=claim_rules.claim_causes,
    ),
    Kind("DeviceClass", "deviceclasses", RESOURCE_GROUP, has_generation=True),
    Kind("ConfigMap", "configmaps", short_names=("cm",), namespaced=True),
    Kind("Secret", "secrets", namespaced=True, more_selectable=("type",)),
    Kind("ServiceAccount", "serviceaccounts", short_names=("sa",), namespaced=True),
    Kind(
        "Lease",
        "leases",
        "coordination.k8s.io",
        namespaced=True,
        needs_version=True,
        creates_on_update=True,
        causes=node_rules.lease_causes,
    ),
    Kind(
        "Event", "events", "events.k8s.io", namespaced=True, creates_on_update=True, causes=node_rules.new_event_causes
    ),
    DEFINITION,
)


class Kinds:
    """The kinds that one server serves: the kinds in the table, and the kinds that CustomResourceDefinitions define.

    Args:
        resource_versions: the served versions of `resource.k8s.io`, preferred version first.
    """

    def __init__(self, resource_versions: tuple[str, ...]) -> None:
        self._resource_versions = resource_versions
        self._kinds: dict[str, Kind] = {kind.resource: kind for kind in KINDS}
        self._served: dict[str, tuple[str, ...]] = {}

    @property
    def versions(self) -> Mapping[str, tuple[str, ...]]:
        """The versions in which each group is served, preferred version first. Each group has at least one version."""
        found: dict[str, tuple[str, ...]] = {}
        for kind in self._kinds.values():
            found[kind.group] = tuple(dict.fromkeys((*found.get(kind.group, ()), *self.versions_of(kind))))
        return {group: versions for group, versions in found.items() if versions}

    def versions_of(self, kind: Kind) -> tuple[str, ...]:
        """Return the versions in which a kind is served, preferred version first."""
        if kind.group == RESOURCE_GROUP:
            return self._resource_versions
        return self._served.get(kind.resource, (kind.version,))

    def in_version(self, group: str, version: str) -> list[Kind]:
        """Return the kinds of a group that are served in a version."""
        return [one for one in self._kinds.values() if one.group == group and version in self.versions_of(one)]

    def of(self, plural: str, group: str, version: str) -> Kind | None:
        """Return the kind that is served at a path, or None."""
        return next((kind for kind in self.in_version(group, version) if kind.plural == plural), None)

    def named(self, name: str, api_version: str = "") -> Kind:
        """Return the kind with this name or plural. If several kinds match, return the kind in `api_version`'s group.

        Raises UnknownKindError if there is no such kind.
        """
        found = [kind for kind in self._kinds.values() if name in (kind.kind, kind.plural)]
        if not found:
            raise UnknownKindError(name, tuple(dict.fromkeys(kind.kind for kind in self._kinds.values())))
        return next((kind for kind in found if kind.group == api_version.rpartition("/")[0]), found[0])

    def define(self, definition: Json) -> None:
        """Serve the kind that a valid CustomResourceDefinition defines."""
        spec = definition["spec"]
        served = [one for one in spec["versions"] if one.get("served")]
        kind = Kind(
            spec["names"]["kind"],
            spec["names"]["plural"],
            spec["group"],
            next((one["name"] for one in spec["versions"] if one.get("storage")), "v1"),
            tuple(spec["names"].get("shortNames") or ()),
            namespaced=spec["scope"] == "Namespaced",
            has_status=any("status" in (one.get("subresources") or {}) for one in served),
            has_generation=True,
            needs_version=True,
            is_custom=True,
        )
        # A request may be iterating over the previous mapping.
        self._served = {**self._served, kind.resource: tuple(one["name"] for one in served)}
        self._kinds = {**self._kinds, kind.resource: kind}

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """At the end of the block, undo the calls of `define` and `forget` made in it."""
        before = self._served, self._kinds
        try:
            yield
        finally:
            self._served, self._kinds = before

    def forget(self, definition: Json) -> Kind:
        """Stop serving a defined kind, and return it."""
        resource = definition["metadata"]["name"]
        before = self._kinds
        self._kinds = {name: kind for name, kind in before.items() if name != resource}
        return before[resource]
