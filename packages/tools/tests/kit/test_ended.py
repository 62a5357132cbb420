"""A process counts as ended even if Linux is still closing its files, or its exit status has not been read."""

import os
import subprocess
import sys

from devicecore_tools.conformance.processes import has_ended

# The first thread ends with the system call that `exit` uses for one thread, and leaves the second one running.
FIRST_THREAD_ENDS = """
import ctypes, os, platform, sys, threading
first = f"/proc/self/task/{os.getpid()}/stat"

def run():
    while open(first).read().rpartition(")")[2].split()[0] != "Z":
        pass
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)

threading.Thread(target=run).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""


def test_a_process_has_ended_before_its_status_is_read() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert not has_ended(process.pid)
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(process.pid)
    assert process.returncode == 0
    assert has_ended(process.pid)


def test_a_process_has_not_ended_with_its_first_thread() -> None:
    command = [sys.executable, "-c", FIRST_THREAD_ENDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert not has_ended(process.pid)
        process.stdin.close()
        process.wait()
    assert process.returncode == 0
