"""Laws of a token bucket, with times and rates that floats represent exactly."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devicecore.system.rate import TokenBucket
from devicecore.testing.faults import ManualClock

rates = st.sampled_from([0.25, 1.0, 8.0])
bursts = st.integers(1, 5)
pauses = st.lists(st.integers(0, 40).map(lambda eighths: eighths / 8), max_size=30)


@given(rates, bursts, pauses)
def test_no_period_has_more_calls_than_burst_and_rate_allow(per_second: float, burst: int, pauses: list[float]) -> None:
    """This holds for every period between two calls."""
    time = ManualClock()
    bucket = TokenBucket(per_second, burst, time)
    taken: list[float] = []
    for pause in pauses:
        time.now += pause
        if bucket.take() == 0:
            taken.append(time.now)
    for (first, begin), (last, end) in combinations(enumerate(taken), 2):
        assert last - first + 1 <= burst + (end - begin) * per_second


@given(rates, bursts, pauses)
def test_a_refused_caller_succeeds_after_the_told_time(per_second: float, burst: int, pauses: list[float]) -> None:
    """Calls meanwhile do not change that time."""
    time = ManualClock()
    bucket = TokenBucket(per_second, burst, time)
    for pause in pauses:
        time.now += pause
        if wait := bucket.take():
            due = time.now + wait
            time.now += wait / 2
            assert bucket.take() == due - time.now
            time.now = due
            assert bucket.take() == 0


@given(rates, bursts, pauses)
def test_a_full_bucket_allows_as_much_as_a_new_one(per_second: float, burst: int, pauses: list[float]) -> None:
    """It is full after at most `burst / per_second` seconds, and not with one token less."""
    time = ManualClock()
    bucket = TokenBucket(per_second, burst, time)
    assert bucket.full
    for pause in pauses:
        time.now += pause
        if bucket.take() == 0:
            assert not bucket.full
    time.now += burst / per_second
    assert bucket.full
    assert [bucket.take() == 0 for _ in range(burst + 1)] == [True] * burst + [False]


@pytest.mark.parametrize(("per_second", "burst"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_a_bucket_without_tokens_is_a_mistake(per_second: float, burst: int) -> None:
    with pytest.raises(ValueError, match="would refuse every call"):
        TokenBucket(per_second, burst, ManualClock())
