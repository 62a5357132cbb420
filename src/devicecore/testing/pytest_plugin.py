"""Pytest fixtures for authors of device plugins. Pytest loads them if devicecore is installed.

Law: this module imports nothing but pytest, because every pytest run imports it. The fixtures import the rest.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from devicecore.testing.kubelet import Kubelet, MemoryKubelet
    from devicecore.testing.process import PluginProcess


@pytest.fixture
def kubelet() -> Iterator["Kubelet"]:
    """A started kubelet on a unix socket in a directory of its own."""
    from devicecore.testing.kubelet import Kubelet

    with Kubelet() as kubelet:
        yield kubelet


@pytest.fixture
def memory_kubelet() -> Iterator["MemoryKubelet"]:
    """A started kubelet for plugins that are Python objects."""
    from devicecore.testing.kubelet import MemoryKubelet

    with MemoryKubelet() as kubelet:
        yield kubelet


@pytest.fixture
def plugin_process(kubelet: "Kubelet") -> Callable[..., "PluginProcess"]:
    """A function that runs a command as a plugin of `kubelet`: `plugin_process("./my-plugin", "--dir", "{dir}")`.

    The process is stopped at the end of the test. See `Kubelet.run_plugin`.
    """
    return kubelet.run_plugin
