"""Runs a scheduler's filters for nodes and one pod, up to the filter for claims' devices.

Law: the filters are a scheduler's filters, in its order, and reasons use its words. Checks that need unread objects
are reported as not checked, or as assumptions.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property

from attrs import evolve

from devicecore.domain.allocation import QuestionGivenUpError, UnallocatedClaim
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text, listed
from devicecore_tools.budget import Budget
from devicecore_tools.doctor.pod.cluster_objects import OF_A_CLASS, ClusterObjects
from devicecore_tools.doctor.pod.machines import NOTHING, BoundPod, Obstacle
from devicecore_tools.doctor.pod.neighbors import Neighbors
from devicecore_tools.doctor.pod.pod_terms import SpreadConstraint
from devicecore_tools.doctor.pod.scheduling import PodAsks
from devicecore_tools.doctor.reading.cluster_nodes import ClusterNode

_ALIKE = 0.8  # how similar two resource names must be for one to be a likely typo of the other
_MOST = 1_000  # with more resources than this, no similar name is searched for


class Filters:
    """The results of filters for the nodes of a cluster and one pod."""

    def __init__(self, asks: PodAsks, objects: ClusterObjects, budget: Budget) -> None:
        self._asks, self._objects = asks, objects
        self._meant: dict[str, str] = {}
        self._namespace = asks.name.partition("/")[0]
        made = {f"{self._namespace}/{name}": claim for name, claim in asks.made.items()}
        self._volumes = volumes = (
            evolve(objects.volumes, claims={**made, **objects.volumes.claims}) if made else (objects.volumes)
        )
        self._problem = volumes.problem(self._namespace, asks.volumes) if asks.volumes and volumes.are_read else None
        self._users: dict[str, dict[str, str]] = {}  # by node and claim, a pod that uses the claim
        wanted = {f"{self._namespace}/{name}" for name in asks.volumes}
        if wanted:
            for node, pods in (objects.bound or {}).items():
                self._users[node] = {
                    key: one.name for one in self._others(pods) for key in used_by([one]) if key in wanted
                }
        self._neighbors = None
        if objects.bound is not None:
            bound = {
                name: [one for one in self._others(pods) if not one.is_nominated]
                if any(one.is_nominated for one in pods)
                else self._others(pods)
                for name, pods in objects.bound.items()
            }
            names, machines, wishes = objects.namespaces or {}, objects.machines, asks.wishes
            if self._needs_namespaces:
                wishes = evolve(wishes, near=(), apart=())  # `unjudged` names the requirements that need namespaces
            with suppress(QuestionGivenUpError):  # once the budget is spent, no node is tried
                self._neighbors = Neighbors(
                    asks.name, asks.own_labels, wishes, machines, bound, names, self._is_counted, budget.ask
                )

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Descriptions of what else a scheduler considers that is not checked here."""
        asks, objects = self._asks, self._objects
        found = list(asks.unjudged)
        if objects.bound is None:
            found += [f"{one}: no pods were read (add --pods or --kubeconfig)" for one in asks.wishes.names]
        elif self._needs_namespaces:
            found.append("the pods of the namespaces that its affinity selects: no Namespace was read")
        if asks.volumes and not objects.volumes.are_read:
            names = foreign_text(listed(asks.volumes, 3))
            found.append(f"where the volumes of PersistentVolumeClaim {names} can be used: {_GET_VOLUMES}")
        return tuple(found)

    @property
    def assumed(self) -> tuple[str, ...]:
        """The assumptions made because the relevant objects were not read."""
        asks, found = self._asks, []
        if self._objects.bound is None:
            found.append("no other pod uses its CPU, memory or devices: no pods were read (add --pods or --kubeconfig)")
        wanted = [one for one, size in asks.sizes.items() if size.nanos and one not in self._objects.extended]
        bare = [name for name, node in self._objects.machines.items() if not node.allocatable] if wanted else []
        if bare:
            found.append(
                f"node {foreign_text(listed(bare))} has enough {foreign_text(listed(wanted))}: the Node has no "
                "status.allocatable (kubectl get nodes -o json prints it)"
            )
        if asks.volumes and self._volumes.are_read:
            found += [f"{what}: {_GET_VOLUMES}" for what in self._volumes.unread(self._namespace, asks.volumes)]
        return tuple(found)

    @property
    def _needs_namespaces(self) -> bool:
        """Whether the result depends on unread namespace labels."""
        wishes = self._asks.wishes
        return self._objects.namespaces is None and any(one.needs_namespaces for one in (*wishes.near, *wishes.apart))

    def needs_node(self, served: Iterable[str], claims: Sequence[UnallocatedClaim]) -> str:
        """Return the pod's requirements that cannot be checked without a Node, or an empty string."""
        return self._asks.needs_node(served) or ("" if claims else "what the pod requests")

    def obstacles(self, node: ClusterNode, served: Iterable[str]) -> Iterator[Obstacle]:
        """Yield the reasons why a node is ineligible, the scheduler's reason first.

        `served` are the resources that a claim serves on this node.
        """
        if self._problem is not None:
            yield self._problem
        bound = (self._objects.bound or {}).get(node.target.name, ())
        pods, found = self._others(bound), False
        for one in (*self._asks.obstacles(node), *self._beside(node, pods, served)):
            found = True
            yield one
        there = [one for one in pods if not one.is_nominated]
        if not found and len(there) < len(pods):
            # The node must pass without the nominated pods, too (scheduler: `RunFilterPluginsWithNominatedPods`).
            yield from self._beside(node, there, served)

    def victims(self, node: ClusterNode, served: Iterable[str]) -> tuple[tuple[BoundPod, ...], int]:
        """Return the pods that a scheduler preempts to make room on a node, and how many of them a budget protects.

        Return no pods if preemption does not help. The scheduler removes all pods of lower priority and then restores
        as many as fit, starting with pods that a PodDisruptionBudget protects, most important first (scheduler:
        `SelectVictimsOnNode`).
        """
        asks = self._asks
        bound = self._others((self._objects.bound or {}).get(node.target.name, ()))
        lower = sorted((one for one in bound if one.priority < asks.priority), key=_importance)  # no nominated pods
        kept = [one for one in bound if one.priority >= asks.priority]
        is_settled = self._problem is not None or any(asks.obstacles(node))
        if is_settled or not asks.preempts or not lower or any(self._beside(node, kept, served)):
            return (), 0
        protected = self._objects.protected(lower)
        chosen = []
        for one in sorted(lower, key=lambda one: one not in protected):
            if any(self._beside(node, [*kept, one], served)):
                chosen.append(one)
            else:
                kept.append(one)
        return tuple(chosen), sum(one in protected for one in chosen)

    def _others(self, pods: Sequence[BoundPod]) -> Sequence[BoundPod]:
        """Return the pods without the pod itself, which may already run, and without less important nominated pods."""
        uid, priority = self._asks.uid, self._asks.priority

        def counts(one: BoundPod) -> bool:
            return not (uid and one.uid == uid) and not (one.is_nominated and one.priority < priority)

        return pods if all(map(counts, pods)) else [*filter(counts, pods)]

    def _is_counted(self, one: SpreadConstraint, node: ClusterNode) -> bool:
        """Return whether a node counts for a spread constraint (scheduler: `matchNodeInclusionPolicies`)."""
        is_selected = not one.honors_affinity or self._asks.selects(node)
        return is_selected and (not one.honors_taints or self._asks.tolerates(node))

    def _beside(self, node: ClusterNode, pods: Sequence[BoundPod], served: Iterable[str]) -> Iterator[Obstacle]:
        """Yield obstacles to running the pod on a node with these pods: ports, resources, volumes, then affinity."""
        asks, volumes, neighbors = self._asks, self._volumes, self._neighbors
        if neighbors is not None and (taken := neighbors.taken_port(pods)) is not None:
            yield taken
        yield from self._shortages(node, pods, served)
        if asks.volumes and volumes.are_read and self._problem is None:
            name, wanted = node.target.name, [f"{self._namespace}/{one}" for one in asks.volumes]
            users = {key: pod for of, used in self._users.items() if of != name for key, pod in used.items()}
            users |= {key: one.name for one in pods for key in used_by([one])}
            found = (
                volumes.restriction(self._namespace, asks.volumes, users),
                volumes.limit(name, wanted, used_by(pods)),
                volumes.obstacle(self._namespace, asks.volumes, node.target),
            )
            yield from (one for one in found if one is not None)
        if neighbors is not None:
            yield from neighbors.obstacles(node, pods)

    def _shortages(self, node: ClusterNode, others: Sequence[BoundPod], served: Iterable[str]) -> Iterator[Obstacle]:
        """Yield an obstacle for each resource that a node has too little of (scheduler: `fitsRequest`)."""
        if not node.allocatable:  # the resources of a node that only slices name are unknown
            return
        asks = self._asks
        used = {name: sum(one.sizes.get(name, NOTHING).nanos for one in others) for name in asks.sizes}
        left = node.allocatable.get("pods")
        if left is not None and self._objects.bound is not None and len(others) + 1 > left.whole:
            yield Obstacle(
                "Too many pods", f"the node already has {len(others)} of {left} pods", "a pod on the node ends"
            )
        for name, size in asks.sizes.items():
            has = node.allocatable.get(name, NOTHING)
            if name not in served and size.nanos and size.nanos > has.nanos - used[name]:
                lacking = _lacks(node, name, size, has, used[name], asks.overhead.get(name, NOTHING))
                hint = "" if has.nanos else self._instead(name)
                yield evolve(lacking, because=f"{lacking.because}{hint}") if hint else lacking

    @cached_property
    def _resources(self) -> frozenset[str]:
        """The extended resources that nodes have, or that classes serve."""
        of_nodes = (node.allocatable.items() for node in self._objects.machines.values())
        found = (name for of in of_nodes for name, size in of if size.nanos and "/" in name)
        return frozenset((*found, *self._objects.extended))

    def _instead(self, name: str) -> str:
        """Return a hint about an extended resource that no node has, or an empty string."""
        if name not in self._meant:
            known = self._resources
            is_asked = "/" in name and name not in known and len(known) <= _MOST
            close = get_close_matches(name, sorted(known), 1, _ALIKE) if is_asked else []
            meant = f". Did you mean {foreign_text(close[0])}?" if close else ""
            own = name.removeprefix(OF_A_CLASS)
            is_of_class = name not in known and name != own and bool(self._objects.classes)
            self._meant[name] = f": there is no DeviceClass {foreign_text(own)}{meant}" if is_of_class else meant
        return self._meant[name]


