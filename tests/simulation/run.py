"""A run of the simulation, which depends only on a seed, and its outcome.

Law: the same seed gives the same run, down to the last line of its trace, because one `Random` makes every choice.
"""

from random import Random

from attrs import field, frozen

from devicecore.manager import DeviceManager
from tests.simulation.steps import LawBrokenError, Steps
from tests.simulation.world import ManagerType


@frozen
class Problem:
    """A broken law, the number of the step that broke it, and what the law found."""

    step: int
    law: str
    violation: str


@frozen
class Outcome:
    """The outcome of a run. `actions` is the number of steps and of actions during calls to plugins."""

    seed: int
    steps: int
    actions: int
    trace: tuple[str, ...]
    problem: Problem | None = None

    @property
    def command(self) -> str:
        """The command that repeats the run up to its end."""
        return f"python -m tests.simulation --seeds {self.seed} --steps {self.steps} --trace"

    def __str__(self) -> str:
        if self.problem is None:
            return f"seed {self.seed}: {self.steps} steps, all laws held"
        words = self.problem.law.replace("_", " ")
        return f"seed {self.seed}, step {self.problem.step}: {words}: {self.problem.violation}\nreplay: {self.command}"


@frozen
class Simulation:
    """One run of one node.

    Args:
        seed: the seed of the `Random` that makes every choice.
        steps: the number of steps, not counting the actions during calls to plugins.
        manager: what creates the manager: `DeviceManager`, or a subclass to be tested.
    """

    seed: int
    steps: int = 1000
    manager: ManagerType = field(default=DeviceManager, kw_only=True)

    def run(self) -> Outcome:
        """Take all steps, but stop at a step that breaks a law."""
        chance = Random(self.seed)  # noqa: S311 - a run has to be repeatable, not secret
        steps, problem = Steps(chance, self.manager), None
        try:
            steps.start()
            for _ in range(self.steps):
                steps.take_step()
        except LawBrokenError as broken:
            problem = Problem(steps.step, broken.law, broken.violation)
        return Outcome(self.seed, steps.step, steps.world.actions_done, tuple(steps.trace), problem)
