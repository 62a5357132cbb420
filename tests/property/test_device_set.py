"""The laws of `domain/device_set.py`.

"A device set is equal to any set with the same members, no matter what index the device set uses. Iteration is in the
natural order of the ids, and no operation changes a set."
"""

import operator
from collections.abc import Callable
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.vendor.pretty import pretty

from devicecore.domain.device_set import DeviceIndex, DeviceSet, natural_key
from devicecore.domain.model import DeviceId
from devicecore.testing.strategies import device_ids, device_sets

Operation = Callable[[Any, Any], Any]  # operations on sets of any kind

ALGEBRA: list[Operation] = [operator.and_, operator.or_, operator.sub, operator.xor]
COMPARISONS: list[Operation] = [operator.eq, operator.ne, operator.le, operator.lt, operator.ge, operator.gt]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[DeviceSet, DeviceSet]:
    """Two sets on one index, on two overlapping indexes, or on two indexes without common ids."""
    one = draw(device_sets())
    other = draw(device_sets())
    if draw(st.booleans()):
        index = one.index.covering(other)
        return index.select(one), index.select(other)
    return one, other


@given(device_sets())
def test_an_example_that_fails_shows_a_set_as_its_repr(devices: DeviceSet) -> None:
    """Hypothesis prints a set as `repr` does: with at most three of its devices."""
    assert pretty(devices) == repr(devices)


@given(pairs())
def test_the_algebra_is_that_of_frozensets(pair: tuple[DeviceSet, DeviceSet]) -> None:
    """The members of `a & b`, `a | b`, `a - b` and `a ^ b` are those that a frozenset would have."""
    one, other = pair
    for operation in ALGEBRA:
        assert frozenset(operation(one, other)) == operation(frozenset(one), frozenset(other)), operation


@given(pairs())
def test_other_sets_take_part(pair: tuple[DeviceSet, DeviceSet]) -> None:
    """A device set combines with a frozenset on either side, and the result is a device set."""
    one, other = pair
    for operation in ALGEBRA:
        expected = operation(frozenset(one), frozenset(other))
        for result in (operation(one, frozenset(other)), operation(frozenset(one), other)):
            assert isinstance(result, DeviceSet), operation
            assert frozenset(result) == expected, operation


@given(pairs())
def test_comparisons_are_those_of_frozensets(pair: tuple[DeviceSet, DeviceSet]) -> None:
    """Equality, subset and superset mean the same as for frozensets, also between the two types."""
    one, other = pair
    for comparison in COMPARISONS:
        expected = comparison(frozenset(one), frozenset(other))
        assert comparison(one, other) == expected, comparison
        assert comparison(one, frozenset(other)) == expected, comparison
        assert comparison(frozenset(one), other) == expected, comparison


@given(device_sets(), st.lists(device_ids()))
def test_equal_sets_have_equal_hashes_whatever_their_index(devices: DeviceSet, others: list[DeviceId]) -> None:
    """The index is not part of the value: on a larger index, a set is equal and has the same hash."""
    elsewhere = devices.on(devices.index.covering(others))
    assert elsewhere == devices
    assert hash(elsewhere) == hash(devices)


@given(device_sets())
@example(DeviceSet.of([DeviceId("gpu-0")]))  # was equal to a frozenset that had another hash
def test_a_frozenset_with_the_same_members_has_the_same_hash(devices: DeviceSet) -> None:
    """A device set has the hash of the frozenset to which it is equal, so either finds the other in a dict."""
    assert hash(devices) == hash(frozenset(devices))


@given(device_sets(), st.frozensets(st.integers() | st.none() | st.text(max_size=3), max_size=3))
@example(DeviceSet.of([DeviceId("gpu-0")]), frozenset({1}))  # this raised TypeError, because one is not a sortable id
def test_a_set_of_other_things_is_another_set(devices: DeviceSet, others: frozenset[object]) -> None:
    """Comparing with a set of other objects is not an error. It is equal only if the members are."""
    assert (devices == others) == (frozenset(devices) == others)


