"""Tools for tests of device plugins, of adapters, and of programs that use devicecore.

* `kubelet`: a kubelet for tests of device plugins, and pytest fixtures for it.
* `contracts`: a suite of checks for every port, to be run over your own adapters.
* `faults`: adapters that fail when a test says so.
* `strategies`: Hypothesis strategies for the values of the domain. Only this module needs Hypothesis, which the extra
  `testing` installs.
"""
