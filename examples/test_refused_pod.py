"""Say why a pod is refused, in a kubelet's words, and which resource name is misspelled."""

from devicecore import Admitted, Container, DeviceManager, Pod, PodUid, Refused
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.plugins.simulated import SimulatedPlugin, simulated_devices

GPU = "example.com/gpu"


def test_a_pod_that_asks_for_too_much_is_refused() -> None:
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 2)))
        verdict = manager.admit(Pod(PodUid("big"), containers=[Container("train", {GPU: 3})]))
    assert isinstance(verdict, Refused)
    assert verdict.container == "train"
    assert str(verdict) == f"requested number of devices unavailable for {GPU}. Requested: 3, Available: 2"
    assert verdict.reason == "UnexpectedAdmissionError"  # what `kubectl describe pod` shows


def test_a_misspelled_resource_does_not_refuse_the_pod_and_is_named() -> None:
    """A kubelet ignores resources that it does not know, so check `unhandled`."""
    transport = MemoryTransport()
    with DeviceManager(transport, MemoryStore(), MemorySink()) as manager:
        transport.connect(SimulatedPlugin(GPU, simulated_devices("gpu", 2)))
        verdict = manager.admit(Pod(PodUid("typo"), containers=[Container("train", {"example.com/gpus": 1})]))
    assert isinstance(verdict, Admitted)
    assert verdict.unhandled == (("train", "example.com/gpus"),)
