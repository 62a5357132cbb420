"""The owners of devices: two owners count as two pods only if they cannot be the same pod."""

import pytest
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.account.precedence import Owner, OwnerState
from devicecore_tools.doctor.findings.report import check
from devicecore_tools.doctor.look.values import PodSeen, ReceiptSeen, Source
from tests.doctor import nodes
from tests.doctor.nodes import CLEAN, GPU

from devicecore.domain.model import ContainerKey, PodUid, ResourceName


def owner(uid: str, name: str = "", pod: PodSeen | None = None) -> Owner:
    namespace = "default" if name else ""
    return Owner(uid, namespace, name, "main", (Source.CHECKPOINT,), OwnerState.LIVE, pod)


STATIC = nodes.pod("static", "main")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (owner("u-1"), owner("u-2"), True),
        (owner("u-1", "a"), owner("u-2", "a"), True),
        (owner("u-1", "a"), owner("u-1", "a"), False),
        (owner("u-1", "a", STATIC), owner("u-2", "a", STATIC), False),  # a static pod has a mirror with a different UID
        (owner("u-1", "a"), owner("", "b"), True),
        (owner("u-1", "a"), owner("", "a"), False),
        (owner("u-1"), owner("", "b"), False),
        (owner("", "a"), owner("u-2"), False),
    ],
)
def test_two_owners_are_two_pods_if_their_uids_or_else_their_names_differ(
    one: Owner, other: Owner, *, expected: bool
) -> None:
    assert one.is_of_another_pod(other) is expected
    assert other.is_of_another_pod(one) is expected


def test_the_answer_for_a_pod_that_is_gone_is_not_judged_even_if_its_entry_has_no_devices() -> None:
    given = ReceiptSeen(ContainerKey(PodUid("uid-gone"), "main"), ResourceName(GPU), ("gpu.example.com/gpu=none",))
    look = nodes.with_receipt(CLEAN, given)
    assert [one.code for one in check(Facts(look))] == ["cdi-unresolvable"]
    assert check(Facts(nodes.with_entries(look, ("uid-gone", "main", GPU, {})))) == ()
