"""Pytest fixtures for authors of device plugins and DRA drivers. Pytest loads them if devicecore-tools is installed.

Law: this module imports nothing but pytest, because every pytest run imports it. The fixtures import everything else.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from devicecore_tools.testing.api_server import LocalApiServer
    from devicecore_tools.testing.dra_kubelet import DraKubelet, MemoryDraKubelet
    from devicecore_tools.testing.kubelet import Kubelet, MemoryKubelet
    from devicecore_tools.testing.process import PluginProcess


@pytest.fixture
def kubelet() -> Iterator["Kubelet"]:
    """A running kubelet on a unix socket in a new directory."""
    from devicecore_tools.testing.kubelet import Kubelet

    with Kubelet() as kubelet:
        yield kubelet


@pytest.fixture
def memory_kubelet() -> Iterator["MemoryKubelet"]:
    """A running kubelet for plugins that are Python objects."""
    from devicecore_tools.testing.kubelet import MemoryKubelet

    with MemoryKubelet() as kubelet:
        yield kubelet


@pytest.fixture
def plugin_process(kubelet: "Kubelet") -> Callable[..., "PluginProcess"]:
    """A function that runs a command as a plugin of `kubelet`: `plugin_process("./my-plugin", "--dir", "{dir}")`.

    The process is stopped at the end of the test. See `Kubelet.run_plugin`.
    """
    return kubelet.run_plugin


@pytest.fixture
def api_server() -> Iterator["LocalApiServer"]:
    """A running API server for Nodes, Pods and the `resource.k8s.io` kinds."""
    from devicecore_tools.testing.api_server import LocalApiServer

    with LocalApiServer() as server:
        yield server


@pytest.fixture
def dra_kubelet(api_server: "LocalApiServer") -> Iterator["DraKubelet"]:
    """A running kubelet for DRA drivers in any language, in a new directory, with claims from `api_server`."""
    from devicecore_tools.testing.dra_kubelet import DraKubelet

    with DraKubelet(api_server=api_server) as kubelet:
        yield kubelet


@pytest.fixture
def memory_dra_kubelet() -> Iterator["MemoryDraKubelet"]:
    """A running kubelet for DRA drivers that are Python objects."""
    from devicecore_tools.testing.dra_kubelet import MemoryDraKubelet

    with MemoryDraKubelet() as kubelet:
        yield kubelet


@pytest.fixture
def driver_process(dra_kubelet: "DraKubelet") -> Callable[..., "PluginProcess"]:
    """A function that runs a command as a driver of `dra_kubelet`: `driver_process("./my-driver", "--node", "{node}")`.

    The process is stopped at the end of the test. See `DraKubelet.run_driver`.
    """
    return dra_kubelet.run_driver
