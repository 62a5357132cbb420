"""Each cause excuses one field of one kind of answer: a fault planted next to it is a difference that nobody knows."""

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import cast

import pytest

from devicecore.domain.allocation import Release
from tests.histories import Replay
from tests.oracle import allocators, applies, claims, devices, numa, text
from tests.oracle.asking import Json, Oracle
from tests.oracle.kinds import too_often
from tests.recorded_allocations import allocation_of, results_of, situation_of


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
    """The cause of a difference in a quantity."""
    return text.judge_quantity({"text": text_}, oracle({"ok": True, "text": "any", **answer})).cause


def test_the_whole_number_of_a_large_or_negative_quantity_is_compared_with_its_decimals() -> None:
    """D22: Go computes a wrong whole number. Ours has to be the one that its decimals say."""
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
    """A case of the stable allocator in which nobody gets devices, without an error."""
    release = Release.V1_37
    made = (allocators.case(Random(str(number))) for number in range(1000))
    for case in made:
        if case["allocator"] == "stable" and results_of(allocation_of(case, release)) is None:
            return case
    raise AssertionError("no case without devices")


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


def test_devices_that_no_rule_allows_are_not_excused_as_random(stable: Json) -> None:
    """D18 needs right answers on both sides, and a fault of Kubernetes the answer of a search with all its faults."""
    given: Json = {"results": [{"devices": {"results": []}}], "error": None}
    assert allocators.judge(stable, oracle(given)).cause is None
    situation = situation_of(stable, Release.V1_37)
    assert claims.fault_of(situation, given["results"], Release.V1_37.faults) is None


def test_a_pool_is_excused_only_if_its_slices_disagree() -> None:
    def of(count: int, generation: int = 1) -> Json:
        pool = {"name": "p", "generation": generation, "resourceSliceCount": count}
        return {"spec": {"driver": "d", "pool": pool}}

    assert allocators.counts_disagree([of(1), of(2)])
    assert not allocators.counts_disagree([of(1), of(1), of(2, generation=2)])


def test_only_the_value_of_one_device_is_excused_in_an_expression() -> None:
    of = claims.cause_of_value
    assert of("semver('1') == device.x", "no such overload", ours=True, theirs=None) is not None
    assert of("semver('1') == device.x", "", ours=None, theirs=True) is None
    assert of("semver('1') == device.x", "", ours=True, theirs=False) is None
    assert of("1 in []", "", ours=None, theirs=False) is not None
    assert of("1 in []", "", ours=True, theirs=False) is None
    assert of("1 in [1]", "", ours=None, theirs=False) is None


def test_a_pod_that_loses_devices_by_a_refusal_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """D2 repairs the history of a refused second admission, so this is looked at before."""
    gpu, pod = "a.example.com/gpu", {"uid": "p", "name": "p", "namespace": "default", "initContainers": []}
    one = {**pod, "containers": [{"name": "main", "limits": {gpu: 1}}]}
    more = {**pod, "containers": [*one["containers"], {"name": "other", "limits": {gpu: 9}}]}
    steps = [
        {"op": "connect", "resource": gpu, "devices": [{"id": "gpu-0", "health": "Healthy"}]},
        {"op": "allocate", "pod": one},
        {"op": "allocate_again", "pod": more},
    ]
    history = {"numa_nodes": [0], "steps": steps}
    assert devices.lost_by_a_refusal(history) == []
    play = Replay.play

    def forgetful(replay: Replay, step: Json) -> Json:
        answer = play(replay, step)
        if step["op"] == "allocate_again":
            play(replay, {"op": "remove_pod", "uid": "p"})
        return answer

    monkeypatch.setattr(Replay, "play", forgetful)
    assert devices.lost_by_a_refusal(history)


GPU = "a.example.com/gpu"
POD: Json = {"uid": "p", "name": "p", "namespace": "default", "initContainers": []}
ONE = {**POD, "containers": [{"name": "main", "limits": {GPU: 1}}]}
LISTED = [{"id": f"gpu-{node}", "health": "Healthy", "numa": [node]} for node in (0, 1)]
TWO = {"op": "connect", "resource": GPU, "devices": LISTED}


def ours(history: Json, *changes: tuple[int, Json]) -> Json:
    """Our answers to a history as a kubelet's, with changes of some steps."""
    answers = devices.answers_of_ours(history)
    for place, change in changes:
        answers[place] = {**answers[place], **change}
    return answers


def test_a_container_that_has_lost_devices_gets_aligned_ones() -> None:
    """D32: what such a start does to devices is not compared; any other start is."""
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


