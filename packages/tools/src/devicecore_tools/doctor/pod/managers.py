"""Adds the CPU manager and the memory manager to a node on which a pod is tried.

Law: if a node's managers could refuse the pod, the trial includes them or says why their decision is unknown.
"""

from collections.abc import Iterable

from attrs import evolve

from devicecore.domain.documents import Value
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.look.values import PodSeen
from devicecore_tools.doctor.pod.trial import TrialNode
from devicecore_tools.doctor.reading.managers import ManagersSeen
from devicecore_tools.numa import NumaError, PinnedNode, may_be_pinned

_NOT_LOOKED_AT = "what the kubelet's CPU manager and memory manager decide, because"


def with_managers(node: TrialNode, seen: ManagersSeen | None, facts: Facts, manifest: Value) -> TrialNode:
    """Return the node with the managers that `seen` describes. `manifest` is the pod to be tried."""
    if seen is None:
        return node
    pod = manifest.data if isinstance(manifest.data, dict) else {}
    is_pinned = may_be_pinned(pod, cpus=seen.cpus_are_pinned, memory=seen.memory_is_pinned)
    if not seen.has_policy:
        return node
    problem, managers = seen.problem, None
    try:
        runs = facts.look.pod_resources.value is not None
        managers = None if problem else PinnedNode.of(seen.configuration, seen.machine, seen.files, pod, runs=runs)
    except NumaError as error:
        problem = str(error)
    if managers is None:
        return evolve(node, managers_unknown=f"{_NOT_LOOKED_AT} {problem}") if is_pinned else node
    managers = managers.without(_gone(facts, managers.holders.keys()))
    topology = evolve(managers.topology, policy=node.topology.policy, scope=node.topology.scope)
    return evolve(node, managers=managers, topology=topology)


def _gone(facts: Facts, holders: Iterable[str]) -> set[str]:
    """Return the holders that have certainly ended. A kubelet frees their resources before it admits a pod."""
    seen = _uids(facts.look.pods.value or ())
    here = _uids((*facts.pods.here, *facts.pods.perhaps_here))
    is_complete = facts.look.pods.value is not None and not facts.pods.why_incomplete
    return {uid for uid in holders if uid not in here and (is_complete or uid in seen)}


def _uids(pods: Iterable[PodSeen]) -> set[str]:
    return {uid for one in pods for uid in (str(one.pod.uid), *one.other_uids)}
