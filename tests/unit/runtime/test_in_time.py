"""Work that may never end."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from devicecore.runtime.in_time import NoThreadError, WaitingThreads, in_time
from tests.adapters.peers import wait_until


def test_the_result_of_the_work_is_returned_and_its_error_raised() -> None:
    assert in_time(lambda: 1, 60) == 1
    with pytest.raises(ZeroDivisionError):
        in_time(lambda: 1 // 0, 60)


def test_work_that_does_not_end_is_given_up() -> None:
    end = threading.Event()
    with pytest.raises(TimeoutError):
        in_time(end.wait, 0.01)
    end.set()


def test_work_that_does_not_end_keeps_no_process_alive() -> None:
    program = """
import threading
from devicecore.runtime.in_time import in_time
try:
    in_time(threading.Event().wait, 0.01)
except TimeoutError:
    print("given up")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "given up\n"


def native_threads() -> int:
    """Return the number of this process's threads, including those that `threading` does not know."""
    return len(list(Path("/proc/self/task").iterdir()))


def test_threads_that_wait_do_one_thing_after_another_and_end() -> None:
    before, threads = native_threads(), WaitingThreads()
    for number in range(20):
        assert in_time(lambda: number, 60, threads.begin) == number  # noqa: B023 - it is called in this turn
    assert native_threads() <= before + 2  # a job may arrive before the thread of the previous job waits again
    threads.end()
    wait_until(lambda: native_threads() <= before, "the threads have ended")
    with pytest.raises(NoThreadError):
        in_time(threading.get_ident, 60, threads.begin)


def test_work_that_never_ends_keeps_no_caller_waiting() -> None:
    before, threads, end = native_threads(), WaitingThreads(), threading.Event()
    ended: list[bool] = []
    for _ in range(3):
        with pytest.raises(TimeoutError):
            in_time(lambda: ended.append(end.wait()), 0.01, threads.begin)
    assert in_time(lambda: 1, 60, threads.begin) == 1
    threads.end()
    assert not ended
    end.set()
    wait_until(lambda: len(ended) == 3 and native_threads() <= before, "the threads that were working have ended, too")
