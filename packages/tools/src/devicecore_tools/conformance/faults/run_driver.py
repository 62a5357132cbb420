"""Runs the good driver, or the faulty one that the argument names: `run_driver.py [GROUP:CLASS]`.

Law: it ends with the driver.
"""

import sys
from importlib import import_module

from devicecore_tools.conformance.faults.good_driver import GoodDriver

if __name__ == "__main__":
    driver: type[GoodDriver] = GoodDriver
    if len(sys.argv) > 1:
        group, _, name = sys.argv[1].partition(":")
        driver = getattr(import_module(f"devicecore_tools.conformance.faults.drivers.{group}"), name)
    driver().run()
