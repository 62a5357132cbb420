"""The pytest fixtures of devicecore-tools in your own project: they are available as soon as it is installed."""

from collections.abc import Mapping, Sequence

from devicecore_tools.testing.dra_kubelet import MemoryDraKubelet
from devicecore_tools.testing.kubelet import MemoryKubelet

from devicecore.dra import ClaimRef, ClaimUid, DriverName, PreparedDevice, PrepareResult, UnprepareResult
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices
from devicecore.ports.dra_driver import DraDriver

GPU = "example.com/gpu"


def test_my_plugin(memory_kubelet: MemoryKubelet) -> None:
    """`memory_kubelet` is a kubelet for plugins that are Python objects."""
    memory_kubelet.serve(SimulatedPlugin(GPU, simulated_devices("gpu", 4), variable="GPUS"))
    pod = memory_kubelet.admit({GPU: 2})
    assert pod.envs == {"GPUS": "gpu-0,gpu-1"}


class MyDriver(DraDriver):
    """A driver that gives each claim the device p-0."""

    name = DriverName("my.example.com")

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        device = PreparedDevice("node-1", "p-0", cdi_ids=("my.example.com/device=p-0",))
        return {claim.uid: PrepareResult((device,)) for claim in claims}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        return {claim.uid: UnprepareResult() for claim in claims}


def test_my_driver(memory_dra_kubelet: MemoryDraKubelet) -> None:
    """`memory_dra_kubelet` is a kubelet for DRA drivers that are Python objects. Devices are published one by one."""
    memory_dra_kubelet.serve(MyDriver())
    memory_dra_kubelet.publish("my.example.com", "p-0", "p-1")
    pod = memory_dra_kubelet.prepare(memory_dra_kubelet.claim("my.example.com"))
    assert pod.cdi_devices() == ("my.example.com/device=p-0",)
