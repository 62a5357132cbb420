"""Finds the reasons why an API server refuses a new pod, and adds to a pod what an API server adds.

Law: the cluster's objects can be a reason to refuse only pods that are not stored yet, because a stored pod has already
been accepted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from attrs import field, frozen

from devicecore.domain.allocation import UnallocatedClaim
from devicecore.domain.allocation.model import MAX_RESULTS
from devicecore.domain.allocation.reading import toleration_of
from devicecore.domain.checks import repeated
from devicecore.domain.documents import Value
from devicecore.domain.model import Pod, is_extended_resource
from devicecore.domain.names import is_dns_subdomain
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text, listed
from devicecore_tools.doctor.pod.machines import NOTHING, containers_of, limits_of, sizes_of
from devicecore_tools.doctor.pod.pod_terms import REQUIRED
from devicecore_tools.doctor.reading.cluster_nodes import Sizes

REFUSES = "the API server refuses the pod"

_HUGE = "hugepages-"
_COMPUTE = ("cpu", "memory")
_OVERCOMMITTED = ("cpu", "memory", "ephemeral-storage")
"""The resources whose limit may exceed the request, and whose values need not be integers."""

_VALUES: Mapping[str, Callable[[int], bool]] = {
    "In": lambda count: count > 0,
    "NotIn": lambda count: count > 0,
    "Exists": lambda count: count == 0,
    "DoesNotExist": lambda count: count == 0,
    "Gt": lambda count: count == 1,
    "Lt": lambda count: count == 1,
}
"""For each operator of a node affinity, the allowed number of values."""


@frozen
class Quota:
    """A ResourceQuota: how much of each resource its namespace may use, and how much it uses."""

    namespace: str
    name: str
    hard: Sizes
    used: Sizes
    scopes: Sequence[tuple[str, str, frozenset[str]]] = ()

    @classmethod
    def of(cls, item: Value) -> "Quota":
        """Return the quota in a ResourceQuota object. Raises DocumentError if a field has the wrong type."""
        metadata, spec, status = item["metadata"], item["spec"], item["status"]
        hard = spec["hard"] if status["hard"].data is None else status["hard"]
        scopes = [(one.text(""), "Exists", frozenset[str]()) for one in spec["scopes"].sequence()]
        scopes += [
            (
                one["scopeName"].text(""),
                one["operator"].text(""),
                frozenset(value.text("") for value in one["values"].sequence()),
            )
            for one in spec["scopeSelector"]["matchExpressions"].sequence()
        ]
        limits, used = ({name: one.amount() for name, one in of.mapping().items()} for of in (hard, status["used"]))
        return cls(metadata["namespace"].text("default"), metadata["name"].text(""), limits, used, tuple(scopes))

    def counts(self, spec: Value) -> bool:
        """Return whether a pod counts toward the quota (Kubernetes: `podMatchesScopeFunc`)."""
        named = spec["priorityClassName"].text("")
        is_best_effort = not any(name in _COMPUTE for name in (*sizes_of(spec), *limits_of(spec)))
        for scope, operator, values in self.scopes:
            found = {
                "Terminating": spec["activeDeadlineSeconds"].data is not None,
                "NotTerminating": spec["activeDeadlineSeconds"].data is None,
                "BestEffort": is_best_effort,
                "NotBestEffort": not is_best_effort,
                "PriorityClass": {
                    "Exists": bool(named),
                    "DoesNotExist": not named,
                    "In": named in values,
                    "NotIn": named not in values,
                }.get(operator, False),
            }
            if not found.get(scope, False):
                return False
        return True

    def exceeded(self, asked: Sizes) -> str:
        """Return an API server's message if one more object would exceed the quota, or otherwise an empty string.

        A resource that the object does not request is ignored, even if its usage exceeds the quota.
        """
        over = [
            name
            for name, size in asked.items()
            if size.nanos and name in self.hard and size.nanos + self._used(name).nanos > self.hard[name].nanos
        ]
        parts = (
            ",".join(f"{foreign_text(name)}={of(name)}" for name in sorted(over))
            for of in (asked.__getitem__, self._used, self.hard.__getitem__)
        )
        words = zip(("requested", "used", "limited"), parts, strict=True)
        return f"exceeded quota: {self.name}, {', '.join(f'{word}: {part}' for word, part in words)}" if over else ""

    def _used(self, name: str) -> Quantity:
        return self.used.get(name, NOTHING)


_TOLERATED_FOR_A_WHILE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""The node taints that a new pod tolerates for 300 s unless it sets a different duration."""


