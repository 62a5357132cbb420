"""A device that belongs to both a plugin and a ResourceClaim is found only if a source shows it."""

import pytest
from attrs import evolve
from devicecore_tools.doctor.account.claims import pci_address
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.account.precedence import OwnerState
from devicecore_tools.doctor.findings.finding import NodeFinding
from devicecore_tools.doctor.findings.report import check, report
from devicecore_tools.doctor.look.values import ClaimedDeviceSeen, ClaimsSeen, Look, Reading, Source
from hypothesis import given
from hypothesis import strategies as st
from tests.doctor import nodes
from tests.doctor.nodes import CLEAN, GPU, NIC, NICS

UUID = "NPU-8f1c7e4e-5d1b-4b7e-9a57-2f3a1c9d0e11"


def of_claims(look: Look) -> list[NodeFinding]:
    found = check(Facts(look))
    return [one for one in found if one.code in {"plugin-and-claim", "offered-and-claimed"}]


def renamed(look: Look, old: str, new: str) -> Look:
    """Return `look` with a different id for a NIC in all sources."""

    def now(id_: str) -> str:
        return new if id_ == old else id_

    ids = tuple(map(now, NICS))
    look = nodes.with_registered(look, NIC, *ids)
    seen = nodes.file_of(look)
    assert seen.data is not None
    entries = [
        evolve(entry, device_ids={node: tuple(map(now, ids_ or ())) for node, ids_ in (entry.device_ids or {}).items()})
        for entry in seen.data.entries or ()
    ]
    look = nodes.with_file(look, evolve(seen, data=evolve(seen.data, entries=tuple(entries))))
    api = nodes.api_of(look)
    holdings = tuple(
        evolve(one, devices={now(id_): numa_nodes for id_, numa_nodes in one.devices.items()}) for one in api.holdings
    )
    allocatable = {**(api.allocatable or {}), NIC: dict.fromkeys(ids, ())}
    look = nodes.with_api(look, evolve(api, holdings=holdings, allocatable=allocatable))
    kept = [one for one in nodes.plugins_of(look) if one.socket != "nic.sock"]
    return nodes.with_plugins(look, *kept, nodes.plugin("nic.sock", ids))


@pytest.mark.parametrize(
    ("id_", "device", "attributes"),
    [
        ("0000:3b:00.0", "dev-7", {nodes.PCI: "0000:3b:00.0"}),
        ("0000:3B:00.0", "dev-7", {nodes.PCI: "0000:3b:00.0"}),
        ("00000000:3b:00.0", "dev-7", {nodes.PCI: "0000:3b:00.0"}),
        ("3b:00.0", "dev-7", {"vendor.org/address": "0000:3b:00.0"}),
        ("vfio-0000:3b:00.0", "pci-0000-3b-00-0", {}),
        (UUID, "dev-7", {"uuid": UUID}),
        (f"{UUID}::3", "dev-7", {"uuid": UUID}),
        (UUID.lower(), UUID.lower(), {}),
    ],
)
def test_the_same_hardware_is_found_under_any_name(id_: str, device: str, attributes: dict[str, str]) -> None:
    for held, code in (("nic-0", "plugin-and-claim"), ("nic-3", "offered-and-claimed")):
        look = nodes.with_claim(renamed(CLEAN, held, id_), device, "gpu.other.org", **attributes)
        (finding,) = of_claims(look)
        assert (finding.code, finding.devices) == (code, (id_,))
        assert "'default/claim'" in finding.sentence
        assert Source.CLAIMS in [evidence.source for evidence in finding.evidence]


@pytest.mark.parametrize(
    ("id_", "device", "driver", "attributes"),
    [
        ("0000:3b:00.0", "dev-7", "gpu.other.org", {nodes.PCI: "0000:3b:00.1"}),
        ("0000:3b:00.0", "dev-7", "gpu.other.org", {nodes.PCI: "0001:3b:00.0"}),
        ("nic-0", "nic-0", "gpu.other.org", {}),
        ("nic-0", "nic-0", "notexample.com", {}),
        ("nic-0", "nic-00", "gpu.example.com", {}),
        (UUID, "dev-7", "gpu.other.org", {"uuid": UUID.replace("11", "12")}),
        ("0", "0", "gpu.other.org", {"index": "0"}),
    ],
)
def test_other_hardware_is_not_confused_with_it(id_: str, device: str, driver: str, attributes: dict[str, str]) -> None:
    look = nodes.with_claim(renamed(CLEAN, "nic-0", id_), device, driver, **attributes)
    assert of_claims(look) == []