def test_what_a_refused_pod_leaves_behind_is_excused_only_where_a_kubelet_keeps_it() -> None:
    """D2: GetPreferredAllocation failed, or not all pods were known. Another refusal excuses nothing that follows."""
    more = {**POD, "uid": "q", "containers": [{"name": "main", "limits": {GPU: 9}}]}
    for waits in (True, False):
        steps = [{"op": "restart", "waits": waits}, TWO, {"op": "allocate", "pod": more}, {"op": "capacity"}]
        history = {"numa_nodes": [0, 1], "policy": "restricted", "scope": "pod", "steps": steps}
        without = {**history, "steps": [*steps[:2], steps[3]]}
        left = oracle(ours(history, (3, {"allocatable": {}})), ours(without))
        assert devices.judge(history, left).cause == ("D2" if waits else None)
        answer = oracle(ours(history, (2, {"message": "other"})), ours(without))
        assert devices.judge(history, answer).cause is None


@pytest.mark.parametrize(
    ("is_listed", "place", "change", "cause"),
    [
        (False, "cm/devicemanager.(*ManagerImpl)", {}, "D21"),
        (True, "cm/devicemanager.(*ManagerImpl)", {}, None),
        (False, "cm/topologymanager", {}, None),
        (False, "cm/devicemanager.(*ManagerImpl)", {"capacity": {}}, None),
    ],
)
def test_a_crash_is_excused_only_for_a_device_that_is_no_longer_listed(
    is_listed: bool, place: str, change: Json, cause: str | None
) -> None:
    """D21: what comes before and after the step is compared."""
    steps = [
        {"op": "connect", "resource": GPU, "devices": LISTED[:1]},
        {"op": "allocate", "pod": ONE},
        {"op": "list_and_watch", "resource": GPU, "devices": LISTED if is_listed else LISTED[1:]},
        {"op": "hints", "pod": ONE, "container": "main"},
        {"op": "capacity"},
    ]

    class Crashing:
        def ask(self, kind: str, question: Json) -> Json:
            del kind
            if any(step["op"] == "hints" for step in question["steps"]):
                return {"panic": "nil", "stack": place}
            return [{**one, **change} if "capacity" in one else one for one in devices.answers_of_ours(question)]

    history = {"numa_nodes": [0, 1], "policy": "restricted", "scope": "pod", "steps": steps}
    assert devices.judge(history, cast("Oracle", Crashing())).cause == cause


def test_what_is_written_after_another_owner_of_an_empty_field_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """D26 excuses one write, not those after it."""
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
    """An oracle that answers as our managers of CPUs and memory do, apart from what `change` makes of the answers."""

    version = "1.37.2"

    def __init__(self, change: Callable[[Json, list[Json]], None]) -> None:
        self._change = change

    def ask(self, kind: str, question: Json) -> Json:
        del kind
        answers = [dict(one) for one in numa.played(question).ours]
        self._change(question, answers)
        return answers


@pytest.mark.parametrize(
    ("make", "seed", "row"),
    [(numa.memory, "61", "D29"), (numa.cpus, "77", "D30"), (numa.cpus, "ci-cpus-252", "D30")],
    ids=["a-node-in-two-groups", "a-cpu-of-another-pod", "a-cpu-that-is-reserved-strictly"],
)
def test_memory_may_differ_only_by_what_a_refused_pod_leaves_behind(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[Random], Json], seed: str, row: str
) -> None:
    """D29, D30: the verdict on the pod, and all that the kubelet does without the pod, have to be ours."""
    monkeypatch.setattr(numa, "decoded", lambda answer: (answer, []))
    played = numa.played(make(Random(seed)))
    assert row in played.since, "take a number of which a pod is refused after it got what was not free"
    case, last, begin = played.case, played.refused()[-1], min(played.since.values())
    uid = case["steps"][last - 1]["object"]["metadata"]["uid"]

    def judged(change: Callable[[Json, list[Json]], None]) -> str | None:
        return numa.judge(case, cast("Oracle", Kubelet(change))).cause

    def leaves_behind(question: Json, answers: list[Json], *, also: str = "memory_manager_state") -> None:
        for number, step in enumerate(question["steps"], start=1):
            if step["op"] == "admit" and step["object"]["metadata"]["uid"] == uid:
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


def test_a_cause_that_explains_far_more_cases_than_usual_is_named() -> None:
    assert list(too_often({"D2": 20, "D2+D18": 10, "D18": 30}, 1000)) == []
    assert list(too_often({"D2": 60, "D2+D18": 10}, 1000)) == [
        "D2: 70 of 1,000 cases, more than 3 times the usual share of 2%"
    ]
    assert list(too_often({"new": 36}, 1000)) == ["new: 36 of 1,000 cases, more than 3 times the usual share of 1%"]
