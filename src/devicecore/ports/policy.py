"""Chooses which of the eligible devices a container gets.

Law: a policy chooses among eligible devices. A policy does not decide which devices are eligible, or whether a pod is
refused.
"""

from collections.abc import Collection
from typing import Protocol

from devicecore.domain.model import DeviceId
from devicecore.domain.policies import Choice


class AllocationPolicy(Protocol):
    """A function with one argument.

    `devicecore.domain.policies` contains several policies, and you can write your own.
    """

    def __call__(self, choice: Choice, /) -> Collection[DeviceId]:
        """Return `choice.size` different devices from `choice.available`, including all of `choice.must_include`.

        For the same `choice`, the answer must be the same. The manager holds no lock while it calls a policy. If other
        containers have taken devices in the meantime, the manager asks again. If a policy raises an error or returns an
        invalid answer, the pod is refused with a `PolicyError`.
        """
