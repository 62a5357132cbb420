"""The limits of the process that evaluates possibly expensive expressions, and what it must not leave behind."""

import gc
import os
import resource
import select
import signal
import sys

import pytest

from devicecore.adapters.cel import CelSelectors
from devicecore.adapters.cel.limited import MAX_MEMORY, LimitedProcess, is_harmless
from devicecore.adapters.cel.rewriting import tokens_of
from devicecore.domain.allocation import (
    DeviceClass,
    DeviceKey,
    Features,
    NoAllocation,
    PoolDevice,
    SelectorError,
    TargetNode,
    allocate,
    claim_of,
    slice_of,
)

DEVICE = PoolDevice(DeviceKey("gpu.example.com", "n1", "gpu-0"))
LOOP = "[1, 2].exists(x, x == 2)"


def pid_of(cel: CelSelectors) -> int:
    """Return the id of the process that evaluates expressions, or 0 if there is no such process."""
    process = getattr(getattr(cel._ask, "__self__", None), "_process", None)  # noqa: SLF001 - to inspect the process
    return process.pid if process is not None else 0


def memory_of(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:  # noqa: PTH123 - as `ps` reads it
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


@pytest.mark.parametrize(
    "expression",
    [
        "lists.range(9999).map(x,lists.range(9999))==[]",
        pytest.param("cel.bind(a,lists.range(9999),a.map(x,a)).size()>0", marks=pytest.mark.slow),
        pytest.param(
            "lists.range(9000).map(x, device.driver.replace('', 'aaaaaaaa')).size() > 0", marks=pytest.mark.slow
        ),
    ],
)
def test_an_expression_of_fifty_characters_takes_no_gigabyte(expression: str) -> None:
    cel, before = CelSelectors(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cel(LOOP, DEVICE)
    problem = problem_of(cel, expression)
    assert problem == "" or "was abandoned" in problem
    assert not pid_of(cel) or memory_of(pid_of(cel)) < MAX_MEMORY + 100 * 1024**2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024
    assert cel("[1, 2].exists(x, x == 1)", DEVICE)


def problem_of(cel: CelSelectors, expression: str) -> str:
    """Return what is wrong with an expression, or an empty string if it is valid."""
    try:
        cel(expression, DEVICE)
    except SelectorError as error:
        return str(error)
    return ""


def test_after_the_process_has_died_another_one_evaluates() -> None:
    cel = CelSelectors()
    assert cel(LOOP, DEVICE)
    first = pid_of(cel)
    os.kill(first, signal.SIGKILL)
    assert cel("[1, 4].exists(x, x == 4)", DEVICE)
    assert pid_of(cel) != first


def test_an_expression_that_takes_too_long_is_not_evaluated_again() -> None:
    process, text = LimitedProcess(Features(), max_seconds=1), "".join("ab"[n * n % 7 % 2] for n in range(8_000))
    assert process.ask(LOOP, DEVICE)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(SelectorError, match="was abandoned"):
        process.ask(f"lists.range(9999).all(x, !'{text}'.matches('((a?){{200}}b?){{5}}c'))", DEVICE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # starting the process takes 0.4 s of this time
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5


def test_a_process_that_cannot_start_is_an_error_that_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is missing, or exits at once, as Python does if it cannot import the library."""
    cel = CelSelectors()
    for program in ("/nonexistent/python", "/bin/false"):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", program)
            assert "did not start" in problem_of(cel, LOOP)
    assert cel(LOOP, DEVICE)


def test_the_process_ends_with_the_object_that_has_started_it() -> None:
    cel = CelSelectors()
    assert cel(LOOP, DEVICE)
    pid = pid_of(cel)
    del cel
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_errors_of_the_process_match_those_of_the_library() -> None:
    limited, unlimited = CelSelectors(), CelSelectors(is_limited=False)
    for expression in ("[1].map(x, x +", "[1].all(x, device.attributes['a'].b == x)", "[1].map(x, x)"):
        assert problem_of(limited, expression) == problem_of(unlimited, expression) != ""


def test_what_most_classes_have_needs_no_process() -> None:
    cel = CelSelectors()
    for expression in (
        'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].?type.orValue("") == "gpu"',
        'device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0',
        '"model" in device.attributes["gpu.example.com"] && device.driver.matches("^gpu")',
    ):
        assert is_harmless(tokens_of(expression))
        problem_of(cel, expression)
    assert pid_of(cel) == 0


def test_a_fork_uses_its_own_process_and_leaves_its_parents_alone() -> None:
    """A fork and its parent once shared a pipe, so each could read the other's answer and return a wrong value."""
    cel = CelSelectors()
    assert cel(LOOP, DEVICE)
    first = pid_of(cel)
    child = os.fork()
    if child == 0:
        wrong = sum(not cel(f"[{number}].exists(x, x == {number})", DEVICE) for number in range(20))
        is_own = pid_of(cel) not in (0, first)
        del cel
        gc.collect()
        os._exit(wrong + 100 * (not is_own))
    wrong = sum(cel(f"[{number}].exists(x, x != {number})", DEVICE) for number in range(20))
    assert (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), wrong) == (0, 0)
    assert pid_of(cel) == first


def test_a_fork_while_another_thread_asks_is_not_locked_out() -> None:
    """The thread that holds the lock does not exist in the child."""
    cel = CelSelectors()
    assert cel(LOOP, DEVICE)
    with cel._ask.__self__._lock:  # type: ignore[union-attr]  # noqa: SLF001 - as another thread would
        child = os.fork()
        if child == 0:
            os._exit(not cel("[3].exists(x, x == 3)", DEVICE))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_stopped_process_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process uses no processor time, so the limit on processor time does not end it."""
    monkeypatch.setattr("devicecore.adapters.cel.limited.MAX_WAIT", 0.2)
    cel = CelSelectors()
    with monkeypatch.context() as patient:
        patient.setattr("devicecore.adapters.cel.limited.MAX_WAIT", 30.0)
        assert cel(LOOP, DEVICE)
    os.kill(pid_of(cel), signal.SIGSTOP)
    assert "was abandoned" in problem_of(cel, "[5].exists(x, x == 5)")


def test_the_process_ends_in_the_middle_of_a_question_if_its_parent_is_killed() -> None:
    """While the process evaluates an expression, it cannot notice that no one is still waiting for the answer."""
    told, tell = os.pipe()
    parent = os.fork()
    if parent == 0:
        cel = CelSelectors()
        cel(LOOP, DEVICE)
        os.write(tell, pid_of(cel).to_bytes(8, "big"))
        text = "".join("ab"[n * n % 7 % 2] for n in range(8_000))
        problem_of(cel, f"lists.range(9999).all(x, !'{text}'.matches('((a?){{200}}b?){{5}}c'))")
        os._exit(1)
    pid = int.from_bytes(os.read(told, 8), "big")
    watched = os.pidfd_open(pid)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    ready = select.poll()
    ready.register(watched, select.POLLIN)
    assert ready.poll(2_000)  # before the limit on processor time would end the process
    for descriptor in (told, tell, watched):
        os.close(descriptor)


def test_all_evaluations_of_one_question_take_bounded_time() -> None:
    """Many expressions, each just fast enough, once took an hour in total."""
    cel = CelSelectors(max_seconds=60.0)
    assert cel("true", DEVICE)
    cel._left = 0.0  # noqa: SLF001 - as after a minute of evaluations
    assert "expressions of one question took more than 60 s" in problem_of(cel, "false")
    assert "expressions of one question" in problem_of(cel, "false"), "the error is not kept as a value"
    assert cel("true", DEVICE), "what is known stays known"


def test_a_search_whose_expressions_take_too_long_is_unknown() -> None:
    """A scheduler gives up after ten seconds, so a search that takes longer says nothing about the devices."""
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": [{"name": "a"}]}
    request = {"name": "r", "exactly": {"deviceClassName": "any", "selectors": [{"cel": {"expression": "true"}}]}}
    claim = claim_of({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}})
    cel = CelSelectors(max_seconds=60.0)
    cel._left = 0.0  # noqa: SLF001 - as above
    slices = [slice_of({"metadata": {"name": "s"}, "spec": spec})]
    found = allocate([claim], TargetNode("n"), slices, [], [DeviceClass("any")], matches=cel)
    assert isinstance(found, NoAllocation)
    assert found.is_unknown
    assert "expressions of one question took more than" in str(found)