@frozen
class Admission:
    """The cluster's objects that decide whether an API server accepts a new pod.

    Attributes:
        runtimes: the RuntimeClasses by name.
        quotas: the quotas of all namespaces.
        limited: the namespaces with a LimitRange.
        kinds: the kinds whose list was read, even if it was empty.
        priorities: the names of the PriorityClasses.
    """

    runtimes: Mapping[str, Value] = field(factory=dict)
    quotas: Sequence[Quota] = ()
    limited: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    priorities: frozenset[str] = frozenset()

    def admitted(self, pod: Value) -> Value:
        """Return a new pod with an API server's additions: the fields of its RuntimeClass, if known, and tolerations.

        These are the additions of the admission plugins RuntimeClass and DefaultTolerationSeconds. A stored pod is
        returned unchanged.
        """
        if _is_stored(pod):
            return pod
        spec = pod["spec"]
        found = self.runtimes.get(spec["runtimeClassName"].text(""))
        tolerations = [one.data for one in spec["tolerations"].sequence()]
        more: dict[str, object] = {}
        if found is not None:
            scheduling = found["scheduling"]
            tolerations += (one.data for one in scheduling["tolerations"].sequence())
            more = {
                "nodeSelector": _joined(spec["nodeSelector"], scheduling["nodeSelector"]),
                "overhead": _joined(found["overhead"]["podFixed"]),
                "runtimeClassName": None,  # the pod now contains what the RuntimeClass adds
            }
        added = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in _TOLERATED_FOR_A_WHILE]
        more["tolerations"] = [*tolerations, *added]
        return Value({**_joined(pod), "spec": {**_joined(spec), **more}}, pod.place, pod.step)

    def why_refused(self, pod: Value) -> str:
        """Return why the cluster's objects make an API server refuse a new pod, or an empty string."""
        if _is_stored(pod):
            return ""
        spec, namespace = pod["spec"], pod["metadata"]["namespace"].text("default")
        named, runtime = spec["priorityClassName"].text(""), spec["runtimeClassName"].text("")
        if named and "PriorityClass" in self.kinds and named not in self.priorities:
            return f"{REFUSES}: no PriorityClass with name {foreign_text(named, 100)} was found"
        if runtime and "RuntimeClass" in self.kinds and runtime not in self.runtimes:
            return f'{REFUSES}: pod rejected: RuntimeClass "{foreign_text(runtime, 100)}" not found'
        for one in self.quotas:
            if one.namespace == namespace and one.counts(spec):
                problem = one.exceeded(_usage(spec))
                if not problem and namespace not in self.limited and (lacking := _unwritten(spec, one)):
                    problem = f"failed quota: {one.name}: must specify {lacking}"
                if problem:
                    # An administrator can raise the quota; a user can delete the objects that use it.
                    return f"{REFUSES}: {problem}. See: kubectl describe quota {one.name} --namespace {namespace}"
        return ""

    def why_claim_refused(self, claim: UnallocatedClaim, namespace: str) -> str:
        """Return why an API server would refuse a claim created for a pod, or an empty string."""
        asked: dict[str, Quantity] = {"count/resourceclaims.resource.k8s.io": Quantity(10**9)}
        for ways in claim.requests:
            most: dict[str, int] = {}
            for one in ways:
                count = MAX_RESULTS if one.mode == "All" else one.count
                most[one.device_class] = max(most.get(one.device_class, 0), count)
            for name, count in most.items():
                key = f"{name}.deviceclass.resource.k8s.io/devices"
                asked[key] = Quantity(asked.get(key, NOTHING).nanos + count * 10**9)
        problems = (one.exceeded(asked) for one in self.quotas if one.namespace == namespace)
        return next(filter(None, problems), "")

    def unjudged(self, pod: Value) -> Iterator[str]:
        """Yield a note if a LimitRange may change or refuse a new pod, because LimitRanges are not evaluated here."""
        namespace = pod["metadata"]["namespace"].text("default")
        if not _is_stored(pod) and namespace in self.limited:
            yield f"the requests and limits that a LimitRange in namespace {foreign_text(namespace)} adds or refuses"

    def assumed(self, pod: Value) -> Iterator[str]:
        """Yield the assumptions made about a new pod because the relevant objects were not read."""
        lacking = [one for one in ("ResourceQuota", "LimitRange") if one not in self.kinds]
        if not _is_stored(pod) and lacking:
            namespace = foreign_text(pod["metadata"]["namespace"].text("default"))
            kinds = " and no ".join(lacking)
            get = f"kubectl get resourcequotas,limitranges -n {namespace} -o json"
            yield (
                f"namespace {namespace} has no {kinds}, because none was read: pass the output of {get} as an "
                "additional file for --slices"
            )


