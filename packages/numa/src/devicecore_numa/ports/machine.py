"""The port through which the machine's description is read.

Law: the machine does not change while its source is in use.
"""

from typing import Protocol

from devicecore_numa.domain.machine import Machine


class MachineSource(Protocol):
    """Describes the machine, which does not change while a kubelet is running."""

    def machine(self) -> Machine:
        """Return the machine.

        Raises:
            NumaConfigError: the description cannot be read, or does not describe a machine.
        """
