"""The errors for wrong arguments of `allocate`."""

import pytest

from devicecore.domain.allocation import allocate


def test_a_name_is_not_a_node_and_the_error_says_so() -> None:
    with pytest.raises(TypeError, match="allocate: node: expected TargetNode, got 'node-1'"):
        allocate([], "node-1", [], allocated=[], classes=[])  # type: ignore[arg-type]  # the mistake under test
