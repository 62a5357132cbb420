"""A whole node in one deterministic run from a seed: plugins, pods, clock, disk, crashes, and the laws for all of it.

`world` is what is around the manager, `happenings` what may happen, `laws` what the manager is judged by, and `run` one
run of it all. `docs/simulation.md` says how to use it, and
`python -m devicecore.testing.simulation --seeds 0-99 --steps 1000` makes a hundred runs.
"""

from devicecore.testing.simulation.run import Outcome, Problem, Simulation

__all__ = ["Outcome", "Problem", "Simulation"]
