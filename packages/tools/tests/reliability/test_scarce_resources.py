"""A process that runs out of file descriptors, threads or memory says so, and still exits on request."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.adapters.peers import environment
from tests.reliability.scale import PATIENCE

NO_FILES = """
import resource, sys
from devicecore.adapters.grpc_unix import GrpcUnixTransport
from devicecore.adapters.grpc_unix.directory import SocketDirectory
from devicecore.domain.errors import DirectoryError

claim = SocketDirectory.claim

def claim_the_last_file(self):
    claim(self)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

SocketDirectory.claim = claim_the_last_file
transport = GrpcUnixTransport(sys.argv[1])
try:
    transport.start(print)
except DirectoryError as error:
    print(error)
"""

LITTLE_MEMORY = """
import resource

def take_the_rest():
    \"\"\"Leave less than the stack of a thread.\"\"\"
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + 3_000_000
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""

NO_MORE_THREADS = f"""
{LITTLE_MEMORY}
import os, signal, sys, time
from devicecore_tools.command.signals import Signals

with Signals(grace=float(sys.argv[1])) as signals:
    take_the_rest()
    os.kill(os.getpid(), signal.SIGTERM)
    print(signals.wait_for_end({PATIENCE}), signals.ended_by, flush=True)
    if sys.argv[2] == "hangs":
        time.sleep({PATIENCE})
"""

NO_THREADS = f"""
{LITTLE_MEMORY}
import sys
from devicecore_tools.command import main
from devicecore_tools.node import assembly
from devicecore_tools.command.kubelet import command
from devicecore_tools.command.kubelet import screen

take_the_rest()
sys.exit(main.main(["kubelet", "--root", sys.argv[1]]))
"""


def run(script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=PATIENCE)


def test_a_transport_without_file_descriptors_says_so_and_frees_its_directory(directory: Path) -> None:
    dp = directory / "dp"
    ran = run(NO_FILES, dp)
    assert f"cannot use directory '{dp}': gRPC cannot be started: Too many open files" in ran.stdout, ran.stderr
    assert not (dp / ".devicecore.lock").exists()


def test_a_signal_ends_a_process_that_gets_no_more_threads() -> None:
    ran = run(NO_MORE_THREADS, 60.0, "ends")
    assert (ran.stdout, ran.returncode) == ("True ended by SIGTERM\n", 0), ran.stderr


def test_a_process_that_gets_no_more_threads_and_hangs_is_ended_by_force() -> None:
    """The forced exit needs neither a new thread nor more memory."""
    ran = run(NO_MORE_THREADS, 0.5, "hangs")
    assert (ran.stdout, ran.returncode) == ("True ended by SIGTERM\n", -signal.SIGALRM), ran.stderr


def test_a_command_that_gets_no_threads_says_so_in_a_sentence(directory: Path) -> None:
    ran = run(NO_THREADS, directory)
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr == "devicecore kubelet: the system gives this process no more threads, or no memory for them\n"
