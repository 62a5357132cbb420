"""`devicecore` in forks of a process that has imported it, because importing it takes longer than most of what it does.

Law: a fork is a child of the process that asked for it. Streams, environment, directory, signals and exit status are
its own; only the imported modules are shared.
"""

import gc
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from devicecore_tools.command.commands import PLACES
from devicecore_tools.command.main import main
from devicecore_tools.conformance.processes import orphans_come_here

_PRELOADED = (
    *(place.partition(":")[0] for place in PLACES.values()),
    "devicecore_tools.node.assembly",  # which imports gRPC, but does not use it, so that a fork may
    "devicecore_tools.command.kubelet.view",
    "devicecore.domain.checkpoint",
    "devicecore.wire.conversion",
    "devicecore.system.documents",
)
_MAX_ORDER = 1_000_000  # bytes
_LOCK = threading.Lock()


class Fork(subprocess.Popen[str]):
    """`subprocess.Popen`, with the arguments of `devicecore` in place of a command. Its streams are text."""

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:  # noqa: ANN401 - those of Popen
        super().__init__(arguments, text=True, **options)

    def _execute_child(  # the name and the order of the arguments are those of Python 3.11 to 3.14
        self,
        args: Sequence[str],
        _executable: None,
        _preexec_fn: None,
        _close_fds: bool,
        _pass_fds: Sequence[int],
        cwd: str | None,
        env: dict[str, str] | None,
        *more: Any,  # noqa: ANN401 - as above
    ) -> None:
        pipes = more[3:9]
        order = json.dumps([list(args), os.fspath(cwd or Path.cwd()), dict(os.environ if env is None else env)])
        streams = [own if own >= 0 else number for number, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        server, _ = _server(os.getpid())
        with _LOCK, orphans_come_here():
            socket.send_fds(server, [order.encode()], streams)
            self.pid = int(server.recv(20))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # as above


@cache
def _server(_pid: int) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
    """Start the process that forks, once in each process that asks for forks."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        return ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL)


def _serve(requests: socket.socket) -> tuple[list[str], str, dict[str, str]]:
    """Make a fork for each order, until nobody can send any more. Return the order in each fork."""
    gc.freeze()
    while True:
        order, streams, _, _ = socket.recv_fds(requests, _MAX_ORDER, 3)
        if not order:
            os._exit(0)
        told, tells = os.pipe()
        between = os.fork()
        if not between:
            pid = os.fork()
            if pid:
                os.write(tells, str(pid).encode())
                os._exit(0)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            os.closerange(3, max(told, tells, requests.fileno(), *streams) + 1)
            requests.detach()
            return tuple(json.loads(order))
        os.waitpid(between, 0)  # so that the fork has its new parent before that parent waits for it
        requests.send(os.read(told, 20))
        for descriptor in (told, tells, *streams):
            os.close(descriptor)


def _run(arguments: Sequence[str]) -> int:
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, 1, closefd=False) for number, mode in enumerate("rww"))  # noqa: SIM115 - as Python opens them
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
    for module in _PRELOADED:
        import_module(module)
    arguments, directory, environment = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    os._exit(_run(arguments))
