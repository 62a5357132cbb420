"""A few of the questions that `make fuzz` tries."""

import pytest
from tests.questions import questions

from tests.reliability.scale import scale


@pytest.mark.parametrize("seed", range(scale(3, 200)))
def test_a_question_about_objects_that_grow_ends(seed: int) -> None:
    questions(seed.to_bytes(2, "big"))
