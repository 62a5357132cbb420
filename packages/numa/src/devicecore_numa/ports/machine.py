"""The source of the machine's description.

Law: the machine does not change while its source is in use.
"""

from typing import Protocol

from devicecore_numa.domain.machine import Machine


class MachineSource(Protocol):
    """Describes the machine, which does not change while a kubelet runs."""

    def machine(self) -> Machine:
        """Return the machine.

        Raises:
            NumaConfigError: the description cannot be read, or does not describe a machine.
        """
