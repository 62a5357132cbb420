"""Laws of strategic merge patches: what a node computes, and how an API server applies it."""

from typing import Any

from devicecore_fleet.cluster.words.patches import difference
from devicecore_tools.testing.api_server.patching import strategically_merged
from hypothesis import example, given
from hypothesis import strategies as st

Json = dict[str, Any]
SCALARS = st.none() | st.integers(0, 2) | st.sampled_from(["", "a", "b"])
PLAIN = st.dictionaries(st.sampled_from("abc"), SCALARS | st.lists(st.integers(0, 2), max_size=2), max_size=3)
CONDITIONS = st.dictionaries(st.sampled_from("XYZ"), PLAIN, max_size=3).map(
    lambda found: [{**fields, "type": name} for name, fields in found.items()]
)


STATUSES = st.fixed_dictionaries(
    {}, optional={"a": SCALARS, "b": PLAIN, "l": st.lists(PLAIN, max_size=2), "conditions": CONDITIONS}
)
"""Objects like a status: scalars, maps, plain lists, and lists that are merged by a key."""


def said(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the value as clients read it: null means no value."""
    if isinstance(value, dict):
        return {name: said(below) for name, below in value.items() if below is not None}
    return [said(below) for below in value] if isinstance(value, list) else value


@given(STATUSES, STATUSES)
@example(
    {"conditions": [{"type": "X"}, {"type": "Y", "a": 1}]},
    {"conditions": [{"type": "Y"}, {"type": "Z"}, {"type": "X"}]},
)
def test_a_patch_makes_what_is_wanted_and_is_made_once(before: Json, wanted: Json) -> None:
    """Merging the difference of two objects into the first gives the second, and then there is no difference."""
    after = strategically_merged(before, difference(before, wanted))
    assert said(after) == said({**before, **wanted})
    assert difference(after, wanted) == {}


@given(STATUSES, STATUSES)
def test_merging_changes_neither_of_its_arguments(before: Json, change: Json) -> None:
    """A merge changes neither the object nor the patch.

    Fields that the patch does not name are unchanged in the result.
    """
    kept = repr(before), repr(change)
    after = strategically_merged(before, change)
    assert (repr(before), repr(change)) == kept
    assert {name: after[name] for name in before.keys() - change.keys()} == {
        name: before[name] for name in before.keys() - change.keys()
    }
