"""Finds the nodes from which existing pods exclude a pod.

Law: the answers equal those of the scheduler's filters NodePorts, PodTopologySpread and InterPodAffinity, in their
order and words.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from devicecore.domain.text import foreign_text
from devicecore_tools.doctor.pod.machines import BoundPod, Obstacle
from devicecore_tools.doctor.pod.pod_terms import PodTerm, SpreadConstraint, Wishes
from devicecore_tools.doctor.reading.cluster_nodes import ClusterNode, Labels

_NEAR, _APART, _SPREAD, _EXISTING = "near", "apart", "spread", "existing"

_Key = tuple[str, int | str, str]
"""What a count is for: the kind of rule, the index of the pod's term or constraint, and the value of its label.

For the terms of existing pods, the label itself takes the place of the index.
"""


class Neighbors:
    """The effects of a cluster's existing pods on an additional pod.

    Args:
        name: the pod's `namespace/name`.
        labels: the pod's labels.
        wishes: the pod's requirements concerning other pods.
        nodes: the nodes by name.
        bound: the pods of each node.
        namespaces: the labels of namespaces.
        is_counted: whether a node counts toward a spread constraint.
        ask: raises QuestionGivenUpError if the question has exceeded its budget.
    """

    def __init__(
        self,
        name: str,
        labels: Labels,
        wishes: Wishes,
        nodes: Mapping[str, ClusterNode],
        bound: Mapping[str, Sequence[BoundPod]],
        namespaces: Mapping[str, Labels],
        is_counted: Callable[[SpreadConstraint, ClusterNode], bool],
        ask: Callable[[], None],
    ) -> None:
        self._namespace, self._labels, self._wishes = name.partition("/")[0], labels, wishes
        self._nodes, self._bound, self._namespaces = nodes, bound, namespaces
        self._is_counted, self._ask = is_counted, ask
        self._all: Counter[_Key] = Counter()
        for machine in nodes.values():
            for number, one in enumerate(wishes.spread):
                if self._has_all_keys(machine) and is_counted(one, machine):
                    self._all[_SPREAD, number, machine.target.labels[one.topology_key]] += 0
            self._all.update(self._counts(machine, bound.get(machine.target.name, ())))
        self._values = [
            [value for kind, of, value in self._all if (kind, of) == (_SPREAD, number)]
            for number in range(len(wishes.spread))
        ]

    def obstacles(self, node: ClusterNode, pods: Sequence[BoundPod]) -> Iterator[Obstacle]:
        """Yield the spread and affinity rules that the pod would violate on a node with these pods."""
        now = self._bound.get(node.target.name, ())
        change: Counter[_Key] = Counter()
        if pods is not now:
            change.update(self._counts(node, pods))
            change.subtract(Counter(self._counts(node, now)))
        yield from (one for one in (self._uneven(node, change), self._apart(node, pods, change)) if one is not None)

    def taken_port(self, pods: Iterable[BoundPod]) -> Obstacle | None:
        """Return an obstacle if one of these pods uses a host port that the pod requests, or None."""
        says = "node(s) didn't have free ports for the requested pod ports"
        for one in pods:
            for wanted in self._wishes.ports:
                if any(wanted.excludes(other) for other in one.wishes.ports):
                    name = foreign_text(one.name)
                    return Obstacle(says, f"pod {name} uses host port {wanted.port}", f"pod {name} ends")
        return None

    def _uneven(self, node: ClusterNode, change: Mapping[_Key, int]) -> Obstacle | None:
        says = "node(s) didn't match pod topology spread constraints"
        for number, one in enumerate(self._wishes.spread):
            key, value = foreign_text(one.topology_key), node.target.labels.get(one.topology_key)
            if value is None:
                missing = f"{says} (missing required label)"
                return Obstacle(missing, f"the node has no label {key}", f"the node has the label {key}")
            counts = {
                each: self._all[_SPREAD, number, each] + change.get((_SPREAD, number, each), 0)
                for each in self._values[number]
            }
            least = min(counts.values(), default=0) if len(counts) >= one.min_domains else 0
            here = counts.get(value, 0)
            if here + one.selects(self._labels) - least > one.max_skew:
                shown = foreign_text(f"{key}={value}")
                numbers = (
                    f"{shown} has {here:,} matching pods, the emptiest domain has {least:,}, and maxSkew is "
                    f"{one.max_skew}"
                )
                if len(counts) < one.min_domains:
                    numbers = (
                        f"{shown} has {here:,} matching pods, and {len(counts)} of {one.min_domains} domains exist"
                    )
                return Obstacle(says, numbers, f"whenUnsatisfiable for {key} is ScheduleAnyway, or maxSkew is larger")
        return None

    def _apart(self, node: ClusterNode, pods: Sequence[BoundPod], change: Mapping[_Key, int]) -> Obstacle | None:
        labels = node.target.labels

        def count(kind: str, of: int | str, value: str) -> int:
            return self._all[kind, of, value] + change.get((kind, of, value), 0)

        for number, one in enumerate(self._wishes.near):
            key, value = foreign_text(one.topology_key), labels.get(one.topology_key)
            if value is None or (not count(_NEAR, number, value) and not self._is_first(change)):
                place = foreign_text(f"{key}={value}")
                because = f"no pod that the pod's affinity requires runs at {place}"
                if value is None:
                    because = f"the node has no label {key}"
                return Obstacle(
                    "node(s) didn't match pod affinity rules", because, "a pod that the affinity requires runs there"
                )
        for number, one in enumerate(self._wishes.apart):
            value = labels.get(one.topology_key)
            if value is not None and count(_APART, number, value):
                place = foreign_text(f"{one.topology_key}={value}")
                which = self._first_at(one.topology_key, value, pods, node, partial(self._is_meant, one))
                because = f"{which}, which the pod's anti-affinity excludes, runs at {place}"
                return Obstacle("node(s) didn't match pod anti-affinity rules", because, f"{which} ends")
        for key, value in labels.items():
            if count(_EXISTING, key, value):
                which = self._first_at(key, value, pods, node, partial(self._wants_apart, key))
                because = f"{which} at {foreign_text(f'{key}={value}')} has anti-affinity with pods like this one"
                says = "node(s) didn't satisfy existing pods anti-affinity rules"
                return Obstacle(says, because, f"{which} ends")
        return None

    def _is_meant(self, term: PodTerm, pod: BoundPod) -> bool:
        namespace = pod.name.partition("/")[0]
        return term.matches(namespace, pod.labels, self._namespaces.get(namespace, {}))

    def _wants_apart(self, key: str, pod: BoundPod) -> bool:
        of_own = self._namespaces.get(self._namespace, {})
        return any(
            one.topology_key == key and one.matches(self._namespace, self._labels, of_own) for one in pod.wishes.apart
        )

    def _first_at(
        self, key: str, value: str, pods: Sequence[BoundPod], node: ClusterNode, is_it: Callable[[BoundPod], bool]
    ) -> str:
        """Return the name of the first matching pod in a domain: on this node, or otherwise on another node."""
        others = (
            one
            for name, machine in self._nodes.items()
            if name != node.target.name and machine.target.labels.get(key) == value
            for one in self._bound.get(name, ())
        )
        found = next((one.name for one in (*pods, *others) if is_it(one)), "")
        return f"pod {foreign_text(found)}" if found else "a pod"

    def _is_first(self, change: Mapping[_Key, int]) -> bool:
        """Return whether the pod may be the first of its kind: it requires pods like itself, but none exist."""
        known = {*(key for key in self._all if key[0] == _NEAR), *(key for key in change if key[0] == _NEAR)}
        if any(self._all[key] + change.get(key, 0) for key in known):
            return False
        return self._is_near(self._namespace, self._labels)

    def _is_near(self, namespace: str, labels: Labels) -> bool:
        """Return whether a pod matches all affinity terms (Kubernetes: `podMatchesAllAffinityTerms`)."""
        of_namespace = self._namespaces.get(namespace, {})
        return all(one.matches(namespace, labels, of_namespace) for one in self._wishes.near)

    def _has_all_keys(self, node: ClusterNode) -> bool:
        return all(one.topology_key in node.target.labels for one in self._wishes.spread)

    def _counts(self, node: ClusterNode, pods: Sequence[BoundPod]) -> Iterator[_Key]:
        """Yield a key for each count that a pod on a node increases by one."""
        labels, wishes = node.target.labels, self._wishes
        of_own = self._namespaces.get(self._namespace, {})
        spread = [
            (number, one)
            for number, one in enumerate(wishes.spread)
            if not one.counts_none and self._has_all_keys(node) and self._is_counted(one, node)
        ]
        for pod in pods:
            self._ask()
            namespace = pod.name.partition("/")[0]
            for number, one in spread:
                if namespace == self._namespace and not pod.is_ending and one.selects(pod.labels):
                    yield _SPREAD, number, labels[one.topology_key]
            if wishes.near and self._is_near(namespace, pod.labels):
                yield from ((_NEAR, number, value) for number, value in _places(wishes.near, labels))
            for number, value in _places(wishes.apart, labels):
                if wishes.apart[number].matches(namespace, pod.labels, self._namespaces.get(namespace, {})):
                    yield _APART, number, value
            for term in pod.wishes.apart:
                if term.topology_key in labels and term.matches(self._namespace, self._labels, of_own):
                    yield _EXISTING, term.topology_key, labels[term.topology_key]


def _places(terms: Sequence[PodTerm], labels: Labels) -> Iterator[tuple[int, str]]:
    return ((number, labels[one.topology_key]) for number, one in enumerate(terms) if one.topology_key in labels)
