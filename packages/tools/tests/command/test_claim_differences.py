"""Differences between two claims files, and entries of one file that cannot be right."""

from devicecore_tools.checkpoint.claims import ChangedClaim, claim_warnings, state_difference

from devicecore.domain.dra.model import PreparedDevice
from devicecore.domain.dra.state_file import ClaimEntry

GPU, NIC = "gpu.example.com", "nic.example.com"
SHARE = "c2b36fbb-8e1a-4bde-8a53-1f2f0e3a5f0a"
FIRST = PreparedDevice("node-1", "gpu-0", requests=("gpu",), cdi_ids=("vendor.com/gpu=0",))
SHARED = PreparedDevice("node-1", "gpu-1", share_id=SHARE)
OF_1_30 = PreparedDevice("", "", cdi_ids=("vendor.com/gpu=0",))
ONE = ClaimEntry("c-1", "one", "default", ("p-a", "p-b"), {GPU: (FIRST, SHARED), NIC: ()})
TWO = ClaimEntry("c-2", "two", "default", ("p-d",), None)


def test_a_file_does_not_differ_from_itself_in_any_order() -> None:
    turned = ClaimEntry("c-1", "one", "default", ("p-b", "p-a"), {NIC: (), GPU: (SHARED, FIRST)})
    difference = state_difference([ONE, TWO], [TWO, turned])
    assert (difference.added, difference.removed, difference.changed) == ((), (), ())


def test_a_claim_with_a_new_uid_is_a_different_claim() -> None:
    difference = state_difference([ONE, TWO], [ONE, ClaimEntry("c-3", "two", "default", ("p-d",), None)])
    assert (difference.added, difference.removed) == (("default/two (c-3)",), ("default/two (c-2)",))


def test_pods_and_devices_of_a_claim_are_compared() -> None:
    after = ClaimEntry("c-1", "one", "default", ("p-b", "p-c"), {GPU: (FIRST,), NIC: (OF_1_30,)})
    (changed,) = state_difference([ONE], [after]).changed
    assert changed == ChangedClaim(
        "default/one",
        "c-1",
        added_pods=("p-c",),
        removed_pods=("p-a",),
        added_devices=(f"{NIC}: CDI names only as vendor.com/gpu=0",),
        removed_devices=(f"{GPU}: node-1/gpu-1 share {SHARE}", f"{NIC}: no devices"),
    )


def test_a_file_without_anything_wrong_gives_no_warning() -> None:
    assert list(claim_warnings([ONE, TWO])) == []


def test_two_entries_no_pods_and_devices_of_two_claims_give_warnings() -> None:
    entries = [ONE, ClaimEntry("c-4", "four", "default", (), {GPU: (SHARED, FIRST, OF_1_30)}), TWO, TWO]
    both = "default/one, default/four"
    assert list(claim_warnings(entries)) == [
        "no pod uses claim default/four, and a kubelet never releases such a claim",
        "claim default/two has 2 entries, and a kubelet reads only the last",
        f"2 claims have device node-1/gpu-0 of {GPU}, which only admin access allows: {both}",
        f"2 claims have share {SHARE} of device node-1/gpu-1 of {GPU}, which only admin access allows: {both}",
    ]
