"""What an API server accepts as Nodes, Leases and Events, and what it lets a node's identity do.

Law: an identity `system:node:NAME` has access to its own Node, its Lease, its ResourceSlices, and the pods bound to
NAME, with their claims, and may write Events. Everything else is refused with kube-apiserver 1.36's wording.
"""

import json
import re
from collections.abc import Callable, Mapping

from attrs import frozen

from devicecore_tools.testing.api_server.causes import Field, list_of, mapping_of, objects_in
from devicecore_tools.testing.api_server.status import Cause, Json

NODE_USER = "system:node:"
"""The prefix of a node's user name."""

_LEASES = "kube-node-lease"
_NOT_READY, _UNREACHABLE = (
    {"key": f"node.kubernetes.io/{name}", "effect": "NoSchedule"} for name in ("not-ready", "unreachable")
)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_OWN_LABELS = re.compile(
    r"(kubernetes\.io/(hostname|os|arch)|beta\.kubernetes\.io/(os|arch|instance-type)|node\.kubernetes\.io/instance-type"
    r"|(topology|failure-domain\.beta)\.kubernetes\.io/(zone|region)|(.*\.)?(kubelet|node)\.kubernetes\.io/.*)"
)
NODE_VERBS: Mapping[str, str] = {
    "nodes": "create get list watch update patch",
    "nodes/status": "update patch",
    "pods": "create get list watch delete",
    "pods/status": "update patch",
    "pods/eviction": "create",
    "leases.coordination.k8s.io": "create get update patch delete",
    "events": "create update patch",
    "events.events.k8s.io": "create update patch",
    "resourceclaims.resource.k8s.io": "get",
    "resourceslices.resource.k8s.io": "create get list watch update patch delete deletecollection",
}
"""The verbs that a node's identity may use on each resource."""


def add_taint(node: Json) -> None:
    """Taint a new Node that does not say whether it is ready, as the admission plugin TaintNodesByCondition does."""
    if _readiness(node) is None:
        _set_taint(node, _NOT_READY)


def follow_readiness(node: Json) -> None:
    """Make the taint of a Node match its condition Ready, as the node lifecycle controller does after a moment.

    A Node without this condition stays as it is.
    """
    ready = _readiness(node)
    if ready is not None:
        _set_taint(node, {"True": None, "Unknown": _UNREACHABLE}.get(ready, _NOT_READY))


def _readiness(node: Json) -> str | None:
    conditions = objects_in(mapping_of(node.get("status")).get("conditions"))
    return next((str(one.get("status")) for one in conditions if one.get("type") == "Ready"), None)


def _set_taint(node: Json, wanted: Json | None) -> None:
    """Give a Node at most one of the two taints. The old `spec` may belong to an earlier version, so it is copied."""
    spec = mapping_of(node.get("spec"))
    before = list_of(spec.get("taints"))
    after = [one for one in before if one == wanted or one not in (_NOT_READY, _UNREACHABLE)]
    if wanted is not None and wanted not in before:
        after.append(wanted)
    if after != before:
        others = {name: part for name, part in spec.items() if name != "taints"}
        node["spec"] = {**others, **({"taints": after} if after else {})}


def node_causes(new: Json, _: Json | None) -> list[Cause]:
    """Return what is wrong with a Node."""
    node, seen = Field("", new), set[object]()
    for part in ("capacity", "allocatable"):
        for _name, size in node["status"][part].entries():
            if str(size.value).startswith("-"):
                size.invalid("must be greater than or equal to 0")
    taints = Field("metadata.taints", node["spec"]["taints"].value, node.causes)  # kube-apiserver names this path
    for taint in taints:
        taint["key"].label_key()
        taint["value"].label_value()
        taint["effect"].one_of(_EFFECTS)
        pair = taint["key"].value, taint["effect"].value
        if pair in seen:
            taint.add(f"Duplicate value: {json.dumps(taint.value)}", "taints must be unique by key and effect pair")
        seen.add(pair)
    return node.causes


def lease_causes(new: Json, _: Json | None) -> list[Cause]:
    """Return what is wrong with a Lease."""
    spec = Field("", new)["spec"]
    seconds = spec["leaseDurationSeconds"]
    if "leaseDurationSeconds" in mapping_of(spec.value):
        seconds.at_least(1, "must be greater than 0")
    for time in (spec["renewTime"], spec["acquireTime"]):
        if time.value and not _TIME.fullmatch(str(time.value)):
            time.invalid("expected a time with microseconds")
    return spec.causes


def event_causes(new: Json, _: Json | None) -> list[Cause]:
    """Return what is wrong with an Event of the core group."""
    event = Field("", new)
    about = event["involvedObject"]["namespace"]
    if (about.value or "default") != event["metadata"]["namespace"].value:
        about.invalid("does not match event.namespace", about.value or "default")
    return event.causes


