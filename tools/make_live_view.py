"""Draw the picture of the live view in `docs/`: `python tools/make_live_view.py`."""

import io
import re
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from devicecore.adapters.manifests import ManifestError
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.cli.kubelet.state import KubeletState, PodState
from devicecore.cli.kubelet.view import render
from devicecore.domain.admission import Admitted
from devicecore.domain.model import Container, Pod, PodUid
from devicecore.manager import DeviceManager
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices

GPU, RDMA = "example.com/gpu", "example.com/rdma"
PODS = (
    Pod(PodUid("1"), name="train", containers=(Container("main", {GPU: 3, RDMA: 1}), Container("logs"))),
    Pod(PodUid("2"), name="serve", namespace="prod", containers=(Container("model", {GPU: 2}),)),
    Pod(PodUid("3"), name="big", containers=(Container("main", {GPU: 8}),)),
)
EVENTS = (
    f"14:03:11 {GPU}: 8 of 8 devices allocatable",
    "14:03:11 pod default/train: Running",
    "14:03:24 pod prod/serve: Running",
    f"14:04:02 {GPU}: 7 of 8 devices allocatable",
)


def main() -> None:
    """Admit some pods and draw the view."""
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        gpus = simulated_devices("gpu", 8, numa_nodes=[0, 1], unhealthy=[6])
        transport.connect(SimulatedPlugin(GPU, gpus))
        transport.connect(SimulatedPlugin(RDMA, simulated_devices("rdma", 4)))
        verdicts = [(pod, manager.admit(pod)) for pod in PODS]
        pods = tuple(
            PodState(pod, "Running", "") if isinstance(verdict, Admitted) else PodState(pod, "Pending", str(verdict))
            for pod, verdict in verdicts
        )
        problem = ManifestError(
            "typo.yaml", 12, f"spec.containers[0].resources.limits[{GPU}]", '"2x" is not a quantity'
        )
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(render(KubeletState(manager.state, pods, (problem,)), "node-1", EVENTS, 100, None))
        picture = Path(__file__).parent.parent / "docs" / "live-view.svg"
        picture.write_text(
            console.export_svg(title="devicecore kubelet", unique_id="devicecore", code_format=_format())
        )


def _format() -> str:
    """The format of rich's pictures without its fonts, which a browser would load from a server."""
    without_fonts = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return without_fonts.replace("Fira Code, monospace", "monospace")


if __name__ == "__main__":
    main()
