"""One run from a seed, and how it ended.

Law: the same seed is the same run, to the last line of its trace. Whatever is left to chance is left to one `Random`.
"""

from random import Random

from attrs import field, frozen

from devicecore.manager import DeviceManager
from tests.simulation.steps import LawBrokenError, Steps
from tests.simulation.world import ManagerType


@frozen
class Problem:
    """The law that was broken, at which step, and what was seen."""

    step: int
    law: str
    complaint: str


@frozen
class Outcome:
    """How a run ended. `moments` counts all that happened, also what happened during something else."""

    seed: int
    steps: int
    moments: int
    trace: tuple[str, ...]
    problem: Problem | None = None

    @property
    def command(self) -> str:
        """What replays the run, up to its end."""
        return f"python -m tests.simulation --seeds {self.seed} --steps {self.steps} --trace"

    def __str__(self) -> str:
        if self.problem is None:
            return f"seed {self.seed}: {self.steps} steps, all laws held"
        words = self.problem.law.replace("_", " ")
        return f"seed {self.seed}, step {self.problem.step}: {words}: {self.problem.complaint}\nreplay: {self.command}"


@frozen
class Simulation:
    """One run of one node.

    Args:
        seed: decides everything.
        steps: how many things happen, not counting those that happen during others.
        manager: makes the manager: `DeviceManager`, or a subclass of yours that the laws are to be tried on.
    """

    seed: int
    steps: int = 1000
    manager: ManagerType = field(default=DeviceManager, kw_only=True)

    def run(self) -> Outcome:
        """Let it all happen, until the end or until a law is broken."""
        chance = Random(self.seed)  # noqa: S311 - it is to be repeated, not to be secret
        steps, problem = Steps(chance, self.manager), None
        try:
            steps.start()
            for _ in range(self.steps):
                steps.happen()
        except LawBrokenError as broken:
            problem = Problem(steps.step, broken.law, broken.complaint)
        return Outcome(self.seed, steps.step, steps.world.moment, tuple(steps.trace), problem)
