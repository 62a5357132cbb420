"""What an API server accepts as a CustomResourceDefinition, as far as this server relies on it.

Law: a definition with no recorded cause can be served.
"""

from devicecore_tools.testing.api_server.causes import Field
from devicecore_tools.testing.api_server.status import Cause, Json

_OWN_GROUPS = tuple(f"{name}.k8s.io" for name in ("apiextensions", "coordination", "events", "resource"))


def definition_causes(new: Json, _: Json | None) -> list[Cause]:
    """Return what is wrong with a CustomResourceDefinition."""
    whole = Field("", new)
    spec = whole["spec"]
    names, group = spec["names"], spec["group"]
    group.subdomain()
    if group.value and (group.value in _OWN_GROUPS or "." not in group.value):
        group.invalid("should be a domain with at least one dot, and not one of Kubernetes' own")
    names["plural"].label()
    names["kind"].require()
    spec["scope"].one_of(("Cluster", "Namespaced"))
    spec["versions"].require()
    for version in spec["versions"]:
        version["name"].label()
    expected = f"{names['plural'].value}.{group.value}"
    if whole["metadata"]["name"].value != expected:
        whole["metadata"]["name"].invalid(f'must be spec.names.plural+"."+spec.group: {expected}')
    return whole.causes
