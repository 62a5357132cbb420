"""Runs the good driver, or the faulty driver that the argument names: `run_driver.py [GROUP:CLASS]`.

Law: the program exits when the driver does.
"""

import sys

from devicecore_tools.conformance.faults import driver_at
from devicecore_tools.conformance.faults.good_driver import GoodDriver

if __name__ == "__main__":
    driver = driver_at(sys.argv[1]) if len(sys.argv) > 1 else GoodDriver
    driver().run()
