"""Requests that are answered at once: what a path refers to, and what each verb does with it.

Law: a body that is not an object of the path's kind changes nothing.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from attrs import frozen

from devicecore.domain.text import foreign_text
from devicecore_tools.testing.api_server import status
from devicecore_tools.testing.api_server.causes import mapping_of
from devicecore_tools.testing.api_server.faults import Request
from devicecore_tools.testing.api_server.json_patches import json_patched
from devicecore_tools.testing.api_server.kinds import Kind, Kinds
from devicecore_tools.testing.api_server.list_options import check_list, number
from devicecore_tools.testing.api_server.patching import merged, strategically_merged
from devicecore_tools.testing.api_server.selectors import Selector, field_selector, label_selector
from devicecore_tools.testing.api_server.status import ApiError, Json, JsonValue
from devicecore_tools.testing.api_server.store import ObjectPlace, ObjectStore
from devicecore_tools.testing.api_server.versions import as_kept, as_served

JSON, PROTOBUF = "application/json", "application/vnd.kubernetes.protobuf"

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

MAX_DEPTH = 100
"""The maximum nesting of a body. A large object has about 15 levels."""
_APPLY, _JSON_PATCH = "application/apply-patch+yaml", "application/json-patch+json"
_MERGE, _STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
_SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

_ANSWERED_BY_STATUS = frozenset({"configmaps", "customresourcedefinitions", "events", "leases", "nodes", "secrets"})
"""The kinds whose deletion returns no object once the object is gone."""


@frozen
class Target:
    """The target of a path: a kind, one or all of its objects, and perhaps a subresource."""

    kind: Kind
    version: str
    namespace: str | None
    name: str | None
    subresource: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` of the objects in this path."""
        return f"{self.kind.group}/{self.version}" if self.kind.group else self.version

    @property
    def place(self) -> ObjectPlace:
        """The storage key of the object that the path names. Parts that the path does not contain are empty."""
        return ObjectPlace(self.kind, self.namespace or "", self.name or "")

    @property
    def is_status(self) -> bool:
        """Whether the path names the object's status."""
        return self.subresource == "status"

    @property
    def resource(self) -> str:
        """The resource in RBAC's terms."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


def target_of(path: str, kinds: Kinds) -> Target:
    """Parse a path. `kinds` are the served kinds. Raises ApiError if nothing is served at this path."""
    match [unquote(part) for part in path.strip("/").split("/")]:
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            raise status.unknown_group()
    if version not in kinds.versions.get(group, ()):
        raise status.unknown_group()
    namespace = None
    if rest[:1] == ["namespaces"] and rest[2:] not in ([], ["status"]):
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3:
        raise status.unknown_path()
    plural, name, subresource = rest[0], rest[1] if len(rest) > 1 else None, "".join(rest[2:])
    kind = kinds.of(plural, group, version)
    if kind is None or (namespace is not None and not kind.namespaced):
        raise status.unknown_path()
    if subresource and not (subresource == "status" and kind.has_status) and subresource not in kind.actions:
        raise status.unknown_path()
    if name is not None and kind.namespaced and namespace is None:
        raise status.unknown_path()
    return Target(kind, version, namespace, name, subresource)


def carry_out(store: ObjectStore, request: Request, target: Target) -> tuple[int, Json]:
    """Execute a request. Return the code and body of the answer. Raises ApiError if the request is refused."""
    operations = _ACTIONS.get(target.subresource, _ON_ONE) if target.name is not None else _ON_MANY
    is_spread = target.kind.namespaced and target.namespace is None and request.verb != "list"
    if request.verb not in operations or is_spread:
        message = "the server does not allow this method on the requested resource"
        raise status.generic(405, "MethodNotAllowed", message)
    options = mapping_of(request.body) if request.verb.startswith("delete") else {}
    dry = options.get("dryRun") or ([request.query["dryRun"]] if request.query.get("dryRun") else [])
    if dry not in ([], ["All"]):
        names = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}
        detail = f'{foreign_text(json.dumps(dry), 50)}: supported values: "All"'
        raise status.invalid_options(
            options=names.get(request.verb, "DeleteOptions"), field="dryRun", kind="Unsupported value", detail=detail
        )
    with store.rehearsal() if dry else store.transaction():
        is_new = request.verb == "create" or (request.verb in {"update", "patch"} and not store.has(target.place))
        answer = operations[request.verb](store, request, target)
    if dry and is_new:
        answer["metadata"].pop("resourceVersion", None)
    if target.name is not None and answer.get("kind") != "Status":
        answer = typed(answer, target)
    return (201 if is_new else 200), answer


def _list(store: ObjectStore, request: Request, target: Target) -> Json:
    found, version = store.select(target.kind, target.namespace, selector_of(target, request.query))
    check_list(request.query, version)
    return _listed(found, version, target)


def _create(store: ObjectStore, request: Request, target: Target) -> Json:
    kind, namespace, _ = target.place
    return typed(store.create(kind, namespace, _object(request.body, target), manager=_manager(request)), target)


def _delete_collection(store: ObjectStore, request: Request, target: Target) -> Json:
    with store.transaction():
        version = store.version  # the returned list has the version before the deletion
        deleted = store.delete_collection(target.kind, target.namespace, selector_of(target, request.query))
        return _listed(deleted, version, target)


def _get(store: ObjectStore, _: Request, target: Target) -> Json:
    return store.get(target.place)


def _update(store: ObjectStore, request: Request, target: Target) -> Json:
    body = _object(request.body, target)
    if target.kind.creates_on_update and not store.has(target.place):
        return store.create_by_update(target.place, body, manager=_manager(request))
    return store.update(target.place, body, in_status=target.is_status, manager=_manager(request))


def _delete(store: ObjectStore, request: Request, target: Target, body: object = None) -> Json:
    options = body if isinstance(body, dict) else mapping_of(request.body)
    asked = number(request.query, "gracePeriodSeconds") if "gracePeriodSeconds" in request.query else None
    grace = options.get("gracePeriodSeconds", asked)
    if not isinstance(grace, int | None):
        message = "json: cannot unmarshal into Go struct field DeleteOptions.gracePeriodSeconds of type int64"
        raise status.bad_request(message)
    deleted = store.delete(target.place, options.get("preconditions"), grace)
    if not (target.kind.is_custom or target.kind.plural in _ANSWERED_BY_STATUS) or store.has(target.place):
        return deleted
    told = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural}
    details = {name: text for name, text in told.items() if text} | {"uid": deleted["metadata"]["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _bind(store: ObjectStore, request: Request, target: Target) -> Json:
    store.bind(target.place, mapping_of(request.body))
    return _SUCCESS


def _evict(store: ObjectStore, request: Request, target: Target) -> Json:
    _delete(store, request, target, mapping_of(mapping_of(request.body).get("deleteOptions")))
    return _SUCCESS


def _patch(store: ObjectStore, request: Request, target: Target) -> Json:
    kind, body = target.kind, request.body
    in_status, manager = target.is_status, _manager(request)
    content = request.headers.get("Content-Type", "").partition(";")[0]
    if content == _APPLY:
        if "fieldManager" not in request.query:
            detail = "is required for apply patch"
            raise status.invalid_options(
                options="PatchOptions", field="fieldManager", kind="Required value", detail=detail
            )
        force = request.query.get("force") == "true"
        return store.apply(target.place, _object(body, target), in_status=in_status, manager=manager, force=force)
    if "force" in request.query:
        detail = "may not be specified for non-apply patch"
        raise status.invalid_options(options="PatchOptions", field="force", kind="Forbidden", detail=detail)
    changes: dict[str, Callable[[Json], Json]] = {
        _JSON_PATCH: lambda before: _shallow(json_patched(before, body)),
        _MERGE: lambda before: dict(merged(before, _checked(body, target))),
        _STRATEGIC: lambda before: strategically_merged(before, _checked(body, target)),
    }
    if kind.is_custom:
        del changes[_STRATEGIC]
    if content not in changes:
        message = (
            "the body of the request was in an unknown format - accepted media types include: "
            f"{', '.join((*changes, _APPLY))}"
        )
        raise status.generic(415, "UnsupportedMediaType", message)

    def change(before: Json) -> Json:
        """Apply the change in the path's version."""
        changed = changes[content](as_served(before, kind.plural, target.version))
        return as_kept(changed, kind.plural, target.version)

    return store.patch(target.place, change, in_status=in_status, manager=manager)


