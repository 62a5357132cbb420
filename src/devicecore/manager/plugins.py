"""Calls plugins: the instances that currently serve their resources.

Law: no lock is held while a plugin is called.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from attrs import define

from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import EndpointNotFoundError, NoDevicesAllocatedError, PluginCallError, PluginStoppedError
from devicecore.domain.inventory import Plugin
from devicecore.domain.model import ContainerKey, DeviceId, Receipt, ResourceName
from devicecore.domain.node_state import NodeState
from devicecore.domain.selection import AskPlugin
from devicecore.ports.metrics import Metrics
from devicecore.ports.transport import PluginTransport
from devicecore.runtime.current_state import CurrentState
from devicecore.runtime.measuring import Clock, measured


@define(eq=False, repr=False)
class Plugins:
    """The plugins of one manager, by resource."""

    _transport: PluginTransport
    _state: CurrentState[NodeState]
    _metrics: Metrics | None
    _clock: Clock

    def allocate(self, resource: ResourceName, devices: Sequence[DeviceId], timeout: float) -> Receipt:
        """Ask the plugin to prepare `devices` for one container.

        Raises PluginError if there is no plugin or the plugin fails.
        """
        metrics = self._metrics
        if metrics is None:
            return self._transport.allocate(self._instance(resource).id, devices, timeout=timeout)
        with measured(self._clock, lambda seconds, _: metrics.device_plugin_alloc_duration(resource, seconds)):
            return self._transport.allocate(self._instance(resource).id, devices, timeout=timeout)

    def preferred(self, resource: ResourceName, question: AskPlugin, timeout: float) -> Sequence[DeviceId]:
        """Return the devices that the plugin prefers.

        Raises PluginError if there is no plugin or the plugin does not answer.
        """
        with _stopped_plugin_as_failed_call(resource, "GetPreferredAllocation"):
            return self._transport.get_preferred_allocation(
                self._instance(resource).id,
                tuple(question.candidates),
                tuple(question.must_include),
                question.size,
                timeout=timeout,
            )

    def offers_preference(self, resource: ResourceName) -> bool:
        """Return whether the plugin offers GetPreferredAllocation.

        Raises EndpointNotFoundError if there is no plugin.
        """
        return self._instance(resource).options.get_preferred_allocation_available

    def pre_start(self, key: ContainerKey, resource: ResourceName) -> None:
        """Call the plugin's PreStartContainer if the plugin requires that call.

        Raises PluginError if there is no plugin or the plugin fails, and NoDevicesAllocatedError if the container has
        no devices.
        """
        state = self._state.value
        known = state.inventory.resources.get(resource)
        if known and known.plugin is None:
            # the plugin has not come back since the restart, so its options are unknown; a kubelet continues
            # (kubelet.md 7.2)
            return
        plugin = self._instance(resource)
        if not plugin.options.pre_start_required:
            return
        allocation = state.ledger.allocation(key, resource)
        if allocation is None:
            raise NoDevicesAllocatedError(key.pod, key.container, resource)
        with _stopped_plugin_as_failed_call(resource, "PreStartContainer"):
            self._transport.pre_start_container(plugin.id, tuple(allocation.devices))

    def read(self, receipt: Receipt) -> ContainerAllocateResponse:
        """Return a plugin's Allocate response. Raises UnreadableReceiptError if the response cannot be read."""
        return self._transport.read(receipt)

    def _instance(self, resource: ResourceName) -> Plugin:
        known = self._state.value.inventory.resources.get(resource)
        plugin = known.plugin if known else None
        if plugin is None:
            raise EndpointNotFoundError(resource)
        return plugin


@contextmanager
def _stopped_plugin_as_failed_call(resource: ResourceName, method: str) -> Iterator[None]:
    """Report a disconnected plugin as a failed call.

    A kubelet does the same, except in Allocate (kubelet.md 5.5, 7.2).
    """
    try:
        yield
    except PluginStoppedError as error:
        raise PluginCallError(resource, method, str(error)) from error
