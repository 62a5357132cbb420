"""The commands with which a user or a schedule changes a node.

Law: a command that does not apply to a node is refused with a sentence before anything is done.
"""

from collections.abc import Mapping, Sequence

from devicecore.domain.text import foreign_text, listed
from devicecore_fleet.fleet.description import GroupDescription

UNDONE_BY: Mapping[str, str] = {
    "unhealthy": "healthy",
    "healthy": "unhealthy",
    "plugin-gone": "plugin-back",
    "plugin-back": "plugin-gone",
    "driver-gone": "driver-back",
    "driver-back": "driver-gone",
    "partition": "heal",
    "heal": "partition",
    "down": "up",
    "up": "down",
    "reboot": "up",
}
"""The commands, each with the command that undoes it."""

USAGE = (
    "`unhealthy DEVICE`, `healthy DEVICE`, `plugin-gone RESOURCE`, `plugin-back RESOURCE`, `driver-gone NAME`, "
    "`driver-back NAME`, `partition`, `heal`, `down`, `up` or `reboot`"
)


def check_command(command: Sequence[str], group: GroupDescription) -> str:
    """Return why a node of a group cannot execute a command, or an empty string if it can."""
    match command:
        case ["unhealthy" | "healthy", device]:
            if places_of(device, group):
                return ""
            devices = [str(each.id) for one in group.plugins for each in one.devices]
            devices += [name for one in group.drivers for name in one.names]
            return f"there is no device {_shown(device)}; devices: {listed(devices, 20) or 'none'}"
        case ["plugin-gone" | "plugin-back", name]:
            known = [str(one.resource) for one in group.plugins]
            return "" if name in known else f"there is no plugin for {_shown(name)}, only for {_listed(known)}"
        case ["driver-gone" | "driver-back", name]:
            known = [str(one.name) for one in group.drivers]
            return "" if name in known else f"there is no driver {_shown(name)}, only {_listed(known)}"
        case ["partition" | "heal" | "down" | "up" | "reboot"]:
            return ""
        case _:
            return f"expected {USAGE}, got {_shown(' '.join(command))}"


def places_of(device: str, group: GroupDescription) -> tuple[tuple[str, str], ...]:
    """Return the (provider, name) pairs of the devices that match a name or `PROVIDER=NAME`."""
    providers = [(str(one.resource), {str(each.id) for each in one.devices}) for one in group.plugins]
    providers += [(str(one.name), set(one.names)) for one in group.drivers]
    return tuple(
        (provider, name)
        for provider, names in providers
        for name in dict.fromkeys((device, device.removeprefix(f"{provider}=")))
        if name in names
    )


def undone(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command that undoes a command."""
    return (UNDONE_BY[command[0]], *command[1:])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) or "none"


def _shown(text: str) -> str:
    return repr(foreign_text(text, 100))
