"""The simulation finds nothing, is the same every time, and says how to see again what it finds."""

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


@pytest.mark.parametrize("seed", range(8))
def test_no_law_is_broken(seed: int) -> None:
    """A few thousand steps; `make simulate` takes more than 100,000."""
    outcome = Simulation(seed, steps=500).run()
    assert outcome.problem is None, outcome
    assert outcome.moments > outcome.steps == 500


def broken_law(chance: Random, steps: int, manager: ManagerType = DeviceManager) -> tuple[str, list[str]]:
    """The law that a run breaks, empty if none, and what happened until then."""
    run = Steps(chance, manager)
    try:
        run.start()
        for _ in range(steps):
            run.happen()
    except LawBrokenError as broken:
        return broken.law, run.trace
    return "", run.trace


@given(chance=st.randoms(use_true_random=False), steps=st.integers(1, 60))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_no_law_is_broken_by_what_hypothesis_chooses(chance: Random, steps: int) -> None:
    """Hypothesis makes every choice, so it shrinks a run that breaks a law to the fewest steps."""
    law, trace = broken_law(chance, steps)
    assert not law, "\n".join(trace)


def test_the_same_seed_is_the_same_run() -> None:
    """To the last line of the trace; and another seed is another run."""
    assert Simulation(1, 300).run() == Simulation(1, 300).run()
    assert Simulation(1, 300).run().trace != Simulation(2, 300).run().trace


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    """So that the command that replays a problem can end where it was found."""
    shorter, longer = Simulation(3, 100).run(), Simulation(3, 200).run()
    assert longer.trace[: len(shorter.trace)] == shorter.trace


def test_the_same_seed_is_the_same_run_in_every_process() -> None:
    """Nothing hangs on the order of a set, which is another one in each process."""
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


def test_a_problem_says_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends at the step where the law was broken, and its exit status says that it was."""
    monkeypatch.setattr(Ledger, "release", lambda self, _key, _resource: self)
    outcome = next(outcome for seed in range(20) if (outcome := Simulation(seed, 300).run()).problem)
    assert outcome.problem is not None
    assert outcome.steps == outcome.problem.step
    _, _, *arguments = outcome.command.split()
    monkeypatch.setattr(sys, "argv", arguments)
    assert main() == 1
    told = capsys.readouterr()
    assert str(outcome) in told.err
    assert told.out.splitlines() == list(outcome.trace)
    assert f"BROKEN: {outcome.problem.law}: {outcome.problem.complaint}" in outcome.trace[-1]


def test_a_manager_of_your_own_can_be_tried() -> None:
    """One that says yes to everybody, for instance."""

    class Yes(DeviceManager):
        def admit(self, pod: Pod, *, affinity: Affinity = None) -> Verdict:
            verdict = super().admit(pod, affinity=affinity)
            return Admitted(pod) if isinstance(verdict, Refused) else verdict

    problems = (Simulation(seed, 300, manager=Yes).run().problem for seed in range(20))
    assert any(problem and problem.law == "an_admitted_pod_has_what_it_asks_for" for problem in problems)


def test_what_an_outcome_says() -> None:
    """In words, with the command."""
    assert str(Outcome(7, 10, 12, ())) == "seed 7: 10 steps, all laws held"
    assert str(Outcome(7, 10, 12, (), Problem(10, "no_device_has_two_owners", "gpu-0 has"))) == (
        "seed 7, step 10: no device has two owners: gpu-0 has\n"
        "replay: python -m tests.simulation --seeds 7 --steps 10 --trace"
    )


def test_many_seeds_are_run_and_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """How far it is can be read on stderr, and nothing is on stdout."""
    monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", "0-2", "--steps", "10"])
    assert main() == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "3 of 3 seeds, 30 steps" in told.err
    assert "0 broken" in told.err


def test_a_manager_that_raises_what_is_none_of_its_errors_has_broken_a_law() -> None:
    """That is a bug, whatever it was about."""

    class Stumbling(DeviceManager):
        def evict(self, pods: Iterable[PodUid]) -> None:
            raise ZeroDivisionError(pods)

    problem = Simulation(0, 1000, manager=Stumbling).run().problem
    assert problem is not None
    assert problem.law == "nothing_but_its_own_errors_leaves_the_manager"
