"""Each cause explains a difference in one field of one kind of answer; differences in other fields stay unexplained."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, partialmethod
from pathlib import Path
from random import Random
from typing import ClassVar, TypeVar, cast

import pytest
from attrs import evolve
from devicecore_numa.domain.cpu_policy import StaticCpuPolicy

from devicecore.domain.allocation import NoAllocation, Release
from devicecore.domain.allocation.faults import KubernetesFault
from devicecore.domain.allocation.kubernetes import answer_of_kubernetes
from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, decode, encode
from devicecore.domain.dra.claims import ClaimInfo
from devicecore.domain.dra.model import PreparedDevice
from tests.dra_histories import Replay as DraReplay
from tests.histories import Replay
from tests.oracle import allocators, applies, claims, devices, dra, files, numa, text
from tests.oracle.asking import Json, Oracle
from tests.oracle.kinds import too_often
from tests.recorded_allocations import allocation_of, results_of, situation_of

BESIDE: set[str] = set()
"""The causes for which a test injects an additional fault."""

GPU = "a.example.com/gpu"
POD: Json = {"uid": "p", "name": "p", "namespace": "default", "initContainers": []}
ONE = {**POD, "containers": [{"name": "main", "limits": {GPU: 1}}]}
LISTED = [{"id": f"gpu-{node}", "health": "Healthy", "numa": [node]} for node in (0, 1)]
TWO = {"op": "connect", "resource": GPU, "devices": LISTED}
CAPACITY = {"op": "capacity"}

Test = TypeVar("Test")


def beside(*causes: str) -> Callable[[Test], Test]:
    """Mark a test that injects an additional fault where these causes apply."""
    BESIDE.update(causes)
    return lambda test: test


def test_a_fault_is_injected_alongside_each_cause() -> None:
    """Without a test that injects another fault, a cause might explain away anything."""
    judges = [*Path(__file__).parent.glob("[!t]*.py"), Path(__file__).parents[1] / "unit" / "test_dra_histories.py"]
    named = {row for path in judges for row in re.findall(r'"([DN]\d+)"', path.read_text("utf-8"))}
    assert named <= BESIDE
    assert {fault.value for fault in KubernetesFault} <= BESIDE


class Answers:
    """An oracle with given answers."""

    version = "1.37.2"

    def __init__(self, *answers: Json) -> None:
        self._answers: Iterator[Json] = iter(answers)
        self._last: Json = None

    def ask(self, kind: str, question: Json) -> Json:
        del kind, question
        self._last = next(self._answers, self._last)
        return self._last


def oracle(*answers: Json) -> Oracle:
    return cast("Oracle", Answers(*answers))


def quantity(text_: str, **answer: Json) -> str | None:
    """Return the cause that explains an oracle's answer about a quantity."""
    return text.judge_quantity({"text": text_}, oracle({"ok": True, "text": "any", **answer})).cause


@beside("D22")
def test_the_whole_number_of_a_large_or_negative_quantity_is_compared_with_its_decimals() -> None:
    """D22: Go computes a wrong whole number, and ours must match the exact decimal."""
    large = {"canonical": "16E", "exact": "16000000000000000000", "int64": False, "value": 0}
    assert quantity("16E", **large) == "D22"
    assert quantity("16E", **(large | {"canonical": "16P"})) is None
    assert quantity("16E", **(large | {"exact": "17"})) is None
    part = {"canonical": "-1500m", "exact": "-1.5", "int64": False, "value": -1}
    assert quantity("-1500m", **part) == "D22"
    assert quantity("-1500m", **(part | {"exact": "-3.5"})) is None
    assert quantity("-1500m", **(part | {"int64": True})) is None
    assert quantity("1500m", canonical="1500m", exact="1.5", int64=False, value=1) is None
    lost = {"canonical": "78", "exact": "78000000000000000000000", "int64": False, "value": 0}
    assert quantity("78000E", **lost) == "D22"
    assert quantity("78000E", **(lost | {"canonical": "7"})) is None
    assert quantity("78000E", **(lost | {"canonical": "780"})) is None
    assert quantity("78000E", **(lost | {"exact": "7800000000000000000000"})) is None
    assert quantity("1" * 201, canonical="1", exact="1", int64=False, value=1) == "D22"


def test_an_exponent_is_another_form_of_a_suffix() -> None:
    read = {"exact": "1000", "int64": True, "value": 1000}
    assert quantity("1e3", canonical="1e3", **read) == ""
    assert quantity("1e3", canonical="1e6", **read) is None


@pytest.fixture(scope="module")
def stable() -> Json:
    """A case of the stable allocator in which claims get no devices."""
    release = Release.V1_37
    made = (allocators.case(Random(str(number))) for number in range(1000))
    for case in made:
        if case["allocator"] == "stable" and results_of(allocation_of(case, release)) is None:
            return case
    raise AssertionError("no case without devices")


@beside("D24")
@pytest.mark.parametrize(
    ("ours", "theirs", "is_stable", "cause"),
    [
        (True, None, True, "D24"),
        (True, None, False, None),
        (True, "failed", True, None),
        (False, "failed", True, None),
        (False, "failed", False, None),
    ],
)
def test_an_error_is_excused_only_of_the_stable_allocator(
    stable: Json, ours: bool, theirs: str | None, is_stable: bool, cause: str | None
) -> None:
    situation = situation_of(stable, Release.V1_37)
    answer = {"results": None, "error": theirs}
    known = Release.V1_37.faults
    assert allocators.cause_of_error(situation, known, ours=ours, theirs=answer, is_stable=is_stable) == cause


