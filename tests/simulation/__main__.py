"""Runs many seeds and reports progress on stderr. The exit status is 1 if a law was broken."""

import argparse
import logging
import sys
import time

from tests.simulation.run import Simulation


def main() -> int:
    """Run the seeds given on the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=_seeds("0-9"), metavar="SEED|FIRST-LAST")
    parser.add_argument("--steps", type=int, default=1000, help="number of steps to run for each seed (%(default)s)")
    parser.add_argument("--trace", action="store_true", help="print every step")
    options = parser.parse_args()
    began, actions, broken = time.monotonic(), 0, 0
    for number, seed in enumerate(options.seeds, start=1):
        outcome = Simulation(seed, options.steps).run()
        actions += outcome.actions
        if options.trace:
            sys.stdout.write("\n".join((*outcome.trace, "")))
        if outcome.problem:
            broken += 1
            sys.stderr.write(f"\n{outcome}\n")
        sys.stderr.write(f"\r{number} of {len(options.seeds)} seeds, {number * options.steps} steps, {actions} actions")
        sys.stderr.flush()
    seconds = time.monotonic() - began
    sys.stderr.write(f": {broken} broken, {seconds:.0f} s, {actions / seconds:.0f} actions/s\n")
    return 1 if broken else 0


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # the simulation provokes every failure, and the manager logs each
    sys.exit(main())
