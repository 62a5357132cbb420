"""Tools for testing adapters, and programs that use devicecore.

* `contracts`: a suite of checks for every port, to run on your own adapters.
* `faults`: adapters that fail when a test says so.
* `strategies`: Hypothesis strategies for the values of the domain. Only `strategies` needs Hypothesis, which the extra
  `testing` installs.
"""