@pytest.mark.parametrize(
    ("nodes", "release", "cause"),
    [
        (["n1", "n2"], Release.V1_36_3, "counters-of-other-nodes"),
        (["n1"], Release.V1_36_3, None),
        (["n1", "n2"], Release.V1_37, None),
    ],
)
def test_a_missing_error_is_excused_only_if_slices_of_other_nodes_make_the_invalid_pool_incomplete(
    stable: Json, nodes: Sequence[str], release: Release, cause: str | None
) -> None:
    counters = [{"name": "set", "counters": {"slots": {"value": "1"}}}]
    slices = [
        {
            "metadata": {"name": f"s-{node}"},
            "spec": {
                "driver": "d",
                "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
                "nodeName": node,
                "sharedCounters": counters * 2,
            },
        }
        for node in nodes
    ]
    situation = situation_of({**stable, "slices": slices}, release)
    answer = {"results": None, "error": None}
    known = release.faults
    assert allocators.cause_of_error(situation, known, ours=True, theirs=answer, is_stable=False) == cause


@beside("D18")
def test_devices_that_no_rule_allows_are_not_excused_as_random(stable: Json) -> None:
    """D18 applies only if our answer is among Kubernetes' answers.

    A Kubernetes bug is the cause only if a search with the known bugs gives Kubernetes' answer.
    """
    given: Json = {"results": [{"devices": {"results": []}}], "error": None}
    assert allocators.judge(stable, oracle(given)).cause is None
    situation = situation_of(stable, Release.V1_37)
    assert claims.fault_of(situation, given["results"], Release.V1_37.faults) is None


def test_a_pool_is_excused_only_if_its_slices_disagree() -> None:
    def of(count: int, generation: int = 1) -> Json:
        pool = {"name": "p", "generation": generation, "resourceSliceCount": count}
        return {"spec": {"driver": "d", "pool": pool}}

    both = allocators.believed({"slices": [of(1), of(2)]})
    assert [one["slices"] for one in both] == [[of(1), of(1)], [of(2), of(2)]]
    assert list(allocators.believed({"slices": [of(1), of(1), of(2, generation=2)]})) == []


@beside("D27")
def test_a_pool_whose_slices_disagree_excuses_only_what_one_of_their_numbers_gives() -> None:
    for number in range(793, 2000):  # case 793 is the first that ends this loop
        case = allocators.case(Random(f"counts-{number}"))
        right = results_of(allocation_of(case, Release.V1_37))
        others = [results_of(allocation_of(one, Release.V1_37)) for one in allocators.believed(case)]
        if case["allocator"] == "stable" and right is None and (found := [one for one in others if one]):
            break
    assert found
    assert allocators.judge(case, oracle({"results": found[0], "error": None})).cause == "D27"
    request, *rest = found[0][0]["devices"]["results"]
    other = [{"devices": {"results": [{**request, "device": "no-such-device"}, *rest]}}, *found[0][1:]]
    assert allocators.judge(case, oracle({"results": other, "error": None})).cause is None


@beside("D27")
def test_an_error_is_excused_only_if_one_of_the_numbers_makes_the_pool_invalid() -> None:
    told = oracle({"results": None, "error": "invalid resource pools were encountered"})
    assert allocators.judge(allocators.case(Random("s5-allocators-3834")), told).cause == "D27"
    for number in range(2000):
        case = allocators.case(Random(f"counts-{number}"))
        answer = allocation_of(case, Release.V1_37)
        is_plain = case["allocator"] == "stable" and not list(allocators.believed(case))
        if is_plain and isinstance(answer, NoAllocation) and not answer.is_error:
            break
    assert allocators.judge(case, told).cause is None


@beside(*(fault.value for fault in KubernetesFault))
def test_a_fault_of_kubernetes_excuses_only_what_a_search_with_it_finds() -> None:
    """Any other allocation is a difference, including one that only a bug of our own in this search explains."""
    release, found = Release.V1_36_2, set[str]()
    for number in range(400):
        case = claims.case(Random(f"faults-{number}"))
        features = {**claims.FEATURES, **case.get("features", {})}
        situation = situation_of({**case, "features": features}, release)
        answer = answer_of_kubernetes(situation, release.faults)
        given = json.loads(json.dumps(claims.results_with_faults(situation, answer)))
        if not (given and given[0]["devices"]["results"] and answer.is_known):
            continue
        cause = claims.fault_of(situation, given, release.faults)
        found.update((cause or "").split(", "))
        first, *rest = given[0]["devices"]["results"]
        other = [{**given[0], "devices": {**given[0]["devices"], "results": [{**first, "pool": "other"}, *rest]}}]
        assert claims.fault_of(situation, [*other, *given[1:]], release.faults) is None
    assert len(found) > 3


def test_only_the_value_of_one_device_is_excused_in_an_expression() -> None:
    of = claims.cause_of_value
    assert of("semver('1') == device.x", "no such overload", ours=True, theirs=None) is not None
    assert of("semver('1') == device.x", "", ours=None, theirs=True) is None
    assert of("semver('1') == device.x", "", ours=True, theirs=False) is None
    assert of("1 in []", "", ours=None, theirs=False) is not None
    assert of("1 in []", "", ours=True, theirs=False) is None
    assert of("1 in [1]", "", ours=None, theirs=False) is None


