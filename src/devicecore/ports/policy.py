"""Which of the possible devices a container gets.

Law: a policy chooses among devices that are possible. It does not decide which devices are possible, or whether a pod
is refused.
"""

from collections.abc import Collection
from typing import Protocol

from devicecore.domain.model import DeviceId
from devicecore.domain.policies import Choice


class AllocationPolicy(Protocol):
    """A function of one argument. `devicecore.domain.policies` has some, and a function of your own is one."""

    def __call__(self, choice: Choice, /) -> Collection[DeviceId]:
        """Return `choice.size` different devices of `choice.available`, among them all of `choice.must_include`.

        The same choice has the same answer. The manager holds no lock while it calls a policy. If other containers
        have taken devices meanwhile, the manager asks again. If a policy raises an error or answers something else, the
        pod is refused with a `PolicyError`.
        """
