"""Pytest fixtures for people who write device plugins; pytest finds them by itself where devicecore is installed.

Law: this module is imported in every pytest run, so it imports nothing; whoever uses a fixture pays for it.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from devicecore.testing.kubelet import Kubelet, MemoryKubelet
    from devicecore.testing.process import PluginProcess


@pytest.fixture
def kubelet() -> Iterator["Kubelet"]:
    """A kubelet on a unix socket in a directory of its own, started."""
    from devicecore.testing.kubelet import Kubelet

    with Kubelet() as kubelet:
        yield kubelet


@pytest.fixture
def memory_kubelet() -> Iterator["MemoryKubelet"]:
    """A kubelet for plugins that are Python objects, started."""
    from devicecore.testing.kubelet import MemoryKubelet

    with MemoryKubelet() as kubelet:
        yield kubelet


@pytest.fixture
def plugin_process(kubelet: "Kubelet") -> Callable[..., "PluginProcess"]:
    """Run a command as a plugin of the fixture `kubelet`: `plugin_process("./my-plugin", "--dir", "{dir}")`.

    It is stopped at the end of the test. See `Kubelet.run_plugin`.
    """
    return kubelet.run_plugin