@beside("D2")
@pytest.mark.parametrize("op", ["allocate_again", "start"])
def test_a_pod_that_loses_devices_by_a_refusal_is_a_difference(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """D2 changes a history with a refusal like this, so the loss has to be found before the change."""
    more = {**POD, "containers": [*ONE["containers"], {"name": "other", "limits": {GPU: 9}}]}
    steps = [TWO, {"op": "allocate", "pod": ONE}, {"op": op, "pod": more, "container": "other"}]
    history = {"numa_nodes": [0, 1], "steps": steps}
    assert devices.lost_by_a_refusal(history) == []
    play = Replay.play

    def forgetful(replay: Replay, step: Json) -> Json:
        answer = play(replay, step)
        if step["op"] == op:
            play(replay, {"op": "remove_pod", "uid": "p"})
        return answer

    monkeypatch.setattr(Replay, "play", forgetful)
    assert devices.lost_by_a_refusal(history)


@beside("D23")
def test_an_old_file_is_compared_with_what_the_kubelets_read_that_knew_it() -> None:
    entry = PodDevicesEntry("p", "main", "a.example.com/gpu", {0: ("gpu-0",)}, b"")
    case = {"file_b64": b64encode(encode(CheckpointData((entry,), {}), 1)).decode()}
    found = decode(b64decode(case["file_b64"]))
    read = {"verdict": "ok", "stored": found.stored, "computed": found.computed, "entries": 1, "resources": 0}
    read["again"] = json.loads(encode(CheckpointData((entry,), {})))
    refused = {"verdict": "malformed"}

    def cause(old: Json, newest: Json = refused) -> str | None:
        return files.judge_damaged_checkpoint(case, oracle(newest, old)).cause

    assert cause(read) == "D23"
    assert cause({**read, "again": {}}) is None
    assert cause({**read, "computed": 1}) is None
    assert cause(refused) is None
    assert cause(read, {**read, "entries": 2}) is None


@beside("D23")
def test_a_kubelet_that_reads_an_old_file_or_goes_on_otherwise_is_a_difference() -> None:
    entry = PodDevicesEntry("p", "main", GPU, {0: ("gpu-0",)}, b"")
    old, newest = (encode(CheckpointData((entry,), {}), number).decode() for number in (1, 2))
    restart = {"op": "restart", "checkpoint": old, "newest": newest, "is_unusable": True}
    history: Json = {"numa_nodes": [0, 1], "steps": [restart, TWO, {"op": "capacity"}]}
    found = {**history, "steps": [{"op": "restart", "checkpoint": newest}, *history["steps"][1:]]}
    refused = {"verdict": "malformed"}
    assert devices.judge(history, oracle(refused, ours(found))).cause == "D23"
    assert devices.judge(history, oracle({"verdict": "ok"}, ours(found))).cause is None
    assert devices.judge(history, oracle(refused, ours(found, (2, {"capacity": {}})))).cause is None
    on_another = encode(CheckpointData((evolve(entry, device_ids={1: ("gpu-0",)}),), {})).decode()
    other = {**history, "steps": [{**restart, "newest": on_another}, *history["steps"][1:]]}
    assert devices.judge(other, oracle(refused, ours(found))).cause is None


@beside("D20")
def test_only_a_zero_or_a_resource_that_is_gone_is_excused_after_a_shortage() -> None:
    steps = [TWO, {"op": "allocate", "pod": ONE}, {"op": "sanitize", "pod_uid": "p", "allocatable": {}}]
    history = {"numa_nodes": [0, 1], "steps": steps}
    counts = ours(history)[2]["allocatable"]
    zero, one = ({"allocatable": {**counts, "b.example.com/nic": count}} for count in (0, 1))
    assert devices.judge(history, oracle(ours(history, (2, zero)))).cause == "D20"
    assert devices.judge(history, oracle(ours(history, (2, one)))).cause is None


@beside("D20")
@pytest.mark.parametrize(("also", "is_ok"), [({}, True), ({"a.example.com/gpu": 9}, False)])
def test_a_pod_that_requests_a_vanished_resource_is_compared_without_it(also: Json, is_ok: bool) -> None:
    """The kubelet refuses the pod because of the resource that is gone.

    We admit the pod, or refuse it for other reasons.
    """
    gone = "z.example.com/gone"
    asks, rest = (
        {"op": "allocate", "pod": {**POD, "uid": "q", "containers": [{"name": "main", "limits": limits}]}}
        for limits in ({gone: 1, **also}, also)
    )
    steps = [TWO, {"op": "allocate", "pod": ONE}, asks, {"op": "capacity"}]
    history = {"numa_nodes": [0, 1], "steps": steps}
    without = {**history, "steps": [*steps[:2], rest, steps[3]]}
    assert ours(history)[2]["ok"] is is_ok

    def cause(resource: str, *changes: tuple[int, Json]) -> str | None:
        told = f"Allocate failed due to cannot allocate unregistered device {resource}, which is unexpected"
        answers = ours(history)
        answers[2] = {"ok": False, "container": "main", "error": told}
        return devices.judge(history, oracle(answers, ours(without, *changes))).cause

    assert cause(gone) == "D20"
    assert cause(GPU) is None
    assert cause("y.example.com/other") is None
    assert cause(gone, (2, {"calls": ["other"]})) is None
    assert cause(gone, (3, {"capacity": {}})) is None


@beside("D20")
@pytest.mark.parametrize(
    ("named", "cause"), [("z.example.com/gone", "D20"), (GPU, None), ("y.example.com/other", None)]
)
def test_a_start_that_requests_a_vanished_resource_is_compared_without_it(named: str, cause: str | None) -> None:
    starts, rest = (
        {"op": "start", "container": "main", "pod": {**ONE, "containers": [{"name": "main", "limits": limits}]}}
        for limits in ({"z.example.com/gone": 1, GPU: 1}, {GPU: 1})
    )
    history, without = (
        {"numa_nodes": [0, 1], "steps": [TWO, {"op": "allocate", "pod": ONE}, one, {"op": "capacity"}]}
        for one in (starts, rest)
    )
    answers = ours(history)
    answers[2] = {"ok": False, "error": f"endpoint not found in cache for a registered resource: {named}"}
    assert devices.judge(history, oracle(answers, ours(without))).cause == cause
    assert devices.judge(history, oracle(answers, ours(without, (2, {"options": {}})))).cause is None


@beside("D20")
def test_hints_are_explained_only_if_there_are_none_for_a_vanished_resource() -> None:
    gone = "z.example.com/gone"
    asks, rest = (
        {"op": "hints", "container": "main", "pod": {**POD, "containers": [{"name": "main", "limits": limits}]}}
        for limits in ({gone: 1, GPU: 1}, {GPU: 1})
    )
    history, without = ({"numa_nodes": [0, 1], "steps": [TWO, one]} for one in (asks, rest))

    def cause(**others: Json) -> str | None:
        return devices.judge(history, oracle(ours(history, (1, others)), ours(without))).cause

    assert cause(**{gone: []}) == "D20"
    assert cause(**{gone: None}) == "D20"  # the devices of the resource had no topology
    assert cause(**{gone: [[[0], True]]}) is None
    assert cause(**{"y.example.com/other": []}) is None
    assert cause(**{gone: [], GPU: []}) == "D20"  # only the answer to the changed history is compared


def ours(history: Json, *changes: tuple[int, Json]) -> Json:
    """Return our answers to a history, with some of the answers changed."""
    answers = devices.answers_of_ours(history)
    for place, change in changes:
        answers[place] = {**answers[place], **change}
    return answers


@beside("D32")
def test_a_container_that_has_lost_devices_gets_aligned_ones() -> None:
    """D32: only the start of a container that has lost devices is not compared."""
    start = {"op": "start", "pod": ONE, "container": "main"}
    steps = [TWO, {"op": "allocate", "pod": ONE}, {"op": "restart", "checkpoint": ""}, TWO, start, {"op": "capacity"}]
    history = {"numa_nodes": [0, 1], "policy": "restricted", "scope": "pod", "steps": steps}
    other = {"calls": [["Allocate", GPU, ["gpu-1"]]]}
    without = {**history, "steps": [*steps[:4], steps[5]]}
    lost = oracle(ours(history, (4, other)), ours(without))
    assert devices.judge(history, lost).cause == "D32"
    later = oracle(ours(history, (4, other)), ours(without, (4, {"capacity": {}})))
    assert devices.judge(history, later).cause is None
    kept = {**history, "steps": [*steps[:2], start]}
    assert devices.judge(kept, oracle(ours(kept, (2, {"options": {}})))).cause is None


@beside("D2")
def test_what_a_refused_pod_leaves_behind_is_excused_only_where_a_kubelet_keeps_it() -> None:
    """D2: not all pods were known when the pod was rejected.

    Otherwise, the rejection explains no later difference.
    """
    more = {**POD, "uid": "q", "containers": [{"name": "main", "limits": {GPU: 9}}]}
    for waits in (True, False):
        steps = [{"op": "restart", "waits": waits}, TWO, {"op": "allocate", "pod": more}, {"op": "capacity"}]
        history = {"numa_nodes": [0, 1], "policy": "restricted", "scope": "pod", "steps": steps}
        without = {**history, "steps": [*steps[:2], steps[3]]}
        left = oracle(ours(history, (3, {"allocatable": {}})), ours(without))
        assert devices.judge(history, left).cause == ("D2" if waits else None)
        answer = oracle(ours(history, (2, {"message": "other"})), ours(without))
        assert devices.judge(history, answer).cause is None


@beside("D2")
@pytest.mark.parametrize("is_chosen", [True, False])
def test_what_a_refused_start_leaves_behind_is_excused_only_if_devices_were_chosen(is_chosen: bool) -> None:
    """D2: one resource's devices are allocated before the other resource's device is found to be unhealthy."""
    nic = "b.example.com/nic"
    pod = {**POD, "containers": [{"name": "main", "limits": {GPU: 1, nic: 1}}]}
    healthy, ill = ([{"id": "nic-0", "health": health}] for health in ("Healthy", "Unhealthy"))
    steps = [
        {"op": "connect", "resource": nic, "devices": healthy},
        {"op": "allocate", "pod": pod},
        {**TWO, "devices": LISTED if is_chosen else []},
        {"op": "list_and_watch", "resource": nic, "devices": ill},
    ]
    start = {"op": "start", "pod": pod, "container": "main"}
    history, without = ({"numa_nodes": [0, 1], "steps": [*steps, *rest, CAPACITY]} for rest in ([start], []))
    place = len(steps)
    assert not ours(history)[place]["ok"]

    def cause(at: int, answers: Json = ()) -> str | None:
        return devices.judge(history, oracle(ours(history, (at, {"other": 1})), answers or ours(without))).cause

    assert cause(place + 1) == ("D2" if is_chosen else None)
    assert cause(place + 1, ours(without, (place, {"other": 2}))) is None
    assert cause(place) is None


@beside("D34")
@pytest.mark.parametrize("count", [0, 1])
def test_what_a_pod_may_reuse_is_forgotten_before_its_next_admission(count: int) -> None:
    """D34 applies only if a container requests 0 devices and another pod's admission makes the answers equal."""
    first = [{"name": "init", "limits": {GPU: count}}, {"name": "init-2", "limits": {GPU: 1}}]
    again = {"op": "allocate_again", "pod": {**ONE, "initContainers": first}}
    steps = [TWO, {**again, "op": "allocate"}, again, {"op": "capacity"}]
    history = {"numa_nodes": [0, 1], "policy": "single-numa-node", "scope": "container", "steps": steps}
    refusal = {"ok": False, "reason": "TopologyAffinityError", "message": None}

    def cause(in_general: Json, after_another: Json) -> str | None:
        class Remembering:
            version = "1.37.2"

            def ask(self, kind: str, question: Json) -> Json:
                del kind
                answers, asked = devices.answers_of_ours(question), question["steps"]
                places = [place for place, step in enumerate(asked) if step.get("pod") == again["pod"]]
                for place in places[1:]:
                    answers[place] |= after_another if asked[place - 1] == devices.ADMITTED else in_general
                return answers

        return devices.judge(history, cast("Oracle", Remembering())).cause

    assert cause({}, {}) == ""
    assert cause(refusal, {}) == (None if count else "D34")
    assert cause(refusal, {"containers": []}) is None
    assert cause(refusal, refusal) is None


_LOCAL = "no devices found allocated in local cache for pod p, container main, resource"
_CACHED = "endpoint not found in cache for a registered resource:"


@beside("D2", "D35")
@pytest.mark.parametrize(
    ("claimed", "error", "release", "cause"),
    [
        ([["main", GPU]], f"{_LOCAL} {GPU}", "1.37.2", "D35"),
        ([["main", GPU]], f"{_CACHED} {GPU}", "1.37.2", "D35"),
        ([["main", GPU]], f"{_LOCAL} {GPU}", "1.38.0", None),
        ([], f"{_LOCAL} {GPU}", "1.37.2", None),
        ([["main", GPU]], f"{_LOCAL} other", "1.37.2", None),
        ([["main", GPU]], f"{_CACHED} other", "1.37.2", None),
    ],
)
@pytest.mark.parametrize(
    "also", [{}, {"b.example.com/nic": 1}]
)  # with a NIC, we refuse the start for a different reason
def test_only_a_start_without_a_claimed_device_is_excused(
    claimed: Json, error: str, release: str, cause: str | None, also: Json
) -> None:
    """D35: other refused starts are differences. No devices were chosen for these starts, so D2 does not apply."""
    pod = {**POD, "containers": [{"name": "main", "limits": {GPU: 1, **also}}], "claimed": claimed}
    start = {"op": "start", "pod": pod, "container": "main"}
    nic: Json = {"op": "connect", "resource": "b.example.com/nic", "devices": [{"id": "nic-0", "health": "Healthy"}]}
    nic |= {"prestart": True, "fails": ["PreStartContainer"]}

    class Refusing:
        version = release
        change: ClassVar[Mapping[str, Json]] = {}

        def ask(self, kind: str, question: Json) -> Json:
            del kind
            pairs = zip(question["steps"], devices.answers_of_ours(question), strict=True)
            return [
                {"ok": False, "error": error} if step == start else {**one, **self.change.get(step["op"], {})}
                for step, one in pairs
            ]

    steps = [TWO, nic, {**start, "op": "allocate"}, start, CAPACITY]
    history = {"numa_nodes": [0, 1], "steps": steps}
    assert ours(history)[3]["ok"] is not bool(also)
    assert devices.judge(history, cast("Oracle", Refusing())).cause == cause
    for op in ("capacity", "start"):
        Refusing.change = {op: {"other": 1}}
        assert devices.judge(history, cast("Oracle", Refusing())).cause is None


@beside("D21")
@pytest.mark.parametrize(
    ("is_listed", "place", "change", "cause"),
    [
        (False, "cm/devicemanager.(*ManagerImpl)", {}, "D21"),
        (True, "cm/devicemanager.(*ManagerImpl)", {}, None),
        (False, "cm/topologymanager", {}, None),
        (False, "cm/devicemanager.(*ManagerImpl)", {"capacity": {}}, None),
    ],
)
def test_a_crash_is_explained_only_for_a_device_that_is_no_longer_listed(
    is_listed: bool, place: str, change: Json, cause: str | None
) -> None:
    """D21: the steps before and after the panic are still compared."""
    steps = [
        {"op": "connect", "resource": GPU, "devices": LISTED[:1]},
        {"op": "allocate", "pod": ONE},
        {"op": "list_and_watch", "resource": GPU, "devices": LISTED if is_listed else LISTED[1:]},
        {"op": "hints", "pod": ONE, "container": "main"},
        {"op": "capacity"},
    ]

    class Crashing:
        version = "1.37.2"

        def ask(self, kind: str, question: Json) -> Json:
            del kind
            if any(step["op"] == "hints" for step in question["steps"]):
                return {"panic": "nil", "stack": place}
            return [{**one, **change} if "capacity" in one else one for one in devices.answers_of_ours(question)]

    history = {"numa_nodes": [0, 1], "policy": "restricted", "scope": "pod", "steps": steps}
    assert devices.judge(history, cast("Oracle", Crashing())).cause == cause


@beside("D26")
def test_writes_after_another_owner_of_an_empty_field_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """D26 excuses one write, but not the writes after it."""
    made = (applies.case(Random(str(number))) for number in range(1000))
    cases = ({**one, "steps": one["steps"][:2]} for one in made)
    case = next(one for one in cases if not any(step["subresource"] or step["apply"] for step in one["steps"]))
    answers: list[Json] = []
    monkeypatch.setattr(applies, "differ_in_empty_fields", lambda *_: not answers[1:])

    class Empty:
        def ask(self, kind: str, question: Json) -> Json:
            del kind
            answers.append(question)
            return {"ok": True, "object": question["object"], "managedFields": []}

    assert applies.judge(case, cast("Oracle", Empty())).cause is None
    assert len(answers) == 2


class Kubelet:
    """An oracle that answers as our CPU and memory managers do, after `change` has modified the answers."""

    def __init__(
        self,
        change: Callable[[Json, list[Json]], None],
        version: str = "1.37.2",
        cpu_policy: type[StaticCpuPolicy] = StaticCpuPolicy,
    ) -> None:
        self.version, self._change, self._cpu_policy = version, change, cpu_policy

    def ask(self, kind: str, question: Json) -> Json:
        del kind
        replay = numa.NumaReplay(question, self._cpu_policy)
        answers = [dict(replay.begin()), *(dict(replay.play(step)) for step in question["steps"])]
        replay.stop()
        self._change(question, answers)
        return answers


@beside("D29", "D30")
@pytest.mark.parametrize(
    ("make", "seed", "row"),
    [
        (numa.memory, "61", "D29"),
        (numa.memory, "s7-memory-4556", "D29"),
        (numa.cpus, "77", "D30"),
        (numa.cpus, "ci-cpus-252", "D30"),
    ],
    ids=["a-node-in-two-groups", "a-pod-admitted-before", "a-cpu-of-another-pod", "a-cpu-that-is-reserved-strictly"],
)
def test_memory_may_differ_only_by_what_a_refused_pod_leaves_behind(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[Random], Json], seed: str, row: str
) -> None:
    """D29, D30: the verdict on the pod, and the answers to the history without the pod, must be the same."""
    monkeypatch.setattr(numa, "decoded", lambda answer, **_: (answer, []))
    played = numa.played(make(Random(seed)))
    assert row in played.since, "choose a seed with which a pod is refused after it got something that was not free"
    case, last, begin = played.case, played.refused()[-1], min(played.since.values())
    uid = case["steps"][last - 1]["object"]["metadata"]["uid"]

    def judged(change: Callable[[Json, list[Json]], None]) -> str | None:
        return numa.judge(case, cast("Oracle", Kubelet(change))).cause

    def leaves_behind(question: Json, answers: list[Json], *, also: str = "memory_manager_state") -> None:
        for number, step in enumerate(question["steps"], start=1):
            is_of_pod = step["op"] == "admit" and step["object"]["metadata"]["uid"] == uid
            if is_of_pod and not answers[number]["ok"]:
                for answer in answers[number:]:
                    answer[also] = {"policy": "other"}

    def differs(question: Json, answers: list[Json]) -> None:
        del question
        answers[begin]["memory_manager_state"] = {"policy": "other"}

    def message(question: Json, answers: list[Json]) -> None:
        leaves_behind(question, answers)
        leaves_behind(question, answers, also="message")

    assert judged(lambda *_: None) == ""
    assert judged(leaves_behind) == row
    assert judged(partial(leaves_behind, also="cpu_manager_state")) == row
    assert judged(partial(leaves_behind, also="reason")) is None
    assert judged(differs) is None
    assert judged(message) is None


