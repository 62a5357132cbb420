"""Public objects in a fork: they refuse calls, or use their own process, thread or connection, never the parent's.

Law: no fork gets an answer to its parent's question, and no fork stops anything that belongs to its parent. Managers
and servers with a life cycle are tested in `tests/reliability/test_life_cycle.py`, and expressions in
`test_cel_limits.py`.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from weakref import WeakMethod

import pytest
from devicecore_tools.testing.api_server import LocalApiServer

from devicecore.adapters.file import FileStore
from devicecore.adapters.kube_api.access import Access, ApiRequest, ApiServer, RequestError
from devicecore.adapters.pod_resources.client import PodResourcesClient
from devicecore.domain.errors import ForkedError
from devicecore.runtime.saver_thread import SaverThread

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")


def in_os_fork(action: Callable[[], object]) -> int:
    """Call `action` in a fork, and return 0, or 1 if it raises an error."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:  # noqa: BLE001 - the parent sees that there was one
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_multiprocessing(action: Callable[[], object]) -> int:
    """Call `action` in a process that `multiprocessing` forks, and return 0, or 1 if it raises an error."""
    process = multiprocessing.get_context("fork").Process(target=action)
    process.start()
    process.join(60)
    return process.exitcode or 0


def in_fork_of_thread(action: Callable[[], object]) -> int:
    """Call `action` in a fork made by a thread other than the main thread, and return 0, or 1 if it raises an error."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(in_os_fork(action)))
    thread.start()
    thread.join(60)
    return found[0]


FORKS = pytest.mark.parametrize("fork", [in_os_fork, in_multiprocessing, in_fork_of_thread])
Fork = Callable[[Callable[[], object]], int]


def node_of(server: ApiServer, name: str) -> object:
    return server.read(ApiRequest("read", "GET", f"api/v1/nodes/{name}"), lambda found: found["metadata"]["name"])


@FORKS
def test_a_connection_to_an_api_server_is_not_shared_with_a_fork(fork: Fork, tmp_path: Path) -> None:
    """A fork and its parent once read from the same socket, so each could get the answer to the other's request."""
    with LocalApiServer() as api:
        for name in ("parent", "child"):
            api.create({"kind": "Node", "metadata": {"name": name}})
        server = ApiServer(Access(kubeconfig=api.kubeconfig(tmp_path / "config")), {})
        assert node_of(server, "parent") == "parent"

        def use() -> None:
            for _ in range(20):
                assert node_of(server, "child") == "child"
            server.stop()
            with pytest.raises(RequestError):
                node_of(server, "child")

        assert fork(use) == 0
        assert node_of(server, "parent") == "parent", "the stop in the fork has ended no connection of the parent"
        assert fork(server.stop) == 0
        assert node_of(server, "parent") == "parent"
        server.disconnect()


@FORKS
def test_objects_of_an_api_server_for_tests_are_refused_in_a_fork(fork: Fork) -> None:
    """A fork has a copy of the objects, but the server does not serve that copy."""
    with LocalApiServer() as api:

        def use() -> None:
            for call in (
                lambda: api.create({"kind": "Node", "metadata": {"name": "n"}}),
                lambda: api.objects("Node"),
                api.stop,
            ):
                with pytest.raises(ForkedError):
                    call()

        assert fork(use) == 0
        api.create({"kind": "Node", "metadata": {"name": "n"}})
        assert [one["metadata"]["name"] for one in api.objects("Node")] == ["n"]


class Saved:
    """A store that counts its saves."""

    def __init__(self) -> None:
        self.times = 0

    def save(self) -> None:
        self.times += 1


@FORKS
def test_a_saver_refuses_requests_in_a_fork(fork: Fork) -> None:
    """The fork does not have the saver's thread, so a request would wait forever."""
    saver, saved = SaverThread(), Saved()

    def use() -> None:
        with pytest.raises(ForkedError):
            saver.request(WeakMethod(saved.save), 60.0)
        saver.end()

    assert fork(use) == 0
    assert saver.request(WeakMethod(saved.save), 60.0)
    assert saved.times == 1
    saver.end()


@FORKS
def test_a_client_of_pod_resources_is_refused_in_a_fork(fork: Fork, tmp_path: Path) -> None:
    client = PodResourcesClient(tmp_path / "s.sock", timeout=0.1)
    client.start()

    def use() -> None:
        for call in (client.list, client.stop):
            with pytest.raises(ForkedError):
                call()

    assert fork(use) == 0
    client.stop()


@FORKS
def test_a_store_in_a_fork_spoils_no_save_of_its_parent(fork: Fork, tmp_path: Path) -> None:
    """A fork and its parent once wrote under the same name, so one could rename a file that the other was writing."""
    store = FileStore(tmp_path / "file")
    before = store._file._new  # noqa: SLF001 - the name of the new file

    def use() -> None:
        assert store._file._new != before  # noqa: SLF001 - as above
        store.save(b"child")

    assert fork(use) == 0
    assert store._file._new == before  # noqa: SLF001 - as above
    store.save(b"parent")
    assert (tmp_path / "file").read_bytes() == b"parent"
