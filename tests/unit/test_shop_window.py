"""What `import devicecore` offers."""

import devicecore
from devicecore.domain.node_state import NodeState


def test_every_name_in_the_window_is_there() -> None:
    """Names are fetched when they are first used; sorted, and listed by `dir`."""
    assert sorted(devicecore.__all__) == devicecore.__all__
    assert set(devicecore.__all__) <= set(dir(devicecore))
    for name in devicecore.__all__:
        assert getattr(devicecore, name) is not None
    assert devicecore.NodeState is NodeState


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """A typing error is told as Python tells it."""
    assert not hasattr(devicecore, "DeviceManger")
