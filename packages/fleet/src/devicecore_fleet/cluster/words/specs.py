"""Specs that several pods have in common, and results that depend on nothing but a spec.

Law: shared specs and the results that are cached for them are never changed.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar, TypeVarTuple, Unpack

from devicecore_fleet.cluster.words.patches import Json

MOST_SHARED = 2048
"""The maximum number of specs that are kept, and of results that are kept for each function."""

_T = TypeVar("_T")
_Others = TypeVarTuple("_Others")


class SharedSpec(dict[str, Any]):
    """A pod's spec. In a cache, the spec is found by its identity."""

    def __hash__(self) -> int:  # type: ignore[override]  # mypy: other dictionaries have no hash
        return id(self)


def of_spec(
    function: Callable[[Json, Unpack[_Others]], _T],
) -> Callable[[Json, Unpack[_Others]], _T]:
    """Cache the results of a function for shared specs. The other parameters of the function must be hashable."""
    cached = lru_cache(MOST_SHARED)(function)

    @wraps(function)
    def result(spec: Json, *others: *_Others) -> _T:
        return cached(spec, *others) if isinstance(spec, SharedSpec) else function(spec, *others)

    return result