@given(device_sets(), st.integers() | st.text() | st.lists(device_ids()))
def test_what_is_no_set_is_never_equal(devices: DeviceSet, other: object) -> None:
    """A device set is not equal to a list or a string of its ids."""
    assert devices != other


@given(device_sets(), device_ids() | st.integers() | st.none())
def test_membership_is_that_of_the_members(devices: DeviceSet, candidate: object) -> None:
    """`in` is true for the members only, for any kind of object."""
    assert (candidate in devices) == (candidate in frozenset(devices))
    assert all(device in devices for device in devices)


@given(device_sets())
def test_size_and_truth_are_those_of_the_members(devices: DeviceSet) -> None:
    """`len` is the number of members that iteration yields. A set is true if it has members."""
    assert len(devices) == len(list(devices)) == len(set(devices))
    assert bool(devices) == (len(devices) > 0)


@given(device_sets())
@example(DeviceSet.of(map(DeviceId, ["gpu-10", "gpu-2", "gpu-02"])))
def test_iteration_is_in_natural_order(devices: DeviceSet) -> None:
    """Iteration yields the members in natural order, for any order of insertion."""
    assert list(devices) == sorted(devices, key=natural_key)


@given(st.lists(device_ids()).flatmap(lambda ids: st.tuples(st.just(ids), st.permutations([*ids, *ids]))))
def test_the_order_of_building_does_not_matter(orders: tuple[list[DeviceId], list[DeviceId]]) -> None:
    """The same ids in any order and any number make the same set."""
    ids, shuffled = orders
    assert list(DeviceSet.of(shuffled)) == list(DeviceSet.of(ids))


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["", "gpu-", "ä"]), st.sampled_from(["", "-a"]))
def test_numbers_in_ids_are_compared_as_numbers(one: int, other: int, before: str, after: str) -> None:
    """`gpu-2` comes before `gpu-10`."""
    keys = [natural_key(f"{before}{number}{after}") for number in (one, other)]
    assert (keys[0] < keys[1]) == (one < other)


@given(device_ids(), device_ids())
def test_natural_order_is_total(one: DeviceId, other: DeviceId) -> None:
    """Of two different ids one comes first: `gpu-2` and `gpu-02` are never equal."""
    assert (natural_key(one) == natural_key(other)) == (one == other)
    assert (natural_key(one) < natural_key(other)) == (natural_key(other) > natural_key(one))


def test_an_id_may_have_more_digits_than_python_converts() -> None:
    """By default, Python converts at most 4,300 digits, but an id may have more."""
    long = DeviceId("9" * 5000)
    assert list(DeviceSet.of([long, DeviceId("gpu-0")])) == [long, "gpu-0"]


@given(device_sets(), st.integers(0, 10))
def test_take_gives_the_first_so_many(devices: DeviceSet, count: int) -> None:
    """`take(n)` has the first n members in natural order, or all if there are fewer."""
    assert list(devices.take(count)) == list(devices)[:count]


@given(st.lists(device_ids()), st.lists(device_ids()))
def test_an_index_selects_what_it_knows(known: list[DeviceId], asked: list[DeviceId]) -> None:
    """`select` drops ids that an index does not know.

    `covering` returns an index that knows all of the ids: the same index if possible, and a larger one otherwise.
    """
    index = DeviceIndex.of(known)
    assert frozenset(index.select(asked)) == frozenset(asked) & frozenset(known)
    covering = index.covering(asked)
    assert covering.all == frozenset(known) | frozenset(asked)
    assert (covering is index) == (frozenset(asked) <= frozenset(known))
    assert covering.covering(asked) is covering


@given(pairs())
def test_no_operation_changes_a_set(pair: tuple[DeviceSet, DeviceSet]) -> None:
    """Operations do not change their operands."""
    one, other = pair
    before = [frozenset(one), frozenset(other)]
    for operation in ALGEBRA:
        operation(one, other)
    one.take(1)
    one.on(one.index.covering(other))
    assert [one, other] == before
