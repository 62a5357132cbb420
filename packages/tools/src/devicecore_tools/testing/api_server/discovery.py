"""Discovery: the requests a client makes to find out what an API server serves.

Law: the documents name exactly the kinds and versions that the server serves.
"""

from devicecore_tools.testing.api_server import status
from devicecore_tools.testing.api_server.kinds import Kind, Kinds
from devicecore_tools.testing.api_server.status import Json

PROBES = ("healthz", "livez", "readyz")


def is_discovery(path: str) -> bool:
    """Return whether a path is for discovery (versions, groups, a group's contents) or health rather than objects."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] in (["api"], ["apis"]):
        return len(parts) <= (2 if parts[0] == "api" else 3)
    return not parts or parts[0] in {"version", *PROBES}


def discovery(path: str, kinds: Kinds) -> Json:
    """Return the document at a path for discovery or health. Raises ApiError if there is no such document."""
    versions = kinds.versions
    match [part for part in path.split("/") if part]:
        case ["version"]:
            return {"major": "1", "minor": "36", "gitVersion": "v1.36.2+devicecore", "platform": "linux/amd64"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": list(versions[""])}
        case ["apis"]:
            groups = [_group(group, served) for group, served in versions.items() if group]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", group] if group in versions:
            return {"apiVersion": "v1", **_group(group, versions[group])}
        case ["api", version] if version in versions[""]:
            return _resources(kinds, "", version)
        case ["apis", group, version] if version in versions.get(group, ()):
            return _resources(kinds, group, version)
        case _:
            raise status.unknown_group()


def _group(group: str, versions: tuple[str, ...]) -> Json:
    served = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"kind": "APIGroup", "name": group, "versions": served, "preferredVersion": served[0]}


def _resources(served: Kinds, group: str, version: str) -> Json:
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    kinds = served.in_version(group, version)
    whole = [
        _resource(kind, kind.plural, verbs)
        | {"singularName": kind.kind.lower()}
        | ({"shortNames": list(kind.short_names)} if kind.short_names else {})
        for kind in kinds
    ]
    parts = [_resource(kind, f"{kind.plural}/status", ["get", "patch", "update"]) for kind in kinds if kind.has_status]
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": whole + parts}


def _resource(kind: Kind, name: str, verbs: list[str]) -> Json:
    return {"name": name, "singularName": "", "namespaced": kind.namespaced, "kind": kind.kind, "verbs": verbs}
