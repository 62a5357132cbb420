"""The settings of the cyclic garbage collector are restored after a block that changes them."""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from devicecore_tools.command.collector import rare_collector, without_collector


@pytest.mark.parametrize("changed", [without_collector, rare_collector])
def test_the_collector_is_as_before_after_the_block(changed: Callable[[], AbstractContextManager[None]]) -> None:
    before = gc.isenabled(), gc.get_threshold()
    with changed():
        assert (gc.isenabled(), gc.get_threshold()) != before
    assert (gc.isenabled(), gc.get_threshold()) == before
