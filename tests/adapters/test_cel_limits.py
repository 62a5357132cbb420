"""The process that evaluates expressions that might take much: its limits, and that nothing of it is left behind."""

import gc
import os
import resource
import signal
import sys

import pytest

from devicecore.adapters.cel import CelSelectors
from devicecore.adapters.cel.limited import MAX_MEMORY, LimitedProcess, is_harmless
from devicecore.adapters.cel.rewriting import tokens_of
from devicecore.domain.allocation import DeviceKey, Features, PoolDevice, SelectorError

DEVICE = PoolDevice(DeviceKey("gpu.example.com", "n1", "gpu-0"))
LOOP = "[1, 2].exists(x, x == 2)"


def pid_of(cel: CelSelectors) -> int:
    """The process that evaluates, 0 if there is none."""
    process = getattr(getattr(cel._ask, "__self__", None), "_process", None)  # noqa: SLF001 - to look at the process
    return process.pid if process is not None else 0


def memory_of(pid: int) -> int:
    """The most bytes that a process has had."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:  # noqa: PTH123 - as `ps` reads it
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


@pytest.mark.parametrize(
    "expression",
    [
        "lists.range(9999).map(x,lists.range(9999))==[]",
        "cel.bind(a,lists.range(9999),a.map(x,a)).size()>0",
        "lists.range(9000).map(x, device.driver.replace('', 'aaaaaaaa')).size() > 0",
    ],
)
def test_an_expression_of_fifty_characters_takes_no_gigabyte(expression: str) -> None:
    cel, before = CelSelectors(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cel(LOOP, DEVICE)
    problem = problem_of(cel, expression)
    assert problem == "" or "was given up" in problem
    assert not pid_of(cel) or memory_of(pid_of(cel)) < MAX_MEMORY + 100 * 1024**2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024
    assert cel("[1, 2].exists(x, x == 1)", DEVICE)


def problem_of(cel: CelSelectors, expression: str) -> str:
    """What is wrong with an expression, empty if nothing is."""
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


def test_an_expression_that_takes_too_long_is_not_asked_again() -> None:
    process, text = LimitedProcess(Features(), max_seconds=1), "".join("ab"[n * n % 7 % 2] for n in range(8_000))
    assert process.ask(LOOP, DEVICE)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(SelectorError, match="was given up"):
        process.ask(f"lists.range(9999).all(x, !'{text}'.matches('((a?){{200}}b?){{5}}c'))", DEVICE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5  # starting it takes 0.4


def test_a_process_that_cannot_start_is_an_error_that_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no process can be started, or Python does not find the library there."""
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


def test_errors_of_the_process_are_those_of_the_library() -> None:
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
