"""The plugin's own side: what somebody writes who has devices to offer."""

from collections.abc import Callable, Sequence
from typing import Protocol

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.model import Device, DeviceId, PluginOptions, ResourceName


class DevicePlugin(Protocol):
    """One resource and its devices. `resource`, `devices` and `allocate` are all a plugin needs; the rest has defaults.

    Subclass it to get the defaults. Any adapter can serve it: in memory, or over gRPC to a real kubelet. Methods may
    be called from several threads at once. What a method raises becomes the caller's error, with its text.
    """

    resource: ResourceName
    options: PluginOptions = PluginOptions()

    def devices(self) -> Sequence[Device]:
        """The complete list as it is now."""

    def allocate(self, devices: Sequence[DeviceId]) -> ContainerAllocateResponse:
        """Prepare `devices` for one container, and say what the container must be given.

        Asking again for the same devices is no error: a kubelet does after a failed start.
        """

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Arrange for `changed` to be called whenever `devices` would answer differently; returns how to end that.

        The default suits a plugin whose list never changes.
        """
        return lambda: None

    def get_preferred_allocation(
        self, available: Sequence[DeviceId], must_include: Sequence[DeviceId], size: int
    ) -> Sequence[DeviceId]:
        """Which `size` devices of `available` would go best together. Called only if `options` announces it."""
        return ()

    def pre_start_container(self, devices: Sequence[DeviceId]) -> None:
        """A container with `devices` is about to start. Called only if `options` requires it."""
        return  # nothing to prepare by default
