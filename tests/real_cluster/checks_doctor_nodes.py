"""`doctor` and `fits` on a real kubelet whose Node and pods are in trouble: what they say is what is true."""

import pytest

from tests.real_cluster.control_plane import ControlPlane
from tests.real_cluster.situations import SITUATIONS
from tests.real_cluster.trouble import Situation, judged

OF_NODES = [one for one in SITUATIONS.values() if one.make.__module__.endswith(".situations_of_nodes")]


@pytest.mark.parametrize("of", OF_NODES, ids=lambda one: one.name)
def test_the_tools_say_of_a_node_in_trouble_what_is_true(plane: ControlPlane, of: Situation) -> None:
    assert not judged(plane, of).problems(of)
