"""What happens to a driver between the two parts of a check.

Law: after each of them the driver is registered again, or `DriverUnderTest.returns` says why not.
"""

from devicecore.conformance.dra.driver import DriverUnderTest
from devicecore.conformance.dra.steps import Occurrence


def _kill(driver: DriverUnderTest) -> None:
    driver.restart("killed")


def _reboot(driver: DriverUnderTest) -> None:
    driver.restart("rebooted", driver.environment.reboot)


def _corrupt(driver: DriverUnderTest) -> None:
    driver.restart_with_corrupt_files()


def _lose(driver: DriverUnderTest) -> None:
    driver.restart("lost", driver.environment.delete_state_files)


def _terminate(driver: DriverUnderTest) -> None:
    driver.terminate()


def _restart_kubelet(driver: DriverUnderTest) -> None:
    driver.restart_kubelet()


def _republish(driver: DriverUnderTest) -> None:
    driver.wait_republished()


def _be_quiet(driver: DriverUnderTest) -> None:
    driver.wait(lambda: None, driver.settings.quiet)


KILL = Occurrence("the driver is killed and started again", _kill)
REBOOT = Occurrence("the node reboots", _reboot)
CORRUPTION = Occurrence("the driver is started with corrupt state files", _corrupt)
LOSS = Occurrence("the driver is started without its state files", _lose)
TERM = Occurrence("the driver is ended with SIGTERM and started again", _terminate)
KUBELET_RESTART = Occurrence("the kubelet restarts and deletes the slices", _restart_kubelet, _republish)
QUIET = Occurrence("nothing happens", _be_quiet)
