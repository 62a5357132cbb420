"""Laws of Kubernetes quantities, against exact arithmetic."""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.quantity import MAX_QUANTITY, MAX_QUANTITY_LENGTH, Quantity

SUFFIXES = {
    **{suffix: Fraction(10) ** (3 * power) for power, suffix in enumerate(["n", "u", "m", "", "k", "M"], -3)},
    **{suffix: Fraction(10) ** (3 * power) for power, suffix in enumerate("GTPE", 3)},
    **{f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}

digits = st.text("0123456789", min_size=1, max_size=30)
signs = st.sampled_from(["", "+", "-"])
numbers = st.one_of(
    digits, st.tuples(digits, st.just("."), digits).map("".join), digits.map("{}.".format), digits.map(".{}".format)
)


def exact(sign: str, number: str, factor: Fraction) -> int:
    whole = min(math.ceil(Fraction("0" + number + "0" * number.endswith(".")) * factor), MAX_QUANTITY)
    return -whole if sign == "-" else whole


@given(signs, numbers, st.sampled_from(sorted(SUFFIXES)))
@example("", "1.5", "Gi")
@example("", "500", "m")
@example("", "1", "E")
@example("-", "9", "Ei")
@example("", "1.00000000000000000000000000001", "")
def test_a_quantity_is_its_number_times_its_suffix_rounded_away_from_zero(sign: str, number: str, suffix: str) -> None:
    assert Quantity.parse(sign + number + suffix).whole == exact(sign, number, SUFFIXES[suffix])


@given(signs, numbers, st.sampled_from(sorted(SUFFIXES)))
@example("", "2000", "m")
@example("", "1.5", "")
@example("", "1000000000000000000000000000.1", "")
def test_an_integer_is_what_needs_no_rounding(sign: str, number: str, suffix: str) -> None:
    value = Fraction("0" + number + "0" * number.endswith(".")) * SUFFIXES[suffix]
    billionths = 0 if suffix.endswith("i") and value > MAX_QUANTITY else math.ceil(value * 10**9)
    assert Quantity.parse(sign + number + suffix).is_whole == (billionths % 10**9 == 0)


@given(signs, numbers, st.sampled_from("eE"), signs, st.integers(0, 40))
def test_an_exponent_counts_tens(sign: str, number: str, letter: str, side: str, exponent: int) -> None:
    factor = Fraction(10) ** (-exponent if side == "-" else exponent)
    assert Quantity.parse(f"{sign}{number}{letter}{side}{exponent}").whole == exact(sign, number, factor)


@given(numbers, st.integers(100, MAX_QUANTITY))
def test_an_exponent_beyond_all_measure_takes_no_time(number: str, exponent: int) -> None:
    something = any(digit in number for digit in "123456789")
    assert Quantity.parse(f"{number}e{exponent}").whole == (MAX_QUANTITY if something else 0)
    assert Quantity.parse(f"{number}e-{exponent}").whole == (1 if something else 0)


@given(st.integers(-MAX_QUANTITY, MAX_QUANTITY))
def test_a_whole_number_is_itself(number: int) -> None:
    assert Quantity.parse(str(number)).whole == number


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    try:
        assert abs(Quantity.parse(text).whole) <= MAX_QUANTITY
    except InvalidQuantityError as refused:
        assert refused.text == text  # noqa: PT017 - most texts are refused, and some are not


@pytest.mark.parametrize(
    "text",
    ["", "1ki", "1K", "1 ", " 1", "1e", "1e+", "1e1.5", "--1", "1i", "1Mi2", "٣", "1_000", "0x10", "1\n", "NaN"],
)
def test_what_the_grammar_does_not_derive_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuantityError, match="is not a quantity such as 2"):
        Quantity.parse(text)


def test_text_without_digits_is_0_and_only_binary_quantities_have_a_limit() -> None:
    assert [Quantity.parse(text).whole for text in (".", "k", "-Ki", "+", ".m", "e3")] == [0] * 6
    assert Quantity.parse("12345678901234567890").nanos == 12345678901234567890 * 10**9
    assert Quantity.parse("9Ei").nanos == MAX_QUANTITY * 10**9


def test_text_that_is_too_long_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidQuantityError) as refused:
        Quantity.parse("1" * 10_000_000)
    assert len(str(refused.value)) < MAX_QUANTITY_LENGTH + 100
    assert Quantity.parse("1" * MAX_QUANTITY_LENGTH).whole == MAX_QUANTITY


def test_a_quantity_of_more_than_18_digits_is_not_a_64_bit_integer_in_go() -> None:
    """Go counts the digits as written, before and after the point."""
    assert Quantity.parse("0.12345678901234567e17").is_int64
    assert not Quantity.parse("0.123456789012345678e18").is_int64
    assert not Quantity.parse("1234567890123456789").is_int64


@pytest.mark.parametrize(("suffix", "digits"), [("Ki", 11), ("Mi", 8), ("Gi", 5), ("Ti", 2)])
def test_a_binary_quantity_with_too_many_digits_is_not_a_64_bit_integer_in_go(suffix: str, digits: int) -> None:
    assert Quantity.parse("1" * digits + suffix).is_int64
    assert not Quantity.parse("1" * (digits + 1) + suffix).is_int64


def test_a_quantity_is_written_again_as_it_was_read() -> None:
    for text in ("1536Mi", "3Ki", "1025", "1500", "3k", "1500m", "0", "7n"):
        quantity = Quantity.parse(text)
        assert quantity.binary == text.endswith("i")
        assert str(quantity) == text
