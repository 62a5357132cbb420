"""Talks to device plugins.

Law: a plugin instance's events arrive one at a time, in the order in which they happened.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.events import Event
from devicecore.domain.model import DeviceId, PluginId, Receipt

Listener = Callable[[Event], None]
"""Receives events. Calls may come from any thread, but only one at a time for each plugin instance.

If the listener raises a `DeviceCoreError` for `PluginRegistered`, the transport refuses the registration with the
error's text.
"""


class PluginTransport(Protocol):
    """Connects the manager to plugins: accepts registrations and reports, and makes calls.

    Each call to a plugin has `timeout` seconds, but no more than the limit that the adapter was given at construction.
    If the plugin has not answered by then, the call raises `PluginCallError`, and a later answer is ignored.
    """

    def start(self, listener: Listener) -> None:
        """Begin to accept registrations. Events may arrive before this method returns.

        Raises:
            SetUpError: the adapter's sockets or directories cannot be used. Nothing is left behind.
        """

    def stop(self) -> None:
        """Disconnect every plugin without `PluginLost` events.

        Stopping a second time, or before the start, is not an error.
        """

    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        """Ask `plugin` to prepare `devices` for one container. Return the plugin's answer as a receipt for `read`.

        Raises:
            PluginStoppedError: this instance is gone, so nothing was sent.
            EmptyAllocateResponseError: the plugin's answer has no container response.
            PluginCallError: the call failed in another way.
        """

    def get_preferred_allocation(
        self,
        plugin: PluginId,
        available: Sequence[DeviceId],
        must_include: Sequence[DeviceId],
        size: int,
        *,
        timeout: float | None = None,
    ) -> tuple[DeviceId, ...]:
        """Ask `plugin` which `size` of the `available` devices it would allocate.

        Return the plugin's answer as it is, unchecked.

        Raises:
            PluginStoppedError: this instance is gone, so nothing was sent.
            PluginCallError: the call failed.
        """

    def pre_start_container(
        self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None
    ) -> None:
        """Tell `plugin` that a container with `devices` is about to start.

        Raises:
            PluginStoppedError: this instance is gone, so nothing was sent.
            PluginCallError: the call failed.
        """

    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        """Return the answer stored in a receipt. A different process may have written the receipt long ago.

        Raises:
            UnreadableReceiptError: this transport cannot read the receipt.
        """