def test_a_name_says_the_same_only_within_one_vendor() -> None:
    assert [one.code for one in of_claims(nodes.with_claim(CLEAN, "gpu-2", "gpu.example.com"))] == ["plugin-and-claim"]
    assert [one.code for one in of_claims(nodes.with_claim(CLEAN, "gpu-2", "example.com"))] == ["plugin-and-claim"]
    assert of_claims(nodes.with_claim(CLEAN, "gpu-2", "gpu.other.org")) == []


def test_a_cdi_name_that_both_were_given_is_the_same_device() -> None:
    look = nodes.with_claim(CLEAN, "dev-7", "other.org")
    look = nodes.with_cdi_files(nodes.with_receipt(look, nodes.receipt("other.org/gpu=dev-7")))
    (finding,) = of_claims(look)
    assert (finding.resource, finding.devices) == (NIC, ("nic-1",))
    assert "the plugin and the driver both use the CDI device other.org/gpu=dev-7" in finding.sentence


def test_the_kubelets_answer_alone_is_enough_to_find_it() -> None:
    look = evolve(CLEAN, claims=Reading.of("dra_manager_state", ClaimsSeen()))
    claimed = ClaimedDeviceSeen("default", "other", "main", "claim", "gpu.example.com", "n1", "gpu-2")
    look = nodes.with_api(look, evolve(nodes.api_of(look), claimed=(claimed,)))
    (finding,) = of_claims(look)
    assert finding.evidence[-1].source is Source.POD_RESOURCES


def test_a_vanished_holder_shares_nothing() -> None:
    look = nodes.with_claim(nodes.of_a_pod_that_is_gone(CLEAN), "gpu-7")
    assert [one.code for one in of_claims(look)] == ["offered-and-claimed"]


def states(look: Look) -> set[tuple[str, str]]:
    return {(one.owner, one.state.value) for one in report(Facts(look), ()).devices if not (one.container or one.pool)}


def test_nothing_is_called_free_while_a_source_of_claims_is_missing() -> None:
    live, unknown = ("free", OwnerState.LIVE.value), ("unknown", OwnerState.UNKNOWN.value)
    assert states(CLEAN) == {live}
    damaged = evolve(CLEAN, claims=Reading.of("dra_manager_state", ClaimsSeen(problem="checkpoint is corrupted")))
    for look, why in (
        (nodes.without(CLEAN, "claims"), "the kubelet's claims file (dra_manager_state) was not read"),
        (damaged, "is damaged: checkpoint is corrupted"),
    ):
        assert states(look) == {unknown}
        assert any(why in one for one in report(Facts(look), ()).not_ruled_out)


@pytest.mark.parametrize("look", [nodes.without(CLEAN, "slices"), evolve(CLEAN, slices=Reading.of("slices.json", ()))])
def test_a_driver_without_slices_says_nothing_about_another_vendors_devices(look: Look) -> None:
    assert states(look) == {("free", OwnerState.LIVE.value)}
    assert Facts(look).claimed.perhaps(GPU, "gpu-7") == ""
    assert "rdma.other.org/n1/rdma-0" in Facts(look).claimed.perhaps("other.org/link", "link-0")
    assert "rdma.other.org/n1/rdma-0" in Facts(look).claimed.perhaps(GPU, "0000:3b:00.0")


def test_without_claims_no_slices_are_needed() -> None:
    look = evolve(nodes.without(CLEAN, "slices"), claims=Reading.of("dra_manager_state", ClaimsSeen()))
    assert states(look) == {("free", OwnerState.LIVE.value)}


def test_a_device_of_a_claim_is_shown_with_its_claim() -> None:
    assert ("claim default/claim", OwnerState.LIVE.value) in states(nodes.with_claim(CLEAN, "gpu-3"))


@given(st.text(alphabet="0123456789abcdef:.-", max_size=40))
def test_any_text_has_one_pci_address_or_none(text: str) -> None:
    found = pci_address(text)
    assert found is None or pci_address(found) == found


@pytest.mark.parametrize(
    "text",
    [
        *(UUID, "gpu-0", "3b:00", "0000:3b:00.8", "0000:3b:00.0 0000:3c:00.0", "192.168.0.1", "12:34:56:78:9a:bc"),
        "node-10-10-3",
    ],
)
def test_text_that_is_not_a_pci_address_gives_none(text: str) -> None:
    assert pci_address(text) is None


def test_gpus_and_nics_of_the_clean_node_belong_to_no_claim() -> None:
    facts = Facts(CLEAN)
    assert not any(facts.claimed.find(name, device) for name in (GPU, NIC) for device in facts.lists.devices[name])
