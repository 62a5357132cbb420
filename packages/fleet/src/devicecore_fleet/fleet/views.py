"""Views of a fleet: each node's devices and its number of pods.

Law: a view is a snapshot of the managers' values, and nothing is computed while no one is watching.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum

from attrs import field, frozen

from devicecore.domain.model import DeviceId


class DeviceCell(Enum):
    """A device in a view."""

    FREE = "free"
    HELD = "held"
    UNHEALTHY = "unhealthy"
    LOST = "held and unhealthy"


def cell_of(*, is_healthy: bool, is_held: bool) -> DeviceCell:
    """Return the cell for a device."""
    if is_healthy:
        return DeviceCell.HELD if is_held else DeviceCell.FREE
    return DeviceCell.LOST if is_held else DeviceCell.UNHEALTHY


@frozen
class ProviderView:
    """A node's plugin or driver, and its devices in the order of the file."""

    name: str
    is_there: bool
    devices: tuple[tuple[DeviceId | str, DeviceCell], ...]


@frozen
class NodeView:
    """A node: whether it is running, whether it is separated from the API server, its devices and its pods by phase."""

    name: str
    is_up: bool
    is_cut: bool
    providers: tuple[ProviderView, ...]
    pods: Mapping[str, int] = field(factory=dict)
    is_refused: bool = False  # the Node with this node's name is not ours

    @property
    def state(self) -> str:
        """The node's state in one word."""
        if not self.is_up:
            return "down"
        return "refused" if self.is_refused else "separated" if self.is_cut else "up"

    def as_json(self) -> dict[str, object]:
        """Return the node as `--json` prints it."""
        return {
            "node": self.name,
            "state": self.state,
            "pods": dict(self.pods),
            "devices": {
                one.name: {"there": one.is_there, **{str(name): cell.value for name, cell in one.devices}}
                for one in self.providers
            },
        }


@frozen
class Totals:
    """The numbers of nodes, pods and devices, each by state."""

    nodes: Mapping[str, int]
    pods: Mapping[str, int]
    devices: Mapping[tuple[str, DeviceCell], int]

    @classmethod
    def of(cls, nodes: Iterable[NodeView]) -> "Totals":
        """Count nodes, pods and devices."""
        states, pods, devices = Counter[str](), Counter[str](), Counter[tuple[str, DeviceCell]]()
        for node in nodes:
            states[node.state] += 1
            pods.update(node.pods)
            for provider in node.providers:
                devices.update((provider.name, cell) for _, cell in provider.devices)
        return cls(states, pods, devices)
