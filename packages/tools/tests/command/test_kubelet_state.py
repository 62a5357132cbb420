"""The state of `devicecore kubelet` rendered as JSON, reusing the JSON of unchanged pods."""

import json

from devicecore_tools.node.state import PENDING, RUNNING, KubeletState, PodState, PodTexts

from devicecore.domain.ledger import Allocation, Ledger
from devicecore.domain.model import Container, ContainerKey, DeviceId, Pod, PodUid, Receipt, ResourceName
from devicecore.domain.node_state import NodeState

GPU = ResourceName("acme.io/gpu")


def pod(name: str) -> Pod:
    return Pod(PodUid(f"uid-{name}"), name=name, containers=(Container("main", {GPU: 1}),))


def allocation(of: Pod, device: str) -> Allocation:
    return Allocation(ContainerKey(of.uid, "main"), GPU, {DeviceId(device): ()}, Receipt(b""))


def test_the_text_matches_the_json() -> None:
    pods = (PodState(pod("a\x1b\n\u2028"), RUNNING, ""), PodState(pod("b"), PENDING, "too few devices"))
    state = KubeletState(NodeState(ledger=Ledger.of([allocation(pods[0].pod, "gpu-1")])), pods, sink_problem="no node")
    text = state.to_text("node-1", PodTexts())
    assert json.loads(text) == state.to_json("node-1")
    assert "\x1b" not in text
    assert json.loads(text.replace("\n", "")) == json.loads(text)


def test_a_pods_text_is_rendered_again_only_if_it_has_changed() -> None:
    a, b = pod("a"), pod("b")
    ledger = Ledger.of([allocation(a, "gpu-1")])
    texts = PodTexts()
    before = texts.of(KubeletState(NodeState(ledger=ledger), (PodState(a, RUNNING, ""), PodState(b, PENDING, "x"))))
    other = Ledger.of([*ledger, allocation(b, "gpu-2")])
    ledger = Ledger({**ledger.allocations, b.uid: other.allocations[b.uid]})
    after = texts.of(KubeletState(NodeState(ledger=ledger), (PodState(a, RUNNING, ""), PodState(b, PENDING, "x"))))
    assert after[0] is before[0]
    assert "gpu-2" in after[1]
    (only,) = texts.of(KubeletState(NodeState(ledger=ledger), (PodState(b, RUNNING, ""),)))
    assert json.loads(only)["phase"] == RUNNING
