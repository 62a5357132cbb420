"""Events that a transport delivers, in the order in which they happened to each plugin instance.

Law: each event about a plugin instance names the instance, and never changes what another instance reported.
"""

from collections.abc import Iterable

from attrs import field, frozen

from devicecore.domain.device_list import DeviceList
from devicecore.domain.model import Device, PluginId, PluginOptions


@frozen
class RegistrationRequested:
    """A caller asked to register `resource`, which has not been validated yet.

    A kubelet counts a registration before any check (kubelet.md 2.4).
    """

    resource: str


@frozen
class PluginRegistered:
    """The transport is connected to a plugin and has its options. The plugin will report its devices."""

    plugin: PluginId
    options: PluginOptions


def _listed(devices: Iterable[Device]) -> DeviceList:
    return DeviceList.of(devices)


@frozen
class DevicesReported:
    """A plugin sent its complete list, which replaces the previous one."""

    plugin: PluginId
    devices: DeviceList = field(converter=_listed)


@frozen
class PluginLost:
    """The plugin's stream has ended. The instance does not return; a plugin that registers again is a new instance."""

    plugin: PluginId


Event = RegistrationRequested | PluginRegistered | DevicesReported | PluginLost
"""What a transport passes to its listener."""
