"""Talk to device plugins."""

from collections.abc import Callable, Sequence
from typing import Protocol

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.events import Event
from devicecore.domain.model import DeviceId, PluginId, Receipt

Listener = Callable[[Event], None]
"""Who hears of events. It may be called from any thread, for one plugin instance never from two at once.

When it raises a `DeviceCoreError` on `PluginRegistered`, the registration is refused with that sentence.
"""


class PluginTransport(Protocol):
    """The way to the plugins: they register and report through it, and are called through it.

    Every call to a plugin ends within a finite time that the adapter is told at construction, or within `timeout`
    seconds where that is less, and raises `PluginCallError` when the time is over. An answer that comes later is lost.
    """

    def start(self, listener: Listener) -> None:
        """Begin to take registrations. Events may arrive before this returns.

        Raises:
            SetUpError: the adapter's sockets or directories cannot be used; nothing was left behind.
        """

    def stop(self) -> None:
        """Let go of every plugin, without `PluginLost` events. Stopping twice, or before the start, is no error."""

    def allocate(self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None) -> Receipt:
        """Ask `plugin` to prepare `devices` for one container; its answer, as a receipt this transport can `read`.

        Raises:
            PluginStoppedError: this instance has gone; nothing was sent.
            EmptyAllocateResponseError: it answered without an answer.
            PluginCallError: anything else went wrong.
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
        """Ask `plugin` which `size` of `available` it would give away, in its order, unchecked.

        Raises:
            PluginStoppedError: this instance has gone; nothing was sent.
            PluginCallError: the call failed.
        """

    def pre_start_container(
        self, plugin: PluginId, devices: Sequence[DeviceId], *, timeout: float | None = None
    ) -> None:
        """Tell `plugin` that a container with `devices` is about to start.

        Raises:
            PluginStoppedError: this instance has gone; nothing was sent.
            PluginCallError: the call failed.
        """

    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        """What a receipt says. It may have been written by another process, long ago.

        Raises:
            UnreadableReceiptError: this transport cannot read it.
        """
