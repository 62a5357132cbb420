"""Runs the tests' programs as forks of a process that has imported their modules, because imports take the most time.

Law: a fork is a child of the process that asked for it. It has its own streams, environment, directory, session,
signals and exit status, and /proc shows them. Only the imported modules are shared.
"""

import ctypes
import fcntl
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from devicecore_tools.command.commands import COMMANDS
from devicecore_tools.command.main import main
from devicecore_tools.conformance.faults import DRIVER, PLUGIN
from devicecore_tools.conformance.processes import orphans_come_here

_HERE = Path(__file__).parent
_NAMES = ("interop/stranger_driver", "interop/stranger_plugin", "interop/wild_plugin")
_SCRIPTS = {*(str(_HERE / f"{name}.py") for name in _NAMES), str(DRIVER), str(PLUGIN)}
_COMMAND = ("-m", "devicecore_tools")
_PRELOADED = (
    *(f"devicecore_tools.command.{place.partition(':')[0]}" for place, _ in COMMANDS.values()),
    "http.client",
    "devicecore.wire.dra_health_v1alpha1",
    "devicecore.wire.dra_v1",
    "devicecore.adapters.grpc_unix.dra",
    "devicecore.adapters.kube_api.slices",
    "devicecore.plugins.simulated_driver",
    "devicecore_tools.checkpoint.claims",
    "devicecore_tools.checkpoint.repair",
    "devicecore_tools.command.checkpoint_holders",
    "devicecore_tools.command.checkpoint_show",
    "devicecore_tools.node.assembly",  # imports gRPC without using it, so that forks can use it
    "grpc._channel",
    "grpc._server",
    "devicecore_tools.command.kubelet.view",
    "devicecore.domain.checkpoint",
    "devicecore.wire.conversion",
    "devicecore.system.documents",
)
_MAX_ORDER = 1_000_000  # bytes
_MAX_STREAMS = 10
_MAX_ENVIRONMENT = 100_000  # bytes
_LOCK = threading.Lock()


class Start(subprocess.Popen[Any]):
    """A `subprocess.Popen` that starts `python -m devicecore_tools` and some scripts of the tests as forks."""

    def _execute_child(  # the parameters are named and ordered as in Python 3.11 to 3.14
        self,
        args: Any,  # noqa: ANN401 - those of Popen
        executable: Any,  # noqa: ANN401 - as above
        preexec_fn: Any,  # noqa: ANN401 - as above
        close_fds: bool,
        pass_fds: Sequence[int],
        cwd: str | None,
        env: dict[str, str] | None,
        *more: Any,  # noqa: ANN401 - as above
    ) -> None:
        words = [] if isinstance(args, str) else [os.fspath(word) for word in args]
        is_known = words[1:2] and (words[1] in _SCRIPTS or tuple(words[1:3]) == _COMMAND)
        has_session, group = more[-2:]
        if not is_known or words[0] != sys.executable or preexec_fn or group >= 0:
            super()._execute_child(  # type: ignore[misc]  # it has a different name
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more
            )
            return
        pipes, numbers = more[3:9], [*range(3), *pass_fds]
        variables = dict(os.environ if env is None else env)
        order = [words[1:], os.fspath(cwd or Path.cwd()), variables, has_session, numbers]
        streams = [own if own >= 0 else number for number, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        with _LOCK, orphans_come_here():
            server, _ = _server(os.getpid())
            socket.send_fds(server, [json.dumps(order).encode()], [*streams, *pass_fds])
            self.pid = int(server.recv(20))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # as above


class Fork(Start):
    """A fork that runs `devicecore` with these arguments, and whose streams are text."""

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:  # noqa: ANN401 - those of Popen
        super().__init__([sys.executable, *_COMMAND, *arguments], text=True, **options)


@cache
def _server(_pid: int) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
    """Start the process that forks, once for each process that needs forks."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        room = {**os.environ, "ROOM": "." * _MAX_ENVIRONMENT}
        return ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL, env=room)


def _serve(requests: socket.socket) -> list[str]:
    """Fork once per request, until no process is left that could send requests.

    In each fork, return the words of its command.
    """
    gc.freeze()
    while True:
        order, streams, _, _ = socket.recv_fds(requests, _MAX_ORDER, _MAX_STREAMS)
        if not order:
            os._exit(0)
        told, tells = os.pipe()
        between = os.fork()
        if not between:
            if os.fork():
                os._exit(0)
            words, directory, environment, has_session, numbers = json.loads(order)
            if has_session:
                os.setsid()
            os.chdir(directory)
            os.environ.clear()
            _show(environment)
            os.environ.update(environment)
            # these descriptors must be higher than all in `numbers`
            given = [fcntl.fcntl(stream, fcntl.F_DUPFD, 1000) for stream in (*streams, tells)]
            requests.detach()
            os.closerange(3, 1000)
            for number, stream in zip(numbers, given, strict=False):
                os.dup2(stream, number)
            os.write(given[-1], str(os.getpid()).encode())
            os.closerange(1000, given[-1] + 1)
            return list(words)
        os.waitpid(between, 0)  # the fork must have its new parent before the new parent waits for it
        requests.send(os.read(told, 20))
        for descriptor in (told, tells, *streams):
            os.close(descriptor)


def _show(environment: dict[str, str]) -> None:
    """Make /proc show this environment, by which the conformance checks find processes."""
    numbers = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    begin, end = int(numbers[47]), int(numbers[48])
    shown = b"".join(os.fsencode(f"{name}={value}\0") for name, value in environment.items())
    assert len(shown) <= end - begin, "the environment of a fork must fit into that of its server"
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def _run(arguments: Sequence[str]) -> int:
    try:
        status = main(arguments)
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:  # noqa: BLE001 - as Python ends
        sys.excepthook(*sys.exc_info())
        status = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores SIGHUP, and its children inherit that
    for module in _PRELOADED:
        import_module(module)
    words = _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, 1, closefd=False) for number, mode in enumerate("rww"))  # noqa: SIM115 - as Python opens them
    if words[0] not in _SCRIPTS:
        os._exit(_run(words[2:]))
    sys.argv = words
    sys.path[:1] = [str(Path(words[0]).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    runpy.run_path(words[0], run_name="__main__")


def is_running(pid: int) -> bool:
    """Return whether a process is running.

    A zombie, which has ended but has not been waited for, does not count as running.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
