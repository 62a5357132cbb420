"""The laws of the DRA manager in histories that Hypothesis generates, with faults at any call."""

from collections.abc import Mapping, Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from tests.simulation.dra.world import API_FAULTS, CLAIMS, DISK_FAULTS, DRIVER_FAULTS, PODS, Action, Fault, run

pods = st.sampled_from(sorted(PODS))
actions: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("prepare"), pods),
    st.tuples(st.just("prepare"), pods),
    st.tuples(st.just("unprepare"), pods),
    st.tuples(st.just("vanish"), pods),
    st.tuples(st.sampled_from(["restart", "orderly_restart", "reconcile"])),
    st.tuples(st.just("driver_restarts"), st.sampled_from(["a.example.com", "b.example.com"])),
    st.tuples(st.just("replace_claim"), st.sampled_from(sorted(CLAIMS))),
)
calls = st.integers(0, 5)
kinds = st.sampled_from(sorted({*DRIVER_FAULTS, *DISK_FAULTS, *API_FAULTS}))
faults: st.SearchStrategy[Sequence[Fault]] = st.lists(st.builds(Fault, calls, kinds), max_size=2)


@given(st.lists(actions, min_size=2, max_size=12), st.dictionaries(st.integers(0, 11), faults, max_size=4))
@example([("prepare", "first"), ("unprepare", "first"), ("prepare", "third")], {1: [Fault(1, "missing")]})
def test_the_laws_hold_whatever_fails(history: Sequence[Action], faulty: Mapping[int, Sequence[Fault]]) -> None:
    run(history, faulty)
