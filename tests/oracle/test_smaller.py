"""A case that shows a difference is reduced to the steps that cause it."""

from tests.oracle.asking import Json
from tests.oracle.smaller import smaller


def test_only_the_steps_that_make_the_difference_are_left() -> None:
    def differs(case: Json) -> bool:
        steps = case["steps"]
        return bool(steps.index(3) < steps.index(7))  # if one of the two steps is gone, `index` raises ValueError

    assert smaller({"steps": [*range(20)], "seed": 1}, differs, float("inf")) == {"steps": [3, 7], "seed": 1}


def test_a_case_without_lists_stays_as_it_is() -> None:
    assert smaller({"text": "1Ki"}, lambda _: True, float("inf")) == {"text": "1Ki"}