def _is_stored(pod: Value) -> bool:
    return pod["metadata"]["uid"].data is not None


def _joined(*sections: Value) -> dict[str, object]:
    return {key: one.data for section in sections for key, one in section.mapping().items()}


def _usage(spec: Value) -> Sizes:
    """Return how much of a quota a pod uses (Kubernetes: `PodUsageFunc`)."""
    one = Quantity(10**9)
    found = {"pods": one, "count/pods": one}
    for name, size in sizes_of(spec).items():
        found[f"requests.{name}"] = size
        if name in _OVERCOMMITTED or name.startswith(_HUGE):
            found[name] = size
    return found | {f"limits.{name}": size for name, size in limits_of(spec).items() if name in _OVERCOMMITTED}


def _unwritten(spec: Value, quota: Quota) -> str:
    """Return a value that a quota requires but containers lack, or "" (`enforcePodContainerConstraints`)."""
    for name in () if spec["resources"].data else sorted(quota.hard):
        section, _, resource = name.rpartition(".")
        if resource in _COMPUTE and section in {"", "requests", "limits"}:
            lacking = [
                one["name"].text("")
                for one in containers_of(spec)
                if all(one["resources"][of][resource].data is None for of in _written_in(section))
            ]
            if lacking:
                return f"{name} for: {listed(lacking, 3)}"
    return ""


def _written_in(section: str) -> tuple[str, ...]:
    return ("limits",) if section == "limits" else ("requests", "limits")  # a limit without a request implies a request


def why_invalid(pod: Value) -> str:
    """Return why any API server would refuse the pod, or an empty string.

    Raises DocumentError if a field has the wrong type.
    """
    name = pod["metadata"]["name"].text("")
    if name and not is_dns_subdomain(name):
        return f"{REFUSES}: its name is {foreign_text(name, 300)}: expected lowercase letters, digits, - and ."
    problem = next(_problems(pod["spec"]), "")
    return f"{REFUSES}: {problem}" if problem else ""


_POLICIES = ("", "Always", "OnFailure", "Never")
_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")


def _problems(spec: Value) -> Iterator[str]:
    if (twice := repeated(one["name"].text("") for one in containers_of(spec))) is not None:
        yield f"it has two containers named {foreign_text(twice, 100)}"
    if (policy := spec["restartPolicy"].text("")) not in _POLICIES:
        yield f"its restartPolicy is {foreign_text(policy, 100)}: expected Always, OnFailure or Never"
    yield from _of_tolerations(spec["tolerations"])
    for one in containers_of(spec):
        yield from (
            f"container {foreign_text(one['name'].text(''), 100)} {problem}" for problem in _of_sizes(one["resources"])
        )
    if spec["resources"].data:
        yield from (f"the pod {problem}" for problem in _of_pod_sizes(spec))
    yield from _of_ports(spec)
    yield from _of_spread(spec["topologySpreadConstraints"])
    yield from _of_affinity(spec["affinity"]["nodeAffinity"][REQUIRED])
    if spec["nodeName"].text("") and spec["schedulingGates"].sequence():
        yield "it names a node and has scheduling gates. Remove either nodeName or schedulingGates"


