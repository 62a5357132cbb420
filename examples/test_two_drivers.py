"""Two DRA drivers and a kubelet restart: the kubelet remembers their claims and calls them again."""

from collections.abc import Mapping, Sequence

from devicecore_tools.testing.dra_kubelet import MemoryDraKubelet

from devicecore.dra import ClaimRef, ClaimUid, DriverName, PreparedDevice, PrepareResult, UnprepareResult
from devicecore.ports.dra_driver import DraDriver


class CountingDriver(DraDriver):
    """A driver that counts how often it has prepared each claim."""

    def __init__(self, name: str) -> None:
        self.name = DriverName(name)
        self.prepared = 0

    def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareResult]:
        self.prepared += len(claims)
        device = PreparedDevice("node-1", "d-0", cdi_ids=(f"{self.name}/device=d-0",))
        return {claim.uid: PrepareResult((device,)) for claim in claims}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, UnprepareResult]:
        return {claim.uid: UnprepareResult() for claim in claims}


def test_a_restart_forgets_no_claim() -> None:
    drivers = [CountingDriver("gpu.example.com"), CountingDriver("nic.example.com")]
    with MemoryDraKubelet() as kubelet:
        for driver in drivers:
            kubelet.serve(driver)
            kubelet.publish(driver.name, "d-0")
        pod = kubelet.prepare(*(kubelet.claim(driver.name) for driver in drivers))
        before = pod.cdi_devices()
        kubelet.restart()  # the drivers are not restarted, but register again
        pod.prepare()
        assert pod.cdi_devices() == before == ("gpu.example.com/device=d-0", "nic.example.com/device=d-0")
    assert [driver.prepared for driver in drivers] == [2, 2]  # each gave the same answer again
