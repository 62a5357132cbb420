"""Laws of the decisions of dynamic resource allocation, and of reading untrusted objects."""

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from devicecore.domain.dra.answers import PrepareResult, UnprepareResult, check_prepared, check_unprepared, is_cdi_name
from devicecore.domain.dra.claims import ClaimCache, ClaimInfo, ClaimPhase
from devicecore.domain.dra.devices import container_devices
from devicecore.domain.dra.lookup import wanted_requests
from devicecore.domain.dra.model import (
    AllocatedDevice,
    ClaimKey,
    ClaimRef,
    ClaimUid,
    DriverName,
    PreparedDevice,
    ResourceClaim,
)
from devicecore.domain.dra.objects import resource_claim_of
from devicecore.domain.dra.preparing import AskDriver, advance, enter, give_up, store_answer
from devicecore.domain.dra.releasing import Releases, leave, mark_uncertain, next_to_release, remove
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import Container, ContainerClaim, ExtendedClaim, Pod, PodClaim, PodUid, RequestMapping
from devicecore.domain.objects import pod_of

A, B = DriverName("a.example.com"), DriverName("b.example.com")
PODS = [PodUid(name) for name in "pqr"]
KEYS = [ClaimKey("default", name) for name in ("one", "two", "three")]

pods = st.sampled_from(PODS)
keys = st.lists(st.sampled_from(KEYS), unique=True)
devices = st.builds(
    PreparedDevice,
    st.just("pool"),
    st.sampled_from(["d0", "d1"]),
    st.none(),
    st.none() | st.lists(st.sampled_from("rs"), min_size=1, unique=True).map(tuple),
    st.none() | st.just(("v.example.com/c=d",)),
)
answered = st.none() | st.lists(devices, min_size=1, max_size=2, unique=True).map(tuple)


@st.composite
def caches(draw: st.DrawFn) -> ClaimCache:
    claims = []
    for key in draw(keys):
        drivers = draw(st.dictionaries(st.sampled_from([A, B]), answered))
        phase = draw(st.sampled_from(ClaimPhase))
        users = draw(st.frozensets(pods))
        claims.append(ClaimInfo(key, ClaimUid(f"uid-{key.name}"), users, drivers, phase))
    return ClaimCache.of(claims)


resource_claims = st.builds(
    lambda key, uid, drivers: ResourceClaim(
        key, ClaimUid(uid), "", tuple(AllocatedDevice(d, "p", "x") for d in drivers)
    ),
    st.sampled_from(KEYS),
    st.sampled_from(["uid-one", "uid-two", "uid-three"]),
    st.lists(st.sampled_from([A, B])),
)


@given(caches(), pods, st.lists(resource_claims, max_size=3))
def test_entering_only_adds(cache: ClaimCache, pod: PodUid, wanted: Sequence[ResourceClaim]) -> None:
    after = enter(cache, pod, wanted)
    for key, claim in cache.claims.items():
        assert evolve(after.cache.claims[key], pods=claim.pods) == claim
        assert after.cache.claims[key].pods - {pod} == claim.pods - {pod}
    if after.error is None:
        assert all(pod in after.cache.claims[claim.key].pods for claim in wanted)
        assert all(after.cache.claims[claim.key].uid == claim.uid for claim in wanted)
    assert enter(after.cache, pod, wanted) == after


@given(caches(), keys)
def test_an_attempt_asks_each_driver_once_and_then_ends(cache: ClaimCache, wanted: Sequence[ClaimKey]) -> None:
    asked: list[tuple[DriverName, ClaimKey]] = []
    while ask := (step := advance(cache, wanted)).ask:
        asked += [(ask.driver, claim.key) for claim in ask.claims]
        cache = store_answer(cache, ask, {claim.uid: PrepareResult() for claim in ask.claims}).cache
    assert len(set(asked)) == len(asked)
    assert asked == sorted(asked, key=lambda one: one[0])
    assert all(claim.phase is ClaimPhase.PREPARED for claim in step.cache.present(wanted))
    assert advance(step.cache, wanted).cache == step.cache


@given(caches(), keys)
def test_giving_up_forgets_who_has_answered_and_nothing_else(cache: ClaimCache, wanted: Sequence[ClaimKey]) -> None:
    ask = advance(cache, wanted).ask
    if ask:
        stored = store_answer(cache, ask, {claim.uid: PrepareResult() for claim in ask.claims}).cache
        after = give_up(stored, wanted).cache
        assert all(not claim.answered for claim in after.present(wanted))
        assert advance(after, wanted).ask == ask


@given(caches(), pods, keys)
def test_only_the_pod_leaves_and_only_claims_of_it(cache: ClaimCache, pod: PodUid, left: Sequence[ClaimKey]) -> None:
    found = leave(cache, pod, left)
    for key, claim in cache.claims.items():
        after = found.cache.claims[key]
        assert evolve(after, pods=claim.pods) == claim
        assert after.pods == claim.pods or (after.pods == claim.pods - {pod} and after.pods)
        assert (key in found.last) is (key in left and claim.pods <= {pod})
    ask = next_to_release(found.cache, pod, found.last, {})
    assert ask is None or {*ask.keys} <= set(found.last)