@beside("D33")
@pytest.mark.parametrize("seed", ["s7-cpus-93", "s7-cpus-419"], ids=["whole-cores-first", "regardless-of-sockets"])
def test_only_an_older_kubelet_may_follow_the_older_policy(monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    """D33 excuses exactly the answers that the policy before 1.37 gives."""
    monkeypatch.setattr(numa, "decoded", lambda answer, **_: (answer, []))
    case = numa.cpus(Random(seed))

    def judged(version: str, change: Callable[[Json, list[Json]], None] = lambda *_: None) -> str | None:
        kubelet = Kubelet(change, version, numa.OlderCpuPolicy)
        return numa.judge(case, cast("Oracle", kubelet)).cause

    def also_differs(question: Json, answers: list[Json]) -> None:
        del question
        answers[-1]["cpu_manager_state"] = {"policy": "other"}

    assert judged("1.36.3") == "D33"
    assert judged("1.36.3", also_differs) is None
    assert judged("1.37.2") is None


DRIVER, OTHER = "gpu.example.com", "nic.example.com"


class DraKubelet:
    """An oracle that answers as our DRA manager does, after `change` has modified the answers."""

    version = "1.37.2"

    def __init__(self, change: Callable[[Json, list[Json]], None]) -> None:
        self._change = change

    def ask(self, kind: str, question: Json) -> Json:
        del kind
        replay = DraReplay()
        answers = [_as_recorded(replay.play(step)) for step in question["steps"]]
        self._change(question["steps"], answers)
        return answers


def _as_recorded(outcome: Json) -> Json:
    """Return our outcome of a step in the format of the recordings."""
    answer = {name: value for name, value in outcome.items() if name not in ("state", "calls")}
    answer["calls"] = [
        {"driver": driver, "instance": instance, "version": version, "method": method}
        | {"claims": [{"namespace": one[0], "name": one[1], "uid": one[2]} for one in of_call]}
        | {"answer": {one[2]: {} for one in of_call}}
        for driver, instance, version, method, of_call in outcome["calls"]
    ]
    if "state" in outcome:
        answer |= {"state": {"claims": [_row(claim) for claim in outcome["state"].claims.values()]}}
        answer["memory_is_state"] = True
    return answer


def _row(claim: ClaimInfo) -> Json:
    drivers = {
        driver: {"Devices": None if devices is None else [_device_row(device) for device in devices]}
        for driver, devices in claim.drivers.items()
    }
    names = {"ClaimUID": claim.uid, "ClaimName": claim.key.name, "Namespace": claim.key.namespace}
    return {**names, "PodUIDs": sorted(claim.pods), "DriverState": drivers}


def _device_row(device: PreparedDevice) -> Json:
    names = {"PoolName": device.pool, "DeviceName": device.name, "ShareID": device.share_id}
    return {**names, "RequestNames": device.requests, "CDIDeviceIDs": device.cdi_ids}


def put_claim(name: str, pods: Sequence[str], *drivers: str, **result: Json) -> Json:
    """Return a step that allocates a claim, with one device from each driver."""
    devices = [{"request": "r", "driver": one, "pool": "node", "device": "d", **result} for one in drivers]
    reserved = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
    status = {"allocation": {"devices": {"results": devices}}, "reservedFor": reserved}
    metadata = {"name": name, "namespace": "default", "uid": f"{name}-uid"}
    return {"op": "put_claim", "object": {"metadata": metadata, "spec": {}, "status": status}}


def put_pod(uid: str, *claims_: str) -> Json:
    """Return a step that adds a pod whose container uses these claims."""
    entries = [{"name": f"e{place}", "resourceClaimName": claim} for place, claim in enumerate(claims_)]
    container = {"name": "main", "resources": {"claims": [{"name": one["name"]} for one in entries]}}
    metadata = {"name": uid, "namespace": "default", "uid": uid}
    return {
        "op": "put_pod",
        "object": {"metadata": metadata, "spec": {"resourceClaims": entries, "containers": [container]}, "status": {}},
    }


UP: Json = [{"op": "driver_up", "name": DRIVER}, {"op": "driver_up", "name": OTHER}]
GETS = {"op": "all_resources", "pod": "p"}


def prepares(pod: str) -> Json:
    return {"op": "prepare", "pod": pod}


def judged(steps: Json, change: Callable[[Json, list[Json]], None]) -> str | None:
    """Return the cause that explains how our answers differ from the same answers after `change`."""
    return dra.judge({"steps": steps}, cast("Oracle", DraKubelet(change))).cause


def changing(step: Json, **answer: Json) -> Callable[[Json, list[Json]], None]:
    """Return a function that changes the answer to the first step that equals `step`."""

    def change(steps: Json, answers: list[Json]) -> None:
        if step in steps:
            answers[steps.index(step)] |= answer

    return change


def both(*changes: Callable[[Json, list[Json]], None]) -> Callable[[Json, list[Json]], None]:
    def change(steps: Json, answers: list[Json]) -> None:
        for one in changes:
            one(steps, answers)

    return change


NOTHING = {"containers": {"main": {"ok": True, "cdi": []}}}
REFUSED: Json = {"ok": False, "error": "prepare dynamic resources: ResourceClaim c {}", "calls": []}


def refused(step: Json, because: str) -> Callable[[Json, list[Json]], None]:
    return changing(step, **{**REFUSED, "error": REFUSED["error"].format(because)})


@beside("D25")
def test_a_pod_that_a_kubelet_refuses_is_excused_only_if_we_prepare_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later steps are compared as if the refused step had not happened."""
    steps = [*UP, put_claim("c", ["p"], DRIVER), put_pod("p", "c"), prepares("p"), GETS]
    because = "is being unprepared"
    assert judged(steps, refused(prepares("p"), because)) == "D25"
    assert judged(steps, refused(prepares("p"), "has had enough")) is None
    assert judged(steps, both(refused(prepares("p"), because), changing(GETS, **NOTHING))) is None
    play = DraReplay.play

    def failing(replay: DraReplay, step: Json, *, error: str) -> Json:
        if step["op"] != "prepare":
            return play(replay, step)
        return {"ok": False, "error": error, "calls": [], "state": replay.state(), "prepared": []}

    for error, cause in (("other", None), ("NodePrepareResources: rpc error: code = Unimplemented", "D25")):
        monkeypatch.setattr(DraReplay, "play", partialmethod(failing, error=error))
        assert judged(steps[:-1], refused(prepares("p"), because)) == cause


@beside("N20")
def test_a_pod_whose_claim_skips_a_call_is_compared_as_with_the_gate_on() -> None:
    """N20: our answers must be those that a kubelet gives with the feature gate on, in all steps."""
    steps = [*UP, put_claim("c", ["p"], DRIVER, skipNodeOperations=["NodePrepareResources"]), put_pod("p", "c")]
    steps += [prepares("p"), GETS]
    because = "DRAOptionalNodeOperations feature gate is disabled"

    def cause(because: str, **with_gate: Json) -> str | None:
        off, on = DraKubelet(refused(prepares("p"), because)), DraKubelet(changing(GETS, **with_gate))

        class Gated:
            version = "1.37.2"

            def ask(self, kind: str, question: Json) -> Json:
                return (on if question["gates"] else off).ask(kind, question)

        return dra.judge({"steps": steps, "gates": []}, cast("Oracle", Gated())).cause

    assert cause(because) == "N20"
    assert cause("has had enough") is None
    assert cause(because, containers={"main": {"ok": True, "cdi": ["other"]}}) is None


@beside("N21")
@pytest.mark.parametrize(
    ("messages", "is_restarted", "cause"),
    [
        (["hot", ""], False, "N21"),
        ([""], False, None),
        (["ä" * 700], True, "N21"),
        (["ä" * 700], False, None),
        (["x" + "ä" * 700], True, None),
    ],
)
def test_only_a_device_named_twice_or_a_message_cut_in_two_is_excused_as_a_change(
    messages: Sequence[str], is_restarted: bool, cause: str | None
) -> None:
    """N21: only pods that use this device may be named, and only in addition to those that we name."""
    device = {"Pool": "node", "Device": "d", "Health": "HEALTHY", "Timeout": 0, "LastUpdated": 0}

    def report(*messages: str) -> Json:
        return {"op": "health", "name": DRIVER, "devices": [{**device, "Message": one} for one in messages]}

    known, again = report(messages[-1]), {**report(*messages), "number": 2}
    steps = [{**UP[0], "health": True}, put_claim("c", ["p"], DRIVER), put_pod("p", "c"), prepares("p"), known]
    steps += [{"op": "restart", "reregister": [DRIVER]}] * is_restarted + [again, GETS]
    assert judged(steps, changing(again)) == ""
    assert judged(steps, changing(again, updates=[["p"]])) == cause
    assert judged(steps, changing(again, updates=[["p", "q"]])) is None
    assert judged(steps, changing(again, updates=[["p"]], applied=False)) is None
    assert judged(steps, changing(known, updates=[])) is None
    assert judged(steps, both(changing(again, updates=[["p"]]), changing(GETS, **NOTHING))) is None


@beside("D25")
def test_a_refusal_because_of_an_old_claim_is_excused_only_if_the_claim_has_another_uid() -> None:
    """The kubelet names the claim that is being released. We name the next claim, which was recreated."""
    renewed = put_claim("d", ["p"], DRIVER)
    renewed["object"]["metadata"]["uid"] = "other"
    steps = [*UP, *(put_claim(name, ["p"], DRIVER) for name in "cd"), put_pod("p", "c", "d"), prepares("p")]
    again = {**prepares("p"), "number": 2}
    assert judged([*steps, renewed, again], refused(again, "is being unprepared")) == "D25"
    assert judged([*steps, renewed, again], refused(again, "has had enough")) is None
    of_d = "prepare dynamic resources: ResourceClaim d is being unprepared"
    assert judged([*steps, renewed, again], changing(again, **{**REFUSED, "error": of_d})) is None


@beside("N6")
def test_a_claim_that_a_pod_names_twice_is_excused_only_if_we_ask_once() -> None:
    steps = [
        *UP,
        put_claim("c", ["p"], DRIVER),
        put_pod("p", "c", "c"),
        prepares("p"),
        {"op": "pod_might_need", "uid": "p"},
    ]

    def twice(steps: Json, answers: list[Json], *, other: str = "c-uid") -> None:
        if prepares("p") in steps:
            answer = answers[steps.index(prepares("p"))]
            call = answer["calls"][0]
            again = [*call["claims"], *call["claims"], *({**one, "uid": other} for one in call["claims"])]
            answer |= {"ok": False, "error": "skipped 1 ResourceClaims", "calls": [{**call, "claims": again}]}

    assert judged(steps, twice) == "N6"
    assert judged(steps, partial(twice, other="other-uid")) is None
    assert judged(steps, both(twice, changing(steps[-1], value=True))) is None


@beside("N5")
def test_a_kubelet_that_has_read_a_file_that_is_behind_is_compared_as_if_it_had_gone_on() -> None:
    """N5: the answer that the kubelet would give without the restart is compared instead."""
    again = {"op": "restart", "reregister": True}
    steps = [*UP, put_claim("c", ["p"], DRIVER), put_pod("p", "c"), prepares("p"), again, GETS]

    def behind(steps: Json, answers: list[Json]) -> None:
        if again not in steps:
            return
        for step in (prepares("p"), again):
            (row,) = answers[steps.index(step)]["state"]["claims"]
            row["DriverState"] = {DRIVER: {"Devices": None}}
            answers[steps.index(step)]["memory_is_state"] = False
        answers[steps.index(prepares("p"))]["calls"][0]["answer"]["c-uid"] = {
            "devices": [
                {"pool": "node", "device": "d", "requests": ["r"], "cdi": [f"{DRIVER}/dev=c-uid-d"]},
            ]
        }

    def without(steps: Json, answers: list[Json]) -> None:
        if again not in steps:
            changing(GETS, **NOTHING)(steps, answers)

    def with_restart(steps: Json, answers: list[Json]) -> None:
        if again in steps:
            changing(GETS, **NOTHING)(steps, answers)

    assert judged(steps, both(behind, with_restart)) == "N5"
    assert judged(steps, both(behind, with_restart, without)) is None
    assert judged(steps, with_restart) is None


@beside("N13")
def test_a_claim_that_a_kubelet_does_not_prepare_again_is_excused_only_if_it_may_be_released() -> None:
    claim = put_claim("c", ["p", "q"], DRIVER, OTHER)
    script = {"op": "driver_script", "name": OTHER, "script": {"unprepare": {"error": {"code": 2, "message": "no"}}}}
    begin = [*UP, claim, put_pod("p", "c"), put_pod("q", "c"), prepares("p")]
    released = [*begin, script, {"op": "unprepare", "pod": "p"}, prepares("q")]
    assert judged(released, changing(prepares("q"), calls=[])) == "N13"
    assert judged(begin, changing(prepares("p"), calls=[])) is None
    assert judged(released, changing(prepares("p"), calls=[])) is None


@beside("N3")
def test_a_claim_that_is_taken_from_another_pod_is_excused_only_if_that_pod_used_it() -> None:
    leave = {"op": "unprepare", "pod": "q"}
    steps = [*UP, put_claim("c", ["p", "q"], DRIVER), put_pod("p", "c"), put_pod("q", "c"), prepares("p"), leave]
    gone = changing(leave, state={"claims": []}, prepared=[])
    assert judged(steps, gone) == "N3"
    assert judged(steps, changing(leave, ok=False, error="no luck")) is None


def test_a_cause_that_explains_far_more_cases_than_usual_is_named() -> None:
    assert list(too_often({"D2": 20, "D2+D18": 10, "D18": 30}, 1000)) == []
    assert list(too_often({"D2": 60, "D2+D18": 10}, 1000)) == [
        "D2: 70 of 1,000 cases, more than 3 times the usual share of 2%"
    ]
    assert list(too_often({"new": 36}, 1000)) == ["new: 36 of 1,000 cases, more than 3 times the usual share of 1%"]