def used_by(pods: Iterable[BoundPod]) -> Iterator[str]:
    """Yield the PersistentVolumeClaims that pods use, `namespace/name`."""
    for one in pods:
        namespace = one.name.partition("/")[0]
        yield from (f"{namespace}/{name}" for name in one.volumes)


_GET_VOLUMES = (
    "pass the output of kubectl get pvc,pv,storageclasses,csinodes,csidrivers,csistoragecapacities -A -o json as an "
    "additional file for --slices, or use --kubeconfig"
)


def _lacks(node: ClusterNode, name: str, size: Quantity, has: Quantity, used: int, overhead: Quantity) -> Obstacle:
    shown, rest = foreign_text(name), Quantity(max(0, has.nanos - used), has.binary)
    amount = f"has {has}" if not used else f"has {rest} of {has} left"
    own = Quantity(max(0, rest.nanos - overhead.nanos), rest.binary)
    cure = f"the pod's request for {shown} is at most {own}" if own.nanos else f"the pod requests no {shown}"
    if overhead.nanos > rest.nanos:
        cure = f"the pod has no RuntimeClass whose overhead for {shown} is {overhead}"
    elif overhead.nanos:
        cure += f", apart from the {overhead} that its RuntimeClass adds"
    if used:
        cure += f", or pods on node {node.target.name} end"
    capacity = node.capacity.get(name, NOTHING)
    if "/" in name and capacity.nanos > has.nanos and size.nanos <= capacity.nanos - used:
        amount += f", although its capacity is {capacity}: devices are unhealthy, or their plugin is gone"
        cure = f"the node's devices of {shown} are healthy again: run devicecore doctor on {node.target.name}"
    return Obstacle(
        f"Insufficient {shown}", f"the pod requests {size}, but the node {amount}", cure, is_far=not rest.nanos
    )


def _importance(pod: BoundPod) -> tuple[int, str]:
    """Return a pod's sort key, which puts the most important pod first (scheduler: `MoreImportantPod`)."""
    return -pod.priority, pod.started or "~"


def cost_of(victims: Sequence[BoundPod], broken: int) -> tuple[int, int, int, int, tuple[int, ...]]:
    """Return a scheduler's sort key for nodes' victims, cheapest first (`pickOneNodeForPreemption`)."""
    highest = max(one.priority for one in victims)
    earliest = min(one.started for one in victims if one.priority == highest)
    total = sum(one.priority + 2**31 for one in victims)
    return broken, highest, total, len(victims), tuple(-ord(letter) for letter in earliest)