@given(caches(), pods, keys, pods)
def test_a_claim_that_another_pod_enters_is_neither_asked_for_nor_forgotten(
    cache: ClaimCache, pod: PodUid, left: Sequence[ClaimKey], other: PodUid
) -> None:
    found = leave(cache, pod, left)
    entered = found.cache.put(*(evolve(claim, pods=claim.pods | {other}) for claim in found.cache.present(found.last)))
    everybody = {key: Releases(0, frozenset({A, B})) for key in found.last}
    after = remove(entered, pod, found.last, everybody).cache
    if other != pod:
        assert next_to_release(entered, pod, found.last, {}) is None
        ask = AskDriver(A, tuple(claim.ref for claim in entered.present(found.last)))
        assert mark_uncertain(entered, pod, ask).ask is None
        assert all(after.claims[key].pods == {other} for key in found.last)
    else:
        assert not after.present(found.last)


refs = [ClaimRef(key, ClaimUid(f"uid-{key.name}")) for key in KEYS]
uids = st.sampled_from([ref.uid for ref in refs] + [ClaimUid("unknown")])


@given(st.lists(st.sampled_from(refs), unique=True), st.dictionaries(uids, st.sampled_from(["", "busy"])))
def test_an_answer_without_error_has_exactly_the_claims_that_were_asked(
    asked: Sequence[ClaimRef], errors: dict[ClaimUid, str]
) -> None:
    prepared = check_prepared(asked, {uid: PrepareResult((), error) for uid, error in errors.items()})
    released = check_unprepared(asked, {uid: UnprepareResult(error) for uid, error in errors.items()})
    is_good = errors.keys() == {ref.uid for ref in asked} and not any(errors.values())
    assert (prepared.error is None) is (released.error is None) is is_good
    assert set(prepared.devices) <= {ref.key for ref in asked if errors.get(ref.uid) == ""}
    assert set(released.released) == {ref.key for ref in asked if errors.get(ref.uid) == ""}
    assert set(released.kept) == {ref.key for ref in asked if errors.get(ref.uid)}


@given(caches(), st.lists(st.sampled_from(["", "r", "s"]), max_size=3))
def test_a_container_gets_the_devices_that_serve_its_requests(cache: ClaimCache, requests: Sequence[str]) -> None:
    pod = Pod(PODS[0], claims=(PodClaim("one", "one"),))
    container = Container("main", claims=[ContainerClaim("one", request) for request in requests])
    claim = cache.claims.get(KEYS[0])
    if claim is not None:
        found = container_devices(cache, pod, container)
        everything = [device for _, listed in sorted(claim.drivers.items()) for device in listed or ()]
        assert list(found) == [device for request in requests for device in everything if device.serves(request)]


def test_the_extended_claim_serves_what_a_container_asks_for() -> None:
    mappings = (
        RequestMapping("main", "example.com/gpu", "r0"),
        RequestMapping("main", "deviceclass.resource.kubernetes.io/nic", "r1"),
        RequestMapping("main", "example.com/none", "r2"),
        RequestMapping("main", "cpu", "r3"),
        RequestMapping("other", "example.com/gpu", "r4"),
    )
    requests = {"example.com/gpu": 1, "deviceclass.resource.kubernetes.io/nic": 1, "example.com/none": 0, "cpu": 2}
    pod = Pod(PODS[0], extended_claim=ExtendedClaim("extended", mappings))
    found = wanted_requests(pod, Container("main", requests=requests))
    assert found == {ClaimKey("default", "extended"): ("r0", "r1")}


@pytest.mark.parametrize("name", ["v.example.com/gpu=0", "ab/cd=e", "a.com/gpu.v1=0", "a.com/class_x-y=dev:0.1_a-b"])
def test_a_cdi_name_has_vendor_class_and_device(name: str) -> None:
    assert is_cdi_name(name)


NO_NAMES = ("", "gpu", "ab/cd", "ab=cd", "ab/cd=", "/cd=e", "ab/=e", "1ab/cd=e", "ab/cd.=e", "ab/cd=e f", "ab/cd=e\n")


@pytest.mark.parametrize("name", [*NO_NAMES, "a/cd=e"])
def test_anything_else_is_not_a_cdi_name(name: str) -> None:
    assert not is_cdi_name(name)


json: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["metadata", "spec", "status"]


@given(st.dictionaries(st.sampled_from(FIELDS), json) | json)
@example(
    {
        "metadata": {"name": "p", "uid": "u"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"a": "x"}}}]},
    }
)
@example(
    {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "c", "resources": {"limits": {"a": []}}}]}}
)
@example({"metadata": {"name": "p", "uid": "u"}, "spec": {"resourceClaims": {}}})
@example({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "c", "resources": {"limits": []}}]}})
def test_any_object_is_a_value_or_has_a_field_that_is_wrong(manifest: object) -> None:
    for read in (pod_of, resource_claim_of):
        wrong: DocumentError | None = None
        try:
            read(manifest)
        except DocumentError as error:
            wrong = error
        assert wrong is None or wrong.field or not isinstance(manifest, dict)
