"""Makes a case that differs smaller, so that a person can read it."""

import time
from collections.abc import Callable, Iterator

from tests.oracle.asking import Json

LISTS = ("steps", "later", "providers", "claims", "slices", "classes")
"""The parts of a case of which one after another is left out."""


def smaller(case: Json, differs: Callable[[Json], bool], until: float) -> Json:
    """Leave out elements of a case while it still differs, until a time of the clock.

    A case that cannot be asked anymore, because a step needs one that is left out, counts as one that does not differ.
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
    """Yield the case without some elements: first without many, from the end, because later ones need earlier ones."""
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
    except Exception:  # noqa: BLE001 - what cannot be played is not asked
        return False