def _of_sizes(resources: Value) -> Iterator[str]:
    """Yield errors in a container's requests and limits (Kubernetes: `validateResourceRequirements`)."""
    limits, requests = (
        {name: one.amount() for name, one in resources[which].mapping().items()} for which in ("limits", "requests")
    )
    for word, sizes in (("limit", limits), ("request", requests)):
        for name, size in sizes.items():
            shown = f"has a {word} of {size} for {foreign_text(name, 100)}"
            if size.nanos < 0:
                yield f"{shown}: expected 0 or more"
            elif (is_extended_resource(name) or name.startswith(_HUGE)) and not size.is_whole:
                yield f"{shown}: expected a whole number"
    for name, size in requests.items():
        limit = limits.get(name)
        if limit is not None and size.nanos > limit.nanos and name in _OVERCOMMITTED:
            shown = f"has a request of {size} for {name}, but a limit of {limit}"
            yield f"{shown}. Write a request that does not exceed the limit"
        elif name.startswith(_HUGE) and (limit is None or size.nanos != limit.nanos):
            yield f"has a request of {size} for {name}: expected the same number under limits"
    names = {*limits, *requests}
    if any(one.startswith(_HUGE) for one in names) and not names & {*_COMPUTE}:
        yield "has huge pages but neither CPU nor memory. Write a request or a limit for CPU or memory"


def _of_pod_sizes(spec: Value) -> Iterator[str]:
    """Yield errors in pod-level requests and limits (Kubernetes: `validatePodResources`)."""
    own = spec["resources"]
    of_containers = sizes_of(spec, with_own=False)
    for which in ("limits", "requests"):
        for name, one in own[which].mapping().items():
            if name not in _COMPUTE and not name.startswith(_HUGE):
                yield (
                    f"has {foreign_text(name, 100)} in spec.resources.{which}: expected cpu, memory or huge pages. "
                    "Move it to a container"
                )
            size = one.amount()
            if which == "requests" and name in of_containers and of_containers[name].nanos > size.nanos:
                shown = f"has a request of {size} for {name} in spec.resources"
                yield f"{shown}, but its containers request {of_containers[name]}"
            if which == "limits":
                for container in spec["containers"].sequence():
                    limit = container["resources"]["limits"][name]
                    if limit.data is not None and limit.amount().nanos > size.nanos:
                        called = foreign_text(container["name"].text(""), 100)
                        yield (
                            f"has a limit of {size} for {name}, but its container {called} has a limit of "
                            f"{limit.amount()}"
                        )
    yield from _of_sizes(own)


def _of_ports(spec: Value) -> Iterator[str]:
    """Yield errors for host ports that are used twice, or that differ from the container port on the host network."""
    seen = set()
    is_on_host = spec["hostNetwork"].boolean()
    for container in containers_of(spec):
        for one in container["ports"].sequence():
            port = one["hostPort"].integer(0)
            key = one["protocol"].text("TCP"), one["hostIP"].text(""), port
            if port and key in seen:
                yield f"host port {port} is used twice"
            if port and is_on_host and one["containerPort"].integer(0) != port:
                yield f"hostPort {port} differs from its containerPort, although the pod uses the host network"
            seen.add(key)


def _of_tolerations(tolerations: Value) -> Iterator[str]:
    """Yield errors in a pod's tolerations (Kubernetes: `ValidateTolerations`)."""
    for one in map(toleration_of, tolerations.sequence()):
        shown = foreign_text(one.key, 100) or "all keys"
        if one.operator == "Exists" and one.value:
            yield f"its toleration of {shown} has operator Exists and a value. Remove the value, or write Equal"
        if not one.key and one.operator != "Exists":
            yield "a toleration has no key: expected the operator Exists"
        if one.effect not in _EFFECTS:
            yield f"the effect of its toleration of {shown} is {foreign_text(one.effect, 100)}"


