"""Facts a transport delivers, in the order in which they happened to each plugin instance.

Law: every fact names the plugin instance it is about, so that it can never change what another instance said.
"""

from collections.abc import Iterable

from attrs import field, frozen

from devicecore.domain.device_list import DeviceList
from devicecore.domain.model import Device, PluginId, PluginOptions


@frozen
class RegistrationRequested:
    """Somebody called Register, with whatever name; counted before anything is checked (kubelet.md 2.4)."""

    resource: str


@frozen
class PluginRegistered:
    """A plugin was dialled, has told its options, and will report."""

    plugin: PluginId
    options: PluginOptions


def _listed(devices: Iterable[Device]) -> DeviceList:
    return DeviceList.of(devices)


@frozen
class DevicesReported:
    """A plugin sent a list: complete, in its order, replacing what it sent before."""

    plugin: PluginId
    devices: DeviceList = field(converter=_listed)


@frozen
class PluginLost:
    """The plugin's stream has ended. It stays lost; one that comes back is another instance."""

    plugin: PluginId


Event = RegistrationRequested | PluginRegistered | DevicesReported | PluginLost
"""What a transport tells its listener."""
