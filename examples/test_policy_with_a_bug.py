"""A property test that finds a bug: an allocation policy that is wrong only where a container reuses a device."""

from collections.abc import Collection

import pytest
from hypothesis import HealthCheck, given, settings

from devicecore import DeviceId
from devicecore.domain.errors import PolicyError
from devicecore.domain.policies import Choice, answer
from devicecore.testing.strategies import choices

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for a busy machine


def from_the_end(choice: Choice) -> Collection[DeviceId]:
    """Take the last devices. The bug: this ignores `must_include`, which is empty for most containers."""
    return list(choice.available)[len(choice.available) - choice.size :]


def corrected(choice: Choice) -> Collection[DeviceId]:
    """Take the last devices, in addition to those that must be included."""
    return choice.with_chosen(reversed(list(choice.free)))


@settings(PATIENT, max_examples=500, derandomize=True, database=None)
@given(choices())
def check(choice: Choice) -> None:
    answer(from_the_end, choice)


def test_hypothesis_finds_the_bug() -> None:
    with pytest.raises(PolicyError, match="expected the devices that must be included"):
        check()


@PATIENT
@given(choices())
def test_the_corrected_policy_is_good(choice: Choice) -> None:
    assert answer(corrected, choice) == answer(corrected, choice)