Operation = Callable[[ObjectStore, Request, Target], Json]
_ON_MANY: Mapping[str, Operation] = {"list": _list, "create": _create, "deletecollection": _delete_collection}
_ON_ONE: Mapping[str, Operation] = {"get": _get, "update": _update, "patch": _patch, "delete": _delete}
_ACTIONS: Mapping[str, Mapping[str, Operation]] = {"binding": {"create": _bind}, "eviction": {"create": _evict}}


def selector_of(target: Target, query: Mapping[str, str]) -> Selector:
    """Return a predicate for the label and field selectors of a request. Raises ApiError if a selector is invalid."""
    by_field = field_selector(target.kind, query.get("fieldSelector", ""), target.api_version)
    by_label = label_selector(query.get("labelSelector", ""))
    return lambda value: by_field(value) and by_label(value)


def _manager(request: Request) -> str:
    return request.query.get("fieldManager") or request.headers.get("User-Agent", "unknown").partition("/")[0]


def parsed(body: bytes, content: str) -> JsonValue:
    """Return the parsed body of a request, or None if the request has no body.

    Raises ApiError unless the body is JSON, a protobuf object, or YAML where YAML is accepted.
    """
    if not body:
        return None
    if PROTOBUF in content:
        return _shallow(_from_protobuf(body))
    if "json" not in content and "yaml" not in content:
        accepted = f"{JSON}, {PROTOBUF}"
        message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
        raise ApiError(415, "UnsupportedMediaType", message)
    try:
        text = body.decode()
        read = json.loads(text, parse_float=_finite, parse_constant=_finite)
        if _SURROGATE.search(text):  # Go replaces half a surrogate pair with U+FFFD, which clients can read
            whole = json.dumps(read, ensure_ascii=False).encode("utf-16", "surrogatepass")
            read = json.loads(whole.decode("utf-16", "replace"))
    except (ValueError, RecursionError) as error:
        problem = str(error)
    else:
        return _shallow(read)
    if "yaml" in content:
        return _yaml(body)
    raise status.bad_request(f"couldn't get version/kind; json parse error: {problem}")


