"""When a question's budget is used up, the answer names what is unknown for that reason, without guessing."""

import re
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from devicecore_tools.budget import MAX_PUBLISHED, Budget
from devicecore_tools.command.claim_reports import ClaimReport, print_reports
from devicecore_tools.command.doctor import _status, _wrong_nodes, report_on
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.findings.checks import CHECKS
from devicecore_tools.doctor.findings.report import check, report
from devicecore_tools.doctor.pod.claim_trial import ClaimTrial, Outcome
from devicecore_tools.doctor.pod.cluster_objects import ClusterObjects, objects_of
from devicecore_tools.doctor.pod.trial import TrialNode, fit
from devicecore_tools.doctor.reading.claims import slices_in
from devicecore_tools.doctor.reading.cluster import looks_of
from devicecore_tools.doctor.reading.node import NodeSources

from devicecore.domain.allocation import QuestionGivenUpError, UnallocatedClaim, claim_of
from devicecore.domain.documents import Value
from devicecore.domain.errors import DocumentError
from devicecore.domain.json_size import MAX_MEMORY
from devicecore.domain.model import Container, Pod, PodUid

DRIVER = "gpu.example.com"
NODES = ("n0", "n1", "n2")


def clock(seconds_of_a_look: float) -> "Budget":
    """Return a budget of ten seconds whose clock advances each time it is read."""
    moments = count()
    return Budget(10.0, now=lambda: next(moments) * seconds_of_a_look)


