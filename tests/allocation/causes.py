"""Finds the faults that explain why an answer from Kubernetes differs from ours."""

from collections.abc import Collection
from itertools import combinations

from devicecore.domain.allocation import DeviceKey
from devicecore.domain.allocation.errors import UndecidedError
from devicecore.domain.allocation.faults import KubernetesFault
from devicecore.domain.allocation.kubernetes import KubernetesSearch
from devicecore.domain.allocation.search import Situation


def outcome(situation: Situation, faults: frozenset[KubernetesFault]) -> tuple[tuple[int, str, DeviceKey], ...] | None:
    """Return the claim, request and device of each result of a search with these faults, or None if there is none."""
    search = KubernetesSearch(situation, faults)
    try:
        found = search.run()
    except UndecidedError:
        return None
    return tuple((one.claim, one.request.result_name, one.key) for one in search.taken) if found else None


def causes(
    situation: Situation, answer: object, known: Collection[KubernetesFault] = tuple(KubernetesFault)
) -> tuple[frozenset[KubernetesFault], ...]:
    """Return the smallest sets of at most three of the `known` faults for which a search finds `answer`.

    The result is empty if there is no such set.
    """
    for size in range(4):
        sets = map(frozenset, combinations([one for one in KubernetesFault if one in known], size))
        if found := tuple(faults for faults in sets if outcome(situation, faults) == answer):
            return found
    return ()
