"""Conformance checks for drivers of dynamic resource allocation (DRA), in any language.

`run` starts a driver as a process, with its own API server, kubelet's side and directories, and runs checks.

How to add a check
------------------
1. Choose the module of the check's group in `checks/`, or add a module. Write a function::

       @check(
           MUST,
           expected="what should happen",
           clause="the rule from which that follows. (its source)",
           found=("owner/repository#12",),  # known faults of real drivers that it finds
       )
       def prepare_is_idempotent(driver: DriverUnderTest) -> str:
           \"\"\"What the check does, in a sentence.\"\"\"
           claim = driver.calls.ready()                # what it needs: Skip if the driver does not do it
           again = driver.calls.prepared(claim)        # what it tests: Failure if the driver does not do it
           require(again, "what happened instead")     # Failure with this text
           return "what happened"

   The function's name is the check's name. A "must" check runs by default. Other checks run by default only if they
   have `core=True`, and otherwise only in a full run. **A check fails only for its own subject**: it prepares itself
   with methods that raise `Skip` (`calls.ready`, `claims.new`, `registration.instance`), so one fault rarely fails
   several checks.
2. A check that needs a restart, a reboot or a quiet time is a generator, decorated with `across(EVENT, ...)`; see
   `checks/events`. The generator yields where the event happens. All checks for an event share one occurrence.
   `driver.registration.returns[...]` says how the driver came back.
3. A check of what the driver reports on startup is decorated with `at_start(...)`. A check after which the driver may
   need a restart is decorated with `at_the_end(...)`. `checks/__init__.py` defines the order of these stages, and of
   the modules in each.
4. Add a fault to `conformance/faults/drivers/<group>.py`: a subclass of the good driver that fails this check. If other
   checks cannot pass because of the fault, list them in `breaks_too`.

A check leaves nothing behind. Claims that the check created with `driver.claims.new` are unprepared and deleted after
the check. API server faults end with the `driver.faults` block, and the server's absence ends with the
`driver.without_api_server` block. A driver that has exited or is no longer registered is restarted for the next check.
"""

from devicecore_tools.conformance.dra.checks import CHECKS, CORE
from devicecore_tools.conformance.dra.driver import DriverUnderTest
from devicecore_tools.conformance.dra.environment import Environment
from devicecore_tools.conformance.dra.run import run
from devicecore_tools.conformance.dra.settings import FULL, DriverTestSettings

__all__ = ["CHECKS", "CORE", "FULL", "DriverTestSettings", "DriverUnderTest", "Environment", "run"]
