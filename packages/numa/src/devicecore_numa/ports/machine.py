"""The port through which the managers read the machine's description.

Law: the machine does not change while the source is in use.
"""

from typing import Protocol

from devicecore_numa.domain.machine import Machine


class MachineSource(Protocol):
    """Describes a machine. The machine does not change while a kubelet is running."""

    def machine(self) -> Machine:
        """Return the machine.

        Raises:
            NumaConfigError: the description cannot be read, or does not describe a machine.
        """
