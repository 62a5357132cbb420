"""Reduces a case with a difference to a size that people can read."""

import time
from collections.abc import Callable, Iterator

from tests.oracle.asking import Json

LISTS = ("steps", "later", "providers", "claims", "slices", "classes")
"""The lists in a case from which elements are removed."""


def smaller(case: Json, differs: Callable[[Json], bool], until: float) -> Json:
    """Remove elements from a case as long as its answers still differ, until a deadline.

    A case that can no longer be played, because a step needs a removed element, counts as having no difference.
    """
    found = True
    while found and time.time() < until:
        found = False
        for candidate in _candidates(case):
            if time.time() > until:
                break
            if _is_different(candidate, differs):
                case, found = candidate, True
                break
    return case


def _candidates(case: Json) -> Iterator[Json]:
    """Yield the case without some elements of one list, at first without half of them.

    The last elements are left out first, because they need earlier ones.
    """
    for name in LISTS:
        listed = case.get(name) or ()
        size = len(listed) // 2
        while size:
            for end in range(len(listed), size - 1, -size):
                yield {**case, name: [*listed[: end - size], *listed[end:]]}
            size //= 2


def _is_different(case: Json, differs: Callable[[Json], bool]) -> bool:
    try:
        return differs(case)
    except Exception:  # noqa: BLE001 - skip cases that cannot be played
        return False