def _finite(text: str) -> float:
    """Parse a number that JSON can represent.

    NaN, Infinity and 1e999 are refused, because clients could not read them.
    """
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"cannot unmarshal number {foreign_text(text, 50)} into Go value of type float64")
    return number


def _from_protobuf(body: bytes) -> Json:
    from devicecore_tools.testing.wire.api_conversion import (  # loading protobuf takes time
        UnreadableKindError,
        object_from_protobuf,
    )

    try:
        return object_from_protobuf(body)
    except UnreadableKindError as error:
        raise ApiError(415, "UnsupportedMediaType", str(error)) from error
    except (ValueError, RecursionError) as error:
        raise status.bad_request(str(error)) from error


def _shallow(value: JsonValue) -> JsonValue:
    """Return the value if recursive functions can process it. Raises ApiError if the value is nested too deeply."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for one in level
            if isinstance(one, dict | list)
            for child in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return value
    raise status.bad_request(f"json parse error: it is nested deeper than {MAX_DEPTH} levels")


def _yaml(body: bytes) -> JsonValue:
    from devicecore.domain.errors import DocumentError
    from devicecore.system.documents import read_documents  # imported here, because few clients send YAML

    try:
        documents = read_documents(body.decode(), "the body")
    except (DocumentError, UnicodeDecodeError) as error:
        raise status.bad_request(f"error decoding YAML: {str(error)[:200]}") from error
    if len(documents) != 1:
        raise status.bad_request(f"error decoding YAML: expected one document, got {len(documents)}")
    return json.loads(json.dumps(documents[0].data))  # without the line numbers and aliases of a YAML document


def _object(body: JsonValue, target: Target) -> Json:
    """Return the body as an object of the path's kind, in the stored version."""
    return as_kept(_checked(body, target), target.kind.plural, target.version)


def _checked(body: JsonValue, target: Target) -> Json:
    """Return the body as an object of the path's kind, in the path's version."""
    if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict | None):
        raise status.bad_request("the object provided is unrecognized: expected a JSON object with metadata")
    for name, expected in (("apiVersion", target.api_version), ("kind", target.kind.kind)):
        if body.get(name, expected) != expected:
            message = f"the {name} in the data ({body[name]}) does not match the expected {name} ({expected})"
            raise status.bad_request(message)
    for name in ("spec", "status"):
        if not isinstance(body.get(name, {}), dict | None):
            message = f"json: cannot unmarshal into Go struct field {target.kind.kind}.{name}: expected an object"
            raise status.bad_request(message)
    return body


def typed(value: Json, target: Target) -> Json:
    """Return the object in the API version that the client requested."""
    served = as_served(value, target.kind.plural, target.version)
    return {**served, "apiVersion": target.api_version, "kind": target.kind.kind}


def _item(value: Json, target: Target) -> Json:
    """Return an object as a list item. Lists state their items' kind only once, except for custom resources."""
    item = typed(value, target)
    if not target.kind.is_custom:
        del item["apiVersion"], item["kind"]
    return item


def _listed(found: list[Json], version: int, target: Target) -> Json:
    return {
        "apiVersion": target.api_version,
        "kind": f"{target.kind.kind}List",
        "metadata": {"resourceVersion": str(version)},
        "items": [_item(value, target) for value in found],
    }