def cluster(devices: int = 2) -> ClusterObjects:
    """Return the objects of three nodes, each of which has this number of devices."""
    items: list[dict[str, Any]] = [{"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}]
    for node in NODES:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        listed = [{"name": f"d{number}"} for number in range(devices)]
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": listed}
        items += [
            {"kind": "Node", "metadata": {"name": node}},
            {"kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec},
        ]
    return objects_of([Value({"items": items}, "cluster.json")])


def claim(count: int) -> UnallocatedClaim:
    """Return a claim for `count` devices."""
    requests = [{"name": "a", "exactly": {"deviceClassName": "any", "count": count}}]
    return claim_of(Value({"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}, "claim.json"))


def reported(budget: Budget, wanted: Sequence[UnallocatedClaim]) -> ClaimReport:
    trial = ClaimTrial(cluster(), budget=budget)
    return ClaimReport("claim default/c", trial, wanted, trial.answers(wanted))


def test_a_node_that_was_not_tried_is_not_refused(capsys: pytest.CaptureFixture[str]) -> None:
    report = reported(clock(4.0), [claim(3)])
    assert report.outcome is Outcome.UNKNOWN
    untried = [one.node.name for one in report.answers if one.outcome is Outcome.UNKNOWN]
    assert untried
    assert {one.node.name for one in report.answers} == set(NODES)
    assert print_reports([report], as_json=False, all_devices=False) == 3
    printed = capsys.readouterr().out
    assert all(name in printed for name in untried)
    assert "the question took more than 10 s of processor time" in printed


def test_a_node_that_has_the_devices_is_enough() -> None:
    report = reported(clock(0.1), [claim(2)])
    assert report.outcome is Outcome.FITS


def test_a_node_that_was_not_tried_hides_no_node_that_fits() -> None:
    budget = clock(4.0)
    answers = ClaimTrial(cluster(), budget=budget).answers([claim(2)])
    assert answers[0].outcome is Outcome.FITS
    assert answers[-1].outcome is Outcome.UNKNOWN


def test_exceeding_the_limit_on_reasons_is_not_a_reason() -> None:
    answers = ClaimTrial(cluster(), budget=Budget(reasons=3)).answers([claim(3)])
    assert [one.outcome for one in answers].count(Outcome.UNKNOWN) == 2
    assert answers[0].outcome is Outcome.UNKNOWN
    assert "too many pairs of a request and a device" in str(answers[0].answer)
    assert not answers[0].verdicts


def test_claims_that_are_deallocated_have_no_separate_budget() -> None:
    trial = ClaimTrial(cluster(), budget=clock(11.0))
    answers = trial.without(["default/x"]).answers([claim(1)])
    assert {one.outcome for one in answers} == {Outcome.UNKNOWN}


def test_a_plugin_node_that_was_not_tried_is_unknown() -> None:
    pod = Pod(uid=PodUid("u"), containers=(Container("m", {"example.com/gpu": 1}),))
    node = TrialNode("n", {}, ())
    assert not fit(node, pod).is_unknown
    answer = fit(evolve(node, name="n1"), pod, clock(11.0))
    assert answer.is_unknown
    assert str(answer.verdict).startswith("the pod was not tried")


def test_a_spent_budget_stays_spent() -> None:
    moments = iter([0.0, 11.0, 1.0])
    budget = Budget(10.0, now=lambda: next(moments))
    assert budget.spent()
    assert budget.spent()
    with pytest.raises(QuestionGivenUpError):
        budget.ask()
    with pytest.raises(QuestionGivenUpError):
        budget.charge(0)


def test_files_of_one_look_share_a_memory_limit(tmp_path: Path) -> None:
    """Each file is within the limit for one file, but five such files once took 1.8 GB."""
    most = MAX_MEMORY * 6 // 10 // 310  # an empty object with its comma counts as three values of 100 bytes
    for name, kind in (("pods", "PodList"), ("slices", "ResourceSliceList")):
        text = f'{{"kind": "{kind}", "items": [], "more": [{"{}," * most}0]}}'
        (tmp_path / name).write_text(text)
    sources = NodeSources(
        checkpoint=str(tmp_path / "none"), pods=str(tmp_path / "pods"), slices=str(tmp_path / "slices")
    )
    look = sources.look()
    assert look.pods.value == ()
    assert look.slices.value is None
    assert "MB are left for it; give fewer objects, such as those of one node" in look.slices.problem
    assert sources.look().pods.value == ()


def damaged(directory: Path) -> NodeSources:
    """Return the sources of a node whose checkpoint a kubelet cannot read."""
    (directory / "checkpoint").write_text("{")
    return NodeSources(checkpoint=str(directory / "checkpoint"))


def test_a_user_at_a_terminal_sees_how_long_a_finding_is_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report_on(damaged(tmp_path), 17.0, lambda _: True) is None
    assert not capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert report_on(damaged(tmp_path), 17.0, lambda _: True) is None
    assert capsys.readouterr().err == "reading the node for 17 s to confirm what was found ...\n"


def test_a_finding_that_was_not_looked_for_again_is_not_lost(tmp_path: Path) -> None:
    confirmed = report_on(damaged(tmp_path), 0.0, lambda _: False)
    assert confirmed is not None
    (finding,) = confirmed.findings
    left = report_on(damaged(tmp_path), 0.0, lambda _: False, budget=Budget(1.5 * len(CHECKS), now=count().__next__))
    assert left is not None
    assert not left.findings
    assert left.not_ruled_out[0].startswith(f"{finding.brief}: this was found, but was not searched for again, because")
    assert _status([left], ()) == 3


def test_checks_that_were_not_made_are_named(tmp_path: Path) -> None:
    facts, budget = Facts(damaged(tmp_path).look()), Budget(3.5, now=count().__next__)
    assert check(facts)
    found = check(facts, budget)
    assert [*budget.skipped] == [one.code for one in CHECKS[3:]]
    (unmade,) = [one for one in report(facts, found, (), budget).not_ruled_out if "would find" in one]
    assert unmade.startswith(f"what {CHECKS[3].code}, {CHECKS[4].code}, ")
    assert unmade.endswith(
        f" and {len(CHECKS) - 8} more would find, because the question took more than 3.5 s of processor time"
    )


def test_nodes_that_were_not_checked_are_named() -> None:
    nodes = [{"metadata": {"name": name}} for name in NODES]
    looks = looks_of({"Node": nodes, "Pod": [], "ResourceSlice": [], "ResourceClaim": [], "Event": []})
    _wrong_nodes(looks, Budget(1.5, now=count().__next__))
    holes = {name: report(Facts(look), ()).not_ruled_out for name, look in looks.items()}
    unchecked = [name for name, of_node in holes.items() if any("took more than 1.5 s" in one for one in of_node)]
    assert unchecked == ["n1", "n2"]


def slices_of(devices: int) -> Value:
    items = [
        {
            "metadata": {"name": f"s{number}"},
            "spec": {"driver": DRIVER, "devices": [{"name": "d"}], "pool": {"name": "p"}},
        }
        for number in range(devices)
    ]
    return Value({"kind": "ResourceSliceList", "items": items}, "slices.json")


def test_all_slices_share_the_devices_that_may_be_published() -> None:
    expected = re.escape(
        f"slices.json: items[3].spec.devices: the ResourceSlices contain more than {MAX_PUBLISHED:,} devices"
    )
    assert len(slices_in(slices_of(3), Budget(published=3))) == 3
    with pytest.raises(DocumentError, match=expected):
        slices_in(slices_of(4), Budget(published=3))
    with pytest.raises(DocumentError, match=expected):
        objects_of([slices_of(4)], ["ResourceSlice"], Budget(published=3))
