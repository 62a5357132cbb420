"""What an API server accepts as a CustomResourceDefinition, as far as the server relies on it.

Law: a definition without a cause can be served.
"""

from collections.abc import Iterator

from devicecore_tools.testing.api_server.causes import (
    invalid_value,
    label_causes,
    list_of,
    mapping_of,
    objects_of,
    required,
    subdomain_causes,
    unsupported,
)
from devicecore_tools.testing.api_server.status import Cause, Json

_SCOPES = ("Cluster", "Namespaced")
_OWN_GROUPS = tuple(f"{name}.k8s.io" for name in ("apiextensions", "coordination", "events", "resource"))


def definition_causes(new: Json, _: Json | None) -> Iterator[Cause]:
    """What is wrong with a CustomResourceDefinition."""
    spec = mapping_of(new.get("spec"))
    names, group = mapping_of(spec.get("names")), spec.get("group")
    yield from subdomain_causes(group, "spec.group")
    if isinstance(group, str) and (group in _OWN_GROUPS or "." not in group):
        yield invalid_value("spec.group", group, "should be a domain with at least one dot, and not one of Kubernetes")
    yield from label_causes(names.get("plural"), "spec.names.plural")
    if not isinstance(names.get("kind"), str) or not names["kind"]:
        yield required("spec.names.kind")
    if spec.get("scope") not in _SCOPES:
        yield unsupported("spec.scope", spec.get("scope"), _SCOPES)
    if not list_of(spec.get("versions")):
        yield required("spec.versions")
    for field, version in objects_of(spec.get("versions"), "spec.versions"):
        yield from label_causes(version.get("name"), f"{field}.name")
    name = mapping_of(new.get("metadata")).get("name")
    expected = f"{names.get('plural')}.{group}"
    if name != expected:
        yield invalid_value("metadata.name", name, f'must be spec.names.plural+"."+spec.group: {expected}')
