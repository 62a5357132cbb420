"""The kinds of objects that the API server serves, as a table.

Law: a path or a field selector that this table does not name is refused.
"""

from collections.abc import Callable, Iterator

from attrs import field, frozen

from devicecore.testing.api_server import claim_rules, slice_rules
from devicecore.testing.api_server.causes import label_causes, no_causes, subdomain_causes
from devicecore.testing.api_server.status import ApiError, Cause, Json, bad_request

Rules = Callable[[Json, Json | None], Iterator[Cause]]
"""What is wrong with a new object, given the old one, or None when it is created."""

RESOURCE_GROUP = "resource.k8s.io"


@frozen
class Kind:
    """One kind. `selectable` are the paths that field selectors know, `causes` and `status_causes` its rules."""

    kind: str
    plural: str
    group: str = ""
    short_names: tuple[str, ...] = ()
    namespaced: bool = False
    has_status: bool = False
    has_generation: bool = False
    selectable: tuple[str, ...] = ("metadata.name",)
    causes: Rules = field(default=no_causes, eq=False)
    status_causes: Callable[[Json, Json], Iterator[Cause]] = field(default=no_causes, eq=False)

    @property
    def resource(self) -> str:
        """The plural with its group, as messages have it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """The `apiVersion` that objects are kept in."""
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def qualified(self) -> str:
        """The kind with its group, as messages about invalid objects have it."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def name_causes(self, name: str) -> Iterator[Cause]:
        """What is wrong with the name of an object."""
        check = label_causes if self.plural == "namespaces" else subdomain_causes
        yield from check(name, "metadata.name")

    def unknown_selector(self, path: str, api_version: str) -> ApiError:
        """The refusal of a field selector that the kind does not know."""
        if self.plural == "resourceslices":
            return bad_request(f"field label not supported for {api_version}, Kind={self.kind}: {path}")
        known = ", ".join(f'"{one}"' for one in ("metadata.name", "metadata.namespace"))
        return bad_request(f'"{path}" is not a known field selector: only {known}')


_NAMED = ("metadata.name", "metadata.namespace")

NAMESPACE = Kind("Namespace", "namespaces", short_names=("ns",), has_status=True)
KINDS = (
    NAMESPACE,
    Kind("Node", "nodes", short_names=("no",), has_status=True),
    Kind(
        "Pod",
        "pods",
        short_names=("po",),
        namespaced=True,
        has_status=True,
        selectable=(*_NAMED, "spec.nodeName", "status.phase"),
    ),
    Kind("Event", "events", short_names=("ev",), namespaced=True, selectable=_NAMED),
    Kind(
        "ResourceSlice",
        "resourceslices",
        RESOURCE_GROUP,
        has_generation=True,
        selectable=("metadata.name", "spec.nodeName", "spec.driver"),
        causes=slice_rules.slice_causes,
    ),
    Kind(
        "ResourceClaim",
        "resourceclaims",
        RESOURCE_GROUP,
        namespaced=True,
        has_status=True,
        selectable=_NAMED,
        causes=claim_rules.claim_causes,
        status_causes=claim_rules.claim_status_causes,
    ),
    Kind(
        "ResourceClaimTemplate",
        "resourceclaimtemplates",
        RESOURCE_GROUP,
        namespaced=True,
        selectable=_NAMED,
        causes=claim_rules.template_causes,
    ),
    Kind("DeviceClass", "deviceclasses", RESOURCE_GROUP, has_generation=True, causes=claim_rules.class_causes),
)


def kind_of(plural: str, group: str = "") -> Kind | None:
    """The kind that is served under a plural of a group; None if there is none."""
    return next((kind for kind in KINDS if (kind.plural, kind.group) == (plural, group)), None)
