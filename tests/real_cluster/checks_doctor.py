"""`doctor` and `fits` on a real kubelet in trouble: what these commands say is true."""

import pytest

from tests.real_cluster.control_plane import ControlPlane
from tests.real_cluster.situations import SITUATIONS
from tests.real_cluster.trouble import Situation, judged


@pytest.mark.apart
@pytest.mark.parametrize("of", SITUATIONS.values(), ids=lambda one: one.name)
def test_the_tools_statements_about_a_troubled_node_are_true(plane: ControlPlane, of: Situation) -> None:
    assert not judged(plane, of).problems(of)
