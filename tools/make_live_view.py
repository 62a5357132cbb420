"""Draw the picture of the live view for `docs/`: `python tools/make_live_view.py`."""

import io
import re
from pathlib import Path

from devicecore_tools.command.kubelet.view import render
from devicecore_tools.node.state import RUNNING, KubeletState, PodState
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.model import Container, Pod, PodUid
from devicecore.manager import DeviceManager
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices

GPU = "example.com/gpu"
POD = Pod(PodUid("1"), name="train", containers=(Container("main", {GPU: 3}),))
EVENTS = (
    "14:03:09 started in /tmp/node, with 0 allocations from before",
    f"14:03:11 {GPU} registered at /tmp/node/device-plugins/gpu-eec9fd00.sock",
    f"14:03:11 {GPU}: 8 of 8 devices allocatable",
    "14:03:24 pod default/train: Running",
)


def main() -> None:
    """Draw the first terminal in docs/run-it.md."""
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 8, numa_nodes=[0, 1])))
        manager.admit(POD)
        console = Console(width=90, record=True, file=io.StringIO())
        state = KubeletState(manager.state, (PodState(POD, RUNNING, ""),))
        console.print(render(state, "node-1", EVENTS, 90, None))
        picture = Path(__file__).parent.parent / "docs" / "live-view.svg"
        picture.write_text(
            console.export_svg(title="devicecore kubelet", unique_id="devicecore", code_format=_format())
        )


def _format() -> str:
    """Return rich's SVG template without its fonts, which a browser would load from a server."""
    without_fonts = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return without_fonts.replace("Fira Code, monospace", "monospace")


if __name__ == "__main__":
    main()
