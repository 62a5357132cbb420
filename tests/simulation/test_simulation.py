"""The simulation breaks no law and is repeatable; if a run broke a law, the command to repeat that run is printed."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devicecore import Admitted, DeviceManager, Pod, PodUid, Refused, Verdict
from devicecore.domain.ledger import Ledger
from devicecore.manager import Affinity
from tests.simulation.__main__ import main
from tests.simulation.run import Outcome, Problem, Simulation
from tests.simulation.steps import LawBrokenError, Steps
from tests.simulation.world import ManagerType

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "tests.simulation")


@pytest.mark.parametrize("seed", range(3))
def test_no_law_is_broken(seed: int) -> None:
    """Only 500 steps are taken for each seed. `make simulate` takes more than 100,000 steps."""
    outcome = Simulation(seed, steps=500).run()
    assert outcome.problem is None, outcome
    assert outcome.actions > outcome.steps == 500


def broken_law(chance: Random, steps: int, manager: ManagerType = DeviceManager) -> tuple[str, list[str]]:
    """Return the law that a run breaks (an empty string if none), and the trace of the run."""
    run = Steps(chance, manager)
    try:
        run.start()
        for _ in range(steps):
            run.take_step()
    except LawBrokenError as broken:
        return broken.law, run.trace
    return "", run.trace


@given(chance=st.randoms(use_true_random=False), steps=st.integers(1, 60))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_no_law_is_broken_by_what_hypothesis_chooses(chance: Random, steps: int) -> None:
    """Hypothesis makes every choice, so it shrinks a run that breaks a law to the fewest steps."""
    law, trace = broken_law(chance, steps)
    assert not law, "\n".join(trace)


def test_the_same_seed_gives_the_same_run() -> None:
    """The traces are equal down to the last line, and a different seed gives a different trace."""
    assert Simulation(1, 300).run() == Simulation(1, 300).run()
    assert Simulation(1, 300).run().trace != Simulation(2, 300).run().trace


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    """The command that repeats a problem can therefore stop at the problem's step."""
    shorter, longer = Simulation(3, 100).run(), Simulation(3, 200).run()
    assert longer.trace[: len(shorter.trace)] == shorter.trace


def test_the_same_seed_gives_the_same_run_in_every_process() -> None:
    """No choice depends on the order of a set, which differs between processes."""
    traces = {
        subprocess.run(
            [*COMMAND, "--seeds", "5", "--steps", "200", "--trace"],
            capture_output=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(traces) == 1


def test_a_problem_names_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command stops at the step where the law was broken, and its exit status says so."""
    monkeypatch.setattr(Ledger, "release", lambda self, _key, _resource: self)
    outcome = next(outcome for seed in range(20) if (outcome := Simulation(seed, 300).run()).problem)
    assert outcome.problem is not None
    assert outcome.steps == outcome.problem.step
    _, _, *arguments = outcome.command.split()
    monkeypatch.setattr(sys, "argv", arguments)
    assert main() == 1
    printed = capsys.readouterr()
    assert str(outcome) in printed.err
    assert printed.out.splitlines() == list(outcome.trace)
    assert f"BROKEN: {outcome.problem.law}: {outcome.problem.violation}" in outcome.trace[-1]


def test_a_subclass_of_the_manager_can_be_simulated() -> None:
    """For example, a manager that admits every pod breaks a law."""

    class AdmitsAll(DeviceManager):
        def admit(self, pod: Pod, *, affinity: Affinity = None) -> Verdict:
            verdict = super().admit(pod, affinity=affinity)
            return Admitted(pod) if isinstance(verdict, Refused) else verdict

    problems = (Simulation(seed, 300, manager=AdmitsAll).run().problem for seed in range(20))
    assert any(problem and problem.law == "an_admitted_pod_has_what_it_asks_for" for problem in problems)


def test_an_outcome_as_text() -> None:
    """The text contains the law in words, and the command that repeats the run."""
    assert str(Outcome(7, 10, 12, ())) == "seed 7: 10 steps, all laws held"
    assert str(Outcome(7, 10, 12, (), Problem(10, "no_device_has_two_owners", "gpu-0 has"))) == (
        "seed 7, step 10: no device has two owners: gpu-0 has\n"
        "replay: python -m tests.simulation --seeds 7 --steps 10 --trace"
    )


def test_many_seeds_are_run_and_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The progress is on stderr, and nothing is on stdout."""
    monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", "0-2", "--steps", "10"])
    assert main() == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "3 of 3 seeds, 30 steps" in printed.err
    assert "0 broken" in printed.err


def test_an_error_that_is_not_the_managers_own_breaks_a_law() -> None:
    """For example, `evict` must not raise `ZeroDivisionError`."""

    class Raising(DeviceManager):
        def evict(self, pods: Iterable[PodUid]) -> None:
            raise ZeroDivisionError(pods)

    problem = Simulation(0, 1000, manager=Raising).run().problem
    assert problem is not None
    assert problem.law == "nothing_but_its_own_errors_leaves_the_manager"