def _of_spread(constraints: Value) -> Iterator[str]:
    for one in constraints.sequence():
        skew, action = one["maxSkew"].integer(0), one["whenUnsatisfiable"].text("")
        if skew < 1:
            yield f"maxSkew of a topology spread constraint is {skew}: expected 1 or more"
        if not one["topologyKey"].text(""):
            yield "a topology spread constraint has no topologyKey"
        if action not in {"DoNotSchedule", "ScheduleAnyway"}:
            yield f"expected DoNotSchedule or ScheduleAnyway as whenUnsatisfiable, got {foreign_text(action, 100)}"
        if one["minDomains"].data is not None and (action != "DoNotSchedule" or one["minDomains"].integer(0) < 1):
            yield "minDomains of a spread constraint must be 1 or more, and needs whenUnsatisfiable: DoNotSchedule"


def _of_affinity(required: Value) -> Iterator[str]:
    """Yield errors in a required node affinity (Kubernetes: `ValidateNodeSelectorRequirement`)."""
    if required.data is not None and not required["nodeSelectorTerms"].sequence():
        yield "its required node affinity has no nodeSelectorTerms"
    for term in required["nodeSelectorTerms"].sequence():
        for one in term["matchExpressions"].sequence():
            operator, count = one["operator"].text(""), len(one["values"].sequence())
            key = foreign_text(one["key"].text(""), 100)
            if operator not in _VALUES:
                known = ", ".join(_VALUES)
                yield f"expected one of {known} as the operator of {key}, got {foreign_text(operator, 100)}"
            elif not _VALUES[operator](count):
                yield f"operator {operator} of {key} in its affinity cannot have {count} values"


def limited_namespaces(items: Iterable[Value]) -> frozenset[str]:
    """Return the namespaces that have a LimitRange."""
    return frozenset(one["metadata"]["namespace"].text("default") for one in items)


def why_refused(pod: Pod) -> str:
    """Return why an API server would refuse a pod because of its device requests, or an empty string."""
    for one in pod.in_start_order:
        for resource, size in one.requests.items():
            if is_extended_resource(resource):
                limit = f"a limit of {one.limits[resource]}" if resource in one.limits else "no limit for it"
                return (
                    f"{REFUSES}: container {one.name} requests {size} of {resource} but has {limit}. Write the "
                    "resource under limits, with the same number"
                )
    return _refused_claims(pod)


def _refused_claims(pod: Pod) -> str:
    entries = [claim.name for claim in pod.claims]
    twice = repeated(entries)
    for claim in pod.claims:
        if claim.claim is None and claim.template is None:
            return (
                f"{REFUSES}: its claim {claim.name} sets neither resourceClaimName nor "
                "resourceClaimTemplateName. Write one of them next to its name; before Kubernetes 1.31, they were in "
                "the field source"
            )
        if claim.claim is not None and claim.template is not None:
            return f"{REFUSES}: its claim {claim.name} names both a claim and a template. Write only one of them"
        if claim.name == twice:
            return f"{REFUSES}: spec.resourceClaims lists {foreign_text(claim.name, 100)} twice"
    for container in pod.in_start_order:
        whole = {used.name for used in container.claims if not used.request}
        for number, used in enumerate(container.claims):
            before = container.claims[:number]
            if used in before or (used.name in whole and any(one.name == used.name for one in before)):
                name = foreign_text(used.name, 100)
                return f"{REFUSES}: container {container.name} lists the claim {name} twice in resources.claims"
            if used.name not in entries:
                near = get_close_matches(used.name, entries, 1)
                hint = f"Did you mean {near[0]}?" if near else f"The pod has {listed(entries, 3) or 'none'}."
                wrong = f"container {container.name} uses the claim {foreign_text(used.name, 100)}"
                return f"{REFUSES}: {wrong}, which is not in spec.resourceClaims. {hint}"
    return ""
