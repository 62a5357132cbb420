"""Runs the good driver, or the faulty one that the argument names: `run_driver.py [GROUP:CLASS]`."""

import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.conformance.good_driver import GoodDriver

if len(sys.argv) > 1:
    group, _, name = sys.argv[1].partition(":")
    driver: type[GoodDriver] = getattr(import_module(f"tests.conformance.faults.{group}"), name)
else:
    driver = GoodDriver
driver().run()