def new_event_causes(new: Json, _: Json | None) -> list[Cause]:
    """Return what is wrong with an Event of `events.k8s.io`."""
    event = Field("", new)
    for name in ("eventTime", "reportingController", "reportingInstance", "action", "reason"):
        event[name].require()
    if new.get("type") not in ("Normal", "Warning"):
        event["type"].invalid("must be Normal or Warning")
    return event.causes


@frozen
class NodeRequest:
    """A request by a node's identity.

    `resource` includes the group and the subresource, as in `pods/status`. `namespace` and `name` are empty if they are
    not in the path. `find` looks up an object by its kind's plural, namespace and name.
    """

    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    query: Mapping[str, str]
    body: Json
    find: Callable[[str, str, str], Json | None]

    @property
    def node(self) -> str:
        """The name of the node."""
        return self.user.removeprefix(NODE_USER)

    @property
    def plural(self) -> str:
        """The plural of the requested kind, with its group."""
        return self.resource.partition("/")[0]

    @property
    def about(self) -> str:
        """The name of the requested object, from the path or the object to create."""
        return self.name or str(mapping_of(self.body.get("metadata")).get("name"))

    def selects(self, path: str) -> bool:
        """Return whether the field selector selects only objects that belong to the node."""
        return f"{path}={self.node}" in self.query.get("fieldSelector", "").replace("==", "=").split(",")

    def refusal(self) -> str:
        """Return why a node's identity may not make this request, or an empty string if the request is allowed."""
        if self.verb not in NODE_VERBS.get(self.resource, "").split():
            return "the node role does not allow this verb"
        rule = _RULES.get(self.plural.partition(".")[0])
        return rule(self) if rule else ""


def _on_node(asked: NodeRequest) -> str:
    node, spec = asked.node, mapping_of(asked.body.get("spec"))
    if asked.verb in ("list", "watch"):
        own = asked.selects("metadata.name")
        return "" if own else f"node '{node}' cannot read all nodes, only its own Node object"
    if asked.about != node:
        return f'node "{node}" is not allowed to modify node "{asked.about}"'
    before = asked.find("nodes", "", node) or {}
    old, new = (mapping_of(mapping_of(of.get("metadata")).get("labels")) for of in (before, asked.body))
    changed = sorted(label for label, value in new.items() if old.get(label) != value and "kubernetes.io/" in label)
    if foreign := [label for label in changed if not _OWN_LABELS.fullmatch(label)]:
        return f'node "{node}" is not allowed to modify labels: {", ".join(foreign)}'
    if asked.name and "taints" in spec and spec["taints"] != mapping_of(before.get("spec")).get("taints"):
        return f'node "{node}" is not allowed to modify taints'
    return ""


def _on_pod(asked: NodeRequest) -> str:
    if asked.verb in ("list", "watch"):
        own = asked.selects("spec.nodeName")
        return "" if own else "can only list/watch pods with spec.nodeName field selector"
    if asked.verb == "create" and not asked.name:
        annotations = mapping_of(mapping_of(asked.body.get("metadata")).get("annotations"))
        own = "kubernetes.io/config.mirror" in annotations
        return "" if own else f'pod does not have "kubernetes.io/config.mirror" annotation, node "{asked.node}"'
    pod = asked.find("pods", asked.namespace, asked.name)
    return "" if pod is None else _related(asked, pod)


def _on_claim(asked: NodeRequest) -> str:
    claim = asked.find("resourceclaims", asked.namespace, asked.name) or {}
    users = objects_in(mapping_of(claim.get("status")).get("reservedFor"))
    pods = (asked.find("pods", asked.namespace, str(user.get("name"))) for user in users)
    return min((_related(asked, pod or {}) for pod in pods), default=_related(asked, {}))


def _related(asked: NodeRequest, pod: Json) -> str:
    own = mapping_of(pod.get("spec")).get("nodeName") == asked.node
    return "" if own else f"no relationship found between node '{asked.node}' and this object"


def _on_lease(asked: NodeRequest) -> str:
    if asked.namespace != _LEASES:
        return f'can only access leases in the "{_LEASES}" system namespace'
    return "" if asked.about == asked.node else "can only access node lease with the same name as the requesting node"


def _on_slice(asked: NodeRequest) -> str:
    if asked.verb in ("list", "watch", "deletecollection"):
        own = asked.selects("spec.nodeName")
        return "" if own else "can only list/watch/deletecollection resourceslices with spec.nodeName field selector"
    found = asked.find("resourceslices", "", asked.name) if asked.name else asked.body
    own = found is None or mapping_of(found.get("spec")).get("nodeName") == asked.node
    return "" if own else "can only access ResourceSlice with the same NodeName as the requesting node"


_RULES: Mapping[str, Callable[[NodeRequest], str]] = {
    "nodes": _on_node,
    "pods": _on_pod,
    "leases": _on_lease,
    "resourceslices": _on_slice,
    "resourceclaims": _on_claim,
}
"""Functions that return why a node's identity may not make a request, or an empty string, by the kind's plural."""
